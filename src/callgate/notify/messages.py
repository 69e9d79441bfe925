"""What a notice says, in the form of each kind of target. Pure.

Every text in it was redacted where the question was made, and is bounded and plain here: a tool's
name or a path must not become a link, a mention or another header.
"""

from __future__ import annotations

import re
from email.message import EmailMessage
from typing import Any

import msgspec

_PLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e]+")
_MARKUP = re.compile(r"[<>&*_~`\[\]()|#!\\@]")
_LONGEST = 500


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Of one question. It has nothing with which the question could be answered."""

    question: str
    """Its id, which opens nothing."""
    tool: str
    effect: str
    session: str
    waited_s: int
    expires_in_s: int
    link: str | None
    """To the inbox; whoever follows it has to be logged in there."""
    summary: str | None = None
    workspace: str | None = None


def sentence(notice: Notice) -> str:
    text = f"callgate waits for an answer: {plain(notice.tool)} ({plain(notice.effect)})"
    waited = f"{text}, for {notice.waited_s} s"
    left = f"; it is refused in {notice.expires_in_s} s" if notice.expires_in_s > 0 else ""
    return f"{waited}{left}."


def as_json(notice: Notice) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(notice)
    kept = {key: value for key, value in fields.items() if value is not None}
    return {"type": "callgate.question_waiting", "text": sentence(notice), **kept}


def slack(notice: Notice) -> dict[str, Any]:
    lines = [escape(line) for line in _lines(notice)]
    if notice.link is not None:
        lines.append(f"<{notice.link}|Open the inbox>")
    return {"text": "\n".join(lines)}


def teams(notice: Notice) -> dict[str, Any]:
    """A message with an adaptive card, as workflows of Teams take it."""
    body = [{"type": "TextBlock", "text": escape(line), "wrap": True} for line in _lines(notice)]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if notice.link is not None:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open the inbox", "url": notice.link}
        ]
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def email(notice: Notice, sender: str, to: list[str]) -> EmailMessage:
    message = EmailMessage()
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = f"callgate waits for an answer: {plain(notice.tool)}"
    message["Auto-Submitted"] = "auto-generated"
    message["Message-ID"] = f"<{plain(notice.question)}@callgate.invalid>"
    lines = _lines(notice)
    if notice.link is not None:
        lines.append(f"Inbox: {notice.link}")
    message.set_content("\n".join(lines) + "\n")
    return message


def plain(text: str) -> str:
    """One line without characters that act on whoever shows it."""
    return _PLAIN.sub(" ", text)[:_LONGEST]


def escape(text: str) -> str:
    """The same where a text could be markup: no link, mention or format comes of it."""
    return _MARKUP.sub(lambda found: f"\N{ZERO WIDTH NON-JOINER}{_HARMLESS[found[0]]}", text)


_HARMLESS = {each: each for each in "*_~`[]()|#!\\@"} | {"<": "‹", ">": "›", "&": "+"}


def _lines(notice: Notice) -> list[str]:
    lines = [sentence(notice)]
    if notice.workspace is not None:
        lines.append(f"Workspace: {plain(notice.workspace)}")
    if notice.summary is not None:
        lines.append(f"Arguments: {plain(notice.summary)}")
    return lines
