"""Which sockets a call may go to, in the order of `surfaces.socket.instances.find`.

It reads the same records without the imports that writing them needs: `find` would take longer
than the call itself.
"""

from __future__ import annotations

import os

from callgate.cli.json_texts import loads
from callgate.config.home_check import ensure_safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 65_536
_MOST = 8
"""Sockets that are tried."""


def home() -> str:
    chosen = os.environ.get("CALLGATE_HOME") or "~/.callgate"
    path = os.path.abspath(os.path.expanduser(chosen))
    ensure_safe(path)
    return path


def find_socket(home: str, instance: str) -> str | None:
    """The socket of a living instance, by its pid or label."""
    for _, pid, label, path in _live_instances(home):
        if instance in (pid, label):
            return path
    return None


def is_live_socket(home: str, path: str) -> bool:
    """Whether a living process has recorded this socket as its own, so that it is not stale."""
    return any(path == each for *_, each in _live_instances(home))


def candidates(home: str) -> list[str]:
    """The newest instance and those before it, the one in the config file, the usual place."""
    configured = _read(os.path.join(home, "config.json")).get("socketPath")
    others = [configured, os.path.join(home, "run", "callgate.sock")]
    paths = [path for *_, path in _live_instances(home)]
    paths += [path for path in others if isinstance(path, str) and os.path.exists(path)]
    return list(dict.fromkeys(paths))[:_MOST]


def _live_instances(home: str) -> list[tuple[int, str, str, str]]:
    """When each started, its pid, label and socket; the newest first."""
    directory = os.path.join(home, "instances")
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = []
    for name in names:
        stem = name.removesuffix(".json")
        if stem.isdecimal() and _is_alive(int(stem)):
            record = _read(os.path.join(directory, f"{int(stem)}.json"))
            started, path = record.get("startedAt"), record.get("socketPath")
            if (
                record.get("pid") == int(stem)
                and "appVersion" in record
                and isinstance(started, int)
                and isinstance(path, str)
                and os.path.exists(path)
            ):
                found.append((started, str(int(stem)), str(record.get("label", "")), path))
    return sorted(found, key=lambda each: each[0], reverse=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _read(path: str) -> dict[str, Any]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            value = loads(os.read(descriptor, _LARGEST).decode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
