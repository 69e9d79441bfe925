"""Running of any command: find it, parse its options, import its module, report its errors.

Imports here are minimal, so that `callgate --version` starts fast.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from callgate.cli.errors import BROKEN_PIPE, FAILED, INTERRUPTED, OK, CliError
from callgate.cli.ui.terminal import columns, is_terminal, say
from callgate.core.errors import ToolErrorClass
from callgate.core.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.cli.command import Command
    from callgate.config.home import Home

_MADE_BEFORE_A_LOOK = 20_000
"""Threshold of the garbage collector. Imports create many objects and no garbage: with Python's
default of 700, collections take a tenth of a command's start."""


def run(given: list[str], options: Any = None) -> int:
    """Run one command line; returns the exit code. `options`: the parsed options of a call."""
    gc.set_threshold(_MADE_BEFORE_A_LOOK)
    code = guarded(given, lambda: _run(given) if options is None else _call(options))
    gc.freeze()  # skip the collection at the end of the process
    return code


def guarded(given: list[str], work: Callable[[], int]) -> int:
    """Run `work`, and turn its exception into a message and an exit code."""
    debug = "--debug" in _options(given)
    try:
        try:
            code = work()
        except BrokenPipeError:
            raise
        except Exception as error:  # a refusal of callgate or the system, or a defect
            if debug:
                _show_traceback()
            problem = error if isinstance(error, CliError) else _unexpected(error)
            code = _report(problem, as_json="--json" in _options(given))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout closed the pipe
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

    room = columns() - 1 if is_terminal(sys.stdout) else None
    if (text := commands.help_text(given, room)) is not None:
        print(text)
        return OK
    name, words = commands.split(given)
    options = commands.read(name, words)
    command = commands.beginning(name.split()[0])[name]
    assert command.run is not None  # checked for commands of packages
    if command.is_local:
        return int(command.run(options))
    from callgate.cli.ui import provenance  # lazy: local commands need none  # noqa: PLC0415

    as_json = getattr(options, "json", False) or getattr(options, "output_format", "text") != "text"
    provenance.begin(
        verbose=not command.is_verbose_itself and options.verbose,
        json=as_json,
        workspace=getattr(options, "workspace", None),
    )
    workspace = getattr(options, "workspace", None)
    if name == "watch" or getattr(options, "follow", False):  # it runs until it is stopped
        provenance.from_records()
        _warn_of_settings(command, workspace)
        return int(command.run(options))
    try:
        code = int(command.run(options))
    except CliError as error:
        if error.reason != "settings_invalid":
            _warn_of_settings(command, workspace)
        raise
    finally:
        provenance.from_records()
    _warn_of_settings(command, workspace)
    return code


def _warn_of_settings(command: Command, workspace: object) -> None:
    if command.reports_settings:
        return
    from callgate.cli.ui import provenance  # lazy: local commands need none  # noqa: PLC0415

    chosen = workspace if isinstance(workspace, str) else "."
    provenance.warn_of_settings_files(os.path.abspath(os.path.expanduser(chosen)))


def _tell_what_is_missing(platform: str) -> None:
    """Print a warning on an unsupported platform; raise `CliError` on Windows."""
    if platform == "linux":
        return

    from callgate.cli.platforms import can_start_on, missing_on  # lazy: not on Linux  # noqa: PLC0415

    lacking = missing_on(platform)
    if lacking is None:
        return
    if not can_start_on(platform):
        raise CliError(lacking, hint="Use Linux, for example in a virtual machine.")
    say(f"warning: {lacking}.")


def _call(options: Any) -> int:
    from callgate.cli.commands.call import call  # lazy: heavy, not for other commands  # noqa: PLC0415

    return call(options)


def _at_a_terminal() -> list[str]:
    """Return the command to run if none is named: `chat`, `init` after a yes, or the help."""
    from callgate.config.home import Home  # lazy: not where a command is named  # noqa: PLC0415

    home = Home.from_environment()
    if not os.path.lexists(home.settings):
        return ["init"] if _agrees_to_set_up(home.settings) else []
    return ["chat"] if _can_chat(home) else []


def _can_chat(home: Home) -> bool:
    """Whether the settings name a model. `chat` itself reports wrong settings."""
    from callgate.config.load import SettingsError, load_user  # lazy: the same  # noqa: PLC0415
    from callgate.feature import load  # lazy: the same  # noqa: PLC0415

    try:
        return bool(load_user(home)[0].table("model")) and load("chat") is not None
    except SettingsError:
        return False


def _agrees_to_set_up(settings: str) -> bool:
    """Ask before the first file is written."""
    say(f"callgate is not set up yet: {settings} does not exist.")
    say("Set up now? This writes that file and a sample tool, and offers the models found here.")
    print("[y]es, or Enter for the help: ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print()
    return answer.strip().lower() in ("y", "yes")


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
        text = "the current directory no longer exists"
    else:
        kind = "" if isinstance(error, OSError) else f"internal error: {type(error).__name__}: "
        text = f"{kind}{error}"
    return CliError(
        text,
        hint="--debug shows a traceback.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="unexpected",
    )


def _options(given: list[str]) -> list[str]:
    """Return the words before `--`, because errors can occur before options are parsed."""
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
