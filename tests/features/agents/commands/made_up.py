"""An agent that does not exist, as one module: what a new agent of `callgate.features.agents.known` needs."""

from __future__ import annotations

from typing import Any

from callgate.features.agents.known.values import (
    Agent,
    AgentHome,
    Dialect,
    HookFile,
    Hooks,
    Login,
    Switches,
    read_disable_all,
    tool_rows,
)


def _event(event: dict[str, Any]) -> dict[str, Any]:
    names = {"about_to": "PreToolUse", "done": "PostToolUse"}
    return {
        "hook_event_name": names.get(event["when"]),
        "session_id": event["talk"],
        "cwd": event["where"],
        "tool_name": event["what"],
        "tool_input": event["with"],
    }


AGENT = Agent(
    name="madeup",
    label="Made-up Agent",
    programs=("mua", "made-up-agent"),
    hosts=("api.made-up.example",),
    env=("MADEUP_KEY",),
    homes=(
        AgentHome(
            path=".madeup",
            variable="MADEUP_HOME",
            persistent=("talks",),
            logins=(Login("login.json", ("token",)),),
            configuration=("settings.json", "plugins/"),
        ),
    ),
    hooks=Hooks(
        user="~/.madeup/settings.json",
        project=".madeup/settings.json",
        file=HookFile(form="json", events=(("about_to", "pre"), ("done", "post"))),
        dialect=Dialect(
            allow=lambda _: {"go": True},
            deny=lambda reason: {"go": False, "deny": reason},
            event=_event,
        ),
        tools=tool_rows("sh shell line command\nsave write path content\n"),
        shell_call=lambda command: ("sh", {"command": command}),
        fails_open=("If it rains, the call runs.",),
        verified="1.2.3",
        switches=Switches(files=(".madeup/settings.json",), read=read_disable_all),
    ),
)
