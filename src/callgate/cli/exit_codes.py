"""Exit codes: 0 only if a call succeeded, else one code for each class of error."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.core.errors import ToolErrorClass

OK = 0
FAILED = 1
"""Also: a check of `doctor` or `audit verify` failed."""
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

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


def described() -> str:
    """The table for `--help`: each code with the errors that end in it."""
    by_code: dict[int, list[str]] = {}
    for error_class, code in EXIT_CODES.items():
        by_code.setdefault(code, []).append(error_class.value)
    lines = [f"  {code:<4} {', '.join(names)}" for code, names in sorted(by_code.items())]
    return "\n".join(["exit codes:", "  0    ok", *lines])
