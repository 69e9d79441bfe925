"""A command that cannot be carried out: one line that says why, and one that says what helps."""

from __future__ import annotations

from callgate.cli.exit_codes import EXIT_CODES
from callgate.core.errors import ToolErrorClass


class CliError(Exception):
    """Ends the command. Its class is that of a call's error, so the exit code is the same."""

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
