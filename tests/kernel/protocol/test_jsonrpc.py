"""JSON-RPC lines: each is read in one way or not at all, and what is wrong is answered once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    Invalid,
    Message,
    Notification,
    Reader,
    Request,
    Response,
    RpcError,
    read,
)
from callgate.protocol.strict_json import Unsendable


def codes(message: Message) -> tuple[Any, int]:
    assert isinstance(message, Invalid)
    return message.id, message.code


def envelope(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


@pytest.mark.spec("S2-01")
def test_the_three_kinds_of_messages_are_told_apart() -> None:
    assert Reader().feed(
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1}}\r\n\n'
        b'{"jsonrpc":"2.0","id":"1","method":"a"}\n'
        b'{"jsonrpc":"2.0","method":"b","params":null}\n'
        b'{"jsonrpc":"2.0","id":1,"result":null}\n'
    ) == [
        Request(1, "a", {"x": 1}),
        Request("1", "a"),
        Notification("b"),
        Response(1),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"nonsense",
        b"\x00",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"cwd":"/a","cwd":"/b"}}',
        b"[" * 100_000,
    ],
)
@pytest.mark.spec("T42")
def test_what_is_not_strict_json_is_a_parse_error_without_an_id(line: bytes) -> None:
    assert codes(read(line)) == (None, PARSE_ERROR)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1e400}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a"} {}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
@pytest.mark.spec("T42")
def test_a_request_that_is_not_strict_json_is_answered_by_its_id(line: bytes) -> None:
    """Or who asked would wait for ever: half a character in a prompt is enough."""
    assert codes(read(line)) == (1, PARSE_ERROR)


@pytest.mark.parametrize("line", [b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"a"}]', b"5", b'"a"', b"null", b"true"])
def test_an_array_and_a_scalar_are_one_invalid_request_without_an_id(line: bytes) -> None:
    assert codes(read(line)) == (None, INVALID_REQUEST)


@pytest.mark.parametrize(
    ("members", "id"),
    [
        ({"jsonrpc": "1.0", "id": 1, "method": "a"}, 1),
        ({"jsonrpc": 2.0, "id": "x", "method": "a"}, "x"),
        ({"id": 7}, 7),
        ({"id": 7, "method": 5}, 7),
        ({"id": 7, "method": None}, 7),
        ({"id": 7, "method": "a", "params": 5}, 7),
        ({"id": 7, "method": "a", "params": "text"}, 7),
        ({"id": 7, "method": "a", "result": 1}, 7),
        ({"id": None, "method": "a"}, None),
        ({"id": True, "method": "a"}, None),
        ({"id": 1.0, "method": "a"}, None),
        ({"id": 2**63, "method": "a"}, None),
        ({"id": [1], "method": "a"}, None),
        ({"id": {}, "method": "a"}, None),
        ({"id": "x" * 257, "method": "a"}, None),
        ({}, None),
    ],
)
def test_a_bad_envelope_is_an_invalid_request_under_its_id(members: Any, id: Any) -> None:
    assert codes(read(envelope(**members))) == (id, INVALID_REQUEST)


@pytest.mark.parametrize(
    ("members", "id"),
    [
        ({"id": 3, "result": 1, "error": {"code": 1, "message": "a"}}, 3),
        ({"jsonrpc": "1.0", "id": 3, "result": 1}, 3),
        ({"id": 3, "error": "no"}, 3),
        ({"id": 3, "error": {"code": True, "message": "a"}}, 3),
        ({"id": 3, "error": {"code": 1.5, "message": "a"}}, 3),
        ({"id": 3, "error": {"code": 1}}, 3),
        ({"id": True, "error": {"code": 1}}, None),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure_of_what_was_asked(members: Any, id: Any) -> None:
    response = read(envelope(**members))
    assert isinstance(response, Response)
    assert response.error is not None
    assert (response.id, response.error.code) == (id, INTERNAL_ERROR)


def test_an_error_of_the_peer_keeps_code_message_and_data() -> None:
    response = read(envelope(id=3, error={"code": -32002, "message": "gone", "data": {"a": 1}}))
    assert isinstance(response, Response)
    assert response.error is not None
    assert (response.error.code, response.error.message, response.error.data) == (-32002, "gone", {"a": 1})


@pytest.mark.parametrize(
    ("head", "kind", "id"),
    [
        (b'{"jsonrpc":"2.0","id":5,"method":"a","params":"', Invalid, 5),
        (b'{ "id" : "x" , "jsonrpc" : "2.0" , "method" : "a', Invalid, "x"),
        (b'{"jsonrpc":"2.0","id":5,"result":"', Response, 5),
        (b'{"jsonrpc":"2.0","method":"a","params":"', Invalid, None),
        (b'{"jsonrpc":"2.0","id":5.0,"method":"', Invalid, None),
        (b'{"params":{"jsonrpc":"2.0","id":5,"method":"', Invalid, None),
        (b"x", Invalid, None),
    ],
)
def test_a_line_too_long_is_one_error_and_the_next_is_read(head: bytes, kind: type, id: Any) -> None:
    reader = Reader(max_line=100)
    found: list[Message] = []
    for chunk in (head, b"x" * 150, b"x" * 150, b'"}\n{"jsonrpc":"2.0","method":"b"}\n'):
        found += reader.feed(chunk)
    assert [type(each) for each in found] == [kind, Notification]
    assert isinstance(found[0], Invalid | Response)
    assert found[0].id == id


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "code", "x"]),
                inner,
                max_size=8,
            )
        ),
        max_leaves=20,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_line_is_a_message_or_an_error_that_can_be_answered(line: bytes) -> None:
    message = read(line.replace(b"\n", b""))
    assert isinstance(message, Request | Notification | Response | Invalid)
    if isinstance(message, Invalid):
        answer = json.loads(jsonrpc.failure(message.id, message))
        assert answer["error"]["message"].isprintable()


@given(
    st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers(-9, 9), max_size=4),
    st.integers() | st.text(),
)
def test_what_is_written_is_read_again(params: dict[str, Any], id: int | str) -> None:
    if not jsonrpc.is_id(id):
        return
    lines = [jsonrpc.request(id, "m", params), jsonrpc.notification("m", params), jsonrpc.result(id, params)]
    assert Reader().feed(b"".join(lines)) == [Request(id, "m", params), Notification("m", params), Response(id, params)]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a","\\u001b[31m'
        + b"k" * 5_000
        + b'":1,"\\u001b[31m'
        + b"k" * 5_000
        + b'":2}',
        b'{"jsonrpc":"' + b"y" * 9_000 + b'","id":"' + b"z" * 9_000 + b'","method":"a"}',
        b"\x1b[31m" * 4_000,
    ],
)
def test_an_answer_repeats_next_to_nothing_of_what_was_wrong(line: bytes) -> None:
    message = read(line)
    assert isinstance(message, Invalid)
    answer = jsonrpc.failure(message.id, message)
    assert len(answer) < 1_024
    assert all(byte >= 0x20 for byte in answer[:-1])
    assert json.loads(answer)["error"]["message"].isprintable()


def test_a_failure_of_ours_is_cut_and_printable() -> None:
    answer = json.loads(jsonrpc.failure(1, RpcError(-32603, "\x1b[31m" + "x" * 5_000, {"a": 1})))
    assert answer["error"]["message"].isprintable()
    assert len(answer["error"]["message"]) < 1_024
    assert (answer["id"], answer["error"]["code"], answer["error"]["data"]) == (1, -32603, {"a": 1})


def test_what_has_no_json_spelling_is_not_sent() -> None:
    with pytest.raises(Unsendable):
        jsonrpc.result(1, object())
    with pytest.raises(Unsendable):
        jsonrpc.notification("m", {"text": "\ud800"})


def test_no_line_of_ours_is_taken_for_two() -> None:
    line = jsonrpc.notification("m", {"text": "a\u2028b\u0085c\nd"})
    assert len(line.decode().splitlines()) == 1
    assert msgspec.json.decode(line)["params"] == {"text": "a\u2028b\u0085c\nd"}


@pytest.mark.parametrize("result", [rb'"\ud800"', b"NaN", b'{"a": 1, "a": 2}', b'"\xff"', b"[" * 100, b"{]"])
def test_an_answer_that_cannot_be_read_fails_what_was_asked(result: bytes) -> None:
    """Or whoever asked would wait for ever."""
    message = read(b'{"jsonrpc": "2.0", "id": 7, "result": ' + result + b"}")
    assert isinstance(message, Response) and message.error is not None
    assert (message.id, message.result, message.error.code) == (7, None, jsonrpc.INTERNAL_ERROR)
