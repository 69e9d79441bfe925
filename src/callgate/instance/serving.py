"""`callgate.serve`: an instance inside a program.

async with callgate.serve(["."], tools=[count_words], http="127.0.0.1:0") as instance:
    await instance.wait()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager

from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.core.tools import ToolFactory
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.instance.directories import ServedDirectories, served_roots
from callgate.instance.errors import CannotServe
from callgate.instance.instance import Instance
from callgate.instance.listeners import USUAL_HTTP, Endpoints
from callgate.sandbox.processes.command_marks import is_within_a_call
from callgate.surfaces.http.addresses import Address, BadAddress, read_address
from callgate.wiring.registration import register_configured
from callgate.wiring.runtime import Wired


@asynccontextmanager
async def serve(
    workspaces: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    tools: Iterable[ToolFactory] = (),
    socket: str | os.PathLike[str] | None = None,
    http: str | bool = False,
    http_allow_remote: bool = False,
    mode: Mode | str | None = None,
    label: str | None = None,
    confirm: Confirmer | None = None,
    home: str | os.PathLike[str] | None = None,
) -> AsyncIterator[Instance]:
    """Serve other programs for as long as the `async with` lasts, as `callgate serve` does.

    Raises `CannotServe` where that is not possible.

    Args:
        workspaces: the directory or directories that peers may work in; default: here.
        tools: beside the built-in ones and those of the settings.
        socket: default: the one that systemd passed, or `run/callgate.sock` in the home.
        http: `"HOST:PORT"`, or True for 127.0.0.1:4177, or any port where that is taken.
        http_allow_remote: `http` may be an address that other machines reach.
        mode: the widest that a session may have; default: sessions begin in that of the settings.
        label: by which others may name the instance; default: the name of the first directory.
        confirm: is asked about the calls of all peers. Without it, a person answers elsewhere, or
            what must be asked is refused.
        home: where settings, sessions and the audit log lie; default: `CALLGATE_HOME`.
    """
    if is_within_a_call():
        raise CannotServe("serving is refused inside a running call: a tool cannot approve itself")
    roots = served_roots(workspaces)
    path = None if socket is None else os.fspath(socket)
    endpoints = Endpoints(path, _addresses(http, allow_remote=http_allow_remote))
    ceiling = None if mode is None else Mode(mode)
    resolved_home = Home.from_environment() if home is None else Home.at(os.fspath(home))
    wired = await asyncio.to_thread(_open, resolved_home, roots[0])
    try:
        for factory in tools:
            wired.register(factory)
        wired.check_workspace(roots[0])
    except BaseException:
        await wired.close()
        raise
    directories = ServedDirectories(wired, roots, ceiling or wired.settings.mode)
    instance = Instance(wired, directories, endpoints, label=label, ceiling=ceiling)
    with ExitStack() as attached:
        async with instance:
            if confirm is not None:
                attached.enter_context(wired.runtime.attach(confirm))
            instance.warm()
            yield instance


def _open(home: Home, workspace: str) -> Wired:
    """In a thread: hosts that are new are started and asked."""
    home.make()
    wired = Wired(home)
    register_configured(wired, workspace)
    return wired


def _addresses(http: str | bool, *, allow_remote: bool) -> Sequence[Address]:
    if isinstance(http, bool):
        return USUAL_HTTP if http else ()
    try:
        return (read_address(http, allow_remote=allow_remote),)
    except BadAddress as error:
        raise CannotServe(f"{error} (http_allow_remote permits that)") from error
