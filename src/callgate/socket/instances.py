"""Instances as values, and their records for other processes.

An instance publishes its record when it starts and withdraws it when it stops.
`config.instance_records` reads the records.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, NamedTuple

from callgate.config import instance_records
from callgate.config.instance_records import config_path, process_start, record_path
from callgate.core.local.disk import write_private
from callgate.protocol.json_texts import dumps

PROTOCOL = 1


class InstanceRecord(NamedTuple):
    pid: int
    socket: str
    label: str
    cwd: str
    version: str
    started_at: int
    """Milliseconds since 1970."""
    http: str | None = None
    """Its HTTP address."""
    workspaces: tuple[str, ...] = ()
    """Directories that it serves, besides the trusted ones."""
    environment: str | None = None
    """Digest of the environment of the call that started it; None: started by the user."""

    @property
    def is_reachable(self) -> bool:
        """Whether its socket exists."""
        return os.path.exists(self.socket)


def publish(home: str, instance: InstanceRecord, *, anew: bool = True) -> None:
    """Write the record of a running instance, and its entry as the last started one.

    Without `anew`: write only missing files. An instance that a call started has no such entry.
    """
    record: dict[str, Any] = {
        "pid": instance.pid,
        "socketPath": instance.socket,
        "dataDir": home,
        "appVersion": instance.version,
        "protocolVersion": PROTOCOL,
        "startedAt": instance.started_at,
        "processStart": process_start(instance.pid),
    }
    if instance.http is not None:
        record["httpUrl"] = instance.http
    if instance.environment is not None:
        record["environment"] = instance.environment
    path = record_path(home, instance.pid)
    if anew or not os.path.exists(path):
        _write(
            path,
            {
                **record,
                "cwd": instance.cwd,
                "label": instance.label,
                "workspaces": list(instance.workspaces),
            },
        )
    if instance.environment is None and (anew or not os.path.exists(config_path(home))):
        where = {"configVersion": 1, "instancesDir": os.path.dirname(path), "instancePath": path}
        _write(config_path(home), {**record, **where})


def withdraw(home: str, instance: InstanceRecord) -> None:
    """Remove the record. Idempotent; records of other instances stay."""
    _remove(record_path(home, instance.pid))
    config = instance_records.read(config_path(home))
    if config is not None and config.get("pid") == instance.pid:
        _remove(config_path(home))


def reap(home: str) -> None:
    """Remove the records of dead processes."""
    for pid, record in instance_records.read_all(home):
        if not instance_records.is_current(pid, record):
            _remove(record_path(home, pid))


def running(home: str) -> list[InstanceRecord]:
    """Return the instances whose process lives, newest first."""
    return [_instance(record) for record in instance_records.running(home)]


def live(home: str) -> list[InstanceRecord]:
    """Return the running instances whose socket exists, newest first."""
    return [_instance(record) for record in instance_records.live(home)]


def lasting(home: str) -> list[InstanceRecord]:
    """Return the live instances that were not started by a call, newest first."""
    return [each for each in live(home) if each.environment is None]


def origin_in_words(instance: InstanceRecord) -> str:
    """Return an addition to the state of an instance that a call started."""
    if instance.environment is None:
        return ""
    return ", started by a call, ends when it is unused or at the end of the login"


def _instance(record: dict[str, Any]) -> InstanceRecord:
    return InstanceRecord(
        pid=record["pid"],
        socket=record["socketPath"],
        label=str(record.get("label", "")),
        cwd=str(record.get("cwd", "")),
        version=str(record["appVersion"]),
        started_at=record["startedAt"],
        http=url if isinstance(url := record.get("httpUrl"), str) else None,
        workspaces=tuple(map(str, record.get("workspaces", [record.get("cwd", "")]))),
        environment=given if isinstance(given := record.get("environment"), str) else None,
    )


def _write(path: str, value: dict[str, Any]) -> None:
    write_private(path, dumps(value))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def proof_of(token: str, nonce: str, url: str) -> str:
    """Return the answer to `nonce`, which requires the token."""
    message = f"callgate listener proof\n{url}\n{nonce}"
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def token_path(home: str, pid: int) -> str:
    return os.path.join(home, "run", f"{pid}.token")
