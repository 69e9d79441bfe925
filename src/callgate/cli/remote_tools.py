"""What `callgate tools` shows, from a running instance."""

from __future__ import annotations

from typing import Any

from callgate.cli import provenance, remote
from callgate.cli.greetings import NotTaken, greet, settings_of
from callgate.cli.wires import Wire

_TEXTS = ("name", "side_effects", "description")


def every_tool(options: Any) -> list[dict[str, Any]] | None:
    """Every tool, visible or not. None: no instance says, and none was named."""
    return remote.through(options, _listed)


def _listed(wire: Wire, path: str, options: Any, *, named: bool) -> list[dict[str, Any]]:
    answer = greet(wire, path, options, named=named, names=[], whole=True)
    if answer["workspace"] is None:
        raise NotTaken(f"the instance at {path} does not serve this directory", "permission_denied",
                       "callgate serve --workspace DIR serves it.")  # fmt: skip
    tools = answer.get("whole")
    if not isinstance(tools, list) or not all(map(_is_described, tools)):
        raise NotTaken(f"the instance at {path} is of another version", "protocol_error",
                       "Stop it and start it anew.")  # fmt: skip
    provenance.from_instance_at(path, settings_of(answer)["version"])
    return tools


def _is_described(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and all(isinstance(tool.get(name), str) for name in _TEXTS)
        and isinstance(tool.get("visible"), bool)
        and isinstance(tool.get("hidden_because"), str | None)
    )
