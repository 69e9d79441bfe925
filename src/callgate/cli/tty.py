"""The terminal a command was started from, reached even where stdin and stdout lead elsewhere."""

from __future__ import annotations

import asyncio
import os
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
        """A line, without its end; None where there will be none (Ctrl-D, hang-up)."""
        self.write(prompt)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str | None] = loop.create_future()

        def read() -> None:
            line = self._read_line()
            try:
                loop.call_soon_threadsafe(
                    lambda: None if answered.done() else answered.set_result(line)
                )
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        # A daemon, because nothing can interrupt the read: not every system can wait for a
        # terminal in its event loop.
        threading.Thread(target=read, daemon=True).start()
        line: str | None = None
        try:
            line = await answered
            return line
        finally:
            if line is None:
                self.write("\n")

    def _read_line(self) -> str | None:
        line = b""
        while b"\n" not in line and len(line) < _LONGEST_LINE:
            try:
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
