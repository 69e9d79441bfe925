"""The runtime's end of the broker: start a command, read its output, end it.

    broker = BrokerProcess()                          started on first use
    running = await BrokerLauncher(broker, plan).start(command, on_output)

A command has a socket to its keeper. Its close ends the command, whether intended or by the
death of the runtime. A cancelled start, a killed runtime and a `close` leave no process.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Self

from callgate.core.commands import GRACE_S, Exit, LeftBehind, OnOutput, Stream
from callgate.core.version import PACKAGE_DIRECTORY
from callgate.sandbox import meters
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.connector import Connector
from callgate.sandbox.egress import Egress
from callgate.sandbox.host_approvals import HostApprovals
from callgate.sandbox.orders import Order
from callgate.sandbox.plans import Command, SandboxPlan
from callgate.sandbox.processes import broker, connects, ordering, watch
from callgate.sandbox.processes.outputs import OutputPipes

_SHELLS_SIGNALS = 128
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_PACKAGE = PACKAGE_DIRECTORY


_LIMITS = {meters.MEMORY: "memory_bytes", meters.PROCESSES: "processes"}
_SIGNALLED = {int(signal.SIGXCPU): "cpu_seconds", int(signal.SIGXFSZ): "file_bytes"}
"""Limits that the kernel reports by a signal."""


_TRIED = bytes([watch.TRIED])
_NOT_CREATED = bytes([watch.NOT_CREATED])
_WANTS, _KEPT_OUT = bytes([connects.WANTS]), bytes([connects.KEPT_OUT])
_REPLY_AGAIN_S = 0.05
_HINTS = {
    "process limit": "nothing here bounds the processes of a command of root: neither a cgroup "
    "nor a PID namespace; another user has RLIMIT_NPROC, `[sandbox.limits] processes = 0` no limit"
}


class RestrictionFailed(OSError):
    """The system refused a step of the jail. The command was not started."""

    def __init__(self, number: int, step: str) -> None:
        hint = f": {_HINTS[step]}" if step in _HINTS else ""
        super().__init__(number, f"{os.strerror(number)} ({step}{hint})")
        self.step = step


class Usage:
    """Resources that the first process of a command used."""

    def __init__(self, user_s: float = 0.0, system_s: float = 0.0, peak_kib: int = 0) -> None:
        self.user_s = user_s
        self.system_s = system_s
        self.peak_kib = peak_kib


class BrokerProcess:
    """The process that forks for us. Lazy, restarted if it is gone, closed with us."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._sending = asyncio.Lock()
        self._processes: set[BrokeredProcess] = set()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End every command of this broker, and the broker."""
        for process in list(self._processes):
            process.abandon()
        self._drop()

    async def start(
        self,
        order: Order,
        on_output: OnOutput,
        stdin: int | None = None,
        approvals: HostApprovals | None = None,
        most_output: int | None = None,
        lease: int | None = None,
    ) -> BrokeredProcess:
        """Start a command. Raises `OSError`, or `RestrictionFailed` if the jail is the cause.

        `stdin` is a descriptor for its standard input, which is empty otherwise. `approvals`
        are the hosts of its proxy, if the order has one. A command that writes more than
        `most_output` bytes is ended. A copy of `lease` stays open until all its processes end.
        """
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading: dict[int, Stream] = {}
        passing = [theirs.detach()]
        try:
            passing.append(os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin))
            for stream in ("stdout", "stderr"):
                read_end, write_end = os.pipe()
                reading[read_end] = stream
                passing.append(write_end)
                os.set_blocking(read_end, False)
            passing.append(os.dup(passing[1] if lease is None else lease))
            await self._send(broker.encode(order), passing)
        except BaseException:
            control.close()
            for descriptor in reading:
                os.close(descriptor)
            raise
        finally:
            for descriptor in passing:
                os.close(descriptor)
        control.setblocking(False)
        watched = "listener" in order
        process = contextvars.Context().run(
            BrokeredProcess,
            control,
            reading,
            on_output,
            self._processes.discard,
            approvals or HostApprovals(()),
            most_output,
            watched,
        )
        self._processes.add(process)
        await process.begin()
        return process

    async def _send(self, frame: bytes, descriptors: list[int]) -> None:
        async with self._sending:
            while True:
                fresh = self._lifeline is None
                lifeline = self._lifeline or self._connect()
                try:
                    sent = await _send_first(lifeline, frame, descriptors)
                    await asyncio.get_running_loop().sock_sendall(lifeline, frame[sent:])
                    return
                except BrokenPipeError:
                    self._drop()
                    if fresh:
                        raise
                except BaseException:
                    self._drop()  # a partial frame was sent: no frame can follow it
                    raise

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number = theirs.fileno()
                self._process = subprocess.Popen(
                    self._program(number),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(),
                    cwd="/",
                    pass_fds=(number,),
                    start_new_session=True,
                )
                _limit_files(self._process.pid)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._lifeline = ours
        return ours

    def _program(self, lifeline: int) -> list[str]:
        return [self._python, "-I", "-S", "-E", "-c", broker.BOOT, _PACKAGE, str(lifeline)]

    def _environment(self) -> dict[str, str]:
        return {}

    def _drop(self) -> None:
        """Release the broker; its commands have separate lifelines."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._process is not None:
            self._process.wait()  # it ends immediately when its lifeline closes
            self._process = None


class BrokeredProcess:
    """A command with a keeper. Implements `plans.Running`."""

    def __init__(
        self,
        control: socket.socket,
        reading: dict[int, Stream],
        on_output: OnOutput,
        forget: Callable[[BrokeredProcess], None],
        approvals: HostApprovals,
        most_output: int | None = None,
        watched: bool = False,
    ) -> None:
        self.usage = Usage()
        self._watched = watched
        self._report_attempt: Callable[[str], None] | None = None
        self._control: socket.socket | None = control
        self._approvals = approvals
        self._egress: Egress | None = None
        self._connector: Connector | None = None
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._done: asyncio.Future[Exit] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._status: int | None = None
        self._stopped = False
        self._outcome: tuple[int, int] | None = None
        self._on_output = on_output
        self._room = most_output
        self._limit: str | None = None
        self._not_created: list[str] = []
        self._loop.add_reader(control, self._hear)
        self._pipes = OutputPipes(reading, self._pass_on, self._drained)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.stop():
            await self.wait()

    @property
    def blocked(self) -> tuple[str, ...]:
        """`host:port` of the connections that were refused so far."""
        return self._approvals.blocked

    async def begin(self) -> None:
        """Wait until the command runs. A cancellation of the wait ends the command."""
        try:
            await asyncio.shield(self._begun)
        except BaseException:
            self.abandon()
            raise

    async def wait(self) -> Exit:
        """Wait until all processes of the command have ended and its output has been read."""
        ended = await asyncio.shield(self._done)
        if self._egress is not None:
            await self._egress.wait_closed()
        return ended

    def stop(self, grace: float = GRACE_S) -> bool:
        """Begin to end the whole tree: SIGTERM, and SIGKILL after `grace` seconds.

        Returns False if all processes have ended. The shortest of several graces counts.
        """
        if self._control is None or self._outcome is not None:
            return False
        self._stopped = self._stopped or self._status is None
        try:
            self._control.send(watch.END.pack(grace))
        except OSError:
            pass  # the keeper is gone, and the next read reports it
        return True

    def watch_writes(self, report: Callable[[str], None]) -> None:
        """Report the next write attempt that the jail watches, once. The report comes before later
        output of the command. Without a watch there is no report."""
        if self._watched and self._control is not None:
            is_armed = self._report_attempt is not None
            self._report_attempt = report
            if is_armed:
                return
            try:
                self._control.send(watch.ARM)
            except OSError:
                pass  # the keeper is gone, and the next read reports it

    def then(self, ended: Callable[[], None]) -> None:
        """Call a function after the end of all processes of the command."""
        self._done.add_done_callback(lambda _: ended())

    def abandon(self) -> None:
        """Close the connection to the keeper, which then ends the command."""
        self._stopped = self._stopped or self._status is None
        self._finish()

    # --- messages of the keeper -----------------------------------------------------------

    def _hear(self) -> None:
        assert self._control is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, watch.LONGEST_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._egress = Egress(socket.socket(fileno=descriptor), self._approvals)
        if message[:1] == _TRIED:
            self._attempted(os.fsdecode(message[1:]))
            return
        if message[:1] == _NOT_CREATED:
            self._not_created.append(os.fsdecode(message[1:]))
            return
        if message[:1] == _WANTS and len(message) >= connects.WANTED.size:
            self._connect(message)
            return
        if message[:1] == _KEPT_OUT and len(message) == connects.WANTED.size:
            _, _, port, address, _ = connects.WANTED.unpack(message)
            self._approvals.refuse_service(address, port)
            return
        if len(message) != watch.MESSAGE.size:
            self._lost()
            return
        kind, first, second, third, user, system, peak = watch.MESSAGE.unpack(message)
        if kind == watch.STARTED:
            self._begun.set_result(None)
        elif kind == watch.REFUSED:
            self._begun.set_exception(_failure(STEPS[first], second))
            self._finish()
        elif kind == watch.EXITED:
            self._status = first
            self.usage = Usage(user, system, peak)
        elif kind == watch.ENDED:
            self._limit = self._limit or _LIMITS.get(third)
            self._settle(first, second)

    def _connect(self, message: bytes) -> None:
        """Connect on behalf of a call that the keeper has stopped."""
        _, id, port, address, six = connects.WANTED.unpack_from(message)
        if self._connector is None:
            proxy = ordering.PROXY_PORT, self._serve
            self._connector = Connector(self._approvals, self._connected, proxy)
        program = message[connects.WANTED.size :].decode(errors="replace")
        self._connector.connect(id, port, address, six, program)

    def _serve(self, peer: socket.socket) -> None:
        """Serve a connection to the proxy of a command that has no network for its listener."""
        if self._egress is None:
            self._egress = Egress(None, self._approvals)
        self._egress.adopt(peer)

    def _connected(self, id: int, error: int, connection: socket.socket | None) -> None:
        """Send the result of a connection to the keeper."""
        if self._control is None:
            return
        reply = connects.REPLY.pack(connects.CONNECTED, id, error)
        try:
            socket.send_fds(
                self._control, [reply], [] if connection is None else [connection.fileno()]
            )
        except BlockingIOError:
            copy = None if connection is None else connection.dup()
            self._loop.call_later(_REPLY_AGAIN_S, self._connected_later, id, error, copy)
        except OSError:
            pass  # the keeper is gone, and the next read reports it

    def _connected_later(self, id: int, error: int, connection: socket.socket | None) -> None:
        self._connected(id, error, connection)
        if connection is not None:
            connection.close()

    def _attempted(self, path: str) -> None:
        report, self._report_attempt = self._report_attempt, None
        if report is not None:
            report(path)

    def _hear_attempt(self) -> None:
        """Read a pending report of a write attempt, and no other message."""
        assert self._control is not None
        try:
            kind = self._control.recv(1, socket.MSG_PEEK)
        except OSError:
            return
        if kind == _TRIED:
            self._hear()

    def _lost(self) -> None:
        """Handle the early death of the keeper. The broker ends its remaining processes."""
        if not self._begun.done():
            self._begun.set_exception(RestrictionFailed(5, "keeper"))  # EIO
        if self._outcome is None:
            self._settle(0, 0)

    def _settle(self, ended: int, survivors: int) -> None:
        """Read the rest of the pipes after the end of all processes, without waiting for more."""
        self._outcome = ended, survivors
        self._hang_up()
        if self._pipes:
            self._timer = self._loop.call_later(watch.DRAIN_S, self._pipes.cut)
        else:
            self._finish()

    def _hang_up(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None

    def _finish(self) -> None:
        if self._done.done():
            return
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
        self._pipes.close()
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        ended, survivors = self._outcome or (0, 0)
        reached = 0
        if self._egress is not None:
            self._egress.close()
            reached += self._egress.reached
        if self._connector is not None:
            self._connector.close()
            reached += self._connector.reached
        self._approvals.close()
        self._done.set_result(
            Exit(
                code=code if code is not None and code >= 0 else None,
                signal=-code if code is not None and code < 0 else None,
                stopped=self._stopped,
                ended=ended,
                survivors=survivors,
                limit=self._limit or _SIGNALLED.get(_signal(code) or 0),
                blocked=self.blocked,
                refusals=self._approvals.refusals,
                approved=self._approvals.approved,
                reached=reached,
                left=LeftBehind(refused=tuple(sorted(self._not_created))),
            )
        )
        self._forget(self)

    def _drained(self) -> None:
        if self._outcome is not None:
            self._finish()

    def _pass_on(self, stream: Stream, data: bytes) -> asyncio.Future[None] | None:
        """Pass output to its reader, and end the command if there is too much."""
        if self._report_attempt is not None and self._control is not None:
            self._hear_attempt()
        drain = self._on_output(stream, data)
        if self._room is not None and self._limit is None:
            self._room -= len(data)
            if self._room < 0:
                self._limit = "output_bytes"
                self.stop(0.0)
        return drain


class BrokerLauncher:
    """Starts commands in the jail of a plan; without a plan, without a sandbox."""

    def __init__(
        self, process: BrokerProcess, plan: SandboxPlan | None, *, bwrap: str | None = None
    ) -> None:
        self._process = process
        self._plan = plan
        self._bwrap = bwrap

    async def start(self, command: Command, on_output: OnOutput) -> BrokeredProcess:
        order = ordering.order(command, self._plan, bwrap=self._bwrap)
        approvals = approvals_of(command, self._plan)
        output = ordering.most_output(command, self._plan)
        return await self._process.start(
            order, on_output, command.stdin, approvals, output, command.lease
        )


def approvals_of(command: Command, plan: SandboxPlan | None) -> HostApprovals:
    """Return the hosts that a command may reach, with the approver for others."""
    hosts = () if plan is None else plan.jail.hosts
    return HostApprovals(hosts, command.approve)


def _limit_files(pid: int) -> None:
    """Give commands our initial limit of open files; an instance raises its own."""
    if hasattr(resource, "prlimit"):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


async def _send_first(lifeline: socket.socket, frame: bytes, descriptors: list[int]) -> int:
    """Send the first bytes together with the descriptors. Returns the number of bytes sent."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return socket.send_fds(lifeline, [frame], descriptors)
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_writer(lifeline, ready.set_result, None)
            try:
                await ready
            finally:
                loop.remove_writer(lifeline)


def _signal(code: int | None) -> int | None:
    """Return the signal that ended a command, directly or as a shell's exit code."""
    if code is None:
        return None
    return -code if code < 0 else code - _SHELLS_SIGNALS


def _failure(step: str, number: int) -> OSError:
    if step in ("exec", "cwd", "fork"):
        return OSError(number, os.strerror(number))
    return RestrictionFailed(number, step)
