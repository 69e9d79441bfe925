"""Secrets by name: sealed when they are written, unsealed when they are read.

Nothing is written over what cannot be read: a missing or wrong key, or a damaged text, ends a
change before it begins.
"""

from __future__ import annotations

from collections.abc import Callable

from callgate.config.secrets.key_ring import KeyRing
from callgate.config.secrets.sealing import SecretsError, is_sealed, seal, unseal
from callgate.config.secrets.stores import Change, SecretStore


class Secrets:
    def __init__(
        self, store: SecretStore, keys: Callable[[], KeyRing], *, plain: bool = True
    ) -> None:
        """`keys` raises `SecretsError` where the settings name a key that is not there. `plain`:
        whether a file that is not sealed yet may be read."""
        self.store = store
        self.keys = keys
        self._plain = plain and not store.always_sealed

    def mark(self, name: str) -> object:
        """Another one after each change; None where there is no such secret."""
        return self.store.mark(name)

    def read(self, name: str) -> str | None:
        """Raises `SecretsError`."""
        text = self.store.get(name)
        return None if text is None else self.opened(name, text)

    def update(self, name: str, change: Change) -> None:
        """Read, change and write; see `Change`. Raises `SecretsError`."""

        def sealed(known: str | None) -> str | None:
            before = None if known is None else self.opened(name, known)
            after = change(before)
            if after is None or (after == before and known is not None and self.is_current(known)):
                return None if after is None else known
            return self.sealed(name, after)

        self.store.update(name, sealed)

    def opened(self, name: str, text: str) -> str:
        if is_sealed(text):
            return self._explained(name, lambda: unseal(name, text, self.keys().all))
        if not self._plain:
            raise SecretsError(
                f"{self.store.where(name)} is not encrypted, and is not read: "
                + (
                    "a shared store keeps encrypted secrets only"
                    if self.store.always_sealed
                    else '[secrets] plain_files is "refuse"'
                )
            )
        return text

    def sealed(self, name: str, text: str) -> str:
        key = self.keys().current
        if key is not None:
            return seal(name, text, key)
        if self.store.always_sealed:
            raise SecretsError(
                "a shared store keeps no secret without a key: set [secrets] key_env or "
                "key_command (keys in variables and key_command of models work without)"
            )
        return text

    def is_current(self, text: str) -> bool:
        """Whether the text is as it would be written now, but for its nonce."""
        key = self.keys().current
        return is_sealed(text) == (key is not None) and (
            key is None or text.split(":", 3)[2] == key.id
        )

    def _explained(self, name: str, open: Callable[[], str]) -> str:
        """Say where it lies rather than what it is called."""
        try:
            return open()
        except SecretsError as error:
            message = str(error)
            if message.startswith(f"{name} "):
                message = self.store.where(name) + message.removeprefix(name)
            raise SecretsError(message) from None
