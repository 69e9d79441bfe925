"""Calls that a process serves which may not write: an attempt to is told of, and it is given up.

The sandbox refuses the attempt and says so (`core.commands.WatchesWrites`), before we hear anything
that the process says afterwards. Of several calls under way nobody can tell which one it was: all
of them are told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.tools import ToolContext, ToolDefinition
from callgate.dispatch.call_records import MISMATCH


class Watchable(Protocol):
    def watch_writes(self, report: Callable[[str], None]) -> None: ...


_NOT_SERVED = nullcontext()


class _ServedCall:
    """In its `with` while it is under way."""

    __slots__ = ("_calls", "_process", "attempt", "context", "declared", "tool")

    def __init__(
        self,
        calls: ReadOnlyCalls,
        process: Watchable,
        tool: str,
        declared: SideEffects,
        context: ToolContext | None = None,
    ) -> None:
        self._calls = calls
        self._process = process
        self.tool = tool
        self.declared = declared
        self.context = context
        self.attempt: dict[str, Any] | None = None
        """What was tried while it was under way."""

    def __enter__(self) -> None:
        self._calls.begin(self, self._process)

    def __exit__(self, *exc: object) -> None:
        self._calls.end(self)


class ReadOnlyCalls:
    """Those of one process."""

    def __init__(self, distrust: Callable[[str], str]) -> None:
        """`distrust` gives the process up for a reason, and says until when."""
        self._distrust = distrust
        self._served: list[_ServedCall] = []
        self._last = ""

    def serving(
        self, process: Watchable, definition: ToolDefinition, context: ToolContext
    ) -> AbstractContextManager[None]:
        """A call of a tool that declares to change nothing. Of one that does not, and is only
        kept from it by the mode of its session, no attempt is held against it."""
        if context.may_write or definition.effect.has_effects:
            return _NOT_SERVED
        return _ServedCall(self, process, definition.name, definition.effect, context)

    @contextmanager
    def previewing(self, process: Watchable, definition: ToolDefinition) -> Iterator[None]:
        """Raises `ToolPermissionDenied` at the end, if it tried."""
        preview = f"the preview of {definition.name}"
        served = _ServedCall(self, process, preview, definition.effect)
        with served:
            yield
        if served.attempt is not None:
            raise ToolPermissionDenied(
                f"The preview of {definition.name} tried to write before anybody had said yes; "
                f"it is not used again before {served.attempt['quarantined_until']}.",
                reason=MISMATCH,
                details=served.attempt,
            )

    def begin(self, served: _ServedCall, process: Watchable) -> None:
        self._served.append(served)
        self._last = served.tool
        process.watch_writes(self._attempted)

    def end(self, served: _ServedCall) -> None:
        self._served.remove(served)

    def _attempted(self, path: str) -> None:
        """Something that was served tried to write: what is under way, or has left a process."""
        tools = dict.fromkeys(each.tool for each in self._served) or [self._last]
        problem = f"{' or '.join(tools)} may change nothing, and tried to write {path!r}"
        until = self._distrust(problem)
        for each in self._served:
            each.attempt = {
                "declared": each.declared,
                "tried": "write",
                "path": path,
                "quarantined_until": until,
            }
            if each.context is not None:
                each.context.publish(EFFECT_MISMATCH, each.attempt)
