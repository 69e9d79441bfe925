"""Exchange two names again and again until stdin ends: the other side of the race tests.

A program of its own: python swapping.py FIRST SECOND
"""

from __future__ import annotations

import ctypes
import os
import select
import sys

_AT_FDCWD = -100
_EXCHANGE = 2


def main(first: str, second: str) -> None:
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    one, two = os.fsencode(first), os.fsencode(second)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(50):
            rename(_AT_FDCWD, one, _AT_FDCWD, two, _EXCHANGE)


if __name__ == "__main__":
    main(*sys.argv[1:])
