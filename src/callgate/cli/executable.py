"""How another program starts this callgate."""

from __future__ import annotations

import os
import shutil
import sys


def this_program() -> list[str]:
    """The command as it lies here; where there is none, this Python with the module."""
    beside = os.path.join(os.path.dirname(sys.executable), "callgate")
    for found in (sys.argv[0], beside):
        if os.path.basename(found) == "callgate" and (path := shutil.which(found)):
            return [os.path.abspath(path)]
    return [sys.executable, "-m", "callgate"]
