"""Cline, according to its published format: this module was not tested with the program.

A hook is a program in a directory, named like its event. All hooks of a call run concurrently, and
one `cancel` is enough. A hook can neither change a call nor leave it to Cline's own question. The
table contains current and earlier names of tools.
"""

from __future__ import annotations

from typing import Any

from callgate.features.agents.known.values import (
    AddedHooks,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    Login,
    Switches,
    tool_rows,
)

_MEMBERS = {
    "PreToolUse": "preToolUse", "PostToolUse": "postToolUse", "UserPromptSubmit": "userPromptSubmit"
}  # fmt: skip


def _event(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event in the format of Claude Code."""
    name = event.get("hookName")
    call = event.get(_MEMBERS.get(name, "")) if isinstance(name, str) else None
    if not isinstance(call, dict):
        call = {}
    return {
        "hook_event_name": name,
        "session_id": event.get("taskId"),
        "workspace_roots": event.get("workspaceRoots"),
        "tool_name": call.get("toolName"),
        "tool_input": call.get("parameters", {}),
        "tool_response": call.get("result"),
        "tool_status": "failed" if call.get("success") is False else None,
        "prompt": call.get("prompt"),
    }


def _own_event(event: dict[str, Any]) -> dict[str, Any]:
    name = event["hook_event_name"]
    call = {"toolName": event["tool_name"], "parameters": event["tool_input"]}
    return {
        "clineVersion": "0",
        "hookName": name,
        "taskId": event["session_id"],
        "workspaceRoots": [event["cwd"]],
        _MEMBERS[name]: call,
    }


def _deny(reason: str) -> dict[str, Any]:
    return {"cancel": True, "errorMessage": reason, "contextModification": reason}


_PROGRAM = """\
#!/bin/sh
# callgate's hook for Cline. Made by callgate hook install; callgate hook remove removes it.
# {script}
case ${{0##*/}} in
PostToolUse) {after} ;;
UserPromptSubmit) {prompt} ;;
*) {before} ;;
esac
"""


def _program(entry: Entry) -> str:
    return _PROGRAM.format(
        script=entry.script, before=entry.command, after=entry.report, prompt=entry.prompt
    )


_TOOLS = """
bash              shell   command requires_approval timeout
execute_command   shell   command requires_approval timeout
write_to_file     write   path content
replace_in_file   write_class path diff
editor            write_class command path content file_text old_str new_str insert_line diff
apply_patch       write_class input patch diff
read_file         read    path start_line end_line
read_files        read_class paths files
list_files        list    path recursive
search_files      search  path regex file_pattern
search            read_class pattern query path paths
list_code_definition_names list path
web_fetch         fetch   url prompt
fetch_web         fetch   url prompt
web_search        network query
browser_action    network action url coordinate text
use_mcp_tool      execute server_name tool_name arguments
access_mcp_resource execute server_name uri
use_skill         execute skill_name
use_subagents     execute
ask_followup_question none question options
ask_question      none    question options
attempt_completion none   result task_progress ?command
plan_mode_respond none    response needs_more_exploration task_progress
new_task          none    context
focus_chain       none    task_progress
load_mcp_documentation none
"""

# fmt: off
AGENT = Agent(
    name="cline",
    label="Cline",
    programs=("cline",),
    hosts=("api.cline.bot", "app.cline.bot", "api.anthropic.com", "api.openai.com",
           "openrouter.ai"),
    homes=(
        AgentHome(  # `.cline` itself, with plugins, is hidden
            path=".cline/data",
            variable="CLINE_DATA_DIR",
            persistent=("sessions", "tasks", "teams", "logs"),
            logins=(
                Login("settings/providers.json",
                      ("providers.*.settings.apiKey", "providers.*.settings.auth.*")),
            ),
            private=("cache", "state", "locks"),
            configuration=(
                "settings/rules/", "settings/skills/", "settings/cline_mcp_settings.json",
                "workflows/", "globalState.json",
            ),
        ),
        AgentHome(path="Documents/Cline", optional=True,
                  configuration=("Hooks/", "Rules/", "Workflows/", "MCP/")),
    ),
    env=("CLINE_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY"),
    hooks=Hooks(
        user="~/Documents/Cline/Hooks/PreToolUse",
        project=".clinerules/hooks/PreToolUse",
        protected=(
            "~/Documents/Cline/Hooks", ".clinerules/hooks", ".cline/hooks", ".cline/plugins",
            "~/.cline/hooks", "~/.cline/plugins", "~/.cline/data/settings",
            "~/.cline/data/globalState.json",
        ),
        file=HookFile(
            form="program",
            events=(
                ("PreToolUse", "pre"), ("PostToolUse", "post"), ("UserPromptSubmit", "prompt"),
            ),
            program=_program,
            others=("PostToolUse", "UserPromptSubmit"),
            is_executable=True,
        ),
        dialect=Dialect(
            allow=lambda _: {"cancel": False},
            deny=_deny,
            noted=b'{"cancel": false}',
            heard=b'{"cancel": false}',
            event=_event,
            own_event=_own_event,
        ),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("bash", {"command": command}),
        fails_open=(
            "callgate was not tested with Cline: this follows its published format.",
            "If hooks are off in the settings of Cline, or the hook takes longer than Cline waits"
            " (30 seconds), the call runs.",
        ),
        verified="its published format: not tested with the program",
        switches=Switches(
            options=(("--config",), ("--data-dir",)),
            variables=("CLINE_DATA_DIR", "CLINE_SANDBOX"),
        ),
        added=AddedHooks(
            programs=(".clinerules/hooks", ".cline/hooks", ".cline/plugins"),
            servers=(".cline/mcp.json",),
        ),
    ),
)
# fmt: on
