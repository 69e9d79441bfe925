"""Mistral Vibe, and its ACP program: only `decision: deny` with exit code 0 refuses a call."""

from __future__ import annotations

from callgate.features.agents.known.values import (
    KEY,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    ScriptedRun,
    decision_deny,
    no_output,
    quoted,
    tool_rows,
)


def _table(entry: Entry, event: str) -> str:
    is_before = entry.phase == "pre"
    name, strict = ("callgate", "\nstrict = true") if is_before else ("callgate-after", "")
    return (
        f'name = "{name}"\ntype = "{event}"\ncommand = {quoted(entry.command)}\n'
        f"timeout = {entry.seconds}.0{strict}"
    )


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    return ScriptedRun(
        options=("-p", prompt),
        env={"VIBE_HOME": f"{home}/.vibe", "SCRIPTED_KEY": KEY, "MISTRAL_API_KEY": KEY},
        files={
            ".vibe/config.toml": f'active_model = "{KEY}"\nenable_auto_update = false\n'
            "enable_update_checks = false\nenable_telemetry = false\n"
            f'[[providers]]\nname = "{KEY}"\napi_base = "{url}/v1"\n'
            'api_key_env_var = "SCRIPTED_KEY"\napi_style = "openai"\nbackend = "generic"\n'
            f'[[models]]\nname = "{KEY}"\nprovider = "{KEY}"\nalias = "{KEY}"\n'
        },
    )


_TOOLS = """
file_system.bash           shell   command timeout
file_system.write_file     write   path content overwrite
file_system.read_file      read    path offset limit
file_system.search_replace write_class file_path path content
file_system.grep           search  pattern path max_matches use_default_ignore
bash              shell   command timeout
write_file        write   path content overwrite
read_file         read    path offset limit
search_replace    write_class file_path path content
grep              search  pattern path max_matches use_default_ignore
todo              none    action todos
ask_user_question none    questions
"""

# fmt: off
AGENT = Agent(
    name="vibe",
    label="Mistral Vibe",
    programs=("vibe", "vibe-acp", "mistral-vibe",),
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
    hooks=Hooks(
        user="~/.vibe/hooks.toml",
        protected=("~/.vibe/config.toml",),
        file=HookFile(
            form="toml",
            events=(("pre_tool", "pre"), ("post_tool", "post")),
            event_key="type",
            table=_table,
        ),
        dialect=Dialect(allow=no_output, deny=decision_deny, noted=b""),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("bash", {"command": command}),
        fails_open=("If its hook lacks strict = true, every failure lets the call run.",),
        verified="3.0.2, allow and deny",
        scripted_run=_scripted_run,
    ),
)
# fmt: on
