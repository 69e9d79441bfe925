"""Cursor CLI, according to its published format: this module was not tested with the program.

Cursor also runs the hooks of Claude Code, so a call may arrive twice, with different ids.
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
    tool_rows,
)


def _deny(reason: str) -> dict[str, Any]:
    return {"permission": "deny", "user_message": reason, "agent_message": reason}


def _entry(entry: Entry) -> dict[str, Any]:
    closed = {"failClosed": True} if entry.phase == "pre" else {}
    return {"command": entry.command, "timeout": entry.seconds, **closed}


_TOOLS = """
Shell             shell   command working_directory workdir cwd timeout block_until_ms description
                          is_background required_permissions
Bash              shell   command working_directory workdir cwd timeout description is_background
                          run_in_background
Write             write   file_path path content contents
Edit              edit    file_path path old_string new_string replace_all
StrReplace        edit    file_path path old_string new_string replace_all
Delete            write_class file_path path
Read              read    file_path path target_file offset limit
LS                list    path target_directory ignore ignore_globs
Glob              find    pattern glob_pattern path target_directory
Grep              search  pattern path glob -i -n -A -B -C context head_limit offset multiline type
                          output_mode
WebFetch          fetch   url prompt
WebSearch         network query search_term explanation
TodoWrite         none    todos merge
ReadLints         none    paths
"""

# fmt: off
AGENT = Agent(
    name="cursor",
    label="Cursor",
    programs=("cursor-agent",),
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
    installed=(".local/share/cursor-agent",),
    env=("CURSOR_API_KEY",),
    hooks=Hooks(
        user="~/.cursor/hooks.json",
        project=".cursor/hooks.json",
        file=HookFile(
            form="json",
            events=(
                ("preToolUse", "pre"), ("postToolUse", "post"), ("postToolUseFailure", "post"),
                ("beforeSubmitPrompt", "prompt"),
            ),
            entry=_entry,
            has_version=True,
        ),
        dialect=Dialect(
            allow=lambda _: {"permission": "allow"},
            deny=_deny,
            heard=b'{"continue": true}',
            mark="cursor_version",
        ),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("Shell", {"command": command}),
        fails_open=(
            "callgate was not tested with Cursor: this follows its published format, with"
            " failClosed.",
        ),
        verified="its published format: not tested with the program",
        added=AddedHooks(
            settings=(
                ".cursor/hooks.json", ".claude/settings.json", ".claude/settings.local.json",
            ),
        ),
        names_calls=False,
    ),
)
# fmt: on
