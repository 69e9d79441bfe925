"""`callgate confirmations`: the questions that wait, of every process, and answers to them.

For people only: a process that a tool started may neither see nor answer a question.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Collection
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import (
    alive,
    find_session,
    not_found,
    pick,
    process_name,
    span,
    with_store,
    words,
)
from callgate.cli.ui.dialog import NARROWEST, QuestionDocument, agreed, question_rows
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import print_field
from callgate.cli.ui.terminal import Paint, columns, paint_for, say, wants_colour
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import ConfirmationState, StoredConfirmation
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome

BY = "callgate confirmations"


class PendingConfirmation(NamedTuple):
    """An open question, and the process that waits for its answer."""

    stored: StoredConfirmation
    question: Confirmation | None
    """None if it comes from another version, in a format that this version cannot read."""
    tool: str
    owner: str | None
    """The waiting process; None if it no longer runs."""

    @property
    def fate(self) -> str:
        """The effect of an approval, for the person who gave it."""
        if self.owner is not None:
            return f"{process_name(self.owner)} continues the call"
        return f"the call runs when session {self.stored.session_id} is resumed"


def confirmations(options: Namespace) -> int:
    return list(options)


def list(options: Namespace) -> int:
    words(options)
    refuse_within_a_call("callgate confirmations")
    pending = with_store(options, lambda store: _open(store, options.session))
    if options.json:
        print_json({"confirmations": [_described(each) for each in pending]})
    for each in () if options.json else pending:
        _print(each, time.time())
    if not pending and not options.json:
        say("no call waits for approval")
    return OK


def allow(options: Namespace) -> int:
    return _answer(options, Outcome.ALLOW)


def deny(options: Namespace) -> int:
    return _answer(options, Outcome.DENY)


async def _open(store: Store, session: str | None) -> Collection[PendingConfirmation]:
    id = None if session is None else (await find_session(store, session)).id
    return [await _read_pending(store, each) for each in await store.open_confirmations(id)]


async def _read_pending(store: Store, stored: StoredConfirmation) -> PendingConfirmation:
    call, dead = await store.get_call(stored.call_id), await store.dead_owners()
    owner = None if call is None else call.owner
    question: Confirmation | None
    try:
        question = questions.read_question(stored)
    except msgspec.ValidationError:
        question = None
    tool = "" if call is None else call.tool
    return PendingConfirmation(stored, question, tool, owner if alive(owner, dead) else None)


def _answer(options: Namespace, decision: Outcome) -> int:
    (question_id,) = words(options, "question")
    refuse_within_a_call(f"callgate confirmations {decision}")
    answer = Answer(decision=decision, scope=Scope(options.scope), reason=options.reason, by=BY)
    tty = None if options.json or options.sha256 is not None else open_tty()
    pending = with_store(
        options, lambda store: _give(store, question_id, answer, options.sha256, tty)
    )
    if options.json:
        print_json({"ok": True, **_described(pending), "answer": msgspec.to_builtins(answer)})
        return OK
    then = f": {pending.fate}" if decision is Outcome.ALLOW else ""
    done = "allowed" if decision is Outcome.ALLOW else "denied"
    say(f"{done} {pending.tool} ({pending.stored.id}){then}")
    return OK


async def _give(
    store: Store, question_id: str, answer: Answer, sha256: str | None, tty: Tty | None
) -> PendingConfirmation:
    """Answer a question. Raises an error that names the earlier answer, if there is one.

    At a terminal the whole question is shown before an approval that has no hash.
    """
    stored = await _find(store, question_id)
    pending = await _read_pending(store, stored)
    if pending.question is None:  # an answer would approve an unknown call
        raise CliError(
            f"question {stored.id} comes from another version of callgate, which must answer it",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="unreadable_question",
        )
    if sha256 not in (None, pending.question.arguments_sha256):
        raise CliError(
            f"question {stored.id} has other arguments than --sha256; nothing was answered",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="other_arguments",
        )
    if answer.decision is Outcome.ALLOW and tty is not None:
        await _ensure_meant(pending.question, answer, tty)
    try:
        receipt = await questions.answer(store, stored.id, answer)
    except KeyError:
        raise not_found(f"there is no question {question_id!r}") from None
    if receipt.applied:
        return pending
    standing = await store.get_confirmation(stored.id)
    raise CliError(
        f"question {stored.id} {_closed(standing, receipt.answer)}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="already_answered",
    )


async def _ensure_meant(question: Confirmation, answer: Answer, tty: Tty) -> None:
    document = QuestionDocument(question, Paint(wants_colour(True, os.environ)))
    if not await agreed(tty, document, f"Allow ({answer.scope})?"):
        raise CliError(
            "nothing was approved, and the question remains open",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )


async def _find(store: Store, question_id: str) -> StoredConfirmation:
    try:
        return await store.get_confirmation(question_id)
    except ConfirmationNotFound:
        waiting = {each.id: each for each in await store.open_confirmations()}
        return waiting[pick(question_id, waiting, "question")]


def _closed(stored: StoredConfirmation, answer: Answer | None) -> str:
    if stored.state is ConfirmationState.EXPIRED:
        return "expired without an answer"
    if answer is None:
        return "was withdrawn, because its call no longer waits"
    return f"already has an answer: {answer.decision} ({answer.scope}) by {answer.by}"


def _described(pending: PendingConfirmation) -> dict[str, Any]:
    """Return the question in the form of `--json`."""
    return {
        "id": pending.stored.id,
        "session_id": pending.stored.session_id,
        "expires_at": pending.stored.expires_at,
        "owner_alive": pending.owner is not None,
        "tool": pending.tool,
        "question": msgspec.to_builtins(pending.question),
    }


def _print(pending: PendingConfirmation, now: float) -> None:
    paint = paint_for(sys.stdout)
    width = columns()
    stored, question = pending.stored, pending.question
    by = "a process that no longer runs" if pending.owner is None else process_name(pending.owner)
    print(paint("bold", visible(stored.id)))
    print_field("  session    ", stored.session_id)
    print_field("  asked by   ", by)
    print(f"  time left  {span(stored.expires_at - now)}")
    if question is None:
        print_field("  tool       ", pending.tool)
        print_field("  ", "asked by another version of callgate; this version cannot read it")
        print()
        return
    # The first row is the heading of a question at the terminal; here the id is the heading.
    for row in islice(question_rows(question, max(width, NARROWEST), paint), 1, None):
        print(row)
    print(f"  sha256     {question.arguments_sha256}")
    for word in ("allow", "deny"):
        print(f"  to {word:<8}callgate confirmations {word} {visible(stored.id)}")
    print()
