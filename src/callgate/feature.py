"""Features, the removable parts of the product, and the lists of features and built-in packages.

    FEATURES: names, settings tables and commands of each; no imports
        |  `load`: when a setting or a command needs one
    Feature: what it adds to the ports of the kernel

The kernel imports no feature. A feature is one directory below `callgate/features`; without that
directory the rest starts and works, and its settings and commands are reported as unavailable.
`load` is the only place that imports a feature by name.

`PACKS` repeats the entry points of the distribution, because reading them would make every start
slower than a call. No other module names one of the packages. Imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class Feature(NamedTuple):
    """Contributions of one feature. Each field is a port; its consumer in the kernel documents it.

    Values are functions, so that a feature imports its parts when they are used.
    """

    name: str
    settings: Callable[[], type[Any] | None] = lambda: None
    """Its settings tables, a `config.schema.SettingsPart`."""
    commands: Callable[[], Mapping[str, Any]] = dict
    """Declarations of its commands by name, for `cli.command_line`. Imports little."""
    tools: Callable[[Any], Any] | None = None
    """Source of the tools that `Listed.tools` names, for a `Wired`."""
    assemble: Callable[[Any], None] = lambda wired: None
    """Extends a `Wired` during construction, if `Listed.is_needed` by its settings."""
    ports: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    """Implementations of `Listed.ports`, by name."""
    services: Callable[[Any], Sequence[Any]] = lambda context: ()
    """`instance.services.Service`s: listeners and jobs that run as long as an instance."""
    checks: Callable[[], Mapping[str, Any]] = dict
    """Checks for `callgate doctor` by name, for `cli.commands.checks`."""


class Listed(NamedTuple):
    name: str
    needs: tuple[str, ...] = ()
    """Features that it imports: if one of them is removed, this one counts as removed, too."""
    tables: tuple[str, ...] = ()
    """Names of its settings tables."""
    commands: tuple[str, ...] = ()
    """Names of its commands, or the first word of a whole group."""
    tools: tuple[str, ...] = ()
    """Names of tools in every runtime; the look-up of one of them loads the feature."""
    ports: tuple[str, ...] = ()
    """Names of functions for the kernel (`port`)."""
    is_needed: Callable[[Any], bool] = lambda settings: False
    """Whether the settings of a runtime need the feature from the start."""


FEATURES = (
    Listed(
        "reporting",
        tables=("notify", "telemetry"),
        commands=("notify", "audit export", "policy suggest", "policy test"),
        is_needed=lambda settings: getattr(settings.table("telemetry"), "enabled", False),
    ),
    Listed("mcp", tables=("mcp",), commands=("mcp",), ports=("add_servers", "workspace_servers")),
    Listed(
        "chat",
        tables=("model", "models", "agent"),
        commands=("chat", "run", "skills", "keys", "parse"),
        tools=("spawn_agent", "update_plan"),
        ports=("offer_models", "open_agent", "open_model", "find_key", "open_embedder"),
    ),
    Listed("editor", needs=("mcp", "chat"), tables=("acp", "permissions"), commands=("acp",)),
    Listed(
        "agents",
        needs=("mcp", "chat", "editor"),
        tables=("hooks",),
        commands=("hook", "protect", "sandbox", "acp-proxy"),
        tools=("agent_none", "agent_read", "agent_write", "agent_network", "agent_execute"),
        ports=("agents_here", "hook_warnings", "shell_agents"),
    ),
    Listed("web", needs=("reporting", "mcp", "chat"), commands=("dashboard",)),
    Listed(
        "fleet",
        needs=("reporting", "mcp", "chat", "web"),
        commands=("worker", "workers", "servers"),
        ports=(
            "shared_homes",
            "database_finding",
            "database_status",
            "workers",
            "pool_site",
            "shared_pins",
            "join_servers",
            "http_routes",
        ),
        is_needed=lambda settings: bool(settings.store.is_shared),
    ),
)
"""In the order of their imports: each may import earlier ones."""


CATALOGUE = "callgate_catalogue"
"""The Python package with the tool packages, next to `callgate`."""


class ShippedPack(NamedTuple):
    name: str
    entry: str
    """`module:function`, of the entry point group `callgate.tools`."""
    tools: tuple[str, ...] = ()
    """Their names, or prefixes of names (`gmail_*`)."""
    settings: str | None = None
    """`module:class` of its `SettingsPart`."""


PACKS = (
    ShippedPack(
        "google",
        "callgate_catalogue.google.pack:pack",
        ("gmail_*", "drive_*", "calendar_*", "docs_*", "sheets_*", "tasks_*"),
        "callgate_catalogue.settings:GoogleSettings",
    ),
    ShippedPack(
        "web",
        "callgate_catalogue.web.pack:pack",
        ("web_*", "api_call"),
        "callgate_catalogue.settings:WebSettings",
    ),
    ShippedPack(
        "memory",
        "callgate_catalogue.memory.pack:pack",
        ("memory_*",),
        "callgate_catalogue.settings:MemorySettings",
    ),
    ShippedPack(
        "documents",
        "callgate_catalogue.documents.pack:pack",
        ("search", "file_*"),
        "callgate_catalogue.settings:DocumentsSettings",
    ),
    ShippedPack("speech", "callgate_catalogue.speech.pack:pack"),
)

PACK_COMMANDS = {
    "auth": "callgate_catalogue.commands:AUTH",
    "memory": "callgate_catalogue.commands:MEMORY",
}
"""First words of commands, and their entry points in the group `callgate.commands`."""


def load(name: str) -> Feature | None:
    """Return a feature; None if it or one that it needs was removed."""
    listed = next((each for each in FEATURES if each.name == name), None)
    if listed is not None and not all(map(_exists, listed.needs)):
        return None
    module = f"callgate.features.{name}"
    try:
        __import__(f"{module}.feature")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.feature".startswith(error.name):
            return None
        raise
    feature: Feature = sys.modules[f"{module}.feature"].FEATURE
    return feature


def _exists(name: str) -> bool:
    return os.path.exists(os.path.join(os.path.dirname(__file__), "features", name, "feature.py"))


def port(name: str) -> Callable[..., Any] | None:
    """Return the function that a feature provides under a name; None if it was removed."""
    owner = next(each for each in FEATURES if name in each.ports)
    feature = load(owner.name)
    return None if feature is None else feature.ports[name]


def load_entry(value: str) -> Any:
    """Return the object `module:attribute`. Imports the module, which may raise anything."""
    module, _, attribute = value.partition(":")
    __import__(module)
    return getattr(sys.modules[module], attribute)
