"""How agents are started without their own model: a home of their own, and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from callgate.config.agents.jsonc_edits import parse, value_of
from callgate.config.agents.settings_files import AGENTS

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "CALLGATE_HOME")
KEY = "scripted"


class Launch(NamedTuple):
    argv: list[str]
    env: dict[str, str]


def launch(
    agent: str, program: str, settings: str, home: str, url: str, *, prompt: str = "go"
) -> Launch:
    """`settings` is the text of the agent's settings with its hooks, `home` an empty directory
    that becomes the agent's. Raises `KeyError` for an agent that cannot be started so."""
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {"HOME": home, "XDG_CONFIG_HOME": os.path.join(home, ".config")}
    return _LAUNCHES[agent](program, settings, home, url, prompt, env)


def can_launch(agent: str) -> bool:
    return agent in _LAUNCHES


def run(launched: Launch, cwd: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Raises `OSError` or a `SubprocessError`."""
    return subprocess.run(
        launched.argv, env=launched.env, cwd=cwd, timeout=limit_s, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
    )  # fmt: skip


def _write(home: str, path: str, text: str) -> None:
    path = os.path.join(home, path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _merged(text: str, more: Mapping[str, Any]) -> str:
    found = value_of(text, parse(text)) if text.strip() else {}
    return json.dumps({**found, **more})


def _claude(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    _write(home, ".claude/settings.json", settings)
    env |= {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",
    }
    argv = [program, "-p", prompt, "--model", "claude-sonnet-4-5", "--dangerously-skip-permissions"]
    return Launch(argv, env)


def _codex(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    _write(home, ".codex/hooks.json", settings)
    _write(
        home,
        ".codex/config.toml",
        f'model = "scripted"\nmodel_provider = "scripted"\n'
        f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{url}/v1"\n'
        'env_key = "SCRIPTED_KEY"\nwire_api = "responses"\nrequest_max_retries = 0\n'
        "stream_max_retries = 0\n[analytics]\nenabled = false\n",
    )
    env |= {"CODEX_HOME": os.path.join(home, ".codex"), "SCRIPTED_KEY": KEY}
    # Nothing but the hook stands before the call; whether it is trusted, `status` says.
    argv = [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Launch([*argv, "--dangerously-bypass-hook-trust", prompt], env)


_QUIET = {
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def _gemini(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    auth = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    _write(home, ".gemini/settings.json", _merged(settings, {**_QUIET, "security": auth}))
    env |= {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    return Launch([program, "-m", "gemini-2.5-flash", "--yolo", "-p", prompt], env)


def _qwen(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    auth = {"auth": {"selectedType": "openai"}}
    _write(home, ".qwen/settings.json", _merged(settings, {**_QUIET, "security": auth}))
    env |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "scripted"}
    return Launch([program, "--auth-type", "openai", "--yolo", "-p", prompt], env)


def _kimi(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    _write(
        home,
        ".kimi-code/config.toml",
        f'default_model = "scripted"\ntelemetry = false\n[providers.scripted]\ntype = "openai"\n'
        f'base_url = "{url}/v1"\napi_key = "{KEY}"\n[models.scripted]\nprovider = "scripted"\n'
        'model = "scripted"\nmax_context_size = 100000\ncapabilities = ["tool_use"]\n' + settings,
    )
    env |= {"KIMI_CODE_HOME": os.path.join(home, ".kimi-code")}
    return Launch([program, "-p", prompt], env)


def _opencode(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    _write(home, ".config/opencode/plugin/callgate.js", settings)
    model = {"name": KEY, "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    package = "@ai-sdk/openai-compatible"
    provider = {"npm": package, "name": KEY, "options": options, "models": {KEY: model}}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"{KEY}/{KEY}",
        "small_model": f"{KEY}/{KEY}",
        "permission": {"bash": "allow", "edit": "allow"},
        "provider": {KEY: provider},
    }
    for name in ("DATA", "CACHE", "STATE"):
        env[f"XDG_{name}_HOME"] = os.path.join(home, name.lower())
    for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"):
        env[f"OPENCODE_DISABLE_{name}"] = "1"
    env["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)
    return Launch([program, "run", prompt], env)


def _vibe(
    program: str, settings: str, home: str, url: str, prompt: str, env: dict[str, str]
) -> Launch:
    _write(home, ".vibe/hooks.toml", settings)
    _write(
        home,
        ".vibe/config.toml",
        f'active_model = "{KEY}"\nenable_auto_update = false\nenable_update_checks = false\n'
        f'enable_telemetry = false\n[[providers]]\nname = "{KEY}"\napi_base = "{url}/v1"\n'
        'api_key_env_var = "SCRIPTED_KEY"\napi_style = "openai"\nbackend = "generic"\n'
        f'[[models]]\nname = "{KEY}"\nprovider = "{KEY}"\nalias = "{KEY}"\n',
    )
    env |= {"VIBE_HOME": os.path.join(home, ".vibe"), "SCRIPTED_KEY": KEY, "MISTRAL_API_KEY": KEY}
    return Launch([program, "-p", prompt], env)


_LAUNCHES: Mapping[str, Callable[..., Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "qwen": _qwen,
    "kimi": _kimi,
    "opencode": _opencode,
    "vibe": _vibe,
}

SHELL: Mapping[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "claude": lambda command: ("Bash", {"command": command, "description": "try"}),
    "codex": lambda command: ("exec_command", {"cmd": command}),
    "gemini": lambda command: ("run_shell_command", {"command": command, "description": "try"}),
    "qwen": lambda command: (
        "run_shell_command",
        {"command": command, "description": "try", "is_background": False},
    ),
    "kimi": lambda command: ("Bash", {"command": command}),
    "opencode": lambda command: ("bash", {"command": command, "description": "try"}),
    "vibe": lambda command: ("bash", {"command": command}),
}
"""The call by which each agent's model asks for a command."""

assert set(_LAUNCHES) <= set(AGENTS)
