"""Tools that somebody else runs: an agent framework brings the function of each call along.

    framework -> adapter -> dispatcher (policy, question, record) -> ForeignTool -> Invocation.run

The registry knows the definition. The function to run belongs to one call, because a framework
binds it to its own context, and so does what it returned: that goes back to the framework as it
is, and only its text is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from callgate.core.content import TextBlock
from callgate.core.errors import ToolExecutionError, ToolRegistrationError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.tools.sources import Source, SourceTool
from callgate.sources.outputs import as_output

Run = Callable[[dict[str, Any]], Awaitable[Any]]
Reader = Callable[[Any], tuple[Any, bool]]
"""Of a result in the framework's own wrapping: what to record of it, and whether it reports an
error."""

RAISED = "raised"
"""The reason of a failure whose exception goes back to the framework."""


class Invocation:
    """One call that a framework makes: what to run, and what came of it."""

    __slots__ = ("error", "read", "returned", "run", "value")

    def __init__(self, run: Run, read: Reader | None = None) -> None:
        self.run = run
        self.read = read
        self.returned = False
        self.value: Any = None
        self.error: Exception | None = None


class ForeignTool:
    """One execution of a tool whose function came with the call."""

    stoppable = False
    """Its coroutine is cancelled; what runs behind that, such as a thread, nobody knows."""

    def __init__(self, tools: ForeignTools, definition: ToolDefinition) -> None:
        self._tools = tools
        self._definition = definition

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        invocation = self._tools.invocations.pop(context.tool_use_id, None)
        if invocation is None:
            raise ToolExecutionError(
                f"Tool {self._definition.name!r} runs only when its framework calls it.",
                reason="not_by_its_framework",
            )
        try:
            value = invocation.value = await invocation.run(input)
        except Exception as error:  # of a framework's tool, which gets it back
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
    tools: ForeignTools
    definition: ToolDefinition
    owner: object

    def __call__(self) -> ForeignTool:
        return ForeignTool(self.tools, self.definition)


class ForeignTools(Source):
    """The tools that frameworks have brought to one gate, and their calls under way."""

    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[str, SourceTool] = {}
        self._factories: dict[str, _ForeignFactory] = {}
        self.invocations: dict[str, Invocation] = {}
        """By the id of the call: those whose function has not been started."""

    def tools(self) -> Sequence[SourceTool]:
        return tuple(self._tools.values())

    def definition(self, name: str, owner: object) -> ToolDefinition | None:
        """As its owner has registered it."""
        factory = self._factories.get(name)
        return None if factory is None or factory.owner is not owner else factory.definition

    def register(self, definition: ToolDefinition, owner: object) -> None:
        """Register a tool, or its new definition. `ToolRegistrationError` where it is wrong, or
        where another owner has another tool of that name: an answer for one would count for both.
        """
        name = definition.name
        known = self._factories.get(name)
        if known is not None and known.definition != definition and known.owner is not owner:
            raise ToolRegistrationError(
                f"tool name {name!r} is taken: another agent on this gate has a different tool of "
                "that name; give it a gate of its own, or another name"
            )
        if known is not None and known.definition == definition:
            self._factories[name] = msgspec.structs.replace(known, owner=owner)
            return
        before = self._tools.get(name)
        factory = _ForeignFactory(self, definition, owner)
        # Not listed: whoever else is told of it could not run it.
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
    """What is recorded of a result. It never fails: the framework has the value itself."""
    if type(value) is str and value.isascii():
        return ToolOutput(content=[TextBlock(value)])
    try:
        output = as_output(value)
    except Exception:  # of a value that is anything, and whose own code turns it into text
        output = ToolOutput(content=[TextBlock(_described(value))])
    return output


def _described(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # its own code
        return f"<{type(value).__name__}>"
