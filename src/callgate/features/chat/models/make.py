"""Makes a model from its name. An adapter is loaded when a model of its kind is made.

A name is the name of a table `[models.NAME]`, or it contains kind and model and needs no settings:
`anthropic/MODEL`, `openai/MODEL`, `responses/MODEL`, `ollama/MODEL`, `scripted/PATH`,
`local/PATH`. `scripted` alone plays the built-in script.

Sources of the model's key:

    key_env -> key_command -> `callgate keys set` -> the provider's environment variable

The first source with a key counts. The provider's variable is only for the provider's own server:
it is not sent to another `base_url`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, cast, get_args

import msgspec

from callgate.config.home import Home
from callgate.config.sealing import SecretsError
from callgate.config.secret_opening import open_secrets
from callgate.core.models import Key, Model, ModelError, ModelErrorKind
from callgate.dispatch.foreign_code import our_own
from callgate.features.chat.settings import Kind, ModelTable
from callgate.redaction.texts import redact

USUAL_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "responses": "OPENAI_API_KEY",
}
"""The environment variable of a provider's key, by kind."""

_BASE_URLS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "responses": "OPENAI_BASE_URL",
}
_FILES = ("scripted", "local")
SCRIPTED: Literal["scripted"] = "scripted"
"""The name of the built-in script."""


def find_table(
    name: str | None, tables: Mapping[str, ModelTable], environ: Mapping[str, str]
) -> tuple[str, ModelTable]:
    """Return the name of a model and its table. Raises `ModelError` if there is none."""
    if not name:
        raise ModelError(
            ModelErrorKind.REQUEST,
            'No model is configured. Set model = "NAME" in settings.toml, or give a name such as '
            "ollama/llama3.",
        )
    if name in tables:
        return name, _with_address(tables[name], environ)
    if name == SCRIPTED:
        return name, ModelTable(kind=SCRIPTED)
    kind, _, model = name.partition("/")
    if kind not in get_args(Kind) or not model:
        known = ", ".join(sorted(tables)) or "none"
        raise ModelError(
            ModelErrorKind.REQUEST, f"There is no model {redact(name)!r} in the settings ({known})."
        )
    if kind in _FILES:
        return name, ModelTable(kind=cast(Kind, kind), path=model)
    if kind == "ollama":
        return name, _with_address(ModelTable(kind="ollama", model=model), environ)
    base_url = environ.get(_BASE_URLS[kind]) or None
    if base_url is not None and kind == "anthropic" and not base_url.rstrip("/").endswith("/v1"):
        base_url = base_url.rstrip("/") + "/v1"  # Anthropic's variable has no version in it
    return name, ModelTable(kind=cast(Kind, kind), model=model, base_url=base_url)


def _with_address(table: ModelTable, environ: Mapping[str, str]) -> ModelTable:
    """Return the table with the address of Ollama, unless it has an address."""
    if table.kind != "ollama" or table.base_url is not None:
        return table
    from callgate.features.chat.models import local  # lazy: this kind alone  # noqa: PLC0415

    return msgspec.structs.replace(table, base_url=f"{local.origin(environ)}/v1")


def make_model(name: str, table: ModelTable, key: Key | None = None) -> Model:
    """Return a model that is ready for requests. Raises `ModelError` if settings are missing."""
    if table.kind in _FILES:
        if not table.path and name != SCRIPTED:
            raise _lacks(name, "path")
    elif not table.model:
        raise _lacks(name, "model")
    elif table.kind in USUAL_VARIABLES and key is None and table.base_url is None:
        raise ModelError(
            ModelErrorKind.KEY,
            f"There is no key for {name}: set {USUAL_VARIABLES[table.kind]},"
            f" or run: callgate keys set {key_name(name, table)}",
        )
    match table.kind:
        case "anthropic":
            from callgate.features.chat.models.anthropic import (  # lazy: this kind alone  # noqa: PLC0415
                AnthropicModel,
            )

            return AnthropicModel(name, table, key)
        case "openai":
            from callgate.features.chat.models.openai_chat import (  # lazy: this kind alone  # noqa: PLC0415
                OpenAIChatModel,
            )

            return OpenAIChatModel(name, table, key)
        case "responses":
            from callgate.features.chat.models import openai_responses  # lazy: this kind alone  # noqa: PLC0415

            return openai_responses.OpenAIResponsesModel(name, table, key)
        case "ollama":
            from callgate.features.chat.models.local import OllamaModel  # lazy: this kind alone  # noqa: PLC0415

            return OllamaModel(name, table)
        case "scripted":
            from callgate.features.chat.models.scripted import (  # lazy: this kind alone  # noqa: PLC0415
                BUILT_IN,
                ScriptedModel,
            )

            return ScriptedModel(name, table, None if table.path else BUILT_IN)
        case "local":
            from callgate.features.chat.models.local import LocalModel  # lazy: this kind alone  # noqa: PLC0415

            return LocalModel(name, table)


def key_name(name: str, table: ModelTable) -> str:
    """Return the name under which the key of a model is stored."""
    if "/" not in name:
        return name
    return "openai" if table.kind == "responses" else table.kind


def _lacks(name: str, field: str) -> ModelError:
    return ModelError(ModelErrorKind.REQUEST, f"The settings of model {name!r} need {field}.")


_FILE = "keys.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


def find_key(name: str, table: ModelTable, home: Home, environ: Mapping[str, str]) -> Key | None:
    """Return the key of a model, or None. May run `key_command`.

    Raises `ModelError` if the key exists and cannot be used.
    """
    source = key_source(name, table, home, environ)
    if source is None:
        return None
    kind, _, where = source.partition(" ")
    if kind == "command":
        return _key(_printed(table.key_command or ()), "the output of key_command")
    if kind == "stored":
        return stored_keys(home)[where]
    return _key(environ[where], f"the variable {where}")


def key_source(name: str, table: ModelTable, home: Home, environ: Mapping[str, str]) -> str | None:
    """Return `environment NAME`, `command PROGRAM` or `stored NAME`. Runs nothing."""
    if table.kind not in USUAL_VARIABLES:
        return None  # this kind needs no key
    if table.key_env and environ.get(table.key_env, "").strip():
        return f"environment {table.key_env}"
    if table.key_command:
        return f"command {table.key_command[0]}"
    stored = key_name(name, table)
    # A provider's key is not sent to another server whose table has the provider's name.
    is_elsewhere = stored in USUAL_VARIABLES and "/" not in name and table.base_url is not None
    if not is_elsewhere and stored in stored_keys(home):
        return f"stored {stored}"
    usual = USUAL_VARIABLES[table.kind]
    named_at_once = "/" in name  # then the address and the key both come from the environment
    if (named_at_once or table.base_url is None) and environ.get(usual, "").strip():
        return f"environment {usual}"
    return None


def find_service_key(
    name: str, home: Home, environ: Mapping[str, str], *, key_env: str | None, usual: str | None
) -> Key | None:
    """Return the key of a service other than a model, such as web search. Raises `ModelError` if
    the key is invalid.
    """
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
        raise _problem(f"{where} is not a key: {error}") from None


def _problem(text: str) -> ModelError:
    return ModelError(ModelErrorKind.KEY, f"{text[0].upper()}{text[1:]}.")


def _printed(command: Sequence[str]) -> str:
    from callgate.config.secrets import (  # lazy: few have one  # noqa: PLC0415
        KeyCommandError,
        run_key_command,
    )

    try:
        return run_key_command(command)
    except KeyCommandError as error:
        raise _problem(str(error)) from None


# The file is one JSON object: names to keys.


def check_name(name: str) -> str:
    """Return the name. Raises `ValueError` if it is invalid for a model or provider."""
    if not _NAME.match(name) or redact(name) != name:
        shown = redact(name)  # it may be the key itself, typed in the wrong place
        raise ValueError(
            f"{shown!r} is not a valid name: use at most 64 of a-z, 0-9, '.', '_' and '-'"
        )
    return name


def stored_keys(home: Home) -> dict[str, Key]:
    """Return the stored keys. Raises `ModelError` if other users have access to the file, or it
    cannot be decrypted.
    """
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
    """Delete a stored key. False if there was none."""
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
        raise _problem(f"{path} is not a file of callgate keys set") from None


def _encoded(keys: Mapping[str, Key]) -> str:
    texts = {name: keys[name].reveal() for name in sorted(keys)}
    return msgspec.json.format(msgspec.json.encode(texts)).decode() + "\n"


@contextmanager
def _explained() -> Iterator[None]:
    """Convert errors of secrets to `ModelError`. File accesses in it are not attributed
    to a tool.
    """
    try:
        with our_own():
            yield
    except SecretsError as error:
        raise _problem(str(error)) from None


def _refuse_wide_home(home: Home) -> None:
    status = os.stat(home.path)
    if not stat.S_ISDIR(status.st_mode):
        raise _problem(f"{home.path} is not a directory")
    if status.st_uid != os.geteuid():
        raise _problem(f"{home.path} belongs to another user")
    if status.st_mode & 0o077:
        raise _problem(f"other users can open {home.path}; run: chmod 700 {home.path}")
