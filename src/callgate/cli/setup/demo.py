"""`callgate demo`: an agent at work in a small project, for whoever wants to see callgate first.

The program is `examples/demo.py`; a wheel carries a copy of it.
"""

from __future__ import annotations

import os
import runpy
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.core.version import PACKAGE_DIRECTORY

_IN_WHEEL = os.path.join(PACKAGE_DIRECTORY, "data", "demo.py")
_IN_CHECKOUT = os.path.join(PACKAGE_DIRECTORY, "..", "..", "examples", "demo.py")


def demo(options: Namespace) -> int:
    if options.words:
        raise CliError("demo takes no arguments")
    program = next(filter(os.path.isfile, (_IN_WHEEL, _IN_CHECKOUT)), None)
    if program is None:
        raise CliError("this installation has no demo", hint="The wheel has one.")
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: only to run it  # noqa: PLC0415

    refuse_within_a_call("callgate demo")
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK
    return OK
