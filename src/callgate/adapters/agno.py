"""Agno: tool hooks that call through a gate.

    agent = Agent(model=..., tools=[...], tool_hooks=gate_hooks(gate, effects={...}))

Agno runs a function with its original call object and ignores arguments from hooks. Edited
arguments are therefore written into that object. These hooks must be the first ones: after another
hook, the gate could check arguments that Agno does not run, so the call is refused.

A synchronous `run` needs a gate from `with Gate(...)`, or a thread outside the gate's event loop.
Otherwise each call fails with an error that names `arun`. A refusal is an error of the tool.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from agno.tools import Function, Toolkit

from callgate.adapters.guard import Effects, GateError, Guard
from callgate.gate import Gate

Hook = Callable[..., Any]

NOT_FIRST = (
    "The call was not run: callgate's hooks must be the first in `tool_hooks`, because Agno does "
    "not run the arguments that an earlier hook passes on."
)
NOTHING_TO_EDIT = (
    "The call was not run: it had no arguments, and Agno does not support added arguments."
)


def gate_hooks(
    gate: Gate,
    effects: Effects | None = None,
    *,
    paths: Mapping[str, Iterable[str]] | None = None,
    timeout_s: float | None = None,
) -> list[Hook]:
    """Return the first hooks for `tool_hooks` of an agent or a team.

    It has the same parameters as `Guard`.
    """
    guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)
    described: dict[str, tuple[str | None, Any]] = {}

    async def callgate_hook(
        function_name: str,
        function_call: Callable[..., Awaitable[Any]],
        arguments: dict[str, Any],
        agent: Any = None,
        team: Any = None,
        run_context: Any = None,
    ) -> Any:
        given = dict(arguments)

        async def run(judged: dict[str, Any]) -> Any:
            return await function_call(**_edited(arguments, given, judged))

        about = describe(function_name, agent, team, run_context)
        return await guard.call(function_name, given, run, **about)

    def callgate_blocking_hook(
        function_name: str,
        function_call: Callable[..., Any],
        arguments: dict[str, Any],
        agent: Any = None,
        team: Any = None,
        run_context: Any = None,
    ) -> Any:
        """The hook for a synchronous run, which skips asynchronous hooks."""
        if inspect.iscoroutinefunction(function_call):
            return function_call(**arguments)
        given = dict(arguments)

        def run(judged: dict[str, Any]) -> Any:
            return function_call(**_edited(arguments, given, judged))

        about = describe(function_name, agent, team, run_context)
        return guard.call_blocking(function_name, given, run, use="`arun`", **about)

    def describe(name: str, agent: Any, team: Any, run_context: Any) -> dict[str, Any]:
        owner = team if agent is None else agent
        if not _is_first((callgate_hook, callgate_blocking_hook), owner):
            raise GateError(NOT_FIRST)
        if name not in described:
            tools = (*_list(agent, "tools"), *_list(team, "tools"), *_list(run_context, "tools"))
            described[name] = _described(name, tools)
        description, schema = described[name]
        prompts = _prompts(owner, run_context)
        return {"description": description, "schema": schema, "prompts": prompts}

    hooks: list[Hook] = [callgate_hook, callgate_blocking_hook]
    for hook in hooks:
        # Agno reads it ten times a call, and computing it takes longer than callgate's own call.
        hook.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
    return hooks


def _edited(
    arguments: dict[str, Any], given: dict[str, Any], judged: dict[str, Any]
) -> dict[str, Any]:
    """Replace the arguments of Agno's own call, in place, with the checked ones."""
    if not given and judged:
        raise GateError(NOTHING_TO_EDIT)
    arguments.clear()
    arguments.update(judged)
    return arguments


def _is_first(ours: tuple[Hook, ...], owner: Any) -> bool:
    hooks = getattr(owner, "tool_hooks", None) or ()
    return len(hooks) >= len(ours) and all(a is b for a, b in zip(ours, hooks, strict=False))


def _list(owner: Any, name: str) -> Iterable[Any]:
    found = getattr(owner, name, None)
    return found if isinstance(found, list | tuple) else ()


def _described(name: str, tools: Iterable[Any]) -> tuple[str | None, Any]:
    """Return the description and the schema of a tool, if it is found.

    If there is no schema, only Agno validates the arguments.
    """
    for tool in tools:
        function = _function(name, tool)
        if function is not None:
            schema = function.parameters
            return function.description, schema if (schema or {}).get("properties") else None
    return None, None


def _function(name: str, tool: Any) -> Function | None:
    if isinstance(tool, Toolkit):
        tool = tool.functions.get(name) or tool.async_functions.get(name)
    if isinstance(tool, Function):
        return tool if tool.name == name else None
    if callable(tool) and getattr(tool, "__name__", None) == name:
        return Function.from_callable(tool)
    return None


_ADDED = ("add_knowledge_to_context", "add_dependencies_to_context", "add_session_state_to_context")
"""Settings that make Agno add other texts to the user's message."""


def _prompts(owner: Any, run_context: Any) -> list[str]:
    """Return the user's prompt of this run, unless Agno adds other texts to its message."""
    if any(getattr(owner, each, False) for each in _ADDED):
        return []
    for each in getattr(run_context, "messages", None) or ():
        if each.role == "user" and not each.from_history:
            return [each.content] if isinstance(each.content, str) else []
    return []
