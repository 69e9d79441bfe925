"""What a session is called in a list before anyone gave it a title."""

from __future__ import annotations

from callgate.core.content import TextBlock
from callgate.core.messages import Message
from callgate.redaction.texts import redact

LONGEST = 80


def title_of(prompt: Message) -> str | None:
    """The first line of what the user said first; None where they said no word."""
    for block in prompt.content:
        if isinstance(block, TextBlock) and block.text.strip():
            line = redact(" ".join(block.text.strip().splitlines()[0].split()))
            return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return None
