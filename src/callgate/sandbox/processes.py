"""One command, from its start to the end of the last process that belongs to it.

    running --leader ends--> draining --0.2 s--> ending: SIGTERM, grace, SIGKILL
       |                        |                  |
       +---------stop()---------|----------------->+
                                +--nobody left-----+--> settling --0.2 s or EOF--> done

The command leads a session of its own, reads from /dev/null and writes into two pipes. When
its first process (the leader) ends, what it left in the background has a moment to finish
and is then ended too: an `Exit` means that nothing of the command runs any more, or says how
many could not be ended. A process that keeps a pipe open cannot hold this up.

Everything here is driven by the event loop's callbacks, never by a task. So ending goes on
even if whoever waits for it is cancelled, and no cancellation can leave a process behind.
Only the death of our own process can: that is what the broker is for.
All of it runs in an empty context (`contextvars`): the files that we open to look after the
processes are our doing, and must not be taken for the doing of the tool that started them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from callgate.core.commands import GRACE_S as GRACE_S
from callgate.core.commands import Exit as Exit
from callgate.core.commands import OnOutput as OnOutput
from callgate.core.commands import Stream as Stream
from callgate.sandbox import trees
from callgate.sandbox.output_pipes import OutputPipes

LEFTOVER_GRACE_S = 1.0
"""The same for processes that a command left behind when it ended by itself."""
DRAIN_S = 0.2
"""What may finish by itself after the leader has, and how long we wait for the last output."""
KILL_PATIENCE_S = 2.0
"""How long we repeat SIGKILL before we call the rest survivors."""

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1
_KILL_PAUSE_S = 0.005

_log = logging.getLogger(__name__)


class Process:
    """A running command. Made by `start`; leaving `async with` stops what still runs."""

    def __init__(
        self,
        leader: subprocess.Popen[bytes],
        tree: trees.Tree,
        pipes: Mapping[int, Stream],
        on_output: OnOutput,
    ) -> None:
        self.pid = leader.pid
        self._leader = leader
        self._tree = tree
        self._loop = asyncio.get_running_loop()
        self._phase: Literal["running", "draining", "ending", "settling", "done"] = "running"
        self._done: asyncio.Future[Exit] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _FIRST_PAUSE_S
        self._deadline = 0.0  # when draining becomes ending, or SIGKILL follows SIGTERM
        self._exited = False
        self._status: int | None = None
        self._pidfd: int | None = None
        self._stopped = False
        self._told: set[int] = set()
        self._survivors = 0
        self._pipes = OutputPipes(pipes, on_output, self._drained)
        self._watch()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stop():
            await self.wait()

    async def wait(self) -> Exit:
        """Wait until nothing of the command runs any more and its output has been read."""
        return await asyncio.shield(self._done)

    def stop(self, grace: float = GRACE_S) -> bool:
        """Begin to end the whole tree: SIGTERM, and SIGKILL after `grace` seconds.

        False if nothing is left to end. Calling again changes nothing, except that the
        shorter grace counts.
        """
        if self._phase in ("settling", "done"):
            return False
        self._stopped = self._stopped or not self._exited
        contextvars.Context().run(self._end_sooner if self._phase == "ending" else self._end, grace)
        return True

    def _drained(self) -> None:
        if self._phase == "settling":
            self._finish()

    # --- its leader -----------------------------------------------------------------------

    def _watch(self) -> None:
        """Have `_leader_ended` called, and the leader kept as a zombie until we bury it.

        While it is one, no other process or group can get its number.
        """
        self._pidfd = _pidfd(self.pid)
        if self._pidfd is None:
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._leader_ended)

    def _wait_in_thread(self) -> None:
        status = _reap(self.pid)
        try:
            self._loop.call_soon_threadsafe(self._leader_ended, status)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _leader_ended(self, status: int | None = None) -> None:
        self._exited = True
        self._status = status
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        if self._phase in ("settling", "done"):  # it had outlived even SIGKILL
            self._bury()
            return
        if self._phase == "running":
            self._phase = "draining"
            self._deadline = self._loop.time() + DRAIN_S
        self._pause = _FIRST_PAUSE_S
        self._sweep()

    def _bury(self) -> None:
        if self._pidfd is not None:
            self._status = _reap(self.pid)
            os.close(self._pidfd)
            self._pidfd = None
        # A Popen that knows a return code neither waits nor warns.
        self._leader.returncode = -1 if self._status is None else self._status

    # --- its end --------------------------------------------------------------------------

    def _later(self, delay: float, step: Callable[[], None]) -> None:
        """There is one next step, and this is it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, step)

    def _end(self, grace: float) -> None:
        self._phase = "ending"
        self._pause = _FIRST_PAUSE_S
        self._deadline = self._loop.time() + grace
        # Once, and to those who run now: a command that cleans up after SIGTERM may start
        # others for it, and many programs take a second SIGTERM as "do not clean up".
        # SIGCONT wakes what was suspended, so that it can.
        members = self._tree.members()
        self._told = {member.pid for member in members}
        for group in {self.pid, *(member.group for member in members)}:
            trees.signal_group(group, signal.SIGTERM, signal.SIGCONT)
        self._proceed(members)

    def _end_sooner(self, grace: float) -> None:
        self._deadline = min(self._deadline, self._loop.time() + grace)
        self._later(0, self._sweep)

    def _sweep(self) -> None:
        self._proceed(self._tree.members())

    def _proceed(self, members: list[trees.Member]) -> None:
        """Go on with those who are left, or look again after a pause: nothing tells us.

        A pidfd would, for a descriptor each, but says nothing of those forked later.
        """
        overdue = self._loop.time() - self._deadline
        if self._exited and not members and self._tree.calm:
            self._settle(survivors=0)
        elif overdue < 0:
            self._later(self._pause, self._sweep)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)
        elif self._phase == "draining":
            self._end(LEFTOVER_GRACE_S)
        elif overdue < KILL_PATIENCE_S:
            trees.signal_group(self.pid, signal.SIGKILL)
            self._told.update(member.pid for member in [*members, *self._tree.strike()])
            self._later(_KILL_PAUSE_S, self._sweep)
        else:
            self._settle(survivors=max(len(members), 1))

    def _settle(self, survivors: int) -> None:
        """Nobody is left to end. Take what is still in the pipes, but do not wait for more."""
        self._phase = "settling"
        self._survivors = survivors
        trees.signal_group(self.pid, signal.SIGKILL)  # also where there is no /proc to look at
        if self._exited:
            self._bury()
        if self._pipes:
            self._later(DRAIN_S, self._pipes.cut)
        else:
            self._finish()

    def _finish(self) -> None:
        self._phase = "done"
        if self._timer is not None:
            self._timer.cancel()
        self._pipes.close()
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        ended = Exit(
            code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stopped=self._stopped,
            ended=len(self._told - {self.pid}),
            survivors=self._survivors,
        )
        if ended.survivors:
            _log.warning("process %d: %d could not be ended", self.pid, ended.survivors)
        self._done.set_result(ended)


def start(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], on_output: OnOutput
) -> Process:
    """Start a command under the running event loop. Raises OSError if it cannot be started."""
    return contextvars.Context().run(_start, argv, cwd, env, on_output)


def _start(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], on_output: OnOutput
) -> Process:
    tree = trees.Tree()
    reading: dict[int, Stream] = {}
    writing: list[int] = []
    try:
        for stream in ("stdout", "stderr"):
            read_end, write_end = os.pipe()
            reading[read_end] = stream
            writing.append(write_end)
            os.set_blocking(read_end, False)
        leader = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**env, **tree.environment},
            stdin=subprocess.DEVNULL,
            stdout=writing[0],
            stderr=writing[1],
            start_new_session=True,
        )
    except BaseException:
        for pipe in reading:
            os.close(pipe)
        raise
    finally:
        for pipe in writing:
            os.close(pipe)
    tree.plant(leader.pid)
    return Process(leader, tree, reading, on_output)


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is none."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old system, or no descriptors left
            pass
    return None


def _reap(pid: int) -> int | None:
    """A child's wait status; None if it was reaped behind our back."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None
