"""How a question looks: built from the arguments that will run, and never higher than the screen.

    callgate: may this run?
      tool       shell (execute)
      why        Effect execute is prompt by default.
      workspace  /home/me/project
      sandbox    workspace
      command
      | make test

Every piece goes through `visible` and stands behind a label or a bar, so no text can pass for
ours. What does not fit is cut in the middle, and a row of our own says how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from callgate.cli.terminal import Paint
from callgate.cli.visible import Row, clip, excerpt
from callgate.core.effects import SideEffects
from callgate.dispatch.confirmations import Confirmation

_BAR, _WRAPPED, _CUT = "  | ", "  \\ ", "  ~ "
_LABEL = 13
_NARROWEST = 24
_LEAST_ROWS = 3

_PROMPT = " > "
_CHOICES = (
    "[y]es once", "[a]lways this tool in this session", "[s]ave a rule",
    "[n]o", "ne[v]er in this session",
)  # fmt: skip


class Shown(NamedTuple):
    text: str
    cut: bool
    """Something is left out that the person may want to see."""


def question_text(question: Confirmation, width: int, rows: int, paint: Paint) -> Shown:
    """The question without the choices, in at most `rows` rows of less than `width` columns."""
    width = max(width, _NARROWEST) - 1
    heading, body = _body(question)
    lines = [paint("bold", "callgate: may this run?")]
    for label, value in _fields(question):
        lines += _labelled(label, value, width - _LABEL)
    lines.append(f"  {heading}")
    room = max(rows - len(lines), _LEAST_ROWS)
    found = excerpt(body, width=width - len(_BAR), rows=room)
    if found.cut is not None:
        found = excerpt(body, width=width - len(_BAR), rows=room - 1)
    paints = paint if question.side_effects is SideEffects.WRITE else Paint(False)
    lines += _barred(found.head, body, paints)
    if found.cut is not None:
        lines.append(paint("yellow", clip(_CUT + found.cut, width)))
    lines += _barred(found.tail, body, paints)
    return Shown("\n".join(lines) + "\n", found.cut is not None)


def choices_text(width: int, *, full: bool, rehearse: bool = False) -> str:
    """The last rows: what can be answered. The cursor stays behind them."""
    width = max(width, _NARROWEST) - 1
    lines, line = [], "Allow?"
    more = [*(["show [f]ull text"] if full else []), *(["[p]review"] if rehearse else [])]
    for choice in (*_CHOICES, *more):
        if len(line) + 2 + len(choice) + len(_PROMPT) > width:
            lines.append(line)
            line = ""
        line += f"  {choice}"
    return "\n".join([*lines, line]) + _PROMPT


def _fields(question: Confirmation) -> Iterator[tuple[str, str]]:
    destructive = ", destructive" if question.destructive else ""
    yield "tool", f"{question.tool} ({question.side_effects}{destructive})"
    yield "why", question.why
    yield "workspace", question.workspace
    if question.sandbox is not None:
        yield "sandbox", question.sandbox
    if question.projected_modifications:
        yield "changes", ", ".join(question.projected_modifications)
    if isinstance(question.arguments.get("command"), str):
        said = ("command",) if question.sandbox is None else ("command", "network")
        others = {k: v for k, v in question.arguments.items() if k not in said}
        if others:
            yield "with", _written(others)


def _labelled(label: str, value: str, width: int) -> Iterator[str]:
    """A field in one row, or in two or three where it is long."""
    short = clip(value, 2 * width)
    for row in excerpt(short, width=width, rows=3).head:
        yield f"  {label if row.first else '':<{_LABEL - 2}}{row.text}"


def _body(question: Confirmation) -> tuple[str, str]:
    command = question.arguments.get("command")
    if isinstance(command, str):
        return "command", command
    if question.preview is not None:
        return "what it does", question.preview
    if not question.arguments:
        return "without arguments", ""
    lines = [f"{key} = {_written(value)}" for key, value in question.arguments.items()]
    return "arguments", "\n".join(lines)


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _barred(rows: list[Row], body: str, paint: Paint) -> Iterator[str]:
    for row in rows:
        bar = _BAR if row.first else _WRAPPED
        begin = body.rfind("\n", 0, row.start) + 1
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(body[begin : begin + 1])
        yield bar + (paint(colour, row.text) if colour is not None else row.text)
