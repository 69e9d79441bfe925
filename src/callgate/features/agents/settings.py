"""Settings of hooks: `[hooks]`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from callgate.config.schema import Seconds, SettingsPart, Table
from callgate.core.effects import SideEffects


class HooksTable(Table, frozen=True):
    """`[hooks]`: third-party agents whose calls callgate checks before the agent runs them."""

    wait_s: Annotated[float, msgspec.Meta(gt=0, le=100)] = 65.0
    """Time limit for a person's answer; then the call is refused."""
    report_s: Seconds = 3600.0
    """Time limit for the agent's report on the end of a call."""
    shell: Literal["agent", "sandbox"] | None = None
    """`"agent"`: commands run in the agent's own process, outside the sandbox. `"sandbox"`:
    commands run in callgate's sandbox, if the agent supports rewriting of commands by hooks
    (Claude Code, Codex, Gemini CLI, Copilot CLI). Default: `"sandbox"` in mode guarded, if this
    machine enforces it, else `"agent"`."""
    tools: dict[str, SideEffects] = {}
    """Effect of a third-party tool, by the agent's name of the tool; default `execute`."""
    home: Literal["read", "write", "none"] = "write"
    """Access of an agent in `callgate sandbox --` to its own directories in the user's home.
    `write`: its sessions and its login are saved; `read`: only its login; `none`: no access."""
    network: Literal["none", "ask", "all"] | list[str] = "all"
    """Network access of an agent in `callgate sandbox --`. A list names hosts, such as the model's
    host. `ask`: each new host waits for approval."""


class AgentsSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "agents"
    hooks: HooksTable = HooksTable()
