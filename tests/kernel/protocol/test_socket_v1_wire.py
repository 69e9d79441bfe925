"""One connection of the socket under any bytes: one answer each, and none for the wrong one."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import ClientWire, Fault, Passed, ServerWire, read
from callgate.protocol.strict_json import MAX_LINE, Unsendable

CALL = b'{"type":"tool_call","protocol":1,"requestId":"r1","toolName":"echo","arguments":{"text":"hi"}}'
SEEDS = [
    CALL,
    b'{"type":"tool_call","requestId":"r1","toolName":"echo","arguments":{"a":[1,2.5,-3e2,null,true],"b":{"c":"\\u00e9\\n\xe6\x97\xa5"}},"clientInfo":{"caller":"cli","cwd":"/w","spaceId":"s","tabId":"t"},"timeoutMs":30000}',
    b'{"type":"list_tools","requestId":"l1"}',
    b'{"type":"cancel_tool_call","requestId":"r1"}',
    b'{"type":"subscribe","requestId":"s1","session":"all","types":["tool.called"],"since":"c","confirmer":true}',
    b'{"type":"answer_confirmation","requestId":"q1","confirmationId":"c","decision":"allow","scope":"once","arguments":{}}',
    b'{"type":"check_alive"}',
]
WEIRD = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"NaN",
    b"1e999",
    b"\\ud800",
    b'"type":',
    b'"requestId":"r1",',
    b"null",
    b" ",
    b"\r",
    b"\t",
    b"-",
    b"9" * 30,
    b"\xe2\x80\xa8",
]


def mutated(chance: random.Random) -> bytes:
    """A frame with some of it changed, moved, doubled or lost, and no newline in it."""
    line = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 4)):
        at, until = sorted(chance.randrange(len(line) + 1) for _ in range(2))
        match chance.randrange(6):
            case 0 if line:
                line[chance.randrange(len(line))] = chance.randrange(256)
            case 1:
                del line[at : min(until, at + 12)]
            case 2:
                line[at:at] = chance.choice(WEIRD)
            case 3:
                line[at:at] = line[at:until]
            case 4:
                line[at:until] = bytes(chance.choice(SEEDS)[at:until])
            case 5:
                line[at : at + 1] = line[at : at + 1].swapcase()
    return bytes(line).replace(b"\n", b"")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs)
    return members


def same(one: object, other: object) -> bool:
    """Messages may differ in the byte at which something is wrong."""
    if isinstance(one, Fault) and isinstance(other, Fault):
        return (one.refusal, one.error.request_id) == (other.refusal, other.error.request_id)
    return one == other


def check_mutations(seed: int, count: int) -> tuple[int, int]:
    """How many were taken and how many refused; asserts what holds for each."""
    chance, wire = random.Random(seed), ServerWire()
    taken = refused = 0
    for _ in range(count):
        line = mutated(chance)
        if line.startswith(b"{"):  # a blank before it, and the line is not canonical any more
            assert same(read(line), read(b" " + line))
        items = wire.receive(line + b"\n")
        if not line.strip(b" \t\r"):
            assert items == []
            continue
        (item,) = items
        if isinstance(item, Fault):
            refused += 1
            answer = wire.encode(item)
            assert answer.endswith(b"\n") and answer[:-1].decode("ascii").isprintable()
            assert len(answer) < 1024
            assert json.loads(answer)["type"] == "error"
            continue
        taken += 1
        seen = json.loads(line, object_pairs_hook=once)  # what another reader makes of it
        assert (seen["type"], seen.get("protocol", 1)) == (type(item).__struct_config__.tag, 1)
        assert seen.get("requestId", msgspec.UNSET) == item.request_id
        if isinstance(item, frames.ToolCall):
            assert (seen["toolName"], seen.get("arguments", {})) == (item.tool_name, item.arguments)
            wire.encode(frames.ToolResult(request_id=item.request_id, result=frames.Envelope(ok=True)))
        elif not isinstance(item, frames.CancelToolCall) and item.request_id is not msgspec.UNSET:
            wire.encode(frames.Error(request_id=item.request_id, message="no"))
        assert wire.in_flight == {}
    return taken, refused


@pytest.mark.spec("S0-04", "S0-05", "S0-10")
@pytest.mark.spec("T37", "T38", "T39", "T40")
def test_a_mutated_frame_gets_exactly_one_answer() -> None:
    taken, refused = check_mutations(1, 20_000)
    assert taken > 500 and refused > 5_000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_mutated_frames_get_one_answer_each(seed: int) -> None:
    check_mutations(1_000 + seed, 100_000)


LINES = st.lists(
    st.sampled_from([*SEEDS, b"", b"\r", b"nonsense", b"[]", b'{"type":"x"}', "日本\u2028".encode(), b"\xff"]),
    max_size=8,
).map(lambda lines: b"".join(line + b"\n" for line in lines))


@pytest.mark.spec("S0-02")
@given(LINES, st.lists(st.integers(0, 4_000), max_size=30))
def test_any_cut_of_the_bytes_gives_the_same_frames(stream: bytes, places: list[int]) -> None:
    whole = ServerWire().receive(stream)
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    pieces = ServerWire()
    cut = [item for a, b in zip(marks, marks[1:], strict=False) for item in pieces.receive(stream[a:b])]
    single = ServerWire()
    one_by_one = [item for n in range(len(stream)) for item in single.receive(stream[n : n + 1])]
    assert whole == cut == one_by_one
    assert len(whole) == sum(1 for line in stream.split(b"\n") if line.strip())


def calling(id: str = "r1") -> ServerWire:
    wire = ServerWire()
    wire.receive(b'{"type":"tool_call","requestId":"%s","toolName":"echo"}\n' % id.encode())
    return wire


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.spec("S0-34")
@pytest.mark.parametrize(
    "content",
    [object(), "\ud800", {"a": {1: object()}}, deep(100_000), "x" * MAX_LINE],
    ids=["object", "surrogate", "nested", "deep", "large"],
)
def test_a_result_that_cannot_be_sent_becomes_a_failure(content: Any) -> None:
    wire = calling()
    answer = wire.encode(frames.ToolResult(request_id="r1", result=frames.Envelope(ok=True, content=content)))
    result = json.loads(answer)["result"]
    assert (result["ok"], result["error"]["code"]) == (False, "TOOL_FAILED")
    assert result["error"]["details"] == {"errorClass": "execution_error", "reason": "unsendable_result"}
    assert wire.in_flight == {}


def result(content: Any) -> frames.ToolResult:
    return frames.ToolResult(request_id="r1", result=frames.Envelope(ok=True, content=content))


def test_the_largest_result_that_fits_is_sent_and_the_next_larger_one_is_not() -> None:
    room = MAX_LINE + 1 - len(calling().encode(result("")))
    client = ClientWire()
    client.encode(frames.ToolCall(request_id="r1", tool_name="echo"))
    assert client.receive(calling().encode(result("x" * room))) == [result("x" * room)]
    assert json.loads(calling().encode(result("x" * (room + 1))))["result"]["ok"] is False


def test_an_event_that_cannot_be_sent_raises_and_the_call_goes_on() -> None:
    wire = calling()
    with pytest.raises(Unsendable):
        wire.encode(frames.ToolEvent(request_id="r1", event=frames.PartialText(text="\ud800")))
    assert wire.encode(frames.ToolResult(request_id="r1", result=frames.Envelope(ok=True)))


@pytest.mark.spec("T39")
def test_a_number_that_json_does_not_have_is_not_written() -> None:
    sent = calling().encode(
        frames.ToolResult(request_id="r1", result=frames.Envelope(ok=True, content=[float("nan"), float("inf")]))
    )
    assert json.loads(sent, parse_constant=pytest.fail)["result"] == {"ok": True, "content": [None, None]}


@pytest.mark.spec("T42")
@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\u2029", "\u0085"])
def test_no_value_can_forge_a_line(end: str) -> None:
    forged = end + '{"forged":true}' + end
    event = frames.ToolEvent(request_id="r1", event=frames.PartialText(text=forged))
    sent = calling().encode(event)
    assert len(sent.decode().splitlines()) == 1
    assert json.loads(sent)["event"]["text"] == forged


@pytest.mark.spec("S0-17", "S0-18")
def test_a_client_and_a_server_understand_each_other() -> None:
    client, server = ClientWire(), ServerWire()
    call = frames.ToolCall(request_id="a", tool_name="echo", arguments={"text": "日本\u2028"}, timeout_ms=5)
    listing = frames.ListTools(request_id="b")
    assert server.receive(client.encode(call) + client.encode(listing)) == [call, listing]
    replies: list[frames.Reply] = [
        frames.ToolEvent(request_id="a", event=frames.Progress(fraction=0.5)),
        frames.ToolsList(request_id="b", tools=[]),
        frames.ToolResult(request_id="a", result=frames.Envelope(ok=True, content=None)),
    ]
    assert client.receive(b"".join(map(server.encode, replies))) == replies
    assert (client.in_flight, server.in_flight) == ({}, {})


@pytest.mark.spec("S0-22")
def test_the_same_id_on_two_connections_is_two_requests() -> None:
    one, two = calling("a"), calling("a")
    result = frames.ToolResult(request_id="a", result=frames.Envelope(ok=True))
    assert one.encode(result) == two.encode(result)
    assert (one.in_flight, two.in_flight) == ({}, {})


def test_a_request_that_could_not_be_encoded_is_not_in_flight() -> None:
    client = ClientWire()
    with pytest.raises(Unsendable):
        client.encode(frames.ToolCall(request_id="a", tool_name="echo", arguments={"x": "\ud800"}))
    assert client.in_flight == {}


@pytest.mark.spec("T37", "T38")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":1}',
        '{"a":1,"a":1}',
        '{"a":1.0}',
        '{"a":1e2}',
        '{"a":"\\u0061"}',
        "[" * 64 + "]" * 64,
        '{"a":' + "[" * 62 + "]" * 62 + "}",
        '{"a":' + "[" * 63 + "]" * 63 + "}",
        '{"a":"' + "[" * 70 + '"}',
        '{"a":NaN}',
        '{"a":"\\ud800"}',
        '{"a":' + "9" * 300 + "}",
        '{"a":' + "9" * 401 + "}",
        "{" + ",".join(f'"k{n}":0' for n in range(10_001)) + "}",
        "{}",
        "null",
    ],
    ids=range(16),
)
def test_the_short_way_and_the_long_way_agree(arguments: str) -> None:
    line = b'{"type":"tool_call","protocol":1,"requestId":"r1","toolName":"echo","arguments":%s}' % arguments.encode()
    assert same(read(line), read(b" " + line))


@pytest.mark.parametrize("id", ["", "x" * 129, "a\n", "é", "\x1b"])
def test_a_client_never_sends_an_id_that_the_server_could_not_echo(id: str) -> None:
    client = ClientWire()
    with pytest.raises(ValueError):
        client.encode(frames.ToolCall(request_id=id, tool_name="echo"))
    with pytest.raises(ValueError):
        client.encode(frames.CancelToolCall(request_id=id))
    assert client.in_flight == {}


def test_a_client_is_told_what_nobody_asked_for() -> None:
    late = frames.ToolResult(request_id="a", result=frames.Envelope(ok=True))
    assert ClientWire().receive(calling("a").encode(late)) == [Passed("not_asked", late)]


@given(st.binary(max_size=200))
def test_a_client_survives_any_bytes(data: bytes) -> None:
    lines = [line for line in data.split(b"\n")[:-1] if line.strip(b" \t\r")]
    assert len(ClientWire().receive(data)) == len(lines)


@pytest.mark.parametrize("id", ["l1", None])
def test_an_answer_that_cannot_be_sent_becomes_an_error(id: str | None) -> None:
    wire, asked = ServerWire(), {"type": "list_tools"} | ({} if id is None else {"requestId": id})
    [request] = wire.receive(json.dumps(asked).encode() + b"\n")
    assert isinstance(request, frames.ListTools)
    tool = frames.Descriptor(name="x", description="x" * MAX_LINE, input_schema={}, capabilities=[])
    sent = json.loads(wire.encode(frames.ToolsList(request_id=request.request_id, tools=[tool])))
    assert (sent["type"], sent.get("requestId"), sent["code"]) == ("error", id, "PROTOCOL_ERROR")
    assert wire.in_flight == {}
