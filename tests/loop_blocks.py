"""The longest stretch of Python between two callbacks of the event loop, in lines: a cost that no
other load on the machine can change.

    python tests/loop_blocks.py REPORT ARGUMENTS...   run callgate with these arguments
    SIGUSR1                                           count from here on
    SIGUSR2                                           write {"lines", "functions"} to REPORT
"""

from __future__ import annotations

import asyncio.events
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from callgate.cli.main import main


class LongestBlock:
    """Counts the lines that each callback of the loop runs in this thread."""

    def __init__(self) -> None:
        self.lines: Counter[CodeType] = Counter()
        self.longest: Counter[CodeType] = Counter()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines[frame.f_code] += 1
        return self.trace

    def begin(self, *_: object) -> None:
        self.lines, self.longest = Counter(), Counter()
        sys.settrace(self.trace)

    def end_callback(self) -> None:
        if self.lines.total() > self.longest.total():
            self.longest = self.lines
        self.lines = Counter()

    def report(self) -> dict[str, Any]:
        """The lines of the longest block, and the functions that ran most of them."""
        functions = {
            f"{Path(code.co_filename).name}:{code.co_qualname}": lines for code, lines in self.longest.most_common(8)
        }
        return {"lines": self.longest.total(), "functions": functions}


def install(block: LongestBlock) -> None:
    run = asyncio.events.Handle._run

    def counted(handle: asyncio.events.Handle) -> None:
        block.lines.clear()
        run(handle)
        block.end_callback()

    asyncio.events.Handle._run = counted  # type: ignore[method-assign]


def run_callgate(report: Path, arguments: list[str]) -> int:
    block = LongestBlock()
    install(block)

    def write(*_: object) -> None:
        sys.settrace(None)
        made = report.with_suffix(".new")
        made.write_text(json.dumps(block.report()))
        os.replace(made, report)

    signal.signal(signal.SIGUSR1, block.begin)
    signal.signal(signal.SIGUSR2, write)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run_callgate(Path(sys.argv[1]), sys.argv[2:]))
