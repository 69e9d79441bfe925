"""The shell tool: what a command's caller gets, while it runs and when it has ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from callgate.core.commands import OnOutput
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects, derive
from callgate.core.errors import (
    ToolCancelled,
    ToolExecutionError,
    ToolTimeout,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.tools import Tool, ToolContext, ToolOutput
from callgate.sandbox.plans import Command, Running
from callgate.tools.shell import LONGEST_COMMAND, Shell
from callgate.tools.shell_results import SHOWN
from tests.support import UnwalledLauncher


class Call:
    """One execution of the tool: its context, what it published, and where it keeps files."""

    def __init__(self, workspace: Path, keep: Path | None = None, deaf: bool = False, **shell: Any) -> None:
        self.tool = Shell(**{"launcher": UnwalledLauncher(), **shell})
        self.published: list[tuple[str, Mapping[str, Any]]] = []
        self._news = asyncio.Event()
        self.context = ToolContext(
            session_id="sess_1",
            turn_id=None,
            tool_use_id="tu_1",
            workspace_path=str(workspace),
            cancel_event=asyncio.Event(),
            logger=logging.getLogger("test"),
            open_files=_no_files,
            publish=(lambda kind, payload: None) if deaf else self._publish,
            artifact=lambda name: None if keep is None else str(keep / name),
        )

    def _publish(self, kind: str, payload: Mapping[str, Any]) -> None:
        self.published.append((kind, payload))
        self._news.set()

    async def run(self, command: str, **more: Any) -> ToolOutput:
        async with asyncio.timeout(60):
            return await self.tool.execute({"command": command, **more}, self.context)

    def live(self, stream: str) -> str:
        return "".join(each["text"] for _, each in self.published if each["stream"] == stream)

    async def until(self, text: str, stream: str = "stdout") -> None:
        async with asyncio.timeout(60):
            while text not in self.live(stream):
                self._news.clear()
                await self._news.wait()


def _no_files() -> NoReturn:
    raise AssertionError("a shell needs no file API")


def text(output: ToolOutput) -> str:
    (block,) = output.content
    assert isinstance(block, TextBlock)
    return block.text


def value(stdout: str = "", stderr: str = "", code: int | None = 0, **more: Any) -> dict[str, Any]:
    return {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": code,
        "signal": None,
        "truncated": False,
        "stdout_path": None,
        "stderr_path": None,
        "background_ended": 0,
        **more,
    }


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.spec("S4-75")
def test_the_definition_says_what_a_shell_can_do() -> None:
    definition = Shell.definition
    assert isinstance(Shell(), Tool)
    assert (definition.name, definition.aliases, definition.kind, definition.source) == (
        "shell",
        ("execute_command", "terminal_execute"),
        "execute",
        "builtin",
    )
    assert definition.capabilities == {Capability.STARTS_PROCESS}
    assert derive(definition.capabilities) is definition.side_effects is SideEffects.EXECUTE


@pytest.mark.spec("S4-75", "S4-76")
async def test_a_command_runs_in_the_workspace(tmp_path: Path) -> None:
    assert await Call(tmp_path).run("pwd") == ToolOutput(
        content=[TextBlock(f"{tmp_path}\n")],
        command_executed="pwd",
        value=value(f"{tmp_path}\n"),
    )


async def test_a_command_runs_in_the_directory_it_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for cwd in "sub", "./sub", str(tmp_path / "sub"), "sub/../sub":
        assert text(await Call(tmp_path).run("pwd", cwd=cwd)) == f"{tmp_path}/sub\n"


@pytest.mark.spec("S4-75")
async def test_a_failing_command_is_a_result_with_its_output_and_its_code(tmp_path: Path) -> None:
    output = await Call(tmp_path).run("echo out; printf err >&2; exit 3")
    assert output == ToolOutput(
        content=[TextBlock("out\n[stderr]\nerr\n[exit code 3]")],
        success=False,
        command_executed="echo out; printf err >&2; exit 3",
        value=value("out\n", "err", 3),
    )


async def test_a_silent_success_is_an_empty_text(tmp_path: Path) -> None:
    assert text(await Call(tmp_path).run("true")) == ""


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40")])
async def test_a_command_that_a_signal_ended_names_it(number: int, name: str, tmp_path: Path) -> None:
    output = await Call(tmp_path).run(f"kill -{number} $$")
    assert (text(output), output.success) == (f"[ended by {name}]", False)
    assert output.value == value(code=None, signal=name)


async def test_binary_output_is_shown_with_replacements(tmp_path: Path) -> None:
    call = Call(tmp_path)
    output = await call.run(r"printf 'a\xff\x00b\xe2\x82'")
    assert text(output) == call.live("stdout") == "a\ufffd\x00b\ufffd"


@pytest.mark.parametrize("command", ["-x", "--version", "+e", "-", "-c"])
async def test_no_command_is_taken_for_an_option(command: str, tmp_path: Path) -> None:
    """Each is the name of a program that does not exist, which is what 127 says."""
    assert (await Call(tmp_path).run(command)).value["exit_code"] == 127


async def test_no_file_of_the_users_shell_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ".bashrc", ".profile", ".bash_profile":
        (tmp_path / name).write_text("echo intruder\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BASH_ENV", str(tmp_path / ".bashrc"))
    monkeypatch.setenv("ENV", str(tmp_path / ".bashrc"))
    assert text(await Call(tmp_path).run("echo $HOME")) == f"{tmp_path}\n"


async def test_no_secret_of_ours_is_in_the_commands_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("CALLGATE_HOME", "/home/me/.callgate")
    shown = text(await Call(tmp_path).run("env"))
    assert ("sk-secret" in shown, "CALLGATE_HOME" in shown, "PATH=" in shown) == (
        False,
        False,
        True,
    )


async def test_an_environment_can_be_given(tmp_path: Path) -> None:
    call = Call(tmp_path, environment={"COLOUR": "blue"})
    assert text(await call.run("echo $COLOUR")) == "blue\n"


# --- what is refused before anything starts ----------------------------------------------


class NeverStarts:
    async def start(self, command: Command, on_output: OnOutput) -> Running:
        raise AssertionError("a refused command must not start")


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "echo \udcff", "#" * (LONGEST_COMMAND + 1)])
async def test_a_command_that_no_shell_can_take_never_starts(command: str, tmp_path: Path) -> None:
    with pytest.raises(ToolValidationError):
        await Call(tmp_path, launcher=NeverStarts()).run(command)


async def test_the_longest_command_runs(tmp_path: Path) -> None:
    assert (await Call(tmp_path).run("#" * LONGEST_COMMAND)).success


@pytest.mark.parametrize("cwd", ["..", "/", "/etc", "sub/../..", "link", "link/deeper", "a/../../b"])
async def test_a_directory_outside_the_workspace_never_starts(cwd: str, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    (workspace / "sub").mkdir(parents=True)
    (tmp_path / "work-not").mkdir()
    (workspace / "link").symlink_to(tmp_path / "work-not")
    for place in cwd, f"{workspace}-not":
        with pytest.raises(WorkspaceEscapeError):
            await Call(workspace, launcher=NeverStarts()).run("true", cwd=place)


@pytest.mark.parametrize(
    ("cwd", "error"),
    [
        ("missing", ToolExecutionError),
        ("file", ToolExecutionError),
        ("nul\0", ToolValidationError),
    ],
)
async def test_a_directory_that_is_none_never_starts(cwd: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(error):
        await Call(tmp_path, launcher=NeverStarts()).run("true", cwd=cwd)


async def test_a_cancelled_call_never_starts(tmp_path: Path) -> None:
    call = Call(tmp_path, launcher=NeverStarts())
    call.context.cancel_event.set()
    with pytest.raises(ToolCancelled):
        await call.run("true")


async def test_a_command_the_system_cannot_start_is_an_execution_error(tmp_path: Path) -> None:
    class Refusing:
        async def start(self, command: Command, on_output: OnOutput) -> Running:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(ToolExecutionError):
        await Call(tmp_path, launcher=Refusing()).run("true")


# --- time and cancellation ---------------------------------------------------------------


@pytest.mark.spec("T-8")
async def test_a_command_is_ended_when_its_time_is_up_and_shows_what_it_had(
    tmp_path: Path,
) -> None:
    call = Call(tmp_path)
    with pytest.raises(ToolTimeout) as caught:
        await call.run("echo begun; sleep 300 & echo $! > pid; wait", timeout_seconds=1)
    assert caught.value.details == {
        "partial_output": "begun\n[stopped before it ended]",
        "timeout_seconds": 1,
    }
    assert not running(int((tmp_path / "pid").read_text()))


@pytest.mark.spec("T-8")
async def test_a_command_that_ends_in_time_is_no_timeout(tmp_path: Path) -> None:
    assert (await Call(tmp_path).run("true", timeout_seconds=20)).success


@pytest.mark.spec("S4-65", "S4-66", "T-7")
async def test_a_cancelled_command_returns_what_it_had_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    call = Call(tmp_path, grace=0.1)
    task = asyncio.create_task(call.run("trap '' TERM; sleep 300 & echo $! > pid; echo begun; while :; do wait; done"))
    await call.until("begun\n")
    assert await call.tool.cancel()
    output = await task
    assert (text(output), output.success) == ("begun\n[stopped before it ended]", False)
    assert output.value == value("begun\n", code=None, signal="SIGKILL")
    assert not running(int((tmp_path / "pid").read_text()))


@pytest.mark.spec("S4-65")
async def test_a_command_that_listens_ends_without_being_killed(tmp_path: Path) -> None:
    call = Call(tmp_path)
    task = asyncio.create_task(
        call.run("trap 'echo saved; exit 0' TERM; echo begun; while :; do read; done < <(sleep 300)")
    )
    await call.until("begun\n")
    await call.tool.cancel()
    output = await task
    assert (output.value, output.success) == (value("begun\nsaved\n"), False)


@pytest.mark.spec("S4-68", "S4-69")
async def test_cancelling_is_idempotent_and_false_when_nothing_runs(tmp_path: Path) -> None:
    call = Call(tmp_path)
    assert await call.tool.cancel() is False
    task = asyncio.create_task(call.run("echo begun; exec sleep 300"))
    await call.until("begun\n")
    assert [await call.tool.cancel(), await call.tool.cancel()] == [True, True]
    output = await task
    assert output.value == value("begun\n", code=None, signal="SIGTERM")
    assert await call.tool.cancel() is False


@pytest.mark.spec("S4-70")
async def test_two_stubborn_shells_are_stopped_side_by_side(tmp_path: Path) -> None:
    """Both are asked although neither has ended, and neither would for ten minutes."""
    calls = [Call(tmp_path, grace=600), Call(tmp_path, grace=600)]
    command = "trap 'echo asked' TERM; echo $$ begun; while :; do read; done < <(sleep 300)"
    tasks = [asyncio.create_task(call.run(command)) for call in calls]
    for call in calls:
        await call.until("begun\n")
    assert [await call.tool.cancel() for call in calls] == [True, True]
    for call in calls:
        await call.until("asked\n")
    for call in calls:
        os.kill(int(call.live("stdout").split()[0]), signal.SIGKILL)
    assert [(await task).value["signal"] for task in tasks] == ["SIGKILL", "SIGKILL"]


async def test_a_cancel_that_comes_while_the_launcher_works_is_not_lost(tmp_path: Path) -> None:
    call: Call

    class Slow:
        async def start(self, command: Command, on_output: OnOutput) -> Running:
            call.context.cancel_event.set()
            assert await call.tool.cancel() is False
            return await UnwalledLauncher().start(command, on_output)

    call = Call(tmp_path, launcher=Slow())
    assert (await call.run("sleep 300")).value == value(code=None, signal="SIGTERM")


async def test_a_cancelled_task_leaves_no_process(tmp_path: Path) -> None:
    call = Call(tmp_path)
    task = asyncio.create_task(call.run("setsid sleep 300 & echo $! > pid; echo begun; wait"))
    await call.until("begun\n")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running(int((tmp_path / "pid").read_text()))


@pytest.mark.spec("S4-66", "T44")
async def test_a_background_process_is_ended_with_its_command_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    output = await Call(tmp_path).run("setsid sleep 300 & echo $!")
    pid, remark = text(output).splitlines()
    assert (running(int(pid)), output.success) == (False, True)
    assert remark == "[processes left in the background were ended: 1]"
    assert output.value == value(f"{pid}\n", background_ended=1)


# --- output ------------------------------------------------------------------------------


async def test_output_is_published_while_the_command_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    call = Call(tmp_path)
    task = asyncio.create_task(call.run("echo one; echo two >&2; read < go; echo three"))
    await call.until("one\n")
    await call.until("two\n", "stderr")
    assert not task.done()
    (tmp_path / "go").write_text("\n")
    await task
    assert {kind for kind, _ in call.published} == {"tool.output_delta"}
    assert (call.live("stdout"), call.live("stderr")) == ("one\nthree\n", "two\n")


@pytest.mark.spec("S4-77")
async def test_long_output_shows_both_ends_and_the_file_that_has_it_all(tmp_path: Path) -> None:
    output = await Call(tmp_path, keep=tmp_path).run("seq 100000; echo oops >&2")
    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    front, back = whole[: (SHOWN - 5) // 2], whole[-((SHOWN - 5) // 2) :]
    left_out = len(whole) - len(front) - len(back)
    mark = f"[... {left_out} bytes left out; whole output in {tmp_path}/stdout.txt]"
    shown = f"{front}\n{mark}\n{back}"
    assert output.value == value(shown, "oops\n", truncated=True, stdout_path=f"{tmp_path}/stdout.txt")
    assert (text(output), output.truncated) == (f"{shown}[stderr]\noops\n", True)
    assert (tmp_path / "stdout.txt").read_text() == whole
    assert not (tmp_path / "stderr.txt").exists()


@pytest.mark.spec("S4-77")
async def test_both_streams_together_stay_within_the_bound(tmp_path: Path) -> None:
    half = "head -c 200000 /dev/zero | tr '\\0'"
    output = await Call(tmp_path, keep=tmp_path).run(f"{half} o; {half} e >&2")
    shown = output.value["stdout"].count("o") + output.value["stderr"].count("e")
    assert SHOWN <= shown < SHOWN + 100  # the marks have letters too
    assert (tmp_path / "stdout.txt").read_bytes() == b"o" * 200_000
    assert (tmp_path / "stderr.txt").read_bytes() == b"e" * 200_000


@pytest.mark.spec("S4-77")
async def test_a_flood_of_output_takes_bounded_memory(tmp_path: Path) -> None:
    size = 100_000_000
    call = Call(tmp_path, keep=tmp_path, deaf=True)
    tracemalloc.start()
    try:
        output = await call.run(f"head -c {size} /dev/zero")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (output.success, output.truncated, peak < 8_000_000) == (True, True, True)
    assert "the first 67108864 bytes in" in text(output)
    assert (tmp_path / "stdout.txt").stat().st_size < 65 * 1024 * 1024


async def test_many_shells_run_at_once(tmp_path: Path) -> None:
    outputs = await asyncio.gather(*(Call(tmp_path).run(f"echo {n}") for n in range(50)))
    assert [text(output) for output in outputs] == [f"{n}\n" for n in range(50)]


def test_the_preview_shows_the_command_and_where_it_will_run() -> None:
    environment: Any = None
    assert Shell().preview({"command": "make"}, environment) == "make"
    assert Shell().preview({"command": "make", "cwd": "src"}, environment) == "in src:\nmake"
