"""What went wrong, as a wire word and back.

A host may say of its own call that the tool is unknown, the arguments are wrong, or the wire
was misused; any other word is a failure of the tool. It cannot say that a person or a policy
refused: those words count only from a process that runs our own functions, and from the
runtime.
"""

from __future__ import annotations

from msgspec import UNSET

from callgate.core import errors
from callgate.core.errors import GENERIC_FAILURE, ToolError, ToolErrorClass, add_details
from callgate.protocol.host_v1.frames import Failure

_LONGEST_TYPE = 128

TYPES = {each: "".join(map(str.capitalize, each.split("_"))) for each in ToolErrorClass}
"""`not_found` is written `NotFound`, and so on."""

_OURS = {type: each for each, type in TYPES.items()}
_ANYONES = {
    "UnknownTool": ToolErrorClass.NOT_FOUND,
    "NotFound": ToolErrorClass.NOT_FOUND,
    "ValidationError": ToolErrorClass.VALIDATION_ERROR,
    "ProtocolError": ToolErrorClass.PROTOCOL_ERROR,
}
_ERRORS: dict[ToolErrorClass, type[ToolError]] = {
    ToolErrorClass.NOT_FOUND: errors.ToolNotFound,
    ToolErrorClass.VALIDATION_ERROR: errors.ToolValidationError,
    ToolErrorClass.PERMISSION_DENIED: errors.ToolPermissionDenied,
    ToolErrorClass.USER_DENIED: errors.ToolUserDenied,
    ToolErrorClass.CONFIRMATION_TIMEOUT: errors.ConfirmationTimeout,
    ToolErrorClass.TIMEOUT: errors.ToolTimeout,
    ToolErrorClass.EXECUTION_ERROR: errors.ToolExecutionError,
    ToolErrorClass.CANCELLED: errors.ToolCancelled,
    ToolErrorClass.SHUTTING_DOWN: errors.ToolShuttingDown,
    ToolErrorClass.PROTOCOL_ERROR: errors.ToolProtocolError,
    ToolErrorClass.HOST_UNAVAILABLE: errors.ToolHostUnavailable,
    ToolErrorClass.PARSE_ERROR: errors.ToolParseError,
}


def error_class(type: str, *, trusted: bool = False) -> ToolErrorClass:
    """`trusted`: the word comes from us, not from a foreign host."""
    known = _ANYONES.get(type)
    if known is None and trusted:
        known = _OURS.get(type)
    return ToolErrorClass.EXECUTION_ERROR if known is None else known


def to_failure(error: ToolError, stack: str | None = None) -> Failure:
    return Failure(
        type=TYPES[error.error_class],
        detail=error.message if error.is_user_visible else GENERIC_FAILURE,
        stack=stack,
        reason=error.reason,
        details=UNSET if error.details is None else error.details,
    )


def to_error(failure: Failure, *, trusted: bool = False) -> ToolError:
    """The error to raise where the answer was waited for. The stack is not part of it."""
    kind = _ERRORS[error_class(failure.type, trusted=trusted)]
    if trusted and failure.reason == "workspace_escape":
        kind = errors.WorkspaceEscapeError
    details = None if failure.details is UNSET else failure.details
    if not trusted:  # its own word for what went wrong, which may say more than ours
        details = add_details(details, type=failure.type[:_LONGEST_TYPE])
    is_hidden = failure.detail in ("", GENERIC_FAILURE)
    return kind(
        failure.detail or GENERIC_FAILURE,
        reason=failure.reason,
        details=details,
        is_user_visible=not is_hidden,
    )
