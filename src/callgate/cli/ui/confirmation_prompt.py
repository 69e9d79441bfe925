"""Approval of a call at the terminal, by a letter such as y, n or s.

`Asker` asks about a call of this process: an empty line, Ctrl-D and three invalid answers deny the
call, and Ctrl-C cancels it.

`Answers` asks about stored questions, for `callgate watch --answer` and `callgate demo`. Other
terminals and the dashboard can answer, too. An empty line leaves the question to them. A question
that is answered elsewhere is withdrawn, and unfinished input for it is dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.cli.ui.dialog import Dialog, QuestionDocument
from callgate.cli.ui.terminal import Paint, say, wants_colour
from callgate.cli.ui.tty import BegunBefore, Tty, open_tty
from callgate.cli.ui.visible import clip, excerpt, visible
from callgate.config.saved import saved_rule
from callgate.core.calls import ToolCall
from callgate.core.stored import ConfirmationState, StoredConfirmation
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.core.tasks import start_task
from callgate.dispatch.commands.sandboxes import OFF
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer, Scope
from callgate.instance.wiring.runtime import Wired
from callgate.policy.commands import judge, parse_pattern, read_command
from callgate.policy.rules import Outcome, compile_glob, reaches_inside

if TYPE_CHECKING:
    from argparse import Namespace

BY = "terminal"
_TRIES = 3
_ANSWERS = {
    "y": Answer(decision=Outcome.ALLOW, by=BY),
    "r": Answer(decision=Outcome.ALLOW, scope=Scope.RUN, by=BY),
    "t": Answer(decision=Outcome.ALLOW, scope=Scope.DESTINATION, by=BY),
    "a": Answer(decision=Outcome.ALLOW, scope=Scope.SESSION, by=BY),
    "n": Answer(decision=Outcome.DENY, by=BY),
    "v": Answer(decision=Outcome.DENY, scope=Scope.SESSION, by=BY),
}
_CHOICES = {
    "y": "[y]es once",
    "r": "[r]un: until the requesting process ends",
    "t": "[t]his tool to this destination in this session",
    "a": "[a]lways this tool in this session",
    "s": "[s]ave a rule",
    "n": "[n]o",
    "v": "ne[v]er in this session",
    "p": "[p]review",
}
_ALLOWING = frozenset("yrtas")
_SCOPES = {"r": Scope.RUN, "t": Scope.DESTINATION, "a": Scope.SESSION, "s": Scope.ALWAYS}
_ONLY_CALLS = "No approver is available: --yes approves calls, but not this question."

Suggest = Callable[[Confirmation], Mapping[str, Any]]
"""Returns the rule that a permanent approval would save, in the form of `config.saved`."""
Rehearse = Callable[[Confirmation], Awaitable[str]]
"""Returns the output and the changes of a question's command, from a dry run."""


class Asker:
    """Confirmer at a terminal, for `Permission.attach`."""

    def __init__(
        self, tty: Tty, paint: Paint, suggest: Suggest, rehearse: Rehearse | None = None
    ) -> None:
        self._tty = tty
        self._paint = paint
        self._suggest = suggest
        self._rehearse = rehearse

    async def __call__(self, question: Confirmation) -> Answer:
        async with self._tty.asking():
            try:
                return await self._ask(question)
            except asyncio.CancelledError:
                self._tty.write("\ncallgate: the question was withdrawn\n")
                raise

    async def _ask(self, question: Confirmation) -> Answer:
        dialog = Dialog(self._tty, QuestionDocument(question, self._paint))
        tries = _TRIES
        while tries:
            choices = self._choices(question)
            letter = await dialog.choose(choices, _ALLOWING)
            if letter is None or letter == "":
                break
            if letter not in choices:
                tries -= 1
            elif letter == "p" and self._rehearse is not None:
                await self._show_rehearsal(self._rehearse, question)
            elif letter != "s":
                return _ANSWERS[letter]
            elif (saved := await self._save(question)) is not None:
                return saved
        return _ANSWERS["n"]

    def _choices(self, question: Confirmation) -> Mapping[str, str]:
        can_rehearse = self._rehearse is not None and question.tool == "shell"
        left_out = set() if can_rehearse else {"p"}
        left_out |= {letter for letter, scope in _SCOPES.items() if scope not in question.scopes}
        if question.always_ask:  # its answers are never remembered
            left_out |= {"t", "a", "s", "v", "p"}
        return {letter: label for letter, label in _CHOICES.items() if letter not in left_out}

    async def _show_rehearsal(self, rehearse: Rehearse, question: Confirmation) -> None:
        """Show a dry run of the command. It is offered once; the question follows again."""
        self._rehearse = None
        self._tty.write("callgate: running the command over an overlay of the workspace ...\n")
        text = await rehearse(question)
        width, height = self._tty.size()
        shown = excerpt(text, width=max(width - 4, 20), rows=max(height - 6, 10))
        cut = [f"  ~ {shown.cut}"] if shown.cut else []
        rows = [f"  | {row.text}" for row in shown.head] + cut
        rows += [f"  | {row.text}" for row in shown.tail]
        self._tty.write("\n".join(rows) + "\n")

    async def _save(self, question: Confirmation) -> Answer | None:
        """Return an answer that saves a rule; None if the person goes back."""
        rule = dict(self._suggest(question))
        rule |= rule.pop("arguments", {})
        kind = next((kind for kind in ("command", "path", "host") if kind in rule), None)
        width = max(self._tty.size()[0], 40) - 1
        shown = [f"{key} = {'true' if value is True else value}" for key, value in rule.items()]
        self._tty.write("This permanent rule is saved in rules.toml:\n")
        self._tty.write("".join(f"  | {clip(line, width - 4)}\n" for line in shown))
        has_patterns = kind in ("command", "host")
        wider = [each for each in question.proposals if each.pattern != rule.get(kind or "")]
        if has_patterns and wider:
            self._tty.write(f"Other {kind} patterns cover:\n")
            for number, each in enumerate(wider, 1):
                self._tty.write(
                    f"  | {number}  {visible(f'{kind} = {each.pattern}  ({each.covers})')}\n"
                )
        numbers = {str(number): each.pattern for number, each in enumerate(wider, 1)}
        other = "n to go back" if kind is None else f"another {kind} pattern, or n to go back"
        if has_patterns and numbers:
            other = f"{'/'.join(numbers)} for one of these, {other}"
        prompt = f"Press Enter to save it, or type {other} > "
        for _ in range(_TRIES):
            try:
                answer = await self._tty.ask(prompt, takes_paste=True)
            except BegunBefore:
                continue
            pattern = None if answer is None else answer.strip()
            if pattern is None or pattern.lower() in ("n", "no"):
                return None
            if not pattern or pattern.lower() in ("y", "yes"):
                return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, by=BY)
            pattern = numbers.get(pattern, pattern) if has_patterns else pattern
            problem = _problem(kind, pattern, question)
            if problem is None:
                return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, pattern=pattern, by=BY)
            self._tty.write(f"{clip(problem, width)}\n")
        return None


def _problem(kind: str | None, pattern: str, question: Confirmation) -> str | None:
    """Return why a pattern is rejected: it is invalid, or it does not cover the call."""
    if kind is None:
        return "This rule covers exactly these arguments and has no pattern."
    if kind == "path":
        try:
            covers = compile_glob(pattern, paths=True)
        except ValueError as error:
            return f"The pattern is invalid: {error}"
        covered = all(map(covers, question.projected_modifications))
        return None if covered else "That pattern does not cover this call."
    if kind == "host":
        host = question.arguments["host"]
        is_covered = compile_glob(pattern, paths=False)(host)
        if not is_covered or reaches_inside(pattern, "host", host):
            return "That pattern covers another host."
        return None
    try:
        rules = [(parse_pattern(pattern), "allow")]
    except ValueError as error:
        return f"The pattern is invalid: {error}"
    command = read_command(str(question.arguments.get("command", "")))
    covered = judge(command, rules).outcome == "allow"
    return None if covered else "That pattern does not cover this command."


def confirmer(wired: Wired, call: ToolCall, options: Namespace) -> Confirmer | None:
    """Return the approver: `--yes`, the person at the terminal, or None."""
    tty = None if options.no_input or options.wait else open_tty()
    person = None if tty is None else asker(wired, call, tty)
    return _yes_to_calls(person) if options.yes else person


def asker(wired: Wired, call: ToolCall, tty: Tty) -> Asker:
    """Return a confirmer that asks the person at a terminal about a call."""

    def suggest(question: Confirmation) -> Mapping[str, Any]:
        """Return the rule for a question, which may belong to a nested call."""
        arguments = dict(question.arguments)
        inner = msgspec.structs.replace(call, tool=question.tool, arguments=arguments)
        subject, _ = wired.runtime.permission.explain(inner)
        return saved_rule(
            tool=subject.tool.name,
            decision=Outcome.ALLOW,
            workspace=call.session.workspace,
            arguments=subject.checked.arguments,
            arguments_sha256=subject.checked.sha256,
            resolved_paths=subject.resolved_paths,
            network=subject.widened,
        )

    async def rehearse(question: Confirmation) -> str:
        from callgate.cli import dry_run  # lazy: heavy, and rarely wanted  # noqa: PLC0415

        return await dry_run.rehearse(wired, call.session, str(question.arguments["command"]))

    can = wired.sandbox.surroundings is not OFF
    paint = Paint(wants_colour(True, os.environ))
    return Asker(tty, paint, suggest, rehearse if can else None)


def _yes_to_calls(person: Confirmer | None) -> Confirmer:
    """Return a confirmer that approves calls, and passes other questions to the person."""

    async def answer(question: Confirmation) -> Answer | bool | str:
        if not question.always_ask:
            return _say_yes(question)
        if person is None:
            say(f"callgate: {question.tool} is refused, because it needs a person's answer")
            return Answer(decision=Outcome.DENY, by="--yes", reason=_ONLY_CALLS)
        return await person(question)

    return answer


def _say_yes(question: Confirmation) -> Answer:
    summary = question.command_summary or question.input_summary
    say(f"--yes allows {question.tool}: {clip(summary, 200)}")
    return Answer(decision=Outcome.ALLOW, by="--yes")


BY_WATCH = "callgate watch"
_SHORT_CHOICES = {
    "y": "[y]es",
    "r": "this [r]un",
    "t": "[t]his tool there",
    "a": "[a]lways in this session",
    "s": "[s]ave a rule",
    "n": "[n]o",
    "v": "ne[v]er",
    "": "[Enter] later",
}


class Answers:
    def __init__(self, store: Store, tty: Tty, by: str = BY_WATCH) -> None:
        """`by`: the command, for the audit log."""
        self._store = store
        self._by = by
        self._tty = tty
        self._paint = Paint(wants_colour(True, os.environ))

    async def ask(self, id: str) -> None:
        """Ask until the question is answered here or elsewhere, or the person skips it."""
        stored = await self._open(id)
        if stored is None:
            return
        try:
            question = questions.read_question(stored)
        except msgspec.ValidationError:  # another version: an answer would approve an unknown call
            return
        answer = await self._unless_closed(stored, question)
        if answer is None:
            return
        receipt = await questions.answer(self._store, id, answer)
        if not receipt.applied:
            self._tty.write("callgate: the question was answered elsewhere first\n")

    async def _unless_closed(
        self, stored: StoredConfirmation, question: Confirmation
    ) -> Answer | None:
        closed = start_task(until_closed(self._store, stored))
        asking = start_task(self._answer(question))
        try:
            await asyncio.wait({asking, closed}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            closed.cancel()
            asking.cancel()
            await asyncio.wait({asking})  # the terminal is restored
        self._tty.write(f"callgate: {_closing_words(closed.result())}\n")
        return None

    async def _answer(self, question: Confirmation) -> Answer | None:
        left_out = {letter for letter, scope in _SCOPES.items() if scope not in question.scopes}
        if question.always_ask:
            left_out |= {"t", "a", "s", "v"}
        if not question.proposals:
            left_out.add("s")
        choices = {key: label for key, label in _SHORT_CHOICES.items() if key not in left_out}
        async with self._tty.asking():
            dialog = Dialog(self._tty, QuestionDocument(question, self._paint))
            while True:
                letter = await dialog.choose(choices, _ALLOWING)
                if not letter:
                    return None
                if letter == "s" and letter in choices:
                    if (saved := await self._rule(question)) is not None:
                        return saved
                elif letter in choices:
                    return msgspec.structs.replace(_ANSWERS[letter], by=self._by)

    async def _rule(self, question: Confirmation) -> Answer | None:
        """Return an answer that saves a rule; None if the person goes back."""
        kind = "command" if "command" in question.arguments else "host"
        self._tty.write(f"The rule for this workspace is permanent. Its {kind} pattern covers:\n")
        numbers = {str(number): each for number, each in enumerate(question.proposals, 1)}
        for number, each in numbers.items():
            line = visible(f"{number}  {kind} = {each.pattern}  ({each.covers})")
            self._tty.write(f"  | {line}\n")
        try:
            typed = await self._tty.ask(f"Type {' or '.join(numbers)}, or Enter to go back > ")
        except BegunBefore:
            return None
        chosen = numbers.get("" if typed is None else typed.strip())
        if chosen is None:
            return None
        allow = Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, by=self._by)
        return msgspec.structs.replace(allow, pattern=chosen.pattern)

    async def _open(self, id: str) -> StoredConfirmation | None:
        try:
            stored = await self._store.get_confirmation(id)
        except ConfirmationNotFound:
            return None
        return stored if stored.state is ConfirmationState.PENDING else None


async def until_closed(store: Store, question: StoredConfirmation) -> StoredConfirmation:
    """Wait until a question is answered by any process, expires or is withdrawn."""
    found = question
    with store.wake(question.session_id) as hint:
        while found.state is ConfirmationState.PENDING:
            await hint.wait()
            try:
                found = await store.get_confirmation(question.id)
            except ConfirmationNotFound:  # its session was deleted
                return msgspec.structs.replace(question, state=ConfirmationState.WITHDRAWN)
    return found


def _closing_words(closed: StoredConfirmation) -> str:
    if closed.state is ConfirmationState.EXPIRED:
        return "the question expired"
    if closed.state is ConfirmationState.WITHDRAWN:
        return "the question was withdrawn"
    return f"{closed.state} by {visible(closed.by or 'another approver')}"
