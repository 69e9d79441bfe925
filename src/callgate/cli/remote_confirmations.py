"""Approval of an instance's question at this terminal, as a runtime in this process asks it.

The question comes from the instance. The rule that an answer would save, and the preview of a
command, are computed here from the same settings. The answer goes to the store of the home, as
with `callgate watch --answer`, because no peer of the socket may approve its own call.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from callgate.cli.connection import ConnectionLost, InstanceConnection, UnexpectedPeer
from callgate.cli.embedded import open_runtime
from callgate.cli.ui.confirmation_prompt import confirmer
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import clip
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.stores import configured_store, open_store
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.events import CONFIRMATION_RESOLVED
from callgate.core.sessions import Mode
from callgate.core.stores import ConfirmationNotFound, StoreError
from callgate.core.tasks import start_task
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1.frames import Question


class PendingCall(Protocol):
    """The call of the question."""

    connection: InstanceConnection
    options: Any
    tool: str
    arguments: Any
    mode: str | None


class AnswerNotDelivered(Exception):
    """The answer could not be stored with the question."""


def listed(frame: dict[str, Any]) -> list[dict[str, Any]]:
    """The questions of a `confirmations_list`."""
    entries = frame.get("confirmations")
    questions = entries if isinstance(entries, list) else []
    for each in questions:
        keys = ("id", "tool", "argumentsSha256")
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in keys):
            raise UnexpectedPeer("its question is unreadable")
    return questions


def answer(call: PendingCall, question: dict[str, Any], stopped: int) -> None:
    """Answer by `--yes`, or ask the person. Raises `AnswerNotDelivered`."""
    if call.options.yes and not question.get("alwaysAsk"):
        summary = question.get("commandSummary") or question.get("inputSummary")
        say(f"--yes allows {question['tool']}: {clip(str(summary), 200)}")
        _allow(question)
    else:
        _ask_person(call, question, stopped)


def _ask_person(call: PendingCall, question: dict[str, Any], stopped: int) -> None:
    """Ask the person, and store the answer, unless the question was closed before.

    `stopped`: a descriptor that becomes readable if the person stops the call.
    """
    try:
        confirmation = _confirmation(msgspec.convert(question, Question))
    except msgspec.ValidationError as error:
        raise UnexpectedPeer("its question is unreadable") from error
    answer = asyncio.run(_ask(call, confirmation, stopped))
    if answer is not None:
        asyncio.run(_give(confirmation.id, confirmation.arguments_sha256, answer))


def _allow(question: dict[str, Any]) -> None:
    """Store the answer of `--yes`."""
    answer = Answer(decision=Outcome.ALLOW, by="--yes")
    asyncio.run(_give(question["id"], question["argumentsSha256"], answer))


async def _give(id: str, sha256: str, answer: Answer) -> None:
    home = Home.from_environment()
    try:
        store = await open_store(home, configured_store(home))
        try:
            stored = await store.get_confirmation(id)
            if stored.arguments_sha256 != sha256:
                raise AnswerNotDelivered("it has other arguments")
            await questions.answer(store, id, answer)
        finally:
            await store.close()
    except ConfirmationNotFound:
        raise AnswerNotDelivered(f"the instance has another home than {home.path}") from None
    except (StoreError, SettingsError) as error:
        raise AnswerNotDelivered(str(error)) from error


def _confirmation(question: Question) -> Confirmation:
    fields = msgspec.structs.asdict(question)
    return msgspec.convert({**fields, "event_id": ""}, Confirmation, from_attributes=True)


async def _ask(call: PendingCall, question: Confirmation, stopped: int) -> Answer | None:
    wired, session = open_runtime(call.options, meant=call.tool)
    try:
        if call.mode is not None:
            session.mode = Mode(call.mode)
        tool_call = ToolCall(
            tool=call.tool, arguments=call.arguments, session=session, caller=CallerKind.CLI
        )
        asker = confirmer(wired, tool_call, call.options)
        if asker is None:
            return None
        return await _first(start_task(_read(asker, question)), call, stopped)
    finally:
        await wired.close()


async def _read(asker: Confirmer, question: Confirmation) -> Answer:
    return Answer.read(await asker(question))


async def _first(asking: asyncio.Future[Answer], call: PendingCall, stopped: int) -> Answer | None:
    """Return the answer; None if the question is closed or the person stops the call first."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        loop.remove_reader(call.connection.fileno())
        loop.remove_reader(stopped)
        if not ended.done():
            ended.set_result(None)

    def look() -> None:
        try:
            call.connection.take()
            over = any(map(_is_over, call.connection.arrived()))
        except ConnectionLost:  # the wait for the call's end reports it
            over = True
        if over:
            end()

    loop.add_reader(call.connection.fileno(), look)
    loop.add_reader(stopped, end)
    try:
        waiting: set[asyncio.Future[Any]] = {asking, ended}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.wait({asking})
        return None
    finally:
        end()


def _is_over(frame: dict[str, Any]) -> bool:
    """Whether the question is closed: another answer came first, or the call has ended."""
    resolved = (frame.get("event") or {}).get("type") == CONFIRMATION_RESOLVED
    return resolved or frame.get("type") in ("tool_result", "closing")
