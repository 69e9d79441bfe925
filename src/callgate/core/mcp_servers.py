"""`[mcp.NAME]`: an MCP server, as a command that is started or as an address."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from callgate.core.effects import SideEffects

McpName = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*\Z", max_length=32)
]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
_URL = re.compile(r"https?://((?:(?![/?#\\])[!-~])+)(?:[/?#][!-~]*)?\Z")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
NOT_FOR_A_WORKSPACE = (
    "env",
    "trusted",
    "effect",
    "effects",
    "sampling",
    "profile",
    "writable",
    "oauth",
    "login_hosts",
)
"""What lowers a guard, or hands out what is the user's: a workspace may not say it."""


class EnclosureTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[acp.mcp]`: what is around the programs that an editor wants started as MCP servers."""

    network: Literal["none", "loopback", "all"] | list[str] = "none"
    """What they may reach; a list names hosts."""
    profile: Literal["workspace", "open"] = "workspace"
    """`open`: no walls but the system's."""
    writable: list[str] = []
    """Directories beside the workspace in which they may write, such as a cache."""


class OAuthTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME.oauth]`, where a server does not register its clients itself."""

    client_id: str | None = None
    """As the server knows us."""
    client_secret_env: str | None = None
    """The variable that holds it."""
    client_metadata_url: (
        Annotated[str, msgspec.Meta(pattern=r"^https://[^/?#\s@]+/[!-~]+\Z")] | None
    ) = None
    """Where clients are described that have no registration: it is our name there."""
    scopes: list[str] = []
    """What is asked for."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """Where the browser comes back to on this machine; absent: any that is free."""


class McpTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME]`: an MCP server, as a command that is started or as an address."""

    command: str | None = None
    """The program; either this or `url`."""
    args: list[str] = []
    """Its arguments."""
    cwd: str = "."
    """Counts from the workspace."""
    env: list[str] = []
    """Names of variables that are passed on, beside the harmless ones."""
    set_env: dict[str, str] = {}
    """`${NAME}` in a value stands for a variable of ours."""
    network: Literal["none", "loopback", "all"] | list[str] = "none"
    """What it may reach; a list names hosts."""
    profile: Literal["workspace", "open"] = "workspace"
    """`open`: no walls but the system's."""
    writable: list[str] = []
    """Directories beside the workspace in which it may write, such as a cache."""
    url: str | None = None
    """The address of a server that runs elsewhere."""
    headers: dict[str, str] = {}
    """`${NAME}` in a value stands for a variable of ours."""
    oauth: OAuthTable | bool = True
    """Whether to log in where the server asks for it."""
    login_hosts: list[Annotated[str, msgspec.Meta(pattern=r"^[^\s/:@]+:([0-9]{1,5}|\*)\Z")]] = []
    """`HOST:PORT`, or `HOST:*`: where it may send us to log in though that is no public address."""
    trusted: bool = False
    """Whether what it claims of the effects of its tools counts."""
    effect: SideEffects = SideEffects.EXECUTE
    """The most that its tools can do, where `effects` does not name them."""
    effects: dict[str, SideEffects] = {}
    """By tool."""
    tools: list[str] | None = None
    """Globs: only these tools are offered."""
    exclude: list[str] = []
    """Globs: these tools are not offered."""
    paths: list[str] = []
    """Arguments that name files in the workspace."""
    timeout_s: Seconds | None = None
    """Of one call."""
    start_timeout_s: Seconds = 30.0
    """Until its tools are known."""
    fetch_timeout_s: Seconds = 600.0
    """For the packages of `npx`, `uvx` and `pipx run`, which are fetched before the first start."""
    fetch_max_bytes: Annotated[int, msgspec.Meta(gt=0)] = 2 * 1024**3
    """What they may take on the disk, with all that is needed to fetch them."""
    elicitation: bool = True
    """Whether it may ask a person something while a call runs."""
    sampling: bool = False
    """Whether it may ask our model something; a person is asked each time."""

    def problem(self) -> tuple[str, str] | None:
        """The key that is wrong, and why; None where nothing is."""
        if (self.command is None) == (self.url is None):
            return "command", "one of command and url must be given, and not both"
        if self.url is not None:
            return _url_problem(self)
        if not self.command or "\0" in "".join([self.command, *self.args]):
            return "command", "is no command"
        if self.headers:
            return "headers", "a command has none"
        return None

    @property
    def identity(self) -> tuple[str, ...]:
        """All that says what is started or reached, and with what: an approval covers no other."""
        if self.url is not None:
            return ("http", self.url, *(f"header {name}" for name in sorted(self.headers)))
        names = sorted({*self.env, *self.set_env})
        network = self.network if isinstance(self.network, str) else ",".join(self.network)
        around = [f"network {network}"] if network != "none" else []
        around += [f"profile {self.profile}"] if self.profile != "workspace" else []
        around += [f"writable {each}" for each in self.writable]
        where = [f"cwd {self.cwd}"] if self.cwd != "." else []
        return (
            "stdio",
            str(self.command),
            *self.args,
            *where,
            *(f"env {name}" for name in names),
            *around,
        )

    @property
    def values(self) -> tuple[str, ...]:
        """What variables and headers are set to. A workspace, which may not use the user's, can
        say there what a program does: it is approved, too."""
        variables = [f"{name}={value}" for name, value in sorted(self.set_env.items())]
        return (*variables, *(f"{name}: {value}" for name, value in sorted(self.headers.items())))


def _url_problem(table: McpTable) -> tuple[str, str] | None:
    found = _URL.match(str(table.url))
    if found is None:
        return "url", "must begin with http:// or https:// and name a host"
    if "@" in found[1]:
        return "url", "must hold no password: headers and oauth are for that"
    for key in ("args", "env", "set_env", "writable"):
        if getattr(table, key):
            return key, "an address has none: they are for a command"
    return None


def name_for(title: str) -> str:
    """What a server is called here that is called `said` elsewhere."""
    ours = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:32].strip("-")
    return ours if ours[:1].isalpha() else f"s-{ours}"[:32].strip("-")


class MissingVariable(ValueError):
    """A setting names a variable that is not set."""


def filled(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The same with every `${NAME}` replaced. Raises `MissingVariable`."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environ:
            raise MissingVariable(f"the variable {found[1]} is not set")
        return environ[found[1]]

    return {name: _VARIABLE.sub(value, text) for name, text in values.items()}


def expanded(path: str, workspace: str) -> str:
    return os.path.realpath(os.path.join(workspace, os.path.expanduser(path)))
