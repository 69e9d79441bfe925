"""Output stays within its bounds, says what is missing, and arrives live in whole characters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.sandbox.processes import outputs
from callgate.sandbox.processes.outputs import Capture, Deltas


def capture(data: bytes, path: str | None = None, cap: int = 100, piece: int = 7) -> Capture:
    kept = Capture(cap, lambda: path)
    for start in range(0, len(data), piece):
        kept.add(data[start : start + piece])
    return kept


@pytest.mark.spec("S4-77")
def test_short_output_is_shown_whole_and_needs_no_file(tmp_path: Path) -> None:
    kept = capture(b"x" * 100, str(tmp_path / "out"))
    assert (kept.show(100), kept.path) == ("x" * 100, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("S4-77")
def test_long_output_shows_both_ends_and_names_the_file_that_has_it_all(tmp_path: Path) -> None:
    data = bytes(range(32, 127)) * 10
    path = tmp_path / "out"
    kept = capture(data, str(path))
    mark = f"[... {len(data) - 100} bytes left out; whole output in {path}]"
    assert kept.show(100) == "\n".join([data[:50].decode(), mark, data[-50:].decode()])
    kept.close()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (data, 0o600)


@pytest.mark.spec("S4-77")
def test_output_below_the_cap_can_be_shown_shorter_and_is_kept_then(tmp_path: Path) -> None:
    path = tmp_path / "out"
    kept = capture(b"0123456789", str(path))
    assert kept.show(4) == f"01\n[... 6 bytes left out; whole output in {path}]\n89"
    kept.close()
    assert path.read_bytes() == b"0123456789"


def test_without_a_file_the_mark_names_none() -> None:
    assert capture(b"0123456789").show(4) == "01\n[... 6 bytes left out]\n89"


@pytest.mark.spec("S4-77")
def test_a_kept_file_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "KEPT_FILE", 150)
    path = tmp_path / "out"
    kept = capture(b"x" * 1000, str(path))
    mark = f"[... 900 bytes left out; the first 150 bytes in {path}]"
    assert kept.show(100) == "\n".join(["x" * 50, mark, "x" * 50])
    kept.close()
    assert path.read_bytes() == b"x" * 150 + b"\n[... the rest was not kept]\n"


@pytest.mark.parametrize("path", ["/no/such/directory/out", "/dev/full"])
def test_a_file_that_cannot_be_written_fails_nothing(path: str) -> None:
    kept = capture(b"x" * 100_000, path)
    kept.show(100)
    kept.close()
    assert kept.path is None


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    kept = capture(b"x" * 1000, str(tmp_path / "out"))
    kept.close()
    assert (kept.path, (tmp_path / "elsewhere").exists()) == (None, False)


def test_a_flood_is_not_kept_in_memory() -> None:
    kept = Capture(1000, lambda: None)
    for _ in range(10_000):
        kept.add(b"x" * 1000)
    assert (kept.total, len(kept._head) + len(kept._tail) <= 1500) == (10_000_000, True)


@given(st.text(max_size=300).filter(lambda text: "[" not in text), st.integers(1, 9), st.integers(2, 100))
def test_no_character_is_ever_cut_in_two(text: str, piece: int, limit: int) -> None:
    data = text.encode()
    shown = capture(data, piece=piece).show(limit)
    if len(data) <= limit:
        assert shown == text
        return
    head, _, rest = shown.partition("\n[... ")
    count, _, tail = rest.partition(" bytes left out]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head.encode()) + len(tail.encode()) + int(count) == len(data)


@given(st.binary(max_size=300), st.integers(2, 100))
def test_bytes_that_are_no_text_are_shown_all_the_same(data: bytes, limit: int) -> None:
    assert isinstance(capture(data).show(limit), str)


class Recorder:
    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def __call__(self, text: str, stream: str) -> None:
        self.pieces.append((stream, text))
        self.news.set()


async def test_small_pieces_are_joined_and_streams_keep_their_order() -> None:
    record = Recorder()
    deltas = Deltas(record)
    for stream, data in ("stdout", b"a"), ("stdout", b"b"), ("stderr", b"c"), ("stdout", b"d"):
        deltas.add(stream, data)  # type: ignore[arg-type]
    assert record.pieces == []
    async with asyncio.timeout(60):
        await record.news.wait()
    assert record.pieces == [("stdout", "ab"), ("stderr", "c"), ("stdout", "d")]


async def test_large_pieces_go_at_once_and_in_bounded_parts() -> None:
    record = Recorder()
    Deltas(record).add("stdout", b"x" * (2 * outputs.DELTA_SIZE + 1))
    assert [len(text) for _, text in record.pieces] == [outputs.DELTA_SIZE, outputs.DELTA_SIZE, 1]


async def test_a_character_that_comes_in_two_reads_arrives_whole() -> None:
    record = Recorder()
    deltas = Deltas(record)
    for byte in "aé漢😀".encode():
        deltas.add("stdout", bytes([byte]))
        deltas.add("stderr", b"\xff")
    deltas.close()
    assert "".join(text for stream, text in record.pieces if stream == "stdout") == "aé漢😀"
    assert "".join(text for stream, text in record.pieces if stream == "stderr") == "\ufffd" * 10


async def test_closing_passes_on_the_rest_and_nothing_comes_after() -> None:
    record = Recorder()
    deltas = Deltas(record)
    deltas.add("stdout", b"end\xe2\x82")
    deltas.close()
    deltas.close()
    assert record.pieces == [("stdout", "end\ufffd")]
