"""Record docs/images/demo.cast and .svg: `callgate demo` with the edit allowed at the terminal.

    make recording         (or: python -m scripts.record_demo [DIRECTORY])

The program runs as in `record_first_hour`. Each section stays on the screen long enough to be
read before the next one begins.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from scripts.record_first_hour import TARGET, Recording, record, write

COMMAND = "callgate demo"
KEYS = {"Allow this edit?  [y]es  [n]o > ": "y\r", "[Enter] > ": "\r"}
SECTION_S = 3.0
_HEADING = "── "


class DemoRecording(Recording):
    """Terminal recording with a pause before each section, wide enough for a login link."""

    columns = 104

    def output(self, text: str, after: float) -> None:
        if _HEADING in text:
            self.now += SECTION_S
        super().output(text, after)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if shutil.which("unshare") is None:
        raise SystemExit("There is no unshare here.")
    recording = DemoRecording("callgate demo")
    record(recording, [COMMAND], KEYS, installed=["callgate"])
    write(recording, target, "demo")


if __name__ == "__main__":
    main()
