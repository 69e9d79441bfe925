"""What a keeper and the runtime say to each other, in a few numbers, about one command.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import socket
import struct

STARTED, REFUSED, EXITED, ENDED, TRIED, NOT_CREATED = 1, 2, 3, 4, 5, 6
MESSAGE = struct.Struct("<B3i2dq")
"""Kind, three numbers, then of the leader: seconds of user and system time, peak memory in KiB.

STARTED: -, and with it the listener of a proxy, if there is one; REFUSED: step, error number;
EXITED: wait status; ENDED: ended, survivors, and which limit it was ended at (`meters`). TRIED
and NOT_CREATED are other messages: the kind alone, and the path that the command tried to write
to, or to create."""
LONGEST_MESSAGE = 1 + 4096
ARM = b"w"
"""Report the next attempt to write (`write_attempts`)."""
END = struct.Struct("<d")
"""The grace in seconds between SIGTERM and SIGKILL. The shortest one counts."""


def tell(
    control: socket.socket,
    kind: int,
    *numbers: int,
    usage: tuple[float, float, int] = (0.0, 0.0, 0),
) -> None:
    """Send a message to the runtime, if it still listens."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    try:
        control.send(MESSAGE.pack(kind, first, second, third, *usage))
    except OSError:
        pass  # nobody listens any more; the work goes on
