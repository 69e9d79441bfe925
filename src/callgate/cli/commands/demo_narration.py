"""The texts of `callgate demo`, and their output."""

from __future__ import annotations

import sys
from enum import Enum
from textwrap import fill, wrap
from typing import NamedTuple

import msgspec

from callgate.cli.commands.demo_stage import BY_DEMO, BY_YES, Approver
from callgate.cli.programs import typed_program
from callgate.cli.ui.confirmation_prompt import BY as BY_TERMINAL
from callgate.cli.ui.terminal import columns, paint_for
from callgate.cli.ui.visible import visible_text
from callgate.core.content import Message, MessageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.events import (
    CHAT,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    FAILED,
    INPUT_INVALID,
    Event,
)
from callgate.core.stores import Store
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Confirmation

INTRODUCTION = (
    "An agent works in a small project, behind callgate. Everything is real except the model, "
    "which plays a script. The project and its home are temporary; nothing of yours is touched."
)
NEXT = (
    (
        "callgate protect claude",
        "put Claude Code behind the gate (or codex, gemini, ...)",
    ),
    ("callgate init", "write your settings, and find your models, editors and agents"),
    ("callgate chat", "talk to a model that works with your files"),
)
_ANSWERED = {
    BY_TERMINAL: "at this terminal",
    "dashboard": "in the browser",
    "http": "over HTTP",
    BY_YES: "by --yes",
    BY_DEMO: "by the demo itself, because there is no terminal to ask at",
}
_NO_SANDBOX = "sandbox_unavailable"
_UNSEEN = "[not visible in the sandbox:"


class Edit(Enum):
    """The end of the agent's edit."""

    DONE = "done"
    DENIED = "denied"
    EXPIRED = "expired"
    FAILED = "failed"


class CallEnd(NamedTuple):
    """The end of one call, from its last event."""

    error_class: str | None = None
    """None: the tool ran, and reported success or failure itself."""
    message: str = ""
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        return self.error_class in DENIALS


def question_lines(question: Confirmation) -> list[str]:
    """The question, in full: the arguments of an edit are its path and its diff."""
    changes = ", ".join(question.projected_modifications)
    lines = [f"{question.tool} {changes}".rstrip(), question.why]
    return [*lines, *(question.preview or question.input_summary).rstrip("\n").split("\n")]


def answer_words(decision: str, by: str | None, answer_within_s: float) -> str:
    """A closed question, in one sentence."""
    if decision == "timeout":
        return f"No answer within {answer_within_s:g} s: the question expired, the call is refused."
    if decision not in ("allow", "deny"):
        return "The question was withdrawn, and the call is refused."
    answered = "Allowed" if decision == "allow" else "Denied"
    return f"{answered} {_ANSWERED.get(by or '', f'by {by}')}."


def call_words(end: CallEnd) -> str:
    if end.error_class is None:
        return "done"
    return f"{'refused' if end.is_refused else 'failed'}: {end.message}"


def edit_of(end: CallEnd | None) -> Edit:
    if end is None:
        return Edit.FAILED
    if end.error_class is None:
        return Edit.DONE
    if end.error_class == ToolErrorClass.CONFIRMATION_TIMEOUT:
        return Edit.EXPIRED
    return Edit.DENIED if end.is_refused else Edit.FAILED


def no_undo_words(edit: Edit) -> str:
    """Why the demo has nothing to undo."""
    reasons = {
        Edit.DENIED: "The edit was refused",
        Edit.EXPIRED: "The question about the edit expired",
        Edit.FAILED: "The edit failed",
    }
    return f"{reasons[edit]}, so the file was not changed and there is nothing to undo."


def undo_words(name: str, *, restored: bool) -> str:
    return f"{name} is as it was before." if restored else f"{name} was not restored."


class DemoCommand(NamedTuple):
    """The end of the agent's command."""

    end: CallEnd | None
    """None: the agent did not get that far."""
    output: str
    key: str
    """The content of the planted key, read outside the sandbox."""

    @property
    def leaked(self) -> bool:
        return bool(self.key) and self.key.strip() in self.output


def command_words(command: DemoCommand) -> str:
    """Return a sentence about the sandbox, from the command's result."""
    if command.end is None:
        return "The agent ran no command."
    if command.end.reason == _NO_SANDBOX:
        return (
            "This machine cannot sandbox commands, so callgate did not run it. `callgate doctor` "
            "shows the reason."
        )
    if command.end.error_class is not None:
        return "The command did not finish, so it shows nothing about the sandbox."
    if command.leaked:
        return "The command read the key: the sandbox of this machine did not hide it."
    if not command.key:
        return "The planted key is gone, so the command shows nothing about the sandbox."
    if _UNSEEN in command.output:
        return "The key exists, and the sandbox does not show it to commands."
    return "The key exists, and the command could not read it."


INDENT = "   "
_COMMAND = "shell"
_WIDE = 120
_READABLE = 92
"""Columns of a paragraph, at most."""


def print_paragraph(text: str) -> None:
    print(fill(text, min(columns(_WIDE), _READABLE) - 1), flush=True)


def print_heading(text: str) -> None:
    print(paint_for(sys.stdout)("cyan", f"\n── {text}"), flush=True)


def print_lines(text: str, colour: str | None = None, mark: str = "", more: str = "  ") -> None:
    """Print lines indented, wrapped to the terminal, and without control characters.

    Args:
        mark: before each line.
        more: before each continuation of a wrapped line.
    """
    paint = paint_for(sys.stdout)
    width = max(columns(_WIDE) - 1, 20)
    for line in visible_text(text.rstrip("\n")).split("\n"):
        rows = wrap(
            line,
            width,
            initial_indent=f"{INDENT}{mark}",
            subsequent_indent=f"{INDENT}{more}",
            break_on_hyphens=False,
        )
        for row in rows or [f"{INDENT}{mark}".rstrip()]:
            print(row if colour is None else paint(colour, row), flush=True)


def print_link(url: str) -> None:
    """Print a link unbroken, so that a terminal can open it."""
    print(f"{INDENT}{url}", flush=True)


def print_next() -> None:
    print_heading("Next")
    paint = paint_for(sys.stdout)
    program = typed_program()
    commands = [(command.replace("callgate", program, 1), purpose) for command, purpose in NEXT]
    width = max(len(command) for command, _ in commands)
    for command, purpose in commands:
        head = f"{INDENT}{command.ljust(width)}  "
        first, *others = wrap(purpose, max(columns(_WIDE) - len(head) - 1, 20)) or [""]
        print(head.replace(command, paint("bold", command)) + first, flush=True)
        for row in others:
            print(" " * len(head) + row, flush=True)


class Narration:
    """One turn, printed event by event."""

    def __init__(
        self, store: Store, session: str, approver: Approver, link: str, answer_within_s: float
    ) -> None:
        """`link`: opens the question in a browser."""
        self._store = store
        self._session = session
        self._approver = approver
        self._link = link
        self._answer_within_s = answer_within_s
        self._text = ""
        """Text of the agent, printed with its next call."""
        self.ends: dict[str, CallEnd] = {}
        """By tool: the end of its last call."""

    async def show(self, event: Event) -> None:
        payload = event.payload
        if event.type == CHAT:
            self._text = str(payload["content"])
        elif event.type == CONFIRMATION_REQUESTED:
            await self._ask(str(payload["confirmation_request_id"]))
        elif event.type == CONFIRMATION_RESOLVED:
            by = payload.get("by")
            decision, name = str(payload["decision"]), None if by is None else str(by)
            print_lines(answer_words(decision, name, self._answer_within_s), "bold")
        elif event.type in (COMPLETED, FAILED, INPUT_INVALID):
            await self._end(event)

    async def _ask(self, id: str) -> None:
        print_heading("The edit needs approval")
        self._say_text()
        question = questions.read_question(await self._store.get_confirmation(id))
        if (invitation := self._approver.invitation()) is not None:
            print_lines(f"{invitation} The link works once, within a minute:")
            print_link(self._link)
        await self._approver.answer(id, question_lines(question))

    async def _end(self, event: Event) -> None:
        payload = event.payload
        use = await self._use(str(payload["call_id"]))
        end = CallEnd()
        if event.type == FAILED:
            reason = str(payload.get("reason", ""))
            end = CallEnd(str(payload["error_class"]), str(payload["message"]), reason)
        elif event.type == INPUT_INVALID:
            end = CallEnd("validation_error", "; ".join(map(str, payload["validation_errors"])))
        self.ends[use.name] = end
        if use.name == _COMMAND:  # its output is part of its result, which is stored later
            print_heading("A command of the agent")
            self._say_text()
            if end.error_class is None:
                print_lines("A rule of the demo allows commands, so this one needs no approval.")
            return
        self._say_text()
        colour = "red" if end.is_refused else None
        print_lines(f"{use.name} {use.input.get('path', '')}: {call_words(end)}", colour, "● ")

    def _say_text(self) -> None:
        if self._text:
            print_lines(f"Agent: {self._text}")
        self._text = ""

    async def print_command(self) -> str:
        """Print the agent's commands and their results; return the results."""
        blocks = await self._blocks()
        results = {each.tool_use_id: each for each in blocks if isinstance(each, ToolResultBlock)}
        shown = ""
        for use in blocks:
            if not isinstance(use, ToolUseBlock) or use.name != _COMMAND or use.id not in results:
                continue
            content = results[use.id].content
            text = "".join(each.text for each in content if isinstance(each, TextBlock))
            print_lines(str(use.input.get("command", "")), "bold", "$ ")
            print_lines(text, None, "| ", "| ")
            shown += text
        return shown

    async def _use(self, call: str) -> ToolUseBlock:
        for block in await self._blocks():
            if isinstance(block, ToolUseBlock) and block.id == call:
                return block
        return ToolUseBlock(id=call, name="a tool", input={})

    async def _blocks(self) -> list[MessageBlock]:
        messages = await self._store.read_messages(self._session)
        bodies = [msgspec.convert(each.body, Message) for each in messages]
        return [block for body in bodies for block in body.content]
