"""Results and refusals of Google tools, as readable lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from callgate import TextBlock, ToolError, ToolExecutionError, ToolOutput
from callgate.packs.http import Masked, quoted, retry_after
from callgate_catalogue.google.accounts import login_command, not_allowed
from callgate_catalogue.web.markdown import without_unseen

MAX_TEXT = 200_000
"""Maximum characters of a text in a result."""


def text_output(text: str, value: Any, **more: Any) -> ToolOutput:
    cut = len(text) > MAX_TEXT
    if cut:
        text = f"{text[:MAX_TEXT]}\n[cut: {len(text):,} characters in all]"
    return ToolOutput(content=[TextBlock(text)], value=value, truncated=cut, **more)


def listed(lines: Iterable[str], value: Any, *, nothing: str, more: bool = False) -> ToolOutput:
    """Return a list with one line an item; `more` marks omitted items."""
    return text_output(in_lines(lines, nothing, more), value, metadata={"more": more})


def in_lines(lines: Iterable[str], nothing: str, more: bool) -> str:
    shown = list(lines)
    if more and shown:
        shown.append(f"[the first {len(shown)}; there are more]")
    return "\n".join(shown) or nothing


def one_line(text: str) -> str:
    """Return a text on one line, without invisible characters."""
    return " ".join(without_unseen(text).split())


def given(input: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the named arguments that are present."""
    return {name: input[name] for name in names if name in input}


MAX_BODY = 64 * 1024
"""Maximum bytes of an error answer."""

NOT_FOUND = "google_not_found"
UNREADABLE = "google_answer"
"""Reason code of an invalid answer."""

_TOO_FAST = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
_NO_SCOPE = frozenset({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"})
_NOT_OURS = frozenset({"appNotAuthorizedToFile"})
_PERHAPS_DONE = " It may have succeeded: check before you repeat it."


class Failure(NamedTuple):
    error: ToolError
    passes: bool = False
    """Whether the same request may succeed later."""
    done: bool | None = False
    """Whether Google executed the request; None if unknown."""
    retry_after_s: float | None = None


class _Item(msgspec.Struct):
    reason: str | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    status: str | None = None
    errors: list[_Item] = []
    details: list[_Item] = []

    @property
    def reasons(self) -> set[str]:
        given = [self.status, *(each.reason for each in (*self.errors, *self.details))]
        return {each for each in given if each}


class _Body(msgspec.Struct):
    error: _Error | str | None = None
    error_description: str | None = None


class Refused(NamedTuple):
    """Answer without a success status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def read_error(body: bytes) -> _Error:
    """Parse the body in Google's error format; empty for other formats."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (ValueError, RecursionError):
        return _Error()
    if isinstance(read.error, _Error):
        return read.error
    return _Error(message=read.error_description or read.error, status=read.error)


def refusal(answer: Refused, account: str, scope: str, masked: Masked, now: datetime) -> Failure:
    """Convert an answer of Google to a failure. `scope` is the smallest sufficient scope."""
    details = read_error(answer.body)
    status, reasons = answer.status, details.reasons
    explanation = quoted(details.message or "", masked)
    wait = retry_after(answer.headers, now)
    if status == 401:
        text = f"Google does not accept the login of the account {account}; run: "
        return Failure(_error(text + login_command(account), "google_login", status))
    if status == 403 and reasons & _NO_SCOPE:
        return Failure(not_allowed(account, scope))
    if status == 403 and reasons & _NOT_OURS:
        text = f"The account {account} lets callgate change only files that it created; run: "
        return Failure(_error(text + login_command(account, "drive"), "google_scope", status))
    if status == 429 or (status == 403 and reasons & _TOO_FAST):
        text = f"The rate limit of Google is exceeded ({status}){explanation}"
        return Failure(_error(text, "google_rate", status), True, False, wait)
    if status >= 500 or status == 408:
        text = f"Google is not available ({status}){explanation}"
        return Failure(_error(text, "google_unavailable", status), True, None, wait)
    sentence, reason = _SENTENCES.get(status, _OTHERWISE)
    return Failure(_error(f"{sentence} ({status}){explanation}", reason, status))


_SENTENCES = {
    403: ("Google does not allow it", "google_forbidden"),
    404: ("Google cannot find it", NOT_FOUND),
    409: ("It already exists, or has changed since", "google_conflict"),
    410: ("It no longer exists", NOT_FOUND),
    412: ("It has changed since it was read", "google_conflict"),
    413: ("It exceeds Google's size limit", "google_request"),
}

_OTHERWISE = ("Google rejected the request", "google_request")


def unreached(text: str, *, sent: bool) -> Failure:
    """Return the failure of a request without an answer."""
    error = ToolExecutionError(text, reason="google_unreachable")
    return Failure(error, True, None if sent else False)


def final(failure: Failure) -> ToolError:
    """Return the error of a request that is not retried, with the retry time of Google."""
    error = failure.error
    if failure.passes and failure.retry_after_s:
        error.message += f" Retry in {failure.retry_after_s:.0f} seconds."
    return error


def unknown_outcome(failure: Failure) -> ToolError:
    """Return the error of a change with an unknown outcome, which must not be repeated blindly."""
    error = failure.error
    return ToolExecutionError(
        error.message + _PERHAPS_DONE, reason="outcome_unknown", details=error.details
    )


def _error(text: str, reason: str, status: int) -> ToolExecutionError:
    return ToolExecutionError(text, reason=reason, details={"status": status})
