"""The terminal a command was started from, reached even where stdin and stdout lead elsewhere."""

from __future__ import annotations

import asyncio
import os
import select
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_LINE = 4096


class Tty:
    """Writes to the controlling terminal and reads lines from it. Made by `open_tty`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

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

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Lines, echo and Ctrl-C as usual, whoever left the terminal how; typed-ahead is lost.

        An answer must follow its question: what was typed before it is not one.
        """
        before = termios.tcgetattr(self._descriptor)
        usual = [*before]
        usual[0] |= termios.ICRNL
        usual[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, usual)
        try:
            yield
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, before)

    async def ask(self, prompt: str) -> str | None:
        """A line, without its end; None where there will be none (Ctrl-D, hang-up).

        Cancelled, it takes nothing from the terminal: the next line belongs to who asks next.
        """
        self.write(prompt)
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
        threading.Thread(target=read, daemon=True).start()
        line: str | None = None
        try:
            line = await answered
            return line
        except asyncio.CancelledError:
            termios.tcflush(self._descriptor, termios.TCIFLUSH)  # half an answer is none
            raise
        finally:
            os.close(stopping)
            if line is None:
                self.write("\n")

    def _read_line(self, stop: int) -> str | None:
        """None also where the other end of `stop` was closed."""
        line = b""
        while b"\n" not in line and len(line) < _LONGEST_LINE:
            try:
                ready, _, _ = select.select([self._descriptor, stop], [], [])
                if stop in ready:
                    return None
                piece = os.read(self._descriptor, _LONGEST_LINE)
            except OSError:
                return None
            if not piece:
                return None
            line += piece
        return line.partition(b"\n")[0].decode("utf-8", "replace")


def open_tty() -> Tty | None:
    """None where the command was started from no terminal."""
    try:
        return Tty(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
