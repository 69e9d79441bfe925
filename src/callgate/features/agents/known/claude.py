"""Claude Code by Anthropic, and its ACP adapters.

A repository's `.claude/settings*.json` can turn its hooks off; `--settings` takes precedence. The
answer "allow" skips its own question about a skill, so skills get no decision in modes that ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known import values
from callgate.features.agents.known.values import (
    CLAUDE_EVENTS,
    KEY,
    AddedHooks,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    Login,
    ScriptedRun,
    Switches,
    claude_allow,
    claude_deny,
    matched_entry,
    read_disable_all,
    tool_rows,
)

_NO_COMMANDS = re.compile(
    r"(?:Read|Grep|Glob|LS|Edit|MultiEdit|Write|NotebookEdit|NotebookRead|WebFetch|WebSearch|TodoWrite)"
    r"(?:\(|$)|mcp__"
)
"""Permission rules that allow neither commands nor skills."""


def _runs_unasked(settings: dict[str, Any]) -> bool:
    """Return whether permission rules let it run some command without its own question.

    A repository can contain such rules, and Claude Code obeys an untrusted `settings.local.json`.
    """
    permissions, sandbox = settings.get("permissions", {}), settings.get("sandbox", {})
    allow = permissions.get("allow", []) if isinstance(permissions, dict) else None
    if not isinstance(allow, list) or not isinstance(sandbox, dict):
        return True
    if sandbox.get("enabled", False) is not False:  # commands in its sandbox need no approval
        return True
    return not all(isinstance(each, str) and _NO_COMMANDS.match(each) for each in allow)


def _entry(entry: Entry) -> dict[str, Any]:
    return matched_entry(entry, **({"onFailure": "block"} if entry.phase == "pre" else {}))


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    model = ("--model", "claude-sonnet-4-5")
    return ScriptedRun(
        options=("-p", prompt, *model, "--dangerously-skip-permissions"),
        env={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "IS_SANDBOX": "1",
        },
    )


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    """Yield its projects, and the directory of each project's newest session."""
    given = environ.get("CLAUDE_CONFIG_DIR")
    base = Path(given) if given else user / ".claude"
    file = (base if given else user) / ".claude.json"
    yield from values.keys(values.json_of(file), "projects")
    for project in values.listed(base / "projects"):
        yield from values.first_cwd(values.newest(project, ".jsonl"))


_GREP = "-i -n -A -B -C context head_limit offset multiline type output_mode"

_TOOLS = f"""
Bash              shell   command timeout description run_in_background dangerouslyDisableSandbox
Monitor           shell   command description timeout_ms persistent ?ws
Write             write   file_path content
Edit              edit    file_path old_string new_string replace_all
MultiEdit         edit    file_path edits
Read              read    file_path offset limit pages allow_large
LS                list    path ignore
Glob              find    pattern path
Grep              search  pattern path glob {_GREP}
WebFetch          fetch   url prompt offset
NotebookEdit      write_class  notebook_path cell_id cell_number new_source cell_type edit_mode
NotebookRead      read_class   notebook_path cell_id
WebSearch         network query allowed_domains blocked_domains
Skill             skill   skill args
SlashCommand      skill   command
Agent             none    description prompt subagent_type model effort run_in_background resume
                          max_turns name ?isolation ?mode ?team_name
Task              none    description prompt subagent_type model run_in_background resume max_turns
                          ?isolation ?mode ?team_name ?name
AskUserQuestion   none    questions answers annotations metadata
EnterPlanMode     none
ExitPlanMode      none    plan allowedPrompts planFilePath launchSwarm teammateCount
TodoWrite         none    todos
TodoRead          none
TaskCreate        none    subject description activeForm metadata
TaskGet           none    taskId
TaskList          none
TaskUpdate        none    taskId subject description activeForm status addBlocks addBlockedBy owner
                          metadata
TaskOutput        none    task_id block timeout
TaskStop          none    task_id shell_id
BashOutput        none    bash_id filter
KillShell         none    shell_id
KillBash          none    shell_id
ToolSearch        none    query max_results
DeferredToolPlaceholder none
ListAgents        none    channel q
ReportFindings    none    level findings
ScheduleWakeup    none    delaySeconds reason prompt stop noop
CronList          none
CronCreate        execute cron prompt recurring durable
CronDelete        execute id
EnterWorktree     execute name path
ExitWorktree      execute action discard_changes
SendMessage       execute to summary message notify_when_idle
Workflow          execute script name description title args scriptPath resumeFromRunId
"""

# fmt: off
AGENT = Agent(
    name="claude",
    label="Claude Code",
    programs=("claude", "claude-agent-acp", "claude-code-acp",),
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
    installed=(".local/share/claude", ".config/claude"),
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
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.claude/settings.json",
        project=".claude/settings.local.json",
        protected=(".claude/settings.json", "~/.claude/settings.local.json"),
        file=HookFile(form="json", events=CLAUDE_EVENTS, entry=_entry),
        dialect=Dialect(allow=claude_allow, deny=claude_deny, undecided=b"{}", rewrites=True),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("Bash", {"command": command, "description": "try"}),
        verified="2.1.326",
        switches=Switches(
            files=(".claude/settings.json", ".claude/settings.local.json"),
            texts=(".claude/agents/", ".claude/commands/", ".claude/skills/"),
            managed="/etc/claude-code/managed-settings.json",
            read=read_disable_all,
            obeys_repository=True,
            read_variables=True,
            variables=("CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SIMPLE"),
            options=(("--bare",), ("--safe-mode",), ("--settings",)),
            outranking=("--settings",),
            run_settings={"disableAllHooks": False},
        ),
        added=AddedHooks(
            settings=(".claude/settings.json", ".claude/settings.local.json"),
            texts=(".claude/skills", ".claude/commands", ".claude/agents"),
        ),
        asking_modes=frozenset(("default", "plan", "acceptEdits", "dontAsk")),
        runs_unasked=_runs_unasked,
        scripted_run=_scripted_run,
    ),
)
# fmt: on
