"""Kimi Code by Moonshot AI: Claude Code's events; `ask` and `decision: block` let the call run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known import values
from callgate.features.agents.known.values import (
    KEY,
    OAUTH_VALUES,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    Login,
    ScriptedRun,
    claude_deny,
    no_output,
    quoted,
    tool_rows,
)


def _table(entry: Entry, event: str) -> str:
    command = quoted(entry.command)
    matcher = "" if entry.phase == "prompt" else 'matcher = ".*"\n'
    return f'event = "{event}"\n{matcher}command = {command}\ntimeout = {entry.seconds}'


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    return ScriptedRun(
        options=("-p", prompt),
        env={"KIMI_CODE_HOME": f"{home}/.kimi-code"},
        before_settings=f'default_model = "{KEY}"\ntelemetry = false\n[providers.{KEY}]\n'
        f'type = "openai"\nbase_url = "{url}/v1"\napi_key = "{KEY}"\n[models.{KEY}]\n'
        f'provider = "{KEY}"\nmodel = "{KEY}"\nmax_context_size = 100000\n'
        'capabilities = ["tool_use"]\n',
    )


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    base = Path(environ.get("KIMI_CODE_HOME") or user / ".kimi-code")
    known = values.json_of(base / "workspaces.json").get("workspaces")
    for each in known.values() if isinstance(known, dict) else ():
        yield each.get("root") if isinstance(each, dict) else None


_TOOLS = """
Bash              shell   command cwd timeout description run_in_background disable_timeout
Write             write   path content mode
Edit              edit    path old_string new_string replace_all
Read              read    path line_offset column_offset n_lines max_chars
Glob              find    pattern path head_limit offset include_ignored include_dirs
Grep              search  pattern path glob type output_mode -i -n -A -B -C head_limit offset
                          multiline include_ignored
FetchURL          fetch   url
Shell             shell   command cwd timeout run_in_background description
WriteFile         write   path content mode
StrReplaceFile    edit    path edit
ReadFile          read    path line_offset n_lines
ReadMediaFile     read    path
Skill             none    skill args
Agent             none    prompt description subagent_type resume run_in_background
AgentSwarm        none    description subagent_type prompt_template items resume_agent_ids
Task              none    description prompt subagent_name
AskUserQuestion   none    questions background
EnterPlanMode     none
ExitPlanMode      none    options
TodoList          none    todos
SetTodoList       none    todos
Think             none    thought
CreateGoal        none    objective completionCriterion replace
GetGoal           none
UpdateGoal        none    status
SetGoalBudget     none    value unit
TaskList          none    active_only limit
TaskOutput        none    task_id block timeout
TaskStop          none    task_id reason
WaitFor           none    timeout task_id
CronList          none
CronCreate        execute cron prompt recurring
CronDelete        execute id
"""

# fmt: off
AGENT = Agent(
    name="kimi",
    label="Kimi Code",
    programs=("kimi", "kimi-code", "kimi-cli",),
    hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com", "auth.kimi.com"),
    homes=tuple(
        AgentHome(
            path=path,
            optional=path == ".kimi",
            variable=variable,
            persistent=("sessions", "logs", "cache/query-store", "user-history"),
            persistent_files=("session_index.jsonl",),
            logins=(Login("credentials/*.json", OAUTH_VALUES),),
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
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.kimi-code/config.toml",
        file=HookFile(
            form="toml",
            events=(
                ("PreToolUse", "pre"), ("PostToolUse", "post"), ("UserPromptSubmit", "prompt"),
            ),
            event_key="event",
            table=_table,
        ),
        dialect=Dialect(allow=no_output, deny=claude_deny, noted=b""),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("Bash", {"command": command}),
        fails_open=(
            "If the shell that runs the hook is killed, or the hook times out, the call runs.",
        ),
        verified="2.1.0",
        scripted_run=_scripted_run,
    ),
)
# fmt: on
