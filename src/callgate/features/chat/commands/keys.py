"""`callgate keys`: stored keys of models, encryption of secrets; and the choice of a default model.

The default model: found on this machine, chosen at a terminal, written to the settings.

The error of a command without a model lists the options, and `callgate doctor` checks the choice.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import to_builtins

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.findings import Finding, Level, Patient, good
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import SecretsTable
from callgate.config.sealing import SecretsError
from callgate.config.secret_opening import home_secrets, open_secrets
from callgate.config.secrets import (
    Resealed,
    Secrets,
    copy_all,
    encrypt_all,
    key_of_variable,
    survey,
)
from callgate.config.secrets import rotate as change_key
from callgate.core.errors import ToolErrorClass
from callgate.core.models import Key, ModelError
from callgate.features.chat.models import make
from callgate.features.chat.models.make import USUAL_VARIABLES, find_table, key_name
from callgate.features.chat.settings import ChatSettings, ModelTable
from callgate.sandbox.plans import SECRETS_PREFIX

_KEYS = {
    "ANTHROPIC_API_KEY": "anthropic/claude-sonnet-4-5",
    "OPENAI_API_KEY": "responses/gpt-5",
}
_OLLAMA_S = 1.0
_MODEL_PLACES = ("~/models", "~/Downloads")
_MOST = 9
"""Maximum number of offered models."""


class ModelChoice(NamedTuple):
    name: str
    """Name for the settings."""
    why: str


def offer_models(home: Home) -> None:
    """Ask which model to use, unless the settings have one."""
    try:
        if load_user(home)[0].of(ChatSettings).model is not None:
            return
    except SettingsError:
        return  # doctor reports it
    choices = found_models(os.environ, os.getcwd())
    if not choices:
        print("No model was found. Store a key with: callgate keys set anthropic")
        print("Then run: callgate chat --model anthropic/claude-sonnet-4-5")
        print("Tools work without a model.")
        return
    print("Available models:")
    for number, choice in enumerate(choices, 1):
        print(visible(f"  {number}  {choice.name}: {choice.why}"))
    print("Model for callgate chat (its number, or Enter for none): ", end="", flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isdecimal() and 1 <= int(answer) <= len(choices):
        chosen = choices[int(answer) - 1]
        choose_model(home, chosen.name)


def found_models(environ: Mapping[str, str], directory: str) -> Sequence[ModelChoice]:
    """Return the models that are available: by a key, by a running Ollama, from a file."""
    by_key = [
        ModelChoice(name, f"{variable} is set")
        for variable, name in _KEYS.items()
        if environ.get(variable)
    ]
    from_files = [
        ModelChoice(f"local/{path}", "a file; needs pip install 'callgate[local]'")
        for path in model_files(directory)
    ]
    return [*by_key, *_ollama_models(environ), *from_files][:_MOST]


def model_files(directory: str) -> Sequence[str]:
    """Return the GGUF files in a directory and in the usual directories."""
    directories = (directory, *map(os.path.expanduser, _MODEL_PLACES))
    return [path for each in directories for path in _model_files(each)]


def _model_files(directory: str) -> Sequence[str]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(".gguf")]


def _ollama_models(environ: Mapping[str, str]) -> Sequence[ModelChoice]:
    import httpx2 as httpx  # lazy: heavy, and needed once  # noqa: PLC0415

    from callgate.features.chat.models import local  # lazy: with it  # noqa: PLC0415

    address = local.origin(environ)

    try:
        answer = httpx.get(f"{address}/api/tags", timeout=_OLLAMA_S, trust_env=False).json()
        names = [str(each["name"]) for each in answer["models"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []
    return [ModelChoice(f"ollama/{name}", f"from the Ollama at {address}") for name in names]


def choose_model(home: Home, name: str) -> None:
    """Write `model = "NAME"` before the first table. Raises `SettingsError` if the result is
    invalid.
    """
    from callgate.config.settings_file import editing  # lazy: tomlkit is slow to import  # noqa: PLC0415

    with editing(home) as settings:
        settings.put_first("model", name)
    say(f"{os.path.realpath(home.settings)} now has model {name}.")


_ANTHROPIC = "anthropic/claude-sonnet-4-5"
_NO_FILE = "model.gguf"


def no_model(command: Sequence[str]) -> CliError:
    """Return the error for a command. `command` is the command line without the program's name."""
    file = next(iter(model_files(os.getcwd())), _NO_FILE)
    options = [
        ("an API key", "callgate keys set anthropic", with_model(command, _ANTHROPIC)),
        ("Ollama", "ollama pull llama3", with_model(command, "ollama/llama3")),
        ("a GGUF file", "pip install 'callgate[local]'", with_model(command, f"local/{file}")),
        ("a script, without a model", with_model(command, "scripted")),
    ]
    lines = [
        f"  {name}:\n" + "\n".join(f"    {each}" for each in commands)
        for name, *commands in options
    ]
    return CliError(
        "no model is configured",
        hint='use one of these; model = "NAME" in settings.toml makes it the default:\n'
        + "\n".join(lines),
        reason="model_request",
    )


def with_model(command: Sequence[str], model: str) -> str:
    """Return the command line with a model, quoted for a shell."""
    name, *words = command
    return shlex.join(["callgate", name, "--model", model, *words])


def check_models(patient: Patient) -> Finding:
    """Check that `callgate chat` has a model and the key that it needs."""
    try:
        settings = load_user(patient.home)[0]
    except SettingsError:
        return Finding(Level.NOTE, "unknown until the settings are valid")
    chat = settings.of(ChatSettings)
    if chat.model is None:
        return good("none configured; tools work without one")
    try:
        name, table = find_table(chat.model, chat.models, os.environ)
        source = make.key_source(name, table, patient.home, os.environ)
    except (ModelError, SecretsError) as error:
        return Finding(Level.FAILED, str(error), f"correct {patient.home.settings}")
    if source is None and table.kind in USUAL_VARIABLES and table.base_url is None:
        fix = f"callgate keys set {key_name(name, table)}"
        return Finding(Level.FAILED, f"{name} has no key", fix)
    return good(name if source is None else f"{name}, key from {source}")


_LONGEST = 64 * 1024
_PROVIDERS: Mapping[str, ModelTable] = {
    "anthropic": ModelTable(kind="anthropic"),
    "openai": ModelTable(kind="openai"),
}


def set(options: Namespace) -> int:
    name = _named(options, "set")
    refuse_within_a_call("callgate keys set")
    with explained():
        make.check_name(name)
        make.store_key(Home.from_environment(), name, Key(typed(name)))
    if options.json:
        print_json({"name": name, "stored": True})
    else:
        say(f"The key of {name} is stored.")
    return OK


def delete(options: Namespace) -> int:
    name = _named(options, "delete")
    refuse_within_a_call("callgate keys delete")
    with explained():
        deleted = make.delete_key(Home.from_environment(), name)
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
        print_field("", "No model needs a key, and none is stored.")
        say("hint: this command lists models and providers, with the source of each key.")
        say("hint: callgate keys set anthropic stores a key; ANTHROPIC_API_KEY works, too.")
    listed = [(row["name"], row["source"] or "no key") for row in rows]
    print_rows((Column("name"), Column("key")), listed)
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
        print_field("no key: ", "secrets are in plain files that only you can read")
    else:
        print_field(f"key {key_id or '-'}  ", source)
    if problem is not None:
        say(f"callgate: {visible(problem)}")
    headings = (Column("name"), Column("state", least=10), Column("key"))
    print_rows(headings, [(row.name, row.state, row.key_id or "") for row in rows])
    for row in rows:
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
        raise CliError("the new key is missing: callgate keys rotate --new-key-env NAME")
    if not name.startswith(SECRETS_PREFIX):
        raise CliError(
            f"--new-key-env: the name of the variable must start with {SECRETS_PREFIX}",
            hint="Processes that callgate starts never receive such variables.",
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
        say(f'Next: configure the new key, for example with [secrets] key_env = "{name}".')
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
            print(f"{visible(name)}  unchanged")
        for problem in failed.values():
            say(f"callgate: {visible(problem)}")
        if not (written or unchanged or failed):
            print("No secrets are stored.")
    return FAILED if failed else OK


def _key_id(secrets: Secrets) -> tuple[str | None, str | None]:
    """Return the id of the key, or the problem with it."""
    try:
        key = secrets.keys().current
    except SecretsError as error:
        return None, str(error)
    return None if key is None else key.id, None


def _secrets_source(table: SecretsTable) -> str | None:
    """Return the source of the key, in the format of `keys list`."""
    if table.key_env and os.environ.get(table.key_env, "").strip():
        return f"environment {table.key_env}"
    if table.key_command:
        return f"command {shlex.split(table.key_command)[0]}"
    return None if table.key_env is None else f"environment {table.key_env}"


def _no_words(options: Namespace, command: str) -> None:
    if options.words:
        raise CliError(f"keys {command} takes no arguments")


def _rows(home: Home) -> Sequence[dict[str, Any]]:
    """Return the rows of `keys list`: models of the settings, then other stored keys, then
    providers with their environment variable set.
    """
    tables = load_user(home)[0].of(ChatSettings).models
    named = {name: table for name, table in tables.items() if table.kind in USUAL_VARIABLES}
    rows = {name: make.key_source(name, named[name], home, os.environ) for name in sorted(named)}
    for name in sorted(make.stored_keys(home)):
        rows.setdefault(name, f"stored {name}")
    for provider, table in _PROVIDERS.items():
        source = make.key_source(f"{provider}/", table, home, os.environ)
        if source is not None:
            rows.setdefault(provider, source)
    return [{"name": name, "source": source} for name, source in rows.items()]


def _named(options: Namespace, command: str) -> str:
    if len(options.words) != 1:
        raise CliError(
            f"keys {command} takes one name; the key itself is typed or read from stdin",
            hint=f"See callgate keys {command} --help.",
        )
    return str(options.words[0])


def typed(name: str) -> str:
    """Read the key of a model from the keyboard or stdin."""
    if is_terminal(sys.stdin):
        return getpass.getpass(f"Key of {name} (hidden): ")
    return sys.stdin.buffer.read(_LONGEST).decode("utf-8", "replace")


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of keys and settings to `CliError`."""
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
