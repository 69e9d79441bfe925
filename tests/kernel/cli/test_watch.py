"""`callgate watch`: every call of this home as it happens, and its questions."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from callgate import Gate, connect
from callgate.core.events import CALLED, COMPLETED, FAILED, Event
from callgate.core.ids import call_id
from callgate.core.ops import Append
from tests.kernel.cli.running import LIMIT_S, AtTerminal, callgate
from tests.kernel.cli.running import start as start_command
from tests.kernel.cli.stored import acquire, ask, opened
from tests.kernel.client.instances import serving
from tests.kernel.contract.stores import event, new_session


class Watcher:
    """A process that watches; its lines, each awaited for a bounded time."""

    def __init__(self, *words: str, cwd: Path, **env: str) -> None:
        self.process: subprocess.Popen[bytes] = start_command(
            "watch", *words, cwd=cwd, env={"PYTHONUNBUFFERED": "", **env}
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = self.process.stdout, self.process.stderr

    async def ready(self) -> Watcher:
        assert (await self.line(self.err)).startswith("callgate: watching")
        return self

    async def line(self, stream: IO[bytes] | None = None) -> str:
        reading = asyncio.create_task(asyncio.to_thread((stream or self.out).readline))
        if not (await asyncio.wait({reading}, timeout=LIMIT_S))[0]:
            self.process.kill()  # which ends the read that nothing else can end
        return (await reading).decode().rstrip("\n")

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def until(self, mark: str) -> str:
        while line := await self.line():
            if mark in line:
                return line
        raise AssertionError(f"no {mark}")

    async def end(self) -> tuple[int, str]:
        code = await asyncio.to_thread(self.process.wait, LIMIT_S)
        return code, self.err.read().decode()

    async def interrupt(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        return await self.end()


Watch = Callable[..., Awaitable[Watcher]]


@pytest.fixture
def watch(ws: Path) -> Iterator[Watch]:
    """Starts watchers, each known to watch."""
    started: list[Watcher] = []

    async def start(*words: str, **env: str) -> Watcher:
        started.append(Watcher(*words, cwd=ws, **env))
        return await started[-1].ready()

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.out.close()
        each.err.close()


def shape(line: str) -> str:
    """Without times and ids."""
    return re.sub(r"^\d\d:\d\d:\d\d  \S{12}  |\d+ ms$", "", line).strip()


async def test_a_call_is_a_line_when_it_starts_and_one_when_it_ends(watch: Watch, ws: Path, home: Path) -> None:
    watcher = await watch()
    async with Gate(ws, home=home, mode="write", title="mine") as gate:
        await gate.call("read_file", {"path": "a.txt"})
        await gate.call("write_file", {"path": "b.txt", "content": "x"})
        await gate.call("read_file", {"path": "none"})
        await gate.call("read_file", {"pth": "a.txt"})
        await gate.call("read_file", {"path": "/etc/passwd"})
        session = gate.session.id[-12:]
    assert " session  mine  " in await watcher.line()
    lines = await watcher.lines(8)
    written = '{"content":"x","path":"b.txt"}'
    assert [re.split("  +", shape(line))[:3] for line in lines] == [
        ["start", "read_file"],
        ["ok", "read_file", '{"path":"a.txt"}'],
        ["start", "write_file", written],
        ["ok", "write_file", written],
        ["start", "read_file"],
        ["failed", "read_file", '{"path":"none"}'],
        ["invalid", "read_file", '{"pth":"a.txt"}'],
        ["refused", "read_file", '{"path":"/etc/passwd"}'],
    ]
    assert {line.split()[1] for line in lines} == {session}
    assert await watcher.interrupt() == (130, "")


async def test_a_question_stands_out_with_the_command_that_answers_it(watch: Watch, ws: Path, home: Path) -> None:
    watcher = await watch()
    call = start_command("call", "write_file", "path=b.txt", "content=x", "--wait", cwd=ws)
    assert shape(await watcher.until(" ASKS ")).startswith('ASKS     write_file  {"content":"x"')
    command, _, rest = (await watcher.line()).strip().partition("  ")
    assert rest == "(or deny)"
    assert (await asyncio.to_thread(callgate, *command.split()[1:], cwd=ws)).code == 0
    assert shape(await watcher.line()).endswith("allow by callgate confirmations")
    assert shape(await watcher.until(" ok ")).startswith("ok       write_file")
    await asyncio.to_thread(call.communicate)
    assert (call.returncode, (ws / "b.txt").read_text()) == (0, "x")
    assert await watcher.interrupt() == (130, "")


async def test_calls_through_an_instance_are_seen_like_all_others(watch: Watch) -> None:
    with serving() as served:
        watcher = await watch("--json", CALLGATE_HOME=str(served.home))
        async with connect(**served.target) as gate:
            result = await gate.call("read_file", path="a.txt")
        events = [json.loads(line) for line in await watcher.lines(2)]
        assert [(each["type"], each["payload"]["call_id"]) for each in events] == [
            (CALLED, result.call_id),
            (COMPLETED, result.call_id),
        ]
        assert (await watcher.interrupt()) == (130, "")


async def test_only_what_was_asked_for_is_shown(watch: Watch, home: Path) -> None:
    async with opened(home) as store:
        one, other = [await new_session(store) for _ in range(2)]
        before = event(one, FAILED, call_id="tu_0", tool_name="first", error_class="timeout")
        await store.commit(Append(session=one, events=(before,)))
        by_tool, errors = await watch("--tool", "first"), await watch("--errors", "--json")
        of_one = await watch("--session", one[-12:], "--json")
        made: list[Event] = []
        for session, tool in ((other, "second"), (one, "first"), (other, "first")):
            call, good = {"call_id": call_id()}, {"call_id": call_id()}
            made += [
                event(session, CALLED, tool_name=tool, side_effects="none", **call),
                event(session, "note"),
                event(session, FAILED, tool_name=tool, error_class="timeout", message="late", **call),
                event(session, CALLED, tool_name=tool, side_effects="none", **good),
                event(session, COMPLETED, success=True, **good),  # names no tool
                event(session, COMPLETED, success=False, **good),
            ]
            await store.commit(Append(session=session, events=tuple(made[-6:])))
        bad = [each.id for each in made if each.type == FAILED or each.payload.get("success") is False]
        assert [json.loads(line)["id"] for line in await errors.lines(6)] == bad
        calls = [each.id for each in made if each.session_id == one and each.type != "note"]
        assert [json.loads(line)["id"] for line in await of_one.lines(5)] == calls
        words = [shape(line).split()[:2] for line in await by_tool.lines(10)]
        assert [word for word, _ in words] == ["session", "start", "failed", "start", "ok"] * 2
    for each in (by_tool, errors, of_one):
        assert (await each.interrupt())[0] == 130


@pytest.mark.spec("T16")
async def test_nothing_that_a_call_brings_can_act_on_the_terminal(watch: Watch, ws: Path, home: Path) -> None:
    watcher = await watch()
    async with opened(home) as store:
        session = await new_session(store, title="\x1b]0;t\x07")
        hostile = "\x1b[2J\r\n\u202e" + "x" * 5_000
        events = [
            event(session, CALLED, call_id="tu_\x1b", tool_name=hostile, side_effects="none"),
            event(session, FAILED, call_id="tu_\x1b", error_class=hostile, message=hostile, latency_ms="x"),
            event(
                session,
                "tool.confirmation_requested",
                call_id="tu_2",
                tool_name=hostile,
                confirmation_request_id=hostile[:20],
                why=hostile,
                input_summary=hostile,
            ),
            event(session, "tool.confirmation_resolved", call_id="tu_2", decision=hostile, by=hostile),
            event(session, "tool.input_invalid", call_id="tu_3", validation_errors=[hostile, 5]),
        ]
        await store.commit(Append(session=session, events=tuple(events)))
    lines = await watcher.lines(7)
    assert [line.isprintable() and len(line) < 300 for line in lines] == [True] * 7
    assert (await watcher.interrupt())[0] == 130


async def test_a_watcher_ends_when_nobody_reads_any_more(watch: Watch) -> None:
    quiet = await watch()
    quiet.out.close()
    assert await quiet.end() == (141, "")


async def test_a_question_that_waits_already_is_shown_first(watch: Watch, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        question = await ask(store, session)
        watcher = await watch()
        asks, command = await watcher.lines(2)
        assert " ASKS     shell  " in asks
        assert f" callgate confirmations allow {question.id} " in command
    assert (await watcher.interrupt())[0] == 130


async def test_a_person_who_watches_can_answer(ws: Path, home: Path) -> None:
    """One question is answered elsewhere, one here, one is left alone, one is refused."""
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        elsewhere = await ask(store, session)
        at = AtTerminal("watch", "--answer", cwd=ws)
        await asyncio.to_thread(at.asked)
        await asyncio.to_thread(callgate, "confirmations", "deny", elsewhere.id, cwd=ws)
        await asyncio.to_thread(at.terminal.read_until, lambda text: "denied by callgate confirmations" in text)
        calls = []
        for number, keys in enumerate(("y\n", "\n", "what\n"), 2):
            call = start_command("call", "write_file", f"path={number}", "content=x", "--wait", cwd=ws)
            calls.append(call)
            await asyncio.to_thread(at.asked, number)
            at.terminal.press(keys)
        await asyncio.to_thread(at.asked, 5)
        at.terminal.press("n\n")
        codes = [await asyncio.to_thread(calls[number].wait, LIMIT_S) for number in (0, 2)]
        (waits,) = await store.open_confirmations()
        calls[1].send_signal(signal.SIGINT)
        for call in calls:
            await asyncio.to_thread(call.communicate)
    assert (codes, waits.question["question"]["arguments"]["path"]) == ([0, 3], "3")
    assert [(ws / name).exists() for name in "234"] == [True, False, False]
    at.process.send_signal(signal.SIGINT)
    ended = await asyncio.to_thread(at.end)
    assert (ended.code, "answer   write_file" in ended.out) == (130, True)


async def test_a_person_who_watches_can_save_a_pattern(ws: Path, home: Path) -> None:
    at = AtTerminal("watch", "--answer", cwd=ws)
    call = start_command("call", "shell", "command=touch a", "--wait", cwd=ws)
    await asyncio.to_thread(at.asked)
    at.terminal.press("s\n")
    await asyncio.to_thread(at.terminal.read_until, lambda text: "or Enter to go back > " in text)
    assert "2  command = touch [!/@+:]*  (touch <one relative path>)" in at.terminal.text
    at.terminal.press("2\n")
    assert await asyncio.to_thread(call.wait, LIMIT_S) == 0
    await asyncio.to_thread(call.communicate)
    at.process.send_signal(signal.SIGINT)
    await asyncio.to_thread(at.end)
    assert 'command = "touch [!/@+:]*"' in (home / "rules.toml").read_text()
    assert callgate("call", "shell", "command=touch b", cwd=ws).code == 0
    assert callgate("call", "shell", "command=touch ../b", cwd=ws).code == 3


def test_answering_needs_a_terminal_and_a_session_must_be_there(ws: Path) -> None:
    assert callgate("watch", "--answer", cwd=ws).code == 2
    assert callgate("watch", "--session", "sess_none", cwd=ws).code == 1
    assert callgate("watch", "word", cwd=ws).code == 2
