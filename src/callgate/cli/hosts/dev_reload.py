"""`callgate serve --dev`: a host whose plugin was changed is started anew, and believed.

    look, twice a second -> it changed -> it has come to rest -> started beside the old one
                                                                  |
                             pinned, and the next call has it  <--+--> the old one goes on, and why

Nobody is asked about what changed in its tools. That is for who writes them.
"""

from __future__ import annotations

import asyncio

from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.sources.changes import Changes
from callgate.sources.hosts.host_tools import HostedTools
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.plugins import Stamps, stamps

LOOK_EVERY_S = 0.5


async def watch(hosted: HostedTools | None) -> None:
    """Look after the plugins of all hosts, until cancelled."""
    if hosted is None:
        say("callgate: --dev: the settings name no hosts")
        return
    say("callgate: --dev: what changes in the plugins of hosts is accepted without asking")
    async with asyncio.TaskGroup() as watching:
        for settings in hosted.settings:
            watching.create_task(_watch(hosted, settings, stamps(settings.command, settings.cwd)))


async def _watch(hosted: HostedTools, settings: HostSettings, known: Stamps) -> None:
    seen = known
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        before, seen = seen, stamps(settings.command, settings.cwd)
        if seen == known or seen != before:  # nothing is new, or somebody is still writing
            continue
        known = seen
        say(f"callgate: host {settings.name}: {await _take_over(hosted, settings.name)}")


async def _take_over(hosted: HostedTools, host: str) -> str:
    """Have the new version serve; returns what happened."""
    try:
        changes = await hosted.relearn(host)
    except (ToolError, ToolRegistrationError, OSError) as error:
        return f"its new version is not used, the old one goes on: {visible(str(error))}"
    left_out = hosted.left_out(host)
    problems = [f"tool {tool!r} is not offered: {left_out[tool]}" for tool in left_out]
    return visible("; ".join([f"its new version serves: {_summary(changes)}", *problems]))


def _summary(changes: Changes) -> str:
    if not changes:
        return "its tools are described as before"
    tools = (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed))
    lines = [f"{', '.join(names)} {change}" for change, names in tools if names]
    return "; ".join([*lines, *(f"{each.path} changed" for each in changes.about)])
