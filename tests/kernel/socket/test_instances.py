"""Finding a running instance: by what was asked for, and never one that is gone."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.config.instance_records import NoInstance, candidates, find, process_start, usual_socket
from callgate.socket.instances import InstanceRecord, live, publish, reap, withdraw


def instance(home: Path, pid: int, started_at: int = 1, label: str = "work") -> InstanceRecord:
    made = home / f"{pid}.sock"
    made.parent.mkdir(exist_ok=True)
    made.touch()
    return InstanceRecord(pid, str(made), label, "/w", "0.1.0", started_at)


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_what_is_published_can_be_found_and_is_private(tmp_path: Path) -> None:
    ours = instance(tmp_path, os.getpid())
    publish(str(tmp_path), ours)
    assert live(str(tmp_path)) == [ours]
    record = tmp_path / "instances" / f"{os.getpid()}.json"
    assert json.loads(record.read_text()) == {
        "pid": os.getpid(),
        "socketPath": ours.socket,
        "dataDir": str(tmp_path),
        "appVersion": "0.1.0",
        "protocolVersion": 1,
        "startedAt": 1,
        "cwd": "/w",
        "label": "work",
        "workspaces": [],
        "processStart": process_start(os.getpid()),
    }
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["socketPath"], config["instancePath"]) == (ours.socket, str(record))
    for path in (record, tmp_path / "config.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    withdraw(str(tmp_path), ours)
    withdraw(str(tmp_path), ours)
    assert live(str(tmp_path)) == []
    assert not (tmp_path / "config.json").exists()


def test_records_of_the_dead_are_ignored_and_reaped(tmp_path: Path, gone: int) -> None:
    home = str(tmp_path)
    publish(home, instance(tmp_path, gone))
    (tmp_path / "instances" / "7.json").write_text("{torn")
    (tmp_path / "instances" / "notes.json").write_text("mine")
    publish(home, ours := instance(tmp_path, os.getpid()))
    assert live(home) == [ours]
    reap(home)
    left = sorted(path.name for path in (tmp_path / "instances").iterdir())
    assert left == sorted([f"{os.getpid()}.json", "notes.json"])


def test_the_target_is_looked_for_in_a_fixed_order(tmp_path: Path, gone: int) -> None:
    home = str(tmp_path)
    assert find(home) is None
    usual = Path(usual_socket(home))
    usual.parent.mkdir()
    usual.touch()
    assert find(home) == str(usual)
    dead = instance(tmp_path, gone)
    publish(home, dead)  # its record is dead, but what the config says is still tried
    assert find(home) == dead.socket
    older = instance(tmp_path, os.getppid(), 5, "older")
    newer = instance(tmp_path, os.getpid(), 9, "newer")
    publish(home, older)
    publish(home, newer)
    publish(home, older)  # the last to write the config is not the newest
    assert find(home) == newer.socket
    assert find(home, instance="older") == find(home, instance=str(os.getppid())) == older.socket
    assert find(home, socket="/elsewhere", instance="older") == "/elsewhere"
    with pytest.raises(NoInstance):
        find(home, instance=str(gone))


def test_a_record_that_is_no_file_does_not_hold_anyone_up(tmp_path: Path) -> None:
    (tmp_path / "instances").mkdir()
    os.mkfifo(tmp_path / "instances" / f"{os.getpid()}.json")
    os.mkfifo(tmp_path / "config.json")
    assert find(str(tmp_path)) is None


def test_the_way_to_an_instance_is_light() -> None:
    code = "import sys, callgate.config.instance_records; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"asyncio", "msgspec", "socket", "logging", "json", "typing", "callgate.runtime"} & set(loaded) == set()
    assert socket  # only here


@pytest.mark.parametrize(
    "planted",
    [
        {"pid": -1},
        {"pid": 0},
        {"pid": 1},
        {"pid": "7"},
        {"pid": True},
        {"startedAt": float("inf")},
        {"startedAt": 10**30},
        {"startedAt": -1},
        {"startedAt": "1"},
        {"socketPath": 3},
        {"socketPath": "/a\0b"},
    ],
)
def test_a_record_that_speaks_of_others_or_of_no_time_is_no_instance(
    tmp_path: Path, planted: dict[str, object]
) -> None:
    publish(str(tmp_path), instance(tmp_path, os.getpid()))
    record = tmp_path / "instances" / f"{os.getpid()}.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | planted))
    assert live(str(tmp_path)) == []


def test_a_record_whose_number_another_process_has_by_now_is_no_instance(tmp_path: Path) -> None:
    publish(str(tmp_path), instance(tmp_path, os.getpid()))
    record = tmp_path / "instances" / f"{os.getpid()}.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"processStart": "1"}))
    (tmp_path / "config.json").unlink()
    assert live(str(tmp_path)) == candidates(str(tmp_path)) == []


@pytest.mark.parametrize("pid", [0, 1])
def test_no_record_makes_the_system_an_instance(tmp_path: Path, pid: int) -> None:
    """To whom a signal would go that is meant to stop it."""
    publish(str(tmp_path), instance(tmp_path, pid))
    assert live(str(tmp_path)) == []
