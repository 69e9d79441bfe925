"""Lines that no editor sends: each is answered or dropped, and the next good one works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.editor import LIMIT_S, Editor
from tests.features.editor.acp.models import Held, Models, Says, texts
from tests.features.editor.acp.talks import Fault

pytestmark = pytest.mark.asyncio(loop_scope="session")

PARSE, REQUEST, METHOD, PARAMS = -32700, -32600, -32601, -32602
CORPUS = Path(__file__).parents[3] / "corpus/frames.json"
MB = 1024 * 1024


def call(**more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {}, **more}).encode()


async def answers(editor: Editor, line: bytes) -> list[tuple[Any, int | None]]:
    """Id and error code of each answer to a line, before the next good line is answered."""
    before = len(editor.received)
    editor.send_line(line)
    good, answer = editor.start("session/nothing", {})
    with pytest.raises(Fault) as caught:
        await asyncio.wait_for(answer, LIMIT_S)
    assert caught.value.code == METHOD
    said = [each for each in editor.received[before:] if "method" not in each and each["id"] != good]
    for each in said:
        text = json.dumps(each)
        assert "error" not in each or (len(text) < 4096 and "Traceback" not in text and 'File \\"' not in text)
    return [(each["id"], each.get("error", {}).get("code")) for each in said]


NOT_JSON = [
    b"{",
    b"}",
    b"nul",
    b"{'a': 1}",
    b'{"a":}',
    b'{"a": 1,}',
    b"[1,",
    b'"open',
    b"// comment",
    b'{"jsonrpc": "2.0"',
    b"hello",
    b"GET / HTTP/1.1",
    b"Content-Length: 52",
    b"\xff\xfe",
    b'{"a": "\xff"}',
    b'{"a": "\x01"}',
    b'{"a": 01}',
    b'{"a": +1}',
    b'{"a": .5}',
    b'{"a": 1.}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -Infinity}',
    b'{"a": "\\x"}',
    b'{"a": "\\u12"}',
    b'{"a": 1} {"b": 2}',
    b'{"a": 1}]',
    b"\x00",
    b"\xef\xbb\xbf{}x",
    b"{\x0b}",
]


@pytest.mark.parametrize("line", NOT_JSON, ids=repr)
async def test_what_is_no_json_is_a_parse_error(rich: Editor, line: bytes) -> None:
    assert await answers(rich, line) == [(None, PARSE)]


NO_MESSAGE = [
    b"[]",
    b"[1]",
    b"5",
    b'"x"',
    b"null",
    b"true",
    b"1.5",
    b"-0",
    b"[" + call() + b"]",
    b"[" + call() + b"," + call(id=2) + b"]",
    b"[[[[]]]]",
    b"[null]",
]


@pytest.mark.parametrize("line", NO_MESSAGE, ids=repr)
async def test_an_array_or_a_scalar_is_one_invalid_request(rich: Editor, line: bytes) -> None:
    assert await answers(rich, line) == [(None, REQUEST)]


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b"{}", None),
        (b'{"jsonrpc": "2.0"}', None),
        (call(jsonrpc="1.0"), "h1"),
        (call(jsonrpc=2.0), "h1"),
        (call(jsonrpc=None), "h1"),
        (call(method=5), "h1"),
        (call(method=None), "h1"),
        (call(method=["session/list"]), "h1"),
        (call(id=True), None),
        (call(id=1.5), None),
        (call(id=[1]), None),
        (call(id={"a": 1}), None),
        (call(params="x"), "h1"),
        (call(params=5), "h1"),
        (b'{"jsonrpc": "2.0", "id": "h1"}', "h1"),
        (b'{"id": "h1", "method": "session/list", "params": {}}', "h1"),
    ],
    ids=repr,
)
async def test_a_broken_envelope_is_an_invalid_request(rich: Editor, line: bytes, id: Any) -> None:
    [(answered, code)] = await answers(rich, line)
    assert (answered, code) in {(id, REQUEST), (id, PARAMS)}


@pytest.mark.parametrize("line", [b"", b"   ", b"\t", b"\r"], ids=repr)
async def test_an_empty_line_is_nothing(rich: Editor, line: bytes) -> None:
    assert await answers(rich, line) == []


async def test_spaces_and_a_carriage_return_around_a_message_do_not_matter(rich: Editor) -> None:
    before = len(rich.received)
    rich.loose.add("h1")
    assert await answers(rich, b"  " + call(method="session/list") + b" \r") in ([("h1", None)], [])
    await rich.until(lambda: any(each.get("id") == "h1" and "result" in each for each in rich.received[before:]))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 5_000 + b"]" * 5_000,
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {"_meta": {"a": '
        + b"[" * 5_000
        + b"]" * 5_000
        + b"}}}",
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {"_meta": '
        + b'{"a":' * 200
        + b"1"
        + b"}" * 200
        + b"}}",
        b'{"a": "' + b"x" * (9 * MB) + b'"}',
        b"x" * (9 * MB),
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {"_meta": "' + b"x" * (9 * MB) + b'"}}',
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"jsonrpc": "2.0", "id": ' + b"9" * 5_000 + b', "method": "session/list", "params": {}}',
        b'{"jsonrpc": "2.0", "id": "' + b"i" * 100_000 + b'", "method": "session/nothing", "params": {}}',
        call(method="m" * 100_000),
        b'{"jsonrpc": "2.0", "id": "h1", "id": "h2", "method": "session/list", "params": {}}',
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {"cwd": "/a", "cwd": "/b"}}',
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/list", "params": {"cwd": "/\\ud800"}}',
        b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "session/list", "params": {}}',
        b'{"jsonrpc": "2.0", "id": "h1", "method": "session/\\udfff", "params": {}}',
        call(method="session/list\x00\x1b[2J\n"),
    ],
    ids=lambda line: repr(line[:60]),
)
async def test_what_is_too_deep_too_long_or_ambiguous_is_one_short_error(rich: Editor, line: bytes) -> None:
    [(_, code)] = await answers(rich, line)
    assert code in (PARSE, REQUEST, METHOD, PARAMS)


async def test_answers_to_questions_that_nobody_asked_are_dropped(rich: Editor) -> None:
    for message in (
        {"jsonrpc": "2.0", "id": 10**9, "result": {}},
        {"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "m"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "m"}},
    ):
        assert await answers(rich, json.dumps(message).encode()) == []


async def test_a_frame_of_another_protocol_runs_nothing(rich: Editor) -> None:
    """Every hostile frame of the corpus, which was made for the socket."""
    wrong = []
    for case in json.loads(CORPUS.read_text())["cases"]:
        said = await answers(rich, _bytes(case["frame"]))
        if any(code not in (PARSE, REQUEST, METHOD) for _, code in said):
            wrong.append((case["id"], said))
    assert wrong == []


def _bytes(frame: dict[str, Any]) -> bytes:
    if "text" in frame:
        return frame["text"].encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    if "hex" in frame:
        return bytes.fromhex(frame["hex"]).replace(b"\n", b" ")
    if "gen_keys" in frame:
        made = frame["gen_keys"]
        keys = ",".join(f'"k{number}":0' for number in range(made["count"]))
        return f"{made['prefix']}{keys}{made['suffix']}".encode()
    made = frame["gen"]
    return (
        (made["prefix"] + made["unit"] * made["count"] + made["suffix"])
        .encode("utf-8", "surrogatepass")
        .replace(b"\n", b" ")
    )


async def test_a_second_request_with_an_id_under_way_is_refused_and_the_first_goes_on(
    rich: Editor, models: Models, workspace: Path
) -> None:
    reply = Held(Says("one"))
    talk = await rich.new(workspace)
    prompt = [{"type": "text", "text": f"go {models.play(reply)}"}]
    rich.loose.add("twice")
    talk.wire.append(("prompt", {"prompt": prompt}))
    first = {
        "jsonrpc": "2.0",
        "id": "twice",
        "method": "session/prompt",
        "params": {"sessionId": talk.id, "prompt": prompt},
    }
    rich.send(first)
    await reply.reached()
    assert await answers(rich, call(id="twice")) == [("twice", REQUEST)]
    reply.go.set()
    await rich.until(lambda: any(each.get("id") == "twice" and "result" in each for each in rich.received))
    talk.wire.append(("answer session/prompt", {}))
    assert talk.text() == "one"


async def test_meta_is_no_argument(rich: Editor, models: Models, workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    meta = {
        "cwd": str(other),
        "mode": "write",
        "modeId": "write",
        "sessionId": "nobody",
        "additionalDirectories": [str(other)],
    }
    opened = await rich.ask("session/new", {"cwd": str(workspace), "mcpServers": [], "_meta": meta})
    talk = rich.talks[opened["sessionId"]]
    assert opened["modes"]["currentModeId"] == "ask"
    listed = (await rich.ask("session/list", {"cwd": str(workspace), "_meta": {"cwd": str(other)}}))["sessions"]
    assert [(each["sessionId"], each["cwd"]) for each in listed] == [(talk.id, str(workspace))]
    assert await rich.refused("session/new", {"_meta": {"cwd": str(workspace), "mcpServers": []}}) == PARAMS
    assert await talk.ask("session/set_mode", modeId="read", _meta=meta) == {}
    assert await talk.refused("session/set_mode", _meta=meta) == PARAMS
    assert [each["currentModeId"] for each in talk.updates("current_mode_update")] == ["read"]
    play = models.play(Says("ok"))
    said = {"type": "text", "text": f"mine {play}", "_meta": {"text": "theirs"}}
    asked = {"sessionId": talk.id, "prompt": [said], "_meta": {"prompt": [{"type": "text", "text": "theirs"}]}}
    talk.wire.append(("prompt", {}))
    assert (await rich.ask("session/prompt", asked))["stopReason"] == "end_turn"
    assert texts(play.requests[0]["messages"][-1]) == f"mine {play}"
    outside = await talk.tool("read_file", json.dumps({"path": str(other / "x")}))
    assert outside["status"] == "failed"


VALID: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "n", "version": "v"}},
    "authenticate": {"methodId": "settings"},
    "session/new": {"cwd": "/", "mcpServers": [], "additionalDirectories": []},
    "session/load": {"sessionId": "s", "cwd": "/", "mcpServers": []},
    "session/resume": {"sessionId": "s", "cwd": "/", "mcpServers": []},
    "session/list": {"cwd": "/", "cursor": "c"},
    "session/delete": {"sessionId": "s"},
    "session/close": {"sessionId": "s"},
    "session/set_mode": {"sessionId": "s", "modeId": "ask"},
    "session/set_config_option": {"sessionId": "s", "configId": "mode", "value": "ask"},
    "session/prompt": {"sessionId": "s", "prompt": []},
}
STRANGE: list[Any] = [None, True, 0, -1, 1.5, 1e308, "", "x", "\x00", "x" * 10_000, [], [None], [[]], {}, {"a": 1}]


def wrongly_typed() -> Iterator[tuple[str, Any]]:
    for method, params in VALID.items():
        for strange in STRANGE:
            yield method, strange
            for field in params:
                yield method, {**params, field: strange}
        for field in params:
            yield method, {name: value for name, value in params.items() if name != field}


async def test_wrong_types_anywhere_are_wrong_parameters_and_nothing_worse(rich: Editor, workspace: Path) -> None:
    """Each field of each method: what cannot be meant is refused, nothing is an internal error."""
    talk = await rich.new(workspace)
    seen = []
    for method, params in wrongly_typed():
        if isinstance(params, dict) and params.get("sessionId") == "s":
            params = {**params, "sessionId": talk.id}
        if method in ("session/delete", "session/close") or (method in ("session/new",) and _opens(params)):
            continue
        kept = dict(rich.talks)
        line = {"jsonrpc": "2.0", "id": "t", "method": method, "params": params}
        rich.loose.add("t")
        [(id, code)] = await _one(rich, line)
        rich.talks.update(kept)
        if id != "t" and code != REQUEST or code not in (None, PARAMS, REQUEST):
            seen.append((method, params, code))
    assert seen == []
    assert (await talk.tool("list_dir", "{}"))["status"] == "completed"


def _opens(params: Any) -> bool:
    """Whether this would make a session in the root directory."""
    return isinstance(params, dict) and params.get("cwd") == "/"


async def _one(editor: Editor, line: dict[str, Any]) -> list[tuple[Any, int | None]]:
    before = len(editor.received)
    editor.send(line)
    await editor.until(lambda: any("method" not in each for each in editor.received[before:]))
    return [
        (each["id"], each.get("error", {}).get("code")) for each in editor.received[before:] if "method" not in each
    ]


async def test_a_thousand_notifications_and_requests_at_once_are_all_taken(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    for _ in range(1000):
        rich.notify("session/unknown", {"sessionId": talk.id})
    asked = [rich.start("session/set_mode", {"sessionId": talk.id, "modeId": "read"})[1] for _ in range(300)]
    for answer in asked:
        assert await answer == {}
    assert {each["currentModeId"] for each in talk.updates("current_mode_update")} == {"read"}
