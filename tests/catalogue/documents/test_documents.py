"""Search in files and documents: what is indexed, what is found, what is never shown."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from callgate.core.sessions import Mode
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.tools.loading import factories
from callgate_catalogue.documents import searching
from callgate_catalogue.documents.index import opened
from callgate_catalogue.documents.pack import CATALOGUE
from callgate_catalogue.settings import Documents, DocumentsTable
from tests.support import Bench


def bench(home: Path, workspace: Path, *, policy: Policy = Policy(), mode: Mode = Mode.WRITE, **table: Any) -> Bench:
    documents = Documents(str(home), DocumentsTable(**table))
    return Bench(workspace, *factories(CATALOGUE, documents), policy=policy, mode=mode)


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    workspace = tmp_path / "ws"
    for path, text in {
        "README.md": "# Zebra\n\nHow the crossing works.\n",
        "src/lights.py": "def switch_lights():\n    return 'zebra'\n",
        "docs/guide.html": "<title>Guide</title><h1>Traffic</h1><p>A zebra waits.<script>zebra()</script>",
        "docs/notes.txt": "Unrelated words, café and naïve.\n",
        "build/out.txt": "zebra in the build\n",
        ".gitignore": "build/\n",
        ".env": "TOKEN=zebra\n",
        "server.pem": "zebra\n",
        ".git/config": "zebra\n",
        ".githooks/pre-commit": "zebra hookword\n",
        "picture.png": "zebra\n",
        "data.weird": "zebra\0zebra",
    }.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(text)
    return workspace


def paths(result: Any) -> list[str]:
    assert result.ok, result
    return sorted(row["path"] for row in result.value)


@pytest.mark.spec("S3-53")
async def test_words_are_found_where_they_stand_and_nothing_that_is_left_out(home: Path, ws: Path) -> None:
    result = await bench(home, ws).run("search", {"query": "zebra"})
    assert paths(result) == ["README.md", "docs/guide.html", "src/lights.py"]
    rows = {row["path"]: row for row in result.value}
    assert (rows["src/lights.py"]["line"], rows["src/lights.py"]["origin"]) == (2, "workspace")
    assert rows["docs/guide.html"]["line"] is None  # of what is shown, not of the file
    assert "A zebra waits." in rows["docs/guide.html"]["snippet"]
    assert "zebra()" not in result.text
    kept = b"".join(path.read_bytes() for path in (home / "documents").rglob("*") if path.is_file())
    assert b"crossing" in kept
    assert [each for each in (b"TOKEN", b"in the build", b"hookword") if each in kept] == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home / "documents").rglob("index.db")} == {0o600}


async def test_the_line_is_the_one_with_the_words(home: Path, ws: Path) -> None:
    (ws / "long.txt").write_text("filler words\n" * 500 + "the needle\n" + "filler words\n" * 500)
    (row,) = (await bench(home, ws).run("search", {"query": "needle"})).value
    assert row["line"] == 501 and "the needle" in row["snippet"]


@pytest.mark.parametrize("query", ["日本語", "文書", "日本 方法", "方*", "v2版", "แมว", "文書です"])
async def test_words_of_scripts_without_spaces_are_found(query: str, home: Path, ws: Path) -> None:
    (ws / "門.txt").write_text("これは日本語の文書です。\nv2版の方法。\nฉันรักแมวมาก\n")
    (row,) = (await bench(home, ws).run("search", {"query": query})).value
    assert row["path"] == "門.txt" and "\u200b" not in row["snippet"] and "\x02" not in row["snippet"]
    assert (await bench(home, ws).run("search", {"query": "日文"})).value == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("crossing zebra", ["README.md"]),
        ("crossing nosuchword", ["README.md"]),
        ('"crossing works"', ["README.md"]),
        ('"works crossing"', []),
        ("cross*", ["README.md"]),
        ("cafe NAIVE", ["docs/notes.txt"]),
        ("switch_lights", ["src/lights.py"]),
        ("guide", ["docs/guide.html"]),
        ('" OR 1=1 --', []),
        ("NEAR(zebra crossing)", ["README.md"]),
        ("body:zebra", []),
        ("-*^:(){}", []),
        ("zebra\0crossing", []),
        ('"', []),
    ],
)
async def test_a_query_is_words_and_phrases_and_no_syntax_of_a_database(
    query: str, found: list[str], home: Path, ws: Path
) -> None:
    result = await bench(home, ws).run("search", {"query": query})
    assert set(found) <= set(paths(result)) and (found != [] or paths(result) == [])


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        ("all", ["README.md", "docs/guide.html", "kept.txt", "src/lights.py"]),
        ("workspace", ["README.md", "docs/guide.html", "src/lights.py"]),
        ("documents", ["kept.txt"]),
        ("docs", ["docs/guide.html"]),
        ("./docs/", ["docs/guide.html"]),
        (".", ["README.md", "docs/guide.html", "src/lights.py"]),
    ],
)
async def test_a_scope_narrows_the_search(scope: str, found: list[str], home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    await desk.run("file_ingest", {"content": "a zebra in a zoo", "filename": "kept.txt"})
    assert paths(await desk.run("search", {"query": "zebra", "scope": scope})) == found
    limited = await desk.run("search", {"query": "zebra", "limit": 1})
    assert len(limited.value) == 1


@pytest.mark.parametrize(
    ("scope", "error_class"),
    [
        ("..", "permission_denied"),
        ("/etc", "permission_denied"),
        ("nosuch", "execution_error"),
        ("README.md", "execution_error"),
    ],
)
async def test_a_scope_stays_inside(scope: str, error_class: str, home: Path, ws: Path) -> None:
    result = await bench(home, ws).run("search", {"query": "root", "scope": scope})
    assert result.error.error_class == error_class


async def test_a_search_reads_what_is_new_and_nothing_else(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    for path in ws.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    first = await desk.run("search", {"query": "zebra"})
    assert first.meta["read"] > 3
    assert (await desk.run("search", {"query": "zebra"})).meta["read"] == 0
    (ws / "README.md").write_text("# Okapi\n")
    (ws / "docs" / "notes.txt").unlink()
    changed = await desk.run("search", {"query": "okapi"})
    assert (changed.meta["read"], paths(changed)) == (1, ["README.md"])
    assert paths(await desk.run("search", {"query": "unrelated"})) == []
    assert paths(await desk.run("search", {"query": "crossing"})) == []


async def test_a_change_in_the_same_tick_and_of_the_same_size_is_seen(home: Path, ws: Path) -> None:
    desk, path = bench(home, ws), ws / "fresh.txt"
    path.write_text("aardvark")
    status = path.stat()
    assert paths(await desk.run("search", {"query": "aardvark"})) == ["fresh.txt"]
    path.write_text("buffalos")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert paths(await desk.run("search", {"query": "buffalos"})) == ["fresh.txt"]


@pytest.mark.spec("T02")
async def test_a_rule_that_came_later_hides_what_was_indexed_before(home: Path, ws: Path) -> None:
    assert "src/lights.py" in paths(await bench(home, ws).run("search", {"query": "zebra"}))
    for decision in (Outcome.DENY, Outcome.ASK):
        rule = Rule(decision=decision, path="src/**")
        narrow = bench(home, ws, policy=Policy(rules=(rule,)), refresh_s=0.000_001)
        result = await narrow.run("search", {"query": "zebra"})
        assert paths(result) == ["README.md", "docs/guide.html"] and "lights" not in result.text
    # With time to look at everything it is not even kept.
    await bench(home, ws, policy=Policy(rules=(Rule(decision=Outcome.DENY, path="src/**"),))).run(
        "search", {"query": "x"}
    )
    assert "src/lights.py" in paths(await bench(home, ws).run("search", {"query": "zebra"}))


async def test_a_file_that_became_a_link_out_is_neither_read_nor_shown(home: Path, ws: Path, tmp_path: Path) -> None:
    desk = bench(home, ws)
    await desk.run("search", {"query": "zebra"})
    (tmp_path / "secret.txt").write_text("zebra secret")
    (ws / "README.md").unlink()
    (ws / "README.md").symlink_to(tmp_path / "secret.txt")
    result = await desk.run("search", {"query": "zebra"})
    assert paths(result) == ["docs/guide.html", "src/lights.py"] and "secret" not in result.text


async def test_what_is_too_large_or_too_much_is_left_out_and_said(home: Path, ws: Path) -> None:
    (ws / "large.txt").write_text("zebra " * 1_000)
    small = await bench(home, ws, max_bytes=1024).run("search", {"query": "zebra"})
    assert "large.txt" not in paths(small) and small.meta["complete"]
    few = await bench(home, ws, max_files=1).run("search", {"query": "nosuchword"})
    assert (few.meta["complete"], few.truncated) == (False, True)


async def test_a_damaged_index_is_made_anew(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    await desk.run("search", {"query": "zebra"})
    (index,) = (home / "documents").rglob("index.db")
    for ending in ("-wal", "-shm"):
        Path(f"{index}{ending}").unlink(missing_ok=True)
    index.write_bytes(b"this is no database" * 1_000)
    assert len(paths(await desk.run("search", {"query": "zebra"}))) == 3


async def test_a_damage_that_a_search_meets_is_gone_with_the_next_one(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    await desk.run("search", {"query": "zebra"})
    (index,) = (home / "documents").rglob("index.db")
    with apsw.Connection(str(index)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = index.read_bytes()
    index.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))  # only its first page is whole
    assert (await desk.run("search", {"query": "zebra"})).error.reason == "index_unusable"
    assert len(paths(await desk.run("search", {"query": "zebra"}))) == 3


async def test_documents_are_in_an_index_that_is_made_anew_and_those_gone_are_not(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    for name in ("kept.txt", "gone.txt"):
        assert (await desk.run("file_ingest", {"filename": name, "content": "an okapi"})).ok
    (index,) = (home / "documents").rglob("index.db")
    index.write_bytes(b"this is no database" * 1_000)
    assert paths(await desk.run("search", {"query": "okapi"})) == ["gone.txt", "kept.txt"]
    (index.parent / "files" / "gone.txt").unlink()
    assert paths(await desk.run("search", {"query": "okapi"})) == ["kept.txt"]


async def test_of_documents_kept_at_once_under_one_name_one_is_kept_and_found(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    words = [f"okapi{number} " * 20_000 for number in range(6)]
    done = await asyncio.gather(*(desk.run("file_ingest", {"filename": "a.txt", "content": each}) for each in words))
    assert [each.ok for each in done] == [True] * 6
    (file,) = (home / "documents").rglob("files/*")
    word = file.read_text().split()[0]
    assert file.read_text() in words
    assert paths(await desk.run("search", {"query": word})) == ["a.txt"]


def test_an_index_is_made_once_however_many_open_it(tmp_path: Path) -> None:
    status = tmp_path.stat()

    def note(directory: Path, number: int, all_here: threading.Barrier, found: list[int]) -> None:
        all_here.wait(60)
        with opened(str(directory)) as index:
            with index.changing():
                index.put("workspace", f"{number}", status, 1, b"", "zebra")
            found.append(len(index.known("workspace")))

    for turn in range(10):
        all_here, found = threading.Barrier(8), list[int]()
        threads = [
            threading.Thread(target=note, args=(tmp_path / str(turn), number, all_here, found)) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(found), max(found)) == (8, 8)


async def test_searches_side_by_side_find_the_same(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    found = await asyncio.gather(*(desk.run("search", {"query": "zebra"}) for _ in range(8)))
    assert {tuple(paths(each)) for each in found} == {("README.md", "docs/guide.html", "src/lights.py")}


async def test_a_cancelled_search_stops_reading(home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    text_of = searching.text_of

    def slow(*args: Any, **more: Any) -> Any:
        started.set()
        assert go_on.wait(60)
        return text_of(*args, **more)

    monkeypatch.setattr(searching, "text_of", slow)
    desk = bench(home, ws)
    call = desk.tool_call("search", {"query": "zebra"})
    running = asyncio.create_task(desk.dispatcher.run(call))
    assert await asyncio.to_thread(started.wait, 10)
    stopping = asyncio.create_task(desk.dispatcher.cancel(call.id))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        await stopping
        assert (await running).error.error_class == "cancelled"


async def test_a_file_is_kept_as_a_document_with_its_text(home: Path, ws: Path) -> None:
    desk = bench(home, ws)
    up = await desk.run("file_upload", {"path": "docs/guide.html", "filename": "traffic.html"})
    assert up.value == {"document": "traffic.html", "bytes": 77, "searchable": True}
    raw = await desk.run("file_upload", {"content": base64.b64encode(b"\0\1\2").decode(), "filename": "x.bin"})
    assert raw.value == {"document": "x.bin", "bytes": 3, "searchable": False}
    again = await desk.run("file_ingest", {"content": "giraffe", "filename": "traffic.html"})
    assert again.meta["replaced"] is True
    assert paths(await desk.run("search", {"query": "giraffe", "scope": "documents"})) == ["traffic.html"]
    assert paths(await desk.run("search", {"query": "zebra", "scope": "documents"})) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "error_class"),
    [
        ("file_ingest", {"content": "x", "filename": "../x"}, "validation_error"),
        ("file_ingest", {"content": "x", "filename": ".."}, "validation_error"),
        ("file_ingest", {"content": "x", "filename": "a\\b"}, "validation_error"),
        ("file_ingest", {"content": "x", "filename": "a\nb"}, "validation_error"),
        ("file_ingest", {"content": "x", "filename": ".hidden"}, "validation_error"),
        ("file_upload", {"filename": "x"}, "validation_error"),
        ("file_upload", {"path": "README.md", "content": "eA=="}, "validation_error"),
        ("file_upload", {"content": "eA=="}, "validation_error"),
        ("file_upload", {"content": "no base64!", "filename": "x"}, "validation_error"),
        ("file_upload", {"path": "../x"}, "permission_denied"),
        ("file_upload", {"path": "nosuch"}, "execution_error"),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    tool: str, arguments: Any, error_class: str, home: Path, ws: Path
) -> None:
    result = await bench(home, ws).run(tool, arguments)
    assert result.error.error_class == error_class
    assert not (home / "documents").exists()
