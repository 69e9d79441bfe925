"""Unsupported operating systems, and the features that callgate lacks there.

Only Linux is tested. On other systems callgate lists the missing features.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost every command line more than its own start
    from typing import Final

_MISSING: Final = {
    "darwin": (
        "macOS: commands have no resource limits and no network rules by host name, processes that "
        "leave their group may survive, and the sandbox is untested"
    ),
    "win32": (
        "Windows: there is no sandbox, no owner-only files and sockets, no approval at the "
        "terminal, and no termination of a command's process tree"
    ),
}


def missing_on(platform: str) -> str | None:
    """Return a message about the features that a platform lacks; None if it is supported."""
    if platform == "linux":
        return None
    lacking = _MISSING.get(platform, f"{platform}: it is untested there")
    return f"callgate does not support {lacking}"


def can_start_on(platform: str) -> bool:
    """Whether callgate can start: Windows lacks modules that it imports."""
    return platform != "win32"
