"""Preparation of the stages for a tool, done once, at the tool's first call.

    which tool, who sees it  (registry) ─┐
    its definition, its schema           ├─> Plan ──> what each call still needs
    the longest time limit    (settings) ┘

A plan lives until the registry changes. It contains no data of a session, a person or a file:
`authorize` reads mode, policy, trust and grants for each call. A tool that only some sessions see
is looked up for each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolValidationError
from callgate.core.schemas import Checked
from callgate.dispatch.resolve import resolve
from callgate.dispatch.tools.registry import Registered, Registry
from callgate.dispatch.validate import validate


class CallPlan(msgspec.Struct, frozen=True):
    tool: Registered
    validate: Callable[[Any], Checked]
    """The validate stage for this tool."""
    timeout_s: float
    most_s: float
    is_confined: bool
    """Whether the tool has path parameters or a sandbox: input of contain and locate."""

    def time_limit(self, call: ToolCall) -> float:
        """Return the time limit of a call; its own limit cannot exceed the maximum."""
        if call.timeout_s is None:
            return self.timeout_s
        if not call.timeout_s > 0:
            raise ToolValidationError("timeout_s must be positive")
        return min(call.timeout_s, self.most_s)


class Plans:
    """One per dispatcher."""

    def __init__(self, registry: Registry, most_s: float) -> None:
        self._registry = registry
        self._names = registry.names
        self._version = self._names.version
        self._most_s = most_s
        self._plans: dict[str, CallPlan] = {}

    def find(self, call: ToolCall) -> CallPlan:
        """Resolve the tool of a call, and prepare the next stages. Raises `ToolNotFound`."""
        names = self._names
        if self._version != names.version:
            self._plans, self._version = {}, names.version
        if call.tool in self._plans:
            return self._plans[call.tool]
        tool = resolve(call, self._registry)
        plan = _plan(tool, self._most_s)
        # The lookup may have loaded tools: then the plan is stored at the next call.
        if tool.everyone_sees_it and tool.session_id is None and names.version == self._version:
            self._plans[call.tool] = plan
        return plan


def _plan(tool: Registered, most_s: float) -> CallPlan:
    definition = tool.definition
    is_plain = definition.input == "object" and not definition.argument_aliases
    return CallPlan(
        tool,
        tool.schema.check if is_plain else partial(validate, tool=tool),
        min(tool.timeout_s, most_s),
        most_s,
        bool(definition.sandboxed or tool.path_params),
    )
