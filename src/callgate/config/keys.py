"""Where the key of a model comes from, and the file that keeps those a person gave us.

    key_env -> key_command -> `callgate keys set` -> the usual variable of the provider

The first that has one counts. The usual variable belongs to the usual server: where the
settings name another `base_url`, that server is not shown it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from callgate.config.home import Home
from callgate.config.secrets.opening import open_secrets
from callgate.config.secrets.sealing import SecretsError
from callgate.core.models import Key, ModelError, ModelErrorKind
from callgate.dispatch.raw_open import our_own
from callgate.models.make import USUAL_VARIABLES, key_name
from callgate.models.tables import ModelTable
from callgate.redaction.texts import redact

_FILE = "keys.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


def find_key(name: str, table: ModelTable, home: Home, environ: Mapping[str, str]) -> Key | None:
    """The key of a model; None where there is none. May run the command that prints it.

    Raises `ModelError` where a key is to be had and cannot be used."""
    source = key_source(name, table, home, environ)
    if source is None:
        return None
    kind, _, where = source.partition(" ")
    if kind == "command":
        return _key(_printed(table.key_command or ()), "what key_command printed")
    if kind == "stored":
        return stored_keys(home)[where]
    return _key(environ[where], f"the variable {where}")


def key_source(name: str, table: ModelTable, home: Home, environ: Mapping[str, str]) -> str | None:
    """`environment NAME`, `command PROGRAM` or `stored NAME`. Nothing is run."""
    if table.kind not in USUAL_VARIABLES:
        return None  # it is no server that would want one
    if table.key_env and environ.get(table.key_env, "").strip():
        return f"environment {table.key_env}"
    if table.key_command:
        return f"command {table.key_command[0]}"
    stored = key_name(name, table)
    # A provider's key is not shown to another server that happens to be called like it.
    is_elsewhere = stored in USUAL_VARIABLES and "/" not in name and table.base_url is not None
    if not is_elsewhere and stored in stored_keys(home):
        return f"stored {stored}"
    usual = USUAL_VARIABLES[table.kind]
    named_at_once = "/" in name  # then the address comes from the environment, like the key
    if (named_at_once or table.base_url is None) and environ.get(usual, "").strip():
        return f"environment {usual}"
    return None


def find_service_key(
    name: str, home: Home, environ: Mapping[str, str], *, key_env: str | None, usual: str | None
) -> Key | None:
    """The key of a service that is no model, such as one that searches the web. Raises
    `ModelError` where what there is cannot be used."""
    if key_env is not None and environ.get(key_env, "").strip():
        return _key(environ[key_env], f"the variable {key_env}")
    stored = stored_keys(home).get(name)
    if stored is None and usual is not None and environ.get(usual, "").strip():
        return _key(environ[usual], f"the variable {usual}")
    return stored


def _key(text: str, where: str) -> Key:
    try:
        return Key(text)
    except ValueError as error:
        raise _problem(f"{where} is no key: {error}") from None


def _problem(text: str) -> ModelError:
    return ModelError(ModelErrorKind.KEY, f"{text[0].upper()}{text[1:]}.")


def _printed(command: Sequence[str]) -> str:
    from callgate.config.key_commands import KeyCommandError, run_key_command  # lazy: few have one  # noqa: PLC0415

    try:
        return run_key_command(command)
    except KeyCommandError as error:
        raise _problem(str(error)) from None


# The file: one object, names to keys.


def check_name(name: str) -> str:
    """ValueError where no model or provider could be called so."""
    if not _NAME.match(name) or redact(name) != name:
        shown = redact(name)  # it may be the key itself, typed in the wrong place
        raise ValueError(
            f"{shown!r} is not a name of a model: a-z, 0-9, '.', '_' and '-', at most 64"
        )
    return name


def stored_keys(home: Home) -> dict[str, Key]:
    """Raises `ModelError` where others could have read or changed the file, or it cannot be
    decrypted."""
    with _explained():
        text = open_secrets(home).read(_FILE)
    if text is None:
        return {}
    _refuse_wide_home(home)
    return _decoded(text, home)


def store_key(home: Home, name: str, key: Key) -> None:
    check_name(name)
    _change(home, lambda known: {**known, name: key})


def delete_key(home: Home, name: str) -> bool:
    """False if there was none."""
    if name not in stored_keys(home):
        return False
    _change(home, lambda known: {each: known[each] for each in known if each != name})
    return True


def _change(home: Home, change: Callable[[dict[str, Key]], dict[str, Key]]) -> None:
    def changed(text: str | None) -> str:
        return _encoded(change({} if text is None else _decoded(text, home)))

    try:
        home.make()
        _refuse_wide_home(home)
    except OSError as error:
        raise _problem(f"{home.path} cannot be used: {error.strerror}") from None
    with _explained():
        open_secrets(home).update(_FILE, changed)


def _decoded(text: str, home: Home) -> dict[str, Key]:
    try:
        read = msgspec.json.decode(text, type=dict[str, str])
        return {name: Key(each) for name, each in read.items()}
    except (ValueError, RecursionError):
        path = os.path.join(home.path, _FILE)
        raise _problem(f"{path} is not what callgate keys set writes") from None


def _encoded(keys: Mapping[str, Key]) -> str:
    texts = {name: keys[name].reveal() for name in sorted(keys)}
    return msgspec.json.format(msgspec.json.encode(texts)).decode() + "\n"


@contextmanager
def _explained() -> Iterator[None]:
    """Problems in the words of whoever asks; what is opened for a tool here, we open."""
    try:
        with our_own():
            yield
    except SecretsError as error:
        raise _problem(str(error)) from None


def _refuse_wide_home(home: Home) -> None:
    status = os.stat(home.path)
    if not stat.S_ISDIR(status.st_mode):
        raise _problem(f"{home.path} is not what it should be")
    if status.st_uid != os.geteuid():
        raise _problem(f"{home.path} belongs to another user")
    if status.st_mode & 0o077:
        raise _problem(f"others may open {home.path}; run: chmod 700 {home.path}")
