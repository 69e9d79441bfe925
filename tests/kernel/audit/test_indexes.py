"""The index of a closed file saves reading, and never hides a line."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.audit import indexes, reading
from callgate.audit.keys import make_key, save_key
from callgate.audit.log import AuditLog
from callgate.audit.reading import Filter, newest_first, page, search
from callgate.audit.records import CallRecord, all_segments, closed_segments, encode, index_path
from callgate.audit.verify import verify
from tests.kernel.audit.test_reading import _HOUR_MS, Reads, _id_at, _record, _write

LINES = 600


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and files whose index need not wait."""
    monkeypatch.setattr(indexes, "_BLOCK", 4_096)
    monkeypatch.setattr(reading, "_BLOCK", 4_096)
    monkeypatch.setattr(reading, "_PEEK", 1_024)
    monkeypatch.setattr(indexes, "_SETTLED_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A log of several files; of the tool `rare` there is one line, far back."""
    path = str(tmp_path / "audit.jsonl")
    for begin in range(0, LINES, 60):  # a log that is opened closes a file that is full
        _write(path, [_varied(n) for n in range(begin, begin + 60)], max_bytes=50_000)
    assert len(closed_segments(path)) > 3
    return path


def _varied(n: int) -> CallRecord:
    return _record(
        n,
        "rare" if n == 7 else f"tool_{n % 3}",
        id=_id_at(1_700_000_000_000 + n * _HOUR_MS, n),
        session=f"sess_{n // 10}",
        decision="deny" if n % 50 == 1 else "allow",
        error_class="timeout" if n % 70 == 2 else None,
    )


def _calls(path: str, limit: int = 10_000, **wanted: Any) -> list[str]:
    return [line.call_id for line, _ in search(path, Filter(**wanted), limit)]


def _indexes(path: str) -> list[str]:
    return [each for each in map(index_path, closed_segments(path)) if os.path.exists(each)]


FILTERS: tuple[dict[str, Any], ...] = (
    {"tool": "rare"},
    {"tool": "tool_1"},
    {"tool": "none"},
    {"session": "sess_3"},
    {"session": "sess_3", "tool": "tool_0"},
    {"call": "tu_42"},
    {"decision": "deny"},
    {"decision": "deny", "tool": "tool_2"},
    {"error_classes": ("timeout",), "decision": "allow"},
    {"error_classes": ("cancelled", "timeout"), "tool": "tool_2", "decision": "deny"},
    {"tool": "tool_1", "text": "TU_1"},
    {"tool": "tool_1", "since_ms": 1_300},
    {"tool": "none", "since_ms": 1_300},
    {"text": "tu_77"},
    {},
)


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_with_indexes_the_same_is_found_as_without(path: str, wanted: dict[str, Any]) -> None:
    filter = Filter(**wanted)
    since = wanted.get("since_ms", 0)
    expected = [line.id for line, raw in newest_first(path) if filter.matches(line, raw) and line.ts >= since]
    for _ in range(2):  # the first makes the indexes
        assert [line.id for line, _ in search(path, filter, LINES)] == expected[::-1]
        seen, before = [], None
        while True:
            found, before = page(path, filter, 7, before=before)
            seen += [line.id for line in found]
            if before is None:
                break
        assert seen == expected


@pytest.mark.parametrize(
    "wanted", [{"tool": "rare"}, {"tool": "none"}, {"session": "sess_0"}, {"call": "tu_3"}], ids=str
)
def test_the_second_search_reads_the_file_that_is_written_and_the_blocks_that_match(
    path: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _calls(path, **wanted)
    reads = Reads(monkeypatch)
    assert _calls(path, **wanted) == expected
    assert reads.bytes <= os.path.getsize(path) + 3 * 2 * 4_096


def test_a_page_that_goes_on_reads_the_blocks_that_match(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = search(path, Filter(call="tu_500"), 1)[0][0].id
    reads = Reads(monkeypatch)
    found, before = page(path, Filter(tool="rare"), 5, before=begin)
    assert ([each.call_id for each in found], before) == (["tu_7"], None)
    assert reads.bytes < 20 * 4_096


def test_an_index_is_no_file_of_the_log(path: str) -> None:
    before = all_segments(path)
    _calls(path, tool="rare")
    assert len(_indexes(path)) == len(closed_segments(path))
    assert all_segments(path) == before
    assert verify(path).ok


def test_an_index_is_its_owners_alone(path: str) -> None:
    _calls(path, tool="rare")
    assert {os.stat(each).st_mode & 0o777 for each in _indexes(path)} == {0o600}


def _insert(segment: str) -> None:
    """A line by another hand, in place of one of the same length, with the times put back."""
    status = os.stat(segment)
    data = Path(segment).read_bytes()
    changed = data.replace(b'"tool":"tool_1"', b'"tool":"hidden"', 1)
    assert changed != data
    assert len(changed) == len(data)
    while os.stat(segment).st_ctime_ns == status.st_ctime_ns:  # a tick of the kernel's clock
        with open(segment, "r+b") as file:
            file.write(changed)
        os.utime(segment, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_line_that_was_changed_since_is_found(path: str) -> None:
    assert _calls(path, tool="hidden") == []
    _insert(closed_segments(path)[1])
    assert len(_calls(path, tool="hidden")) == 1


def test_a_line_that_is_written_to_a_closed_file_is_found(path: str) -> None:
    assert _calls(path, tool="late") == []
    with open(closed_segments(path)[0], "ab") as file:
        file.write(encode(_record(1, "late")) + b"\n")
    assert _calls(path, tool="late") == ["tu_1"]


def test_a_line_behind_the_remains_of_another_is_found(path: str) -> None:
    with open(closed_segments(path)[0], "ab") as file:
        torn = encode(_record(1, "torn"))
        file.write(torn[:100] + encode(_record(2, "late")) + b"\n")
    for _ in range(2):
        assert _calls(path, tool="late") == ["tu_2"]
        assert _calls(path, tool="torn") == []


def _copy_of_another(path: str, index: str) -> bytes:
    other = next(each for each in _indexes(path) if each != index)
    return Path(other).read_bytes()


def _with_another_key(path: str, index: str) -> bytes:
    save_key(path, b"k" * 32)
    return Path(index).read_bytes()


def _flipped(place: float) -> Any:
    def flip(path: str, index: str) -> bytes:
        data = bytearray(Path(index).read_bytes())
        data[int((len(data) - 1) * place)] ^= 1
        return bytes(data)

    return flip


DAMAGE = {
    "empty": lambda path, index: b"",
    "one byte": lambda path, index: b"\0",
    "cut in half": lambda path, index: Path(index).read_bytes()[: os.path.getsize(index) // 2],
    "cut at its end": lambda path, index: Path(index).read_bytes()[:-1],
    "noise": lambda path, index: random.Random(1).randbytes(5_000),
    "zeros": lambda path, index: bytes(5_000),
    "of another file": _copy_of_another,
    "made with another key": _with_another_key,
    "a bit of its head": _flipped(0.02),
    "a bit of its tables": _flipped(0.4),
    "its last bit": _flipped(1.0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_wrong_index_hides_nothing_and_is_made_anew(path: str, damage: str) -> None:
    for wanted in FILTERS:
        expected = _calls(path, **wanted)
        for index in _indexes(path):
            Path(index).write_bytes(DAMAGE[damage](path, index))
        for _ in range(2):
            assert _calls(path, **wanted) == expected


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_file_is_no_index(path: str, kind: str, tmp_path: Path) -> None:
    index = Path(index_path(closed_segments(path)[0]))
    if kind == "link":
        index.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(index)
    else:
        index.mkdir()
    for _ in range(2):
        assert _calls(path, tool="rare") == ["tu_7"]


def test_a_file_that_may_still_be_written_to_gets_no_index(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_SETTLED_S", 3_600.0)
    assert _calls(path, tool="rare") == ["tu_7"]
    assert _indexes(path) == []


def test_a_file_that_changes_while_it_is_read_gets_no_index(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = indexes._read_blocks

    def interrupted(fd: int, size: int) -> Any:
        made = read(fd, size)
        for segment in closed_segments(path):
            with open(segment, "ab") as file:
                file.write(encode(_record(1, "late")) + b"\n")
        return made

    monkeypatch.setattr(indexes, "_read_blocks", interrupted)
    assert _calls(path, tool="rare") == ["tu_7"]
    monkeypatch.setattr(indexes, "_read_blocks", read)
    assert len(_calls(path, tool="late")) >= len(closed_segments(path))


def test_where_nothing_can_be_written_a_search_is_right_and_leaves_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, flags: int, *more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return opened(name, flags, *more)

    make_key(path)
    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    for wanted in FILTERS[:3]:
        _calls(path, **wanted)
    assert _calls(path, tool="rare") == ["tu_7"]
    assert _indexes(path) == []


def test_a_full_disk_is_left_to_the_log(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_has_room", lambda fd, size: False)
    assert _calls(path, tool="rare") == ["tu_7"]
    assert _indexes(path) == []


def test_an_index_goes_with_its_file(path: str) -> None:
    _calls(path, tool="rare")
    log = AuditLog(path)
    log.drop(closed_segments(path)[:2])
    log.close()
    assert sorted(_indexes(path)) == sorted(map(index_path, closed_segments(path)))
    assert not [each for each in _left(path) if each not in {*_indexes(path)}]


def test_what_a_killed_search_left_behind_goes_with_the_next(path: str) -> None:
    first = closed_segments(path)[0]
    old = Path(f"{index_path(first)}.4194305")
    orphan = Path(index_path(first.replace("000001", "000900")))
    fresh = Path(f"{index_path(first)}.4194306")
    for each in (old, orphan, fresh):
        each.write_bytes(b"x")
    os.utime(old, (0, 0))
    _calls(path, tool="rare")
    assert [each for each in _left(path) if each not in {*_indexes(path)}] == [str(fresh)]


def _left(path: str) -> Iterator[str]:
    for each in sorted(os.listdir(os.path.dirname(path))):
        if ".index" in each:
            yield os.path.join(os.path.dirname(path), each)


def test_a_line_longer_than_any_record_means_no_index(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_LONGEST_LINE", 10_000)
    first = closed_segments(path)[0]
    data = Path(first).read_bytes()
    Path(first).write_bytes(data[: data.find(b"\n") + 1] + b"x" * 50_000 + b"\n" + data)
    assert _calls(path, tool="rare") == ["tu_7"]
    assert index_path(first) not in _indexes(path)


def test_a_file_that_is_closed_during_a_search_is_not_missed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name changes between the look at the directory and the opening."""
    newest = f"tu_{LINES - 1}"
    names = os.listdir

    def rotate_then_list(directory: str) -> list[str]:
        monkeypatch.setattr(os, "listdir", names)
        os.rename(path, path.replace(".jsonl", ".000900.jsonl"))
        Path(path).write_bytes(encode(_record(900, "newest")) + b"\n")
        return names(directory)

    monkeypatch.setattr(os, "listdir", rotate_then_list)
    calls = [line.call_id for line, _ in newest_first(path)]
    assert calls.count(newest) == 1
    assert len(calls) == LINES
