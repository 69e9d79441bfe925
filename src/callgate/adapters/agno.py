"""Agno: tool hooks that call through a gate.

    agent = Agent(model=..., tools=[...], tool_hooks=gate_hooks(gate, effects={...}))

Agno runs a function with the arguments of its own call, not with those that a hook passes on:
what a person edits is written into that call in place. So these hooks have to be the first: behind
another one they are shown arguments that are not those that run, and refuse. They work with `arun`;
a synchronous `run` is refused. A refusal is an error of the tool.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from agno.tools import Function, Toolkit

from callgate.adapters.effects import Effects
from callgate.adapters.guard import GateError, Guard
from callgate.gate import Gate

Hook = Callable[..., Any]

NOT_FIRST = (
    "The call was not run: the hooks of callgate have to be the first of `tool_hooks`, because "
    "Agno does not run the arguments that an earlier hook passes on."
)
NOT_ASYNC = "The call was not run: a gate is asynchronous; run the agent with `arun`."
NOTHING_TO_EDIT = (
    "The call was not run: it had no arguments, and Agno takes none that are added to such a call."
)


def gate_hooks(
    gate: Gate,
    effects: Effects | None = None,
    *,
    paths: Mapping[str, Iterable[str]] | None = None,
    timeout_s: float | None = None,
) -> list[Hook]:
    """What to put first into `tool_hooks` of an agent or a team. It takes what `Guard` takes."""
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
        if not _is_first((callgate_hook, refuse_sync), team if agent is None else agent):
            raise GateError(NOT_FIRST)
        given = dict(arguments)

        async def run(judged: dict[str, Any]) -> Any:
            if not given and judged:
                raise GateError(NOTHING_TO_EDIT)
            arguments.clear()
            arguments.update(judged)
            return await function_call(**arguments)

        if function_name not in described:
            tools = (*_list(agent, "tools"), *_list(team, "tools"), *_list(run_context, "tools"))
            described[function_name] = _described(function_name, tools)
        description, schema = described[function_name]
        return await guard.call(
            function_name,
            given,
            run,
            description=description,
            schema=schema,
            prompts=_prompts(team if agent is None else agent, run_context),
        )

    # Agno asks for it ten times a call, and working it out takes longer than our own call.
    callgate_hook.__signature__ = inspect.signature(callgate_hook)  # type: ignore[attr-defined]
    return [callgate_hook, refuse_sync]


def refuse_sync(function_call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Refuse in a synchronous run, which leaves out every hook that is `async def`: it would run
    the tool without ours."""
    if not inspect.iscoroutinefunction(function_call):
        raise GateError(NOT_ASYNC)
    return function_call(**arguments)


refuse_sync.__signature__ = inspect.signature(refuse_sync)  # type: ignore[attr-defined]


def _is_first(ours: tuple[Hook, ...], owner: Any) -> bool:
    hooks = getattr(owner, "tool_hooks", None) or ()
    return len(hooks) >= len(ours) and all(a is b for a, b in zip(ours, hooks, strict=False))


def _list(owner: Any, name: str) -> Iterable[Any]:
    found = getattr(owner, name, None)
    return found if isinstance(found, list | tuple) else ()


def _described(name: str, tools: Iterable[Any]) -> tuple[str | None, Any]:
    """What Agno tells a model of a tool, where it can be found. Without a schema Agno alone
    checks the arguments."""
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
"""By which Agno puts other texts into the user's message."""


def _prompts(owner: Any, run_context: Any) -> list[str]:
    """What this run was begun with, where it stands in its message by itself."""
    if any(getattr(owner, each, False) for each in _ADDED):
        return []
    for each in getattr(run_context, "messages", None) or ():
        if each.role == "user" and not each.from_history:
            return [each.content] if isinstance(each.content, str) else []
    return []
