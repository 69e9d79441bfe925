"""Stage 1: which tool is meant, and may this session see it?"""

from __future__ import annotations

from itertools import islice

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolNotFound
from callgate.core.text.spelling import nearest
from callgate.dispatch.tools.registry import Registered, Registry

_COMPARED = 2_000
"""Names looked at for a suggestion: enough for people, bounded for a peer that guesses."""


def resolve(call: ToolCall, registry: Registry) -> Registered:
    """The registered tool, by name or alias."""
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
