"""Writing down the failures of other people's code: with the traceback, without the secrets."""

from __future__ import annotations

import logging
import traceback

from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.stores import StoreError
from callgate.redaction.texts import redact

OUTCOME_UNKNOWN = "outcome_unknown"
"""Reason of a call whose server lost its session."""
UNKNOWN = (
    "Another server took over the session while the call ran. Whether the call took effect is not "
    "known: check before you repeat it."
)


def log_failure(
    log: logging.Logger, error: BaseException, message: str, *arguments: object
) -> None:
    """One ERROR with a redacted traceback. An exception's text may hold whatever it came across."""
    text = redact("".join(traceback.format_exception(error)))
    log.error(message + "\n%s", *arguments, text)


def unkept(error: StoreError) -> ToolError:
    """The refusal of what could not be written down."""
    return ToolPermissionDenied(
        f"{error} What cannot be written down is not done, so calls with effects are refused.",
        reason="store_unwritable",
    )
