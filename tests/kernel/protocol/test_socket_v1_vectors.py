"""The socket's vectors, schema and hostile corpus: what every implementation must do alike."""

from __future__ import annotations

import base64
import json
import typing
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import ClientWire, Fault, Passed, ServerWire
from callgate.protocol.strict_json import line

PROJECT = Path(__file__).parents[3]
WIRE = PROJECT / "protocols" / "socket_v1"
SCHEMA = json.loads((WIRE / "schema.json").read_text())
CORPUS = json.loads((PROJECT / "tests" / "corpus" / "frames.json").read_text())
ALIVE = b'{"type":"check_alive"}\n'

STRICTER = {
    "f119": "a timeout is a whole number of milliseconds (S0-48)",
    "f163": "arguments that are no object are a fault of the wire (S0-05)",
    "f164": "arguments that are no object are a fault of the wire (S0-05)",
    "f166": "arguments that are no object are a fault of the wire (S0-05)",
}

read_request = msgspec.json.Decoder(frames.Request).decode
read_reply = msgspec.json.Decoder(frames.Reply).decode


def vectors(name: str) -> list[object]:
    cases = json.loads((WIRE / "vectors" / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case.get("name", case.get("line"))) for case in cases]


def chunk(written: dict[str, Any]) -> bytes:
    if "text" in written:
        return written["text"].encode()  # type: ignore[no-any-return]
    if "base64" in written:
        return base64.b64decode(written["base64"])
    text, times = written["repeat"]
    return text.encode() * times  # type: ignore[no-any-return]


def shown(item: object) -> dict[str, Any]:
    """An item as the vectors write it."""
    if isinstance(item, Passed):
        return {"passed": item.why}
    if isinstance(item, Fault):
        wire = {"size", "object", "type", "shape", "request_id"}
        fault = {"kind": item.refusal if item.refusal in wire else "json"}
        if item.error.request_id is not msgspec.UNSET:
            fault["requestId"] = item.error.request_id
        return {"fault": fault}
    return {"frame": msgspec.to_builtins(item)}


@pytest.mark.spec("S0-02", "S0-03", "S0-04", "S0-05", "S0-06", "S0-07", "S0-08", "S0-10", "S0-19", "S0-48")
@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize("case", vectors("requests"))
def test_a_server_reads_the_vectors(case: dict[str, Any]) -> None:
    wire = ServerWire()
    got = [item for each in case["chunks"] for item in wire.receive(chunk(each))]
    assert [shown(item) for item in got] == case["expect"]


def play(wire: ServerWire | ClientWire, read: Any, steps: list[dict[str, Any]]) -> list[Any]:
    played = []
    for step in steps:
        if "receive" in step:
            got = [shown(item) for item in wire.receive(chunk(step["receive"]))]
            played.append({"receive": step["receive"], "expect": got})
            continue
        frame = read(json.dumps(step["send"]))
        try:
            wire.encode(frame)
            played.append({"send": step["send"], "sent": True})
        except ValueError:
            played.append({"send": step["send"], "sent": False})
    return played


@pytest.mark.spec("S0-18", "S0-21", "S0-50", "T34", "T-14")
@pytest.mark.parametrize("case", vectors("sequences"))
def test_a_server_connection_keeps_its_ids_apart(case: dict[str, Any]) -> None:
    assert play(ServerWire(), read_reply, case["steps"]) == case["steps"]


@pytest.mark.parametrize("case", vectors("client"))
def test_a_client_takes_only_what_it_asked_for(case: dict[str, Any]) -> None:
    assert play(ClientWire(), read_request, case["steps"]) == case["steps"]


def is_request(frame: dict[str, Any]) -> bool:
    return any(frame["type"] == each.__struct_config__.tag for each in typing.get_args(frames.Request))


@pytest.mark.spec("S0-09", "S0-25", "S0-31")
@pytest.mark.parametrize("case", vectors("encodings"))
def test_every_frame_has_one_canonical_line(case: dict[str, Any]) -> None:
    read = read_request if is_request(case["frame"]) else read_reply
    frame = read(json.dumps(case["frame"]))
    assert line(frame) == case["line"].encode()
    assert read(case["line"]) == frame
    assert json.loads(case["line"])["protocol"] == 1
    assert len(case["line"].splitlines()) == 1


# The schema says the same as the code.


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{name}"}]})


REQUEST, REPLY = validator("Request"), validator("Reply")


@pytest.mark.parametrize("case", vectors("encodings"))
def test_what_we_write_fits_the_schema_of_its_direction_alone(case: dict[str, Any]) -> None:
    fits = (REQUEST.is_valid(case["frame"]), REPLY.is_valid(case["frame"]))
    assert fits == ((True, False) if is_request(case["frame"]) else (False, True))


@pytest.mark.parametrize("case", vectors("requests"))
def test_the_schema_takes_and_refuses_the_frames_that_the_server_does(case: dict[str, Any]) -> None:
    """Of the lines that are JSON: what no schema can tell is left out."""
    sent = b"".join(map(chunk, case["chunks"])).split(b"\n")
    lines = [each for each in sent if each.strip() and len(each) < 2**20]
    if len(lines) != len(case["expect"]):
        return
    for each, expect in zip(lines, case["expect"], strict=True):
        if expect.get("fault", {}).get("kind") not in ("json", "size", "request_id"):
            assert REQUEST.is_valid(json.loads(each)) == ("frame" in expect)


def structs(kind: Any) -> set[type[msgspec.Struct]]:
    """Every struct that a frame reaches."""
    found: set[type[msgspec.Struct]] = set()
    todo = list(typing.get_args(kind))
    while todo:
        each = todo.pop()
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            if each not in found:
                found.add(each)
                todo += typing.get_type_hints(each).values()
        else:
            todo += typing.get_args(each)
    return found


def test_the_schema_names_every_frame_and_every_key() -> None:
    keys = {}
    for each in structs(frames.Request | frames.Reply):
        tag = each.__struct_config__.tag_field
        keys[each.__name__] = {*each.__struct_encode_fields__, *([tag] if tag else [])}
    written = {name: set(each["properties"]) for name, each in SCHEMA["$defs"].items() if "properties" in each}
    assert written == keys


def test_every_frame_has_a_vector() -> None:
    tags = {each.__struct_config__.tag for each in typing.get_args(frames.Request | frames.Reply)}
    shown = json.loads((WIRE / "vectors" / "encodings.json").read_text())["cases"]
    assert {case["frame"]["type"] for case in shown} == tags


def test_the_examples_of_the_document_are_valid_frames() -> None:
    text = (WIRE / "README.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```json\n")[1:]]
    examples = [json.loads(each) for block in blocks for each in block.splitlines() if each]
    assert len(examples) >= 20
    assert [each for each in examples if not (REQUEST.is_valid(each) or REPLY.is_valid(each))] == []


# The hostile corpus, as far as the wire alone decides.


def corpus_frame(case: dict[str, Any]) -> bytes:
    body = case["frame"]
    if "text" in body:
        return body["text"].encode()  # type: ignore[no-any-return]
    if "hex" in body:
        return bytes.fromhex(body["hex"])
    if "gen" in body:
        made = body["gen"]
        return (made["prefix"] + made["unit"] * made["count"] + made["suffix"]).encode()  # type: ignore[no-any-return]
    made = body["gen_keys"]
    members = ",".join(f'"k{n}":0' for n in range(made["count"]))
    return (made["prefix"] + members + made["suffix"]).encode()  # type: ignore[no-any-return]


SOCKET = [case for case in CORPUS["cases"] if case["proto"] == "socket"]


@pytest.mark.spec("S0-03", "S0-04", "S0-05", "S0-07", "S0-08", "S0-10", "T36")
@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize("case", SOCKET, ids=lambda case: case["id"])
def test_a_corpus_frame_gets_the_answer_of_its_class(case: dict[str, Any]) -> None:
    wire = ServerWire()
    *items, alive = wire.receive(corpus_frame(case) + b"\n" + ALIVE)
    assert alive == frames.CheckAlive()
    if case["class"] == "ignored":
        assert items == []
        return
    (item,) = items
    refused = case["class"].startswith("protocol_error") or case["id"] in STRICTER
    assert isinstance(item, Fault) == refused
    if isinstance(item, Fault):
        echoed = item.error.request_id
        assert (None if echoed is msgspec.UNSET else echoed) == case["echo_id"]
        answer = wire.encode(item)
        assert len(answer) < 1024 and answer[:-1].isascii() and answer[:-1].decode().isprintable()
        assert json.loads(answer)["code"] == "PROTOCOL_ERROR"
        assert wire.in_flight == {}


def test_the_corpus_sequences_that_the_wire_decides_alone() -> None:
    steps = {each["id"]: each["steps"] for each in CORPUS["sequences"]}
    kinds = {}
    for id in ("s01", "s06", "s08", "s11"):
        wire = ServerWire()
        kinds[id] = [type(item).__name__ for s in steps[id] for item in wire.receive(s["send"].encode())]
    wire, bytewise = ServerWire(), steps["s09"][0]["send_bytewise"].encode()
    kinds["s09"] = [type(item).__name__ for n in range(len(bytewise)) for item in wire.receive(bytewise[n : n + 1])]
    wire, repeated = ServerWire(), steps["s14"][0]["send_repeat"]
    flood = repeated["unit"].encode() * 65_536
    kinds["s14"] = [
        type(item).__name__ for _ in range(repeated["total_bytes"] // len(flood)) for item in wire.receive(flood)
    ]
    assert kinds == {
        "s01": ["ToolCall", "Fault"],
        "s06": ["CancelToolCall", "ToolCall"],
        "s08": ["ToolCall", "ToolCall"],
        "s09": ["ToolCall"],
        "s11": ["ToolCall"],
        "s14": ["Fault"],
    }
    assert wire.hopeless


def test_a_line_that_is_only_too_long_is_not_yet_hopeless() -> None:
    wire = ServerWire()
    wire.receive(b"x" * (8 * 1024 * 1024 + 1) + b"\n")
    assert not wire.hopeless


def test_ten_thousand_pipelined_calls_are_each_their_own() -> None:
    wire = ServerWire()
    sent = b"".join(b'{"type":"tool_call","requestId":"r%d","toolName":"echo"}\n' % n for n in range(10_000))
    calls = wire.receive(sent)
    assert [call.request_id for call in calls] == [f"r{n}" for n in range(10_000)]  # type: ignore[union-attr]
    assert len(wire.in_flight) == 10_000
    for call in calls:
        wire.encode(frames.ToolResult(request_id=call.request_id, result=frames.Envelope(ok=True)))  # type: ignore[union-attr, arg-type]
    assert wire.in_flight == {}
