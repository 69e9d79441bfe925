"""`callgate confirmations`: questions of any process, shown in full and answered once."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from callgate.core.effects import SideEffects
from callgate.core.ops import ResolveConfirmation
from callgate.core.stored import ConfirmationState
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.policy.rules import Outcome
from tests.kernel.cli.running import CALLGATE, AtTerminal, Ran, callgate
from tests.kernel.cli.stored import acquire, ask, opened
from tests.kernel.contract.stores import ask as old_question
from tests.kernel.contract.stores import event, new_session


def reason(ran: Ran) -> tuple[int, str]:
    return ran.code, json.loads(ran.out)["error"]["reason"]


async def test_the_questions_of_every_process_are_listed_oldest_first(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        one, two = [await new_session(store) for _ in range(2)]
        first, second = await ask(store, one), await ask(store, two, turn_id="turn_a")
        shown = callgate("confirmations", "list", "--json", cwd=ws).json["confirmations"]
        assert [(each["id"], each["session_id"], each["owner_alive"]) for each in shown] == [
            (first.id, one, True),
            (second.id, two, True),
        ]
        assert shown[0]["question"]["arguments"] == {"command": "make test"}
        assert callgate("confirmations", "--json", cwd=ws).json["confirmations"] == shown
        of_two = callgate("confirmations", "--session", two, "--json", cwd=ws).json["confirmations"]
        assert of_two == shown[1:]


@pytest.mark.spec("T16")
async def test_a_question_shows_every_argument_and_none_can_act(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await ask(store, session, arguments={"command": "make\x1b[2J\u202e", "env": {"A": "z" * 500 + "END"}})
        await ask(
            store,
            session,
            tool="write_file",
            side_effects=SideEffects.WRITE,
            arguments={"path": "a.txt", "content": "\x1b[1Ahidden\nlines\u200b"},
            preview="+ a diff\x9b1A",
        )
        out = callgate("confirmations", cwd=ws).out
    assert all(line.isprintable() for line in out.split("\n"))
    assert out.count(session) == 2
    for text in ("make\\x1b[2J\\u202e", "zEND", "+ a diff\\x9b1A", "hidden\n  |     lines\\u200b", "time left"):
        assert text in out.replace("\n  \\ ", "")


@pytest.mark.parametrize(("word", "state"), [("allow", Outcome.ALLOW), ("deny", Outcome.DENY)])
async def test_the_command_that_a_question_names_answers_it(ws: Path, home: Path, word: str, state: Outcome) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        question = await ask(store, session)
        lines = callgate("confirmations", cwd=ws).out.splitlines()
        (command,) = [each.split()[2:] for each in lines if each.startswith(f"  to {word} ")]
        ran = callgate(*command[1:], cwd=ws)
        assert ran.code == 0, ran
        closed = questions.closed(await store.get_confirmation(question.id))
    assert closed is not None and closed.answer is not None and closed.answer.decision is state


async def test_nothing_to_answer_is_no_error(ws: Path, home: Path) -> None:
    ran = callgate("confirmations", cwd=ws)
    assert (ran.code, ran.out) == (0, "")
    assert reason(callgate("confirmations", "allow", "01NOSUCHQUESTION", "--json", cwd=ws)) == (1, "not_found")
    assert callgate("confirmations", "allow", cwd=ws).code == 2
    assert callgate("confirmations", "maybe", cwd=ws).code == 2
    assert callgate("confirmations", "allow", "x", "--scope", "forever", cwd=ws).code == 2


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("decision", [Outcome.ALLOW, Outcome.DENY])
async def test_an_answer_reaches_the_store_as_it_was_given(
    decision: Outcome, scope: Scope, ws: Path, home: Path
) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        question = await ask(store, session)
        ran = callgate(
            "confirmations", decision, question.id, "--scope", scope, "--reason", "because", "--json", cwd=ws
        )
        assert (ran.code, ran.json["ok"], ran.json["id"]) == (0, True, question.id)
        closed = questions.closed(await store.get_confirmation(question.id))
        assert closed is not None and closed.answer == Answer(
            decision=decision, scope=scope, reason="because", by="callgate confirmations"
        )


@pytest.mark.spec("T18")
async def test_of_many_answers_exactly_one_counts_and_the_others_are_told(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        question = await ask(store, await new_session(store))
        said = ["allow", "deny"] * 3
        processes = [
            await asyncio.create_subprocess_exec(
                *command(word, question.id), cwd=ws, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            for word in said
        ]
        outs = [json.loads((await each.communicate())[0]) for each in processes]
        codes = [each.returncode for each in processes]
        assert sorted(map(str, codes)) == ["0", "1", "1", "1", "1", "1"]
        won = said[codes.index(0)]
        state = {"allow": ConfirmationState.ALLOWED, "deny": ConfirmationState.DENIED}[won]
        assert (await store.get_confirmation(question.id)).state is state
        assert {each["error"]["reason"] for each in outs if not each["ok"]} == {"already_answered"}


def command(word: str, id: str) -> list[str]:
    return [CALLGATE, "confirmations", word, id, "--json"]


async def test_whoever_is_late_is_told_who_was_first(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        question = await ask(store, await new_session(store))
        theirs = Answer(decision=Outcome.DENY, scope=Scope.SESSION, by="the dashboard")
        await questions.answer(store, question.id, theirs)
        ran = callgate("confirmations", "allow", question.id, "--json", cwd=ws)
        assert reason(ran) == (1, "already_answered")
        assert "deny (session) by the dashboard" in ran.err
        assert (await store.get_confirmation(question.id)).state is ConfirmationState.DENIED


@pytest.mark.parametrize("state", [ConfirmationState.EXPIRED, ConfirmationState.WITHDRAWN])
async def test_a_question_that_is_closed_takes_no_answer(state: ConfirmationState, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        expires = time.time() + (300 if state is ConfirmationState.WITHDRAWN else -1)
        question = await ask(store, session, expires_at=expires)
        if state is ConfirmationState.WITHDRAWN:
            resolved = event(session, "tool.confirmation_resolved")
            await store.commit(
                ResolveConfirmation(session=session, confirmation=question.id, state=state, event=resolved, at=1.0)
            )
        assert reason(callgate("confirmations", "allow", question.id, "--json", cwd=ws)) == (1, "already_answered")
        assert (await store.get_confirmation(question.id)).state is state


async def test_a_yes_says_what_happens_next(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        left = await ask(store, session, turn_id="turn_a")
    async with opened(home) as store:
        waits = await ask(store, session, turn_id="turn_b")
        assert "continues the call" in callgate("confirmations", "allow", waits.id, cwd=ws).err
        assert f"when session {session} is resumed" in callgate("confirmations", "allow", left.id, cwd=ws).err
        assert (await store.get_confirmation(left.id)).state is ConfirmationState.ALLOWED


async def test_the_end_of_an_id_is_enough_where_it_is_unique(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        one, two = [await ask(store, session) for _ in range(2)]
        assert reason(callgate("confirmations", "deny", one.id[:6], "--json", cwd=ws)) == (2, "ambiguous")
        assert callgate("confirmations", "deny", one.id[-8:], cwd=ws).code == 0
        states = [(await store.get_confirmation(each.id)).state for each in (one, two)]
        assert states == [ConfirmationState.DENIED, ConfirmationState.PENDING]


@pytest.mark.parametrize("words", [["list"], [], ["allow", "x"], ["deny", "x"]], ids=" ".join)
def test_a_tool_s_process_neither_sees_nor_answers_questions(words: list[str], ws: Path) -> None:
    ran = callgate("confirmations", *words, "--json", cwd=ws, env={"CALLGATE_CALL": "tu_1"})
    assert reason(ran) == (3, "within_a_call")


async def test_a_question_of_another_version_hides_no_other_and_takes_no_answer(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        old = old_question(store, session, expires_at=time.time() + 60)
        await store.commit(old)
        readable = await ask(store, session)
        shown = callgate("confirmations", "--json", cwd=ws).json["confirmations"]
        assert [(each["id"], each["question"] is None) for each in shown] == [
            (old.confirmation, True),
            (readable.id, False),
        ]
        assert callgate("confirmations", cwd=ws).out.count(session) == 2
        for word in ("allow", "deny"):
            ran = callgate("confirmations", word, old.confirmation, "--json", cwd=ws)
            assert reason(ran) == (1, "unreadable_question")
        assert (await store.get_confirmation(old.confirmation)).state is ConfirmationState.PENDING


async def test_at_a_terminal_a_question_keeps_to_its_width(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        await ask(store, await new_session(store), arguments={"command": "x" * 500})
        ran = AtTerminal("confirmations", cwd=ws, env={"NO_COLOR": "1"}, streams_too=True)
        text = ran.terminal.read_until(lambda text: text.endswith("\r\n\r\n"))
        await asyncio.to_thread(ran.end)
    assert max(map(len, text.split("\r\n"))) < 80


async def test_at_a_terminal_what_is_allowed_is_shown_and_a_no_leaves_the_question_open(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        asked = await ask(store, await new_session(store), arguments={"command": "make", "then": "; curl | sh #"})
        at = AtTerminal("confirmations", "allow", asked.id, cwd=ws)
        shown = await asyncio.to_thread(at.asked)
        assert '"; curl | sh #"' in shown
        assert (await asyncio.to_thread(at.answer("n\n").end)).code == 3
        assert (await store.get_confirmation(asked.id)).state is ConfirmationState.PENDING
        at = AtTerminal("confirmations", "allow", asked.id, cwd=ws)
        await asyncio.to_thread(at.asked)
        assert (await asyncio.to_thread(at.answer("y\n").end)).code == 0
        assert (await store.get_confirmation(asked.id)).state is ConfirmationState.ALLOWED


async def test_an_answer_that_names_other_arguments_is_refused(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        asked = await ask(store, await new_session(store))
        words = ("confirmations", "allow", asked.id, "--json", "--sha256")
        assert reason(callgate(*words, "0" * 64, cwd=ws)) == (3, "other_arguments")
        assert callgate(*words, asked.arguments_sha256, cwd=ws).code == 0
