"""What servers gave us so that they know us again: a secret each, in a file for its owner alone.

Where the settings name a key it is encrypted, and where servers share a store it lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from callgate.config.secrets.opening import secrets_beside
from callgate.config.secrets.sealing import SecretsError
from callgate.core.errors import ToolError
from callgate.dispatch.raw_open import our_own


class TokenFile:
    def __init__(self, path: str, home: str | None = None) -> None:
        """`home`: whose settings say whether it is encrypted; None: that of the environment."""
        self._path = path
        self._home = home

    def mark(self) -> object:
        """Another one after each change; None where there is nothing."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            return secrets.mark(name)

    def read(self) -> dict[str, Any]:
        """Nothing where there is none. Raises a `ToolError` where others could have read it, or it
        cannot be decrypted."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            return self._decoded(secrets.read(name))

    def refresh(self) -> None:
        """Have the next read see all that was written before, by any server."""
        with _explained():
            secrets_beside(self._path, self._home)[0].store.refresh()

    def claim(self) -> None:
        """Wait until no other server renews this login; one that takes long is overtaken."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.claim(name)

    def release(self) -> None:
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.release(name)

    def update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Read, change and write, without losing what others write at the same time: `change` may
        be called again with what they wrote. Raises a `ToolError`."""

        def changed(text: str | None) -> str:
            return msgspec.json.encode(change(self._decoded(text))).decode()

        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.update(name, changed)

    def write(self, tokens: dict[str, Any]) -> None:
        """Replaces what there is, unless that cannot be read."""
        self.update(lambda known: tokens)

    def forget(self) -> None:
        """Also where it cannot be read."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.drop(name)

    def _decoded(self, text: str | None) -> dict[str, Any]:
        """What cannot be read is not nothing: it would be overwritten."""
        try:
            return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
        except (ValueError, RecursionError):
            raise SecretsError(f"{self._path} is damaged; delete it, and log in again") from None


@contextmanager
def _explained() -> Iterator[None]:
    """Problems in the words of whoever asks; what is opened for a tool here, we open."""
    try:
        with our_own():
            yield
    except SecretsError as error:
        raise ToolError(str(error), reason="secrets") from None
