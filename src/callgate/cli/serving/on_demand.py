"""Starts an instance in the background for the calls that follow, where the settings say so.

    call, no instance took it -> its own runtime -> result -> start_instance -> callgate serve

It is `callgate serve` for that directory, without HTTP, and ends when nobody uses it. Nobody waits
for it here. Of several who start one, the lock at its socket lets one serve; that others came just
before is seen without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import sys
import time

from callgate.config.instance_records import running, usual_socket
from callgate.core.directories import make_private_directory
from callgate.instance.log_file import LOG
from callgate.policy.rules import is_within
from callgate.surfaces.socket.listening import fitting

_STAMP = "on_demand"
"""In `run/`: when one was started last."""
_AGAIN_S = 30.0
"""So long after a start none is started: that one may not be ready yet, or not be able to start."""
_MOST = 8
"""Instances of a home; a call does not look at more."""
_NOT_OURS = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET")
"""What systemd says to the process that it started."""

_log = logging.getLogger("callgate.serve")


def start_instance(home: str, workspace: str, idle_minutes: float) -> None:
    """Start one unless one serves the directory, or is being started."""
    try:
        root = os.path.realpath(workspace)
        others = running(home)
        served = any(is_within(root, str(record.get("cwd"))) for record in others)
        if not served and len(others) < _MOST and _is_first(home):
            _start(home, root, idle_minutes)
    except (OSError, NotImplementedError) as error:  # the call that was made is no worse for it
        _log.warning("no instance could be started: %s", error)


def _is_first(home: str) -> bool:
    """Whether nobody else starts one just now; from here on we do."""
    stamp = os.path.join(os.path.dirname(usual_socket(home)), _STAMP)
    make_private_directory(os.path.dirname(stamp))
    file = os.open(stamp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(file)
        if status.st_size and 0 <= time.time() - status.st_mtime < _AGAIN_S:
            return False
        os.pwrite(file, b"\n", 0)
        os.utime(file)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def _start(home: str, root: str, idle_minutes: float) -> None:
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    socket = fitting(os.path.join(os.path.dirname(usual_socket(home)), f"{name}.sock"))
    serve = ["serve", "--no-http", "--idle", f"{idle_minutes:g}", "--socket", socket]
    # -P: where we are is a workspace, and what lies there is not our code
    command = [sys.executable, "-P", "-m", "callgate", *serve, "--workspace", root]
    log = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    os.posix_spawn(
        sys.executable,
        command,
        {name: value for name, value in os.environ.items() if name not in _NOT_OURS},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.path.join(home, LOG), log, 0o600),
            *((os.POSIX_SPAWN_CLOSE, each) for each in _inherited()),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM),
    )


def _inherited() -> list[int]:
    """Files that the process would have open: whoever gave us one may wait until it is closed."""
    found = []
    for each in map(int, os.listdir("/dev/fd")):
        try:
            if each > 2 and os.get_inheritable(each):
                found.append(each)
        except OSError:  # the directory itself, which is closed by now
            continue
    return found
