"""`callgate host new`: a plugin to begin with, a test of it, and the settings that it needs.

The settings go to stdout and everything else to stderr, so that they can be appended:

    callgate host new words >> ~/.callgate/settings.toml
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import NamedTuple

import callgate
from callgate.cli.errors import OK, CliError
from callgate.cli.hosts import samples as host_samples
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.toml_edits import table_text
from callgate.core.errors import ToolErrorClass

# As in the settings, and short enough for a tool to be named after it.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,47}\Z")


class _Language(NamedTuple):
    files: Mapping[str, str]
    """By name; the first is the plugin, and the last its test."""
    command: Callable[[str], list[str]]
    """What runs the plugin at a path as a host."""
    test: Callable[[str], list[str]]
    """What runs the test at a path."""


def node_host() -> str:
    """Where the host for Node lies: in the installed package, or in the checkout around it."""
    package = os.path.dirname(os.path.abspath(callgate.__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    for directory in (os.path.join(package, "data"), os.path.join(checkout, "packages")):
        path = os.path.join(directory, "tool-host-node", "host.mjs")
        if os.path.isfile(path):
            return path
    raise CliError(
        "the host for Node is missing in this installation",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_installed",
    )


# -P: a host starts in the workspace, whose modules must not come before ours
_PYTHON_HOST = [sys.executable, "-P", "-m", "callgate.host"]
_LANGUAGES: Mapping[str, _Language] = {
    "python": _Language(
        {"@MODULE@.py": host_samples.PYTHON, "test_@MODULE@.py": host_samples.PYTHON_TEST},
        lambda plugin: [*_PYTHON_HOST, plugin],
        lambda test: [sys.executable, "-m", "pytest", test],
    ),
    "node": _Language(
        {"@NAME@.mjs": host_samples.NODE, "@NAME@.test.mjs": host_samples.NODE_TEST},
        lambda plugin: ["node", node_host(), plugin],
        lambda test: ["node", "--test", test],
    ),
    "bash": _Language(
        {"@NAME@.sh": host_samples.BASH, "test.sh": host_samples.BASH_TEST},
        lambda plugin: [*_PYTHON_HOST, "--script", plugin],
        lambda test: [test],
    ),
}


def new(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("it needs one name", hint="See callgate host new --help.")
    (name,) = options.words
    if not _NAME.match(name):
        raise CliError(f"{name!r} is not a name for a host: a-z, then a-z, 0-9, _ and -")
    language = _LANGUAGES[options.lang]
    directory = _directory(options.dir, name)
    tool = f"{name.replace('-', '_')}_count"
    filled = {
        _fill(file, name, tool): _fill(text, name, tool) for file, text in language.files.items()
    }
    command = language.command(os.path.join(directory, next(iter(filled))))
    wrote = _write(directory, filled)
    settings = _settings(name, tool, command)
    if options.json:
        print_json({"wrote": wrote, "tool": tool, "command": command, "settings": settings})
        return OK
    for path in wrote:
        say(f"wrote {path}")
    say(_next(tool, command, language.test(wrote[-1])))
    print(settings, end="")
    return OK


def _directory(given: str, name: str) -> str:
    """Where it will be. Not where the sandbox, in which hosts run, sees nothing."""
    directory = os.path.join(os.path.realpath(os.path.expanduser(given)), name)
    home = os.path.realpath(Home.from_environment().path)
    if os.path.commonpath([directory, home]) == home:
        raise CliError("the sandbox hides callgate's home from hosts", hint="Choose another --dir.")
    if not directory.isprintable():
        raise CliError("the path has invisible characters", hint="Choose another --dir.")
    return directory


def _fill(text: str, name: str, tool: str) -> str:
    module = f"{name.replace('-', '_')}_tools"  # never a keyword, nor a module of Python's own
    return text.replace("@NAME@", name).replace("@MODULE@", module).replace("@TOOL@", tool)


def _write(directory: str, files: Mapping[str, str]) -> list[str]:
    """Into a directory that is not there yet; scripts can be executed."""
    wrote = []
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        os.mkdir(directory)
        for file, text in files.items():
            path = os.path.join(directory, file)
            access = 0o777 if text.startswith("#!") else 0o666
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access)
            with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                written.write(text)
            wrote.append(path)
    except FileExistsError as error:
        raise CliError(
            f"{error.filename} is there already",
            hint="Choose another name or --dir.",
            reason="exists",
        ) from None
    except OSError as error:
        raise CliError(
            f"cannot write: {error}", error_class=ToolErrorClass.EXECUTION_ERROR
        ) from error
    return wrote


def _settings(name: str, tool: str, command: list[str]) -> str:
    return "\n" + table_text(("hosts", name), {"command": command, "effects": {tool: "none"}})


def _next(tool: str, command: list[str], test: list[str]) -> str:
    called = f"{tool} text='one two three'"
    return f"""\
Try next:
  {shlex.join(test)}
  callgate host check --call {called} -- {shlex.join(command)}
With these lines in settings.toml:
  callgate call {called}"""
