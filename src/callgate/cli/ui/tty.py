"""The controlling terminal of a command, even if stdin and stdout are redirected.

`LineEditor` is pure, and detects input typed before the question was shown:

    feed(bytes) -> completed lines; `pending`: whether a line has begun

The terminal's own line editor is off, because its buffer does not show when a line began. Pasted
text, which the terminal marks, is ignored unless `takes_paste` is set: a pasted `y` with a line
break answers nothing. Ctrl-C and Ctrl-Z are signals and do not arrive here.

    async with tty.asking():            one question at a time on a terminal, of all processes
        tty.write(question)
        answer = await tty.ask(prompt)

A line counts as an answer only if it began after the whole question and its prompt were shown, and
if no part of it was pasted. A line that began earlier is read to its end and dropped.
"""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import functools
import os
import select
import struct
import termios
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Switch the marking of pasted text on and off."""
_PASTE_BEGINS, _PASTE_ENDS = "200~", "201~"
_END_OF_FILE = "\x04"
_LONGEST_LINE = 4096


class Keys:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        self._sequence: str | None = None
        """The characters of an unfinished escape sequence; None outside of one."""
        self._pasting = False
        self.takes_paste = False
        self.echo = ""
        """Pending echo of the input, for the terminal."""

    @property
    def pending(self) -> bool:
        """Whether a line has begun, or a paste has not ended."""
        half = bool(self._decoder.getstate()[0])  # of a multi-byte character
        return half or bool(self._line) or self._sequence is not None or self._pasting

    def feed(self, data: bytes) -> list[str | None]:
        """Return the completed lines; None represents the end of the input (Ctrl-D)."""
        ended: list[str | None] = []
        for char in self._decoder.decode(data):
            if self._sequence is not None:
                self._continue_sequence(char)
            elif char == "\x1b":
                self._sequence = ""
            elif self._pasting:
                if self.takes_paste and char.isprintable():
                    self._insert(char)
            elif char in "\r\n":
                ended.append(self._take())
            elif char == _END_OF_FILE and not self._line:
                ended.append(None)
            else:
                self._edit(char)
        return ended

    def take_echo(self) -> str:
        echo, self.echo = self.echo, ""
        return echo

    def _take(self) -> str:
        line = "".join(self._line)
        self._line.clear()
        self.echo += "\n"
        return line

    def _continue_sequence(self, char: str) -> None:
        assert self._sequence is not None
        if self._sequence == "" and char not in "[O":  # Alt and a key
            self._sequence = None
            return
        self._sequence += char
        if len(self._sequence) == 1 or not "@" <= char <= "~":
            return
        name, self._sequence = self._sequence[1:], None
        if name in (_PASTE_BEGINS, _PASTE_ENDS):
            self._pasting = name == _PASTE_BEGINS

    def _edit(self, char: str) -> None:
        if char in "\x7f\b":
            self._delete(1)
        elif char in "\x15\x17":  # Ctrl-U, Ctrl-W
            self._delete(len(self._line))
        elif char.isprintable():
            self._insert(char)

    def _insert(self, char: str) -> None:
        if len(self._line) < _LONGEST_LINE:
            self._line.append(char)
            self.echo += char

    def _delete(self, count: int) -> None:
        removed = min(count, len(self._line))
        del self._line[len(self._line) - removed :]
        self.echo += "\b \b" * removed


MARK = " > "
"""End of every prompt. It is written last, and input after it is an answer."""
_CHUNK = 4096
_TIOCGDEV = 0x80045432  # the number of a terminal's device (Linux)
_PTS = range(136, 144)  # the majors of /dev/pts/N (Linux)
_UNFINISHED = "\ncallgate: text typed before the question is no answer; press Enter to drop it"


_PASTED = "\n"
"""Marks several lines that arrived together, faster than a person types."""


class BegunBefore(Exception):
    """The line began before the question was shown, or was pasted; the caller asks again."""


class Tty:
    """The controlling terminal, for output and for input of lines. `open_tty` creates it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._keys = Keys()

    def size(self) -> tuple[int, int]:
        """Return columns and rows; 80 and 24 if they are unknown."""
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
        # TCSANOW discards no input: `_drain` must see a line that began earlier.
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
        """Return a line without its end; None at the end of the input (Ctrl-D, hang-up).

        Raises `BegunBefore`. A cancellation stops the reader, and drops an unfinished line.
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
        """Drop the input so far; return whether an unfinished line remains."""
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
                pass  # the loop is closed, so no task waits

        # A thread, because not every system can wait for a terminal in its event loop. A daemon,
        # so that it does not delay the exit.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        line: str | None = None
        try:
            line = await answered
            return line
        finally:
            os.close(stopping)
            reader.join()  # it waits only for keys and `stop`
            if line is None:
                self.write("\n")

    def _read_line(self, stop: int) -> str | None:
        """Read a line; return None at the end of the input or if `stop` was closed."""
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
        """Lock the terminal for one question; return None if it has no file to lock."""
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
        except RuntimeError:  # the loop is closed, so no task waits
            os.close(descriptor)

    # A daemon, because this wait cannot be interrupted: it ends with the earlier question.
    threading.Thread(target=wait, daemon=True).start()
    await locked


def _open_device(descriptor: int) -> int | None:
    """Open the terminal by its own name, because /dev/tty is the same file for all terminals."""
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
    os.close(opened)  # another mount of /dev/pts
    return None


@functools.cache  # an unfinished line belongs to the terminal, not to one question
def open_tty() -> Tty | None:
    """Return the controlling terminal of this process; None if there is none."""
    try:
        return Tty(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
