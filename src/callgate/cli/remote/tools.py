"""What `callgate tools` shows, from a running instance."""

from __future__ import annotations

from typing import Any

from callgate.cli.remote.connection import InstanceConnection
from callgate.cli.remote.handshake import InstanceDeclined, greet, settings_of, through
from callgate.cli.ui import provenance

_TEXTS = ("name", "side_effects", "description")


def every_tool(options: Any) -> list[dict[str, Any]] | None:
    """Every tool, visible or not. None: no instance says, and none was named."""
    return through(options, _listed)


def _listed(
    connection: InstanceConnection, path: str, options: Any, *, named: bool
) -> list[dict[str, Any]]:
    answer = greet(connection, path, options, named=named, names=[], whole=True)
    if answer["workspace"] is None:
        raise InstanceDeclined(
            f"the instance at {path} does not serve this directory",
            "permission_denied",
            "callgate serve --workspace DIR serves it.",
        )
    tools = answer.get("whole")
    if not isinstance(tools, list) or not all(map(_is_described, tools)):
        raise InstanceDeclined(
            f"the instance at {path} is of another version",
            "protocol_error",
            "Stop it and start it anew.",
        )
    provenance.from_instance_at(path, settings_of(answer)["version"])
    return tools


def _is_described(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and all(isinstance(tool.get(name), str) for name in _TEXTS)
        and isinstance(tool.get("visible"), bool)
        and isinstance(tool.get("hidden_because"), str | None)
    )
