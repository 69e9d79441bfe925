"""While a call takes longer than a second: a line on the terminal with what runs and since when.

The line stands on stderr and is gone before anything else is written there. The cursor rests at
its beginning, so that what is written nevertheless covers it. A thread draws it, because a call
through an instance waits without an event loop.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from callgate.cli.ui.terminal import is_terminal, safe

_AFTER_S = 1.0
_DRAW_EVERY_S = 0.25
_TURNS = "|/-\\"
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Nothing is drawn where stderr is no terminal. Each method may be called at any time."""

    def __init__(self, *, wanted: bool) -> None:
        self._on = wanted and is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._drawing: tuple[threading.Thread, threading.Event] | None = None

    def start(self, text: str | Callable[[], str]) -> None:
        """`text` may be a function that says what it is by now."""
        self.stop()
        if self._on:
            over = threading.Event()
            thread = threading.Thread(target=_draw, args=(text, over), daemon=True)
            self._drawing = thread, over
            thread.start()

    def stop(self) -> None:
        """Returns once the line is gone."""
        if self._drawing is not None:
            thread, over = self._drawing
            self._drawing = None
            over.set()
            thread.join()


def _draw(text: str | Callable[[], str], over: threading.Event) -> None:
    began = time.monotonic()
    turn = 0
    if over.wait(_AFTER_S):
        return
    while True:
        elapsed = time.monotonic() - began
        mark = _TURNS[turn % len(_TURNS)]
        sys.stderr.write(
            f"{_CLEAR}{mark} {safe(text if isinstance(text, str) else text())} {elapsed:.0f} s\r"
        )
        sys.stderr.flush()
        turn += 1
        if over.wait(_DRAW_EVERY_S):
            break
    sys.stderr.write(_CLEAR)
    sys.stderr.flush()
