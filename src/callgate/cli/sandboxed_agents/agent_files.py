"""Files in a workspace that an agent or git would run outside of the sandbox later. They are
read-only in it; the agent's own directories in the user's home are those of `agent_homes`."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from callgate.cli.errors import CliError
from callgate.config.agents.settings_files import AGENTS, settings_files
from callgate.sandbox.jails import Jail, below_any, is_below


def without_later_runs(jail: Jail, workspace: str, *, is_agent: bool) -> Jail:
    """The jail in which nothing can be changed or made that an agent or git runs outside of it.
    Of a link on the way its place cannot be kept: an agent does not run then."""
    root, real = os.path.abspath(workspace), os.path.realpath(workspace)
    protected = set(jail.protected)
    for path in map(os.path.abspath, _run_later(workspace)):
        if not is_below(path, root) or path == root or not below_any(real, jail.writable):
            continue
        place = os.path.normpath(os.path.join(real, os.path.relpath(path, root)))
        if below_any(place, (*jail.protected, *(path for path, _ in jail.replacements))):
            continue
        link = _link_on(place, real)
        if link is None:
            protected.add(place)
        elif is_agent:
            raise CliError(
                f"{link} is a link, which cannot be kept in its place in the sandbox",
                hint="Put what it names there in its stead.",
            )
    return msgspec.structs.replace(jail, protected=tuple(sorted(protected)))


def _link_on(path: str, root: str) -> str | None:
    """The first link from below a root to a path."""
    step = root
    for name in os.path.relpath(path, root).split("/"):
        step = os.path.join(step, name)
        if os.path.islink(step):
            return step
    return None


def _run_later(workspace: str) -> Iterable[str]:
    for each in AGENTS:
        for path in settings_files(each, workspace):
            # No placeholder for a missing file of the workspace: the keeper refuses to create it.
            if os.path.lexists(path):
                yield path
