"""`callgate servers`: the servers that share the store, and how each of them is."""

from __future__ import annotations

import time
from argparse import Namespace

import msgspec

from callgate.cli.errors import FAILED, OK
from callgate.cli.records.stores import with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.secrets.shared_keys import SERVERS, key_finder
from callgate.core.stores import Store
from callgate.surfaces.http.servers.carrying import Carrier
from callgate.surfaces.http.servers.directory import Description, Servers
from callgate.surfaces.http.servers.listing import ListedServer, list_others

_PATIENCE_S = 10.0
"""How long a silent server is asked again before it is reported as silent."""


def servers(options: Namespace) -> int:
    found = with_store(options, _find)
    if options.json:
        print_json({"servers": [msgspec.to_builtins(each) for each in found]})
        return OK if found else FAILED
    for each in found:
        print(visible(_line(each)))
        if each.warning is not None:
            print(visible(f"  {each.warning}"))
    if not found:
        print("no server is known")
    return OK if found else FAILED


async def _find(store: Store) -> list[ListedServer]:
    async def opened() -> Store:
        return store

    about = Description(url="", version="", label="", started_at=0.0)  # never announced
    servers = Servers(opened, about, key_finder(Home.from_environment(), SERVERS))
    carrier = Carrier(servers)
    try:
        return await list_others(servers, carrier, _PATIENCE_S)
    finally:
        await carrier.close()
        await servers.close()


def _line(server: ListedServer) -> str:
    health = "ok" if server.healthy else "silent"
    minutes = max(0, int(time.time() - server.started_at)) // 60
    parts = [
        server.label,
        server.url,
        server.version,
        health,
        f"up {minutes // 60}h{minutes % 60:02}m",
    ]
    if server.sessions is not None:
        parts.append(f"{server.sessions} sessions, {server.calls} calls")
    parts.append(f"{server.people} to ask")
    if server.skew_s is not None:
        parts.append(f"clock {server.skew_s:+.3f} s")
    return "  ".join(parts)
