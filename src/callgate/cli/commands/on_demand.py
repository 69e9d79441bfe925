"""Instances in the background: `serve --detach`, and the instance that a command starts."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from callgate.cli.errors import FAILED, OK
from callgate.config.instance_records import (
    environment_digest,
    has_environment,
    running,
    usual_socket,
)
from callgate.config.schema import Settings
from callgate.core.local.disk import make_private_directory
from callgate.instance.startup import LOG, login_directory, write_to
from callgate.policy.rules import is_within
from callgate.socket.listening import fitting

_STAMP = "on_demand"
"""File in `run/` whose modification time is the last start."""
_AGAIN_S = 30.0
"""Delay before another start: the last instance may not be ready yet, or may have failed."""
_USUAL_MINUTES = 10.0
_MOST = 8
"""Maximum number of instances of a home; a call does not try more."""
_NOT_OURS = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET")
"""Variables of systemd for the process that it started."""

_log = logging.getLogger("callgate.serve")


def idle_minutes(settings: Settings) -> float:
    """Return how long an instance that a call starts waits for the next; 0: none is started."""
    given = settings.instance.on_demand_minutes
    if given is not None:
        return given
    return 0 if login_directory() is None or settings.store.is_shared else _USUAL_MINUTES


def start_instance(home: str, workspace: str, idle_minutes: float) -> None:
    """Start an instance unless one serves the directory or is starting."""
    try:
        root = os.path.realpath(workspace)
        others = running(home)
        usable = filter(has_environment, others)
        served = any(is_within(root, str(record.get("cwd"))) for record in usable)
        if not served and len(others) < _MOST and _is_first(home):
            _start(home, root, idle_minutes)
    except (OSError, NotImplementedError) as error:  # the finished call does not need the instance
        _log.warning("no instance could be started: %s", error)


def _is_first(home: str) -> bool:
    """Whether no other process is starting an instance; if so, claim the start."""
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
    environment = environment_digest()
    name = hashlib.sha256(os.fsencode(root) + environment.encode()).hexdigest()[:16]
    socket = fitting(os.path.join(os.path.dirname(usual_socket(home)), f"{name}.sock"))
    serve = ["serve", "--no-http", "--idle", f"{idle_minutes:g}", "--socket", socket]
    serve += ["--environment", environment]
    # -P: modules of the current directory, a workspace, must not be imported
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
    """Return inheritable descriptors: a reader of such a pipe waits until it is closed."""
    found = []
    for each in map(int, os.listdir("/dev/fd")):
        try:
            if each > 2 and os.get_inheritable(each):
                found.append(each)
        except OSError:  # the descriptor of the listing, which is closed by now
            continue
    return found


def detach(log: str) -> Callable[[], None]:
    """Continue in a new process; return a function that reports readiness to the parent.

    Must run before other threads start, because only the calling thread continues.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    word, wanted = os.pipe()
    pid = os.fork()
    if pid:
        os.close(wanted)
        os._exit(_await(pid, word))
    os.close(word)
    os.setsid()

    def ready() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        _redirect(log)
        os.write(wanted, b"1")
        os.close(wanted)

    return ready


def _await(pid: int, word: int) -> int:
    try:
        if os.read(word, 1):
            return OK
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or FAILED
    except KeyboardInterrupt:  # the child is in another session, so it got no signal
        os.kill(pid, 2)
        os.waitpid(pid, 0)
        return 130


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    write_to(log)
