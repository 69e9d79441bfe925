"""Measure contestants side by side: in each round everybody does one batch, in turn.

Noise of the machine then falls on all alike, and a ratio is taken within a round.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from statistics import median, quantiles
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.contestants import Contestant
from benchmarks.trees import environment

COUNTED = 20
"""Calls over which function calls are counted."""
COUNTS = 5
"""The least of so many counts is taken: what a thread reports back meanwhile comes on top."""


PERCENTS = (50, 95, 99)


class Effort(NamedTuple):
    rounds: int
    batch: int


class Measured(NamedTuple):
    rounds_us: list[float]
    """CPU per call, one figure a round."""
    function_calls: float
    waits_us: tuple[float, ...] = ()
    """What 50, 95 and 99 of 100 callers waited at most; for single calls."""

    @property
    def median_us(self) -> float:
        return median(self.rounds_us)

    @property
    def spread_us(self) -> float:
        """The distance between the quartiles."""
        low, _, high = quantiles(self.rounds_us, n=4)
        return high - low

    def ratio_to(self, other: Measured) -> float:
        """The median of the ratios within each round."""
        return median(a / b for a, b in zip(self.rounds_us, other.rounds_us, strict=True))


class Failed(NamedTuple):
    why: str


Outcome = Measured | Failed


class WorkerFailed(Exception):
    pass


class Worker:
    """The process of one contestant."""

    def __init__(self, contestant: Contestant, case: str) -> None:
        burden = [] if contestant.burden is None else [str(contestant.burden)]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", contestant.setup, case, *burden],
            cwd=contestant.tree,
            env=environment(contestant.tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        with self._errors:
            self._process.communicate()  # closes its input, on which it ends

    def until_ready(self) -> None:
        self._reply()

    def ask(self, order: str, count: int) -> int:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order} {count}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its reply, or rather none, tells why
        return int(self._reply())

    def _reply(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise WorkerFailed(said[-1] if said else f"exit code {self._process.returncode}")
        return line.strip()


def hold(
    contestants: Iterable[Contestant], case: str, effort: Effort, order: str = "calls"
) -> Mapping[str, Outcome]:
    """Everybody's figures by name. Who fails does not keep the others from being measured."""
    failed: dict[str, Outcome] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for contestant in contestants:
            worker = stack.enter_context(Worker(contestant, case))
            try:
                worker.until_ready()  # one by one: they would disturb each other's start
                workers[contestant.name] = worker
            except WorkerFailed as error:
                failed[contestant.name] = Failed(str(error))
        figures: dict[str, list[float]] = {name: [] for name in workers}
        waits: dict[str, list[list[float]]] = {name: [] for name in workers}
        turns = [*workers.items()]
        for _ in range(effort.rounds):
            turns.reverse()  # nobody always comes behind the same neighbour
            for name, worker in turns:
                spent_ns = worker.ask(order, effort.batch)
                figures[name].append(spent_ns / effort.batch / 1_000)
                if order == "singles":
                    waits[name].append([worker.ask("waited", each) / 1_000 for each in PERCENTS])
        return failed | {
            name: Measured(
                figures[name],
                _function_calls(worker),
                tuple(map(median, zip(*waits[name], strict=True))),
            )
            for name, worker in workers.items()
        }


def _function_calls(worker: Worker) -> float:
    return min(worker.ask("count", COUNTED) for _ in range(COUNTS)) / COUNTED
