"""One host process under any bytes: one outcome for each line, and none for the wrong request."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.host_v1 import lines
from callgate.protocol.host_v1.frames import (
    OF_RUNTIME,
    SHOWN,
    Announcement,
    Answer,
    Emitted,
    Event,
    ExecuteTool,
    Failed,
    Failure,
    Frame,
    Init,
    IsCancelled,
    Offer,
    Passed,
    ReadFile,
    RequiredTags,
    Result,
    Returned,
    WriteFile,
    ask,
)
from callgate.protocol.host_v1.lines import Fault
from callgate.protocol.host_v1.runtime import (
    MAX_ASKED,
    MAX_NOISE,
    MAX_NOISE_BYTES,
    Broken,
    HostWire,
    RuntimeWire,
)
from callgate.protocol.strict_json import MAX_LINE, Framer, Unsendable, line

REQUESTS = [
    b'{"v":1,"id":"r1","method":"execute_tool","params":{"tool_name":"echo","arguments":{"text":"hi"},"state":{}}}',
    b'{"v":1,"id":"r1","method":"execute_tool","params":{"tool_name":"echo","arguments":{"a":[1,2.5,-3e2,null,true],"b":{"c":"\\u00e9\\n\xe6\x97\xa5"}},"state":{"n":1},"context":{"session_id":"s","tool_use_id":"t","workspace_path":"/w"}}}',
    b'{"v":1,"id":"r2","method":"init","params":{"config":{"a":1},"runtime":{"answers":["read_file"]}}}',
    b'{"v":1,"id":"r3","method":"required_tags"}',
    b'{"v":1,"id":"r4","method":"cancel","params":{"id":"r1"}}',
    b'{"v":1,"id":"h1","ok":true,"result":{"value":"x"}}',
]
ANSWERS = [
    b'{"v":1,"id":"u1","ok":true,"result":{"value":{"success":true,"result":[1,"\\u00e9\xe6\x97\xa5"]},"state":{"n":1}}}',
    b'{"v":1,"id":"u1","ok":false,"error":{"type":"Error","detail":"no","stack":"at x"}}',
    b'{"v":1,"id":"u1","event":{"type":"part","payload":{"text":"x"}}}',
    b'{"v":1,"id":"h1","method":"read_file","params":{"call":"u1","path":"x"}}',
    b'{"v":1,"id":null,"ok":false,"error":{"type":"ProtocolError","detail":"x"}}',
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
    b'"id":',
    b'"id":"u1",',
    b'"ok":true,',
    b'"method":"init",',
    b"null",
    b" ",
    b"\r",
    b"\t",
    b"-",
    b"9" * 30,
    b"\xe2\x80\xa8",
]


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """A line with some of it changed, moved, doubled or lost, and no newline in it."""
    made = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        at, until = sorted(chance.randrange(len(made) + 1) for _ in range(2))
        match chance.randrange(6):
            case 0 if made:
                made[chance.randrange(len(made))] = chance.randrange(256)
            case 1:
                del made[at : min(until, at + 12)]
            case 2:
                made[at:at] = chance.choice(WEIRD)
            case 3:
                made[at:at] = made[at:until]
            case 4:
                made[at:until] = bytes(chance.choice(seeds)[at:until])
            case 5:
                made[at : at + 1] = made[at : at + 1].swapcase()
    return bytes(made).replace(b"\n", b"")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs)
    return members


def agreed(*asks: str) -> tuple[RuntimeWire, HostWire]:
    """Both sides after an init in which these were agreed."""
    runtime, host = RuntimeWire(), HostWire()
    host.receive(runtime.encode(ask("i", Init(runtime=Offer(answers=list(OF_RUNTIME))))))
    runtime.receive(host.encode(Returned(id="i", result=Result(value={}, host=Announcement(asks=list(asks))))))
    return runtime, host


def started(runtime: RuntimeWire, host: HostWire, id: str) -> None:
    host.receive(runtime.encode(ask(id, ExecuteTool(tool_name="echo"))))


def check_requests(seed: int, count: int) -> tuple[int, int]:
    """How many were taken and how many refused; asserts what holds for each."""
    chance, wire = random.Random(seed), HostWire()
    taken = refused = 0
    for _ in range(count):
        sent = mutated(chance, REQUESTS)
        items = wire.receive(sent + b"\n")
        if not sent.strip(b" \t\r"):
            assert items == []
            continue
        (item,) = items
        if isinstance(item, Passed):
            assert len(item.shown) <= SHOWN and item.shown.isprintable()
            continue
        if isinstance(item, Fault):
            refused += 1
            answer = wire.encode(item)
            assert len(answer) < 1024 and answer[:-1].decode("ascii").isprintable()
            assert (json.loads(answer)["ok"], json.loads(answer)["id"]) == (False, item.failed.id)
            continue
        taken += 1
        seen = json.loads(sent, object_pairs_hook=once)  # what another reader makes of it
        assert not isinstance(item, Returned | Failed)
        assert (seen["v"], seen["id"], seen["method"]) == (1, item.id, item.method)
        if isinstance(item.params, ExecuteTool):
            params = seen["params"]
            assert (params["tool_name"], params.get("arguments", {})) == (item.params.tool_name, item.params.arguments)
        wire.encode(Returned(id=item.id, result=Result()))
        assert wire.in_flight == {}
    return taken, refused


def check_answers(seed: int, count: int) -> dict[type, int]:
    chance, kinds = random.Random(seed), dict[type, int]()
    for _ in range(count):
        wire, host = agreed("read_file")
        started(wire, host, "u1")
        started(wire, host, "bystander")
        sent = mutated(chance, ANSWERS)
        items = wire.receive(sent + b"\n")
        if not sent.strip(b" \t\r"):
            assert items == []
            continue
        (item,) = items
        kinds[type(item)] = kinds.get(type(item), 0) + 1
        assert "bystander" in wire.in_flight
        over = isinstance(item, Returned | Failed | Broken)
        assert ("u1" in wire.in_flight) != over
        if isinstance(item, Passed | Broken):
            assert len(item.shown) <= SHOWN and item.shown.isascii() and item.shown.isprintable()
        elif isinstance(item, Fault):
            assert len(wire.encode(item)) < 1024
        else:
            seen = json.loads(sent, object_pairs_hook=once)
            assert (seen["v"], seen["id"]) == (1, item.id)
            if isinstance(item, Returned):
                assert seen["ok"] is True and seen["result"].get("value") == item.result.value
    return kinds


@pytest.mark.spec("S1-13", "S1-14", "T37", "T38", "T39", "T40")
def test_a_mutated_request_gets_exactly_one_outcome() -> None:
    taken, refused = check_requests(1, 5_000)
    assert taken > 100 and refused > 1_000


@pytest.mark.spec("S1-03", "S1-11", "T37", "T38", "T39", "T40")
def test_a_mutated_answer_gets_exactly_one_outcome_and_touches_no_other_call() -> None:
    kinds = check_answers(2, 3_000)
    assert {Returned, Failed, Emitted, Broken, Passed, Fault} <= set(kinds)
    assert min(kinds[each] for each in (Returned, Failed, Emitted, Broken, Passed)) > 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_mutated_lines_get_one_outcome_each(seed: int) -> None:
    check_requests(1_000 + seed, 60_000)
    check_answers(2_000 + seed, 40_000)


def streams(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    others = [b"", b"\r", b"nonsense", b"[]", b'{"v":1}', "日本\u2028".encode(), b"\xff"]
    return st.lists(st.sampled_from([*seeds, *others]), max_size=8).map(
        lambda lines: b"".join(each + b"\n" for each in lines)
    )


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in zip(marks, marks[1:], strict=False)]


def same_for_any_cut(stream: bytes, places: list[int], wires: list[Any]) -> None:
    whole, pieces, single = wires
    outcomes = whole.receive(stream)
    assert [item for piece in cut(stream, places) for item in pieces.receive(piece)] == outcomes
    assert [item for n in range(len(stream)) for item in single.receive(stream[n : n + 1])] == outcomes
    assert len(outcomes) == sum(1 for each in stream.split(b"\n") if each.strip())


@pytest.mark.spec("S1-01")
@given(streams(REQUESTS), st.lists(st.integers(0, 4_000), max_size=20))
def test_any_cut_of_the_bytes_gives_a_host_the_same_requests(stream: bytes, places: list[int]) -> None:
    same_for_any_cut(stream, places, [HostWire(), HostWire(), HostWire()])


@pytest.mark.spec("S1-01")
@given(streams(ANSWERS), st.lists(st.integers(0, 4_000), max_size=20))
def test_any_cut_of_the_bytes_gives_the_runtime_the_same_outcomes(stream: bytes, places: list[int]) -> None:
    wires = [agreed("read_file")[0] for _ in range(3)]
    for wire in wires:
        wire.encode(ask("u1", ExecuteTool(tool_name="echo")))
    same_for_any_cut(stream, places, wires)


@given(st.binary(max_size=200))
def test_both_sides_survive_any_bytes(data: bytes) -> None:
    lines = [each for each in data.split(b"\n")[:-1] if each.strip(b" \t\r")]
    assert len(RuntimeWire().receive(data)) == len(HostWire().receive(data)) == len(lines)


@pytest.mark.spec("S1-05", "S1-08", "S1-10", "S1-16", "S1-29")
def test_both_sides_understand_each_other() -> None:
    runtime, host = RuntimeWire(), HostWire()
    first = ask("1", ExecuteTool(tool_name="echo", arguments={"text": "日本\u2028"}, state={"n": 1}))
    second = ask("2", RequiredTags())
    assert host.receive(runtime.encode(first) + runtime.encode(second)) == [first, second]
    replies: list[Frame] = [
        Emitted(id="1", event=Event(type="part", payload={"n": 1})),
        Returned(id="2", result=Result(value=["a"])),
        Emitted(id="1", event=Event(type="part")),
        Returned(id="1", result=Result(value={"success": True, "result": None}, state={"n": 2})),
    ]
    assert runtime.receive(b"".join(map(host.encode, replies))) == replies
    assert (runtime.in_flight, host.in_flight) == ({}, {})


def test_asks_go_back_and_forth_while_a_call_runs() -> None:
    runtime, host = agreed("read_file", "write_file", "is_cancelled")
    started(runtime, host, "c")
    reading, writing = ask("1", ReadFile(call="c", path="a")), ask("2", WriteFile(call="c", path="a", content="x"))
    assert runtime.receive(host.encode(reading) + host.encode(writing)) == [reading, writing]
    told: list[Answer] = [Returned(id="2", result=Result()), Failed(id="1", error=Failure(type="NotFound", detail="a"))]
    assert host.receive(b"".join(map(runtime.encode, told))) == told
    for answer in told:
        with pytest.raises(ValueError, match="did not ask"):
            runtime.encode(answer)


@pytest.mark.spec("S1-35")
def test_a_host_that_knows_nothing_of_asking_back_works() -> None:
    runtime = RuntimeWire()
    runtime.encode(ask("i", Init(runtime=Offer(answers=["read_file"]))))
    assert runtime.receive(b'{"v":1,"id":"i","ok":true,"result":{"value":{"n":1}}}\n') == [
        Returned(id="i", result=Result(value={"n": 1}, state={"n": 1}))
    ]
    assert list(runtime.agreed) == []
    runtime.encode(ask("c", ExecuteTool(tool_name="echo")))
    assert runtime.receive(b'{"v":1,"id":"c","ok":true,"result":{"value":1}}\n') == [
        Returned(id="c", result=Result(value=1))
    ]


def test_no_more_asks_wait_than_allowed() -> None:
    runtime, host = agreed("is_cancelled")
    started(runtime, host, "c")
    sent = b"".join(host.encode(ask(str(n), IsCancelled(call="c"))) for n in range(MAX_ASKED + 1))
    *taken, refused = runtime.receive(sent)
    assert len(taken) == MAX_ASKED
    assert isinstance(refused, Fault) and refused.failed.error.type == "TooManyRequests"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.spec("S1-52")
@pytest.mark.parametrize(
    "value",
    [object(), "\ud800", {"a": {1: object()}}, deep(100_000), "x" * MAX_LINE],
    ids=["object", "surrogate", "nested", "deep", "large"],
)
def test_an_answer_that_cannot_be_sent_becomes_a_failure(value: Any) -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    (failed,) = runtime.receive(host.encode(Returned(id="c", result=Result(value=value))))
    assert isinstance(failed, Failed) and (failed.id, failed.error.type) == ("c", "Unsendable")
    assert (runtime.in_flight, host.in_flight) == ({}, {})


@pytest.mark.spec("S1-52")
def test_the_largest_result_that_fits_is_sent_and_the_next_larger_one_fails_cleanly() -> None:
    room = MAX_LINE + 1 - len(line(Returned(id="c", result=Result(value=""))))
    outcomes = []
    for size in (room, room + 1):
        runtime, host = RuntimeWire(), HostWire()
        started(runtime, host, "c")
        outcomes += runtime.receive(host.encode(Returned(id="c", result=Result(value="x" * size))))
    assert [type(each) for each in outcomes] == [Returned, Failed]


def test_a_request_that_cannot_be_sent_raises_and_is_not_in_flight() -> None:
    runtime = RuntimeWire()
    with pytest.raises(Unsendable):
        runtime.encode(ask("c", ExecuteTool(tool_name="echo", arguments={"x": "\ud800"})))
    assert runtime.in_flight == {}


def test_an_event_that_cannot_be_sent_raises_and_the_call_goes_on() -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    with pytest.raises(Unsendable):
        host.encode(Emitted(id="c", event=Event(type="part", payload=object())))
    assert runtime.receive(host.encode(Returned(id="c", result=Result()))) == [Returned(id="c", result=Result())]


@pytest.mark.spec("S1-53", "T42")
@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\u2029", "\u0085"])
def test_no_value_can_forge_a_line(end: str) -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    forged = end + '{"v":1,"id":"c","ok":true,"result":{}}' + end
    part = Emitted(id="c", event=Event(type="part", payload=forged))
    sent = host.encode(part)
    assert len(sent.decode().splitlines()) == 1
    assert runtime.receive(sent) == [part]


@pytest.mark.spec("S1-29")
def test_ten_thousand_parts_arrive_in_their_order() -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    parts = [Emitted(id="c", event=Event(type="part", payload=n)) for n in range(10_000)]
    assert runtime.receive(b"".join(map(host.encode, parts))) == parts


def test_a_frame_between_the_noise_starts_the_count_again() -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    part = host.encode(Emitted(id="c", event=Event(type="part")))
    runtime.receive((b"noise\n" * MAX_NOISE + part) * 3)
    assert runtime.hopeless is None
    runtime.receive(b"noise\n" * (MAX_NOISE + 1))
    assert runtime.hopeless == "noise"


def test_few_long_lines_of_noise_are_too_much_as_well() -> None:
    runtime, piece = RuntimeWire(), b"x" * (MAX_LINE // 2) + b"\n"
    for _ in range(MAX_NOISE_BYTES // len(piece)):
        runtime.receive(piece)
    assert runtime.hopeless is None
    runtime.receive(piece * 2)
    assert runtime.hopeless == "noise"


def test_parts_of_a_call_that_was_given_up_never_end_the_host() -> None:
    runtime, host = RuntimeWire(), HostWire()
    started(runtime, host, "c")
    runtime.abandon("c")
    runtime.receive(host.encode(Emitted(id="c", event=Event(type="part"))) * 20_000)
    assert runtime.hopeless is None


def test_asks_that_break_the_rules_end_a_host_that_does_nothing_else() -> None:
    runtime, host = agreed("read_file")
    runtime.receive(b'{"v":1,"id":"h","method":"read_file","params":{"call":"zz","path":"x"}}\n' * (MAX_NOISE + 1))
    assert runtime.hopeless == "noise"


def test_a_flood_is_not_kept() -> None:
    runtime, piece = RuntimeWire(), b"x" * 1_048_576
    tracemalloc.start()
    for _ in range(64):
        runtime.receive(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MAX_LINE


def test_the_beginnings_of_lines_too_long_are_kept_in_their_order() -> None:
    framer = Framer(8, head=4)
    assert framer.feed(b"123456789\nok\nabc") == [None, b"ok"]
    assert framer.feed(b"defghijk") == [None]
    assert list(framer.heads) == [b"1234", b"abcd"]


def same(one: object, other: object) -> bool:
    """Messages may differ in the byte at which something is wrong."""
    if isinstance(one, Fault) and isinstance(other, Fault):
        return (one.refusal, one.failed.id) == (other.refusal, other.failed.id)
    if isinstance(one, Broken | Passed):
        return type(one) is type(other) and one.why == other.why
    return one == other


VALUES = [
    '{"a":1}',
    '{"a":1,"a":1}',
    '{"a":1.0}',
    '{"a":1e2}',
    '{"a":"\\u0061"}',
    '{"a":' + "[" * 61 + "]" * 61 + "}",
    '{"a":' + "[" * 63 + "]" * 63 + "}",
    '{"a":"' + "[" * 70 + '"}',
    '{"a":NaN}',
    '{"a":"\\ud800"}',
    '{"a":' + "9" * 300 + "}",
    '{"a":' + "9" * 401 + "}",
    "{" + ",".join(f'"k{n}":0' for n in range(10_001)) + "}",
    "{}",
    '{"ok":true,"result":1}',
    '{"event":{"type":"part"}}',
]


@pytest.mark.spec("T37", "T38")
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_the_short_way_and_the_long_way_agree(value: str) -> None:
    request = (
        b'{"v":1,"id":"a","method":"execute_tool","params":{"tool_name":"echo","arguments":%s,"state":{}}}\n'
        % value.encode()
    )
    loose = request.replace(b'{"v":1', b'{ "v":1', 1)
    assert same(HostWire().receive(request)[0], HostWire().receive(loose)[0])
    for template in (
        b'{"v":1,"id":"a","ok":true,"result":{"value":%s,"state":{}}}\n',
        b'{"v":1,"id":"a","event":{"type":"part","payload":%s}}\n',
    ):
        outcomes = []
        for sent in (template, template.replace(b'{"v":1', b'{ "v":1', 1)):
            runtime = RuntimeWire()
            runtime.encode(ask("a", ExecuteTool(tool_name="echo")))
            outcomes += runtime.receive(sent % value.encode())
        assert same(*outcomes)


@pytest.mark.parametrize("method", ["format_tool_call_preview", "required_tags", "nope", "read_file"])
def test_params_that_look_like_those_of_a_call_make_no_call(method: str) -> None:
    sent = line(ask("a", ExecuteTool(tool_name="echo"))).replace(b"execute_tool", method.encode())
    (item,) = HostWire().receive(sent)
    assert item == HostWire().receive(b" " + sent)[0]
    assert isinstance(item, Fault) or not isinstance(item.params, ExecuteTool)  # type: ignore[union-attr]


def test_the_short_way_is_taken_for_what_we_write() -> None:
    assert (
        lines.canonical_request(line(ask("a", ExecuteTool(tool_name="echo", arguments={"text": "hi"})))[:-1])
        is not None
    )
    assert (
        lines.canonical_answer(line(Returned(id="a", result=Result(value={"success": True}, state={})))[:-1])
        is not None
    )
    assert lines.canonical_answer(line(Emitted(id="a", event=Event(type="part", payload=1)))[:-1]) is not None


@pytest.mark.parametrize(
    ("sent", "id"),
    [
        (b'{"v":1,"id":"a","ok":true,"result":{"value":"cut', "a"),
        (b'{"v":1, "ok" : true, "id" : "a" , "result": {', "a"),
        (b'{"v":1,"ok":true,"result":{"id":"b"', None),
        (b'{"v":1,"id":"a","method":"execute_tool","par', None),
        (b'{"note":"\\"id\\":\\"b\\"","id":"a","ok":tru', "a"),
        (b'{"v":1,"id":"a","id":"b","ok":NaN}', None),
        (b'{"v":1,"id":1,"ok":NaN}', None),
        (b'{"level":NaN,"id":"a"}', None),
        (b'[["id","a"],["ok",NaN]]', None),
        (b"log {", None),
        (b'{"a":' * 50_000, None),
        (b'{"' * 50_000, None),
        (b'{"a\\' * 50_000, None),
    ],
    ids=range(13),
)
def test_a_line_that_cannot_be_read_names_its_request_or_none(sent: bytes, id: str | None) -> None:
    assert lines.named(sent) == id
