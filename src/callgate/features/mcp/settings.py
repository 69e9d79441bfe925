"""Settings of MCP servers: `[mcp.NAME]` and `[acp.mcp]`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from callgate.config.load import hosts_problem, read_workspace
from callgate.config.problems import Path
from callgate.config.schema import SettingsPart
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
    "unix_sockets",
    "oauth",
    "login_hosts",
)
"""Keys that a workspace may not set: they widen access or pass on data of the user."""


class EnclosureTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[acp.mcp]`: the sandbox of MCP servers that an editor starts."""

    network: Literal["none", "loopback", "ask", "all"] | list[str] = "none"
    """Network access. A list names hosts; `ask` requires approval of each host on first contact."""
    profile: Literal["workspace", "open"] = "workspace"
    """Sandbox profile; `open` gives access to the network and to all files of the user, except
    callgate's home."""
    writable: list[str] = []
    """Writable directories outside the workspace, such as a cache."""
    unix_sockets: bool = False
    """Whether the processes of one server may connect to each other over Unix sockets. Browsers
    need them."""


class OAuthTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME.oauth]`: the OAuth client, for servers without client registration."""

    client_id: str | None = None
    """The client id that the server issued."""
    client_secret_env: str | None = None
    """The environment variable with the client secret."""
    client_metadata_url: (
        Annotated[str, msgspec.Meta(pattern=r"^https://[^/?#\s@]+/[!-~]+\Z")] | None
    ) = None
    """URL of a client metadata document, used as the client id instead of a registration."""
    scopes: list[str] = []
    """Requested OAuth scopes."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """Local port of the OAuth callback; absent: any free port."""


class McpTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME]`: an MCP server, either a local command or a URL."""

    command: str | None = None
    """The program. Set either `command` or `url`."""
    args: list[str] = []
    """Arguments of the program."""
    cwd: str = "."
    """Working directory, relative to the workspace."""
    env: list[str] = []
    """Environment variables to pass on, in addition to harmless ones such as `PATH`."""
    set_env: dict[str, str] = {}
    """Environment variables to set. `${NAME}` inserts a variable of callgate's environment."""
    network: Literal["none", "loopback", "ask", "all"] | list[str] = "none"
    """Network access. A list names hosts; `ask` requires approval of each host on first contact."""
    profile: Literal["workspace", "open"] = "workspace"
    """Sandbox profile; `open` gives access to the network and to all files of the user, except
    callgate's home."""
    writable: list[str] = []
    """Writable directories outside the workspace, such as a cache."""
    unix_sockets: bool = False
    """Whether the server's processes may connect to each other over Unix sockets. Browsers need
    them. Sockets of this machine's services stay inaccessible, except in the workspace."""
    url: str | None = None
    """URL of a remote server."""
    headers: dict[str, str] = {}
    """HTTP headers. `${NAME}` inserts a variable of callgate's environment."""
    oauth: OAuthTable | bool = True
    """Whether to log in if the server requires it."""
    login_hosts: list[Annotated[str, msgspec.Meta(pattern=r"^[^\s/:@]+:([0-9]{1,5}|\*)\Z")]] = []
    """Login servers, `HOST:PORT` or `HOST:*`, that are allowed without a public address."""
    trusted: bool = False
    """Whether the effects that the server declares for its tools are accepted."""
    effect: SideEffects = SideEffects.EXECUTE
    """Effect of each tool that `effects` does not name."""
    effects: dict[str, SideEffects] = {}
    """Effect by tool name."""
    tools: list[str] | None = None
    """Globs of the tools to offer; absent: all tools."""
    exclude: list[str] = []
    """Globs of tools that are not offered."""
    paths: list[str] = []
    """Tool arguments that contain paths of workspace files."""
    timeout_s: Seconds | None = None
    """Time limit of one call."""
    start_timeout_s: Seconds = 30.0
    """Time limit of a start, including the list of tools."""
    fetch_timeout_s: Seconds = 600.0
    """Time limit for fetching packages of `npx`, `uvx` and `pipx run` before the first start."""
    fetch_max_bytes: Annotated[int, msgspec.Meta(gt=0)] = 2 * 1024**3
    """Maximum disk space of these packages and of their download, in bytes."""
    elicitation: bool = True
    """Whether the server may ask a person for input while a call runs."""
    sampling: bool = False
    """Whether the server may send prompts to callgate's model; each needs approval."""

    def problem(self) -> tuple[str, str] | None:
        """Return the first invalid key and the reason, or None."""
        if (self.command is None) == (self.url is None):
            return "command", "and url are alternatives: set exactly one of them"
        if self.url is not None:
            return _url_problem(self)
        if not self.command or "\0" in "".join([self.command, *self.args]):
            return "command", "is empty or contains a NUL byte"
        if self.headers:
            return "headers", "cannot be combined with command"
        return None

    @property
    def identity(self) -> tuple[str, ...]:
        """Everything that identifies the server and its access. An approval covers one identity."""
        if self.url is not None:
            return ("http", self.url, *(f"header {name}" for name in sorted(self.headers)))
        names = sorted({*self.env, *self.set_env})
        network = self.network if isinstance(self.network, str) else ",".join(self.network)
        around = [f"network {network}"] if network != "none" else []
        around += [f"profile {self.profile}"] if self.profile != "workspace" else []
        around += [f"writable {each}" for each in self.writable]
        around += ["unix_sockets"] if self.unix_sockets else []
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
        """Values of variables and headers. They can change the behavior of a program, so they are
        part of the approved identity of a workspace's server."""
        variables = [f"{name}={value}" for name, value in sorted(self.set_env.items())]
        return (*variables, *(f"{name}: {value}" for name, value in sorted(self.headers.items())))


def _url_problem(table: McpTable) -> tuple[str, str] | None:
    found = _URL.match(str(table.url))
    if found is None:
        return "url", "must begin with http:// or https:// and name a host"
    if "@" in found[1]:
        return "url", "must not contain a password: use headers or oauth"
    for key in ("args", "env", "set_env", "writable", "unix_sockets"):
        if getattr(table, key):
            return key, "cannot be combined with url"
    return None


def name_for(title: str) -> str:
    """Return the name in the settings for a server with this title elsewhere."""
    ours = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:32].strip("-")
    return ours if ours[:1].isalpha() else f"s-{ours}"[:32].strip("-")


class MissingVariable(ValueError):
    """A setting names a variable that is not set."""


def filled(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values with every `${NAME}` replaced. Raises `MissingVariable`."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environ:
            raise MissingVariable(f"the variable {found[1]} is not set")
        return environ[found[1]]

    return {name: _VARIABLE.sub(value, text) for name, text in values.items()}


def expanded(path: str, workspace: str) -> str:
    return os.path.realpath(os.path.join(workspace, os.path.expanduser(path)))


class McpSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "mcp"
    mcp: dict[McpName, McpTable] = {}

    def problems(self) -> Iterator[tuple[Path, str]]:
        for name, table in self.mcp.items():
            if (problem := table.problem()) is not None:
                yield ("mcp", name, problem[0]), problem[1]
            elif isinstance(table.network, list) and (wrong := hosts_problem(table.network)):
                yield ("mcp", name, "network"), wrong


def load_workspace_mcp(workspace: str) -> Mapping[str, McpTable]:
    """Return the MCP servers of a workspace's settings. The caller checks that it is trusted."""
    settings, file = read_workspace(workspace)
    servers, plain = settings.of(McpSettings).mcp, McpTable()
    for name, table in servers.items():
        for key in NOT_FOR_A_WORKSPACE:
            if getattr(table, key) != getattr(plain, key):
                raise file.error(("mcp", name, key), f"a workspace may not set {key} of a server")
        if any("${" in text for text in (*table.set_env.values(), *table.headers.values())):
            raise file.error(("mcp", name), "a workspace may not use variables of the user")
    return servers
