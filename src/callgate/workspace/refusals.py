"""Errors of the workspace boundary: one constructor for each.

The texts name the path of the call and nothing outside the workspace: a refusal must not
disclose the target of a link.
"""

from __future__ import annotations

import errno

from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    WorkspaceEscapeError,
)
from callgate.workspace.paths import invalid, shown


def escape(path: str) -> ToolError:
    return WorkspaceEscapeError(f"Path {shown(path)} escapes workspace boundary")


def link_loop(path: str) -> ToolError:
    return WorkspaceEscapeError(
        f"Path {shown(path)} goes through links that lead nowhere", reason="link_loop"
    )


def protected(path: str) -> ToolError:
    return WorkspaceEscapeError(
        f"Path {shown(path)} is protected: it can run code later, so only an explicit rule"
        " allows writing it",
        reason="protected_path",
    )


def read_only_root(path: str) -> ToolError:
    return ToolPermissionDenied(
        f"Path {shown(path)} is in a directory that is open for reading only",
        reason="read_only_root",
    )


def root_itself(path: str) -> ToolError:
    return ToolPermissionDenied(
        f"Path {shown(path)} is the workspace itself", reason="workspace_root"
    )


def missing(path: str) -> ToolError:
    return ToolExecutionError(f"File {shown(path)} does not exist", reason="file_not_found")


def wrong_type(path: str, kind: str) -> ToolError:
    return ToolExecutionError(f"Path {shown(path)} {kind}", reason="wrong_type")


def not_text(path: str) -> ToolError:
    return ToolExecutionError(f"File {shown(path)} is not UTF-8 text", reason="not_text")


def too_large(path: str, limit: int) -> ToolError:
    return ToolExecutionError(
        f"File {shown(path)} is larger than {limit:,} bytes", reason="too_large"
    )


def changed(path: str) -> ToolError:
    return ToolExecutionError(
        f"File {shown(path)} was changed by another program; read it again",
        reason="changed",
    )


def workspace_missing() -> ToolError:
    return ToolExecutionError("The workspace directory does not exist", reason="workspace_missing")


_REASONS = {
    errno.EACCES: "access_denied",
    errno.EPERM: "access_denied",
    errno.EROFS: "access_denied",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "too_large",
}


def of(error: OSError, path: str) -> ToolError:
    """Return the error for a failed system call about this path."""
    code = error.errno
    if code in (errno.ENOENT, errno.ENOTDIR):
        return missing(path)
    if code == errno.EXDEV:
        return escape(path)
    if code == errno.ELOOP:
        return link_loop(path)
    if code in (errno.ENAMETOOLONG, errno.EILSEQ):
        return invalid(path, "is not a valid file name here")
    if code == errno.EISDIR:
        return wrong_type(path, "is a directory")
    if code in (errno.ENXIO, errno.ENODEV):
        return wrong_type(path, "is not a regular file")
    reason = error.strerror or "input/output error"
    return ToolExecutionError(
        f"File {shown(path)}: {reason}",
        reason=_REASONS.get(code or 0, "io_error"),
        underlying=error,
    )


class answering:  # reads like a function; a generator would cost five times as much
    """Translate system errors inside the block into errors of the workspace boundary."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise of(error, self._path) from error
