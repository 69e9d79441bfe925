"""Compressed bodies, taken apart a piece at a time: a bomb goes off in small pieces, and whoever
has enough stops asking."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from callgate import ToolExecutionError

_PIECE = 256 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Encoded:
    """A body as it is."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Raises where the end is missing."""


class _Deflated(Encoded):
    def __init__(self, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate = zlib.decompressobj(_GZIP if gzip else zlib.MAX_WBITS)
        self._started = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                if not self._gzip or data[:2] != b"\x1f\x8b":
                    return  # what follows the end is none of it
                self._inflate = zlib.decompressobj(_GZIP)  # one more member
            yield self._inflated(data)
            data = self._inflate.unconsumed_tail or self._inflate.unused_data

    def _inflated(self, data: bytes) -> bytes:
        try:
            piece = self._inflate.decompress(data, _PIECE)
        except zlib.error:
            if self._gzip or self._started:
                raise _broken() from None
            self._inflate = zlib.decompressobj(_RAW)  # what some servers call deflate
            try:
                piece = self._inflate.decompress(data, _PIECE)
            except zlib.error:
                raise _broken() from None
        self._started = True
        return piece

    def finish(self) -> None:
        if self._started and not self._inflate.eof:
            raise _broken()


def decoder(encoding: str) -> Encoded:
    """For a content-encoding; one at most, of those that were asked for."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Encoded()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Deflated(name != "deflate")
    raise ToolExecutionError(
        "The server compressed its answer in a way that it was not asked for.",
        reason="web_encoding",
    )


def _broken() -> ToolExecutionError:
    return ToolExecutionError("The compression of the answer is broken.", reason="web_encoding")
