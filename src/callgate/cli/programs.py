"""Programs that commands start: this callgate, and the user's browser."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser

from callgate.sandbox.plans import without_secrets_keys


def this_program() -> list[str]:
    """Return the path of the command, or this Python with the module if there is no command."""
    next_to_python = os.path.join(os.path.dirname(sys.executable), "callgate")
    for found in (sys.argv[0], next_to_python):
        if os.path.basename(found) == "callgate" and (path := shutil.which(found)):
            return [os.path.abspath(path)]
    return [sys.executable, "-m", "callgate"]


def typed_program() -> str:
    """Return the shell words that start this callgate: a path if it is not in PATH."""
    if shutil.which("callgate"):
        return "callgate"
    program, *words = this_program()
    here = os.path.relpath(program)
    return shlex.join([program if here.startswith(os.pardir) else here, *words])


def open_in_browser(url: str) -> bool:
    """Open a page, without secret keys in the browser's environment; return False on failure."""
    ours = dict(os.environ)
    hidden = ours.keys() - without_secrets_keys(ours).keys()
    for name in hidden:
        del os.environ[name]
    try:
        return webbrowser.open(url)
    finally:
        os.environ.update({name: ours[name] for name in hidden})
