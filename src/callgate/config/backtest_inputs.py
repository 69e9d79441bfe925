"""Settings read for a back-test (`policy.backtesting`): those in force, and others in their place.

Files in a workspace are not read, but for its own settings, where the user trusts it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from callgate.audit.keys import keyed_hash, make_key
from callgate.config.home import Home
from callgate.config.lines import key_lines, line_of
from callgate.config.load import SettingsError, load_changed, load_user, load_workspace
from callgate.config.schema import SandboxTable, Settings
from callgate.config.trust import is_trusted
from callgate.core.sessions import Root
from callgate.policy.backtesting.inputs import (
    KnownTool,
    Lookups,
    PolicySettings,
    SandboxSettings,
    WorkspacePolicy,
)
from callgate.policy.rules import Origin, Policy
from callgate.workspace.protected import is_protected


def settings_in_force(home: Home) -> PolicySettings:
    """What the user's files say. Raises `SettingsError`."""
    settings, user = load_user(home)
    try:
        with open(home.settings, "rb") as file:
            data = file.read()
    except OSError:  # there is none
        data = b""
    return _policy_settings(settings, user, data, home.settings)


def changed_settings(home: Home, data: bytes, name: str) -> PolicySettings:
    """What would hold with another `settings.toml`, and the same saved answers.

    `data` is TOML, which errors and origins call `name`. Raises `SettingsError`.
    """
    return _policy_settings(*load_changed(home, data, name), data, name)


def lookups(home: Home, tool: Callable[[str], KnownTool | None]) -> Lookups:
    def workspace_policy(path: str) -> WorkspacePolicy | None:
        try:
            policy = load_workspace(path) if is_trusted(home, path) else None
        except SettingsError:
            return None
        return WorkspacePolicy(os.path.realpath(path), policy)

    return Lookups(
        home=os.path.realpath(home.path),
        tool=tool,
        workspace=workspace_policy,
        is_protected=is_protected,
        recorded_hash=partial(keyed_hash, make_key(home.audit)),
    )


def _policy_settings(settings: Settings, user: Policy, data: bytes, name: str) -> PolicySettings:
    line = line_of(key_lines(data.decode("utf-8", "replace")), ("tools", "disable"))
    return PolicySettings(
        user=user,
        mode=settings.mode,
        roots=tuple(
            Root(os.path.realpath(os.path.expanduser(root.path)), root.access == "write")
            for root in settings.workspace.extra_roots
        ),
        disabled=dict.fromkeys(settings.tools.disable, Origin(name, line)),
        sandbox=_sandbox(settings),
    )


def _sandbox(settings: Settings) -> SandboxSettings | None:
    table = settings.sandbox
    if not isinstance(table, SandboxTable):
        return None
    return SandboxSettings(table.profile == "open" or table.network == "all", table)
