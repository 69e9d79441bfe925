"""`callgate events`: what happened, in order, and what happens in other processes meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.commands.events import show_events
from callgate.core.events import CALLED, FAILED, OUTPUT_DELTA
from callgate.core.ids import call_id
from callgate.core.ops import Append, DeleteSession
from callgate.core.stored import ConfirmationState
from tests.kernel.cli.counting import CountingStore
from tests.kernel.cli.running import LIMIT_S, callgate
from tests.kernel.cli.running import start as start_command
from tests.kernel.cli.stored import acquire, ask, opened
from tests.kernel.contract.stores import append, event, new_session, start
from tests.kernel.storage.processes import child
from tests.memory_store import MemoryStore


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def shown(*words: str, cwd: Path) -> list[Any]:
    return lines(callgate("events", "--json", *words, cwd=cwd).out)


class Follower:
    """A process that follows; its lines, each awaited for a bounded time."""

    def __init__(self, *words: str, cwd: Path) -> None:
        buffered = {"PYTHONUNBUFFERED": ""}  # as it is for everyone who does not ask for more
        self.process: subprocess.Popen[bytes] = start_command("events", "--follow", *words, cwd=cwd, env=buffered)
        assert self.process.stdout is not None
        self._out = self.process.stdout

    async def line(self) -> str:
        reading = asyncio.create_task(asyncio.to_thread(self._out.readline))
        if not (await asyncio.wait({reading}, timeout=LIMIT_S))[0]:
            self.process.kill()  # which ends the read that nothing else can end
        return (await reading).decode()

    async def end(self) -> tuple[int, str]:
        code = await asyncio.to_thread(self.process.wait, LIMIT_S)
        assert self.process.stderr is not None
        err = self.process.stderr.read().decode()
        self._out.close()
        self.process.stderr.close()
        return code, err

    async def interrupt(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        return await self.end()


async def test_events_of_all_sessions_come_in_the_order_of_their_commits(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        one, two = [await new_session(store) for _ in range(2)]
        made = [*await append(store, one, "a"), *await append(store, two, "b"), *await append(store, one, "c", "a")]
    assert [each["id"] for each in shown(cwd=ws)] == [each.id for each in made]
    assert [each["type"] for each in shown("--type", "a", "--type", "b", cwd=ws)] == ["a", "b", "a"]
    assert [each["type"] for each in shown("-n", "2", cwd=ws)] == ["c", "a"]
    assert [each["type"] for each in shown("--type", "a", "-n", "1", cwd=ws)] == ["a"]
    assert [each["type"] for each in shown("--session", one, cwd=ws)] == ["a", "c", "a"]


@pytest.mark.parametrize("of_one", [True, False], ids=["one session", "all"])
async def test_the_last_few_of_many_are_read_without_the_others(of_one: bool, capsys: Any) -> None:
    store = MemoryStore()
    session = await new_session(store)
    for number in range(5):
        await append(store, session, *(f"e{number}{n:03}" for n in range(1_000)))
    counting = CountingStore(store)
    chosen = session if of_one else None
    options = Namespace(session=chosen, since=None, n=20, type=None, json=True, follow=False)
    await show_events(counting, options)
    assert [each["type"] for each in lines(capsys.readouterr().out)] == [f"e4{n:03}" for n in range(980, 1_000)]
    assert counting.rows.total() < 50


@pytest.mark.parametrize("of_one", [True, False], ids=["one session", "all"])
async def test_the_last_of_a_type_are_looked_for_from_the_end(of_one: bool, capsys: Any) -> None:
    store = MemoryStore()
    session = await new_session(store)
    await append(store, session, "rare", *["often"] * 3_000, "rare", *["often"] * 1_500, "rare")
    counting = CountingStore(store)
    chosen = session if of_one else None
    options = Namespace(session=chosen, since=None, n=2, type=["rare"], json=True, follow=False)
    await show_events(counting, options)
    assert [each["type"] for each in lines(capsys.readouterr().out)] == ["rare", "rare"]
    assert 1_500 < counting.rows.total() < 2_100
    options.n = 5
    await show_events(counting, options)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("of_one", [True, False], ids=["one session", "all"])
async def test_the_last_few_begin_behind_the_cursor_that_was_given(of_one: bool, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a", "b", "c", "d")
    of = ["--session", session] if of_one else []
    cursor = str(shown(*of, cwd=ws)[1]["cursor"])
    assert [each["type"] for each in shown(*of, "--since", cursor, "-n", "9", cwd=ws)] == ["c", "d"]
    assert [each["type"] for each in shown(*of, "--since", cursor, "-n", "1", cwd=ws)] == ["d"]
    assert shown(*of, "--since", cursor, "-n", "0", cwd=ws) == []


@pytest.mark.parametrize("of_one", [True, False], ids=["one session", "all"])
async def test_a_follower_of_the_last_few_goes_on_behind_them(of_one: bool, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a", "b", "c")
        of = ["--session", session] if of_one else []
        follower = Follower("--json", "-n", "1", *of, cwd=ws)
        assert json.loads(await follower.line())["type"] == "c"
        await append(store, session, "d")
        assert json.loads(await follower.line())["type"] == "d"
        assert (await follower.interrupt())[0] == 130


@pytest.mark.parametrize("of_one", [True, False], ids=["one session", "all"])
async def test_every_cursor_continues_exactly_behind_its_event(of_one: bool, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a", "b", "c")
    of = ["--session", session] if of_one else []
    everything = shown(*of, cwd=ws)
    assert [each["type"] for each in everything] == ["a", "b", "c"]
    for number, each in enumerate(everything, 1):
        assert shown(*of, "--since", str(each["cursor"]), cwd=ws) == everything[number:]


async def test_a_cursor_that_is_none_is_wrong_use(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a")
    of_one = ["--session", session, "--since"]
    for words in (
        ["--since", "nonsense"],
        ["--since", "1"],
        ["--since", ""],
        [*of_one, "x"],
        [*of_one, "2"],
        [*of_one, "9" * 30],
        ["--session", session, "--since=-1"],
    ):
        ran = callgate("events", "--json", *words, cwd=ws)
        assert (ran.code, ran.json["error"]["reason"]) == (2, "bad_cursor"), words


def test_a_session_that_is_not_there_is_said_to_be_none(ws: Path) -> None:
    assert callgate("events", "--session", "sess_none", cwd=ws).code == 1
    assert callgate("events", "word", cwd=ws).code == 2


@pytest.mark.spec("T16")
async def test_an_event_is_one_line_that_cannot_act(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        hostile = event(
            session, FAILED, tool_name="\x1b[2J", error_class="timeout", message="first\nsecond\r\u202e" + "x" * 5000
        )
        odd = event(session, "odd\x07\ntype", text=["a", {"b": "\x9b"}])
        await store.commit(Append(session=session, events=(hostile, odd)))
    out = callgate("events", cwd=ws).out
    assert [line.isprintable() and len(line) < 400 for line in out.splitlines()] == [True, True]


async def test_a_follower_sees_what_another_process_commits(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "before")
        follower = Follower("--json", cwd=ws)
        of_one = Follower("--json", "--session", session, "--since", "1", cwd=ws)
        assert json.loads(await follower.line())["type"] == "before"
        async with child("answer", home, session) as other:
            assert await other.hear() == {"ready": True}
            other.tell("now")
            told = json.loads(await follower.line())
            assert (told["type"], told["session_id"]) == ("told", session)
            assert json.loads(await of_one.line()) == {**told, "cursor": 2}
        for each in (follower, of_one):
            assert await each.interrupt() == (130, "")


async def test_an_answer_is_given_while_another_process_owns_the_session(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        question = await ask(store, session)
        follower = Follower("--session", session, "--json", cwd=ws)
        assert json.loads(await follower.line())["cursor"] == 1
        with store.wake(session) as hint:
            ran = await asyncio.to_thread(callgate, "confirmations", "allow", question.id, cwd=ws)
            assert (ran.code, f"process {os.getpid()}" in ran.err) == (0, True)
            assert await hint.wait(LIMIT_S)
        answered = json.loads(await follower.line())
        assert answered["payload"] | {"by": ""} == {
            "confirmation_request_id": question.id,
            "decision": "allow",
            "scope": "once",
            "by": "",
            "tool_use_id": question.tool_use_id,
            "call_id": question.call_id,
        }
        assert (await store.get_confirmation(question.id)).state is ConfirmationState.ALLOWED
        assert (await follower.interrupt())[0] == 130


async def test_a_follower_begins_before_there_is_a_store(ws: Path, home: Path) -> None:
    follower = Follower("--json", cwd=ws)
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "first")
        assert json.loads(await follower.line())["type"] == "first"
    assert (await follower.interrupt())[0] == 130


async def test_output_is_followed_as_text(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session, call = await new_session(store), call_id()
        delta = event(session, OUTPUT_DELTA, call_id=call, stream="stdout", text="one\n\x1b[2Jtwo\n")
        await store.commit(Append(session=session, events=(delta,)))
    follower = Follower(cwd=ws)
    assert [await follower.line() for _ in range(2)] == ["  | one\n", "  | \\x1b[2Jtwo\n"]
    assert (await follower.interrupt())[0] == 130
    assert callgate("events", cwd=ws).out.count("\n") == 1


async def test_a_follower_learns_that_a_process_died(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
    async with child("hold", home, session) as other:
        call = (await other.hear())["call"]
        follower = Follower("--json", cwd=ws)
        assert json.loads(await follower.line())["type"] == CALLED
        other.process.kill()
        ended = json.loads(await follower.line())
        assert (ended["type"], ended["payload"]["call_id"], ended["payload"]["reason"]) == (FAILED, call, "interrupted")
    assert (await follower.interrupt())[0] == 130


async def test_a_follower_ends_when_nobody_reads_any_more(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a")
    quiet = Follower("--json", cwd=ws)
    await quiet.line()
    quiet._out.close()  # and nothing happens that could be written
    assert await quiet.end() == (141, "")


async def test_a_follower_of_a_deleted_session_ends(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a")
        follower = Follower("--session", session, cwd=ws)
        await follower.line()
        await store.commit(DeleteSession(session=session))
        assert (await follower.end())[0] == 1


async def test_a_call_of_a_process_that_lives_is_left_alone(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await store.commit(start(store, session))
        assert [each["type"] for each in shown(cwd=ws)] == [CALLED]
