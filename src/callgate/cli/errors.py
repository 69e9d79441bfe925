"""Exit codes of commands, and the error that ends a command.

The exit code is 0 only on success; each class of error has one code.
"""

from __future__ import annotations

from collections.abc import Mapping

from callgate.core.errors import ToolErrorClass

OK = 0
FAILED = 1
"""Also if a check of `doctor` or `audit verify` failed."""
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

CHECK_SETTINGS = "callgate doctor checks the file."
"""The hint after the report of a mistake in the settings."""

EXIT_CODES: Mapping[ToolErrorClass, int] = {
    ToolErrorClass.NOT_FOUND: 1,
    ToolErrorClass.VALIDATION_ERROR: 2,
    ToolErrorClass.PERMISSION_DENIED: 3,
    ToolErrorClass.USER_DENIED: 3,
    ToolErrorClass.CONFIRMATION_TIMEOUT: 3,
    ToolErrorClass.TIMEOUT: 4,
    ToolErrorClass.EXECUTION_ERROR: 1,
    ToolErrorClass.CANCELLED: INTERRUPTED,
    ToolErrorClass.SHUTTING_DOWN: 5,
    ToolErrorClass.PROTOCOL_ERROR: 6,
    ToolErrorClass.HOST_UNAVAILABLE: 5,
    ToolErrorClass.PARSE_ERROR: 2,
}


class CliError(Exception):
    """Error that ends the command, with one line of explanation and a `hint` for the user.

    Its class is a call's error class, which determines the exit code.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        error_class: ToolErrorClass = ToolErrorClass.VALIDATION_ERROR,
        reason: str = "usage",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.error_class = error_class
        self.reason = reason

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.error_class]


def described_exit_codes() -> str:
    """Return the table for `--help`: each exit code with its error classes."""
    by_code: dict[int, list[str]] = {}
    for error_class, code in EXIT_CODES.items():
        by_code.setdefault(code, []).append(error_class.value)
    lines = [f"  {code:<4} {', '.join(names)}" for code, names in sorted(by_code.items())]
    return "\n".join(["exit codes:", "  0    ok", *lines])
