"""What went wrong with a request to Google, as one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from callgate import ToolError, ToolExecutionError
from callgate.packs.http import Masked, quoted, retry_after
from callgate_catalogue.google.credentials import login_command, not_allowed

MAX_BODY = 64 * 1024
"""Bytes of an answer that is an error."""

NOT_FOUND = "google_not_found"
UNREADABLE = "google_answer"
"""The reason where an answer is not what it should be."""

_TOO_FAST = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
_NO_SCOPE = frozenset({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"})
_NOT_OURS = frozenset({"appNotAuthorizedToFile"})
_PERHAPS_DONE = " It may have been done all the same: look before it is done again."


class Failure(NamedTuple):
    error: ToolError
    passes: bool = False
    """Whether the same request may succeed later."""
    done: bool | None = False
    """Whether Google did what was asked; None: nobody knows."""
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
    """An answer that is no success."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def read_error(body: bytes) -> _Error:
    """What the body says in Google's shape; nothing where it has another."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (ValueError, RecursionError):
        return _Error()
    if isinstance(read.error, _Error):
        return read.error
    return _Error(message=read.error_description or read.error, status=read.error)


def refusal(answer: Refused, account: str, scope: str, masked: Masked, now: datetime) -> Failure:
    """The failure that an answer of Google is. `scope` is the smallest that would do."""
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
        text = f"The account {account} lets us change only files that we made; run: "
        return Failure(_error(text + login_command(account, "drive"), "google_scope", status))
    if status == 429 or (status == 403 and reasons & _TOO_FAST):
        text = f"Google asks for fewer requests ({status}){explanation}"
        return Failure(_error(text, "google_rate", status), True, False, wait)
    if status >= 500 or status == 408:
        text = f"Google is not available ({status}){explanation}"
        return Failure(_error(text, "google_unavailable", status), True, None, wait)
    sentence, reason = _SENTENCES.get(status, _OTHERWISE)
    return Failure(_error(f"{sentence} ({status}){explanation}", reason, status))


_SENTENCES = {
    403: ("Google does not allow it", "google_forbidden"),
    404: ("Google does not find it", NOT_FOUND),
    409: ("It is there already, or has changed meanwhile", "google_conflict"),
    410: ("It is gone", NOT_FOUND),
    412: ("It has changed meanwhile", "google_conflict"),
    413: ("It is larger than Google takes", "google_request"),
}

_OTHERWISE = ("Google does not take the request", "google_request")


def unreached(text: str, *, sent: bool) -> Failure:
    """There was no answer."""
    error = ToolExecutionError(text, reason="google_unreachable")
    return Failure(error, True, None if sent else False)


def final(failure: Failure) -> ToolError:
    """For what is not asked again; with when it would make sense, where Google said so."""
    error = failure.error
    if failure.passes and failure.retry_after_s:
        error.message += f" It may be asked again in {failure.retry_after_s:.0f} seconds."
    return error


def unknown_outcome(failure: Failure) -> ToolError:
    """For what changes something, and is not made again without a look."""
    error = failure.error
    return ToolExecutionError(
        error.message + _PERHAPS_DONE, reason="outcome_unknown", details=error.details
    )


def _error(text: str, reason: str, status: int) -> ToolExecutionError:
    return ToolExecutionError(text, reason=reason, details={"status": status})
