"""Every way in which a call can end badly: one tree, one closed set of classes.

    ToolError
    ├── ToolNotFound            no such tool, or not visible to this session
    ├── ToolValidationError     the arguments break the tool's schema
    ├── ToolPermissionDenied    policy, mode or wall said no; nobody was asked
    │   └── WorkspaceEscapeError    a path leaves the workspace or enters a protected place
    ├── ToolUserDenied          a person said no
    ├── ConfirmationTimeout     nobody answered in time
    ├── ToolTimeout             the work took longer than its limit
    ├── ToolExecutionError      the work itself failed
    ├── ToolCancelled           someone stopped it
    ├── ToolShuttingDown        the runtime is going away
    ├── ToolProtocolError       a peer broke a wire's rules
    ├── ToolHostUnavailable     the process that runs the tool is gone
    └── ToolParseError          a model's text could not be read

    ToolRegistrationError (ValueError)   a definition is wrong; raised to its author

`str(error)` is safe to show to a model or a person. Wrong use by our own program is a
`ValueError`, never a `ToolError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

GENERIC_FAILURE = "The tool failed unexpectedly."


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


class ToolError(Exception):
    """A call that did not end well; a tool raises a subclass to say so itself."""

    error_class: ToolErrorClass = ToolErrorClass.EXECUTION_ERROR

    def __init__(
        self,
        message: str,
        *,
        tool_use_id: str = "",
        is_user_visible: bool = True,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        # A tool may raise with anything at hand; everyone after it relies on text.
        self.message = message if isinstance(message, str) else str(message)
        self.tool_use_id = tool_use_id
        self.is_user_visible = bool(is_user_visible)
        self.reason = reason if reason is None or isinstance(reason, str) else str(reason)
        self.details = details if isinstance(details, Mapping) else None


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
        """What runs may end, and nothing new begins. Another instance may take it."""
        message = "This instance is draining: it ends soon and takes no new work."
        return cls(message, reason="draining")


class ToolProtocolError(ToolError):
    error_class = ToolErrorClass.PROTOCOL_ERROR


class ToolHostUnavailable(ToolError):
    error_class = ToolErrorClass.HOST_UNAVAILABLE


class ToolParseError(ToolError):
    error_class = ToolErrorClass.PARSE_ERROR


class ToolRegistrationError(ValueError):
    """A definition that cannot be registered; the message names the tool and the place."""
