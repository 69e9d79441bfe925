"""pydantic-ai: a toolset that calls its tools through a gate, and a capability for an agent.

    agent = Agent(model, tools=[...], capabilities=[GateCapability(gate, effects={...})])
    agent = Agent(model, toolsets=[GuardedToolset(toolset, Guard(gate, {...}))])

The capability is the innermost one, so the gate checks the arguments after all other capabilities
and hooks. A refusal is a failed tool result; invalid arguments cause a retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import to_jsonable_python

from callgate.adapters.guard import Effects, GateError, Guard, in_loop, is_unchanged
from callgate.core.errors import ToolErrorClass
from callgate.core.schemas import canonical_json
from callgate.dispatch.foreign_code import is_nested
from callgate.gate import Gate


@dataclass
class GuardedToolset(WrapperToolset[Any]):
    """The tools of another toolset, each call through a gate."""

    guard: Guard

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        schema = tool.tool_def.parameters_json_schema
        shown = _as_json(tool_args, schema)

        async def run(judged: dict[str, Any]) -> Any:
            edited = tool_args if is_unchanged(judged, shown) else await _valid(judged, ctx, tool)
            return await self.wrapped.call_tool(name, edited, ctx, tool)

        definition = tool.tool_def
        try:
            return await self.guard.call(
                definition.name,
                shown,
                run,
                description=definition.description,
                schema=schema,
                call_id=ctx.tool_call_id,
                # Not the prompts in the messages: a tool's result may become a prompt.
                prompts=_texts(ctx.prompt),
            )
        except GateError as error:
            if error.error_class is ToolErrorClass.VALIDATION_ERROR:
                raise ModelRetry(str(error)) from None
            raise ToolFailed(str(error)) from None


@dataclass(init=False)
class GateCapability(AbstractCapability[Any]):
    """Every tool of an agent behind a gate; each run is a turn of its session."""

    guard: Guard

    def __init__(
        self,
        gate: Gate,
        effects: Effects | None = None,
        *,
        paths: Mapping[str, Iterable[str]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Same parameters as `Guard`."""
        self.guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return GuardedToolset(toolset, self.guard)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        async with self._turn(ctx):
            return await handler()

    def _turn(self, ctx: RunContext[Any]) -> AbstractAsyncContextManager[Any]:
        """Return a turn for the run, unless one is active or a model started the run."""
        gate, session = self.guard.gate, self.guard.gate.session
        if (
            session.turn_id
            or gate.runtime.sessions.turns.running(session.id)
            or is_nested(session.id)
        ):
            return nullcontext()
        return _in_gate_loop(gate, gate.turn("\n".join(_texts(ctx.prompt)) or "(no prompt)"))


@asynccontextmanager
async def _in_gate_loop(gate: Gate, turn: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """Begin and end a turn in the gate's loop, because `run_sync` uses another loop."""
    await in_loop(gate.loop, _enter_turn(turn))
    try:
        yield
    except BaseException as error:
        await in_loop(gate.loop, _exit_turn(turn, error))
        raise
    await in_loop(gate.loop, _exit_turn(turn, None))


async def _enter_turn(turn: AbstractAsyncContextManager[Any]) -> None:
    await turn.__aenter__()


async def _exit_turn(turn: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
    """End a turn. The caller raises the error itself."""
    kind = None if error is None else type(error)
    try:
        await turn.__aexit__(kind, error, None)
    except BaseException as raised:
        if raised is not error:
            raise


def _as_json(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON for the approver: validated ones may be any Python values.

    If a function's only parameter is a model, they are the fields of that model, as in the schema.
    """
    try:
        shown: dict[str, Any] = to_jsonable_python(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"The call was not run: its arguments are not JSON ({error}).") from None
    if len(shown) == 1:
        ((name, fields),) = shown.items()
        if name not in schema.get("properties", {}) and isinstance(fields, dict):
            return fields
    return shown


async def _valid(
    judged: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
) -> dict[str, Any]:
    """Validate the edited arguments with the tool's own validators."""
    try:
        arguments: dict[str, Any] = tool.args_validator.validate_json(
            canonical_json(judged), context=ctx.validation_context
        )
    except ValidationError as error:
        raise ToolFailed(f"The edited arguments are invalid: {error}") from None
    if tool.args_validator_func is not None:
        checked = tool.args_validator_func(ctx, **arguments)
        if hasattr(checked, "__await__"):
            await checked
    return arguments


def _texts(prompt: Any) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    return [each for each in prompt or () if isinstance(each, str)]
