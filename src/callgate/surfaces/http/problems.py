"""Everything that is answered with an error, and its status: one table for the whole surface.

A call that was refused or failed is an answer and no error. What stands here is a request that
could not be understood, was not allowed, or met something that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from callgate.core.errors import ToolError, ToolErrorClass, ToolShuttingDown
from callgate.core.models import ModelError
from callgate.core.results import ErrorInfo
from callgate.core.stores import (
    SessionLocked,
    SessionNotFound,
    StaleOwner,
    StoreClosed,
    StoreError,
    UnstorableName,
)
from callgate.protocol.carried_requests import HEADER, MOVED, REFUSED
from callgate.sessions.session_turn import TurnInProgress
from callgate.surfaces.unfinished import REFUSAL

RETRY_AFTER_S = 1
"""After how long another instance, or this one, may take what was refused."""
STATUSES: Mapping[ToolErrorClass, int] = {
    ToolErrorClass.NOT_FOUND: 404,
    ToolErrorClass.VALIDATION_ERROR: 422,
    ToolErrorClass.PERMISSION_DENIED: 403,
    ToolErrorClass.USER_DENIED: 403,
    ToolErrorClass.CONFIRMATION_TIMEOUT: 403,
    ToolErrorClass.TIMEOUT: 500,
    ToolErrorClass.EXECUTION_ERROR: 500,
    ToolErrorClass.CANCELLED: 409,
    ToolErrorClass.SHUTTING_DOWN: 503,
    ToolErrorClass.PROTOCOL_ERROR: 400,
    ToolErrorClass.HOST_UNAVAILABLE: 503,
    ToolErrorClass.PARSE_ERROR: 400,
}


class Failure(msgspec.Struct, frozen=True):
    """What an error answer holds."""

    error: ErrorInfo


class Problem(Exception):
    def __init__(
        self,
        status: int,
        error_class: ToolErrorClass,
        message: str,
        reason: str,
        *,
        details: Any = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body: Any = Failure(
            ErrorInfo(error_class=error_class, message=message, reason=reason, details=details)
        )


class Settled(Problem):
    """An answer that came too late; its body says what was decided instead."""

    def __init__(self, body: Any) -> None:
        super().__init__(409, ToolErrorClass.VALIDATION_ERROR, "It was decided.", "decided")
        self.body = body


def bad_request(message: str, reason: str = "bad_request") -> Problem:
    return Problem(400, ToolErrorClass.PROTOCOL_ERROR, message, reason)


def unauthorized() -> Problem:
    return Problem(
        401,
        ToolErrorClass.PERMISSION_DENIED,
        "The token of this instance is needed.",
        "token",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def forbidden(message: str, reason: str) -> Problem:
    return Problem(403, ToolErrorClass.PERMISSION_DENIED, message, reason)


def carried_refused(why: str) -> Problem:
    """To another server, whose request is not what it should be."""
    return Problem(
        401,
        ToolErrorClass.PERMISSION_DENIED,
        f"What another server carries to this one is refused: {why}",
        "carried_refused",
        headers=[(HEADER.encode(), REFUSED)],
    )


def moved() -> Problem:
    """To another server, which takes this one for the owner."""
    return Problem(
        421,
        ToolErrorClass.VALIDATION_ERROR,
        "Another server owns this by now. Nothing was done.",
        "moved",
        headers=[(HEADER.encode(), MOVED)],
    )


def not_found(kind: str) -> Problem:
    return Problem(404, ToolErrorClass.NOT_FOUND, f"There is no such {kind}.", "not_found")


def conflict(message: str, reason: str, **details: Any) -> Problem:
    return Problem(409, ToolErrorClass.VALIDATION_ERROR, message, reason, details=details or None)


def invalid(message: str, reason: str = "invalid") -> Problem:
    return Problem(422, ToolErrorClass.VALIDATION_ERROR, message, reason)


def overloaded() -> Problem:
    return Problem(503, ToolErrorClass.EXECUTION_ERROR, REFUSAL, "overloaded")


def draining() -> Problem:
    """At once at another instance, or here when this one has been started anew."""
    error = ToolShuttingDown.draining()
    return Problem(
        503,
        error.error_class,
        error.message,
        "draining",
        headers=[(b"retry-after", str(RETRY_AFTER_S).encode())],
    )


def stopping() -> Problem:
    """To a client whose request was cut off by the end of the instance."""
    return Problem(
        503,
        ToolErrorClass.SHUTTING_DOWN,
        "The instance stopped before it answered. Whether the request took effect is not known: "
        "look before you send it again.",
        "outcome_unknown",
    )


def not_ready(checks: Mapping[str, str]) -> Problem:
    """`checks` are words of ours: whoever reads this has shown no token."""
    failing = ", ".join(f"{name}: {found}" for name, found in checks.items() if found != "ok")
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This instance takes no work now ({failing}).",
        "not_ready",
        details=dict(checks),
        headers=[(b"retry-after", str(RETRY_AFTER_S).encode())],
    )


def problem_of(error: Exception) -> Problem | None:
    """An error of ours as an answer; None for one that nobody expected."""
    match error:
        case Problem():
            return error
        case TurnInProgress():
            return conflict(str(error), "turn_under_way", turn_id=error.turn_id)
        case SessionNotFound():
            return not_found("session")
        case SessionLocked() | StaleOwner():
            return conflict(str(error), "session_locked")
        case UnstorableName():
            return not_found("name")
        case StoreClosed():
            return Problem(503, ToolErrorClass.SHUTTING_DOWN, str(error), "stopping")
        case StoreError():
            return Problem(503, ToolErrorClass.EXECUTION_ERROR, str(error), "store")
        case ModelError():
            return invalid(error.message, f"model_{error.kind}")
        case ToolError():
            info = ErrorInfo.of(error, "")
            reason = info.reason or str(error.error_class)
            return Problem(
                STATUSES[error.error_class],
                error.error_class,
                info.message,
                reason,
                details=info.details,
            )
    return None
