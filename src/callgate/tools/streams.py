"""Both streams of one command: live to the context, and kept for the result."""

from __future__ import annotations

from asyncio import Future

from callgate.core.commands import Stream
from callgate.core.tools import ToolContext
from callgate.sandbox.processes.outputs import Capture, Deltas

SHOWN = 256 * 1024
"""Bytes of output that are kept at hand of each stream, and that a result may show."""


class Streams:
    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._deltas = Deltas(context.output)
        self._captures: dict[Stream, Capture] = {
            "stdout": Capture(SHOWN, lambda: context.artifact("stdout.txt")),
            "stderr": Capture(SHOWN, lambda: context.artifact("stderr.txt")),
        }

    def add(self, stream: Stream, data: bytes) -> Future[None] | None:
        """Take output. Returns what to wait for before more is read."""
        self._captures[stream].add(data)
        self._deltas.add(stream, data)
        return self._context.backpressure()

    def close(self) -> None:
        self._deltas.close()
        for capture in self._captures.values():
            capture.close()
