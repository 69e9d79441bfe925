"""Records of running instances: their sockets, and whether they belong to this user.

    config.json              the last started instance
    instances/<pid>.json     one record for each running instance

`instance.instances` writes these files of the home. A record is a claim, not a proof: a dead
process leaves its record behind, so a client connects and checks the peer.
Light to import, because every `callgate call` starts here.
"""

from __future__ import annotations

import _socket  # importing `socket` takes longer than finding an instance
import os
import sys
from _blake2 import blake2b  # `hashlib` loads OpenSSL

from callgate.protocol.json_texts import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_END_OF_TIME = 253_000_000_000_000
"""Milliseconds: in the year 9987."""
_LARGEST = 65_536
_MOST = 8
"""Maximum number of sockets to try."""
_CHANGED_BY_SHELLS = {b"_", b"PWD", b"OLDPWD", b"SHLVL", b"TRACEPARENT"}
"""Variables that differ between calls of one shell; a call sends its TRACEPARENT itself."""
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1  # macOS: version, uid, ...


class NoInstance(Exception):
    """The requested instance does not run."""


def find(home: str, *, socket: str | None = None, instance: str | None = None) -> str | None:
    """Return the socket to connect to, or None if no instance is known.

    Uses an explicit socket, else an explicit instance (its pid or label; raises `NoInstance` if it
    does not run), else the first of the `candidates`.
    """
    if socket is not None:
        return socket
    if instance is not None:
        return named_socket(home, instance)
    return next(iter(candidates(home)), None)


def named_socket(home: str, instance: str) -> str:
    """Return the socket of an instance by pid or label. Raises `NoInstance` if it does not run."""
    for record in live(home):
        if instance in (str(record["pid"]), str(record.get("label", ""))):
            return str(record["socketPath"])
    raise NoInstance(instance)


def candidates(home: str) -> list[str]:
    """Return the sockets of running instances, newest first, then the configured and usual ones.

    An instance that a call started counts only for programs with the environment of that call.
    """
    configured = (read(config_path(home)) or {}).get("socketPath")
    others = [configured, usual_socket(home)]
    paths = [record["socketPath"] for record in live(home) if has_environment(record)]
    paths += [path for path in others if isinstance(path, str) and os.path.exists(path)]
    return list(dict.fromkeys(paths))[:_MOST]


def has_environment(record: dict[str, Any]) -> bool:
    """Whether tools of the instance see the environment of this process."""
    environment = record.get("environment")
    return environment is None or environment == environment_digest()


def environment_digest() -> str:
    """Return a digest of the environment of this process, except variables that shells change."""
    hashed = blake2b(digest_size=16)
    for name, value in sorted(os.environb.items()):
        if name not in _CHANGED_BY_SHELLS:
            hashed.update(b"%d=%d:%b%b" % (len(name), len(value), name, value))
    return hashed.hexdigest()


def is_live_socket(home: str, path: str) -> bool:
    """Whether a living process has recorded this socket, so that it is not stale."""
    return any(path == record["socketPath"] for record in live(home))


def live(home: str) -> list[dict[str, Any]]:
    """Return the records of running instances whose socket exists, newest first."""
    return [record for record in running(home) if os.path.exists(record["socketPath"])]


def running(home: str) -> list[dict[str, Any]]:
    """Return the records of instances whose process lives, newest first."""
    found = [record for pid, record in read_all(home) if is_current(pid, record)]
    return sorted(found, key=lambda record: record["startedAt"], reverse=True)


def read_all(home: str) -> list[tuple[int, dict[str, Any]]]:
    """Return every record with the pid from its file name; an unreadable record is empty."""
    try:
        names = os.listdir(os.path.dirname(record_path(home, 0)))
    except OSError:
        return []
    pids = [int(stem) for name in names if (stem := name.removesuffix(".json")).isdecimal()]
    return [(pid, read(record_path(home, pid)) or {}) for pid in pids]


def is_current(pid: int, record: dict[str, Any]) -> bool:
    """Whether a record is complete, and its process lives."""
    started = record.get("processStart")
    return (
        _is_complete(pid, record)
        and is_alive(pid)
        and (started is None or started == process_start(pid))  # the pid may have been reused
    )


def is_alive(pid: int) -> bool:
    """Whether a process of this user lives. A zombie does not."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):  # no process, or another user's, who cannot write here
        return False
    return _process(pid)[:1] not in (["Z"], ["X"])


def process_start(pid: int) -> str | None:
    """Return the start time of a process in units of the system, or None if it is unknown."""
    fields = _process(pid)
    return fields[19] if len(fields) > 19 else None


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Return user and process of the peer from the operating system; process 0 if unknown."""
    if hasattr(_socket, "SO_PEERCRED"):  # Linux: pid, uid, gid
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return _integer(credentials[4:8]), _integer(credentials[:4])
    return _integer(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)[4:8]), 0


def is_own_peer(connection: _socket.socket) -> bool:
    """Whether the peer is this user, or root, who can do all that this user can.

    The peer of a client's connection reads its arguments.
    """
    return peer(connection)[0] in (os.getuid(), 0)


def usual_socket(home: str) -> str:
    return os.path.join(home, "run", "callgate.sock")


def config_path(home: str) -> str:
    return os.path.join(home, "config.json")


def record_path(home: str, pid: int) -> str:
    return os.path.join(home, "instances", f"{pid}.json")


def read(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            value = loads(os.read(descriptor, _LARGEST).decode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_complete(pid: int, record: dict[str, Any]) -> bool:
    """Whether the record has all fields, and belongs to the process in its file name."""
    started = record.get("startedAt")
    return (
        record.get("pid") == pid
        and pid > 1  # a signal to 0, 1 or less reaches other processes
        and type(started) is int
        and 0 <= started < _END_OF_TIME
        and isinstance(record.get("socketPath"), str)
        and "appVersion" in record
    )


def _process(pid: int) -> list[str]:
    """Return the status fields of a process, from its state on; empty if unavailable."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def _integer(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)
