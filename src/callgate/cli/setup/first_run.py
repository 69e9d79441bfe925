"""The first hour at a terminal: what is here already, what fits it, and one safe call.

    init -> models, editors, agents that are here -> a choice of a model -> list_dir -> what next

Only names are looked at: no key is read out, nothing is started, and of the network only the
Ollama of this machine is asked.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import NamedTuple

from callgate.cli.setup.model_choice import choose_model
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user

_KEYS = {
    "ANTHROPIC_API_KEY": "anthropic/claude-sonnet-4-5",
    "OPENAI_API_KEY": "responses/gpt-5",
}
_OLLAMA = "http://127.0.0.1:11434"
_OLLAMA_S = 1.0
_MODEL_PLACES = ("~/models", "~/Downloads")
_EDITORS = {"zed": "zed", "nvim": "neovim", "code": "vscode", "emacs": "emacs", "idea": "jetbrains"}
_AGENTS = ("claude", "codex", "gemini", "opencode", "goose")
_CONFIGURATIONS = (
    "~/.cursor/mcp.json",
    "~/.config/Claude/claude_desktop_config.json",
    "~/.config/Code/User/mcp.json",
    "~/.config/zed/settings.json",
)
_MOST = 9
"""Models that are offered."""


class ModelChoice(NamedTuple):
    name: str
    """As the settings name it."""
    why: str
    table: Mapping[str, str] | None = None
    """Of the settings, for a model that needs one."""


def guide(home: Home) -> None:
    """Say what fits what is here, and show one call."""
    _offer_models(home)
    for line in _suggestions():
        print(line)
    print("\nOne call, which changes nothing ($ callgate call list_dir):")
    sys.stdout.flush()
    from callgate.cli.commands.call import call  # lazy: heavy, and only at the end  # noqa: PLC0415
    from callgate.cli.options import read_call  # lazy: with it  # noqa: PLC0415

    call(read_call(["list_dir"]))
    print("It is on record: callgate audit tail. callgate help lists the rest.")


def found_models(environ: Mapping[str, str], directory: str) -> list[ModelChoice]:
    """Models that could be used now: by a key, by an Ollama, from a file."""
    by_key = [
        ModelChoice(name, f"{variable} is set")
        for variable, name in _KEYS.items()
        if environ.get(variable)
    ]
    directories = (directory, *map(os.path.expanduser, _MODEL_PLACES))
    from_files = [
        ModelChoice(f"local/{path}", "a file; pip install 'callgate[local]' runs it")
        for model_directory in directories
        for path in _model_files(model_directory)
    ]
    return [*by_key, *_ollama_models(environ), *from_files][:_MOST]


def _model_files(directory: str) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(".gguf")]


def _ollama_models(environ: Mapping[str, str]) -> list[ModelChoice]:
    address = environ.get("OLLAMA_HOST") or _OLLAMA
    if "://" not in address:
        address = f"http://{address}"
    import httpx2 as httpx  # lazy: heavy, and needed once  # noqa: PLC0415

    try:
        answer = httpx.get(f"{address}/api/tags", timeout=_OLLAMA_S, trust_env=False).json()
        names = [str(each["name"]) for each in answer["models"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []
    return [
        ModelChoice(
            "ollama",
            f"{name}, from the Ollama at {address}",
            {"kind": "openai", "base_url": f"{address}/v1", "model": name},
        )
        for name in names
    ]


def _offer_models(home: Home) -> None:
    try:
        if load_user(home)[0].model is not None:
            return
    except SettingsError:
        return  # doctor tells of it
    choices = found_models(os.environ, os.getcwd())
    if not choices:
        print("No model was found: callgate keys set anthropic stores a key, and then")
        print("callgate chat --model anthropic/claude-sonnet-4-5 talks. Tools work without one.")
        return
    print("Models that are here:")
    for number, choice in enumerate(choices, 1):
        print(visible(f"  {number}  {choice.name}: {choice.why}"))
    print("Which one shall callgate chat use? Its number, or Enter for none: ", end="", flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isdecimal() and 1 <= int(answer) <= len(choices):
        chosen = choices[int(answer) - 1]
        choose_model(home, chosen.name, chosen.table)


def _suggestions() -> list[str]:
    """A line for each program that is here and can work with callgate."""
    lines = [
        f"{program} is here: callgate acp --print-config {editor} makes callgate its agent"
        for program, editor in _EDITORS.items()
        if shutil.which(program)
    ]
    lines += [
        f"{agent} is here: callgate mcp serve --print-config gives it these tools, guarded"
        for agent in _AGENTS
        if shutil.which(agent)
    ]
    lines += [
        f"{path} is here: callgate mcp import {path} puts its servers behind the gate"
        for path in _CONFIGURATIONS
        if os.path.isfile(os.path.expanduser(path))
    ]
    return lines
