"""`callgate init`: commented settings and a sample tool, where there are none yet; at a terminal
also what fits what is here."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.setup.samples import HELLO, SETTINGS, WORKSPACE_SETTINGS
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import is_terminal, say
from callgate.config.home import Home, workspace_settings
from callgate.core.errors import ToolErrorClass

_NEXT = """\
Try next:
  callgate doctor
  callgate tools
  callgate call hello name=world"""
_NEXT_IN_WORKSPACE = """\
Try next:
  callgate trust .
  callgate policy explain read_file path=README.md"""


def init(options: Namespace) -> int:
    if options.words:
        raise CliError(f"init takes no {options.words[0]!r}", hint="See callgate init --help.")
    refuse_within_a_call("callgate init")
    home = Home.from_environment()
    if options.workspace:
        files = {workspace_settings(os.getcwd()): WORKSPACE_SETTINGS}
    else:
        files = {home.settings: SETTINGS, os.path.join(home.path, "tools", "hello.py"): HELLO}
    try:
        if not options.workspace:
            home.make()
        access = 0o777 if options.workspace else 0o700
        wrote = [path for path, text in files.items() if _write_new(path, text, access)]
    except OSError as error:
        raise CliError(
            f"cannot write: {error}", error_class=ToolErrorClass.EXECUTION_ERROR
        ) from error
    existing = [path for path in files if path not in wrote]
    if options.json:
        print_json({"wrote": wrote, "kept": existing})
        return OK
    for path in files:
        say(f"wrote {path}" if path in wrote else f"kept  {path}, which was there already")
    if not options.workspace and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        from callgate.cli.setup.first_run import guide  # lazy: only at a terminal  # noqa: PLC0415

        guide(home)
        return OK
    say(_NEXT_IN_WORKSPACE if options.workspace else _NEXT)
    return OK


def _write_new(path: str, text: str, access: int) -> bool:
    """Write a file that is not there yet, not even as a link; False if it is."""
    os.makedirs(os.path.dirname(path), mode=access, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access & 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True
