"""Lifecycle of a host or MCP server: lazy start, restart after a crash, quarantine.

    resting --call--> starting --> running --crash--> waiting (0.1 s, doubling to 30, jitter)
                      |           |                  |  5 crashes in a minute
                      |           | forbidden        |
                      |           | change           |
                      +-- failed: +------------------+--> quarantined, until restart
                          the same

A write attempt during read-only calls ends the use of the process. The sandbox refuses the attempt
and reports it (`core.commands.WatchesWrites`) before callgate reads
later output of the process. If several calls are running, the source of the attempt is unknown, so
all of them receive the report.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from callgate.core.commands import Exit
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolHostUnavailable, ToolPermissionDenied
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.tools import ToolContext, ToolDefinition
from callgate.dispatch.call_records import MISMATCH
from callgate.sources.logs import PROBLEM, QUARANTINED, RESTARTED, STARTING, LifeLog

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
MOST = 5
WITHIN_S = 60.0


class Crashes:
    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)
        self._not_before = 0.0
        self.problem: str | None = None
        """The last problem."""
        self.quarantined = False

    @property
    def delay_s(self) -> float:
        """Remaining time before the next start."""
        return max(self._not_before - time.monotonic(), 0.0)

    def give_up(self, problem: str) -> None:
        self.problem = problem
        self.quarantined = True

    def add(self, problem: str) -> None:
        now = time.monotonic()
        self.problem = problem
        self._times.append(now)
        recent = sum(now - at < WITHIN_S for at in self._times)
        if recent >= MOST:
            self.give_up(f"{problem}, for the {MOST}th time within {WITHIN_S:.0f} s")
            return
        delay = min(FIRST_DELAY_S * 2 ** (recent - 1), LONGEST_DELAY_S)
        self._not_before = now + delay * random.uniform(0.8, 1.2)  # noqa: S311


T = TypeVar("T")
PATIENCE_S = 2.0
"""Maximum wait of a call for a restart; after it, the call is refused."""


class Health(StrEnum):
    RESTING = "resting"
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    QUARANTINED = "quarantined"


class Kind(NamedTuple):
    noun: str
    """Name of the kind in messages."""
    reason: str
    """The prefix of the reasons of its errors."""
    detail: str
    """The key of its name in the details of its errors."""


class Lifecycle:
    def __init__(
        self,
        kind: Kind,
        name: str,
        log: LifeLog,
        *,
        until: str,
        covered: Callable[[str], str] = str,
    ) -> None:
        """`until`: the action that ends a quarantine, for messages. `covered` removes the
        provider's secrets from a text."""
        self._kind = kind
        self._name = name
        self._log = log
        self._until = until
        self._covered = covered
        self._crashes = Crashes()

    def health(self, *, starting: bool, running: bool) -> Health:
        if self._crashes.quarantined:
            return Health.QUARANTINED
        if starting:
            return Health.STARTING
        if running:
            return Health.RUNNING
        return Health.WAITING if self._crashes.delay_s else Health.RESTING

    @property
    def problem(self) -> str | None:
        """The reason for which it does not run; None if it is healthy."""
        problem = self._crashes.problem
        if not self._crashes.quarantined:
            return problem
        return f"{problem}; it is not started again before {self._until}"

    # --- starting -----------------------------------------------------------------------------

    def delay_s(self) -> float:
        """The backoff before a start. Raises `ToolHostUnavailable` if no call waits that long."""
        if self._crashes.quarantined:
            raise self._unavailable(str(self.problem), "quarantined")
        delay = self._crashes.delay_s
        if delay > PATIENCE_S:
            problem = f"{self.problem}; it is started again in {delay:.0f} s"
            raise self._unavailable(problem, "waiting")
        return delay

    def starts(self, command: tuple[str, ...]) -> None:
        self._log.note(f"{STARTING}{' '.join(command)}")

    async def started(self, starting: asyncio.Task[T]) -> T:
        """Return the result of a start, which continues if the waiting caller is cancelled."""
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not starting.cancelled() or (task is not None and task.cancelling()):
                raise  # the cancellation is for this caller
            problem = "it was closed, or restarted, while it was started"
            raise self._unavailable(problem, "not_started") from None

    def restarts(self) -> None:
        """Handle a requested restart: forget the crashes."""
        self._log.note(RESTARTED)
        self._crashes = Crashes()

    # --- dying --------------------------------------------------------------------------------

    def failed(
        self, problem: str, remarks: str = "", *, reason: str | None = None
    ) -> ToolHostUnavailable:
        """Return the error of a failed start. `remarks`: lines below the problem, such as refused
        writes. `reason` replaces the default reason of the error."""
        problem = self._covered(problem)
        self.crashed(problem)
        return self._unavailable(problem, "not_started", remarks, reason)

    def crashed(self, problem: str) -> None:
        self._crashes.add(problem)
        self._log.note(PROBLEM + problem)
        if self._crashes.quarantined:
            self._log.note(QUARANTINED)

    def distrusted(self, problem: str) -> str:
        """Quarantine it after a forbidden action. Returns the action that ends the quarantine."""
        self._crashes.give_up(problem)
        self._log.note(PROBLEM + problem)
        self._log.note(QUARANTINED)
        return self._until

    def died(self, exit: Exit | None, remarks: str = "") -> ToolHostUnavailable:
        """Return the error of a call during which the process ended."""
        tail = self._covered(self._log.tail)
        shown = "".join(f"\n{each}" for each in (tail, remarks) if each)
        return ToolHostUnavailable(
            f"{self._kind.noun} {self._name!r} {ended(exit)} before it answered.{shown}",
            reason=f"{self._kind.reason}_died",
            details={
                self._kind.detail: self._name,
                "exit_code": None if exit is None else exit.code,
                "signal": None if exit is None else exit.signal,
                "stderr": tail,
            },
        )

    def _unavailable(
        self, problem: str, state: str, remarks: str = "", reason: str | None = None
    ) -> ToolHostUnavailable:
        lines = f" {' '.join(remarks.split())}" if remarks else ""
        plain = problem.removesuffix(".")
        return ToolHostUnavailable(
            f"{self._kind.noun} {self._name!r} is not available: {plain}.{lines}",
            reason=reason or f"{self._kind.reason}_{state}",
            details={self._kind.detail: self._name, "stderr": self._covered(self._log.tail)},
        )


def ended(exit: Exit | None) -> str:
    """Return the manner of an exit, as a predicate for its name."""
    if exit is None:
        return "went away"
    if exit.limit is not None:
        return f"was ended: more than `{exit.limit}` of `[sandbox.limits]` allows"
    if exit.signal is not None:
        return f"was ended by signal {exit.signal}"
    return "ended" if exit.code is None else f"exited with {exit.code}"


class Watchable(Protocol):
    def watch_writes(self, report: Callable[[str], None]) -> None: ...


_NOT_SERVED = nullcontext()


class _ServedCall:
    """A context manager around the work of a read-only call."""

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
        """The write attempt during the call, if there was one."""

    def __enter__(self) -> None:
        self._calls.begin(self, self._process)

    def __exit__(self, *exc: object) -> None:
        self._calls.end(self)


class ReadOnlyCalls:
    """The read-only calls of one process."""

    def __init__(self, distrust: Callable[[str], str]) -> None:
        """`distrust` gives the process up for a reason, and returns the action that restores it."""
        self._distrust = distrust
        self._served: list[_ServedCall] = []
        self._last = ""

    def serving(
        self, process: Watchable, definition: ToolDefinition, context: ToolContext
    ) -> AbstractContextManager[None]:
        """Return a context manager around a call of a tool that declares no writes. A tool that
        declares them may attempt one even if the mode of its session forbids it."""
        if context.may_write or definition.effect.has_effects:
            return _NOT_SERVED
        return _ServedCall(self, process, definition.name, definition.effect, context)

    @contextmanager
    def previewing(self, process: Watchable, definition: ToolDefinition) -> Iterator[None]:
        """Watch a preview. Raises `ToolPermissionDenied` at the end if it tried to write."""
        preview = f"the preview of {definition.name}"
        served = _ServedCall(self, process, preview, definition.effect)
        with served:
            yield
        if served.attempt is not None:
            raise ToolPermissionDenied(
                f"The preview of {definition.name} tried to write before the call was approved; "
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
        """Report a write attempt of the running calls, or of a process that one left behind."""
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
