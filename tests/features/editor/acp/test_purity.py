"""Nothing but protocol on stdout, and nothing left behind, however an agent ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import CALLGATE, LIMIT_S, Editor, environment
from tests.features.editor.acp.models import Asks, Models, Says
from tests.features.editor.acp.talks import Fault
from tests.features.editor.acp.test_files import shown

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOISY = f'\n[tools]\nload = ["{Path(__file__).parent / "noisy.py"}"]\n'


@pytest.mark.spec("S2-01")
async def test_whatever_tools_print_stays_off_the_wire(new_home: NewHome, workspace: Path) -> None:
    loud = {"PYTHONWARNINGS": "always", "PYTHONDEVMODE": "1"}
    async with Editor.opened(new_home(tables=NOISY), "-vv", env=loud) as editor:
        talk = await editor.new(workspace, mode="write")
        ends = [
            (await talk.tool(name, "{}"))["status"]
            for name in ("noisy_here", "noisy_apart", "fails_here", "dies_apart")
        ]
        assert ends == ["completed", "completed", "failed", "failed"]
        card = await talk.tool("shell", '{"command": "echo to stdout; echo to stderr >&2"}')
        assert "to stdout\n" in shown(card)
        assert "raised by a tool" not in str([each for each in talk.cards() if each["title"].startswith("fails")])
    assert editor.problems == []  # each line was a message, and one that the schema knows
    assert "from a child" in editor.logged()


@pytest.mark.spec("S2-01")
async def test_an_agent_that_crashes_leaves_whole_messages_behind(new_home: NewHome, workspace: Path) -> None:
    editor = await Editor.spawned(new_home(tables=NOISY))
    try:
        await editor.greet({})
        talk = await editor.new(workspace)
        running = talk.start("/tool dies_here {}")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(running, LIMIT_S)
        assert await editor.process.wait() == -signal.SIGABRT
    finally:
        await editor.stop()
    assert editor.problems == []
    assert "last words" in editor.logged()


@pytest.mark.spec("S2-01")
@pytest.mark.parametrize(
    "settings", ["model = ", "nonsense = 1\n", 'model = "missing"\n'], ids=["no TOML", "unknown key", "unknown model"]
)
async def test_settings_that_cannot_be_used_are_told_as_an_error_of_the_protocol(
    tmp_path: Path, workspace: Path, settings: str
) -> None:
    home = tmp_path / "person/.callgate"
    home.mkdir(parents=True, mode=0o700)
    (home / "settings.toml").write_text(settings)
    editor = await Editor.spawned(home)
    await editor.greet({})
    try:
        opened = await editor.ask("session/new", {"cwd": str(workspace), "mcpServers": []})
        prompt = [{"type": "text", "text": "hello"}]
        assert await editor.refused("session/prompt", {"sessionId": opened["sessionId"], "prompt": prompt}) < 0
    except Fault as fault:
        assert (fault.code < 0, str(fault) != "") == (True, True)
    finally:
        await editor.stop()
    assert editor.problems == []


@pytest.mark.spec("S2-01")
async def test_at_a_terminal_it_says_that_it_is_for_editors(tmp_path: Path) -> None:
    ends, ours = os.openpty()
    try:
        ran = await asyncio.to_thread(
            subprocess.run,
            [*CALLGATE, "acp"],
            stdin=ours,
            stdout=ours,
            stderr=subprocess.PIPE,
            env=environment(tmp_path / "person/.callgate"),
            timeout=LIMIT_S,
            start_new_session=True,
        )
    finally:
        os.close(ends)
        os.close(ours)
    assert (ran.returncode, b"--print-config" in ran.stderr) == (2, True)


class Alive:
    """A command that holds a pipe open as long as any of its processes lives."""

    def __init__(self, workspace: Path, *, stubborn: bool) -> None:
        """With a child of its own session, which no signal to a group reaches; a stubborn one
        also ignores signals, until it is killed 5 s later."""
        self.path = workspace / "alive"
        os.mkfifo(self.path)
        deaf = "trap '' TERM INT HUP; " if stubborn else ""
        self.command = f"exec 3>alive; setsid sleep 1000 & ({deaf}echo begun >&3; sleep 1000; sleep 1000) & sleep 1000"
        self._opened = asyncio.ensure_future(asyncio.to_thread(self._open))

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY)  # returns when the command has opened it

    async def begun(self) -> None:
        self._pipe = await asyncio.wait_for(self._opened, LIMIT_S)
        assert await asyncio.to_thread(os.read, self._pipe, 6) == b"begun\n"

    async def gone(self) -> None:
        try:
            assert await asyncio.wait_for(asyncio.to_thread(os.read, self._pipe, 1), LIMIT_S) == b""
        finally:
            os.close(self._pipe)

    def release(self) -> None:
        """Whoever still waits for it to be opened goes on."""
        if not self._opened.done():
            os.close(os.open(self.path, os.O_RDWR))


@asynccontextmanager
async def busy(
    home: Path, workspace: Path, models: Models, *, stubborn: bool
) -> AsyncIterator[tuple[Editor, asyncio.Future, Alive]]:
    """An agent in the middle of a turn whose command runs here."""
    alive = Alive(workspace, stubborn=stubborn)
    editor = await Editor.spawned(home)
    try:
        await editor.greet({})
        talk = await editor.new(workspace, mode="write")
        running = talk.start(
            f"go {models.play(Says(calls=[Asks('shell', {'command': alive.command})]), Says('never'))}"
        )
        await alive.begun()
        yield editor, running, alive
    finally:
        alive.release()
        await editor.stop()


@pytest.mark.spec("S2-78", "S2-23")
@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGKILL, True), (signal.SIGTERM, False), (signal.SIGINT, False), (None, True)]
)
async def test_however_an_agent_ends_no_child_and_no_lock_is_left(
    new_home: NewHome, workspace: Path, models: Models, number: signal.Signals | None, stubborn: bool
) -> None:
    """Killed, told to end, interrupted, or left by its editor."""
    home = new_home()
    async with busy(home, workspace, models, stubborn=stubborn) as (editor, running, alive):
        if number is None:
            assert editor.process.stdin is not None
            editor.process.stdin.close()
        else:
            os.kill(editor.process.pid, number)
        await asyncio.wait_for(editor.process.wait(), LIMIT_S)
        await alive.gone()
        [outcome] = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(outcome, ConnectionError) or outcome == {"stopReason": "cancelled"}
        [id] = editor.talks
    assert editor.problems == []
    async with Editor.opened(home) as second:
        again = await second.load(id, workspace)
        assert [card["status"] for card in again.cards()] == ["failed"]


@pytest.mark.spec("S2-78")
async def test_an_editor_that_no_longer_listens_ends_the_agent(new_home: NewHome, workspace: Path) -> None:
    editor = await Editor.spawned(new_home())
    try:
        await editor.greet({})
        transport = editor.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        transport.close()
        editor.start("session/new", {"cwd": str(workspace), "mcpServers": []})
        await asyncio.wait_for(editor.process.wait(), LIMIT_S)
    finally:
        await editor.stop()


@pytest.mark.spec("S2-78")
async def test_half_a_line_at_the_end_is_nothing(new_home: NewHome) -> None:
    editor = await Editor.spawned(new_home())
    await editor.greet({})
    assert editor.process.stdin is not None
    editor.process.stdin.write(b'{"jsonrpc": "2.0", "id": 9, "method": "session/li')
    assert await editor.stop() == 0
    assert ([each["id"] for each in editor.received], editor.problems) == ([1], [])


@pytest.mark.spec("S2-78")
async def test_an_agent_that_was_never_greeted_ends_with_its_stdin(new_home: NewHome) -> None:
    editor = await Editor.spawned(new_home())
    assert await editor.stop() == 0
    assert editor.lines == []


async def test_tools_do_not_see_the_wire(new_home: NewHome, workspace: Path) -> None:
    """No descriptor of the protocol is inherited by what the agent starts."""
    async with Editor.opened(new_home()) as editor:
        talk = await editor.new(workspace, mode="write")
        command = "for fd in 0 1 2 3 4 5 6 7 8 9; do echo fake >&$fd; done 2>/dev/null; ls -l /proc/self/fd"
        card = await talk.tool("shell", '{"command": "' + command + '"}')
        assert card["status"] in ("completed", "failed")
    assert editor.problems == []
