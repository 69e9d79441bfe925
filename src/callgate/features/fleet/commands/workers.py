"""`callgate workers` and `servers`: the connected workers, and the servers of a store.

`callgate servers`: the servers that share the store, with their state.
"""

from __future__ import annotations

import json
import secrets
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import not_found, with_store, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.secret_opening import SERVERS, key_finder
from callgate.core.stores import Store
from callgate.features.fleet.carrying import Carrier, ListedServer, list_others
from callgate.features.fleet.directory import KIND as SERVER_KIND
from callgate.features.fleet.directory import (
    Description,
    Servers,
    TokenError,
    WorkerEntry,
    WorkerToken,
    connected_workers,
    create_token,
    list_tokens,
    revoke_token,
)

_PATIENCE_S = 10.0
"""Seconds of retries before a server counts as silent."""

_SERVER_HEADINGS = (Column("server"), Column("address"), Column("state"))


def servers(options: Namespace) -> int:
    found = with_store(options, _find)
    if options.json:
        print_json({"servers": [msgspec.to_builtins(each) for each in found]})
        return OK if found else FAILED
    for each in found:
        print_rows(_SERVER_HEADINGS, [(each.label, each.url, _state(each))])
        if each.warning is not None:
            print_field("  ", each.warning)
    if not found:
        print("there are no servers")
    return OK if found else FAILED


async def _find(store: Store) -> Sequence[ListedServer]:
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


_WORKER_HEADINGS = (Column("worker"), Column("version"), Column("platform"))


def list(options: Namespace) -> int:
    words(options)
    found = with_store(options, _connected)
    if options.json:
        print_json({"workers": [msgspec.to_builtins(each) for each in found]})
        return OK
    if not found:
        say("no worker is connected")
    for each in found:
        name, *about, details = _described(each)
        print_rows(_WORKER_HEADINGS, [(name, *about)])
        print_field("  ", details)
    return OK


async def _connected(store: Store) -> Sequence[WorkerEntry]:
    """Return the workers, with the addresses of their servers."""
    about = {each.name: json.loads(each.value) for each in await store.entries(SERVER_KIND)}
    return [
        replace(each, server=about.get(each.server, {}).get("url", each.server))
        for each in await connected_workers(store)
    ]


def _described(entry: WorkerEntry) -> tuple[str, str, str, str]:
    minutes = max(0, int(time.time() - entry.connected_at) // 60)
    return (
        f"{entry.pool}/{entry.name}",
        f"callgate {entry.version}",
        entry.platform,
        f"workspaces {', '.join(entry.workspaces)}; sandbox {entry.sandbox}; {entry.slots} slots;"
        f" generation {entry.generation}; connected for {minutes} min to {entry.server}",
    )


def token(options: Namespace) -> int:
    refuse_within_a_call("callgate workers token")
    match options.words:
        case ["create"]:
            return _create(options)
        case ["list"]:
            return _list(options)
        case ["revoke", name]:
            return _revoke(options, name)
    raise CliError(
        "workers token takes create --pool NAME, list, or revoke NAME",
        hint="See callgate workers token --help.",
    )


def _create(options: Namespace) -> int:
    Home.from_environment().make()
    name, pools = options.name or secrets.token_hex(4), tuple(options.pools or ())
    try:
        created = with_store(
            options, lambda store: create_token(store, name, pools, options.worker)
        )
    except TokenError as error:
        raise CliError(visible(str(error)), hint="See callgate workers token --help.") from error
    if options.json:
        bound = {} if options.worker is None else {"worker": options.worker}
        print_json({"name": name, "pools": pools, **bound, "token": created})
        return OK
    print(created)
    say(f"callgate: token {name} for {', '.join(pools)}; it is not displayed again")
    return OK


def _list(options: Namespace) -> int:
    found = with_store(options, list_tokens)
    if options.json:
        print_json({"tokens": [_shown(each) for each in found]})
        return OK
    if not found:
        say("there are no worker tokens")
    for each in found:
        bound = f"  worker {each.worker}" if each.worker else ""
        row = (each.name, f"{', '.join(each.pools)}{bound}")
        print_rows((Column("token"), Column("pools")), [row])
    return OK


def _shown(token: WorkerToken) -> dict[str, Any]:
    bound = {"worker": token.worker} if token.worker else {}
    return {"name": token.name, "pools": token.pools, **bound, "created_at": token.created_at}


def _revoke(options: Namespace, name: str) -> int:
    if not with_store(options, lambda store: revoke_token(store, name)):
        raise not_found(f"there is no worker token {visible(name)}")
    if options.json:
        print_json({"revoked": name})
    return OK
