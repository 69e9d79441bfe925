"""Third-party agents: commands, checks, hooks in an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.cli.findings import AgentHere
    from callgate.dispatch.tools.sources import ToolSource
    from callgate.instance.instance import Service, ServiceContext
    from callgate.instance.wiring.runtime import Wired


def _settings() -> type:
    from callgate.features.agents.settings import AgentsSettings  # lazy: with a table in the file  # noqa: PLC0415

    return AgentsSettings


def _commands() -> Mapping[str, Any]:
    from callgate.features.agents.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _checks() -> Mapping[str, Any]:
    from callgate.features.agents.commands.checks import check_hooks  # lazy: for doctor  # noqa: PLC0415

    return {"hooks": check_hooks}


def _agents_here(home: str, workspace: str) -> Sequence[AgentHere]:
    from callgate.features.agents.commands.checks import agents_here  # lazy: for doctor  # noqa: PLC0415

    return agents_here(home, workspace)


def _hook_warnings(home: str, workspaces: Sequence[str]) -> Sequence[str]:
    from callgate.features.agents.commands.checks import warnings  # lazy: heavy  # noqa: PLC0415

    return warnings(home, workspaces)


def _shell_agents(*, rewrites: bool) -> Sequence[str]:
    from callgate.features.agents.commands.checks import shell_agents  # lazy: for policy explain  # noqa: PLC0415

    return shell_agents(rewrites=rewrites)


def _tools(wired: Wired) -> ToolSource:
    """Return the tools that are visible only in sessions of agents with hooks."""
    from callgate.dispatch.tools.sources import FixedTools  # lazy: few have hooks  # noqa: PLC0415
    from callgate.features.agents.own_tools import factories  # lazy: as above  # noqa: PLC0415

    return FixedTools(tuple(factories()))


def _services(context: ServiceContext) -> Sequence[Service]:
    if (
        context.record.environment is not None
    ):  # it ends too early, and the newest one answers hooks
        return ()
    from callgate.features.agents.hooks.listener import AgentHooks  # lazy: only for an instance  # noqa: PLC0415

    return (AgentHooks(context.wired, context.directories, context.draining),)


FEATURE = Feature(
    name="agents",
    settings=_settings,
    commands=_commands,
    checks=_checks,
    tools=_tools,
    ports={
        "agents_here": _agents_here,
        "hook_warnings": _hook_warnings,
        "shell_agents": _shell_agents,
    },
    services=_services,
)
