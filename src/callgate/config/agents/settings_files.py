"""Where coding agents keep the settings that name their hooks, and what we keep for each of them.

HOME/hooks/AGENT/hook     what the agent runs before and after each call
HOME/hooks/AGENT/token    lets it submit events of that agent, and nothing else
HOME/hooks/sockets/PID.sock   where an instance takes them
HOME/hooks/proxies/PID/PID.sock   where `callgate acp-proxy` takes those of its own agent
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

DIRECTORY = "hooks"
SOCKETS = "sockets"
PROXIES = "proxies"


class AgentSettings(msgspec.Struct, frozen=True):
    label: str
    """As people know it."""
    program: str
    user: str
    """The file that an installation edits; `~` is the user's home."""
    project: str | None
    """The same, relative to a workspace; None: the agent has none there."""
    others: tuple[str, ...] = ()
    """Further files by which its hooks could be turned off, of either place, and directories of
    such files."""
    home_variable: str | None = None
    """Names the directory that the agent uses in place of the first part of `user`."""


AGENTS: Mapping[str, AgentSettings] = {
    "claude": AgentSettings(
        "Claude Code", "claude", "~/.claude/settings.json", ".claude/settings.local.json",
        (".claude/settings.json", "~/.claude/settings.local.json"), "CLAUDE_CONFIG_DIR",
    ),
    "codex": AgentSettings(
        "Codex", "codex", "~/.codex/hooks.json", None,
        ("~/.codex/config.toml", ".codex/config.toml", ".codex/hooks.json"), "CODEX_HOME",
    ),
    "gemini": AgentSettings(
        "Gemini CLI", "gemini", "~/.gemini/settings.json", ".gemini/settings.json"
    ),
    "cursor": AgentSettings("Cursor", "cursor-agent", "~/.cursor/hooks.json", ".cursor/hooks.json"),
    "opencode": AgentSettings(
        "opencode", "opencode", "~/.config/opencode/plugin/callgate.js",
        ".opencode/plugin/callgate.js",
        ("~/.config/opencode/opencode.json", "opencode.json", "~/.config/opencode/opencode.jsonc",
         "opencode.jsonc", "~/.config/opencode/plugin", "~/.config/opencode/plugins",
         ".opencode/plugin", ".opencode/plugins", ".opencode/opencode.json",
         ".opencode/opencode.jsonc"),
    ),
    "qwen": AgentSettings("Qwen Code", "qwen", "~/.qwen/settings.json", ".qwen/settings.json"),
    "vibe": AgentSettings(
        "Mistral Vibe", "vibe", "~/.vibe/hooks.toml", None, ("~/.vibe/config.toml",), "VIBE_HOME"
    ),
    "kimi": AgentSettings(
        "Kimi Code", "kimi", "~/.kimi-code/config.toml", None, (), "KIMI_CODE_HOME"
    ),
}  # fmt: skip


def user_file(agent: str, environ: Mapping[str, str] = os.environ) -> str:
    """The file of the user's own settings that an installation edits."""
    settings = AGENTS[agent]
    given = environ.get(settings.home_variable or "")
    if given:
        return os.path.join(given, settings.user.rpartition("/")[2])
    return os.path.expanduser(settings.user)


def settings_files(
    agent: str, workspace: str, environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Every file by which the hooks of an agent could be changed, absolute; a directory stands for
    all in it."""
    settings = AGENTS[agent]
    given = environ.get(settings.home_variable or "")
    yield user_file(agent, environ)
    for path in (settings.project, *settings.others):
        if path is not None:
            yield os.path.join(workspace, os.path.expanduser(path))
            if given and path.startswith("~/"):
                yield os.path.join(given, os.path.basename(path))


def hook_directory(home: str, agent: str) -> str:
    return os.path.join(home, DIRECTORY, agent)


def sockets_directory(home: str) -> str:
    return os.path.join(home, DIRECTORY, SOCKETS)


def hook_name(home: str, agent: str) -> str:
    """Name of our hook in the agent's settings. A repository's settings can turn a hook off by
    its name, so the name follows from the token, which no repository knows."""
    import hashlib  # lazy: most who load this need no name  # noqa: PLC0415

    try:
        with open(token_file(home, agent), "rb") as file:
            return f"callgate-{hashlib.sha256(file.read(256)).hexdigest()[:16]}"
    except OSError:
        return "callgate"


def proxies_directory(home: str) -> str:
    return os.path.join(home, DIRECTORY, PROXIES)


def token_file(home: str, agent: str) -> str:
    return os.path.join(hook_directory(home, agent), "token")
