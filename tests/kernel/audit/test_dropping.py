"""Old files of the audit log are dropped with a line that says so: what is pruned is not cut."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from callgate.audit import log as log_module
from callgate.audit.keys import key_path, make_key, read_keys
from callgate.audit.log import AuditLog
from callgate.audit.reading import tail
from callgate.audit.records import DropMark, all_segments, closed_segments, encode, line_hash, old_segments
from callgate.audit.verify import verify
from tests.kernel.audit.test_log import ids, record


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "home/audit.jsonl")


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_LOOK_EVERY_S", -1.0)


def _filled(path: str, count: int = 40) -> AuditLog:
    """Ten files or so, with times from 1000 on, one millisecond a line."""
    log = AuditLog(path, max_bytes=1_000, keep=100)
    for n in range(count):
        log.append(record(n))
    assert len(closed_segments(path)) > 5
    assert verify(path).ok
    return log


def _old(path: str, before_ms: int) -> list[str]:
    return [*old_segments(path, before_ms)]


def test_a_log_whose_old_files_were_dropped_is_whole(path: str) -> None:
    log = _filled(path)
    old = _old(path, 1_020)
    last = Path(old[-1]).read_bytes().splitlines()[-1]
    assert log.drop(old) == old
    assert not any(os.path.exists(each) for each in old)
    for n in range(40, 60):
        log.append(record(n))
    log.close()
    AuditLog(path, max_bytes=1_000, keep=100).append(record(60))
    assert verify(path).problems == ()
    marks = [
        msgspec.json.decode(line)
        for segment in all_segments(path)
        for line in Path(segment).read_bytes().splitlines()
        if b'"dropped_files"' in line
    ]
    assert [(each["dropped_files"], each["dropped_last"]) for each in marks] == [(len(old), line_hash(last))]
    assert ids(path)[-21:] == [f"tu_{n}" for n in range(40, 61)]


def test_a_log_whose_old_files_were_removed_is_cut(path: str) -> None:
    log = _filled(path)
    for each in _old(path, 1_020):
        os.unlink(each)
    log.append(record(40))
    assert [each.what for each in verify(path).problems] == ["files 1 to 5 are missing"]


def test_a_file_that_is_removed_behind_those_that_were_dropped_is_missed(path: str) -> None:
    log = _filled(path)
    log.drop(_old(path, 1_012))
    os.unlink(closed_segments(path)[0])
    log.append(record(40))
    assert not verify(path).ok


def test_a_mark_that_is_taken_out_is_missed(path: str) -> None:
    log = _filled(path)
    log.drop(_old(path, 1_012))
    log.append(record(40))
    for segment in all_segments(path):
        lines = Path(segment).read_bytes().splitlines(keepends=True)
        Path(segment).write_bytes(b"".join(line for line in lines if b'"dropped_files"' not in line))
    assert not verify(path).ok


def test_another_file_in_the_place_of_one_that_was_dropped_is_noticed(path: str) -> None:
    log = _filled(path)
    old = _old(path, 1_012)
    contents = {each: Path(each).read_bytes() for each in old}
    log.drop(old)
    for each, content in contents.items():
        Path(each).write_bytes(content)
    assert verify(path).ok
    lines = contents[old[-1]].splitlines(keepends=True)
    Path(old[-1]).write_bytes(b"".join(lines[:-1]))
    assert "the file that it says was dropped is another" in {each.what for each in verify(path).problems}


def test_all_closed_files_may_go(path: str) -> None:
    log = _filled(path)
    while old := _old(path, 10_000):
        assert log.drop(old) == old
    assert [os.stat(each).st_size for each in closed_segments(path)] == [0]  # it keeps the number
    assert verify(path).problems == ()
    log.close()
    again = AuditLog(path, max_bytes=1_000, keep=100)
    for n in range(40, 80):
        again.append(record(n))
    assert verify(path).problems == ()
    assert again.drop(_old(path, 1_060))
    assert verify(path).problems == ()


def test_what_was_emptied_without_a_mark_is_missed(path: str) -> None:
    log = _filled(path)
    for each in closed_segments(path):
        os.truncate(each, 0)
    log.append(record(40))
    assert not verify(path).ok


def test_a_file_that_somebody_writes_to_stays_and_so_do_those_behind_it(path: str) -> None:
    log = _filled(path)
    old = _old(path, 1_020)
    with open(old[2], "rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert log.drop(old) == old[:2]
    assert verify(path).ok
    assert log.drop(old[2:]) == old[2:]
    assert verify(path).ok


def test_killed_between_the_mark_and_the_removal_the_log_is_whole(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _filled(path)
    old = _old(path, 1_020)
    monkeypatch.setattr(AuditLog, "_drop", lambda self: None)
    log.drop(old)
    log.close()
    monkeypatch.undo()
    assert verify(path).ok
    os.unlink(old[0])  # and in the middle of it
    assert verify(path).ok
    after = AuditLog(path, max_bytes=1_000, keep=100)
    assert after.drop(_old(path, 1_020)) == old[1:]
    assert verify(path).ok


def test_the_file_that_is_written_is_closed_once_its_first_line_is_old(path: str) -> None:
    log = AuditLog(path)
    log.append(record(0))
    log.append(record(9_000))
    log.close_before(1_000)
    assert closed_segments(path) == []
    log.close_before(1_001)
    assert len(closed_segments(path)) == 1
    log.append(record(9_001))
    assert log.drop(_old(path, 2_000)) == []
    assert log.drop(_old(path, 20_000)) == closed_segments(path)
    assert verify(path).ok


def test_a_mark_is_no_call(path: str) -> None:
    log = _filled(path)
    log.drop(_old(path, 1_012))
    assert [line.call_id for line, _ in tail(path, 1)] == ["tu_39"]


def test_no_file_goes_before_the_line_that_says_so_is_on_the_disk(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _filled(path)
    old = _old(path, 1_020)

    def fails(descriptor: int) -> None:
        raise OSError(5, "i/o error")

    monkeypatch.setattr(os, "fsync", fails)
    assert log.drop(old) == []
    assert all(os.path.exists(each) for each in old)
    monkeypatch.undo()
    assert verify(path).ok
    assert log.drop(old) == old
    assert verify(path).ok


def _forged(path: str, signature: str) -> None:
    """Remove the oldest files, and add a line that says so to the end of a new chain."""
    removed = closed_segments(path)[:3]
    hidden = line_hash(Path(removed[-1]).read_bytes().splitlines()[-1])
    for each in removed:
        os.unlink(each)
    last = Path(path).read_bytes().splitlines()[-1]
    mark = DropMark(
        id="audit_x",
        ts=2_000,
        dropped_files=3,
        chain="forged",
        n=1,
        prev=line_hash(last),
        kept_from=4,
        dropped_last=hidden,
        signature=signature,
    )
    with open(path, "ab") as file:
        file.write(encode(mark) + b"\n")


@pytest.mark.parametrize("signature", ["", "0" * 64])
def test_a_line_without_our_signature_does_not_excuse_missing_files(path: str, signature: str) -> None:
    _filled(path).close()
    make_key(path)
    _forged(path, signature)
    assert [each.what for each in verify(path).problems] == [
        "files 1 to 3 are missing",
        "it says that files were dropped, without the signature of this log",
    ]


def test_without_the_key_signatures_are_not_checked(path: str) -> None:
    log = _filled(path)
    log.drop(_old(path, 1_020))
    log.close()
    keys = read_keys(path)
    os.unlink(key_path(path))
    assert verify(path).ok
    assert verify(path, keys=keys).ok
    assert not verify(path, keys=[bytes(32)]).ok


def test_an_older_version_said_what_it_dropped_without_a_signature(path: str) -> None:
    _filled(path).close()
    lines = [msgspec.json.decode(line) for line in Path(path).read_bytes().splitlines()]
    assert not any("principal" in line for line in lines)
    for each in closed_segments(path)[:3]:
        os.unlink(each)
    mark = {**lines[-1], "id": "audit_x", "n": lines[-1]["n"] + 1, "kept_from": 4}
    mark["prev"] = line_hash(Path(path).read_bytes().splitlines()[-1])
    make_key(path)
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(mark) + b"\n")
    assert verify(path).ok
