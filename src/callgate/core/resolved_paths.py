"""Where a path argument leads: inside the workspace or one of its extra roots, links resolved."""

from __future__ import annotations

import msgspec


class ResolvedPath(msgspec.Struct, frozen=True, kw_only=True):
    given: str
    """The path as the caller wrote it."""
    real: str
    """Absolute, links resolved as they are now; a missing end is kept as written."""
    root: str
    """The workspace or extra root it lies in."""
    relative: str
    """To that root; `.` for the root itself."""
    exists: bool
    protected: bool
    """Leads to code that runs later by itself (`.git`, shell start-up files, editor tasks)."""
    writable: bool
