"""The port behind which secrets lie as texts, sealed or not, each under a name.

A name is a path below the home, such as `keys.json` or `mcp/web.tokens`, wherever it is kept.
`home_files` and `shared_entries` implement it; all raise `SecretsError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

Change = Callable[[str | None], str | None]
"""From the text that stands, None: there is none, to the one that is to stand, None: none.

It may be called several times, where others write at the same time; what it raises is passed on,
and nothing is changed then."""


CLAIM_S = 15.0
"""Whoever claims a secret for longer than this is not waited for."""


class SecretStore(Protocol):
    always_sealed: ClassVar[bool]
    """Whether a text that is not sealed has no business there."""

    def names(self) -> Sequence[str]:
        """The names of all secrets, sorted."""
        ...

    def get(self, name: str) -> str | None: ...

    def mark(self, name: str) -> object:
        """Another one after each change, so that nobody has to read what is known; None: there
        is none."""
        ...

    def update(self, name: str, change: Change) -> None:
        """Read, change and write without losing what another writes at the same time."""
        ...

    def drop(self, name: str) -> None:
        """Remove it, whatever it is. Idempotent."""
        ...

    def refresh(self) -> None:
        """Have the next read see all that was written before."""
        ...

    def claim(self, name: str) -> None:
        """Wait until nobody else renews a login with this secret, at most for `CLAIM_S`."""
        ...

    def release(self, name: str) -> None: ...

    def where(self, name: str) -> str:
        """What to call it to a person."""
        ...
