"""The keeper's end of a seccomp listener: stopped system calls of a command, and their answers.

    command --call--> kernel --notification--> serve() --> handlers[number](call)
                        ^                                    |            |
                        |                       an Answer now             None: the call is held
                        +---- answer(id, ...), give(id, ...) <---- later, from any thread

A process tree has one listener, because the kernel refuses a second one. So each feature that
needs calls adds entries to the table of handlers, and names those calls in `Traps`; `ordering`
merges the traps into one filter.

- A handler returns quickly. It returns None to hold its call, and the answer follows by the call's
  `id`, from this thread or another one. Held calls delay no other call.
- Numeric arguments are the values that the kernel uses. Memory is different: the process can change
  it after we read it. A call whose safety depends on memory must never `CONTINUE`. Perform such
  a call here, and answer with its result.
- A process id is valid only as long as its call waits. So `Call.text` and `Call.memory` check the
  call after reading. Call `still_waits` after any other access to `/proc/<pid>`.
- If the listener is closed, the kernel fails each stopped call with ENOSYS, so it fails closed.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import os
import struct

from callgate.sandbox import kernel

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Handler = Callable[["Call"], "Answer | None"]

_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""Id, process, flags, number of the call, architecture, address, arguments."""
_ANSWER = struct.Struct("=QqiI")
_GIVEN = struct.Struct("=QIIII")
_RECEIVE, _SEND, _IS_VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_CONTINUE = 1
_AT_NUMBER, _AND_ANSWER = 1, 2
_LONGEST = 4096

Answer = tuple[int, int, int]
"""Value, negative error number, and flags."""

CONTINUE: Answer = (0, 0, _CONTINUE)
"""Let the kernel perform the call, with memory that may have changed since the check."""


def result(value: int = 0) -> Answer:
    return (value, 0, 0)


def failure(number: int | None) -> Answer:
    return (0, -(number or errno.EPERM), 0)


class Call:
    """One stopped system call."""

    __slots__ = ("_is_waiting", "arguments", "id", "number", "pid")

    def __init__(
        self,
        id: int,
        pid: int,
        number: int,
        arguments: list[int],
        is_waiting: Callable[[int], bool],
    ) -> None:
        self.id = id
        self.pid = pid
        """The thread that made the call, by its number in the keeper's namespace."""
        self.number = number
        self.arguments = arguments
        self._is_waiting = is_waiting

    @property
    def waits(self) -> bool:
        """Whether it still waits for its answer: neither ended nor interrupted."""
        return self._is_waiting(self.id)

    def memory(self, address: int, most: int) -> bytes:
        """Return bytes of the process from an address on; fewer if its memory ends before.

        Raises `OSError`; ESRCH if the call no longer waits."""
        content = memory(self.pid, address, most)
        self.still_waits()
        return content

    def still_waits(self) -> None:
        """Raise ESRCH if the call no longer waits, because its process id may be reused."""
        if not self._is_waiting(self.id):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def text(self, address: int) -> bytes:
        """Return a path or another string that ends with a zero byte."""
        content, end, _ = self.memory(address, _LONGEST).partition(b"\0")
        if not end:
            number = errno.ENAMETOOLONG if len(content) == _LONGEST else errno.EFAULT
            raise OSError(number, os.strerror(number))
        return content


class Supervisor:
    """The listener of one command, with its table of handlers by number of the call."""

    def __init__(self, listener: int, handlers: Mapping[int, Handler]) -> None:
        self.listener = listener
        self._handlers = handlers
        self._serving = _thread.allocate_lock()

    def is_idle(self, seconds: float) -> bool:
        """Wait for the end of the present call. Returns False if it lasts longer than `seconds`."""
        if not self._serving.acquire(True, seconds):
            return False
        self._serving.release()
        return True

    def serve(self) -> bool:
        """Receive one call, and answer or hold it. Returns False if the listener is closed."""
        with self._serving:
            return self._serve()

    def _serve(self) -> bool:
        received = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, received)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.EINTR)  # the caller was ended
        id, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(received)
        call = Call(id, pid, number, arguments, self.is_waiting)
        try:
            answer = self._handlers[number](call)
        except OSError as error:
            answer = failure(error.errno)  # the error of the call itself
        except (LookupError, ValueError, OverflowError):
            answer = failure(errno.EPERM)
        if answer is not None:
            self.answer(id, answer)
        return True

    def is_waiting(self, id: int) -> bool:
        """Whether a call still waits for its answer: neither ended nor interrupted."""
        try:
            fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", id))
        except OSError:
            return False
        return True

    def answer(self, id: int, answer: Answer) -> bool:
        """Answer a call. Returns False if it no longer waits."""
        try:
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(id, *answer))
        except OSError:
            return False
        return True

    def give(self, id: int, descriptor: int, *, at: int | None = None, cloexec: bool) -> int:
        """Put a copy of our descriptor into the calling process, and return its number there.

        `at`: the number that it replaces; None: the lowest free one. Before Linux 5.19 a signal
        that interrupts the call leaves the descriptor in the process. Raises `OSError`; ENOENT if
        the call no longer waits."""
        flags = _AT_NUMBER if at is not None else 0
        close = os.O_CLOEXEC if cloexec else 0
        request = bytearray(_GIVEN.pack(id, flags, descriptor, at or 0, close))
        number: int = fcntl.ioctl(self.listener, _ADD, request)
        return number

    def close(self) -> None:
        os.close(self.listener)


def memory(pid: int, address: int, most: int = _LONGEST) -> bytes:
    """Return bytes of a process from an address on; fewer if its memory ends before."""
    try:
        return _copied(pid, address, most)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
    descriptor = os.open(b"/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, most, address)
    finally:
        os.close(descriptor)


def _copied(pid: int, address: int, most: int) -> bytes:
    room = ctypes.create_string_buffer(most)
    ours = struct.pack("=QQ", ctypes.addressof(room), most)
    theirs = b"".join(struct.pack("=QQ", *each) for each in _pages(address, most))
    count = kernel.call("process_vm_readv", pid, ours, 1, theirs, len(theirs) // 16, 0)
    return room.raw[:count]


def _pages(address: int, most: int) -> list[tuple[int, int]]:
    """Return the part on the first page, and the rest, because a read stops at unmapped memory."""
    first = min(most, _PAGE - address % _PAGE)
    return [(address, first)] + ([(address + first, most - first)] if most > first else [])


_PAGE = os.sysconf("SC_PAGE_SIZE")
