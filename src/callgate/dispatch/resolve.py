"""The resolve stage: find the tool of a call that its session may see."""

from __future__ import annotations

from itertools import islice

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolNotFound
from callgate.core.texts import nearest
from callgate.dispatch.tools.registry import Registered, Registry

_COMPARED = 2_000
"""Names compared for a suggestion. The limit bounds the work for a client that guesses names."""


def resolve(call: ToolCall, registry: Registry) -> Registered:
    """Return the registered tool by name or alias. Raises `ToolNotFound`."""
    tool = registry.find(call.tool, call.session)
    if tool is None or registry.hidden_because(tool, call.session) is not None:
        asked_for = call.requested_tool[:128]
        if tool is not None and (lacks := registry.missing_because(tool, call.session)):
            raise ToolNotFound(f"There is no tool {asked_for!r} here: {lacks}.")
        raise ToolNotFound(f"There is no tool {asked_for!r}.{_suggestion(call, registry)}")
    return tool


def _suggestion(call: ToolCall, registry: Registry) -> str:
    visible = (
        tool.name
        for tool in registry.of(call.session)
        if registry.unusable_because(tool, call.session) is None
    )
    near = nearest(call.requested_tool[:64], islice(visible, _COMPARED))
    return f" Did you mean {near!r}?" if near else ""
