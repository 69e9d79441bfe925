"""Tools of agent frameworks: each call brings the function that runs it.

    framework -> adapter -> dispatcher (policy, question, record) -> ForeignTool -> Invocation.run

The registry has the definition. The function belongs to one call, because a framework binds it to
its own context. The framework gets the function's return value unchanged; only its text is
recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from callgate.core.content import TextBlock
from callgate.core.errors import ToolExecutionError, ToolRegistrationError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.tools.sources import Source, SourceTool
from callgate.sources.signatures import as_output

Run = Callable[[dict[str, Any]], Awaitable[Any]]
Reader = Callable[[Any], tuple[Any, bool]]
"""Unwraps a framework's result. Returns the value to record, and whether it reports an error."""

RAISED = "raised"
"""The reason of a failure whose exception the framework receives."""


class Invocation:
    """One call by a framework: its function and its outcome."""

    __slots__ = ("error", "read", "returned", "run", "started", "value")

    def __init__(self, run: Run, read: Reader | None = None) -> None:
        self.run = run
        self.read = read
        self.started = False
        self.returned = False
        self.value: Any = None
        self.error: Exception | None = None


class ForeignTool:
    """One execution of a tool whose function came with the call."""

    stoppable = False
    """A cancellation reaches its coroutine, but not a thread or other work behind that."""

    def __init__(self, definition: ToolDefinition, invocation: Invocation | None = None) -> None:
        self._definition = definition
        self._invocation = invocation

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        invocation = self._invocation
        if invocation is None:
            raise ToolExecutionError(
                f"Tool {self._definition.name!r} runs only when its framework calls it.",
                reason="not_by_its_framework",
            )
        invocation.started = True
        try:
            value = invocation.value = await invocation.run(input)
        except Exception as error:  # of the framework's tool: the framework receives it
            invocation.error = error
            raise ToolExecutionError(
                f"The tool raised {type(error).__name__}.", reason=RAISED
            ) from None
        invocation.returned = True
        if invocation.read is None:
            return recorded_output(value)
        content, is_failure = invocation.read(value)
        output = recorded_output(content)
        output.success = not is_failure
        return output

    async def cancel(self) -> bool:
        return False  # the task in which it waits is cancelled


class _ForeignFactory(msgspec.Struct, frozen=True, eq=False):
    definition: ToolDefinition
    owner: object

    def __call__(self) -> ForeignTool:
        return ForeignTool(self.definition)


class ForeignTools(Source):
    """The tools that frameworks registered with one gate."""

    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[str, SourceTool] = {}
        self._factories: dict[str, _ForeignFactory] = {}

    def tools(self) -> Sequence[SourceTool]:
        return tuple(self._tools.values())

    def definition(self, name: str, owner: object) -> ToolDefinition | None:
        """Return the definition that an owner registered."""
        factory = self._factories.get(name)
        return None if factory is None or factory.owner is not owner else factory.definition

    def register(self, definition: ToolDefinition, owner: object) -> None:
        """Register a tool, or its new definition.

        Raises `ToolRegistrationError` if the definition is wrong, or if another owner has a
        different tool of that name: an answer for one would count for both.
        """
        name = definition.name
        known = self._factories.get(name)
        if known is not None and known.definition != definition and known.owner is not owner:
            raise ToolRegistrationError(
                f"tool name {name!r} is taken: another agent on this gate has a different tool "
                "with that name. Use a separate gate, or another name"
            )
        if known is not None and known.definition == definition:
            self._factories[name] = msgspec.structs.replace(known, owner=owner)
            return
        before = self._tools.get(name)
        factory = _ForeignFactory(definition, owner)
        # Not listed: no other client could run it.
        self._tools[name] = SourceTool(factory=factory, listed=False)
        self._factories[name] = factory
        try:
            self.changed()
        except ToolRegistrationError:
            del self._tools[name], self._factories[name]
            if before is not None and known is not None:
                self._tools[name], self._factories[name] = before, known
            self.changed()
            raise


def recorded_output(value: Any) -> ToolOutput:
    """Return the recorded form of a result. Never fails, because the framework has the value."""
    if type(value) is str and value.isascii():
        return ToolOutput(content=[TextBlock(value)])
    try:
        output = as_output(value)
    except Exception:  # any value, converted to text by its own code
        output = ToolOutput(content=[TextBlock(_described(value))])
    return output


def _described(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # its own code
        return f"<{type(value).__name__}>"
