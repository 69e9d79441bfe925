"""`callgate init`: write commented settings and a sample tool, unless they exist.

At a terminal it also suggests uses for installed programs, and makes one safe call. It searches
programs and files by name only: it reads no key and starts none of the programs.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.feature import port

_QUESTION = """
Commands that only read, such as ls, git status and grep, can run without approval. They run in the
read-only sandbox without network. Allow them? [y/N] """


def choose_read_commands(home: Home, value: str) -> str:
    """Write `[policy] read_commands`; return a line that confirms it."""
    from callgate.config.settings_file import (  # lazy: tomlkit is slow to import  # noqa: PLC0415
        NotATableError,
        editing,
    )

    try:
        with editing(home) as settings:
            settings.put("policy", "read_commands", value)
    except (SettingsError, NotATableError) as error:
        raise CliError(
            f"read_commands was not set: {error}",
            hint=f'Write read_commands = "{value}" under [policy] of {home.settings}.',
        ) from error
    return visible(f'{os.path.realpath(home.settings)}: read_commands = "{value}"')


def offer_read_commands(home: Home) -> None:
    """Ask the person at the terminal, unless the settings have a value."""
    try:
        if load_user(home)[1].read_commands is not None:
            return
    except SettingsError:
        return  # `doctor` reports it
    print(_QUESTION, end="", flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        print(choose_read_commands(home, "allow"))


SETTINGS = """\
# callgate's settings. Everything here is optional; lines after a # are defaults or examples.
# `callgate doctor` checks the file, and `callgate policy explain TOOL key=value ...` explains its
# decisions.

# The permission ceiling: none, read, ask, guarded or write.
mode = "ask"

[tools]
# Python files (relative to this one) or modules whose @tool functions are offered.
load = ["tools/hello.py"]
# disable = ["delete_file"]

[policy]
# Commands that only read (ls, git status, grep, ...) run without approval, in the read-only
# sandbox without network, if this is "allow". Mode guarded allows them in any case but "ask".
# read_commands = "allow"

[policy.default]
# By the effect of a tool: auto, prompt, prompt_once or deny.
# read = "auto"
# write = "prompt"
# network = "prompt"
# execute = "prompt"

[policy.per_tool]
# shell = "deny"

# If several rules match, deny beats ask beats allow.
# [[policy.rules]]
# decision = "allow"
# tool = "shell"
# command = "git status *"
#
# [[policy.rules]]
# decision = "deny"
# path = "**/.env"

# Commands run in a sandbox: they write only in the workspace and have no network.
# [sandbox]
# network = "none"                  # or "loopback", "all", ["example.org", "*.example.com"]
# writable = ["~/.cache/pip"]
# readable = ["~/.config/gh"]       # a secret that commands may see

# [workspace]
# extra_roots = [{ path = "~/notes", access = "read" }]

# [limits]
# concurrency = 4
# confirmation_timeout_s = 300

# [audit]
# max_bytes = 67108864
# keep = 8

# [durability]
# files = "synced"                  # or "fast": a power cut may lose recently written files
"""

WORKSPACE_SETTINGS = """\
# Permissions of tools in this directory. They can only narrow each user's own settings, and apply
# only to users who ran `callgate trust .` here.

# [policy.per_tool]
# shell = "prompt"

# [[policy.rules]]
# decision = "deny"
# path = "secrets/**"
"""

HELLO = '''\
"""A sample tool. Try: callgate call hello name=world"""

from callgate import tool


@tool(side_effects="none")
async def hello(name: str, times: int = 1) -> str:
    """Greet a person.

    Args:
        name: Name of the person.
        times: Number of greetings.
    """
    return "\\n".join([f"Hello, {name}!"] * times)
'''


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
        raise CliError(
            f"unexpected argument {options.words[0]!r}", hint="See callgate init --help."
        )
    if options.workspace and options.read_commands is not None:
        raise CliError("--read-commands changes your own settings: leave out --workspace")
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
    if not options.json:
        for path in files:
            say(f"wrote {path}" if path in wrote else f"kept  {path}, which already exists")
    if options.read_commands is not None:
        _set_read_commands(home, options)
    if options.json:
        print_json({"wrote": wrote, "kept": existing})
        return OK
    if not options.workspace and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        guide(home)
        return OK
    say(_NEXT_IN_WORKSPACE if options.workspace else _NEXT)
    return OK


def _set_read_commands(home: Home, options: Namespace) -> None:
    line = choose_read_commands(home, options.read_commands)
    if not options.json:
        say(line)


def _write_new(path: str, text: str, access: int) -> bool:
    """Write a new file; return False if the path exists, also as a link."""
    os.makedirs(os.path.dirname(path), mode=access, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access & 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True


_EDITORS = {"zed": "zed", "nvim": "neovim", "code": "vscode", "emacs": "emacs", "idea": "jetbrains"}
_AGENTS = ("claude", "codex", "gemini", "opencode", "goose")
_CONFIGURATIONS = (
    "~/.cursor/mcp.json",
    "~/.config/Claude/claude_desktop_config.json",
    "~/.config/Code/User/mcp.json",
    "~/.config/zed/settings.json",
)


def guide(home: Home) -> None:
    """Ask the setup questions, print suggestions, and make one sample call."""
    offer_models = port("offer_models")
    if offer_models is not None:
        offer_models(home)
    offer_read_commands(home)
    for line in _suggestions():
        print(line)
    print("\nA sample call, which changes nothing ($ callgate call list_dir):")
    sys.stdout.flush()
    from callgate.cli.commands.call import call  # lazy: heavy, and only at the end  # noqa: PLC0415
    from callgate.cli.options import read_call  # lazy: with it  # noqa: PLC0415

    call(read_call(["list_dir"]))
    print("The call is recorded: see callgate audit tail. More commands: callgate help.")


def _suggestions() -> list[str]:
    """Return a line for each installed program that can work with callgate."""
    lines = [
        f"{program} is installed: callgate acp --print-config {editor} makes callgate its agent"
        for program, editor in _EDITORS.items()
        if shutil.which(program)
    ]
    lines += [
        f"{agent} is installed: callgate mcp serve --print-config gives it callgate's tools"
        for agent in _AGENTS
        if shutil.which(agent)
    ]
    lines += [
        f"{path} exists: callgate mcp import {path} puts its servers behind callgate"
        for path in _CONFIGURATIONS
        if os.path.isfile(os.path.expanduser(path))
    ]
    return lines
