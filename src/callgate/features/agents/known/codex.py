"""Codex by OpenAI, and its ACP adapter.

An unknown member of an answer, an empty reason or a plain "allow" counts as a failure of the hook,
and the call runs. Codex silently skips a hook that the user has not reviewed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known import values
from callgate.features.agents.known.values import (
    KEY,
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
    claude_deny,
    matched_entry,
    tool_rows,
)

_LIMIT_S = 30


def _allow(input: Input | None) -> dict[str, Any] | None:
    if input is None:
        return None  # a plain "allow" counts as a failure of the hook
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": dict(input),
        }
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return matched_entry(entry, matcher=".*")


def _read(settings: dict[str, Any], name: str) -> Iterator[str]:
    features = settings.get("features", {})
    for feature in ("hooks", "codex_hooks"):
        if not isinstance(features, dict) or features.get(feature, True) is not True:
            yield f"turns all hooks off (features.{feature})"


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    # Only the hook can stop the call; `hook status` shows whether the hook is trusted.
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return ScriptedRun(
        options=("exec", *free, "--dangerously-bypass-hook-trust", prompt),
        env={"CODEX_HOME": f"{home}/.codex", "SCRIPTED_KEY": KEY},
        files={
            ".codex/config.toml": f'model = "{KEY}"\nmodel_provider = "{KEY}"\n'
            f'[model_providers.{KEY}]\nname = "{KEY}"\nbase_url = "{url}/v1"\n'
            'env_key = "SCRIPTED_KEY"\nwire_api = "responses"\nrequest_max_retries = 0\n'
            "stream_max_retries = 0\n[analytics]\nenabled = false\n"
        },
    )


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    """Yield its projects and the directories of its sessions."""
    base = Path(environ.get("CODEX_HOME") or user / ".codex")
    try:
        settings = tomllib.loads(values.text_of(base / "config.toml"))
        yield from values.keys(settings, "projects")
    except (ValueError, RecursionError):
        pass
    for path in values.newest(base / "sessions", ".jsonl", depth=3):
        yield from values.first_cwd([path])


# --- trust ------------------------------------------------------------------------------------


def _trust(program: str, workspace: str, mark: str) -> list[str]:
    return [str(each.get("trustStatus")) for each in listed_hooks(program, workspace, mark)]


def listed_hooks(program: str, workspace: str, mark: str) -> list[dict[str, Any]]:
    """Return the hooks in Codex whose command contains `mark`, with `key` and `currentHash`.

    Raises `OSError`, `ValueError` or `SubprocessError`.
    """
    hooks = _hooks(program, workspace)
    return [each for each in hooks if mark in str(each.get("command"))]


def _hooks(program: str, workspace: str) -> list[dict[str, Any]]:
    server = subprocess.Popen(
        [program, "app-server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=workspace,
        text=True,
    )
    watchdog = threading.Timer(_LIMIT_S, server.kill)
    watchdog.start()
    try:
        info = {"name": "callgate", "title": "callgate", "version": "1"}
        _send(server, {"id": 1, "method": "initialize", "params": {"clientInfo": info}})
        _receive(server, 1)
        _send(server, {"method": "initialized"})
        _send(server, {"id": 2, "method": "hooks/list", "params": {"cwds": [workspace]}})
        answer = _receive(server, 2)
    finally:
        watchdog.cancel()
        server.kill()
        server.wait()
        for stream in (server.stdin, server.stdout):
            if stream is not None:
                stream.close()
    rows = answer.get("result", {}).get("data", [])
    return [hook for row in rows for hook in row.get("hooks", []) if isinstance(hook, dict)]


def _send(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def _receive(server: subprocess.Popen[str], id: int) -> dict[str, Any]:
    assert server.stdout is not None
    for line in server.stdout:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("its answer is not JSON") from None
        if isinstance(message, dict) and message.get("id") == id:
            if "error" in message:
                raise ValueError(message["error"].get("message", "it refused"))
            return message
    raise ValueError("it ended without an answer")


_TOOLS = """
Bash              shell   command
exec_command      shell   cmd workdir justification login max_output_tokens prefix_rule shell tty
                          sandbox_permissions yield_time_ms
shell             shell   command workdir timeout_ms justification sandbox_permissions prefix_rule
                          with_escalated_permissions
local_shell       shell   command workdir timeout_ms
apply_patch       patch   command input patch
view_image        read    path detail
update_plan       none    plan explanation
request_user_input none   questions
get_goal          none
create_goal       none    objective token_budget
update_goal       none    status
wait_agent        none    targets timeout_ms
close_agent       none    target
spawn_agent       execute fork_context items message model reasoning_effort
send_input        execute interrupt items message target
resume_agent      execute id
write_stdin       execute chars max_output_tokens session_id yield_time_ms
web_search        network
"""

# fmt: off
AGENT = Agent(
    name="codex",
    label="Codex",
    programs=("codex", "codex-acp",),
    hosts=("api.openai.com", "chatgpt.com", "auth.openai.com"),
    homes=(
        AgentHome(
            path=".codex",
            variable="CODEX_HOME",
            variables={"CODEX_SQLITE_HOME": "sandbox-state"},  # default: next to the settings
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
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.codex/hooks.json",
        protected=("~/.codex/config.toml", ".codex/config.toml", ".codex/hooks.json"),
        file=HookFile(
            form="json",
            events=(
                ("PreToolUse", "pre"), ("PostToolUse", "post"), ("UserPromptSubmit", "prompt"),
            ),
            entry=_entry,
        ),
        dialect=Dialect(allow=_allow, deny=claude_deny, rewrites=True, noted=b""),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("exec_command", {"cmd": command}),
        fails_open=(
            "If the shell that runs the hook is killed, the call runs.",
            "Untrusted hooks are silently skipped, and any edit of hooks.json removes their trust.",
            "Input to a running process (write_stdin) triggers no hook: callgate closes the input"
            " of every allowed command.",
        ),
        verified="0.169.0",
        switches=Switches(
            files=(".codex/config.toml",),
            read=_read,
            options=(
                ("--disable", "hooks", "codex_hooks"),
                ("-c", "features"),
                ("--config", "features"),
            ),
            outranking=("-c", "features.hooks=true"),
        ),
        added=AddedHooks(settings=(".codex/hooks.json", ".codex/config.toml")),
        types_later=True,
        trust=_trust,
        review="start codex, open /hooks, and trust callgate's hook",
        scripted_run=_scripted_run,
    ),
)
# fmt: on
