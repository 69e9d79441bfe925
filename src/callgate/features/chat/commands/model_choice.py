"""The default model: found on this machine, chosen at a terminal, written to the settings.

The error of a command without a model lists the options, and `callgate doctor` checks the choice.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callgate.cli.errors import CliError
from callgate.cli.findings import Finding, Level, Patient, good
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.sealing import SecretsError
from callgate.core.models import ModelError
from callgate.features.chat.models import make
from callgate.features.chat.models.make import USUAL_VARIABLES, find_table, key_name
from callgate.features.chat.settings import ChatSettings

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


def found_models(environ: Mapping[str, str], directory: str) -> list[ModelChoice]:
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


def model_files(directory: str) -> list[str]:
    """Return the GGUF files in a directory and in the usual directories."""
    directories = (directory, *map(os.path.expanduser, _MODEL_PLACES))
    return [path for each in directories for path in _model_files(each)]


def _model_files(directory: str) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(".gguf")]


def _ollama_models(environ: Mapping[str, str]) -> list[ModelChoice]:
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
