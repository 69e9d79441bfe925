"""Qwen Code by Alibaba. It uses the dialect of Claude Code, but ignores a changed input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known import values
from callgate.features.agents.known.values import (
    CLAUDE_EVENTS,
    KEY,
    OAUTH_VALUES,
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


def _entry(entry: Entry) -> dict[str, Any]:
    return matched_entry(entry, name="callgate", timeout=entry.seconds * 1000)


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    return ScriptedRun(
        options=("--auth-type", "openai", "--yolo", "-p", prompt),
        env={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": KEY},
        members={
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "security": {"auth": {"selectedType": "openai"}},
        },
    )


def _shell_call(command: str) -> tuple[str, dict[str, Any]]:
    arguments = {"command": command, "description": "try", "is_background": False}
    return "run_shell_command", arguments


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    """Yield the directory of each project, from its newest session."""
    base = Path(environ.get("QWEN_HOME") or user / ".qwen")
    for project in values.listed(base / "projects"):
        yield from values.first_cwd(values.newest(project / "chats", ".jsonl"))


_TOOLS = """
run_shell_command shell   command is_background timeout description directory
monitor           shell   command description max_events idle_timeout_ms directory
write_file        write   file_path content record_as_artifact
edit              edit    file_path old_string new_string replace_all
replace           edit    file_path old_string new_string replace_all expected_replacements
read_file         read    file_path absolute_path offset limit pages
list_directory    list    path ignore file_filtering_options
glob              find    pattern path
grep_search       search  pattern glob path limit
web_fetch         fetch   url prompt format
notebook_edit     write_class notebook_path cell_id new_source cell_type edit_mode
zoom_image        read    file_path x1 y1 x2 y2
skill             skill   skill args
agent             none    description prompt subagent_type fork_turns fork_tools fork_profile
                          run_in_background ?isolation ?working_dir
task              none    description prompt subagent_type
todo_write        none    todos
tool_search       none    query max_results
get_goal          none
update_goal       none    status reason blockerKind
list_agents       none
report_findings   none    level findings
cron_list         none
task_stop         none    task_id
loop_wakeup       none    delaySeconds prompt reason
ask_user_question none    questions metadata
exit_plan_mode    none    plan
enter_plan_mode   none    reason
tool_call         execute name arguments
cron_create       execute cron prompt recurring durable sessionMode
cron_delete       execute id
enter_worktree    execute name
exit_worktree     execute name action discard_changes
send_message      execute to task_id message summary
"""

# fmt: off
AGENT = Agent(
    name="qwen",
    label="Qwen Code",
    programs=("qwen", "qwen-code",),
    hosts=("chat.qwen.ai", "portal.qwen.ai", "dashscope.aliyuncs.com", "api.openai.com"),
    homes=(
        AgentHome(
            path=".qwen",
            variable="QWEN_HOME",
            persistent=("projects", "tmp", "todos", "debug", "logs", "usage"),
            persistent_files=("usage_record.jsonl",),
            scripts=("projects/*/workflows/generated",),
            logins=(Login("oauth_creds.json", OAUTH_VALUES),),
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
    missing_is_empty=True,
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.qwen/settings.json",
        project=".qwen/settings.json",
        file=HookFile(form="json", events=CLAUDE_EVENTS, entry=_entry),
        dialect=Dialect(allow=claude_allow, deny=claude_deny, undecided=b"{}"),
        tools=tool_rows(_TOOLS),
        shell_call=_shell_call,
        fails_open=(
            "If the shell that runs the hook is killed, or the hook times out, the call runs.",
        ),
        verified="0.24.4",
        switches=Switches(
            files=(".qwen/settings.json",),
            env_files=(".env", ".qwen/.env"),
            managed="/etc/qwen-code/settings.json",
            managed_settings=(("disableAllHooks", False),),
            read=read_disable_all,
            read_variables=True,
            variables=("QWEN_CODE_SAFE_MODE", "QWEN_CODE_SIMPLE"),
            options=(("--bare",), ("--safe-mode",)),
        ),
        added=AddedHooks(
            settings=(".qwen/settings.json",),
            texts=(".qwen/skills", ".qwen/commands", ".qwen/agents")
        ),
        expanded_commands=("~/.qwen/commands", "~/.qwen/extensions", ".qwen/commands"),
        scripted_run=_scripted_run,
    ),
)
# fmt: on
