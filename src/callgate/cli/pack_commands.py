"""Commands of third-party packages, from the entry point group `callgate.commands`.

They are searched only if a word is not a command of callgate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.cli.command import Command
from callgate.cli.errors import CliError
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.feature import load_entry
from callgate.sources.installed_packs import Entry, installed, why


def commands_of(first: str) -> Mapping[str, Command]:
    """Return the commands of packages that begin with this word.

    Raises `CliError` if the package is not enabled or cannot be used.
    """
    entry = next((each for each in installed("callgate.commands") if each.name == first), None)
    if entry is None:
        return {}
    if entry.problem is not None:
        raise _unusable(entry, entry.problem)
    packs = {each.name for each in installed("callgate.tools") if each.package == entry.package}
    if not {first, *packs} & _enabled():
        raise CliError(
            f"the command {first!r} belongs to the package {entry.package}, which is not enabled",
            hint=f"Add {min(packs, default=first)!r} to [packs] enable in your settings.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="not_enabled",
        )
    try:
        found = load_entry(entry.value)
    except (Exception, SystemExit) as error:  # the package's own code
        raise _unusable(entry, why(error)) from error
    if not _are_commands(found, first):
        raise _unusable(
            entry, f"{entry.value} is not a table of commands that begin with {first!r}"
        )
    return dict(found)


def _enabled() -> set[str]:
    try:
        return set(load_user(Home.from_environment())[0].packs.enable)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None


def _are_commands(found: Any, first: str) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(name, str)
        and name.split()[:1] == [first]
        and isinstance(command, Command)
        and command.run is not None
        for name, command in found.items()
    )


def _unusable(entry: Entry, problem: str) -> CliError:
    return CliError(
        f"the command {entry.name!r} of the package {entry.package} cannot be used: {problem}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="package_unusable",
    )
