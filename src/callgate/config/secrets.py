"""Secrets by name: encrypted storage of model keys and logins, and key rotation.

    keys, logins -> Secrets (read, update) -> SecretStore: files of the home
                        |                               or entries of a shared store
                        +-- sealing (AES-256-GCM) <-- key_ring <-- [secrets] key_env, key_command

Start at `secret_opening.open_secrets`. This module implements `callgate keys encrypt`, `rotate` and
`status`. Each ciphertext is bound to its name, and refused under any other name.

    key_env -> key_command          the first one with a key is used; runs once per process
    previous_key_env                decrypts with the previous key

Unreadable data is never overwritten: a missing or wrong key, or a damaged text, stops a change
before it begins. Re-encryption changes each secret atomically: after an interruption,
running it again completes the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from callgate.config.schema import SecretsTable
from callgate.config.sealing import (
    Change,
    SealingKey,
    SecretsError,
    SecretStore,
    is_sealed,
    key_id_of,
    seal,
    unseal,
)
from callgate.redaction.texts import UNSEEN, redact
from callgate.sandbox.plans import without_secrets_keys

RETRY_S = 5.0
"""Minimum time between failed runs of a command: many tools may need the key concurrently."""


class KeyRing(NamedTuple):
    current: SealingKey | None
    """None: the settings name no key, and nothing is encrypted."""
    others: tuple[SealingKey, ...] = ()
    """Keys for decryption only."""

    @property
    def all(self) -> tuple[SealingKey, ...]:
        return self.others if self.current is None else (self.current, *self.others)


def find_keys(table: SecretsTable, environ: Mapping[str, str]) -> KeyRing:
    """Return the configured keys. Raises `SecretsError` if a configured key is missing."""
    if table.key_env is None and table.key_command is None:
        if table.previous_key_env is not None:
            raise SecretsError("[secrets] names previous_key_env and no key: set key_env, too")
        return KeyRing(None)
    return KeyRing(_current(table, environ), _previous(table, environ))


def key_of_variable(variable: str, environ: Mapping[str, str]) -> SealingKey:
    """Return the key in a variable. Raises `SecretsError` if it is not set or has no valid key."""
    if not environ.get(variable, "").strip():
        raise SecretsError(f"the variable {variable} for the key of secrets is not set")
    return _key(environ[variable], f"the content of the variable {variable}")


def _current(table: SecretsTable, environ: Mapping[str, str]) -> SealingKey:
    if table.key_env is not None and environ.get(table.key_env, "").strip():
        return key_of_variable(table.key_env, environ)
    if table.key_command is not None:
        return _COMMANDS.key(table.key_command)
    raise SecretsError(
        f"the variable {table.key_env}, which [secrets] key_env names, is not set: "
        "without it no encrypted secret can be read or written"
    )


def _previous(table: SecretsTable, environ: Mapping[str, str]) -> tuple[SealingKey, ...]:
    """Return the previous key, if its variable is still set."""
    if table.previous_key_env is None or not environ.get(table.previous_key_env, "").strip():
        return ()
    return (key_of_variable(table.previous_key_env, environ),)


def _key(text: str, where: str) -> SealingKey:
    try:
        return SealingKey(text)
    except ValueError as error:
        raise SecretsError(f"{where} {error}") from None


class _Commands:
    """Keys from commands, cached until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, SealingKey] = {}
        self._failed: dict[str, tuple[float, str]] = {}

    def key(self, command: str) -> SealingKey:
        with self._lock:
            if command not in self._keys:
                at, problem = self._failed.get(command, (-RETRY_S, ""))
                if time.monotonic() - at < RETRY_S:
                    raise SecretsError(problem)
                try:
                    self._keys[command] = self._run(command)
                except SecretsError as error:
                    self._failed[command] = time.monotonic(), str(error)
                    raise
            return self._keys[command]

    def _run(self, command: str) -> SealingKey:
        import shlex  # lazy: few settings name a command  # noqa: PLC0415

        try:
            text = run_key_command(shlex.split(command))
        except (KeyCommandError, ValueError) as error:
            raise SecretsError(f"[secrets] {error}") from None
        return _key(text, "the output of [secrets] key_command")


_COMMANDS = _Commands()


class Secrets:
    def __init__(
        self, store: SecretStore, keys: Callable[[], KeyRing], *, plain: bool = True
    ) -> None:
        """`keys` raises `SecretsError` if a configured key is missing.

        `plain`: whether unencrypted files may be read.
        """
        self.store = store
        self.keys = keys
        self._plain = plain and not store.always_sealed

    def mark(self, name: str) -> object:
        """Return a value that differs after each change; None if there is no such secret."""
        return self.store.mark(name)

    def read(self, name: str) -> str | None:
        """Return a secret. Raises `SecretsError`."""
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
                f"{self.store.where(name)} is not encrypted, and was not read: "
                + (
                    "a shared store contains encrypted secrets only"
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
                "a shared store needs a key for its secrets: set [secrets] key_env or "
                "key_command (keys in variables and key_command of models work without it)"
            )
        return text

    def is_current(self, text: str) -> bool:
        """Whether writing the text again would change only its nonce."""
        key = self.keys().current
        return is_sealed(text) == (key is not None) and (
            key is None or text.split(":", 3)[2] == key.id
        )

    def _explained(self, name: str, open: Callable[[], str]) -> str:
        """Replace the name by the location in an error."""
        try:
            return open()
        except SecretsError as error:
            message = str(error)
            if message.startswith(f"{name} "):
                message = self.store.where(name) + message.removeprefix(name)
            raise SecretsError(message) from None


State = Literal["encrypted", "plain", "unreadable"]


class SecretStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a secret, without its content."""

    name: str
    where: str
    state: State
    key_id: str | None = None
    problem: str | None = None
    """Why it cannot be read."""


class Resealed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run over all secrets."""

    written: Sequence[str]
    unchanged: Sequence[str]
    failed: Sequence[tuple[str, str]]
    """Names, each with the reason; these secrets are unchanged."""


def survey(secrets: Secrets) -> Sequence[SecretStatus]:
    """Return the state of each secret. Raises `SecretsError` if the store cannot be read."""
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
    """Encrypt all secrets with the configured key that are plain or have the previous one.

    Raises `SecretsError` if the settings name no key.
    """
    if secrets.keys().current is None:
        raise SecretsError("[secrets] names no key: set key_env or key_command")
    # Plain secrets too, regardless of plain_files.
    return _reseal(Secrets(secrets.store, secrets.keys))


def rotate(secrets: Secrets, new: SealingKey) -> Resealed:
    """Encrypt all secrets with another key than the configured one, except those that have it.

    Raises `SecretsError` if the settings name no key.
    """
    known = secrets.keys()
    if known.current is None:
        raise SecretsError("[secrets] names no key to rotate from: set key_env or key_command")
    ring = KeyRing(new, known.all)
    return _reseal(Secrets(secrets.store, lambda: ring))


def copy_all(source: Secrets, target: Secrets) -> Resealed:
    """Copy the secrets of one store to another that lacks them. Removes nothing."""

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
    """Refuse a text with a damaged beginning, which looks unencrypted and would be encrypted again.

    A plain secret is a JSON object.
    """
    text = secrets.store.get(name)
    if text is None or is_sealed(text):
        return
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise SecretsError(f"{secrets.store.where(name)} is damaged and was not changed") from None


def _each(secrets: Secrets, write: Callable[[str], bool]) -> Resealed:
    """Apply `write`, which returns whether it wrote, to all secrets."""
    done: dict[bool, list[str]] = {True: [], False: []}
    failed: list[tuple[str, str]] = []
    for name in secrets.store.names():
        try:
            done[write(name)].append(name)
        except SecretsError as error:
            failed.append((name, str(error)))
    return Resealed(written=done[True], unchanged=done[False], failed=failed)


COMMAND_S = 10.0
_SHOWN = 400
"""Maximum characters of stderr in a message."""


class KeyCommandError(Exception):
    """Why a command printed no key; never contains its output."""


def run_key_command(command: Sequence[str]) -> str:
    """Return the output of the command. It has a process group, which is killed on a timeout."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=without_secrets_keys(os.environ),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or "it is not a command"
        raise KeyCommandError(f"key_command cannot be run: {reason}") from None
    with process:
        try:
            out, complaints = process.communicate(timeout=COMMAND_S)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"key_command did not finish within {COMMAND_S:g} seconds"
                raise KeyCommandError(message) from None
            raise
    if process.returncode != 0:
        reason = UNSEEN.sub(" ", redact(complaints.decode("utf-8", "replace")))
        reason = " ".join(reason.split())[:_SHOWN]
        raise KeyCommandError(
            f"key_command failed ({process.returncode}): {reason or 'without a message on stderr'}"
        )
    return str(out.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # A descendant outside the group may hold the pipes: do not wait for it.
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
