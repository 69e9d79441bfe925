"""How long `callgate call` takes through a running instance, beside one with its own runtime.

    python benchmarks/socket_cli.py [--rounds N] [--quick] [--json]

Each is started once in every round, in turn; figures are medians, ratios are taken within a
round. `python -c pass` is the floor: no program in Python can be faster. The call reads a file of
eight bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

CALLGATE = os.path.join(os.path.dirname(sys.executable), "callgate")
CALL = [CALLGATE, "call", "read_file", "path=note.txt"]
FLOOR = "python -c pass"
COMMANDS: Mapping[str, list[str]] = {
    FLOOR: [sys.executable, "-c", "pass"],
    "callgate call, an instance": CALL,
    "the same with --args": [*CALL[:3], "--args", '{"path": "note.txt"}'],
    "the same with --json": [*CALL, "--json"],
    "python -m callgate call": [sys.executable, "-m", "callgate", *CALL[1:]],
    "callgate call, its own runtime": [*CALL, "--no-instance"],
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = measure(3 if options.quick else options.rounds)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


def measure(rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="cg-bench-") as directory, served(directory) as env:
        where: dict[str, Any] = {"cwd": os.path.join(directory, "ws"), "env": env}
        made_by = subprocess.run([*CALL, "-v"], check=True, capture_output=True, **where).stderr
        if b"instance at" not in made_by:
            raise RuntimeError(f"the instance did not make the call: {made_by.decode()}")
        taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for number in range(rounds + 1):
            for name, command in COMMANDS.items():
                took = _start(command, where)
                if number:  # the first round fills the bytecode cache
                    taken[name].append(took)
    floor = taken[FLOOR]
    return {
        name: {
            "wall_ms": median(times),
            "to_floor": median(a / b for a, b in zip(times, floor, strict=True)),
        }
        for name, times in taken.items()
    }


@contextmanager
def served(directory: str) -> Iterator[dict[str, str]]:
    """An instance for the workspace `ws`; gives the environment in which it is found."""
    workspace = os.path.join(directory, "ws")
    os.mkdir(workspace)
    with open(os.path.join(workspace, "note.txt"), "w", encoding="utf-8") as file:
        file.write("A note.\n")
    env = {**os.environ, "CALLGATE_HOME": os.path.join(directory, "home")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    instance = subprocess.Popen(
        [CALLGATE, "serve"],
        cwd=workspace,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert instance.stdout is not None
    try:
        if not instance.stdout.readline():
            raise RuntimeError("callgate serve did not start")
        yield env
    finally:
        instance.terminate()
        instance.communicate()


def _start(command: list[str], where: Mapping[str, Any]) -> float:
    """Milliseconds from nothing to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **where)
    return (time.perf_counter() - began) * 1_000


def show(figures: Mapping[str, Mapping[str, float]]) -> None:
    print("| from nothing to the end | wall, ms | to the floor |")
    print("| --- | ---: | ---: |")
    for name, found in figures.items():
        print(f"| `{name}` | {found['wall_ms']:.0f} | {found['to_floor']:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
