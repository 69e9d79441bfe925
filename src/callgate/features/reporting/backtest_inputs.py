"""Inputs of back-tests and rule suggestions: settings in force, other settings, and the audit log.

Files in a workspace are not read, except the settings of a workspace that the user trusts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from callgate.audit.keys import keyed_hash, make_key
from callgate.audit.reading import Filter, newest_calls, search
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_changed, load_user, load_workspace
from callgate.config.problems import key_lines, line_of
from callgate.config.schema import SandboxTable, Settings
from callgate.config.trust import is_trusted
from callgate.core.sessions import Mode, Root
from callgate.features.reporting.recorded_calls import (
    KnownTool,
    Lookups,
    PolicySettings,
    SandboxSettings,
    WorkspacePolicy,
)
from callgate.features.reporting.suggesting import Suggestions, Wanted, suggest
from callgate.policy.rules import Origin, Policy
from callgate.workspace.protected import is_protected

_MOST_DENIALS = 200_000


def settings_in_force(home: Home) -> PolicySettings:
    """Return the settings of the user's files. Raises `SettingsError`."""
    settings, user = load_user(home)
    try:
        with open(home.settings, "rb") as file:
            data = file.read()
    except OSError:  # the file does not exist
        data = b""
    return _policy_settings(settings, user, data, home.settings)


def changed_settings(home: Home, data: bytes, name: str) -> PolicySettings:
    """Return the settings with another `settings.toml` and the present saved answers.

    `data` is TOML; errors and origins use `name` for it. Raises `SettingsError`.
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


def suggested_rules(
    home: Home,
    wanted: Wanted,
    *,
    since_ms: int,
    tool: Callable[[str], KnownTool | None],
    modes: Mapping[str, Mode],
    limit: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> Suggestions:
    """Suggest rules from at most `limit` records. Raises `SettingsError`, and `OSError` of the
    log.
    """
    denials = search(home.audit, Filter(decision="deny"), _MOST_DENIALS)
    return suggest(
        settings_in_force(home),
        newest_calls(home.audit, since_ms, limit),
        [record for record, _ in reversed(denials)],
        since_ms=since_ms,
        wanted=wanted,
        lookups=lookups(home, tool),
        modes=modes,
        report=report,
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
