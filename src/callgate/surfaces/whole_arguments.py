"""The arguments of a question for a client that shows what it is given, and cannot be made to open
anything: all of them, or the call is refused."""

from __future__ import annotations

from callgate.core.errors import ToolPermissionDenied
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.permission.presentation import arguments_text
from callgate.sessions.markdown import visible_lines

LONGEST = 64 * 1024
"""Characters."""


def whole_arguments(question: Confirmation, longest: int = LONGEST, *, advice: str = "") -> str:
    """With what hides or moves text made visible. Raises if they are longer than `longest`."""
    text = visible_lines(arguments_text(question.arguments))
    if len(text) > longest:
        raise ToolPermissionDenied(
            f"The arguments are too long to be shown in a question ({len(text):,} characters, at"
            f" most {longest:,}), and nothing is allowed unseen: make smaller calls{advice}.",
            reason="arguments_too_long",
        )
    return text
