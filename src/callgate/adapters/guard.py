"""`Guard.call`: one call of a framework's tool through the dispatcher, for every adapter.

    result ok                      -> what the function returned, the same object
    the function raised            -> that exception
    refused, stopped, or our defect -> `GateError`, which the adapter shows to the model

The function runs at most once, with the arguments that were judged and allowed, and never where
something of ours fails first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from callgate.adapters.effects import Effect, Effects, effect_reader
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.core.json_schema.schemas import canonical_json
from callgate.core.messages import Message
from callgate.core.results import ToolResult
from callgate.core.stores import StoreError
from callgate.core.tools import ToolDefinition
from callgate.dispatch.failures import log_failure
from callgate.dispatch.raw_open import is_nested
from callgate.gate import Gate
from callgate.sources.foreign import RAISED, Invocation, Reader, Run

_log = logging.getLogger("callgate.adapters")

NOT_JUDGED = "The call was not run: callgate could not judge it. The log of the program says why."
MOST_PROMPTS = 1_024
"""Prompts that are remembered as recorded, so that none is recorded twice."""


class GateError(Exception):
    """A call that was refused, was stopped, or that we failed to judge. Its text is safe to show
    to a model."""

    def __init__(self, message: str, result: ToolResult | None = None) -> None:
        super().__init__(message)
        self.result = result
        """None: it never got to the dispatcher."""

    @property
    def error_class(self) -> ToolErrorClass:
        if self.result is None or self.result.error is None:
            return ToolErrorClass.EXECUTION_ERROR
        return self.result.error.error_class


class Guard:
    """The tools of one agent, behind a gate."""

    def __init__(
        self,
        gate: Gate,
        effects: Effects | None = None,
        *,
        paths: Mapping[str, Iterable[str]] | None = None,
        timeout_s: float | None = None,
        known: Mapping[str, Effect] = MappingProxyType({}),
    ) -> None:
        """`effects` says what each tool can do, by name: a class (`"read"`), a set of
        capabilities, or a function that returns one; None, and a tool that is not in it, asks.
        `paths` names the arguments of a tool that are paths in the workspace. `timeout_s` limits
        each call; None means the default of its class. `known` are the effects of tools that the
        framework itself has."""
        self.gate = gate
        self._effect = effect_reader(effects, known)
        self._paths = {name: tuple(each) for name, each in (paths or {}).items()}
        self._timeout_s = timeout_s
        self._tools = gate.foreign_tools
        self._described: dict[str, tuple[str, Mapping[str, Any] | None]] = {}
        """What the framework said of each tool when it was registered."""
        self._prompts: dict[str, None] = {}

    async def call(
        self,
        name: str,
        arguments: Any,
        run: Run,
        *,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        call_id: str | None = None,
        prompts: Iterable[str] = (),
        read: Reader | None = None,
    ) -> Any:
        """Run one call: returns what `run` returned, raises what it raised, or a `GateError`.

        `prompts` are what the user has said so far, and nobody else; `call_id` is the framework's
        id of the call; `read` says what to record of a result in a wrapping of the framework's
        own, and whether it reports an error."""
        invocation = Invocation(run, read)
        try:
            result = await self._dispatch(
                name, arguments, invocation, description or "", schema, call_id, prompts
            )
        except ToolRegistrationError as error:
            raise GateError(f"The call was not run: {error}.") from None
        except Exception as error:  # a defect of ours runs nothing, and ends no agent
            log_failure(_log, error, "the call of tool %r was not judged", name)
            raise GateError(NOT_JUDGED) from None
        if result.ok or (invocation.returned and not _is_ours(result)):
            return invocation.value
        if invocation.error is not None and result.error and result.error.reason == RAISED:
            raise invocation.error
        raise GateError(result.text, result)

    async def _dispatch(
        self,
        name: str,
        arguments: Any,
        invocation: Invocation,
        description: str,
        schema: Mapping[str, Any] | None,
        call_id: str | None,
        prompts: Iterable[str],
    ) -> ToolResult:
        gate, tools = self.gate, self._tools
        if prompts:
            await self.add_prompts(prompts)
        known = self._described.get(name)
        if (
            known is None
            or known[1] is not schema
            or known[0] != description
            or tools.definition(name, self) is None
        ):
            self._register(name, description, schema)
        session = gate.session
        call = ToolCall(
            tool=name,
            arguments=arguments,
            session=session,
            caller=CallerKind.LIBRARY,
            turn_id=session.turn_id,
            external_id=call_id,
            timeout_s=self._timeout_s,
        )
        tools.invocations[call.id] = invocation
        try:
            # In this task and context: a framework may rely on either inside of its tools.
            return await gate.runtime.call(call)
        finally:
            tools.invocations.pop(call.id, None)

    def _register(self, name: str, description: str, schema: Mapping[str, Any] | None) -> None:
        declared, paths = self._effect(name), self._paths.get(name, ())
        if schema is None and paths:  # a path has to be a property of the schema
            named: dict[str, Any] = {path: {} for path in paths}
            schema_used: dict[str, Any] = {"properties": named, "additionalProperties": True}
        else:
            schema_used = dict(schema or {})
        definition = ToolDefinition(
            name=name,
            description=description,
            input_schema={"type": "object", **schema_used},
            side_effects=declared.side_effects,
            capabilities=declared.capabilities,
            path_params=paths,
            source="framework",
        )
        self._tools.register(definition, self)
        self._described[name] = (description, schema)

    async def add_prompts(self, prompts: Iterable[str]) -> None:
        """Add what the user said to the session's conversation, where it is not in it yet.

        An agent that works inside of a tool of this session was prompted by a model: its prompts
        are not the user's words."""
        if is_nested(self.gate.session.id):
            return
        new = dict.fromkeys(each for each in prompts if each and each not in self._prompts)
        if not new:
            return
        self._prompts.update(new)
        while len(self._prompts) > MOST_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        try:
            recorded = await self._recorded_prompts()
            for prompt in new:
                if prompt not in recorded:
                    await self.gate.say(Message.text("user", prompt))
        except StoreError as error:  # a call without effects needs no store
            _log.warning("what the user said could not be recorded: %s", error)

    async def _recorded_prompts(self) -> set[str]:
        return {
            block.text
            for message in await self.gate.messages()
            if message.role == "user"
            for block in message.content
            if isinstance(block, TextBlock)
        }


def is_unchanged(judged: dict[str, Any], given: Any) -> bool:
    """Whether the arguments to run are those that the framework gave, byte by byte."""
    return canonical_json(judged) == canonical_json(given)


def _is_ours(result: ToolResult) -> bool:
    """Whether a call failed for another reason than what its function returned."""
    error = result.error
    return error is None or error.reason != "tool_reported" or result.partial
