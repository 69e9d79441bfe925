"""Settings of editors: `[acp]` and `[permissions]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec

from callgate.config.load import hosts_problem
from callgate.config.problems import Path
from callgate.config.schema import Seconds, SettingsPart, Table
from callgate.core.sessions import Mode
from callgate.features.mcp.settings import EnclosureTable


class ProxyTable(Table, frozen=True):
    """`[acp.proxy]`: the sandbox of an agent that `callgate acp-proxy` starts."""

    network: Literal["agent", "none", "loopback", "ask", "all"] | list[str] = "agent"
    """Network access; a list contains hosts. `agent`: the known hosts of the agent's model, and
    the address in a variable such as `ANTHROPIC_BASE_URL`.
    """
    profile: Literal["workspace", "open"] = "workspace"
    """`open`: access to everything that the user may access, except callgate's home."""
    writable: list[str] = []
    """Writable directories in addition to the workspace, such as a cache."""
    readable: list[str] = []
    """Readable directories in addition to the workspace."""
    env: list[str] = []
    """Environment variables to pass on, in addition to harmless ones and the variables of known
    agents.
    """
    extensions: list[str] = []
    """Extension methods of the agent to pass to the editor, such as `_goose/*`. callgate does not
    check the editor's actions for them.
    """
    start_timeout_s: Seconds = 120.0
    """Time limit for the agent's answer to the greeting; some agents download files first."""
    cancel_patience_s: Seconds = 30.0
    """Time limit for the agent to end its turn after a cancel; then callgate stops the agent."""


class AcpTable(Table, frozen=True):
    """`[acp]`: callgate as the agent of an editor."""

    delegate_terminal: bool = True
    """Whether commands run in the editor's terminal, outside the sandbox, if the editor offers
    one.
    """
    modes: Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1)] = (
        Mode.NONE,
        Mode.READ,
        Mode.ASK,
        Mode.WRITE,
    )
    """The modes that a session in an editor may have."""
    cancel_latch_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """Seconds during which a cancel without a running prompt applies to the next prompt."""
    longest_arguments: Annotated[int, msgspec.Meta(ge=1024, le=256 * 1024)] = 64 * 1024
    """Maximum number of characters of the arguments in a question; a longer call is refused."""
    mcp: EnclosureTable = EnclosureTable()
    proxy: ProxyTable = ProxyTable()


class PermissionsTable(Table, frozen=True):
    """`[permissions]`: another spelling of `[acp] modes`."""

    enabled: Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1)] | None = None
    """Restricts `[acp] modes` to these modes."""


class EditorSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "editor"
    acp: AcpTable = AcpTable()
    permissions: PermissionsTable = PermissionsTable()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that a session in an editor may have."""
        enabled = self.permissions.enabled
        modes = self.acp.modes
        return modes if enabled is None else tuple(mode for mode in modes if mode in enabled)

    def problems(self) -> Iterator[tuple[Path, str]]:
        for name, network in (("mcp", self.acp.mcp.network), ("proxy", self.acp.proxy.network)):
            if isinstance(network, list) and (wrong := hosts_problem(network)):
                yield ("acp", name, "network"), wrong
