"""Where the key of `[secrets]` comes from: a variable, or a command that prints it.

key_env -> key_command          the first that has one counts; the command is run once a process
previous_key_env                reads what the key before encrypted
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from callgate.config.schema import SecretsTable
from callgate.config.secrets.sealing import SealingKey, SecretsError

RETRY_S = 5.0
"""A command that failed is not run again before: many tools may ask at once."""


class KeyRing(NamedTuple):
    current: SealingKey | None
    """None: the settings name none, and nothing is encrypted."""
    others: tuple[SealingKey, ...] = ()
    """With which nothing is written, and what they encrypted is read."""

    @property
    def all(self) -> tuple[SealingKey, ...]:
        return self.others if self.current is None else (self.current, *self.others)


def find_keys(table: SecretsTable, environ: Mapping[str, str]) -> KeyRing:
    """The keys that the settings name. Raises `SecretsError` where one is named and not there."""
    if table.key_env is None and table.key_command is None:
        if table.previous_key_env is not None:
            raise SecretsError("[secrets] names previous_key_env and no key: set key_env, too")
        return KeyRing(None)
    return KeyRing(_current(table, environ), _previous(table, environ))


def key_of_variable(variable: str, environ: Mapping[str, str]) -> SealingKey:
    """Raises `SecretsError` where it is not set, or holds no key."""
    if not environ.get(variable, "").strip():
        raise SecretsError(f"the variable {variable} is not set, and is to hold the key of secrets")
    return _key(environ[variable], f"what the variable {variable} holds")


def _current(table: SecretsTable, environ: Mapping[str, str]) -> SealingKey:
    if table.key_env is not None and environ.get(table.key_env, "").strip():
        return key_of_variable(table.key_env, environ)
    if table.key_command is not None:
        return _COMMANDS.key(table.key_command)
    raise SecretsError(
        f"the variable {table.key_env}, which [secrets] key_env names, is not set: "
        "without it no encrypted secret is read, and none is written"
    )


def _previous(table: SecretsTable, environ: Mapping[str, str]) -> tuple[SealingKey, ...]:
    """One that is no longer set is no longer needed."""
    if table.previous_key_env is None or not environ.get(table.previous_key_env, "").strip():
        return ()
    return (key_of_variable(table.previous_key_env, environ),)


def _key(text: str, where: str) -> SealingKey:
    try:
        return SealingKey(text)
    except ValueError as error:
        raise SecretsError(f"{where} {error}") from None


class _Commands:
    """The keys that commands printed, for the life of the process."""

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

        from callgate.config.key_commands import KeyCommandError, run_key_command  # lazy: too  # noqa: PLC0415

        try:
            text = run_key_command(shlex.split(command))
        except (KeyCommandError, ValueError) as error:
            raise SecretsError(f"[secrets] {error}") from None
        return _key(text, "what [secrets] key_command printed")


_COMMANDS = _Commands()
