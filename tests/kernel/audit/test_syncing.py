"""A sync covers every line that was appended before it began, and no other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from callgate.audit import log as log_module
from callgate.audit.log import AuditLog
from callgate.audit.records import all_segments
from callgate.audit.syncing import GroupSync
from tests.kernel.audit.test_log import record
from tests.needs import needs
from tests.support import LIMIT_S, HeldWork


def test_who_comes_while_a_sync_is_under_way_shares_the_next_one() -> None:
    sync = HeldWork()
    group = GroupSync(sync)
    first = group.request()
    assert sync.begun.acquire(timeout=LIMIT_S)
    later = [group.request() for _ in range(10)]
    sync.free.release()
    first.result(LIMIT_S)
    assert not any(each.done() for each in later)
    sync.free.release()
    for each in later:
        each.result(LIMIT_S)
    assert sync.count == 2
    group.close()


def test_a_sync_that_fails_fails_for_those_who_waited_and_the_next_one_is_tried() -> None:
    failures = [OSError(5, "no")]

    def sync() -> None:
        if failures:
            raise failures.pop()

    group = GroupSync(sync)
    with pytest.raises(OSError, match="no"):
        group.request().result(LIMIT_S)
    group.request().result(LIMIT_S)
    group.close()


@needs("linux")
def test_the_last_lines_of_a_closed_file_are_synced_and_the_name_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    path = str(tmp_path / "home" / "audit.jsonl")
    log, other = AuditLog(path, max_bytes=4096, keep=2), AuditLog(path, max_bytes=4096)
    log.append(record(1))
    for n in range(40):
        other.append(record(n))
    other.close()
    synced.clear()
    log._looked = 0.0  # the moment has passed after which it looks again
    log.append(record(2))  # in a file that is new to it
    log.request_sync().result(LIMIT_S)
    assert os.path.basename(all_segments(path)[0]) in synced
    assert {"audit.jsonl", "home"} <= set(synced)
    log.close()


def test_without_a_thread_to_have_a_sync_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    failures = [OSError(5, "no")]

    def sync() -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    group = GroupSync(sync)
    with pytest.raises(OSError, match="no"):
        group.request().result(0)
    group.request().result(0)


def test_the_store_waits_for_a_sync_of_its_lines_that_others_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWork()
    monkeypatch.setattr(log_module, "sync_file", lambda fd: held())
    log = AuditLog(str(tmp_path / "audit.jsonl"))
    log.append(record(1))
    begun = log.request_sync()
    assert held.begun.acquire(timeout=LIMIT_S)
    store = threading.Thread(target=log.sync_before_store)
    store.start()
    store.join(0.2)
    assert store.is_alive()
    held.free.release()
    begun.result(LIMIT_S)
    store.join(LIMIT_S)
    assert not store.is_alive() and held.count == 1
    log.close()


def test_lines_whose_sync_failed_are_synced_before_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    log = AuditLog(str(tmp_path / "audit.jsonl"))
    log.append(record(1))
    monkeypatch.setattr(log_module, "sync_file", fail)
    log.sync_before_store()
    monkeypatch.setattr(log_module, "sync_file", synced.append)
    log.sync_before_store()
    log.sync_before_store()
    assert len(synced) == 1
    log.close()
