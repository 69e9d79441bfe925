"""Run a command under CPU load, to find tests that depend on wall time.

    python scripts/under_load.py -- .venv/bin/pytest tests/features/chat/commands/test_chat.py
    python scripts/under_load.py --loops 18 --times 5 -- .venv/bin/pytest ...

Starts busy loops (18 by default), runs the command next to them, and stops them at the end, also
after Ctrl-C or SIGTERM. Exits with the code of the first failed run, or 0.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from contextlib import ExitStack

_BUSY_LOOP = (sys.executable, "-I", "-S", "-c", "while True: pass")


def main() -> int:
    parser = argparse.ArgumentParser(description="run a command next to busy loops")
    parser.add_argument("--loops", type=int, default=18, help="number of busy loops")
    parser.add_argument("--times", type=int, default=1, help="number of runs of the command")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run the clean-up below
    with ExitStack() as stack:
        for _ in range(options.loops):
            loop = stack.enter_context(subprocess.Popen(_BUSY_LOOP))
            stack.callback(loop.kill)
        for run in range(options.times):
            code = subprocess.run(options.command, check=False).returncode
            if code:
                print(f"run {run + 1} of {options.times} failed ({code})", file=sys.stderr)
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
