"""The audit log when things go wrong: disks fill, processes die, somebody tampers."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.audit import log as module
from callgate.audit.log import AuditLog
from callgate.audit.records import all_segments, closed_segments
from callgate.audit.verify import verify
from tests.kernel.audit.test_log import ids, record


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "home/audit.jsonl")


@pytest.fixture
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", -1)


def add(path: str, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def lines(path: str) -> list[bytes]:
    return Path(path).read_bytes().splitlines(keepends=True)


@pytest.mark.spec("T46")
def test_a_living_writer_does_not_lose_its_record_in_the_remains_of_another(path: str) -> None:
    log = AuditLog(path)
    log.append(record(1))
    add(path, b'{"id":"audit_9","ts":1')
    log.append(record(2))
    log.append(record(3))
    assert ids(path) == ["tu_1", "tu_2", "tu_3"]
    found = verify(path)
    assert (found.problems, [each.line for each in found.unreadable]) == ((), [2])


@pytest.mark.spec("T46")
def test_a_record_on_the_same_line_as_the_remains_of_another_is_read(path: str) -> None:
    log = AuditLog(path)
    log.append(record(1))
    log.append(record(2))
    first, second = lines(path)
    Path(path).write_bytes(first + b'{"id":"audit_9","args":"{\\"id\\":\\"' + second)
    assert ids(path) == ["tu_1", "tu_2"]
    found = verify(path)
    assert (found.problems, found.records, len(found.unreadable)) == ((), 2, 1)


@pytest.mark.spec("T46")
def test_blocks_of_zeros_and_bad_lines_are_passed_over_and_reported(path: str) -> None:
    log = AuditLog(path)
    log.append(record(1))
    add(path, b"\0" * 4096 + b"\n\n[1]\n" + b"[" * 5000 + b"\n\xff\xfe\n{}\n")
    log.append(record(2))
    assert ids(path) == ["tu_1", "tu_2"]
    found = verify(path)
    assert (found.problems, [each.line for each in found.unreadable]) == ((), [2, 4, 5, 6, 7])


# Tampering that only the ties between chains and files give away.


def two_writers(path: str) -> None:
    one, other = AuditLog(path), AuditLog(path)
    for n in range(6):
        (one if n % 2 else other).append(record(n))


TAMPERING: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "the end of one": (lambda all: all[:4] + all[5:], 5),
    "lines of both": (lambda all: all[:3] + all[5:], 4),
    "two swapped": (lambda all: [*all[:4], all[5], all[4]], 5),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_what_two_writers_wrote_cannot_be_taken_apart(path: str, kind: str) -> None:
    two_writers(path)
    assert verify(path).ok
    change, line = TAMPERING[kind]
    Path(path).write_bytes(b"".join(change(lines(path))))
    problem = verify(path).problems[0]
    assert (problem.file, problem.line) == (path, line)


def test_a_chain_that_was_removed_altogether_is_missed_by_the_other(path: str) -> None:
    two_writers(path)
    gone = json.loads(lines(path)[0])["chain"]
    kept = [line for line in lines(path) if json.loads(line)["chain"] != gone]
    Path(path).write_bytes(b"".join(kept))
    assert not verify(path).ok


def rotated(path: str, count: int, *, keep: int) -> AuditLog:
    log = AuditLog(path, max_bytes=2_000, keep=keep)
    for n in range(count):
        log.append(record(n))
    return log


@pytest.mark.usefixtures("always_look")
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_file_that_was_removed_is_missed(path: str, which: int) -> None:
    rotated(path, 80, keep=4)
    assert verify(path).ok
    os.unlink(closed_segments(path)[which])
    assert not verify(path).ok


@pytest.mark.usefixtures("always_look")
def test_the_first_lines_of_the_oldest_file_are_missed(path: str) -> None:
    rotated(path, 80, keep=4)
    oldest = closed_segments(path)[0]
    Path(oldest).write_bytes(b"".join(lines(oldest)[2:]))
    problem = verify(path).problems[0]
    assert (problem.file, problem.line) == (oldest, 1)


@pytest.mark.usefixtures("always_look")
def test_a_chain_goes_on_only_from_files_that_were_dropped(path: str) -> None:
    busy, other = rotated(path, 30, keep=3), AuditLog(path, max_bytes=2_000, keep=3)
    for n in range(100, 112):
        other.append(record(n))
        busy.append(record(n + 100))
    assert verify(path).ok
    chain = other._at.chain
    for segment in closed_segments(path):
        kept = [line for line in lines(segment) if json.loads(line)["chain"] != chain]
        Path(segment).write_bytes(b"".join(kept))
    left = [json.loads(line)["chain"] for line in lines(path)]
    assert (path, left.index(chain) + 1) in {(each.file, each.line) for each in verify(path).problems}


@pytest.mark.usefixtures("always_look")
def test_nobody_can_say_afterwards_that_a_file_was_dropped(path: str) -> None:
    rotated(path, 80, keep=1000)
    segments = closed_segments(path)
    os.unlink(segments[0])
    changed = lines(path)
    changed[0] = changed[0].replace(b'"file":', b'"kept_from":2,"file":')
    Path(path).write_bytes(b"".join(changed))
    assert not verify(path).ok


@pytest.mark.usefixtures("always_look")
def test_a_file_that_somebody_writes_to_is_not_dropped(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = AuditLog(path, max_bytes=2_000, keep=1)
    idle.append(record(1000))
    rotated(path, 30, keep=1)
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 3600)
    idle._looked = float("inf")  # it believes it has just looked
    idle.append(record(1001))
    assert "tu_1001" in ids(path)
    assert verify(path).ok
    idle.close()
    monkeypatch.setattr(module, "_LOOK_EVERY_S", -1)
    rotated(path, 10, keep=1)
    assert len(all_segments(path)) <= 3
    assert verify(path).ok


def test_a_log_whose_directory_vanished_is_begun_anew(path: str, tmp_path: Path) -> None:
    log = AuditLog(path)
    log.append(record(1))
    os.rename(tmp_path / "home", tmp_path / "elsewhere")
    log._looked = float("-inf")
    with pytest.raises(OSError):
        log.ensure_open()
    os.mkdir(tmp_path / "home", 0o700)
    log.ensure_open()
    log.append(record(2))
    assert ids(path) == ["tu_2"]


# Every system call fails once.


class FailingOs:
    """The `os` module, whose n-th call of those that touch the disk goes wrong."""

    CALLS = ("open", "write", "pread", "lseek", "rename", "unlink", "fstat", "stat", "ftruncate", "listdir", "makedirs")

    def __init__(self, nth: int, how: int | str) -> None:
        self.left = nth
        self.how = how

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in self.CALLS else real

    def _counted(self, name: str, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left != 0:
                return real(*args, **more)
            if isinstance(self.how, int):
                raise OSError(self.how, os.strerror(self.how))
            if name == "write":
                return real(args[0], args[1][: len(args[1]) // 2])
            return real(*args, **more)

        return call


def append_all(log: AuditLog, count: int) -> list[str]:
    said = []
    for n in range(count):
        try:
            log.append(record(n))
        except OSError:
            continue
        said.append(f"tu_{n}")
    return said


@pytest.mark.usefixtures("always_look")
@pytest.mark.parametrize("how", [errno.ENOSPC, errno.EIO, errno.EMFILE, "short write"])
def test_whichever_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: int | str
) -> None:
    nth = 0
    while True:
        nth += 1
        path = str(tmp_path / f"{nth}/audit.jsonl")
        failing = FailingOs(nth, how)
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", failing)
            log = AuditLog(path, max_bytes=1_500, keep=2)
            said = append_all(log, 14)
        log.append(record(99))
        log.close()
        kept = ids(path)
        first = said.index(kept[0]) if kept[0] in said else len(said)
        assert kept == [*said[first:], "tu_99"], nth
        assert len(said) >= 13
        assert verify(path).problems == (), nth
        if failing.left > 0:
            break
    assert nth > 80  # so many calls there were
