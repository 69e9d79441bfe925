"""What `shell` says where a command met the edge of its sandbox, on every backend that is here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.sessions import Mode
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.sandbox.jails import Limits
from callgate.tools.shell import Shell
from tests.kernel.sandbox.test_escapes import needed
from tests.kernel.sandbox.worlds import PYTHON
from tests.needs import needs
from tests.support import Bench

pytestmark = needs("linux", "bash", PYTHON)

MIB = 1024 * 1024
LIMITS = Limits(memory_bytes=100 * MIB, processes=60, output_bytes=MIB, cpu_seconds=1)

BOMB = "bomb() { if [ $1 = 0 ]; then sleep 600; else bomb $(($1 - 1)) | bomb $(($1 - 1)) & wait; fi; }; bomb 8"
"""It doubles only so often, so that a machine on which nothing holds it survives the test."""


@pytest.fixture(params=["landlock", "namespaces", "bubblewrap"])
def backends(request: pytest.FixtureRequest) -> Any:
    return tuple(needed({"seccomp", request.param}))


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as base:
        home = Path(os.path.realpath(base)) / "home"
        for name in ("project", ".callgate", ".pyenv", "diary"):
            (home / name).mkdir(parents=True)
        (home / ".pyenv" / "version").write_text("3.11")
        (home / "diary" / "today").write_text("private")
        (home / ".token-of-a-tool-nobody-knows").write_text("private")
        yield home


@pytest.fixture
async def bench(home: Path, backends: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("HOME", str(home))
    around = Surroundings(home=str(home), callgate_home=str(home / ".callgate"), limits=LIMITS)
    sandbox = Sandbox(around, backends)
    yield Bench(home / "project", Shell, sandbox=sandbox, mode=Mode.READ)
    sandbox.close()


async def shown(bench: Bench, command: str) -> str:
    result = await bench.run("shell", {"command": command})
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        (BOMB, "processes"),
        (f"{PYTHON} -c 'import time; a = bytearray(300_000_000); time.sleep(600)'", "memory_bytes"),
        ("yes", "output_bytes"),
        ("while :; do :; done", "cpu_seconds"),
    ],
)
async def test_a_result_says_which_limit_ended_a_command(bench: Bench, command: str, limit: str) -> None:
    text = await shown(bench, command)
    assert text.rstrip().endswith(f"[ended: more than `{limit}` of `[sandbox.limits]` allows]")


@pytest.mark.parametrize("name", ["diary/today", ".token-of-a-tool-nobody-knows"])
@pytest.mark.parametrize("prefix", ["~", "$HOME", ".."])
async def test_a_command_that_could_not_see_a_file_is_told_so(bench: Bench, home: Path, name: str, prefix: str) -> None:
    text = await shown(bench, f"cat {prefix}/{name}")
    assert "private" not in text
    if prefix != "..":
        assert f"[not visible in the sandbox: {home / name}; `[sandbox] readable` can show it]" in text


async def test_nothing_is_said_where_nothing_was_missed(bench: Bench) -> None:
    text = await shown(bench, "cat ~/.pyenv/version ~/nothing; cat /nowhere")
    assert text.startswith("3.11") and "not visible" not in text
