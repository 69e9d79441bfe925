"""The terminal a command was started from, reached even where stdin and stdout lead elsewhere.

    async with tty.asking():            one question at a time on a terminal, of all processes
        tty.write(question)
        answer = await tty.ask(prompt)

A line is an answer only if it was begun after all of its question and prompt stood there, and
if nothing of it was pasted. The rest of a line that was begun before is waited for and dropped.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import select
import struct
import termios
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from callgate.cli.ui.keyboard import PASTE_OFF, PASTE_ON, Keys

MARK = " > "
"""Ends every prompt, and is written last: what comes after it is an answer."""
_CHUNK = 4096
_TIOCGDEV = 0x80045432  # the number of a terminal's device (Linux)
_PTS = range(136, 144)  # the majors of /dev/pts/N (Linux)
_UNFINISHED = "\ncallgate: the line you had begun is no answer; end it with Enter"


_PASTED = "\n"
"""Stands for several lines that came at once: nobody types so fast."""


class BegunBefore(Exception):
    """The line was begun before the question stood there, or pasted: it is asked again."""


class Tty:
    """Writes to the controlling terminal and reads lines from it. Made by `open_tty`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._keys = Keys()

    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 and 24 where the terminal does not say."""
        try:
            size = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Take the terminal for one question, with output and Ctrl-C in their usual modes."""
        lock = await self._locked()
        before = termios.tcgetattr(self._descriptor)
        keys = [*before]
        keys[0] |= termios.ICRNL
        keys[1] |= termios.OPOST | termios.ONLCR
        keys[3] = (keys[3] | termios.ISIG) & ~(termios.ICANON | termios.ECHO)
        keys[6] = [*before[6]]
        keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0
        # Nothing is flushed: a line that was begun before has to be known.
        termios.tcsetattr(self._descriptor, termios.TCSANOW, keys)
        marks_paste = os.environ.get("TERM", "dumb") != "dumb"
        self.write(PASTE_ON if marks_paste else "")
        try:
            yield
        finally:
            self.write(PASTE_OFF if marks_paste else "")
            termios.tcsetattr(self._descriptor, termios.TCSANOW, before)
            if lock is not None:
                os.close(lock)

    async def ask(self, prompt: str, *, takes_paste: bool = False) -> str | None:
        """A line, without its end; None where there will be none (Ctrl-D, hang-up).

        Raises `BegunBefore`. Cancelled, it leaves no reader behind, and half a line that was
        typed is nobody's answer.
        """
        self.write(prompt.removesuffix(MARK))
        termios.tcdrain(self._descriptor)
        self._keys.takes_paste = takes_paste
        begun_before = self._drain()
        self.write((_UNFINISHED if begun_before else "") + MARK)
        line = await self._line()
        if line is not None and (begun_before or line is _PASTED):
            raise BegunBefore
        return line

    def _drain(self) -> bool:
        """Drop what was typed until now; whether a line was begun by it, here or before."""
        while select.select([self._descriptor], [], [], 0)[0]:
            try:
                data = os.read(self._descriptor, _CHUNK)
            except OSError:
                break
            if not data:
                break
            self._keys.feed(data)
        self._keys.take_echo()
        return self._keys.pending

    async def _line(self) -> str | None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str | None] = loop.create_future()
        stop, stopping = os.pipe()

        def read() -> None:
            line = self._read_line(stop)
            os.close(stop)
            try:
                loop.call_soon_threadsafe(
                    lambda: None if answered.done() else answered.set_result(line)
                )
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        # A thread, because not every system can wait for a terminal in its event loop; a
        # daemon, because nobody waits for it at the end.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        line: str | None = None
        try:
            line = await answered
            return line
        finally:
            os.close(stopping)
            reader.join()  # it waits for nothing but keys and `stop`
            if line is None:
                self.write("\n")

    def _read_line(self, stop: int) -> str | None:
        """None also where the other end of `stop` was closed."""
        while True:
            try:
                ready, _, _ = select.select([self._descriptor, stop], [], [])
                data = b"" if stop in ready else os.read(self._descriptor, _CHUNK)
            except OSError:
                return None
            if not data:
                return None
            lines = self._keys.feed(data)
            self.write(self._keys.take_echo())
            if len(lines) > 1 or (lines and self._keys.pending):
                return _PASTED
            if lines:
                return lines[0]

    async def _locked(self) -> int | None:
        """The terminal for ourselves; None where it has no file that could be locked."""
        descriptor = _open_device(self._descriptor)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await _wait_for_lock(descriptor)
        return descriptor


async def _wait_for_lock(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    locked: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if locked.cancelled():
            os.close(descriptor)
        else:
            locked.set_result(None)

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            os.close(descriptor)

    # A daemon, because nothing interrupts this wait: it ends when the question before has.
    threading.Thread(target=wait, daemon=True).start()
    await locked


def _open_device(descriptor: int) -> int | None:
    """The terminal by its own name: /dev/tty is one file for all of them."""
    try:
        number = struct.unpack("I", fcntl.ioctl(descriptor, _TIOCGDEV, b"\0" * 4))[0]
        if os.major(number) not in _PTS:
            return None
        name = f"/dev/pts/{os.minor(number) + 256 * (os.major(number) - _PTS.start)}"
        opened = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(opened).st_rdev == number:
        return opened
    os.close(opened)  # of another mount of /dev/pts
    return None


@functools.cache  # half a line belongs to the terminal, not to one question
def open_tty() -> Tty | None:
    """The one terminal of this process. None where the command was started from no terminal."""
    try:
        return Tty(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
