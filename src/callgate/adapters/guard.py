"""`Guard.call`: one call of a framework's tool through the dispatcher, for every adapter.

    result ok                      -> the function's return value, the same object
    the function raised            -> that exception
    refused, stopped, or a defect  -> `GateError`, which the adapter shows to the model

The function runs at most once, with the arguments that were checked and allowed, and never after
a defect of callgate.

The program declares the effects of its tools:

    effects={"search": "read", "send_mail": "network", "wipe": {"writes-files", "destructive"}}
    effects=lambda name: "read" if name.startswith("get_") else None

An undeclared tool counts as one with every effect: it needs approval, and is never read-only.

The gate's event loop may differ from the caller's, which may have none:

    framework's loop  --work-->  gate's loop  --the tool's function-->  framework's loop
    thread, no loop   --work-->  gate's loop  --the tool's function-->  that thread

A tool's function always runs in the loop or thread that called the adapter. It sees the call's
context variables, so that callgate recognizes an agent inside a tool as nested.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from callgate.core.calls import CallerKind, Handover, ToolCall, ToolResult
from callgate.core.content import Message, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.core.schemas import canonical_json
from callgate.core.stores import StoreError
from callgate.core.tools import ToolDefinition
from callgate.dispatch.foreign_code import is_nested, log_failure
from callgate.gate import Gate
from callgate.sources.foreign import RAISED, ForeignTool, Invocation, Reader, Run

T = TypeVar("T")
SyncRun = Callable[[dict[str, Any]], Any]
_ALIVE_S = 10.0
"""Time without a reaction after which a loop counts as blocked by the waiting caller."""


class LoopBlocked(RuntimeError):
    """The event loop of the gate cannot run while the caller waits for it."""


class _Handover(NamedTuple):
    """A function call for the waiting thread."""

    arguments: dict[str, Any]
    context: contextvars.Context
    result: asyncio.Future[Any]
    """A future of the gate's loop."""


async def in_loop(loop: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, T]) -> T:
    """Await work in a loop; None means the running loop."""
    if loop is None or loop is asyncio.get_running_loop():
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def back_here(run: Run) -> Run:
    """Return a function that another loop can call, and that runs `run` in the present loop."""
    here = asyncio.get_running_loop()

    async def handed_over(arguments: dict[str, Any]) -> Any:
        async def work() -> Any:
            return await run(arguments)

        return await in_loop(here, work())

    return handed_over


def run_blocking(
    loop: asyncio.AbstractEventLoop | None,
    work: Callable[[Run], Coroutine[Any, Any, T]],
    run: SyncRun,
) -> T:
    """Run work in a loop, and wait for it in this thread.

    `work` receives a function that runs `run` in this thread. Raises `LoopBlocked` before anything
    has run.
    """
    target = _usable(loop)
    due: queue.SimpleQueue[_Handover | None] = queue.SimpleQueue()

    async def hand_over(arguments: dict[str, Any]) -> Any:
        handover = _Handover(arguments, contextvars.copy_context(), target.create_future())
        due.put(handover)
        return await handover.result

    waiting = asyncio.run_coroutine_threadsafe(work(hand_over), target)
    waiting.add_done_callback(lambda _: due.put(None))
    try:
        while (handover := due.get()) is not None:
            _perform(handover, run)
    except BaseException:  # Ctrl-C
        waiting.cancel()
        raise
    return waiting.result()


def _perform(handover: _Handover, run: SyncRun) -> None:
    try:
        value = handover.context.run(run, handover.arguments)
    except Exception as error:  # from the tool: the framework receives it
        _end(handover.result, None, error)
    except BaseException as error:
        _end(handover.result, None, RuntimeError(f"interrupted: {type(error).__name__}"))
        raise
    else:
        _end(handover.result, value, None)


def _end(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    """Set the result of a future in another thread's loop, unless the call has ended."""

    def end() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
        future.get_loop().call_soon_threadsafe(end)


def _usable(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the loop if it is running and not blocked by this thread. Raises `LoopBlocked`."""
    if loop is None or loop.is_closed():
        raise LoopBlocked("the gate is not open")
    try:
        if asyncio.get_running_loop() is loop:
            raise LoopBlocked("a blocking call in the event loop of the gate")
    except RuntimeError as error:
        if isinstance(error, LoopBlocked):
            raise
    alive = threading.Event()
    loop.call_soon_threadsafe(alive.set)
    if not alive.wait(_ALIVE_S):
        raise LoopBlocked("the event loop of the gate is blocked")
    return loop


Effect = SideEffects | str | Collection[Capability | str]
Effects = Mapping[str, Effect] | Callable[[str], Effect | None]


class DeclaredEffect(msgspec.Struct, frozen=True):
    """An effect, as a class or as capabilities."""

    side_effects: SideEffects | None = None
    capabilities: frozenset[Capability] = frozenset()


UNKNOWN = DeclaredEffect(SideEffects.EXECUTE)


def read_effect(effect: Effect) -> DeclaredEffect:
    """Read an effect: a class or a set of capabilities. Raises `ValueError`."""
    if isinstance(effect, str):
        return DeclaredEffect(SideEffects.parse(effect))
    if not isinstance(effect, Collection) or not effect:
        raise ValueError(f"an effect must be a class or a set of capabilities, not {effect!r}")
    return DeclaredEffect(capabilities=frozenset(Capability(each) for each in effect))


def effect_reader(
    effects: Effects | None, known: Mapping[str, Effect] = MappingProxyType({})
) -> Callable[[str], DeclaredEffect]:
    """Return a function from a tool's name to its declared effect.

    `known` are the effects of the framework's own tools, which apply without a declaration.
    """
    table = {name: read_effect(effect) for name, effect in known.items()}
    if effects is None or isinstance(effects, Mapping):
        table |= {name: read_effect(effect) for name, effect in (effects or {}).items()}
        return lambda name: table.get(name, UNKNOWN)
    if not callable(effects):
        raise ValueError(f"effects must be a mapping or a function, not {type(effects).__name__}")

    def ask(name: str) -> DeclaredEffect:
        effect = effects(name)
        return table.get(name, UNKNOWN) if effect is None else read_effect(effect)

    return ask


_log = logging.getLogger("callgate.adapters")

NOT_JUDGED = "callgate could not check this call, so it was not run. The log has the reason."
NOT_RECORDED = "The call ran, but its record could not be completed. The log has the reason."
MOST_PROMPTS = 1_024
"""Maximum number of remembered prompts, which are not recorded again."""


class GateError(Exception):
    """The call was refused or stopped, or callgate could not check it.

    The text is safe to show to a model.
    """

    def __init__(self, message: str, result: ToolResult | None = None) -> None:
        super().__init__(message)
        self.result = result
        """The result of the call; None if the call did not reach the dispatcher."""

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
        """Create a guard for the tools of one agent.

        `effects` maps each tool's name to its effect: a class (`"read"`) or a set of capabilities.
        It may also be a function. A tool without an effect needs approval. `paths` names the
        arguments of a tool that are paths in the workspace. `timeout_s` limits each call; None: the
        default of its class. `known` are the effects of the framework's own tools.
        """
        self.gate = gate
        self._effect = effect_reader(effects, known)
        self._paths = {name: tuple(each) for name, each in (paths or {}).items()}
        self._timeout_s = timeout_s
        self._tools = gate.foreign_tools
        self._described: dict[str, tuple[str, Mapping[str, Any] | None]] = {}
        """Description and schema of each registered tool, by name."""
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
        """Run one call. Return or raise the result of `run`, or raise `GateError`.

        `prompts` are the user's words so far, without any other texts. `call_id` is the framework's
        id of the call. `read` extracts the value to record from a result in the framework's own
        type, and returns whether it reports an error.
        """
        here = self.gate.loop in (None, asyncio.get_running_loop())
        if not here:
            run, there = back_here(run), self.gate.loop
            work = self.call(
                name,
                arguments,
                run,
                description=description,
                schema=schema,
                call_id=call_id,
                prompts=prompts,
                read=read,
            )
            return await in_loop(there, work)
        invocation = Invocation(run, read)
        try:
            result = await self._dispatch(
                name, arguments, invocation, description or "", schema, call_id, prompts
            )
        except ToolRegistrationError as error:
            raise GateError(f"The call was not run: {error}.") from None
        except Exception as error:  # a defect of callgate neither runs the tool nor ends the agent
            log_failure(_log, error, "the call of tool %r failed in callgate", name)
            raise GateError(NOT_RECORDED if invocation.started else NOT_JUDGED) from None
        if result.ok or (invocation.returned and not _is_ours(result)):
            return invocation.value
        if invocation.error is not None and result.error and result.error.reason == RAISED:
            raise invocation.error
        raise GateError(result.text, result)

    def call_blocking(
        self,
        name: str,
        arguments: Any,
        run: Callable[[dict[str, Any]], Any],
        *,
        use: str,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        call_id: str | None = None,
        prompts: Iterable[str] = (),
        read: Reader | None = None,
    ) -> Any:
        """Run one call from a thread without an event loop, which also runs `run`.

        `use` names the asynchronous method of the framework, for the error.
        """

        def work(handed_over: Run) -> Coroutine[Any, Any, Any]:
            return self.call(
                name,
                arguments,
                handed_over,
                description=description,
                schema=schema,
                call_id=call_id,
                prompts=prompts,
                read=read,
            )

        return self._blocking(work, run, use)

    def add_prompts_blocking(self, prompts: Iterable[str], *, use: str) -> None:
        """Call `add_prompts` from a thread without an event loop."""
        self._blocking(lambda _: self.add_prompts(prompts), _nothing, use)

    def _blocking(
        self,
        work: Callable[[Run], Coroutine[Any, Any, Any]],
        run: Callable[[dict[str, Any]], Any],
        use: str,
    ) -> Any:
        try:
            return run_blocking(self.gate.loop, work, run)
        except LoopBlocked as error:
            raise GateError(
                f"The call was not run: {error}. Use {use}, or open the gate with `with Gate(...)`."
            ) from None

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
        gate = self.gate
        if prompts:
            await self.add_prompts(prompts)
        known = self._described.get(name)
        if (
            known is None
            or known[1] is not schema
            or known[0] != description
            or self._tools.definition(name, self) is None
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
            handover=Handover(lambda factory: ForeignTool(factory().definition, invocation)),
        )
        # In this task and context: a framework's tools may depend on either.
        return await gate.runtime.calls.run(call)

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
        """Add new prompts of the user to the session's conversation.

        Prompts of an agent inside a tool of this session are skipped: they are a model's words.
        """
        if self.gate.loop not in (None, asyncio.get_running_loop()):
            await in_loop(self.gate.loop, self.add_prompts(prompts))
            return
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
            _log.warning("the user's prompts could not be recorded: %s", error)

    async def _recorded_prompts(self) -> set[str]:
        return {
            block.text
            for message in await self.gate.messages()
            if message.role == "user"
            for block in message.content
            if isinstance(block, TextBlock)
        }


def _nothing(arguments: dict[str, Any]) -> None:
    raise AssertionError("no tool runs here")


def is_unchanged(judged: dict[str, Any], given: Any) -> bool:
    """Return whether the arguments to run equal the framework's arguments."""
    return canonical_json(judged) == canonical_json(given)


def _is_ours(result: ToolResult) -> bool:
    """Return whether callgate made the call fail, and not the function's own result."""
    error = result.error
    return error is None or error.reason != "tool_reported" or result.partial
