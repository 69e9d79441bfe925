"""How the hosts of an instance are, and having one started anew, for peers that may ask.

A peer that a running call has started may not: it would accept a changed tool for itself.
"""

from __future__ import annotations

from typing import Protocol

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.protocol.socket_v1 import frames

_WITHIN_A_CALL = "A running call has no say about hosts."


class Hosting(Protocol):
    """The hosts of a runtime; `sources.hosts.host_tools.HostedTools` is one."""

    def entries(self) -> list[frames.HostEntry]: ...

    async def renew(self, name: str, *, forget: bool) -> frames.HostEntry:
        """Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        ...


async def answer(
    hosts: Hosting | None, request: frames.ListHosts | frames.RenewHost, *, may_ask: bool
) -> frames.Reply:
    if not may_ask:
        return frames.Error(request_id=request.request_id, message=_WITHIN_A_CALL)
    if isinstance(request, frames.ListHosts):
        listed = [] if hosts is None else hosts.entries()
        return frames.HostsList(request_id=request.request_id, hosts=listed)
    try:
        if hosts is None:
            raise KeyError
        host = await hosts.renew(request.name, forget=request.forget)
    except KeyError:
        return frames.Error(request_id=request.request_id, message="There is no such host here.")
    except (ToolError, ToolRegistrationError) as error:
        return frames.Error(request_id=request.request_id, message=str(error))
    return frames.HostRenewed(request_id=request.request_id, host=host)
