"""Asks the person at the terminal, and takes y, a, n, v or s for an answer.

No answer is a no: an empty line, Ctrl-D, and three answers that are none. Ctrl-C cancels the
call, here as anywhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from callgate.cli.ui.dialog import Dialog
from callgate.cli.ui.question import QuestionDocument
from callgate.cli.ui.terminal import Paint, say, wants_colour
from callgate.cli.ui.tty import BegunBefore, Tty, open_tty
from callgate.cli.ui.visible import clip, excerpt
from callgate.config.saved import saved_rule
from callgate.core.calls import ToolCall
from callgate.dispatch.commands.sandboxes import OFF
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer, Scope
from callgate.policy.commands import judge, parse_pattern, read_command
from callgate.policy.rules import Outcome, compile_glob
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # a usual call is read without it
    from argparse import Namespace

BY = "terminal"
_TRIES = 3
_ANSWERS = {
    "y": Answer(decision=Outcome.ALLOW, by=BY),
    "t": Answer(decision=Outcome.ALLOW, scope=Scope.DESTINATION, by=BY),
    "a": Answer(decision=Outcome.ALLOW, scope=Scope.SESSION, by=BY),
    "n": Answer(decision=Outcome.DENY, by=BY),
    "v": Answer(decision=Outcome.DENY, scope=Scope.SESSION, by=BY),
}
_CHOICES = {
    "y": "[y]es once",
    "t": "[t]his tool to this destination in this session",
    "a": "[a]lways this tool in this session",
    "s": "[s]ave a rule",
    "n": "[n]o",
    "v": "ne[v]er in this session",
    "p": "[p]review",
}
_ALLOWING = frozenset("ytas")
_ONLY_CALLS = "Nobody is there to be asked: --yes allows calls and answers nothing else."

Suggest = Callable[[Confirmation], Mapping[str, str | bool]]
"""The rule that an answer for good would write, as `config.saved` words it."""
Rehearse = Callable[[Confirmation], Awaitable[str]]
"""What the command of a question prints and would change."""


class Asker:
    """A confirmer: give it to `Runtime.attach`."""

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
                self._tty.write("\ncallgate: no longer asked here\n")
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
        if not question.destinations:
            left_out.add("t")
        if question.always_ask:  # no answer to it is remembered
            left_out |= {"t", "a", "s", "v", "p"}
        return {letter: label for letter, label in _CHOICES.items() if letter not in left_out}

    async def _show_rehearsal(self, rehearse: Rehearse, question: Confirmation) -> None:
        """What the command does where it changes nothing; once, then the question again."""
        self._rehearse = None
        self._tty.write("callgate: running it over an overlay of the workspace ...\n")
        text = await rehearse(question)
        width, height = self._tty.size()
        shown = excerpt(text, width=max(width - 4, 20), rows=max(height - 6, 10))
        cut = [f"  ~ {shown.cut}"] if shown.cut else []
        rows = [f"  | {row.text}" for row in shown.head] + cut
        rows += [f"  | {row.text}" for row in shown.tail]
        self._tty.write("\n".join(rows) + "\n")

    async def _save(self, question: Confirmation) -> Answer | None:
        """The answer that is written down as a rule; None if the person goes back."""
        rule = dict(self._suggest(question))
        kind = next((kind for kind in ("command", "path") if kind in rule), None)
        width = max(self._tty.size()[0], 40) - 1
        shown = [f"{key} = {'true' if value is True else value}" for key, value in rule.items()]
        self._tty.write("This rule is saved for good in rules.toml:\n")
        self._tty.write("".join(f"  | {clip(line, width - 4)}\n" for line in shown))
        other = "n to go back" if kind is None else f"another {kind} pattern, or n to go back"
        prompt = f"Enter saves it; or type {other} > "
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
            problem = _problem(kind, pattern, question)
            if problem is None:
                return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, pattern=pattern, by=BY)
            self._tty.write(f"{clip(problem, width)}\n")
        return None


def _problem(kind: str | None, pattern: str, question: Confirmation) -> str | None:
    """Why a pattern is not taken: it cannot be read, or it is about something else."""
    if kind is None:
        return "This rule covers exactly these arguments and has no pattern."
    if kind == "path":
        try:
            covers = compile_glob(pattern, paths=True)
        except ValueError as error:
            return f"That is no pattern: {error}"
        covered = all(map(covers, question.projected_modifications))
        return None if covered else "That pattern does not cover this call."
    try:
        rules = [(parse_pattern(pattern), "allow")]
    except ValueError as error:
        return f"That is no pattern: {error}"
    command = read_command(str(question.arguments.get("command", "")))
    covered = judge(command, rules).outcome == "allow"
    return None if covered else "That pattern does not cover this command."


def confirmer(wired: Wired, call: ToolCall, options: Namespace) -> Confirmer | None:
    """Who answers a question: `--yes`, the person at the terminal, or nobody."""
    tty = None if options.no_input or options.wait else open_tty()
    person = None if tty is None else asker(wired, call, tty)
    return _yes_to_calls(person) if options.yes else person


def asker(wired: Wired, call: ToolCall, tty: Tty) -> Asker:
    """Asks the person at a terminal about a call."""

    def suggest(question: Confirmation) -> Mapping[str, str | bool]:
        """A call may ask about another one that it makes."""
        arguments = dict(question.arguments)
        inner = msgspec.structs.replace(call, tool=question.tool, arguments=arguments)
        subject, _ = wired.runtime.explain(inner)
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
    """`--yes` allows calls. What else is asked meanwhile is a question to the person."""

    async def answer(question: Confirmation) -> Answer | bool | str:
        if not question.always_ask:
            return _say_yes(question)
        if person is None:
            say(f"callgate: {question.tool} needs a person's answer: refused")
            return Answer(decision=Outcome.DENY, by="--yes", reason=_ONLY_CALLS)
        return await person(question)

    return answer


def _say_yes(question: Confirmation) -> Answer:
    summary = question.command_summary or question.input_summary
    say(f"--yes allows {question.tool}: {clip(summary, 200)}")
    return Answer(decision=Outcome.ALLOW, by="--yes")
