"""Search by meaning: what is sent, what is found, and what a broken embedder cannot spoil."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from callgate import Gate
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.schema import EmbeddingsTable
from callgate.core.models import Key
from callgate.core.sessions import Mode
from callgate.features.chat.models.embeddings import open_embedder
from callgate.features.chat.models.make import store_key
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.tools.loading import factories
from callgate_catalogue.documents.index import Hit, Passage, opened
from callgate_catalogue.documents.pack import CATALOGUE
from callgate_catalogue.documents.searching import SearchRequest, fused
from callgate_catalogue.documents.vectors import COMPARED, MOST_BYTES, Scope, Vectors, normalised, split
from callgate_catalogue.settings import Documents, DocumentsTable
from tests.models_server import Answer, Embeds, Fails, Hangs, Leaves, ModelServer, Streams
from tests.support import Bench

SECRET = "sk-verysecretkey0123456789abcdefABCDEF"


def bench(home: Path, workspace: Path, url: str, policy: Policy = Policy(), **more: Any) -> Bench:
    refresh_s = more.pop("files_refresh_s", 20.0)
    named = EmbeddingsTable(**{"model": "m", "endpoint": url, **more})
    table = DocumentsTable(refresh_s=refresh_s, embeddings=named)
    documents = Documents(str(home), table, lambda: open_embedder(Home(str(home)), named))
    return Bench(workspace, *factories(CATALOGUE, documents), policy=policy, mode=Mode.WRITE)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(Embeds()) as server:
        yield server


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    workspace = tmp_path / "ws"
    for path, text in {
        "garage.md": "# Keys\n\n" + "x y z\n" * 90 + "\nThe cars stand here.\n",
        "clinic.md": "Ask the physician.\n",
        "bank/notes.txt": "Cash only.\n",
    }.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(text)
    return workspace


def rows(result: Any) -> list[tuple[str, int | None, str]]:
    assert result.ok, result
    return [(row["path"], row["line"], row["found_by"]) for row in result.value]


def sent(server: ModelServer) -> list[str]:
    return [text for request in server.requests for text in request.body["input"]]


def state(result: Any) -> tuple[int, bool]:
    assert result.ok, result
    return result.meta["embedded"], result.meta["all_embedded"]


@pytest.mark.spec("S3-53")
async def test_what_is_meant_is_found_where_no_word_is_the_same(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url)
    result = await desk.run("search", {"query": "automobile"})
    assert rows(result) == [("garage.md", 94, "meaning")]
    assert result.value[0]["snippet"] == "The cars stand here." and result.meta["all_embedded"]
    assert result.text == "garage.md:94: The cars stand here. [by its meaning]"
    assert rows(await desk.run("search", {"query": "doctor"})) == [("clinic.md", 1, "meaning")]
    assert rows(await desk.run("search", {"query": "nosuchthing"})) == []
    progress = desk.recorder.of("tool.progress")
    assert [progress[0].payload["fraction"], progress[-1].payload["fraction"]] == [0.0, 1.0]


async def test_what_both_find_comes_before_what_one_finds(home: Path, ws: Path, server: ModelServer) -> None:
    (ws / "both.md").write_text("An automobile, a vehicle.\n")
    (ws / "words.md").write_text("automobile\n" + "other things entirely\n" * 40)
    result = await bench(home, ws, server.url).run("search", {"query": "automobile"})
    found = {path: by for path, _, by in rows(result)}
    assert rows(result)[0] == ("both.md", 1, "both")
    assert (found["words.md"], found["garage.md"]) == ("words", "meaning")
    first = await bench(home, ws, server.url).run("search", {"query": "automobile", "limit": 1})
    assert rows(first) == [("both.md", 1, "both")]


def test_ranks_are_put_together_by_their_reciprocals(tmp_path: Path) -> None:
    class Open(SearchRequest):
        def may_show(self, origin: Any, path: str) -> bool:
            return path != "hidden"

    def ranked(*paths: str, by: str) -> list[tuple[Hit, Passage]]:
        return [(Hit("workspace", path, 1, by), Passage(by, 1)) for path in paths]

    asked: Any = Open("q", ("workspace",), "", 4, None, "", lambda: False)  # type: ignore[arg-type]
    words = ranked("a", "b", "c", by="words")
    meant = ranked("c", "hidden", "b", "d", "e", by="meaning")
    assert [(hit.path, part.snippet, by) for hit, part, by in fused(words, meant, asked)] == [
        ("c", "words", "both"),
        ("b", "words", "both"),
        ("a", "words", "words"),
        ("d", "meaning", "meaning"),
    ]


async def test_only_passages_that_are_new_are_sent(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url)
    first = await desk.run("search", {"query": "car"})
    assert state(first) == (4, True)
    assert state(await desk.run("search", {"query": "car"})) == (0, True)
    (ws / "clinic.md").rename(ws / "moved.md")  # the same text elsewhere
    (ws / "copy.md").write_text("Cash only.\n")
    (ws / "new.md").write_text("Something else.\n")
    server.requests.clear()
    assert state(await desk.run("search", {"query": "doctor"})) == (1, True)
    assert sent(server) == ["doctor", "Something else."]
    assert rows(await desk.run("search", {"query": "doctor"})) == [("moved.md", 1, "meaning")]
    both = await desk.run("search", {"query": "currency"})
    assert sorted(rows(both)) == [("bank/notes.txt", 1, "meaning"), ("copy.md", 1, "meaning")]


async def test_vectors_of_texts_that_are_gone_are_gone_too(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url)
    await desk.run("search", {"query": "car"})
    (ws / "clinic.md").unlink()
    (ws / "garage.md").write_text("Nothing.\n")
    assert rows(await desk.run("search", {"query": "doctor"})) == []
    assert rows(await desk.run("search", {"query": "automobile"})) == []
    (path,) = (home / "documents").rglob("index.db")
    with apsw.Connection(str(path)) as connection:
        assert connection.execute("SELECT count(*) FROM vectors").fetchall() == [(2,)]
    connection.close()


async def test_a_bounded_search_says_that_more_is_to_be_embedded_and_the_next_goes_on(
    home: Path, ws: Path, server: ModelServer
) -> None:
    for number in range(10):
        (ws / f"{number}.md").write_text(f"Number{number} stands alone.\n")
    desk = bench(home, ws, server.url, max_new=6)
    seen = []
    for _ in range(4):
        result = await desk.run("search", {"query": "car"})
        seen.append((*state(result), result.truncated))
    assert seen == [(6, False, True), (6, False, True), (2, True, False), (0, True, False)]
    texts = [text for text in sent(server) if text != "car"]
    assert len(texts) == len(set(texts)) == 14


async def test_too_many_passages_are_found_by_their_words_alone(home: Path, ws: Path, server: ModelServer) -> None:
    result = await bench(home, ws, server.url, max_passages=1).run("search", {"query": "physician"})
    assert rows(result)[0][:2] == ("clinic.md", 1) and state(result)[1] is False


@pytest.mark.parametrize("other", [{"model": "n"}, {"document_prefix": "doc: "}])
async def test_with_another_model_all_is_made_anew(other: Any, home: Path, ws: Path, server: ModelServer) -> None:
    assert state(await bench(home, ws, server.url).run("search", {"query": "car"})) == (4, True)
    changed = bench(home, ws, server.url, **other)
    assert state(await changed.run("search", {"query": "car"})) == (4, True)
    assert state(await changed.run("search", {"query": "car"})) == (0, True)


async def test_vectors_of_another_length_are_never_compared(home: Path, ws: Path) -> None:
    async with ModelServer(*[Embeds(64)] * 3, Embeds(32)) as server:
        desk = bench(home, ws, server.url)
        assert state(await desk.run("search", {"query": "car"})) == (4, True)
        assert len(server.requests) == 2
        assert state(await desk.run("search", {"query": "car"})) == (0, True)
        result = await desk.run("search", {"query": "automobile"})
        assert (state(result), rows(result)) == ((4, True), [("garage.md", 94, "meaning")])


async def test_prefixes_go_before_what_is_sent_and_are_not_shown(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url, query_prefix="query: ", document_prefix="passage: ")
    result = await desk.run("search", {"query": "doctor", "scope": "bank"})
    assert sent(server) == ["query: doctor", "passage: Cash only."]
    assert "passage:" not in result.text


def answer(**more: Any) -> Fails:
    good = {"object": "list", "data": [{"index": 0, "embedding": [1.0, 0.0]}], "model": "m"}
    return Fails(200, {**good, **more})


BROKEN: dict[str, Answer] = {
    "refuses the key": Fails(401, {"error": {"message": f"Incorrect API key provided: {SECRET}"}}),
    "does not know the model": Fails(404, {"error": {"message": "model not found"}}),
    "says html": Streams(b"<html>hello</html>", "text/html"),
    "redirects": Fails(302, "", {"location": "http://127.0.0.1:1/steal"}),
    "leaves": Leaves(),
    "is no JSON": Streams(b"not json", "application/json"),
    "is JSON of something else": Fails(200, {"hello": 1}),
    "is cut": Streams(b'{"data": [{"embedding": [1', "application/json", cut=True),
    "has too few": answer(data=[]),
    "has too many": answer(data=[{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]),
    "has a wrong index": answer(data=[{"index": 5, "embedding": [1.0]}]),
    "has a negative index": answer(data=[{"index": -1, "embedding": [1.0]}]),
    "is not a number": Fails(200, '{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}'),
    "is infinite": Fails(200, '{"data": [{"index": 0, "embedding": [1e999, 1.0]}]}'),
    "is null": Fails(200, '{"data": [{"index": 0, "embedding": [null, 1.0]}]}'),
    "is text": answer(data=[{"index": 0, "embedding": "AAAA"}]),
    "is empty": answer(data=[{"index": 0, "embedding": []}]),
    "is too long": answer(data=[{"index": 0, "embedding": [1] * 20_000}]),
    "is nested": Fails(200, '{"data": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "wants us to wait": Fails(429, {"error": {"message": "slow down"}}, {"retry-after": "3600"}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
async def test_with_a_broken_embedder_words_are_found_all_the_same(
    broken: Answer, home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECTOR_KEY", SECRET)
    monkeypatch.setattr("callgate.features.chat.models.embeddings._RETRIES", 0)
    async with ModelServer(broken) as server:
        desk = bench(home, ws, server.url, key_env="VECTOR_KEY")
        result = await desk.run("search", {"query": "physician"})
        assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        assert len(server.requests) == 1  # nothing but the query was sent
    assert (rows(result), state(result)) == ([("clinic.md", 1, "words")], (0, False))
    lines = result.text.splitlines()
    assert len(lines) == 2 and lines[1].startswith("[") and "Traceback" not in result.text
    said = msgspec.json.encode([[event.payload for event in desk.recorder.events], result.text, result.meta])
    assert SECRET.encode() not in said and SECRET[:12].encode() not in said


async def test_an_embedder_that_is_down_or_silent_is_left_out(home: Path, ws: Path) -> None:
    async with ModelServer(Hangs()) as server:
        url = server.url
        slow = await bench(home, ws, url, refresh_s=0.2).run("search", {"query": "physician"})
        assert (rows(slow), state(slow)) == ([("clinic.md", 1, "words")], (0, False))
        await asyncio.wait_for(server.left.wait(), 60)
    down = await bench(home, ws, url, refresh_s=0.2).run("search", {"query": "physician"})
    assert (rows(down), state(down)) == ([("clinic.md", 1, "words")], (0, False))


async def test_an_embedder_that_fails_later_keeps_what_it_made(home: Path, ws: Path) -> None:
    for number in range(30):
        (ws / f"{number}.md").write_text(f"Number{number} stands alone.\n")
    async with ModelServer(Embeds(), Embeds(), Embeds(), Fails(401, {}), Embeds()) as server:
        desk = bench(home, ws, server.url)
        first = await desk.run("search", {"query": "automobile"})
        embedded, everything = state(first)
        assert 0 < embedded < 34 and not everything and first.text.splitlines()[-1].startswith("[")
        second = await desk.run("search", {"query": "automobile"})
        assert state(second) == (34 - embedded, True)
        assert rows(second) == [("garage.md", 94, "meaning")]


async def test_vectors_shorter_than_that_of_the_query_are_no_answer(home: Path, ws: Path) -> None:
    async with ModelServer(Embeds(64), Embeds(32)) as server:
        result = await bench(home, ws, server.url).run("search", {"query": "physician"})
    assert (rows(result), state(result)) == ([("clinic.md", 1, "words")], (0, False))


@pytest.mark.parametrize("says", ["input is too large to process", "no"])
async def test_a_text_that_the_embedder_refuses_does_not_keep_out_the_others(
    says: str, home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.features.chat.models.embeddings._RETRIES", 0)
    (ws / "poison.md").write_text("Unswallowable.\n")
    async with ModelServer(Embeds(refuses="Unswallowable", says=says)) as server:
        desk = bench(home, ws, server.url)
        first = await desk.run("search", {"query": "automobile"})
        assert (state(first), rows(first)) == ((5, True), [("garage.md", 94, "meaning")])
        server.requests.clear()
        assert state(await desk.run("search", {"query": "car"})) == (0, True)
        assert sent(server) == ["car"]  # it is not tried for ever
        assert rows(await desk.run("search", {"query": "unswallowable"}))[0][0] == "poison.md"


async def test_a_cancelled_search_stops_embedding_and_keeps_what_there_is(home: Path, ws: Path) -> None:
    waits = asyncio.Event()
    for number in range(30):
        (ws / f"{number}.md").write_text(f"Number{number} stands alone.\n")
    async with ModelServer(Embeds(waits=waits, first=3)) as server:  # the query and two batches
        desk = bench(home, ws, server.url)
        call = desk.tool_call("search", {"query": "car"})
        running = asyncio.create_task(desk.dispatcher.run(call))
        async with asyncio.timeout(60):
            await desk.recorder.until(lambda: len(desk.recorder.of("tool.progress")) == 3)
            await desk.dispatcher.cancel(call.id)
            assert (await running).error.error_class == "cancelled"
        # A batch that is quick is followed by a larger one, so how many two are depends on them.
        kept = round(34 * desk.recorder.of("tool.progress")[-1].payload["fraction"])
        assert kept in (8, 12)
        waits.set()
        assert state(await desk.run("search", {"query": "car"})) == (34 - kept, True)


async def test_an_index_that_cannot_be_written_meanwhile_spoils_no_search(
    home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate_catalogue.documents.index._BUSY_MS", 10)
    waits = asyncio.Event()
    async with ModelServer(Embeds(waits=waits)) as server:
        desk = bench(home, ws, server.url)
        running = asyncio.create_task(desk.run("search", {"query": "physician"}))
        async with asyncio.timeout(60):
            await desk.recorder.until(lambda: bool(desk.recorder.of("tool.progress")))
            (path,) = (home / "documents").rglob("index.db")
            other = apsw.Connection(str(path))
            other.execute("BEGIN IMMEDIATE")
            waits.set()
            result = await running
            other.close()
        assert (rows(result), state(result)) == ([("clinic.md", 1, "words")], (0, False))


@pytest.mark.spec("T02")
async def test_what_may_not_be_read_is_neither_sent_nor_found(home: Path, ws: Path, server: ModelServer) -> None:
    (ws / ".env").write_text("CAR=automobile\n")
    (ws / ".githooks").mkdir()
    (ws / ".githooks" / "pre-commit").write_text("a vehicle\n")
    for decision in (Outcome.DENY, Outcome.ASK):
        policy = Policy(rules=(Rule(decision=decision, path="bank/**"),))
        result = await bench(home, ws, server.url, policy=policy).run("search", {"query": "currency"})
        assert rows(result) == [] and "Cash" not in result.text
    assert [text for text in sent(server) if "Cash" in text or "vehicle" in text or "CAR" in text] == []


@pytest.mark.spec("T02")
async def test_a_rule_that_came_later_hides_vectors_that_were_made_before(
    home: Path, ws: Path, server: ModelServer
) -> None:
    before = await bench(home, ws, server.url).run("search", {"query": "currency"})
    assert rows(before) == [("bank/notes.txt", 1, "meaning")]
    (ws / "bank" / "more.txt").write_text("Unsent.\n")
    policy = Policy(rules=(Rule(decision=Outcome.DENY, path="bank/**"),))
    narrow = bench(home, ws, server.url, policy=policy, files_refresh_s=0.000_001)  # the index stays as it was
    after = await narrow.run("search", {"query": "currency"})
    assert rows(after) == [] and "Cash" not in after.text


@pytest.mark.spec("T02")
async def test_a_file_of_the_index_that_a_rule_hides_now_is_not_sent(home: Path, ws: Path, server: ModelServer) -> None:
    table = DocumentsTable()
    plain = Bench(ws, *factories(CATALOGUE, Documents(str(home), table)), mode=Mode.WRITE)
    assert (await plain.run("search", {"query": "cash"})).ok  # in the index, without a vector
    policy = Policy(rules=(Rule(decision=Outcome.DENY, path="bank/**"),))
    narrow = bench(home, ws, server.url, policy=policy, files_refresh_s=0.000_001)
    assert (await narrow.run("search", {"query": "car"})).ok
    assert "car" in sent(server) and "Cash only." not in sent(server)


async def test_a_file_that_became_a_link_out_does_not_come_out(
    home: Path, ws: Path, tmp_path: Path, server: ModelServer
) -> None:
    desk = bench(home, ws, server.url)
    await desk.run("search", {"query": "car"})
    (tmp_path / "outside.md").write_text("physician outside")
    (ws / "clinic.md").unlink()
    (ws / "clinic.md").symlink_to(tmp_path / "outside.md")
    assert rows(await desk.run("search", {"query": "doctor"})) == []
    assert [text for text in sent(server) if "outside" in text] == []


async def test_only_what_is_searched_is_sent(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url)
    await desk.run("file_ingest", {"filename": "kept.txt", "content": "The vehicle."})
    found = await desk.run("search", {"query": "automobile", "scope": "documents"})
    assert (rows(found), sent(server)) == ([("kept.txt", 1, "meaning")], ["automobile", "The vehicle."])
    server.requests.clear()
    inside = await desk.run("search", {"query": "money", "scope": "./bank"})
    assert (rows(inside), sent(server)) == ([("bank/notes.txt", 1, "meaning")], ["money", "Cash only."])
    assert rows(await desk.run("search", {"query": "automobile", "scope": "./bank"})) == []


async def test_searches_side_by_side_find_the_same(home: Path, ws: Path, server: ModelServer) -> None:
    desk = bench(home, ws, server.url)
    found = await asyncio.gather(*(desk.run("search", {"query": "automobile"}) for _ in range(6)))
    assert [rows(each) for each in found] == [[("garage.md", 94, "meaning")]] * 6


# Settings and keys.


def test_a_workspace_cannot_name_an_embedder(ws: Path) -> None:
    (ws / ".callgate").mkdir()
    path = ws / ".callgate" / "settings.toml"
    path.write_text('[documents.embeddings]\nmodel = "m"\nendpoint = "http://127.0.0.1:1/v1"\n')
    with pytest.raises(SettingsError) as refused:
        load_workspace(str(ws))
    assert refused.value.line == 1


@pytest.mark.parametrize(
    ("endpoint", "line"),
    [('"ftp://x/v1"', 3), ('"127.0.0.1:1"', 3), ('"http://me:pw@127.0.0.1/v1"', 3), ('"http://["', 3), ("1", 3)],
)
def test_an_address_that_is_none_is_refused_with_its_line(endpoint: str, line: int, home: Path) -> None:
    (home / "settings.toml").write_text(f'[documents.embeddings]\nmodel = "m"\nendpoint = {endpoint}\n')
    with pytest.raises(SettingsError) as refused:
        load_user(Home(str(home)))
    assert refused.value.line == line


async def test_texts_do_not_go_over_plain_http_to_another_machine(home: Path, ws: Path) -> None:
    result = await bench(home, ws, "http://192.0.2.1/v1").run("search", {"query": "physician"})
    assert (rows(result), state(result)) == ([("clinic.md", 1, "words")], (0, False))


async def test_a_key_comes_from_the_places_of_all_keys(home: Path, ws: Path, server: ModelServer) -> None:
    await bench(home, ws, server.url).run("search", {"query": "car"})
    store_key(Home(str(home)), "embeddings", Key("stored-key-1"))
    await bench(home, ws, server.url).run("search", {"query": "car"})
    await bench(home, ws, server.url, key_command=["echo", "printed-key"]).run("search", {"query": "car"})
    keys = [request.headers.get("authorization") for request in server.requests]
    assert list(dict.fromkeys(keys)) == [None, "Bearer stored-key-1", "Bearer printed-key"]
    broken = await bench(home, ws, server.url, key_command=["false"]).run("search", {"query": "physician"})
    assert (rows(broken), state(broken)) == ([("clinic.md", 1, "words")], (0, False))


async def test_openai_without_a_key_is_not_asked(home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = await bench(home, ws, "https://api.openai.com/v1").run("search", {"query": "physician"})
    assert (rows(result), state(result)) == ([("clinic.md", 1, "words")], (0, False))


async def test_the_usual_key_of_openai_goes_to_nobody_else(
    home: Path, ws: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    await bench(home, ws, server.url).run("search", {"query": "car"})
    assert {request.headers.get("authorization") for request in server.requests} == {None}


async def test_settings_alone_make_a_gate_search_by_meaning(home: Path, ws: Path, server: ModelServer) -> None:
    (home / "settings.toml").write_text(f'[documents.embeddings]\nmodel = "m"\nendpoint = "{server.url}"\n')
    async with Gate(ws) as gate:
        result = await gate.call("search", {"query": "automobile"})
    assert rows(result) == [("garage.md", 94, "meaning")]


async def test_the_page_about_documents_shows_what_happens(home: Path, ws: Path, server: ModelServer) -> None:
    """`tests/docs` runs its other blocks; this one needs somebody who makes vectors."""
    page = (Path(__file__).parents[3] / "docs" / "use" / "documents.md").read_text()
    (block,) = re.findall(r"```text\n\$ callgate call search query=(\w+)\n(.+?)\n```", page, re.DOTALL)
    ((path, said),) = re.findall(r'with the file `(\S+)`, which contains "([^"]+)":', page)
    (ws / path).parent.mkdir()
    (ws / path).write_text(said + "\n")
    (ws / "garage.md").unlink()
    result = await bench(home, ws, server.url).run("search", {"query": block[0]})
    assert result.text == block[1]


_WITHOUT = """
import asyncio, sys
from callgate import Gate
async def main():
    async with Gate(sys.argv[1]) as gate:
        result = await gate.call("search", {"query": "physician"})
        assert [sorted(row) for row in result.value] == [["line", "origin", "path", "snippet"]]
    more = ("meaning", "vectors", "passages")
    unwanted = {f"callgate_catalogue.documents.{name}" for name in more}
    unwanted |= {"callgate.features.chat.models.embeddings", "httpx2"}
    print(sorted(unwanted & sys.modules.keys()))
asyncio.run(main())
"""


async def test_without_an_embedder_nothing_of_it_is_loaded_or_kept(home: Path, ws: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WITHOUT, str(ws), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"[]\n")
    (path,) = (home / "documents").rglob("index.db")
    with apsw.Connection(str(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    assert {"passages", "vectors", "embedder"} & tables == set()


# Passages and vectors.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "one",
        "one\n\ntwo\n",
        "a line\n" * 500,
        "x" * 5_000,
        "語" * 3_000,
        "é\n" * 999,
        "a" * 999 + "\n\nb",
        " \n" * 9 + "end",
    ],
)
def test_passages_are_short_and_have_every_word_of_a_text(text: str) -> None:
    parts = list(split(text))
    passages = [text[part.start : part.stop] for part in parts]
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(len(each.strip().encode()) <= MOST_BYTES and each.strip() for each in passages)
    assert [text.count("\n", 0, part.start) + 1 for part in parts] == [part.line for part in parts]


def test_the_nearest_of_many_are_those_that_comparing_all_finds(tmp_path: Path) -> None:
    count, axes = COMPARED + 1_000, 48
    status = tmp_path.stat()

    def numbers(place: int) -> list[float]:
        return [1.0 if (place * 2_654_435_761 >> axis % 32) >> axis // 32 & 1 else -1.0 for axis in range(axes)]

    with opened(str(tmp_path)) as index:
        vectors = Vectors(index, "m", axes)
        vectors.begin()
        with index.changing():
            for place in range(count):
                index.put("workspace", f"{place}", status, 1, b"", f"text {place}")
        scope = Scope(("workspace",), "", lambda origin, path: True)
        work = vectors.work(scope, count, count, lambda: False)
        vectors.store([(each, numbers(int(each.text.split()[1]))) for each in work.pending])
        query = numbers(17)
        narrow = scope._replace(may_show=lambda origin, path: path != "17")
        found = vectors.nearest(normalised(query), narrow, -1.0, 3)
    exact = sorted(range(count), key=lambda place: -sum(a * b for a, b in zip(query, numbers(place), strict=True)))
    best = [sum(a * b for a, b in zip(query, numbers(place), strict=True)) for place in exact if place != 17][:3]
    assert [sum(a * b for a, b in zip(query, numbers(int(hit.path)), strict=True)) for hit, _ in found] == best
    assert (len(work.pending), work.left, work.full) == (count, False, False)


def test_what_was_made_for_another_embedder_meanwhile_is_thrown_away(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as index:
        with index.changing():
            index.put("workspace", "a", tmp_path.stat(), 1, b"", "text")
        scope = Scope(("workspace",), "", lambda origin, path: True)
        old, new = Vectors(index, "old", 2), Vectors(index, "new", 2)
        old.begin()
        (pending,) = old.work(scope, 9, 9, lambda: False).pending
        new.begin()
        old.store([(pending, [1.0, 0.0])])
        assert old.nearest(normalised([1.0, 0.0]), scope, -1.0, 9) == []
        assert new.work(scope, 9, 9, lambda: False).pending == [pending]
