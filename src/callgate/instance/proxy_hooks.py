"""The socket on which `callgate acp-proxy` answers the hook of its own agent.

    agent, in the sandbox -> its hook -> HOME/hooks/proxies/PID/PID.sock -> ProxyHooks

An agent with an installed hook is judged twice without this: by the hook, which reaches no instance
from the sandbox and refuses, and by the proxy.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Mapping, Sequence

from callgate.config.agents.settings_files import (
    AGENTS,
    hook_directory,
    proxies_directory,
    token_file,
)
from callgate.core.directories import make_private_directory
from callgate.core.sessions import Root
from callgate.surfaces.acp_proxy.hooks import ProxyHooks
from callgate.surfaces.acp_proxy.proxy import Proxy
from callgate.surfaces.hooks.listener import HookListener
from callgate.surfaces.hooks.socket_files import bind_in

_MOST_PARENTS = 64


class AgentHook:
    """The hook of one agent, while its proxy runs."""

    def __init__(self, home: str, agent: str) -> None:
        self._home, self._agent = home, agent
        self._directory = os.path.join(proxies_directory(home), str(os.getpid()))
        self._listening: socket.socket | None = None
        self._listener: HookListener | None = None

    @property
    def roots(self) -> tuple[Root, ...]:
        """What the agent has to see of our home."""
        return (Root(hook_directory(self._home, self._agent)), Root(self._directory))

    def bind(self) -> None:
        """Raises `OSError`."""
        _reap(proxies_directory(self._home))
        make_private_directory(self._directory)
        self._listening = bind_in(self._directory)

    def serve(self, proxy: Proxy, classes: Mapping[str, str]) -> None:
        assert self._listening is not None
        hooks = ProxyHooks(proxy.find_session, classes)
        self._listener = HookListener(hooks, self._home, self._listening, _is_our_descendant)
        self._listener.start()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def installed_hook(home: str, argv: Sequence[str], name: str) -> AgentHook | None:
    """The hook of callgate that the agent has; None where it has none."""
    agent = next((each for each in AGENTS if each in name.split("-")), None)
    if not argv or agent is None or not os.path.exists(token_file(home, agent)):
        return None
    return AgentHook(home, agent)


def _is_our_descendant(connection: socket.socket) -> bool:
    """Whether the agent of this proxy, or a process that it started, is at the other end. The hooks
    of all other processes have to ask an instance."""
    if not hasattr(socket, "SO_PEERCRED"):  # only Linux says which process it is
        return False
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", data)[0]
    for _ in range(_MOST_PARENTS):
        if pid == os.getpid():
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _reap(directory: str) -> None:
    """Remove what proxies left behind that were killed."""
    if os.path.isdir(directory):
        for name in os.listdir(directory):
            if not os.path.exists(f"/proc/{name}"):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
