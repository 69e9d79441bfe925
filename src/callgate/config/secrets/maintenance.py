"""All secrets at once: which are encrypted and with which key, and writing them with another.

Every secret is changed by itself, in one step that a kill or a power cut does not halve. What was
done stays done, what was not is as it was, and running it again does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from callgate.config.secrets.key_ring import KeyRing
from callgate.config.secrets.sealing import SealingKey, SecretsError, is_sealed, key_id_of
from callgate.config.secrets.secrets import Secrets

State = Literal["encrypted", "plain", "unreadable"]


class SecretStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of a secret without showing it."""

    name: str
    where: str
    state: State
    key_id: str | None = None
    problem: str | None = None
    """Why it cannot be read."""


class Resealed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run over all secrets."""

    written: Sequence[str]
    unchanged: Sequence[str]
    failed: Sequence[tuple[str, str]]
    """Names, with the reason of each; they are as they were."""


def survey(secrets: Secrets) -> Sequence[SecretStatus]:
    """The state of each secret. Raises `SecretsError` where the store cannot be read."""
    return [_status(secrets, name) for name in secrets.store.names()]


def _status(secrets: Secrets, name: str) -> SecretStatus:
    where = secrets.store.where(name)
    key_id: str | None = None
    try:
        text = secrets.store.get(name)
        if text is not None and is_sealed(text):
            key_id = key_id_of(name, text)
        if text is not None:
            secrets.opened(name, text)
    except SecretsError as error:
        return SecretStatus(
            name=name, where=where, state="unreadable", key_id=key_id, problem=str(error)
        )
    state: State = "plain" if key_id is None else "encrypted"
    return SecretStatus(name=name, where=where, state=state, key_id=key_id)


def encrypt_all(secrets: Secrets) -> Resealed:
    """Write everything with the key of the settings that is plain or has the key before it.
    Raises `SecretsError` where the settings name no key."""
    if secrets.keys().current is None:
        raise SecretsError("[secrets] names no key: set key_env or key_command")
    # Also what is plain, whatever plain_files says.
    return _reseal(Secrets(secrets.store, secrets.keys))


def rotate(secrets: Secrets, new: SealingKey) -> Resealed:
    """Write everything with another key than that of the settings. What has it already is left.
    Raises `SecretsError` where the settings name no key."""
    known = secrets.keys()
    if known.current is None:
        raise SecretsError("[secrets] names no key to rotate from: set key_env or key_command")
    ring = KeyRing(new, known.all)
    return _reseal(Secrets(secrets.store, lambda: ring))


def copy_all(source: Secrets, target: Secrets) -> Resealed:
    """Put the secrets of one store into another that does not have them. Nothing is removed."""

    def copy(name: str) -> bool:
        text, known = source.read(name), target.store.get(name)
        if text is None or known is not None:
            return False
        target.update(name, lambda known: text if known is None else known)
        return True

    return _each(source, copy)


def _reseal(secrets: Secrets) -> Resealed:
    def reseal(name: str) -> bool:
        before = secrets.mark(name)
        _refuse_damaged(secrets, name)
        secrets.update(name, lambda text: text)
        return secrets.mark(name) != before

    return _each(secrets, reseal)


def _refuse_damaged(secrets: Secrets, name: str) -> None:
    """A text whose beginning is damaged looks like one that was never encrypted: it must not be
    encrypted once more. What is plain is an object in JSON."""
    text = secrets.store.get(name)
    if text is None or is_sealed(text):
        return
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise SecretsError(f"{secrets.store.where(name)} is damaged and left as it is") from None


def _each(secrets: Secrets, write: Callable[[str], bool]) -> Resealed:
    """`write` says whether it had to."""
    done: dict[bool, list[str]] = {True: [], False: []}
    failed: list[tuple[str, str]] = []
    for name in secrets.store.names():
        try:
            done[write(name)].append(name)
        except SecretsError as error:
            failed.append((name, str(error)))
    return Resealed(written=done[True], unchanged=done[False], failed=failed)
