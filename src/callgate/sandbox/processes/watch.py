"""The keeper's watch over a running command, until its last process ends.

    running --leader ends--> draining --0.2 s--> ending: SIGTERM, grace, SIGKILL --> gone
       |                                           |
       +---- end requested, no listener, ----------+
             or above a limit (`meters`)

A single kill ends all processes in a control group or a namespace. Keeper and runtime exchange a
few numbers for each command.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import struct
import time

from callgate.sandbox import meters
from callgate.sandbox.meters import descendants, everyone_else, process_group, signal_to
from callgate.sandbox.processes import signals
from callgate.sandbox.processes.connects import CONNECTED, REPLY, Connects
from callgate.sandbox.processes.local_services import LocalServices
from callgate.sandbox.processes.performing import PathCalls
from callgate.sandbox.processes.supervisor import Supervisor
from callgate.sandbox.processes.write_attempts import WriteAttempts

TYPE_CHECKING = False

if TYPE_CHECKING:
    from callgate.core.local.preimages import Recorder
    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.orders import Listener
    from callgate.sandbox.processes.supervisor import Answer, Call, Handler


STARTED, REFUSED, EXITED, ENDED, TRIED, NOT_CREATED = 1, 2, 3, 4, 5, 6
MESSAGE = struct.Struct("<B3i2dq")
"""Kind, three numbers, then for the leader: seconds of user and system time, peak memory in KiB.

STARTED: -, and with it the listener of a proxy, if there is one; REFUSED: step, error number;
EXITED: wait status; ENDED: ended, survivors, and the limit that ended it (`meters`). TRIED and
NOT_CREATED are other messages: the kind, and the path that the command tried to write or to
create. WANTS has a different form (`connects`)."""
LONGEST_MESSAGE = 1 + 4096
ARM = b"w"
"""Order to report the next write attempt (`write_attempts`)."""
END = struct.Struct("<d")
"""Order to end, with the seconds between SIGTERM and SIGKILL. The shortest time counts."""


def tell(
    control: socket.socket,
    kind: int,
    *numbers: int,
    usage: tuple[float, float, int] = (0.0, 0.0, 0),
) -> None:
    """Send a message to the runtime, if it still reads."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    try:
        control.send(MESSAGE.pack(kind, first, second, third, *usage))
    except OSError:
        pass  # the runtime has closed the socket; the work continues


DRAIN_S = 0.2
LEFTOVER_GRACE_S = 1.0
KILL_PATIENCE_S = 2.0
FREEING_PATIENCE_S = 60.0
"""Longer, because a process with much memory takes time to free it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1
_KILL_PAUSE_S = 0.005
_CHASE = 50


class Watch:
    """The watch from the leader's start to the end of its last descendant."""

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
        """The limit that ended the command, if it exceeded one."""
        self._supervisor: Supervisor | None = None
        self._attempts: WriteAttempts | None = None
        self._connects: Connects | None = None
        self._meter = meter
        self._control = control
        self._wake = wake
        self._leader = leader
        self._alone = alone
        """Whether we are process 1 of a namespace with only the command's processes."""
        self._group = group
        """The command's group, without the keeper."""
        self._exited = False
        self._ending = False
        self._deadline = 0.0
        self._signalled: set[int] = set()
        self._survivors = 0

    def supervise(
        self, listener: int, order: Listener, recorder: Recorder, serves: bool
    ) -> Supervisor:
        """Answer the calls that the command's filter stops from now on. `serves`: in this thread;
        otherwise the caller serves the supervisor in another one."""
        attempts = self._attempts = WriteAttempts(order, self._tell_attempt, self._tell_refusal)
        handlers: dict[int, Handler] = {**attempts.handlers()}
        performer = None
        if "performed" in order:
            performer = PathCalls(
                order["performed"], attempts.creations, self._tell_refusal, recorder
            )
            handlers = performer.handlers()
            recorder.begin()
            if order["watched"]:
                handlers = self._observed(handlers)
            if order["performed"]["signals"]:
                handlers |= signals.handlers()
        connects: Connects | None = None
        if order.get("connects"):
            isolated = order.get("isolated", True)
            connects = self._connects = Connects(self._send, isolated=isolated)
            handlers |= connects.handlers()
        elif "services" in order:
            connects = self._connects = LocalServices(self._send, order["services"], self._members)
            handlers |= connects.handlers()
        supervisor = Supervisor(listener, handlers)
        if connects is not None:
            connects.supervisor = supervisor
        if performer is not None:
            performer.supervisor = supervisor
        if serves:
            self._supervisor = supervisor
        return supervisor

    def _observed(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Return the handlers with a report of the write attempt before each call."""
        attempts = self._attempts
        assert attempts is not None

        def observe(call: Call, handler: Handler) -> Answer | None:
            while self._is_arming():
                time.sleep(0.0)
            attempts.observe(call)
            return handler(call)

        return {
            number: functools.partial(observe, handler=each) for number, each in handlers.items()
        }

    def _is_arming(self) -> bool:
        """Whether an order to report is waiting in the socket."""
        try:
            return self._control.recv(len(ARM), socket.MSG_PEEK | socket.MSG_DONTWAIT) == ARM
        except OSError:
            return False

    def run(self) -> tuple[int, int]:
        """Watch until the end. Returns the number of ended processes besides the leader, and of
        survivors."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._supervisor is not None:
            poll.register(self._supervisor.listener, select.POLLIN)
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
        """Wait at most `pause` seconds, and return the ready descriptors. Answer the command's
        calls during the wait, but after earlier messages of the runtime."""
        until = None if pause < 0 else time.monotonic() + pause
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ready = dict(poll.poll(None if left is None else left * 1000))
            supervisor = self._supervisor
            if supervisor is None or ready.keys() != {supervisor.listener}:
                return ready
            # One poll of several descriptors is not atomic: a message may arrive at the first one
            # while the last is polled. A second poll sees it.
            ready = dict(poll.poll(0))
            if ready.keys() != {supervisor.listener}:
                return ready
            is_asked = bool(ready[supervisor.listener] & select.POLLIN)
            if not is_asked or not supervisor.serve():
                poll.unregister(supervisor.listener)
                supervisor.close()
                self._supervisor = None
                if self._connects is not None:
                    self._connects.supervisor = None
            if left == 0.0:
                return {}

    def _tell_attempt(self, path: bytes) -> None:
        self._tell_path(TRIED, path)

    def _tell_refusal(self, path: bytes) -> None:
        self._tell_path(NOT_CREATED, path)

    def _tell_path(self, kind: int, path: bytes) -> None:
        self._send(bytes([kind]) + path[: LONGEST_MESSAGE - 1])

    def _send(self, message: bytes) -> bool:
        try:
            self._control.send(message, socket.MSG_DONTWAIT)
        except OSError:
            return False  # the runtime has closed the socket
        return True

    def _proceed(self, pause: float | None) -> float | None:
        """Do the next step. Returns the seconds to wait; -1: until an event, None: finished."""
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
        """End the command if it exceeds a limit. Returns the seconds until the next measurement."""
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
        """Handle a message of the runtime. Returns False after the end of its socket."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, REPLY.size, 1)
        except OSError:
            message, descriptors = b"", []
        if message[:1] == CONNECTED and len(message) == REPLY.size:
            if self._connects is not None:
                self._connects.finish(message, descriptors)
            return True
        if message == ARM:
            if self._attempts is not None:
                self._attempts.armed = True
            return True
        grace = END.unpack(message)[0] if len(message) == END.size else LEFTOVER_GRACE_S
        if self._ending:
            self._deadline = min(self._deadline, time.monotonic() + grace)
        else:
            self._end(grace)
        return bool(message)

    def _end(self, grace: float) -> None:
        """Send SIGTERM to each process once. Many take a second one as "skip the cleanup"."""
        self._ending = True
        self._deadline = time.monotonic() + grace
        members = self._members()
        self._signalled |= members
        for member in members:
            signal_to(member, signal.SIGTERM)
            signal_to(member, signal.SIGCONT)  # suspended processes can clean up, too

    def _strike(self, members: set[int]) -> None:
        if self._alone:
            self._signalled |= members
            signal_to(-1, signal.SIGKILL)  # no process of a namespace can escape this
            return
        if self._group is not None:
            self._group.kill()
        for _ in range(_CHASE):
            self._signalled |= members
            for member in members:
                # A process may have forked and ended; its children are still in its group.
                group = process_group(member)
                if group > 1 and group != os.getpgrp():
                    signal_to(-group, signal.SIGKILL)
                signal_to(member, signal.SIGKILL)
            members = descendants(os.getpid())
            if not members - self._signalled:
                return

    def _reap(self) -> bool:
        """Reap dead children. Returns False if no process remains, which is then certain.

        A list of processes is outdated after it was read. But every descendant has parents up to
        this process, so a process without children has no descendants.
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
