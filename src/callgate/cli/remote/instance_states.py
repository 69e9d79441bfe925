"""How a running instance is, in its own words: whether it answers, and by which settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from callgate.cli.remote.connection import ConnectionLost, InstanceConnection
from callgate.cli.remote.handshake import GREETING_S, InstanceDeclined, ask, settings_of
from callgate.cli.ui import provenance
from callgate.surfaces.socket.instances import InstanceRecord


class InstanceState(NamedTuple):
    policy: str | None = None
    """The version of the policy in force in its first workspace."""
    problem: str | None = None
    """What is wrong: it does not answer, or cannot use the settings."""
    restart_for: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        if self.problem is not None:
            return self.problem
        unread = ", ".join(self.restart_for)
        restart = f"; {unread} changed in the settings: it has to be started anew" if unread else ""
        return f"policy {self.policy}{restart}"


def state_of(instance: InstanceRecord) -> InstanceState:
    if not instance.is_reachable:
        return InstanceState(problem="its socket is gone")
    info: dict[str, Any] = {"caller": "cli", "cwd": instance.cwd}
    try:
        with InstanceConnection(instance.socket, GREETING_S) as connection:
            answer = ask(connection, instance.socket, {"clientInfo": info, "names": []})
    except (ConnectionLost, InstanceDeclined) as error:
        return InstanceState(problem=f"it does not answer: {error}")
    found = settings_of(answer)
    problem = found["problem"]
    if problem is not None:
        problem = f"the settings cannot be used, calls with effects are refused: {problem}"
    return InstanceState(found["version"], problem, tuple(found["restartFor"]))


def note_provenance(instance: InstanceRecord) -> None:
    """Note that an instance answers this command, and by which policy, if that is wanted."""
    if provenance.is_wanted():
        provenance.from_instance_at(instance.socket, state_of(instance).policy)
