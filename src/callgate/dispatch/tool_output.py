"""What a tool says while it works, made fit to be shown: data, without secrets.

A secret that a stream brings in two pieces is one secret: a line is passed on when it is
finished, and of a line without end the last word waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from callgate.core.events import OUTPUT_DELTA
from callgate.redaction.data import redact_value
from callgate.redaction.texts import redact

KEPT_OUTPUT = 1024 * 1024
"""Characters of what one call says that are kept as events; live readers see all of it."""

_encode = msgspec.json.Encoder(enc_hook=str).encode

_LONGEST_LINE = 1_024


class OutputRedactor:
    """Redacts the output of one call as it arrives."""

    def __init__(self) -> None:
        self._unfinished: dict[str, str] = {}
        """The unfinished line at the end of each output stream."""
        self._printed = 0

    @property
    def worth_keeping(self) -> bool:
        """Whether what was said so far is little enough to be kept as events."""
        return self._printed <= KEPT_OUTPUT

    def of(self, event_type: str, payload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What can be shown now of something that was said."""
        if event_type == OUTPUT_DELTA:
            payload = self._finished(payload)
            if not payload["text"]:
                return
            self._printed += len(payload["text"])
        shown = {str(key): _shown(value) for key, value in payload.items()}
        if event_type != OUTPUT_DELTA:
            self._printed += len(_encode(shown))
        yield shown

    def flush(self) -> Iterator[dict[str, Any]]:
        """What was held back, once nothing more comes."""
        for stream, text in self._unfinished.items():
            yield {"stream": stream, "text": redact(text)}
        self._unfinished = {}

    def _finished(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        stream = str(payload["stream"])
        text = self._unfinished.pop(stream, "") + str(payload["text"])
        begins = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - begins > _LONGEST_LINE:
            begins = _last_word(text)
        if 0 < len(text) - begins <= _LONGEST_LINE:
            self._unfinished[stream] = text[begins:]
            text = text[:begins]
        return {**payload, "stream": stream, "text": text}


def _last_word(text: str) -> int:
    """Where it begins; 0 where it is too long to wait for."""
    for at in range(len(text) - 1, max(len(text) - _LONGEST_LINE - 2, -1), -1):
        if text[at].isspace():
            return at + 1
    return 0


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_value(value)
