"""A keeper's work while its command runs: from the first process to the end of the last one.

    running --leader ends--> draining --0.2 s--> ending: SIGTERM, grace, SIGKILL --> gone
       |                                           |
       +---- told to end, or nobody listens, ------+
             or above a limit (`meters`)

Where there are control groups, the last blow falls on all of a group at once. In a namespace
that is so anyway.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from callgate.sandbox import meters
from callgate.sandbox.proc_tree import (
    descendants,
    everyone_else,
    process_group,
    signal_to,
)
from callgate.sandbox.processes.keeper_messages import (
    ARM,
    END,
    EXITED,
    LONGEST_MESSAGE,
    NOT_CREATED,
    TRIED,
    tell,
)

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.processes.write_attempts import WriteAttempts

DRAIN_S = 0.2
LEFTOVER_GRACE_S = 1.0
KILL_PATIENCE_S = 2.0
FREEING_PATIENCE_S = 60.0
"""A process that has much memory takes long to give it back."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1
_KILL_PAUSE_S = 0.005
_CHASE = 50


class Watch:
    """From the leader's start to the end of the last process that belongs to it."""

    def __init__(
        self,
        control: socket.socket,
        wake: int,
        leader: int,
        *,
        alone: bool,
        group: Group | None = None,
        meter: meters.Meter | None = None,
    ) -> None:
        self.limit = meters.NONE
        """What the command was ended for, if it took too much."""
        self.attempts: WriteAttempts | None = None
        self._meter = meter
        self._control = control
        self._wake = wake
        self._leader = leader
        self._alone = alone
        """We are process 1 of a namespace: everyone else in it belongs to the command."""
        self._group = group
        """The command is in it, and we are not."""
        self._exited = False
        self._ending = False
        self._deadline = 0.0
        self._signalled: set[int] = set()
        self._survivors = 0

    def run(self) -> tuple[int, int]:
        """How many beside the leader were ended, and how many could not be."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self.attempts is not None:
            poll.register(self.attempts.listener, select.POLLIN)
        pause = None
        while (pause := self._proceed(pause)) is not None:
            ready = self._wait(poll, pause)
            if self._wake in ready:
                os.read(self._wake, 4096)
                pause = -1.0
            if self._control.fileno() in ready and not self._listen():
                poll.unregister(self._control)
        return len(self._signalled - {self._leader}), self._survivors

    def _wait(self, poll: select.poll, pause: float) -> dict[int, int]:
        """What is ready, after `pause` at most. Calls of a command that is watched are answered
        meanwhile, but not before what we are told: it was told before they were made."""
        until = None if pause < 0 else time.monotonic() + pause
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ready = dict(poll.poll(None if left is None else left * 1000))
            attempts = self.attempts
            if attempts is None or ready.keys() != {attempts.listener}:
                return ready
            # One look at several descriptors is not one moment: what came to the first of them
            # while the last was looked at is seen by another.
            ready = dict(poll.poll(0))
            if ready.keys() != {attempts.listener}:
                return ready
            is_asked = bool(ready[attempts.listener] & select.POLLIN)
            if not is_asked or not attempts.serve(self._tell_attempt, self._tell_refusal):
                poll.unregister(attempts.listener)
                os.close(attempts.listener)
                self.attempts = None
            if left == 0.0:
                return {}

    def _tell_attempt(self, path: bytes) -> None:
        self._tell_path(TRIED, path)

    def _tell_refusal(self, path: bytes) -> None:
        self._tell_path(NOT_CREATED, path)

    def _tell_path(self, kind: int, path: bytes) -> None:
        try:
            self._control.send(bytes([kind]) + path[: LONGEST_MESSAGE - 1], socket.MSG_DONTWAIT)
        except OSError:
            pass  # nobody listens

    def _proceed(self, pause: float | None) -> float | None:
        """Do what is due. How long to wait then: -1 until something happens, None: all over."""
        if not self._reap():
            return None
        now = time.monotonic()
        if not self._exited and not self._ending:
            return self._measure()
        members = self._members()
        if now < self._deadline:
            longer = _FIRST_PAUSE_S if pause is None or pause < 0 else pause * 2
            return min(longer, _LONGEST_PAUSE_S, self._deadline - now)
        if not self._ending:
            self._end(LEFTOVER_GRACE_S)
            return _FIRST_PAUSE_S
        patience = KILL_PATIENCE_S if self.limit != meters.MEMORY else FREEING_PATIENCE_S
        if now < self._deadline + patience:
            self._strike(members)
            return _KILL_PAUSE_S
        self._survivors = max(len(members), 1)
        return None

    def _measure(self) -> float:
        """End the command if it takes too much. How long to wait until the next look."""
        if self._meter is None:
            return -1.0
        if self._meter.pause:
            return self._meter.pause
        self.limit = self._meter.exceeded()
        if self.limit == meters.NONE:
            return self._meter.pause
        self._end(0.0)
        return 0.0

    def _members(self) -> set[int]:
        return everyone_else() if self._alone else descendants(os.getpid())

    def _listen(self) -> bool:
        """Take an order to end. False if nobody will ever send one again."""
        try:
            message = self._control.recv(END.size)
        except OSError:
            message = b""
        if message == ARM:
            if self.attempts is not None:
                self.attempts.armed = True
            return True
        grace = END.unpack(message)[0] if len(message) == END.size else LEFTOVER_GRACE_S
        if self._ending:
            self._deadline = min(self._deadline, time.monotonic() + grace)
        else:
            self._end(grace)
        return bool(message)

    def _end(self, grace: float) -> None:
        """Ask everyone once. Many programs take a second SIGTERM as "do not clean up"."""
        self._ending = True
        self._deadline = time.monotonic() + grace
        members = self._members()
        self._signalled |= members
        for member in members:
            signal_to(member, signal.SIGTERM)
            signal_to(member, signal.SIGCONT)  # what was suspended can clean up too

    def _strike(self, members: set[int]) -> None:
        if self._alone:
            self._signalled |= members
            signal_to(-1, signal.SIGKILL)  # nothing in a namespace outruns this
            return
        if self._group is not None:
            self._group.kill()
        for _ in range(_CHASE):
            self._signalled |= members
            for member in members:
                # A process may have forked and gone; what it left is still in its group.
                group = process_group(member)
                if group > 1 and group != os.getpgrp():
                    signal_to(-group, signal.SIGKILL)
                signal_to(member, signal.SIGKILL)
            members = descendants(os.getpid())
            if not members - self._signalled:
                return

    def _reap(self) -> bool:
        """Bury the dead. False if nobody is left: and that is certain.

        A list of processes is old when it has been read. But no descendant is ever without
        parents who lead up to us, so where we have no child there is none.
        """
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._exited = True
                if not self._ending:
                    self._deadline = time.monotonic() + DRAIN_S
                times = usage.ru_utime, usage.ru_stime, usage.ru_maxrss
                tell(self._control, EXITED, status, usage=times)
