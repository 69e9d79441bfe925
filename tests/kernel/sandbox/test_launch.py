"""What a command sees of our environment, and the door it is started through."""

from __future__ import annotations

import os

import pytest

from callgate.core.commands import Exit
from callgate.sandbox.plans import Command, child_environment
from tests.support import UnwalledLauncher

SECRETS = {
    "OPENAI_API_KEY": "sk-1",
    "AWS_SECRET_ACCESS_KEY": "x",
    "GITHUB_TOKEN": "ghp",
    "DATABASE_URL": "postgres://u:p@h/d",
    "SSH_AUTH_SOCK": "/run/agent",
    "LC_PASSWORD": "x",
    "XDG_SECRET": "x",
    "LD_PRELOAD": "/tmp/evil.so",
    "BASH_ENV": "/tmp/evil.sh",
    "BASH_FUNC_ls%%": "() { evil; }",
    "ENV": "/tmp/evil.sh",
    "SHELLOPTS": "xtrace",
    "PROMPT_COMMAND": "evil",
    "PYTHONSTARTUP": "/tmp/evil.py",
    "NODE_OPTIONS": "--require /tmp/evil.js",
    "GIT_SSH_COMMAND": "evil",
    "CALLGATE_HOME": "/home/me/.callgate",
    "CALLGATE_CALL": "1",
    "callgate_home": "/home/me/.callgate",
}
HARMLESS = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TERM": "xterm",
    "TMPDIR": "/tmp",
    "VIRTUAL_ENV": "/venv",
    "https_proxy": "http://proxy:3128",
    "NO_PROXY": "localhost",
}


def test_only_named_variables_reach_a_command() -> None:
    assert child_environment(SECRETS | HARMLESS) == HARMLESS


def test_a_proxy_with_a_password_stays_behind() -> None:
    proxies = {"HTTPS_PROXY": "http://me:secret@proxy:3128", "http_proxy": "http://proxy:3128"}
    assert child_environment(proxies) == {"http_proxy": "http://proxy:3128"}


async def test_a_command_gets_its_directory_and_its_environment_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp")
    monkeypatch.setenv("CALLGATE_HOME", "/home/me/.callgate")
    pieces: list[bytes] = []
    command = Command(argv=("/usr/bin/env",), cwd="/usr", env={"COLOUR": "blue"})
    running = await UnwalledLauncher().start(command, lambda stream, data: pieces.append(data))
    assert await running.wait() == Exit(code=0)
    names = {line.split(b"=")[0] for line in b"".join(pieces).splitlines()}
    assert names == {b"COLOUR", b"CALLGATE_CALL"}


async def test_a_command_runs_in_its_directory() -> None:
    pieces: list[bytes] = []
    command = Command(argv=("/bin/pwd",), cwd="/usr", env={"PATH": os.environ["PATH"]})
    await (await UnwalledLauncher().start(command, lambda stream, data: pieces.append(data))).wait()
    assert pieces == [b"/usr\n"]
