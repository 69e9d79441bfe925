"""Which instances run, and where each listens: files in the home that anyone may read.

    config.json              the last one that was started
    instances/<pid>.json     each one, for as long as it runs

Light to import, because every `callgate call` begins here. A record is a claim, not a proof: a
process that died leaves its own behind, so whoever uses one makes sure that somebody listens.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, TypeGuard

from callgate.config.home import write_private

PROTOCOL = 1
_END_OF_TIME = 253_000_000_000_000
"""Milliseconds: in the year 9987."""


class NoInstance(Exception):
    """The instance that was asked for does not run."""


class Instance(NamedTuple):
    pid: int
    socket: str
    label: str
    cwd: str
    version: str
    started_at: int
    """Milliseconds since 1970."""
    http: str | None = None
    """Where it answers HTTP."""

    @property
    def is_reachable(self) -> bool:
        """Whether its socket is there."""
        return os.path.exists(self.socket)


def publish(home: str, instance: Instance, *, anew: bool = True) -> None:
    """Say that an instance runs: to those who look for it, and for the last one.

    Not `anew`: only where the file that says so is gone.
    """
    record: dict[str, Any] = {
        "pid": instance.pid,
        "socketPath": instance.socket,
        "dataDir": home,
        "appVersion": instance.version,
        "protocolVersion": PROTOCOL,
        "startedAt": instance.started_at,
        "processStart": _process_start(instance.pid),
    }
    if instance.http is not None:
        record["httpUrl"] = instance.http
    path = _record(home, instance.pid)
    if anew or not os.path.exists(path):
        _write(path, {**record, "cwd": instance.cwd, "label": instance.label})
    if anew or not os.path.exists(_config(home)):
        where = {"configVersion": 1, "instancesDir": os.path.dirname(path), "instancePath": path}
        _write(_config(home), {**record, **where})


def withdraw(home: str, instance: Instance) -> None:
    """Take it back. Idempotent; the record of another instance stays."""
    _remove(_record(home, instance.pid))
    config = _read(_config(home))
    if config is not None and config.get("pid") == instance.pid:
        _remove(_config(home))


def reap(home: str) -> None:
    """Remove the records of processes that are gone."""
    for pid, record in _records(home):
        if not _alive(pid, record) or _instance(pid, record) is None:
            _remove(_record(home, pid))


def running(home: str) -> list[Instance]:
    """The instances whose process lives, newest first."""
    found = [_instance(pid, record) for pid, record in _records(home) if _alive(pid, record)]
    alive = [each for each in found if each is not None]
    return sorted(alive, key=lambda each: each.started_at, reverse=True)


def live(home: str) -> list[Instance]:
    """Those of them whose socket is there."""
    return [each for each in running(home) if each.is_reachable]


def find(home: str, *, socket: str | None = None, instance: str | None = None) -> str | None:
    """The socket to connect to; None where nobody is known to listen.

    An explicit socket, an explicit instance (its pid or label; `NoInstance` if it does not
    run), the newest instance, the one in the config file, the usual place.
    """
    if socket is not None:
        return socket
    running = live(home)
    if instance is not None:
        named = [each for each in running if instance in (str(each.pid), each.label)]
        if not named:
            raise NoInstance(instance)
        return named[0].socket
    if running:
        return running[0].socket
    config = _read(_config(home)) or {}
    for path in (config.get("socketPath"), usual_socket(home)):
        if isinstance(path, str) and os.path.exists(path):
            return path
    return None


def usual_socket(home: str) -> str:
    return os.path.join(home, "run", "callgate.sock")


def _config(home: str) -> str:
    return os.path.join(home, "config.json")


def _record(home: str, pid: int) -> str:
    return os.path.join(home, "instances", f"{pid}.json")


def _records(home: str) -> list[tuple[int, dict[str, Any]]]:
    try:
        names = os.listdir(os.path.join(home, "instances"))
    except OSError:
        return []
    pids = [int(stem) for name in names if (stem := name.removesuffix(".json")).isdecimal()]
    return [(pid, _read(_record(home, pid)) or {}) for pid in pids]


def _instance(pid: int, record: dict[str, Any]) -> Instance | None:
    """What a record says, if it speaks of the process that it is named after."""
    started_at = record.get("startedAt")
    # A signal to 0, to 1 or to less means others than one process of ours.
    if record.get("pid") != pid or pid <= 1 or not _is_moment(started_at):
        return None
    if not isinstance(record.get("socketPath"), str) or "appVersion" not in record:
        return None
    return Instance(
        pid=pid,
        socket=record["socketPath"],
        label=str(record.get("label", "")),
        cwd=str(record.get("cwd", "")),
        version=str(record["appVersion"]),
        started_at=started_at,
        http=url if isinstance(url := record.get("httpUrl"), str) else None,
    )


def _is_moment(value: Any) -> TypeGuard[int]:
    """Milliseconds since 1970 in a year that a calendar has."""
    return type(value) is int and 0 <= value < _END_OF_TIME


def _alive(pid: int, record: dict[str, Any]) -> bool:
    """Whether the process that wrote a record lives; its number may be another's by now."""
    started = record.get("processStart")
    return is_alive(pid) and (started is None or started == _process_start(pid))


def is_alive(pid: int) -> bool:
    """Whether a process of ours lives; one that nobody has buried yet does not."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):  # none, or not of ours, so not one that wrote here
        return False
    return _process(pid)[:1] not in (["Z"], ["X"])


def _process_start(pid: int) -> str | None:
    """When a process began, in the system's own count; None where the system does not say."""
    fields = _process(pid)
    return fields[19] if len(fields) > 19 else None


def _process(pid: int) -> list[str]:
    """What the system says of a process, from its state on; nothing where it says nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def _read(path: str) -> dict[str, Any] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            value = json.loads(file.read(65_536))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write(path: str, value: dict[str, Any]) -> None:
    write_private(path, json.dumps(value))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
