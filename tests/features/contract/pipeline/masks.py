"""Masks for values that differ between two runs: ids, times, hashes, and paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from callgate.dispatch.permission.question_building import client_of

_TIMES = frozenset(
    "timestamp ts latency_ms duration_ms ms waited_ms expires_at created_at updated_at elapsed_ms durationMs".split()
)
_CHAIN = frozenset("chain n prev seen hash file file_before file_hash args_hash".split())
"""Fields of the tamper-evident chain: they depend on the key and on every line before."""
_PROCESS = frozenset("pid process program directory".split())
"""Fields of a client that the surface finds out from the operating system."""
_FIXED = {"sensitivity": "private", "principal": "local"}
_ID = re.compile(r"(?<![0-9A-Z])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![0-9A-Z])")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_HEX = re.compile(r"\b[0-9a-f]{32}\b")
_TICKET = re.compile(r"(?<=/run )[\w-]{43}")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")
_CLIENT = re.compile(r"\bprocess \d+( \([^)]*\))?(, in [^,`\"\n]+)?")


class Mask:
    """Masks one case. Equal ids and hashes have equal numbers, so that links stay visible."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths
        self._numbers: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            found = {self._text(str(key)): self(each) for key, each in value.items() if _is_stable(key, each)}
            if found.get("client") in _own_programs():
                found.pop("client", None)
            return found
        if isinstance(value, list | tuple):
            return [self(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        for path, name in self._paths.items():
            text = text.replace(path, name)
        text = _ID.sub(lambda found: self._numbered("id", found[0]), text)
        text = _HASH.sub(lambda found: self._numbered("hash", found[0]), text)
        text = _HEX.sub(lambda found: self._numbered("hex", found[0]), text)
        text = _PORT.sub("<port>", text)
        text = _CLIENT.sub("process <pid>", text)
        return _TICKET.sub("<ticket>", text)

    def _numbered(self, kind: str, text: str) -> str:
        known = sum(name.startswith(f"<{kind}") for name in self._numbers.values())
        return self._numbers.setdefault(text, f"<{kind}{known + 1}>")


@cache
def _own_programs() -> list[str | None]:
    """Labels of the process that runs the tests and of its parent: surfaces record them as clients."""
    return [client_of(process, None).label for process in (os.getpid(), os.getppid())]


def _is_stable(key: str, value: Any) -> bool:
    """Whether a field belongs to the snapshot: absent and constant values are left out."""
    is_empty = value is None or (isinstance(value, list | tuple | dict) and not value)
    if is_empty or key in _TIMES or key in _CHAIN or key in _PROCESS:
        return False
    return _FIXED.get(key) != value
