"""Systems that callgate does not support yet, and what it would lack there.

Linux alone is tested. Whoever starts callgate elsewhere is told what is missing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost every command line more than its own start
    from typing import Final

_MISSING: Final = {
    "darwin": (
        "macOS: there are no limits on what commands use, no network by host name, and no sure end "
        "of processes that leave their group; its sandbox was never tried"
    ),
    "win32": (
        "Windows: there are no sandbox, no owner-only files and sockets, no questions at the "
        "terminal, and no end of a command's whole process tree"
    ),
}


def missing_on(platform: str) -> str | None:
    """What callgate lacks on a `sys.platform`; None where it is supported."""
    if platform == "linux":
        return None
    lacking = _MISSING.get(platform, f"{platform}: nothing was ever tried there")
    return f"callgate does not support {lacking}"


def can_start_on(platform: str) -> bool:
    """Whether there is any sense in going on: Windows lacks the modules that we import."""
    return platform != "win32"
