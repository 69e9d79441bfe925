"""Gemini CLI by Google.

Only `decision: deny` refuses a call; `ask` hangs without a person at the terminal. A repository can
turn a hook off by its name, so callgate's hook has a random name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known import values
from callgate.features.agents.known.values import (
    KEY,
    OAUTH_VALUES,
    AddedHooks,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    Input,
    Login,
    ScriptedRun,
    Switches,
    decision_deny,
    matched_entry,
    tool_rows,
)


def _allow(input: Input | None) -> dict[str, Any]:
    if input is None:
        return {"decision": "allow"}
    return {"decision": "allow", "hookSpecificOutput": {"tool_input": dict(input)}}


def _entry(entry: Entry) -> dict[str, Any]:
    return matched_entry(entry, name=entry.name, timeout=entry.seconds * 1000)


def _read(settings: dict[str, Any], name: str) -> Iterator[str]:
    config = settings.get("hooksConfig", {})
    if not isinstance(config, dict) or config.get("enabled", True) is not True:
        yield "turns all hooks off (hooksConfig.enabled)"
    elif (disabled := config.get("disabled", [])) != [] and (
        not isinstance(disabled, list) or {name, "callgate"} & {str(each) for each in disabled}
    ):
        yield "turns callgate's hook off by its name (hooksConfig.disabled)"
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        yield "replaces all hooks (hooks)"


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    auth = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    return ScriptedRun(
        options=("-m", "gemini-2.5-flash", "--yolo", "-p", prompt),
        env={
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        members={
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "security": auth,
        },
    )


def _shell_call(command: str) -> tuple[str, dict[str, Any]]:
    return "run_shell_command", {"command": command, "description": "try"}


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    base = Path(environ.get("GEMINI_CLI_HOME") or user) / ".gemini"
    yield from values.keys(values.json_of(base / "projects.json"), "projects")


_TOOLS = """
run_shell_command shell   command description dir_path directory is_background delay_ms
                          wait_for_previous
write_file        write   file_path content
replace           edit    file_path instruction old_string new_string allow_multiple
                          expected_replacements
read_file         read    file_path absolute_path start_line end_line offset limit
list_directory    list    dir_path path ignore file_filtering_options respect_git_ignore
glob              find    pattern dir_path path case_sensitive respect_git_ignore
                          respect_gemini_ignore
grep_search       search  pattern dir_path path include include_pattern exclude_pattern names_only
                          max_matches_per_file total_max_matches case_sensitive fixed_strings
                          context after before no_ignore
search_file_content search pattern dir_path path include include_pattern
web_fetch         fetch   prompt url
google_web_search network query
activate_skill    none    name
invoke_agent      none    agent_name prompt wait_for_previous
write_todos       none    todos
update_topic      none    title summary strategic_intent wait_for_previous
ask_user          none    questions
enter_plan_mode   none    reason
exit_plan_mode    none    plan_path plan_filename
list_background_processes none wait_for_previous
read_background_output none pid lines delay_ms wait_for_previous
complete_task     none    result output
"""

# fmt: off
AGENT = Agent(
    name="gemini",
    label="Gemini CLI",
    programs=("gemini", "gemini-cli",),
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
                Login("oauth_creds.json", OAUTH_VALUES),
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
    missing_is_empty=True,
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.gemini/settings.json",
        project=".gemini/settings.json",
        file=HookFile(
            form="json",
            events=(("BeforeTool", "pre"), ("AfterTool", "post"), ("BeforeAgent", "prompt")),
            entry=_entry,
        ),
        dialect=Dialect(allow=_allow, deny=decision_deny, undecided=b"{}", rewrites=True),
        tools=tool_rows(_TOOLS),
        shell_call=_shell_call,
        fails_open=("If the shell that runs the hook is killed, or exits with 1, the call runs.",),
        verified="0.61.0",
        switches=Switches(
            files=(".gemini/settings.json",),
            env_files=(".env", ".gemini/.env"),
            managed="/etc/gemini-cli/settings.json",
            managed_settings=(("hooksConfig", {"enabled": True}),),
            read=_read,
            obeys_repository=True,
        ),
        added=AddedHooks(settings=(".gemini/settings.json",)),
        expanded_commands=("~/.gemini/commands", "~/.gemini/extensions", ".gemini/commands"),
        scripted_run=_scripted_run,
    ),
)
# fmt: on
