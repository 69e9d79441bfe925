"""GitHub Copilot CLI: the dialect of Claude Code with other names of tools.

An answer that is not JSON and a timeout let the call run. Files of a repository count only if the
user has trusted the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callgate.features.agents.known.values import (
    CLAUDE_EVENTS,
    KEY,
    AddedHooks,
    Agent,
    AgentHome,
    Dialect,
    HookFile,
    Hooks,
    Login,
    ScriptedRun,
    Switches,
    claude_allow,
    claude_deny,
    read_disable_all,
    tool_rows,
)


def _event(event: dict[str, Any]) -> dict[str, Any]:
    if isinstance(patch := event.get("tool_input"), str):
        return {**event, "tool_input": {"input": patch}}
    return event


def _read(settings: dict[str, Any], name: str) -> Iterator[str]:
    yield from read_disable_all(settings, name)
    if settings.get("disabledHooks", []) != []:
        yield "turns some hooks off (disabledHooks)"


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    return ScriptedRun(
        options=("-p", prompt, "--allow-all-tools"),
        env={
            "COPILOT_HOME": f"{home}/.copilot",
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": KEY,
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        },
    )


_TOOLS = """
Bash              shell   command description detach initial_wait mode shellId
read_bash         none    shellId delay
stop_bash         none    shellId
list_bash         none
Write             write   path file_text
Edit              edit    path old_str new_str input
Read              read    path view_range forceReadLargeFiles
Glob              find    pattern path paths
Grep              search  pattern path paths glob type output_mode -i -n -A -B -C head_limit
                          multiline
WebFetch          fetch   url max_length raw start_index
semantic_code_search network query repo
fetch_copilot_cli_documentation none
skill             none    skill
sql               none    description query
session_store_sql none    description query source
Agent             none    description prompt agent_type name model reasoning_effort context_tier
                          mode
read_agent        none    agent_id wait timeout since_turn
list_agents       none    include_completed scope
write_agent       none    agent_id agent_ids scope message
ask_user          none    question choices
task_complete     none    summary
"""

# fmt: off
AGENT = Agent(
    name="copilot",
    label="GitHub Copilot CLI",
    programs=("copilot",),
    hosts=("api.githubcopilot.com", "api.individual.githubcopilot.com",
           "api.business.githubcopilot.com", "api.enterprise.githubcopilot.com",
           "api.github.com", "github.com"),
    homes=(
        AgentHome(
            path=".copilot",
            variable="COPILOT_HOME",
            persistent=("session-state", "logs"),
            persistent_files=("session-store.db", "session-store.db-wal", "session-store.db-shm"),
            logins=(
                Login(
                    "config.json",
                    ("copilotTokens.*", "copilot_tokens.*", "loggedInUsers", "logged_in_users",
                     "lastLoggedInUser", "last_logged_in_user"),
                ),
            ),
            private=("settings.json.lock", "tmp", "cache"),
            configuration=(
                "settings.json", "mcp-config.json", "lsp-config.json", "copilot-instructions.md",
                ".env", "agents/", "extensions/", "hooks/", "installed-plugins/", "instructions/",
                "plugins/", "pkg/", "prompts/", "skills/", "workflows/",
            ),
        ),
        # Its own program, unpacked at the first start: read-only if it exists.
        AgentHome(path=".cache/copilot", variable="XDG_CACHE_HOME", below="copilot", optional=True),
    ),
    env=(
        "COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_HOME", "COPILOT_MODEL",
        "COPILOT_OFFLINE", "COPILOT_AUTO_UPDATE", "COPILOT_PROVIDER_TYPE",
        "COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BEARER_TOKEN", "COPILOT_PROVIDER_WIRE_API",
        "COPILOT_PROVIDER_MODEL_ID", "COPILOT_PROVIDER_WIRE_MODEL", "XDG_CACHE_HOME",
    ),
    addresses=("COPILOT_PROVIDER_BASE_URL",),
    hooks=Hooks(
        user="~/.copilot/hooks/callgate.json",
        protected=(
            "~/.copilot/settings.json", "~/.copilot/config.json", "~/.copilot/hooks",
            ".github/copilot/settings.json", ".github/copilot/settings.local.json", ".github/hooks",
            ".github/extensions", ".github/agents", ".claude/agents",
        ),
        file=HookFile(form="json", events=CLAUDE_EVENTS, has_version=True),
        dialect=Dialect(
            allow=claude_allow, deny=claude_deny, undecided=b"{}", rewrites=True, event=_event
        ),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("bash", {"command": command, "description": "try"}),
        fails_open=("If the hook times out, the call runs.",),
        verified="1.0.102",
        switches=Switches(
            files=(
                ".github/copilot/settings.json",
                ".github/copilot/settings.local.json",
                ".claude/settings.json",
                ".claude/settings.local.json",
                ".github/hooks/",
            ),
            texts=(".github/agents/", ".claude/agents/"),
            programs=(".github/extensions/",),
            read=_read,
            obeys_repository=True,
            installs_plugins=True,
            options=(("--plugin-dir",),),
        ),
        added=AddedHooks(
            settings=(
                ".github/hooks/", ".github/copilot/settings.json",
                ".github/copilot/settings.local.json", ".claude/settings.json",
                ".claude/settings.local.json",
            ),
            programs=(".github/extensions",),
            texts=(".github/agents", ".claude/agents"),
            servers=(".mcp.json", ".github/mcp.json", ".github/lsp.json"),
        ),
        splits_paths=True,
        scripted_run=_scripted_run,
    ),
)
# fmt: on
