"""Where the key of a model comes from, and the file that keeps those a person gave us.

    key_env -> key_command -> `callgate keys set` -> the usual variable of the provider

The first that has one counts. The usual variable belongs to the usual server: where the
settings name another `base_url`, that server is not shown it.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from callgate.config.home import Home
from callgate.config.locks import alone_in
from callgate.core.directories import write_private
from callgate.core.models import Key, ModelError, ModelErrorKind
from callgate.http_client.server_text import UNSEEN
from callgate.models.make import USUAL_VARIABLES, key_name
from callgate.models.tables import ModelTable
from callgate.redaction.texts import redact

COMMAND_S = 10.0
_SHOWN = 400
"""Characters of what a command wrote to stderr."""
_LARGEST_FILE = 1024 * 1024
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
    """What the command prints. It is a group of its own, so that nothing of it stays behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _problem(f"key_command cannot be run: {reason or 'it is no command'}") from None
    with process:
        try:
            out, complaints = process.communicate(timeout=COMMAND_S)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _problem(f"key_command was not done in {COMMAND_S:g} seconds") from None
            raise
    if process.returncode != 0:
        reason = UNSEEN.sub(" ", redact(complaints.decode("utf-8", "replace")))
        reason = " ".join(reason.split())[:_SHOWN]
        raise _problem(
            f"key_command failed ({process.returncode}): {reason or 'it did not say why'}"
        )
    return str(out.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # A descendant that left the group may hold the pipes: nobody waits for it.
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


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
    """Raises `ModelError` where others could have read or changed the file."""
    path = _path(home)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _problem(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        _refuse_wide(path, os.fstat(descriptor), stat.S_ISREG)
        _refuse_wide(home.path, os.stat(home.path), stat.S_ISDIR)
        data = file.read(_LARGEST_FILE)
    try:
        read = msgspec.json.decode(data, type=dict[str, str])
        return {name: Key(text) for name, text in read.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        raise _problem(f"{path} is not what callgate keys set writes") from None


def store_key(home: Home, name: str, key: Key) -> None:
    check_name(name)
    with _locked(home):
        _write(home, {**stored_keys(home), name: key})


def delete_key(home: Home, name: str) -> bool:
    """False if there was none."""
    with _locked(home):
        known = stored_keys(home)
        if name in known:
            _write(home, {each: key for each, key in known.items() if each != name})
        return name in known


def _path(home: Home) -> str:
    return os.path.join(home.path, "keys.json")


def _write(home: Home, keys: Mapping[str, Key]) -> None:
    texts = {name: keys[name].reveal() for name in sorted(keys)}
    write_private(_path(home), msgspec.json.format(msgspec.json.encode(texts)).decode() + "\n")


@contextmanager
def _locked(home: Home) -> Iterator[None]:
    try:
        home.make()
        _refuse_wide(home.path, os.stat(home.path), stat.S_ISDIR)
    except OSError as error:
        raise _problem(f"{home.path} cannot be used: {error.strerror}") from None
    with alone_in(home.path):
        yield


def _refuse_wide(path: str, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode):
        raise _problem(f"{path} is not what it should be")
    if status.st_uid != os.geteuid():
        raise _problem(f"{path} belongs to another user")
    if status.st_mode & 0o077:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise _problem(f"others may open {path}; run: chmod {mode} {path}")
