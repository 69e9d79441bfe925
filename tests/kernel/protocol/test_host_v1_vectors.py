"""The host protocol's vectors, schema and hostile corpus: what every implementation must do alike."""

from __future__ import annotations

import base64
import json
import typing
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.frames import (
    OF_HOST,
    OF_RUNTIME,
    Emitted,
    ExecuteTool,
    Failed,
    Passed,
    Request,
    Returned,
    ask,
)
from callgate.protocol.host_v1.lines import Fault
from callgate.protocol.host_v1.runtime import Broken, HostWire, RuntimeWire
from callgate.protocol.strict_json import line

PROJECT = Path(__file__).parents[3]
WIRE = PROJECT / "protocols" / "host_v1"
SCHEMA = json.loads((WIRE / "schema.json").read_text())
CORPUS = json.loads((PROJECT / "tests" / "corpus" / "frames.json").read_text())

LEAST: dict[str, dict[str, Any]] = {
    "execute_tool": {"tool_name": "echo"},
    "format_tool_result": {"result": {}},
    "format_tool_call_preview": {"tool_name": "echo"},
    "to_display_format": {"text": "", "result": {}},
    "cancel": {"id": "a"},
}


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
    if isinstance(item, Broken):
        return {"broken": {"id": item.id, "why": item.why}}
    if isinstance(item, Fault):
        return {"fault": {"kind": item.refusal, "id": item.failed.id, "type": item.failed.error.type}}
    return {"frame": msgspec.to_builtins(item)}


def built(frame: dict[str, Any]) -> frames.Frame:
    if "method" in frame:
        kind: Any = {**OF_HOST, **OF_RUNTIME}[frame["method"]]
        return Request(id=frame["id"], method=frame["method"], params=msgspec.convert(frame["params"], kind))
    if "event" in frame:
        return msgspec.convert(frame, Emitted)
    return msgspec.convert(frame, Returned) if frame["ok"] else msgspec.convert(frame, Failed)


@pytest.mark.spec("S1-06", "S1-07", "S1-12", "S1-13", "S1-14", "S1-23", "S1-27", "S1-52", "S1-53")
@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize("case", vectors("requests"))
def test_a_host_reads_the_vectors(case: dict[str, Any]) -> None:
    wire = HostWire()
    got = [item for each in case["chunks"] for item in wire.receive(chunk(each))]
    assert [shown(item) for item in got] == case["expect"]
    for item in got:
        if isinstance(item, Fault):
            answer = wire.encode(item)
            assert len(answer) < 1024 and answer[:-1].isascii() and answer[:-1].decode().isprintable()
            assert FROM_HOST.is_valid(json.loads(answer))


@pytest.mark.spec("S1-03", "S1-06", "S1-08", "S1-09", "S1-10", "S1-11", "S1-15", "S1-17", "S1-29")
@pytest.mark.spec("S1-32", "S1-33", "S1-36", "S1-37", "S1-52", "S1-53", "T37", "T38", "T39")
@pytest.mark.spec("T40")
@pytest.mark.parametrize("case", vectors("replies"))
def test_the_runtime_reads_the_vectors(case: dict[str, Any]) -> None:
    wire = RuntimeWire()
    for id, method in case["in_flight"].items():
        wire.encode(ask(id, msgspec.convert(LEAST.get(method, {}), OF_HOST[method])))
    got = [shown(item) for each in case["chunks"] for item in wire.receive(chunk(each))]
    assert got == case["expect"] * case.get("times", 1)
    assert sorted(wire.in_flight) == case["left"]
    assert wire.hopeless == case.get("hopeless")


def play(wire: HostWire | RuntimeWire, steps: list[dict[str, Any]]) -> list[Any]:
    played: list[Any] = []
    for step in steps:
        if "receive" in step:
            got = [shown(item) for item in wire.receive(chunk(step["receive"]))]
            played.append({"receive": step["receive"], "expect": got})
        elif "abandon" in step:
            assert isinstance(wire, RuntimeWire)
            wire.abandon(step["abandon"])
            played.append(step)
        else:
            try:
                wire.encode(built(step["send"]))  # type: ignore[arg-type]
                played.append({"send": step["send"], "sent": True})
            except ValueError:
                played.append({"send": step["send"], "sent": False})
    return played


@pytest.mark.spec("S1-08", "S1-29", "S1-33")
@pytest.mark.parametrize("case", vectors("host_sequences"))
def test_a_host_process_keeps_its_ids_apart(case: dict[str, Any]) -> None:
    assert play(HostWire(), case["steps"]) == case["steps"]


@pytest.mark.spec("S1-08", "S1-10", "S1-11", "S1-33")
@pytest.mark.parametrize("case", vectors("runtime_sequences"))
def test_the_runtime_takes_only_what_it_asked_for(case: dict[str, Any]) -> None:
    assert play(RuntimeWire(), case["steps"]) == case["steps"]


@pytest.mark.spec("S1-05", "S1-07", "S1-08", "S1-09", "S1-53", "T42")
@pytest.mark.parametrize("case", vectors("encodings"))
def test_every_frame_has_one_canonical_line(case: dict[str, Any]) -> None:
    assert line(built(case["frame"])) == case["line"].encode()
    assert json.loads(case["line"]) == case["frame"]
    assert case["frame"]["v"] == 1
    assert len(case["line"].splitlines()) == 1


# The schema says the same as the code.


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{name}"}]})


FROM_RUNTIME, FROM_HOST = validator("FromRuntime"), validator("FromHost")


@pytest.mark.parametrize("case", vectors("encodings"))
def test_what_we_write_fits_the_schema_of_its_direction(case: dict[str, Any]) -> None:
    frame = case["frame"]
    fits = (FROM_RUNTIME.is_valid(frame), FROM_HOST.is_valid(frame))
    if frame.get("method") in OF_HOST:
        assert fits == (True, False)
    elif "method" in frame or "event" in frame:
        assert fits == (False, True)
    else:
        assert fits == (True, True)


@pytest.mark.parametrize("case", vectors("requests"))
def test_the_schema_takes_and_refuses_the_requests_that_a_host_does(case: dict[str, Any]) -> None:
    """Of the lines that are JSON: what no schema can tell is left out."""
    sent = b"".join(map(chunk, case["chunks"])).split(b"\n")
    lines = [each for each in sent if each.strip() and len(each) < 2**20]
    if len(lines) != len(case["expect"]):
        return
    for each, expect in zip(lines, case["expect"], strict=True):
        if "passed" not in expect and expect.get("fault", {}).get("kind") not in ("json", "size"):
            assert FROM_RUNTIME.is_valid(json.loads(each)) == ("frame" in expect)


@pytest.mark.parametrize("case", vectors("replies"))
def test_the_schema_refuses_the_answers_that_the_runtime_does(case: dict[str, Any]) -> None:
    sent = b"".join(map(chunk, case["chunks"])).split(b"\n")
    lines = [each for each in sent if each.strip() and len(each) < 2**20]
    if len(lines) != len(case["expect"]):
        return
    for each, expect in zip(lines, case["expect"], strict=True):
        if expect.get("broken", {}).get("why") in ("version", "shape"):
            assert not FROM_HOST.is_valid(json.loads(each))


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
    reached = structs(frames.Params | Returned | Failed | Emitted)
    keys = {each.__name__: set(each.__struct_encode_fields__) for each in reached}
    keys["Returned"].add("error")  # null there, and
    keys["Failed"].add("result")  # null there
    written = {name: set(each.get("properties", ())) for name, each in SCHEMA["$defs"].items() if "oneOf" not in each}
    assert written == keys


def test_the_schema_names_every_method() -> None:
    named = {
        name: [each["properties"]["method"]["const"] for each in SCHEMA["$defs"][name]["oneOf"]]
        for name in ("RuntimeRequest", "HostRequest")
    }
    assert named == {"RuntimeRequest": list(OF_HOST), "HostRequest": list(OF_RUNTIME)}


def test_every_method_and_every_frame_has_a_vector() -> None:
    cases = json.loads((WIRE / "vectors" / "encodings.json").read_text())["cases"]
    kinds = {
        case["frame"].get("method") or ("event" if "event" in case["frame"] else case["frame"]["ok"]) for case in cases
    }
    assert kinds == {*OF_HOST, *OF_RUNTIME, "event", True, False}


def test_the_examples_of_the_document_are_valid_frames_and_show_every_method() -> None:
    text = (WIRE / "README.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```json\n")[1:]]
    examples = [json.loads(each) for block in blocks for each in block.splitlines() if each]
    assert [each for each in examples if not (FROM_RUNTIME.is_valid(each) or FROM_HOST.is_valid(each))] == []
    assert {each["method"] for each in examples if "method" in each} == {*OF_HOST, *OF_RUNTIME}


# The hostile corpus, as far as the wire alone decides.


def corpus_frame(case: dict[str, Any]) -> bytes:
    body = case["frame"]
    if "text" in body:
        return body["text"].encode()  # type: ignore[no-any-return]
    if "hex" in body:
        return bytes.fromhex(body["hex"])
    made = body["gen"]
    return (made["prefix"] + made["unit"] * made["count"] + made["suffix"]).encode()  # type: ignore[no-any-return]


def calling(*ids: str) -> RuntimeWire:
    wire = RuntimeWire()
    for id in ids:
        wire.encode(ask(id, ExecuteTool(tool_name="echo")))
    return wire


OUTCOMES: dict[str, type] = {
    "ok": Returned,
    "ok_event": Emitted,
    "ok_error": Failed,
    "ignored_logged": Passed,
    "protocol_error": Broken,
}
REPLIES = [case for case in CORPUS["cases"] if case["proto"] == "host_reply"]


@pytest.mark.spec("S1-03", "S1-06", "S1-11", "S1-32", "T37", "T39")
@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case["id"])
def test_a_corpus_reply_gets_the_outcome_of_its_class(case: dict[str, Any]) -> None:
    wire = calling("u1", "u2")
    item, after = wire.receive(corpus_frame(case) + b'\n{"v":1,"id":"u2","ok":true,"result":{"value":2}}\n')
    assert type(item) is OUTCOMES[case["class"]]
    assert getattr(item, "id", "u1") == "u1"
    assert after == Returned(id="u2", result=frames.Result(value=2))
    assert list(wire.in_flight) == ([] if case["class"] in ("ok", "ok_error", "protocol_error") else ["u1"])


@pytest.mark.spec("S1-11", "S1-33")
def test_the_corpus_sequences_that_the_wire_decides_alone() -> None:
    steps = {each["id"]: each["steps"] for each in CORPUS["sequences"]}
    sent = "".join(each + "\n" for each in steps["s21"][0]["host_sends"]).encode()
    assert [type(item) for item in calling("u1").receive(sent)] == [Returned, Passed]
    flood = steps["s24"][0]["host_sends_repeat"]
    wire, piece = calling("u1"), flood["unit"].encode() * 1_048_576
    outcomes = [item for _ in range(17) for item in wire.receive(piece)]
    assert ([shown(item) for item in outcomes], wire.hopeless) == ([{"passed": "too_long"}], "too_long")
