"""`callgate keys`: the keys of models that we keep, and how all secrets are encrypted. No command
prints one or takes it as a word."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import to_builtins

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import visible
from callgate.config import keys
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import SecretsTable
from callgate.config.secrets.key_ring import key_of_variable
from callgate.config.secrets.maintenance import Resealed, copy_all, encrypt_all, survey
from callgate.config.secrets.maintenance import rotate as change_key
from callgate.config.secrets.opening import home_secrets, open_secrets
from callgate.config.secrets.sealing import SecretsError
from callgate.config.secrets.secrets import Secrets
from callgate.core.errors import ToolErrorClass
from callgate.core.models import Key, ModelError
from callgate.models.make import USUAL_VARIABLES
from callgate.models.tables import ModelTable
from callgate.sandbox.launch import SECRETS_PREFIX

_LONGEST = 64 * 1024
_PROVIDERS: Mapping[str, ModelTable] = {
    "anthropic": ModelTable(kind="anthropic"),
    "openai": ModelTable(kind="openai"),
}


def set(options: Namespace) -> int:
    name = _named(options, "set")
    refuse_within_a_call("callgate keys set")
    with explained():
        keys.check_name(name)
        keys.store_key(Home.from_environment(), name, Key(typed(name)))
    if options.json:
        print_json({"name": name, "stored": True})
    else:
        say(f"The key of {name} is stored.")
    return OK


def delete(options: Namespace) -> int:
    name = _named(options, "delete")
    refuse_within_a_call("callgate keys delete")
    with explained():
        deleted = keys.delete_key(Home.from_environment(), name)
    if options.json:
        print_json({"name": name, "deleted": deleted})
    else:
        say(f"The key of {name} is deleted." if deleted else f"No key of {name} is stored.")
    return OK if deleted else FAILED


def list(options: Namespace) -> int:
    _no_words(options, "list")
    with explained():
        rows = _rows(Home.from_environment())
    if options.json:
        print_json(rows)
        return OK
    if not rows:
        print("No model needs a key, and none is stored.")
        say("hint: this lists models and providers, and where the key of each comes from.")
        say("hint: callgate keys set anthropic stores one; ANTHROPIC_API_KEY counts too.")
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{visible(row['name']):<{width}}  {visible(row['source'] or 'no key')}")
    return OK


def status(options: Namespace) -> int:
    _no_words(options, "status")
    with explained():
        home = Home.from_environment()
        table, secrets = load_user(home)[0].secrets, open_secrets(home)
        key_id, problem = _key_id(secrets)
        rows = survey(secrets)
    source = _secrets_source(table)
    healthy = problem is None and all(row.state != "unreadable" for row in rows)
    if options.json:
        listed = [to_builtins(row) for row in rows]
        print_json({"key_id": key_id, "source": source, "problem": problem, "secrets": listed})
        return OK if healthy else FAILED
    if source is None:
        print("no key: secrets are in plain files that only you may open")
    else:
        print(f"key {key_id or '-'}  {visible(source)}")
    if problem is not None:
        say(f"callgate: {visible(problem)}")
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{visible(row.name):<{width}}  {row.state:<10}  {row.key_id or ''}".rstrip())
        if row.problem is not None and row.problem != problem:
            say(f"callgate: {visible(row.problem)}")
    return OK if healthy else FAILED


def encrypt(options: Namespace) -> int:
    _no_words(options, "encrypt")
    refuse_within_a_call("callgate keys encrypt")
    with explained():
        home = Home.from_environment()
        secrets, files = open_secrets(home), home_secrets(home)
        results = [encrypt_all(files)]
        if secrets.store.always_sealed:
            results += [copy_all(files, secrets), encrypt_all(secrets)]
    return _report(options, results, "encrypted")


def rotate(options: Namespace) -> int:
    _no_words(options, "rotate")
    refuse_within_a_call("callgate keys rotate")
    name = options.new_key_env
    if not name:
        raise CliError("which key is the new one? callgate keys rotate --new-key-env NAME")
    if not name.startswith(SECRETS_PREFIX):
        raise CliError(
            f"--new-key-env: the name of the variable must begin with {SECRETS_PREFIX}",
            hint="No process that callgate starts gets a variable that is called so.",
        )
    with explained():
        home = Home.from_environment()
        secrets, files = open_secrets(home), home_secrets(home)
        new = key_of_variable(name, os.environ)
        results = [change_key(secrets, new)]
        if secrets.store.always_sealed:
            results.append(change_key(files, new))
    ended = _report(options, results, f"encrypted with {new.id}")
    if ended == OK and not options.json:
        say(f'Now give callgate the new key, such as by [secrets] key_env = "{name}".')
    return ended


def _report(options: Namespace, results: Sequence[Resealed], done: str) -> int:
    written = {name for each in results for name in each.written}
    unchanged = {name for each in results for name in each.unchanged} - written
    failed = dict(row for each in results for row in each.failed)
    if options.json:
        print_json({"written": sorted(written), "unchanged": sorted(unchanged), "failed": failed})
    else:
        for name in sorted(written):
            print(f"{visible(name)}  {done}")
        for name in sorted(unchanged):
            print(f"{visible(name)}  was already")
        for problem in failed.values():
            say(f"callgate: {visible(problem)}")
        if not (written or unchanged or failed):
            print("There is no secret yet.")
    return FAILED if failed else OK


def _key_id(secrets: Secrets) -> tuple[str | None, str | None]:
    """The id of the key, or why there is none."""
    try:
        key = secrets.keys().current
    except SecretsError as error:
        return None, str(error)
    return None if key is None else key.id, None


def _secrets_source(table: SecretsTable) -> str | None:
    """Where the key comes from, in the words of `keys list`."""
    if table.key_env and os.environ.get(table.key_env, "").strip():
        return f"environment {table.key_env}"
    if table.key_command:
        return f"command {shlex.split(table.key_command)[0]}"
    return None if table.key_env is None else f"environment {table.key_env}"


def _no_words(options: Namespace, command: str) -> None:
    if options.words:
        raise CliError(f"keys {command} takes no arguments")


def _rows(home: Home) -> Sequence[dict[str, Any]]:
    """Models of the settings, then other stored keys, then providers with a usual variable."""
    tables = load_user(home)[0].models
    named = {name: table for name, table in tables.items() if table.kind in USUAL_VARIABLES}
    rows = {name: keys.key_source(name, named[name], home, os.environ) for name in sorted(named)}
    for name in sorted(keys.stored_keys(home)):
        rows.setdefault(name, f"stored {name}")
    for provider, table in _PROVIDERS.items():
        source = keys.key_source(f"{provider}/", table, home, os.environ)
        if source is not None:
            rows.setdefault(provider, source)
    return [{"name": name, "source": source} for name, source in rows.items()]


def _named(options: Namespace, command: str) -> str:
    if len(options.words) != 1:
        raise CliError(
            f"keys {command} takes one name; the key itself is typed or comes on stdin",
            hint=f"See callgate keys {command} --help.",
        )
    return str(options.words[0])


def typed(name: str) -> str:
    """The key of a model, from the keyboard or from stdin."""
    if is_terminal(sys.stdin):
        return getpass.getpass(f"Key of {name} (it is not shown): ")
    return sys.stdin.buffer.read(_LONGEST).decode("utf-8", "replace")


@contextmanager
def explained() -> Iterator[None]:
    """Problems with keys and settings, in a command's words."""
    try:
        yield
    except ModelError as error:
        raise CliError(
            error.message, error_class=ToolErrorClass.EXECUTION_ERROR, reason="key"
        ) from None
    except SecretsError as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.EXECUTION_ERROR, reason="secrets"
        ) from None
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    except ValueError as error:
        raise CliError(str(error)) from None
