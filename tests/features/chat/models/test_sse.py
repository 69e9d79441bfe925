"""Events come out whole, wherever the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.features.chat.models.replies import SseDecoder, SseError, SseEvent

STREAM = (
    b"\xef\xbb\xbf: a comment\n"
    b'event: first\r\ndata: {"a": "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"}\r\n\r\n'
    b"data:no blank\ndata:  two blanks\r\rid: 7\nretry: 10\ndata\n\n"
    b"event: without data\n\n"
    b"data: [DONE]\n\ndata: never ended\n"
)
EVENTS = [
    SseEvent("first", '{"a": "é€🙂"}'.encode()),
    SseEvent("", b"no blank\n two blanks"),
    SseEvent("", b""),
    SseEvent("", b"[DONE]"),
]


def decoded(pieces: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def test_the_whole_stream_at_once() -> None:
    assert decoded([STREAM]) == EVENTS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for at in range(len(STREAM) + 1):
        assert decoded([STREAM[:at], b"", STREAM[at:]]) == EVENTS
    assert decoded([bytes([byte]) for byte in STREAM]) == EVENTS


@given(
    st.binary(max_size=80).map(lambda b: b.translate(bytes(b"\r\n:da \xff"[i % 7] for i in range(256)))),
    st.lists(st.integers(0, 80)),
)
def test_cuts_change_nothing_whatever_the_bytes(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert decoded(pieces) == decoded([data])


@pytest.mark.parametrize(
    "data",
    [b"data: " + b"x" * 200, b"x" * 200, b"data: 0123456789\n" * 20, b"event: " + b"y" * 150],
    ids=["data line", "no line", "many lines", "event line"],
)
def test_what_is_too_large_is_refused_before_it_ends(data: bytes) -> None:
    decoder = SseDecoder(max_event=100)
    with pytest.raises(SseError):
        for byte in data:
            list(decoder.feed(bytes([byte])))


def test_an_endless_stream_is_refused() -> None:
    decoder = SseDecoder(max_stream=1000)
    with pytest.raises(SseError):
        for _ in range(101):
            list(decoder.feed(b"data: 1\n\n:"))
