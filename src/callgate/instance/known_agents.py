"""What agents of others need around them: where their model is, where they keep their state.

A list of what is known of each, so that it works in the sandbox without settings. What it names is
shown to that agent alone; settings and options add to it. Variables that name another address of
the model (`ANTHROPIC_BASE_URL`) add that host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec


class KnownAgent(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...] = ()
    """Its model, and where it signs in."""
    state: tuple[str, ...] = ()
    """Below the home directory: settings, sign-in, sessions. The agent reads and writes it."""
    env: tuple[str, ...] = ()
    """Variables that are passed on: keys of its model, and where it keeps what."""
    addresses: tuple[str, ...] = ()
    """Variables that hold the address of another server for its model."""


_ANTHROPIC = KnownAgent(
    hosts=("api.anthropic.com", "claude.ai", "console.anthropic.com", "platform.claude.com"),
    state=(".claude", ".claude.json", ".config/claude"),
    env=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_MODEL",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_EXECUTABLE",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_TELEMETRY",
        "DISABLE_AUTOUPDATER",
    ),
    addresses=("ANTHROPIC_BASE_URL",),
)
_CODEX = KnownAgent(
    hosts=("api.openai.com", "chatgpt.com", "auth.openai.com"),
    state=(".codex",),
    env=("OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME"),
    addresses=("OPENAI_BASE_URL",),
)
_GEMINI = KnownAgent(
    hosts=(
        "generativelanguage.googleapis.com",
        "cloudcode-pa.googleapis.com",
        "oauth2.googleapis.com",
        "accounts.google.com",
        "aiplatform.googleapis.com",
    ),
    state=(".gemini",),
    env=(
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GENAI_USE_VERTEXAI",
        "GEMINI_MODEL",
        "GEMINI_CLI_TRUST_WORKSPACE",
        "GOOGLE_GEMINI_BASE_URL",
    ),
    addresses=("GOOGLE_GEMINI_BASE_URL",),
)
_QWEN = KnownAgent(
    hosts=("chat.qwen.ai", "portal.qwen.ai", "dashscope.aliyuncs.com", "api.openai.com"),
    state=(".qwen",),
    env=("OPENAI_API_KEY", "OPENAI_MODEL", "DASHSCOPE_API_KEY"),
    addresses=("OPENAI_BASE_URL",),
)
_VIBE = KnownAgent(
    hosts=("api.mistral.ai",),
    state=(".vibe",),
    env=("MISTRAL_API_KEY", "VIBE_HOME"),
    addresses=("MISTRAL_BASE_URL",),
)
_KIMI = KnownAgent(
    hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com", "auth.kimi.com"),
    state=(".kimi", ".kimi-code"),
    env=("KIMI_API_KEY", "KIMI_CODE_HOME", "MOONSHOT_API_KEY"),
    addresses=("KIMI_BASE_URL",),
)
_OPENCODE = KnownAgent(
    hosts=("api.anthropic.com", "api.openai.com", "opencode.ai", "models.dev"),
    state=(
        ".config/opencode",
        ".local/share/opencode",
        ".local/state/opencode",
        ".cache/opencode",
    ),
    env=(
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    ),
)
_GOOSE = KnownAgent(
    hosts=("api.openai.com", "api.anthropic.com"),
    state=(".config/goose", ".local/share/goose", ".local/state/goose"),
    env=("GOOSE_PROVIDER", "GOOSE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    addresses=("OPENAI_HOST", "ANTHROPIC_HOST"),
)

KNOWN: Mapping[str, KnownAgent] = {
    "claude": _ANTHROPIC,
    "claude-agent-acp": _ANTHROPIC,
    "claude-code-acp": _ANTHROPIC,
    "codex": _CODEX,
    "codex-acp": _CODEX,
    "gemini": _GEMINI,
    "gemini-cli": _GEMINI,
    "qwen": _QWEN,
    "qwen-code": _QWEN,
    "vibe": _VIBE,
    "vibe-acp": _VIBE,
    "mistral-vibe": _VIBE,
    "kimi": _KIMI,
    "kimi-code": _KIMI,
    "kimi-cli": _KIMI,
    "opencode": _OPENCODE,
    "opencode-ai": _OPENCODE,
    "goose": _GOOSE,
}
"""By the name of its program or package."""


def find(argv: Sequence[str]) -> tuple[str, KnownAgent]:
    """What a command starts, and what is known of it. Also where another program starts it, as
    `npx` and `node` do; an agent that is not known has its program's name and needs nothing."""
    for word in argv:
        for name in (_name(word), _package(word)):
            if name in KNOWN:
                return name, KNOWN[name]
    return _name(argv[0]), KnownAgent()


def model_hosts(agent: KnownAgent, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of its model: those that its variables name, and the usual ones."""
    named = (_host(environ[name]) for name in agent.addresses if environ.get(name))
    return (*filter(None, named), *agent.hosts)


def _name(word: str) -> str:
    base = os.path.basename(word.rstrip("/")).partition("@")[0]
    if not base and "@" in word:  # `@scope/name@1.2`, whose last part is not empty, or `@latest`
        base = word.rpartition("@")[0].rpartition("/")[2]
    for ending in (".js", ".mjs", ".cjs", ".py"):
        base = base.removesuffix(ending)
    return base.lower()


def _package(word: str) -> str:
    """The npm package that a file is one of; "" for any other word."""
    _, found, path = word.rpartition("/node_modules/")
    parts = path.split("/")
    return parts[1] if found and path.startswith("@") and len(parts) > 1 else parts[0] * bool(found)


def _host(address: str) -> str | None:
    try:
        url = urlsplit(address if "://" in address else f"https://{address}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    prefix = "private:" if host == "localhost" else ""
    return f"{prefix}{shown}" if port is None else f"{prefix}{shown}:{port}"
