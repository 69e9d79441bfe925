"""Runs any command: finds it, reads its options, loads its module, and reports errors.

Nothing is imported here that `callgate --version` would have to wait for.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from callgate.cli.errors import BROKEN_PIPE, FAILED, INTERRUPTED, OK, CliError
from callgate.cli.ui.terminal import is_terminal, say
from callgate.core.errors import ToolErrorClass
from callgate.core.version import __version__

_MADE_BEFORE_A_LOOK = 20_000
"""Imports make many objects and no garbage: with Python's 700, looking for it is a tenth of the
start of a command."""


def run(given: list[str], options: Any = None) -> int:
    """Run one command line; returns the exit code. `options`: it is a call, and they were read."""
    gc.set_threshold(_MADE_BEFORE_A_LOOK)
    code = guarded(given, lambda: _run(given) if options is None else _call(options))
    gc.freeze()  # the end of the process need not look through all of it once more
    return code


def guarded(given: list[str], work: Callable[[], int]) -> int:
    """Run `work`; whatever it raises becomes a message and an exit code."""
    debug = "--debug" in _options(given)
    try:
        try:
            code = work()
        except BrokenPipeError:
            raise
        except Exception as error:  # a refusal of ours or the system's, or a defect
            if debug:
                _show_traceback()
            problem = error if isinstance(error, CliError) else _unexpected(error)
            code = _report(problem, as_json="--json" in _options(given))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        _discard_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:  # argparse, after it printed a help text
        return ended.code if isinstance(ended.code, int) else OK
    except OSError as error:  # the output itself could not be written
        say(f"error (execution_error): the output could not be written: {error}")
        _discard_stdout()
        return FAILED
    return code


def _run(given: list[str]) -> int:
    while given and given[0] == "--debug":
        given = given[1:]
    if given and given[0] in ("--version", "-V"):
        print(f"callgate {__version__}")
        return OK
    _tell_what_is_missing(sys.platform)
    if not given and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        given = _at_a_terminal()
    from callgate.cli import command_line as commands  # lazy: not for --version  # noqa: PLC0415
    from callgate.cli.command_modules import command_function  # lazy: the same  # noqa: PLC0415

    if (text := commands.help_text(given)) is not None:
        print(text)
        return OK
    name, words = commands.split(given)
    options = commands.read(name, words)
    run = commands.beginning(name.split()[0])[name].run
    if run is not None:
        return int(run(options))
    work = command_function(name)
    if commands.is_local(name):
        return int(work(options))
    from callgate.cli.ui import provenance  # lazy: local commands need none  # noqa: PLC0415

    as_json = getattr(options, "json", False) or getattr(options, "output_format", "text") != "text"
    provenance.begin(
        verbose=name not in commands.VERBOSE_THEMSELVES and options.verbose,
        json=as_json,
        workspace=getattr(options, "workspace", None),
    )
    if name == "watch" or getattr(options, "follow", False):  # it has no end of its own
        provenance.from_records()
        return int(work(options))
    try:
        return int(work(options))
    finally:
        provenance.from_records()


def _tell_what_is_missing(platform: str) -> None:
    """Where callgate is not supported: a warning, and on Windows an error."""
    if platform == "linux":
        return
    from callgate.cli.platforms import can_start_on, missing_on  # lazy: not on Linux  # noqa: PLC0415

    lacking = missing_on(platform)
    if lacking is None:
        return
    if not can_start_on(platform):
        raise CliError(lacking, hint="Use Linux, also in a virtual machine.")
    say(f"warning: {lacking}.")


def _call(options: Any) -> int:
    from callgate.cli.commands.call import call  # lazy: heavy, not for other commands  # noqa: PLC0415

    return call(options)


def _at_a_terminal() -> list[str]:
    """What a person gets who names no command: a chat, a first run, or the help."""
    from callgate.config.home import Home  # lazy: not where a command is named  # noqa: PLC0415

    if not os.path.lexists(Home.from_environment().settings):
        return ["init"]
    from callgate.cli.agents import is_configured  # lazy: the same  # noqa: PLC0415

    return ["chat"] if is_configured() else []


def _unexpected(error: Exception) -> CliError:
    from callgate.config.home_check import UnsafeHome  # lazy: what prints only text needs none  # noqa: PLC0415

    if isinstance(error, UnsafeHome):
        return CliError(
            str(error),
            hint=error.hint,
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="home_unsafe",
        )
    if isinstance(error, FileNotFoundError) and error.filename is None:
        text = "the current directory is gone"
    else:
        kind = "" if isinstance(error, OSError) else f"internal error: {type(error).__name__}: "
        text = f"{kind}{error}"
    return CliError(
        text,
        hint="--debug shows where it happened.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="unexpected",
    )


def _options(given: list[str]) -> list[str]:
    """The words before `--`: an error may have to be shown before options are parsed."""
    return given[: given.index("--")] if "--" in given else given


def _report(error: CliError, *, as_json: bool) -> int:
    if as_json:
        from callgate.cli.ui.output import print_error  # lazy: only for errors  # noqa: PLC0415

        print_error(error)
    say(f"error ({error.error_class}): {error.message}")
    if error.hint is not None:
        say(f"hint: {error.hint}")
    return error.exit_code


def _show_traceback() -> None:
    import traceback  # lazy: only for --debug  # noqa: PLC0415

    say(traceback.format_exc().rstrip())


def _discard_stdout() -> None:
    """Make the flush at the interpreter's exit succeed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
