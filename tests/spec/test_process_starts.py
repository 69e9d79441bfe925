"""Processes are started by the broker and by nobody else: whoever adds another way is found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import callgate
import callgate_catalogue

PACKAGE = Path(callgate.__file__).parent
CATALOGUE = Path(callgate_catalogue.__file__).parent
STARTERS = {
    "sandbox/processes/broker_client.py": "starts the broker",
    "sandbox/processes/broker.py": "forks the keeper of a command",
    "sandbox/processes/preparing.py": "forks the command",
    "sandbox/backends/restrict.py": "becomes the command",
    "sandbox/backends/namespaces.py": "forks into namespaces",
    "sandbox/meters.py": "forks a child that tries whether it may fork, and ends",
    "config/secrets.py": "runs the user's own key_command, which no model and no workspace can set",
    "callgate_catalogue/memory/command_line.py": "the user's own EDITOR, at their terminal",
    "instance/watchdog.py": "forks what watches our own loop: it runs no command",
    "cli/main.py": "becomes the hook of an agent: a script in our home that asks an instance",
    "cli/commands/demo_stage.py": "callgate itself: an instance and commands in the temporary home of the demo",
    "features/agents/commands/hook.py": "becomes the hook of an agent, where its options have to be explained",
    "features/agents/commands/checks.py": "asks the user's own agents for their versions, at their terminal",
    "features/agents/known/codex.py": "asks the user's own codex which hooks it trusts, at their terminal",
    "features/agents/commands/trying.py": "the user's own agent and its hook entry, at their terminal, to try them",
    "features/agents/commands/instance_start.py": "callgate itself, in the background, and systemctl --user at the terminal",
    "features/agents/commands/sandbox.py": "forks the keeper of a command at the user's terminal",
    "cli/commands/on_demand.py": "callgate itself, as an instance in the background",
    "sandbox/backends/cgroups.py": "forks a keeper into its group",
    "host/scripts.py": "runs scripts inside a host's own jail",
    "host/zygote.py": "forks hosts, which are ours and run no command",
    "callgate_catalogue/pdfs.py": "our own reader of PDFs: it runs no command, and takes only bytes",
    "workspace/search.py": "our own matcher: it runs no command, and takes only text",
}
MODULES = frozenset({"subprocess", "multiprocessing", "pty", "_posixsubprocess", "concurrent.futures.process"})
NAMES = frozenset(
    {
        "fork",
        "forkpty",
        "vfork",
        "system",
        "popen",
        "Popen",
        "posix_spawn",
        "posix_spawnp",
        "startfile",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "subprocess_exec",
        "subprocess_shell",
        "ProcessPoolExecutor",
        "fork_exec",
    }
)
PREFIXES = ("exec", "spawn")
CALLS = frozenset({"clone", "clone3", "fork", "vfork", "execve", "execveat"})
_SUSPECT = re.compile(
    r"fork|system|popen|Popen|startfile|clone|subprocess|multiprocessing|\bpty\b|concurrent|ProcessPool"
    r"|import_module|__import__|\bexec(?!ut)|spawn"
)
"""A module without one of these words starts no process, and is not parsed."""


def starts(source: str) -> Iterator[str]:
    """What in a module can start a process: an import, an attribute, or a raw system call."""
    if not _SUSPECT.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {each.name for each in node.names}
            if node.module in MODULES or (node.module in ("os", "asyncio") and any(map(_starts, names))):
                yield f"{node.module}: {names}"
        elif isinstance(node, ast.Attribute) and _starts(node.attr) and _of_system(node.value):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and _name(node.func) == "call" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and first.value in CALLS:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            if any(isinstance(each, ast.Constant) and each.value in MODULES for each in node.args):
                yield ast.unparse(node)


def _starts(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)


def _of_system(node: ast.expr) -> bool:
    return _name(node) in ("os", "posix", "asyncio", "subprocess", "futures", "loop", "get_running_loop")


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def modules() -> Iterator[tuple[str, str]]:
    """Each of both packages, and what it says."""
    for package, above in ((PACKAGE, PACKAGE), (CATALOGUE, CATALOGUE.parent)):
        for path in sorted(package.rglob("*.py")):
            yield str(path.relative_to(above)), path.read_text()


def test_no_module_starts_a_process_but_those_that_are_named() -> None:
    found = {name: list(starts(source)) for name, source in modules()}
    assert {name for name, ways in found.items() if ways} == set(STARTERS)


def test_every_way_to_start_a_process_would_be_found() -> None:
    ways = [
        "import subprocess",
        "from subprocess import run",
        "import os\nos.fork()",
        "import os\nos.execvp('x', [])",
        "import os\nos.spawnl(0, 'x')",
        "import os\nos.system('x')",
        "import os\nos.posix_spawn('x', [], {})",
        "from os import popen",
        "import pty",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "kernel.call('clone', 0)",
        "asyncio.get_running_loop().subprocess_exec(f)",
        "from multiprocessing import Process",
        "import_module('subprocess')",
    ]
    assert [way for way in ways if not list(starts(way))] == []
