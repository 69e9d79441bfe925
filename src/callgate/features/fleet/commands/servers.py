"""`callgate servers`: the servers that share the store, with their state."""

from __future__ import annotations

import time
from argparse import Namespace

import msgspec

from callgate.cli.errors import FAILED, OK
from callgate.cli.stores import with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.config.home import Home
from callgate.config.secret_opening import SERVERS, key_finder
from callgate.core.stores import Store
from callgate.features.fleet.carrying import Carrier, ListedServer, list_others
from callgate.features.fleet.directory import Description, Servers

_PATIENCE_S = 10.0
"""Seconds of retries before a server counts as silent."""

_HEADINGS = (Column("server"), Column("address"), Column("state"))


def servers(options: Namespace) -> int:
    found = with_store(options, _find)
    if options.json:
        print_json({"servers": [msgspec.to_builtins(each) for each in found]})
        return OK if found else FAILED
    for each in found:
        print_rows(_HEADINGS, [(each.label, each.url, _state(each))])
        if each.warning is not None:
            print_field("  ", each.warning)
    if not found:
        print("there are no servers")
    return OK if found else FAILED


async def _find(store: Store) -> list[ListedServer]:
    async def opened() -> Store:
        return store

    # not announced to other servers
    about = Description(url="", version="", label="", started_at=0.0)
    servers = Servers(opened, about, key_finder(Home.from_environment(), SERVERS))
    carrier = Carrier(servers)
    try:
        return await list_others(servers, carrier, _PATIENCE_S)
    finally:
        await carrier.close()
        await servers.close()


def _state(server: ListedServer) -> str:
    health = "ok" if server.healthy else "silent"
    minutes = max(0, int(time.time() - server.started_at)) // 60
    fields = [
        server.version,
        health,
        f"up {minutes // 60}h{minutes % 60:02}m",
    ]
    if server.sessions is not None:
        fields.append(f"{server.sessions} sessions, {server.calls} calls")
    fields.append(f"{server.people} approvers")
    if server.skew_s is not None:
        fields.append(f"clock {server.skew_s:+.3f} s")
    return "  ".join(fields)
