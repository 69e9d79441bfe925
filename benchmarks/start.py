"""How long a command line takes from nothing, beside an interpreter that does nothing."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.trees import ROOT, environment

_IMPORTED = re.compile(r"^import time: +\d+ ", re.MULTILINE)


class Start(NamedTuple):
    wall_ms: list[float]
    cpu_ms: list[float]
    modules: int

    @property
    def median_ms(self) -> float:
        return median(self.wall_ms)

    @property
    def median_cpu_ms(self) -> float:
        return median(self.cpu_ms)

    def ratio_to(self, other: Start) -> float:
        return median(a / b for a, b in zip(self.wall_ms, other.wall_ms, strict=True))


def commands() -> Mapping[str, list[str]]:
    callgate = os.path.join(os.path.dirname(sys.executable), "callgate")
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "callgate --version": [callgate, "--version"],
        "callgate call": [callgate, "call", "read_file", "path=note.txt"],
    }


def measure(rounds: int) -> Mapping[str, Start]:
    """By command; one start of each in every round."""
    return measure_trees([ROOT], rounds)[ROOT]


def measure_trees(trees: Sequence[str], rounds: int) -> dict[str, dict[str, Start]]:
    """By tree and command; one start of each in every round."""
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
        workspace = os.path.join(directory, "workspace")
        os.mkdir(workspace)
        with open(os.path.join(workspace, "note.txt"), "w", encoding="utf-8") as file:
            file.write("A note.\n")
        environments = {
            tree: {**environment(tree), "CALLGATE_HOME": os.path.join(directory, f"home{number}")}
            for number, tree in enumerate(trees)
        }
        found = {
            tree: {
                name: Start([], [], _modules(command, workspace, env))
                for name, command in commands().items()
            }
            for tree, env in environments.items()
        }
        turns = [*trees]
        for _ in range(rounds):
            turns.reverse()
            for name, command in commands().items():
                for tree in turns:
                    wall_ms, cpu_ms = _run(command, workspace, environments[tree])
                    found[tree][name].wall_ms.append(wall_ms)
                    found[tree][name].cpu_ms.append(cpu_ms)
        return found


def _run(command: list[str], workspace: str, env: Mapping[str, str]) -> tuple[float, float]:
    cpu, started = _children_s(), time.perf_counter()
    subprocess.run(command, cwd=workspace, env=env, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - started) * 1_000, (_children_s() - cpu) * 1_000


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _modules(command: list[str], workspace: str, env: Mapping[str, str]) -> int:
    """How many modules the command imports; this first run also fills the bytecode cache."""
    ended = subprocess.run(
        command,
        cwd=workspace,
        env={**env, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        said = [line for line in ended.stderr.splitlines() if not line.startswith("import time")]
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {said}")
    return len(_IMPORTED.findall(ended.stderr))
