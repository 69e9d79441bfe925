"""Reading the audit log forwards: every line once, across closed and dropped files, from a place that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.audit import log as audit_log
from callgate.audit.forward import (
    Cursor,
    CursorHeld,
    CursorUnreadable,
    LogReplaced,
    Position,
    Positions,
    end_of,
    read_part,
    read_parts,
    start_of,
)
from callgate.audit.log import AuditLog
from callgate.audit.records import closed_segments
from tests.features.reporting.export.records import record, write


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_LOOK_EVERY_S", 0)


def ids(path: str, place: Position, limit: int = 1000) -> tuple[list[str], Position, int]:
    found, dropped = [], 0
    for part in read_parts(path, place, limit):
        found += [line.id for line, _ in part.records]
        dropped += part.dropped
        place = part.position
    return found, place, dropped


@pytest.mark.parametrize("limit", [100, 5_000, 1 << 20])
def test_every_record_of_all_files_is_read_once(path: str, limit: int) -> None:
    records = [record(n) for n in range(60)]
    write(path, records, max_bytes=4096)
    assert len(closed_segments(path)) > 3
    found, place, dropped = ids(path, Position(), limit)
    assert (found, dropped) == ([each.id for each in records], 0)
    assert ids(path, place)[0] == []


def test_reading_goes_on_at_a_place_while_the_log_is_closed_and_written(path: str) -> None:
    first, later = [record(n) for n in range(5)], [record(n) for n in range(5, 60)]
    write(path, first, max_bytes=4096)
    _, place, _ = ids(path, Position())
    write(path, later, max_bytes=4096)
    assert ids(path, place)[0] == [each.id for each in later]


def test_a_line_that_is_not_whole_waits(path: str) -> None:
    write(path, [record(1)])
    with Path(path).open("ab") as file:
        file.write(b'{"id":"audit_torn')
    found, place, _ = ids(path, Position())
    assert len(found) == 1
    assert read_part(path, place).is_end


def test_there_is_nothing_where_there_is_no_log(path: str) -> None:
    part = read_part(path, Position())
    assert (part.records, part.is_end) == ([], True)
    write(path, [record(1)])
    assert len(ids(path, part.position)[0]) == 1


def test_files_that_were_dropped_are_counted_and_passed_over(path: str) -> None:
    write(path, [record(n) for n in range(8)], max_bytes=4096)
    part = read_part(path, Position(), 100)
    assert part.records
    write(path, [record(n) for n in range(100, 200)], max_bytes=4096, keep=2)
    found, _, dropped = ids(path, part.position)
    assert dropped >= 1
    assert found == ids(path, Position())[0]


def test_a_newest_closed_file_that_was_emptied_is_passed_over(path: str) -> None:
    write(path, [record(n) for n in range(20)], max_bytes=4096)
    assert closed_segments(path)
    place = read_part(path, Position(), 100).position
    log = AuditLog(path, max_bytes=4096, keep=100)
    log.append(record(50))
    log.drop(closed_segments(path))
    log.append(record(51))
    log.close()
    found, _, dropped = ids(path, place)
    assert dropped >= 1
    assert len(found) == len(ids(path, Position())[0])


def test_another_log_at_the_same_path_is_an_error(path: str) -> None:
    write(path, [record(n) for n in range(5)])
    _, place, _ = ids(path, Position())
    Path(path).unlink()
    write(path, [record(n) for n in range(9)])
    with pytest.raises(LogReplaced):
        read_part(path, place)
    Path(path).unlink()
    with pytest.raises(LogReplaced):
        read_part(path, Position(7, 3, "x"))


def test_a_start_since_a_moment_leaves_older_files_out(path: str) -> None:
    records = [record(n * 1000) for n in range(60)]
    write(path, records, max_bytes=4096)
    place = start_of(path, records[50].ts)
    assert place.file > 1
    assert records[50].id in ids(path, place)[0]
    assert start_of(path, None) == Position()


def test_the_end_is_after_the_last_whole_line(path: str) -> None:
    assert end_of(path) == Position(1)
    write(path, [record(1)])
    place = end_of(path)
    assert ids(path, place)[0] == []
    write(path, [record(2)])
    assert len(ids(path, place)[0]) == 1


def test_a_cursor_outlives_its_process_and_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "c.json")
    cursor = Cursor(path, "jsonl x")
    assert cursor.is_new
    with pytest.raises(CursorHeld):
        Cursor(path, "jsonl x")
    cursor.advance(Positions(for_="jsonl x", logs={"/a": Position(3, 70, "c")}))
    cursor.close()
    again = Cursor(path, "jsonl x")
    assert (again.is_new, again.positions.logs) == (False, {"/a": Position(3, 70, "c")})
    again.close()
    with pytest.raises(CursorUnreadable):
        Cursor(path, "csv x")
    Path(path).write_text("{")
    with pytest.raises(CursorUnreadable):
        Cursor(path, "jsonl x")
