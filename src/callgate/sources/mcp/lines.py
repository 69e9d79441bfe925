"""What the process of an MCP server writes to stdout: messages, and much that is none.

    feed(bytes) -> messages as dicts; what is wrong with an answer becomes an error for its id

However much a server says, little is held: a line has a greatest length, notifications that
mean nothing to us are passed over, and one who keeps saying such things is given up
(`hopeless`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from callgate.protocol.host_v1.excerpts import excerpt
from callgate.protocol.ndjson import Framer
from callgate.protocol.strict_json import StrictJsonError, loads

TELLING = frozenset(
    {
        "notifications/progress",
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)
MESSAGE = "notifications/message"
PER_SECOND = 500
"""Notifications that are passed on; what is beyond is passed over."""
MOST_NOISE = 200_000
"""Lines that mean nothing, within a minute, before a server is given up."""
WITHIN_S = 60.0
NOTED = 100
"""Lines of noise that the log tells of."""
_HEAD = 512
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18}|"(?:[^"\\]|\\.){1,128}")')
INVALID = -32600


class Lines:
    def __init__(self) -> None:
        self._framer = Framer(head=_HEAD)
        self._noise = 0
        self._since = time.monotonic()
        self._second = 0.0
        self._notifications = 0
        self.notes: list[str] = []
        """What is worth a note in the log since it was last looked at."""
        self.hopeless = False

    def drop(self) -> None:
        """Let go of a line that will not end."""
        self._framer.drop()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        for line in self._framer.feed(data):
            if line is None:
                yield from self._spoilt(self._framer.heads.popleft(), "it is too long")
                continue
            try:
                message = loads(line)
            except StrictJsonError as error:
                if line.startswith(b"{"):
                    yield from self._spoilt(line[:_HEAD], str(error))
                else:
                    self._pass_over("no JSON", line)
                continue
            if type(message) is not dict or message.get("jsonrpc") != "2.0":
                self._pass_over("no message", line)
            elif "id" in message or self._tells(message):
                yield message

    def _tells(self, message: dict[str, Any]) -> bool:
        """Whether a notification is for us, and not one too many."""
        method = message.get("method")
        if method == MESSAGE:
            params = message.get("params")
            data = params.get("data") if isinstance(params, dict) else None
            self._note(f"it logs: {excerpt(str(data))}")
        elif method not in TELLING:
            self._pass_over("unknown notification", str(method))
            return False
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._notifications = now, 0
        self._notifications += 1
        if self._notifications > PER_SECOND:
            self._count()
            return False
        return True

    def _spoilt(self, head: bytes, why: str) -> Iterator[dict[str, Any]]:
        """An answer that cannot be read ends its request, if one can tell whose it is."""
        self._pass_over(why, head)
        found = _ID.search(head)
        if found is not None and b'"method"' not in head:
            error = {"code": INVALID, "message": f"the answer cannot be taken: {why}"}
            yield {"jsonrpc": "2.0", "id": loads(found[1]), "error": error}

    def _pass_over(self, why: str, line: str | bytes) -> None:
        self._note(f"passed over ({why}): {excerpt(line)}")

    def _note(self, text: str) -> None:
        self._count()
        if self._noise <= NOTED:
            self.notes.append(text)
        elif self._noise == NOTED + 1:
            self.notes.append("more, which is not noted")

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._since > WITHIN_S:
            self._since, self._noise = now, 0
        self._noise += 1
        self.hopeless = self.hopeless or self._noise > MOST_NOISE
