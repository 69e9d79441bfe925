"""The built-in tools, and the sandbox that the user's settings put around commands."""

from __future__ import annotations

import os

import msgspec

from callgate.config.home import Home
from callgate.config.policies import PathRules
from callgate.config.schema import SandboxLimitsTable, Settings
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.sandboxes import OFF, Surroundings
from callgate.sandbox import allowed_hosts
from callgate.sandbox.default_limits import default_limits
from callgate.sandbox.jails import Limits, Network, Profile
from callgate.tools.files import DeleteFile, ListDir, PatchFile, ReadFile, WriteFile
from callgate.tools.search import FindFiles, SearchText
from callgate.tools.shell import Shell

BUILT_IN: tuple[ToolFactory, ...] = (
    ReadFile,
    WriteFile,
    PatchFile,
    ListDir,
    DeleteFile,
    FindFiles,
    SearchText,
    Shell,
)


def surroundings(home: Home, settings: Settings) -> Surroundings:
    """What the settings put around commands."""
    sandbox = settings.sandbox
    if sandbox == "off":
        return OFF
    named = sandbox.network if isinstance(sandbox.network, list) else []
    word = sandbox.network if isinstance(sandbox.network, str) else "hosts" if named else "none"
    return Surroundings(
        profile=Profile(sandbox.profile),
        network=Network(word),
        hosts=tuple(map(allowed_hosts.parse, named)),
        home=os.path.expanduser("~"),
        callgate_home=home.path,
        readable=tuple(map(os.path.expanduser, sandbox.readable)),
        writable=tuple(map(os.path.expanduser, sandbox.writable)),
        hidden=tuple(map(os.path.expanduser, sandbox.hidden)),
        protected=tuple(map(os.path.normpath, sandbox.protected)),
        limits=_limits(sandbox.limits),
        path_rules=PathRules(home, BUILT_IN),
    )


def _limits(table: SandboxLimitsTable) -> Limits:
    """What the settings say, and for the rest what this machine suggests."""
    values = msgspec.structs.asdict(table).items()
    chosen = {k: None if v in (0, "none") else v for k, v in values if v is not None}
    return msgspec.structs.replace(default_limits(), **chosen)
