"""The lifecycle of what runs beside us, a host or an MCP server: started when it is first needed,
started again when it died, given up when it keeps dying.

    resting --call--> starting --> running --crash--> waiting (0.1 s, doubling to 30)
                          |           |                  |  5 crashes in a minute
                          |           | did more         |
                          |           | than it may      |
                          +-- failed: +------------------+--> quarantined, until restart
                              the same
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from callgate.core.commands import Exit
from callgate.core.errors import ToolHostUnavailable
from callgate.sources.crashes import Crashes
from callgate.sources.logs import PROBLEM, QUARANTINED, RESTARTED, STARTING, LifeLog

T = TypeVar("T")
PATIENCE_S = 2.0
"""How long a call waits for something to be started again, rather than being refused."""


class Health(StrEnum):
    RESTING = "resting"
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    QUARANTINED = "quarantined"


class Kind(NamedTuple):
    noun: str
    """What a person calls it."""
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
        """`until`: what has to happen before it is started again once it was given up.
        `covered` takes what it was given in secret out of a text."""
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
        """Why it does not run, if it should."""
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
        """The result of a start. The start goes on if the waiting caller is cancelled."""
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not starting.cancelled() or (task is not None and task.cancelling()):
                raise  # it is us who are cancelled
            problem = "it was closed, or restarted, while it was started"
            raise self._unavailable(problem, "not_started") from None

    def restarts(self) -> None:
        """A restart was requested: forget the crashes."""
        self._log.note(RESTARTED)
        self._crashes = Crashes()

    # --- dying --------------------------------------------------------------------------------

    def failed(self, problem: str) -> ToolHostUnavailable:
        """It could not be started."""
        problem = self._covered(problem)
        self.crashed(problem)
        return self._unavailable(problem, "not_started")

    def crashed(self, problem: str) -> None:
        self._crashes.add(problem)
        self._log.note(PROBLEM + problem)
        if self._crashes.quarantined:
            self._log.note(QUARANTINED)

    def distrusted(self, problem: str) -> str:
        """Quarantine it, because it did what it may not. Returns what ends the quarantine."""
        self._crashes.give_up(problem)
        self._log.note(PROBLEM + problem)
        self._log.note(QUARANTINED)
        return self._until

    def died(self, exit: Exit | None) -> ToolHostUnavailable:
        """The error of a call that it did not answer before it ended."""
        tail = self._covered(self._log.tail)
        shown = f"\n{tail}" if tail else ""
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

    def _unavailable(self, problem: str, reason: str) -> ToolHostUnavailable:
        return ToolHostUnavailable(
            f"{self._kind.noun} {self._name!r} is not available: {problem}.",
            reason=f"{self._kind.reason}_{reason}",
            details={self._kind.detail: self._name, "stderr": self._covered(self._log.tail)},
        )


def ended(exit: Exit | None) -> str:
    """How something ended, in words that follow its name."""
    if exit is None:
        return "went away"
    if exit.limit is not None:
        return f"was ended: more than `{exit.limit}` of `[sandbox.limits]` allows"
    if exit.signal is not None:
        return f"was ended by signal {exit.signal}"
    return "ended" if exit.code is None else f"exited with {exit.code}"
