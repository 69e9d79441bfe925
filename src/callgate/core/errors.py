"""All errors that end a call: one tree, one closed set of classes.

    ToolError
    ├── ToolNotFound            no such tool, or not visible to this session
    ├── ToolValidationError     the arguments break the tool's schema
    ├── ToolPermissionDenied    refused by policy, mode or confinement, without a question
    │   └── WorkspaceEscapeError    a path leaves the workspace or enters a protected place
    ├── ToolUserDenied          the approver denied the call
    ├── ConfirmationTimeout     no answer arrived in time
    ├── ToolTimeout             the work exceeded its time limit
    ├── ToolExecutionError      the work failed
    ├── ToolCancelled           the call was cancelled
    ├── ToolShuttingDown        the runtime is shutting down
    ├── ToolProtocolError       a peer violated its protocol
    ├── ToolHostUnavailable     the process that runs the tool is not available
    └── ToolParseError          the text of a model could not be parsed

    ToolRegistrationError (ValueError)   a wrong definition; raised to its author

`str(error)` is safe to show to a model or a person. Wrong use by our own program is a
`ValueError`, never a `ToolError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

GENERIC_FAILURE = "The tool failed unexpectedly."
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_JSON = (Mapping, list, tuple, str, int, float)


class ToolErrorClass(StrEnum):
    """The closed list. Events and result blocks name the first eight; see `in_events`."""

    NOT_FOUND = "not_found"
    VALIDATION_ERROR = "validation_error"
    PERMISSION_DENIED = "permission_denied"
    USER_DENIED = "user_denied"
    CONFIRMATION_TIMEOUT = "confirmation_timeout"
    TIMEOUT = "timeout"
    EXECUTION_ERROR = "execution_error"
    CANCELLED = "cancelled"
    SHUTTING_DOWN = "shutting_down"
    PROTOCOL_ERROR = "protocol_error"
    HOST_UNAVAILABLE = "host_unavailable"
    PARSE_ERROR = "parse_error"

    @property
    def in_events(self) -> ToolErrorClass:
        """The class under which events and result blocks report this one."""
        return _IN_EVENTS.get(self, self)


_IN_EVENTS = {
    ToolErrorClass.SHUTTING_DOWN: ToolErrorClass.CANCELLED,
    ToolErrorClass.PROTOCOL_ERROR: ToolErrorClass.VALIDATION_ERROR,
    ToolErrorClass.HOST_UNAVAILABLE: ToolErrorClass.EXECUTION_ERROR,
    ToolErrorClass.PARSE_ERROR: ToolErrorClass.VALIDATION_ERROR,
}

DENIALS = frozenset(
    {
        ToolErrorClass.PERMISSION_DENIED,
        ToolErrorClass.USER_DENIED,
        ToolErrorClass.CONFIRMATION_TIMEOUT,
    }
)
"""The classes that an audit record counts as decision `deny`."""


def add_details(details: Any, **more: Any) -> dict[str, Any]:
    """Return an object with additional members; other details become its member `details`."""
    if isinstance(details, Mapping):
        return {**details, **more}
    return more if details is None else {"details": details, **more}


class ToolError(Exception):
    """A call that was refused or failed. A tool can raise a subclass."""

    error_class: ToolErrorClass = ToolErrorClass.EXECUTION_ERROR

    def __init__(
        self,
        message: str,
        *,
        tool_use_id: str = "",
        is_user_visible: bool = True,
        reason: str | None = None,
        details: Any = None,
    ) -> None:
        """`details` is any JSON value, for programs."""
        super().__init__(message)
        # A tool may pass any object; all readers of the error rely on text.
        self.message = message if isinstance(message, str) else str(message)
        self.tool_use_id = tool_use_id
        self.is_user_visible = bool(is_user_visible)
        self.reason = reason if reason is None or isinstance(reason, str) else str(reason)
        self.details = details if isinstance(details, _JSON) else None

    @property
    def detail_fields(self) -> Mapping[str, Any]:
        """The details if they are an object, otherwise an empty one."""
        return self.details if isinstance(self.details, Mapping) else {}


_SAFE_SENTENCES = {
    ToolErrorClass.NOT_FOUND: "did not find the requested object",
    ToolErrorClass.VALIDATION_ERROR: "rejected its arguments",
    ToolErrorClass.PERMISSION_DENIED: "lacks a permission",
    ToolErrorClass.USER_DENIED: "was denied by the user",
    ToolErrorClass.CONFIRMATION_TIMEOUT: "got no approval in time",
    ToolErrorClass.TIMEOUT: "exceeded its time limit",
    ToolErrorClass.EXECUTION_ERROR: "failed unexpectedly",
    ToolErrorClass.CANCELLED: "was cancelled",
    ToolErrorClass.SHUTTING_DOWN: "was stopped by a shutdown",
    ToolErrorClass.PROTOCOL_ERROR: "violated its protocol",
    ToolErrorClass.HOST_UNAVAILABLE: "lost the process that runs it",
    ToolErrorClass.PARSE_ERROR: "could not read its input",
}


def safe_message(error: ToolError, tool: str) -> str:
    """Return a message for the agent about an error whose own message is confidential.

    It has the tool, the kind of failure, and the exception class or reason if that is one word.
    """
    causes = (error.detail_fields.get(EXCEPTION), error.reason)
    plain = (each for each in causes if isinstance(each, str) and _WORD.fullmatch(each))
    cause = next((f" ({each})" for each in plain), "")
    subject = f"Tool {tool!r}" if tool else "The tool"
    return f"{subject} {_SAFE_SENTENCES[error.error_class]}{cause}. Only the log has the details."


EXCEPTION = "exception"
"""Detail with the exception class, if a tool raised something other than a `ToolError`."""


class ToolNotFound(ToolError):
    error_class = ToolErrorClass.NOT_FOUND


class ToolValidationError(ToolError):
    error_class = ToolErrorClass.VALIDATION_ERROR

    def __init__(self, message: str, *, validation_errors: Sequence[str] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.validation_errors = [str(each) for each in validation_errors] or [self.message]


class ToolPermissionDenied(ToolError):
    error_class = ToolErrorClass.PERMISSION_DENIED


class WorkspaceEscapeError(ToolPermissionDenied):
    def __init__(self, message: str, **more: Any) -> None:
        more.setdefault("reason", "workspace_escape")
        super().__init__(message, **more)


class ToolUserDenied(ToolError):
    error_class = ToolErrorClass.USER_DENIED


class ConfirmationTimeout(ToolError):
    error_class = ToolErrorClass.CONFIRMATION_TIMEOUT


class ToolTimeout(ToolError):
    error_class = ToolErrorClass.TIMEOUT


class ToolExecutionError(ToolError):
    error_class = ToolErrorClass.EXECUTION_ERROR

    def __init__(
        self, message: str = GENERIC_FAILURE, *, underlying: Exception | None = None, **more: Any
    ) -> None:
        super().__init__(message, **more)
        self.underlying = underlying


class ToolCancelled(ToolError):
    error_class = ToolErrorClass.CANCELLED

    def __init__(self, message: str = "The call was cancelled.", **more: Any) -> None:
        super().__init__(message, **more)


class ToolShuttingDown(ToolError):
    error_class = ToolErrorClass.SHUTTING_DOWN

    def __init__(self, message: str = "The runtime is shutting down.", **more: Any) -> None:
        super().__init__(message, **more)

    @classmethod
    def draining(cls) -> ToolShuttingDown:
        """Return the error for new calls while the running ones finish."""
        message = "This instance is draining: it ends soon and takes no new work."
        return cls(message, reason="draining")


class ToolProtocolError(ToolError):
    error_class = ToolErrorClass.PROTOCOL_ERROR


class ToolHostUnavailable(ToolError):
    error_class = ToolErrorClass.HOST_UNAVAILABLE


class ToolParseError(ToolError):
    error_class = ToolErrorClass.PARSE_ERROR


class ToolRegistrationError(ValueError):
    """A definition that cannot be registered; the message has the tool and the location."""
