"""A process that detects a stuck parent, logs its stack, and kills it if signals have no effect.

    runtime --fork--> watchdog
       |  beats: time of the loop's last iteration, in shared memory
       |  pipes: stalled, ends, interrupts  <- written by faulthandler, which needs no lock
       +-- its end closes the pipes, and the watchdog ends

Python runs signal handlers and threads between instructions, with the interpreter's lock. C code
that holds the lock (a regular expression, for example) blocks all of them. faulthandler
writes the stack from C code nevertheless: when its timer is not reset in time, and when a
signal arrives. The watchdog reads these stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import mmap
import os
import select
import signal
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from callgate.instance.wiring.runtime import Wired

LOG = "stalled.log"
_BEAT_S = 1.0
_NUMBER = struct.Struct("=d")
_DRAINED_AT = _NUMBER.size
"""Offset in the shared memory of the end of the drain period; before it is the last beat."""
_LARGEST_LOG = 1024 * 1024
_MOST_READ = 256 * 1024
_QUIET_MS = 100
"""A stack is complete after this time without data."""
_A_DUMP = b"Current thread "
"""Appears once in each stack of faulthandler."""
_watched: set[int] = set()
"""The id of this process, once it is watched; a forked child has another id."""
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Watchdog:
    """The part in the watched process."""

    def __init__(
        self, beats: mmap.mmap, stalled: int, heard: dict[int, int], stall_s: float
    ) -> None:
        self._beats = beats
        self._stalled = stalled
        self._heard = heard
        """The pipe of each signal."""
        self._stall_s = stall_s

    def beat(self) -> None:
        """Note that the loop runs. Repeats itself."""
        faulthandler.dump_traceback_later(self._stall_s, file=self._stalled)
        _NUMBER.pack_into(self._beats, 0, time.monotonic())
        self._listen()
        asyncio.get_running_loop().call_later(_BEAT_S, self.beat)

    def allow(self, drain_s: float) -> None:
        """Delay the start of the time to end by this period; 0: it starts now."""
        _NUMBER.pack_into(self._beats, _DRAINED_AT, time.monotonic() + drain_s)

    def _listen(self) -> None:
        """Let faulthandler receive signals before Python's handlers.

        Repeated, because the installation of a handler removes it. Signals with a default action of
        the system need no help.
        """
        for number, pipe in self._heard.items():
            if callable(signal.getsignal(number)):
                faulthandler.unregister(number)
                faulthandler.register(number, file=pipe, chain=True)


def watch_runtime(
    wired: Wired, *, interrupts: tuple[int, ...] = (), to_stderr: bool = False
) -> Watchdog | None:
    """Watch the running loop according to the settings. Stacks go to a log in the home.

    Once per process: a call within a chat has a separate loop, and the chat's loop is watched
    already. Then the result is None.
    """
    if os.getpid() in _watched:
        return None
    _watched.add(os.getpid())
    limits = wired.settings.limits
    log = None if to_stderr else os.path.join(wired.home.path, LOG)
    return watch(stall_s=limits.stall_s, stop_s=limits.stop_s, log=log, interrupts=interrupts)


def watch(
    *, stall_s: float, stop_s: float, log: str | None, interrupts: tuple[int, ...] = ()
) -> Watchdog:
    """Watch the running loop. After a signal of `ENDS` the process has `stop_s` to end, or
    `stall_s` if its loop is stuck; after two of `interrupts` only the latter applies.

    `log` is a file for stacks; None: stderr.
    """
    beats = mmap.mmap(-1, 2 * _NUMBER.size)
    pipes = [os.pipe() for _ in range(3)]
    for _, write_end in pipes:
        os.set_blocking(write_end, False)
    stalled, ended, interrupted = (read_end for read_end, _ in pipes)
    parent = os.getpid()
    if os.fork() == 0:
        guard = _Guard(beats, parent, stall_s, stop_s, log)
        _become(guard, stalled, ended, interrupted)
    for read_end, _ in pipes:
        os.close(read_end)
    heard: dict[int, int] = {number: pipes[2 if number in interrupts else 1][1] for number in ENDS}
    watchdog = Watchdog(beats, pipes[0][1], heard, stall_s)
    asyncio.get_running_loop().call_soon(watchdog.beat)
    return watchdog


# --- in the watchdog ------------------------------------------------------------------------------


def _become(guard: _Guard, stalled: int, ended: int, interrupted: int) -> NoReturn:
    """In the child: run the watchdog. Never returns, and touches nothing of the parent."""
    try:
        gc.disable()  # objects of the parent must not be closed here
        signal.set_wakeup_fd(-1)
        for number in (*ENDS, signal.SIGPIPE):
            faulthandler.unregister(number)
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        if guard.log is not None:
            os.dup2(nothing, 2)
        for each in {*map(int, os.listdir("/dev/fd"))} - {0, 1, 2, stalled, ended, interrupted}:
            with suppress(OSError):  # the directory descriptor itself, already closed
                os.close(each)
        guard.run(stalled, ended, interrupted)
    finally:
        os._exit(0)


def _read(pipe: int) -> bytes:
    """Read one stack, which arrives in many pieces. Empty: the other end is closed."""
    text = b""
    more = select.poll()
    more.register(pipe, select.POLLIN)
    while len(text) < _MOST_READ and more.poll(_QUIET_MS):
        piece = os.read(pipe, _MOST_READ)
        if not piece:
            break
        text += piece
    return text


class _Guard:
    def __init__(
        self, beats: mmap.mmap, parent: int, stall_s: float, stop_s: float, log: str | None
    ) -> None:
        self.log = log
        self._beats = beats
        self._parent = parent
        self._stall_s, self._stop_s = stall_s, stop_s
        self._ended_at: float | None = None
        self._interrupted_at: float | None = None
        self._interrupts = 0
        self._stack = b""
        """The stacks when signals arrived."""

    def run(self, stalled: int, ended: int, interrupted: int) -> None:
        """Run until the parent ends, or is killed here."""
        poll = select.poll()
        for pipe in (stalled, ended, interrupted):
            poll.register(pipe, select.POLLIN)
        while True:
            waits = self._ended_at is not None or self._interrupts > 1
            for pipe, _ in poll.poll(200 if waits else None):
                text = _read(pipe)
                if not text or os.getppid() != self._parent:
                    return
                self._hear(text, is_stall=pipe == stalled, is_end=pipe == ended)
            problem = self._problem(time.monotonic())
            if problem is not None:
                with suppress(OSError):
                    self._write(f"{problem}; it is ended", self._stack)
                if os.getppid() == self._parent:
                    os.kill(self._parent, signal.SIGKILL)
                return

    def _hear(self, text: bytes, *, is_stall: bool, is_end: bool) -> None:
        now = time.monotonic()
        if is_stall:
            with suppress(OSError):  # a full disk is no reason to stop watching
                self._write(f"the event loop has not turned for {self._stall_s:g} s", text)
            return
        self._stack = (self._stack + text)[-_MOST_READ:]
        if is_end:
            self._ended_at = self._ended_at or now
        else:
            self._interrupted_at = self._interrupted_at or now
            self._interrupts += max(text.count(_A_DUMP), 1)

    def _problem(self, now: float) -> str | None:
        """Return why the parent must be killed now, if it must."""
        turned = float(_NUMBER.unpack_from(self._beats, 0)[0])
        is_stuck = now - turned > self._stall_s + _BEAT_S
        if self._ended_at is not None:
            drained_at = float(_NUMBER.unpack_from(self._beats, _DRAINED_AT)[0])
            waited = now - max(self._ended_at, 0.0 if is_stuck else drained_at)
            if waited > self._stop_s or (is_stuck and waited > self._stall_s):
                return f"a signal to end was not answered within {waited:.0f} s"
        if self._interrupted_at is not None:
            if not is_stuck and now - self._interrupted_at > self._stall_s:
                self._interrupts, self._interrupted_at = 0, None  # it was answered
            elif is_stuck and self._interrupts > 1:
                return "interrupts were not answered"
        return None

    def _write(self, problem: str, stack: bytes) -> None:
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"callgate: {timestamp}: process {self._parent}: {problem}\n".encode() + stack
        if self.log is None:
            os.write(2, text)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.log, flags, 0o600)
        if os.fstat(file).st_size > _LARGEST_LOG:
            os.ftruncate(file, 0)
        os.write(file, text)
        os.close(file)
