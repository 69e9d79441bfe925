"""What agents of others need around them: where their model is, where they keep their state.

A list of what is known of each, so that it works in the sandbox without settings. What it names is
shown to that agent alone; settings and options add to it. Variables that name another address of
the model (`ANTHROPIC_BASE_URL`) add that host.

Of an agent's directories in the user's home, its sessions, logs and logins outlive a run, and
nothing else does (`agent_homes`): settings, hooks, plugins, skills, tools, programs and shell
snapshots are read-only, or exist for the run alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec


class Login(msgspec.Struct, frozen=True):
    """A file with credentials, of which only known values are saved after a run."""

    file: str
    """Relative to the agent's directory. `*` in its last part: several files."""
    values: tuple[str, ...] = ()
    """JSON values that may change, as keys with dots between them; `*` is any key."""
    types: tuple[str, ...] = ()
    """Where each entry of the file has a `type`: the types of entries that may change."""
    is_encrypted: bool = False
    """The file is not JSON but cipher text in hexadecimal, and is saved as a whole."""
    outside: str = ""
    """Where the file is in the user's home, if no variable names the agent's directory."""


class AgentHome(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of an agent. All names are relative to it.

    A name that no field lists is read-only; if it is missing, the agent may create it for the run.
    """

    path: str = ""
    """Below the user's home; "": only where the variable is set."""
    variable: str = ""
    """Environment variable that names another directory."""
    optional: bool = False
    """Not created where it is missing."""
    below: str = ""
    """The directory's path below the one that the variable names."""
    persistent: tuple[str, ...] = ()
    """Directories of sessions, logs and caches, without anything that is executed."""
    persistent_files: tuple[str, ...] = ()
    """Single files of that kind, which the agent appends to."""
    scripts: tuple[str, ...] = ()
    """Directories of scripts and skills among the sessions, as patterns. Their new files get
    another name after a run, which the agent does not look for."""
    logins: tuple[Login, ...] = ()
    private: tuple[str, ...] = ()
    """Directories that start empty and files that start as copies; their changes are discarded."""
    configuration: tuple[str, ...] = ()
    """Settings and code that must not appear during a run either. `/` at the end: a directory."""
    variables: Mapping[str, str] = {}
    """Variables that a run has unless the user sets them, each with a path in the directory."""


class KnownAgent(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...] = ()
    """Its model, and where it signs in."""
    homes: tuple[AgentHome, ...] = ()
    programs: tuple[str, ...] = ()
    """Directories below the user's home that hold its program and updates. Read-only."""
    env: tuple[str, ...] = ()
    """Variables that are passed on: keys of its model, and where it keeps what."""
    addresses: tuple[str, ...] = ()
    """Variables that hold the address of another server for its model."""


# fmt: off
_OAUTH = ("access_token", "refresh_token", "id_token", "expiry_date", "expires_at", "expires_in",
          "token_type", "scope")

_ANTHROPIC = KnownAgent(
    hosts=("api.anthropic.com", "claude.ai", "console.anthropic.com", "platform.claude.com"),
    homes=(
        AgentHome(
            path=".claude",
            variable="CLAUDE_CONFIG_DIR",
            variables={"CLAUDE_CONFIG_DIR": "."},  # without it, `~/.claude.json` is replaced
            persistent=("projects", "todos", "tasks", "file-history", "plans", "debug",
                   "paste-cache", "image-cache"),
            persistent_files=("history.jsonl",),
            scripts=("projects/*/*/workflows/scripts",),
            logins=(
                Login(
                    ".credentials.json",
                    ("claudeAiOauth.accessToken", "claudeAiOauth.refreshToken",
                     "claudeAiOauth.expiresAt", "claudeAiOauth.refreshTokenExpiresAt",
                     "claudeAiOauth.scopes", "claudeAiOauth.subscriptionType",
                     "claudeAiOauth.rateLimitTier", "organizationUuid",
                     "mcpOAuth.*.accessToken", "mcpOAuth.*.refreshToken", "mcpOAuth.*.expiresAt"),
                ),
                Login(
                    ".claude.json",
                    ("oauthAccount.*", "primaryApiKey", "hasCompletedOnboarding",
                     "lastOnboardingVersion"),
                    outside=".claude.json",
                ),
            ),
            private=("backups", "cache", "downloads", "session-env", "sessions",
                     "shell-snapshots", "statsig", "telemetry"),
            configuration=(
                "settings.json", "settings.local.json", "CLAUDE.md", "agents/", "commands/",
                "hooks/", "output-styles/", "rules/", "skills/", "workflows/", "plugins/",
                "keybindings.json", "local/",
            ),
        ),
        AgentHome(path=".cache/claude-cli-nodejs", optional=True, persistent=(".",)),
    ),
    programs=(".local/share/claude", ".config/claude"),
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
    homes=(
        AgentHome(
            path=".codex",
            variable="CODEX_HOME",
            variables={"CODEX_SQLITE_HOME": "sandbox-state"},  # its databases are beside settings
            persistent=("sessions", "archived_sessions", "log", "sandbox-state"),
            persistent_files=("history.jsonl", "session_index.jsonl"),
            logins=(
                Login(
                    "auth.json",
                    ("auth_mode", "OPENAI_API_KEY", "last_refresh", "tokens.id_token",
                     "tokens.access_token", "tokens.refresh_token", "tokens.account_id"),
                ),
            ),
            private=(".tmp", "tmp", "cache", "shell_snapshots", "models_cache.json",
                     "version.json", "installation_id", ".sandbox_migration"),
            configuration=(
                "config.toml", "hooks.json", ".env", "AGENTS.md", "AGENTS.override.md", "agents/",
                "bin/", "hooks/", "memories/", "packages/", "plugins/", "prompts/", "rules/",
                "themes/", "vendor_imports/",
            ),
        ),
    ),
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
    homes=(
        AgentHome(
            path=".gemini",
            variable="GEMINI_CLI_HOME",
            below=".gemini",
            persistent=("tmp",),
            scripts=("tmp/*/memory/skills", "tmp/*/memory/.inbox"),
            logins=(
                Login("oauth_creds.json", _OAUTH),
                Login("google_accounts.json", ("active", "old")),
                Login("gemini-credentials.json", is_encrypted=True),
            ),
            private=("history", "projects.json", "state.json", "installation_id", "tmp/bin",
                     "tmp/background-processes", "cache"),
            configuration=(
                "settings.json", "trustedFolders.json", ".env", "GEMINI.md", "system.md",
                "keybindings.json", "mcp-server-enablement.json", "agents/", "commands/",
                "extensions/", "policies/", "skills/", "hooks/",
            ),
        ),
    ),
    env=(
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GENAI_USE_VERTEXAI",
        "GEMINI_MODEL",
        "GEMINI_CLI_HOME",
        "GEMINI_CLI_TRUST_WORKSPACE",
        "GOOGLE_GEMINI_BASE_URL",
    ),
    addresses=("GOOGLE_GEMINI_BASE_URL",),
)
_QWEN = KnownAgent(
    hosts=("chat.qwen.ai", "portal.qwen.ai", "dashscope.aliyuncs.com", "api.openai.com"),
    homes=(
        AgentHome(
            path=".qwen",
            variable="QWEN_HOME",
            persistent=("projects", "tmp", "todos", "debug", "logs", "usage"),
            persistent_files=("usage_record.jsonl",),
            scripts=("projects/*/workflows/generated",),
            logins=(Login("oauth_creds.json", _OAUTH),),
            private=("history", "tmp/bin", "installation_id", "extension-store", "cache",
                     "output-language.md"),
            configuration=(
                "settings.json", "trustedFolders.json", ".env", "QWEN.md", "system.md",
                "keybindings.json", "agents/", "bin/", "commands/", "hooks/", "policies/",
                "skills/",
            ),
        ),
    ),
    env=("OPENAI_API_KEY", "OPENAI_MODEL", "DASHSCOPE_API_KEY", "QWEN_HOME"),
    addresses=("OPENAI_BASE_URL",),
)
_VIBE = KnownAgent(
    hosts=("api.mistral.ai",),
    homes=(
        AgentHome(
            path=".vibe",
            variable="VIBE_HOME",
            persistent=("logs",),
            persistent_files=("vibehistory",),
            private=("logs/session/plugins", "cache"),
            configuration=(
                "config.toml", "hooks.toml", ".env", "instructions.md", "trusted_folders.toml",
                "AGENTS.md", "agents/", "bin/", "plugins/", "prompts/", "skills/", "tools/",
            ),
        ),
    ),
    env=("MISTRAL_API_KEY", "VIBE_HOME"),
    addresses=("MISTRAL_BASE_URL",),
)
_KIMI = KnownAgent(
    hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com", "auth.kimi.com"),
    homes=tuple(
        AgentHome(
            path=path,
            optional=path == ".kimi",
            variable=variable,
            persistent=("sessions", "logs", "cache/query-store", "user-history"),
            persistent_files=("session_index.jsonl",),
            logins=(Login("credentials/*.json", _OAUTH),),
            private=("cache", "updates", "workspaces.json", "device_id", "tmp"),
            configuration=(
                "config.toml", "config.json", "kimi.json", "mcp.json", "tui.toml", ".env",
                "AGENTS.md", "agents/", "bin/", "hooks/", "plugins/", "skills/",
            ),
        )
        for path, variable in ((".kimi-code", "KIMI_CODE_HOME"), (".kimi", "KIMI_SHARE_DIR"))
    ),
    env=("KIMI_API_KEY", "KIMI_CODE_HOME", "MOONSHOT_API_KEY"),
    addresses=("KIMI_BASE_URL",),
)
_OPENCODE_SETTINGS = ("opencode.json", "opencode.jsonc", "config.json", "tui.json", "tui.jsonc",
                      "AGENTS.md", "agent/", "agents/", "command/", "commands/", "mode/", "modes/",
                      "plugin/", "plugins/", "skill/", "skills/", "themes/", "tool/",
                      "tools/")
_OPENCODE = KnownAgent(
    hosts=("api.anthropic.com", "api.openai.com", "opencode.ai", "models.dev"),
    homes=(
        AgentHome(path=".config/opencode", variable="XDG_CONFIG_HOME", below="opencode",
                  configuration=_OPENCODE_SETTINGS),
        AgentHome(variable="OPENCODE_CONFIG_DIR", configuration=_OPENCODE_SETTINGS),
        AgentHome(
            path=".local/share/opencode",
            variable="XDG_DATA_HOME",
            below="opencode",
            variables={"OPENCODE_DB": "sandbox-state/opencode.db"},  # it is beside programs
            persistent=("log", "tool-output", "sandbox-state"),
            logins=(
                Login("auth.json", ("*.type", "*.refresh", "*.access", "*.expires", "*.key",
                                    "*.accountId"), types=("oauth", "api")),
                Login("mcp-auth.json", ("*.tokens.accessToken", "*.tokens.refreshToken",
                                        "*.tokens.expiresAt", "*.tokens.scope")),
            ),
            private=("snapshot", "storage", "worktree", "repos", "plans"),
            configuration=(
                "bin/",
            ),
        ),
        AgentHome(path=".local/state/opencode", variable="XDG_STATE_HOME", below="opencode",
                  persistent_files=("prompt-history.jsonl", "frecency.jsonl"),
                  private=("kv.json", "model.json", "locks")),
        AgentHome(path=".cache/opencode", variable="XDG_CACHE_HOME", below="opencode",
                  private=("models.json", "version"), configuration=("bin/",)),
    ),
    env=(
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_CONFIG_DIR",
        "OPENCODE_DB",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    ),
)
_CURSOR = KnownAgent(
    hosts=("api2.cursor.sh", "api.cursor.com", "cursor.com"),
    homes=(
        AgentHome(
            path=".cursor",
            persistent=("chats", "logs"),
            private=("cache", "projects", "tmp", "cli-config.json", "ide_state.json"),
            configuration=(
                "hooks.json", "mcp.json", "permissions.json", "AGENTS.md", "agents/", "bin/",
                "commands/", "extensions/", "hooks/", "plugins/", "rules/", "skills/",
            ),
        ),
        AgentHome(
            path=".config/cursor",
            variable="XDG_CONFIG_HOME",
            below="cursor",
            persistent=("chats",),
            logins=(Login("auth.json", ("accessToken", "refreshToken")),),
            private=("cli-config.json",),
        ),
    ),
    programs=(".local/share/cursor-agent",),
    env=("CURSOR_API_KEY",),
)
_GOOSE = KnownAgent(
    hosts=("api.openai.com", "api.anthropic.com"),
    homes=(
        AgentHome(path=".config/goose", variable="XDG_CONFIG_HOME", below="goose",
                  configuration=(
                      "config.yaml", "secrets.yaml", "permission.yaml", "permissions/", "recipes/",
                      ".goosehints", "custom_providers/",
                  )),
        AgentHome(path=".local/share/goose", variable="XDG_DATA_HOME", below="goose",
                  persistent=("sessions",)),
        AgentHome(path=".local/state/goose", variable="XDG_STATE_HOME", below="goose",
                  persistent=("logs",), persistent_files=("history.txt",)),
    ),
    env=("GOOSE_PROVIDER", "GOOSE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    addresses=("OPENAI_HOST", "ANTHROPIC_HOST"),
)
# fmt: on

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
    "cursor-agent": _CURSOR,
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
