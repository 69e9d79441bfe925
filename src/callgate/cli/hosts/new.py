"""`callgate host new`: a sample plugin and its test, in Python, Node or Bash."""

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
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.settings_file import table_text
from callgate.core.errors import ToolErrorClass

PYTHON = '''\
"""The tools of @NAME@: every function with `@tool`. A model reads its docstring."""

from callgate import tool


@tool(side_effects="none")
def @TOOL@(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''

PYTHON_TEST = '''\
"""The tools of @NAME@, called as an agent would call them."""

import asyncio

from callgate import Gate

from @MODULE@ import @TOOL@


def test_words_are_counted(tmp_path):
    async def call():
        async with Gate(tmp_path, [@TOOL@], home=tmp_path / "home") as gate:
            return await gate.call("@TOOL@", {"text": "one two three"})

    result = asyncio.run(call())
    assert (result.ok, result.text) == (True, "3")
'''

NODE = r"""// The tools of @NAME@. A model reads the description.

export default [
  {
    name: "@TOOL@",
    description: "Count the words of a text.",
    inputSchema: {
      type: "object",
      properties: { text: { type: "string" } },
      required: ["text"],
      additionalProperties: false,
    },
    // Shown to the person who approves the call.
    preview: ({ text }) => `count the words of ${text.length} characters`,
    run: ({ text }) => text.split(/\s+/).filter(Boolean).length,
  },
];
"""

NODE_TEST = """\
// node --test

import assert from "node:assert/strict";
import { test } from "node:test";

import tools from "./@NAME@.mjs";

const [count] = tools;

test("words are counted", async () => {
  assert.equal(await count.run({ text: "one two three" }), 3);
});
"""

BASH = r"""#!/usr/bin/env bash
# The tool of @NAME@. callgate runs it with one of these command lines:
#
#   schema         print the definition of the tool
#   preview NAME   describe the effect of `run` in one line, for the person who approves the call
#   run NAME       run the tool
#
# The last two get the arguments as JSON on stdin. The output of `run` is the result. An exit code
# other than 0 is a failure, and the last lines of stderr are its message.
set -euo pipefail

argument() { # NAME: print a text from the JSON on stdin
  python3 -I -c 'import json, sys; sys.stdout.write(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

case "${1-}" in
  schema) cat <<'END'
{
  "name": "@TOOL@",
  "description": "Count the words of a text.",
  "input_schema": {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": false
  }
}
END
    ;;
  preview) echo "count the words of $(argument text | wc -c) bytes" ;;
  run) argument text | wc -w ;;
  *) echo "usage: $0 schema | preview NAME | run NAME" >&2; exit 2 ;;
esac
"""

BASH_TEST = """\
#!/usr/bin/env bash
# The tool of @NAME@, run as callgate would run it.
set -euo pipefail
cd "$(dirname "$0")"

./@NAME@.sh schema | python3 -I -m json.tool > /dev/null
counted=$(echo '{"text": "one two three"}' | ./@NAME@.sh run @TOOL@)
if [ "$counted" -ne 3 ]; then
  echo "FAILED: counted $counted words, not 3" >&2
  exit 1
fi
echo ok
"""


# As in the settings, and short enough for a prefix of tool names.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,47}\Z")


class _Language(NamedTuple):
    files: Mapping[str, str]
    """Contents by name; the first is the plugin, and the last its test."""
    command: Callable[[str], list[str]]
    """The command that runs the plugin at a path as a host."""
    test: Callable[[str], list[str]]
    """The command that runs the test at a path."""


def node_host() -> str:
    """Return the path of the host for Node, in the installed package or in the checkout."""
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


# -P: a host starts in the workspace, whose modules must not shadow callgate's
_PYTHON_HOST = [sys.executable, "-P", "-m", "callgate.host"]
_LANGUAGES: Mapping[str, _Language] = {
    "python": _Language(
        {"@MODULE@.py": PYTHON, "test_@MODULE@.py": PYTHON_TEST},
        lambda plugin: [*_PYTHON_HOST, plugin],
        lambda test: [sys.executable, "-m", "pytest", test],
    ),
    "node": _Language(
        {"@NAME@.mjs": NODE, "@NAME@.test.mjs": NODE_TEST},
        lambda plugin: ["node", node_host(), plugin],
        lambda test: ["node", "--test", test],
    ),
    "bash": _Language(
        {"@NAME@.sh": BASH, "test.sh": BASH_TEST},
        lambda plugin: [*_PYTHON_HOST, "--script", plugin],
        lambda test: [test],
    ),
}


def new(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("host new needs one name", hint="See callgate host new --help.")
    (name,) = options.words
    if not _NAME.match(name):
        raise CliError(f"{name!r} is not a valid host name: use a-z, then a-z, 0-9, _ and -")
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
    """Return the target directory. Raises `CliError` if the sandbox would hide it from hosts."""
    directory = os.path.join(os.path.realpath(os.path.expanduser(given)), name)
    home = os.path.realpath(Home.from_environment().path)
    if os.path.commonpath([directory, home]) == home:
        raise CliError("the sandbox hides callgate's home from hosts", hint="Choose another --dir.")
    if not directory.isprintable():
        raise CliError("the path has invisible characters", hint="Choose another --dir.")
    return directory


def _fill(text: str, name: str, tool: str) -> str:
    module = f"{name.replace('-', '_')}_tools"  # never a keyword or a standard module
    return text.replace("@NAME@", name).replace("@MODULE@", module).replace("@TOOL@", tool)


def _write(directory: str, files: Mapping[str, str]) -> list[str]:
    """Write files into a new directory; scripts become executable."""
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
            f"{error.filename} already exists",
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
