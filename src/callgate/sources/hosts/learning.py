"""Hosts that nobody knows yet: started once, and pinned as they describe themselves.

Both functions are to be called where no event loop runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

from callgate.core.errors import ToolError
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.sources.hosts.provider import Hosts
from callgate.sources.logs import QUARANTINED
from callgate.sources.pins import Pinned

Answers = Mapping[str, Pinned | ToolError]
"""What each host says of itself, or why it says nothing."""
_PATIENCE_S = 2.0
"""A new host that takes longer to fail does not hold up every command that follows."""


def learn_hosts(hosts: Hosts, sandbox: Sandbox) -> Answers:
    """Start hosts that nobody knows yet, and pin what they say of themselves. Closes both."""
    given_up = {name: error for name in hosts.unknown() if (error := _given_up(hosts, name))}
    new = [name for name in hosts.unknown() if name not in given_up]
    answers = ask_hosts(hosts, sandbox, new)
    for name, answer in answers.items():
        if isinstance(answer, Pinned):
            hosts.pin_first(name, answer)
    return {**answers, **given_up}


def _given_up(hosts: Hosts, name: str) -> ToolError | None:
    """Why no command is to wait for a host again. Its log may lie, but only against itself."""
    trouble = hosts.trouble(name)
    if trouble is None or not trouble.given_up:
        return None
    return ToolError(f"{trouble.problem}; callgate hosts reload {name} tries again")


def ask_hosts(hosts: Hosts, sandbox: Sandbox, names: Collection[str]) -> Answers:
    """Start these hosts, one after the other. Pins nothing. Closes both."""
    if not names:
        return {}

    async def ask_all() -> Answers:
        await sandbox.ready()
        answers: dict[str, Pinned | ToolError] = {}
        try:
            for name in names:
                began = time.monotonic()
                try:
                    answers[name] = await hosts.ask(name)
                except ToolError as error:
                    answers[name] = error
                    if time.monotonic() - began > _PATIENCE_S:
                        hosts.hosts[name].log.note(QUARANTINED)
        finally:
            await hosts.close()
            sandbox.close()
        return answers

    return asyncio.run(ask_all())
