"""Which optional methods a host is worth asking for.

    says that it does not have one, or ends when it is asked      -> it is not asked again
    does not answer one in time that it has never answered        -> the same
    is renewed, or restarted                                      -> it is asked again

What was found out outlives the process (`path`): a host that ignores what it does not know would
make every command wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from callgate.protocol.host_v1 import frames

PATIENCE_S = 5.0
"""How long an optional method may take before we go on without it."""
OPTIONAL = frozenset(frames.OF_HOST) - frames.REQUIRED
_MOST_BYTES = 4_096


class OptionalMethods:
    """Of one host, in all its processes."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._answered: set[str] = set()
        self._unanswered = self._read()

    def worth_asking(self, method: str, announced: frozenset[str] | None) -> bool:
        """`announced`: the methods that it says it answers; None: it does not say."""
        return method not in self._unanswered and (announced is None or method in announced)

    def answered(self, method: str) -> None:
        self._answered.add(method)

    def ignored(self, method: str) -> None:
        """It did not answer in time. One that it has answered before, it is only slow with."""
        if method not in self._answered:
            self.missing([method])

    def missing(self, methods: Iterable[str]) -> None:
        self._unanswered |= OPTIONAL.intersection(methods)
        self._write()

    def clear(self) -> None:
        self._unanswered, self._answered = set(), set()
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _read(self) -> set[str]:
        if self._path is None:
            return set()
        try:
            with open(self._path, encoding="ascii") as file:
                return set(file.read(_MOST_BYTES).split()) & OPTIONAL
        except (OSError, ValueError):
            return set()

    def _write(self) -> None:
        """What cannot be written is found out again."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "w", encoding="ascii") as file:
                file.write("\n".join(sorted(self._unanswered)))
