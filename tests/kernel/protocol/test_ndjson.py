"""Lines out of bytes: every cut gives the same lines, long ones cost no memory and no time."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol import strict_json
from callgate.protocol.strict_json import MAX_LINE, Framer

STREAMS = st.lists(
    st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b" ", b"\t", b"12345678", b"123456789", b"\xff"]),
    max_size=60,
).map(b"".join)


def expected(stream: bytes, max_line: int) -> list[bytes | None]:
    *ended, rest = stream.split(b"\n")
    lines: list[bytes | None] = [None if len(line) > max_line else line.strip(b" \t\r") for line in ended]
    if len(rest) > max_line:
        lines.append(None)
    return [line for line in lines if line != b""]


def fed(framer: Framer, chunks: list[bytes]) -> list[bytes | None]:
    return [line for chunk in chunks for line in framer.feed(chunk)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in zip(marks, marks[1:], strict=False)]


@pytest.mark.spec("S0-02")
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=20))
def test_any_cut_gives_the_same_lines(stream: bytes, places: list[int]) -> None:
    whole, pieces, single = Framer(8), Framer(8), Framer(8)
    lines = expected(stream, 8)
    assert fed(whole, [stream]) == lines
    assert fed(pieces, cut(stream, places)) == lines
    assert fed(single, [stream[n : n + 1] for n in range(len(stream))]) == lines
    assert whole.longest == pieces.longest == single.longest


@pytest.mark.spec("S0-03")
def test_blank_lines_are_no_lines() -> None:
    assert Framer().feed(b"\n \n\t\r\n\r\nx\r\n  y \n") == [b"x", b"y"]


@pytest.mark.spec("T42")
def test_nothing_but_a_newline_ends_a_line() -> None:
    text = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h".encode()
    assert Framer().feed(text + b"\n") == [text]


@pytest.mark.spec("S0-06", "T-14")
def test_the_limit_holds_with_and_without_a_newline() -> None:
    assert Framer().feed(b"a" * MAX_LINE + b"\n") == [b"a" * MAX_LINE]
    assert Framer().feed(b"a" * (MAX_LINE + 1) + b"\nnext\n") == [None, b"next"]
    assert Framer().feed(b"a" * MAX_LINE) == []
    assert Framer().feed(b"a" * (MAX_LINE + 1)) == [None]


def test_a_line_too_long_is_told_once_and_the_next_one_is_read() -> None:
    framer = Framer(8)
    assert fed(framer, [b"123456789", b"x" * 100, b"y\nnext\n", b"z" * 9, b"\n"]) == [
        None,
        b"next",
        None,
    ]
    assert framer.longest == 110


@pytest.mark.spec("S0-06", "T35")
def test_an_endless_line_holds_no_memory() -> None:
    framer, chunk = Framer(), b"A" * 65_536
    tracemalloc.start()
    try:
        told = fed(framer, [chunk] * 1024)  # 64 MiB
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == [None]
    assert peak < 2 * MAX_LINE
    assert held < 2 * len(chunk)


@pytest.mark.spec("T36")
def test_a_long_legal_line_in_small_pieces_is_read() -> None:
    line = bytes(range(32, 127)) * 2_000
    framer = Framer()
    chunks = cut(line + b"\n", list(range(0, len(line), 1_000)))
    assert fed(framer, chunks) == [line.strip()]


class _Counted:
    """How many bytes were looked at or moved, by whichever way."""

    seen = 0


def _count(owner: type, name: str) -> Any:
    plain = getattr(owner, name)

    def counted(self: Any, *more: Any) -> Any:
        _Counted.seen += len(self)
        result = plain(self, *more)
        return type(self)(result) if isinstance(result, bytearray) else result

    return counted


_LOOKS = (
    "split",
    "find",
    "index",
    "count",
    "partition",
    "rpartition",
    "splitlines",
    "strip",
    "__contains__",
    "__getitem__",
    "__iter__",
    "__bytes__",
    "__add__",
    "join",
    "endswith",
)
_Chunk = type("_Chunk", (bytes,), {n: _count(bytes, n) for n in _LOOKS if hasattr(bytes, n)})
_Held = type("_Held", (bytearray,), {n: _count(bytearray, n) for n in _LOOKS if hasattr(bytearray, n)})


@pytest.mark.parametrize("size", [1, 7, 1_000, 100_000])
def test_the_work_grows_with_the_bytes_and_not_with_the_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "bytearray", _Held, raising=False)
    stream = b"x" * 99_999 + b"\n"
    _Counted.seen = 0
    framer = Framer()
    lines = fed(framer, [_Chunk(stream[n : n + size]) for n in range(0, len(stream), size)])
    assert lines == [stream[:-1]]
    assert _Counted.seen <= 4 * len(stream)
