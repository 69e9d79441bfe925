"""`callgate worker`, `workers` and `servers`: workers, their tokens, and servers of a store.

`callgate servers`: the servers that share the store, with their state.

`callgate worker`: runs calls of a server on this machine until a signal stops it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.cli.commands.on_demand import detach
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import not_found, with_store, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.secret_opening import SERVERS, key_finder
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import is_pool_name
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
from callgate.features.fleet.worker.calls import WorkerCalls
from callgate.features.fleet.worker.connection import (
    WorkerConfig,
    WorkerConnection,
    WorkerRefused,
    new_process_name,
)
from callgate.features.fleet.worker.service import (
    BadServer,
    ServerAddress,
    read_server,
    tls_context,
)
from callgate.instance.startup import LOG
from callgate.policy.rules import is_within

TOKEN = "CALLGATE_WORKER_TOKEN"  # noqa: S105  # of the variable
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def worker(options: Namespace) -> int:
    refuse_within_a_call("callgate worker")
    if options.words:
        raise CliError("callgate worker takes no arguments", hint="See callgate worker --help.")
    set_up(options.debug, "warning")
    servers = _servers(options)
    home = Home.from_environment()
    home.make()
    config = _config(options, servers, home)
    ready = detach(os.path.join(home.path, LOG)) if options.detach else lambda: None
    try:
        calls = WorkerCalls(home, config.workspaces)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    try:
        asyncio.run(_run(servers, config, calls, ready))
    except BaseExceptionGroup as group:  # an exception raised in `except*` is wrapped again
        refused = [each for each in _leaves(group) if isinstance(each, WorkerRefused)]
        if not refused:
            raise
        raise CliError(
            str(refused[0]), error_class=ToolErrorClass.PERMISSION_DENIED, reason="worker_refused"
        ) from None
    return OK


def _leaves(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else (each,))
    ]


async def _run(
    servers: Sequence[ServerAddress],
    config: WorkerConfig,
    calls: WorkerCalls,
    ready: Callable[[], None],
) -> None:
    """Serve until a signal arrives. Raises a group of `WorkerRefused`. `ready` is called after the
    first connection.
    """
    stopped, loop, process = asyncio.Event(), asyncio.get_running_loop(), new_process_name()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stopped.set)
    waiting_for_it = [ready]

    def joined() -> None:
        while waiting_for_it:
            waiting_for_it.pop()()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(WorkerConnection(each, config, calls, _say, joined).run(process))
                for each in servers
            ]
            waiting = group.create_task(stopped.wait())
            waiting.add_done_callback(lambda _: [task.cancel() for task in tasks])
    finally:
        await calls.close()


def _say(message: str) -> None:
    say(f"callgate: {visible(message)}")


def _servers(options: Namespace) -> Sequence[ServerAddress]:
    if not options.servers:
        raise CliError("callgate worker needs --server URL", hint="See callgate worker --help.")
    try:
        servers = [read_server(each, insecure=options.insecure) for each in options.servers]
    except BadServer as error:
        raise CliError(f"--server: {visible(str(error))}") from error
    for each in servers:
        if not each.encrypted and not each.local:
            _say(f"{each.url} is not encrypted: anyone on the network path can read the token")
    return servers


def _config(options: Namespace, servers: Sequence[ServerAddress], home: Home) -> WorkerConfig:
    if options.pool is None:
        raise CliError("callgate worker needs --pool NAME", hint="See callgate worker --help.")
    name = options.name or _usual_name(socket.gethostname())
    for flag, value in (("--pool", options.pool), ("--name", name)):
        if not is_pool_name(value):
            raise CliError(
                f"{flag}: {visible(value)!r} is not a valid name",
                hint="Use at most 64 letters, digits and . _ - with a letter or digit first.",
            )
    try:
        tls = tls_context(options.ca) if any(each.encrypted for each in servers) else None
    except BadServer as error:
        raise CliError(str(error)) from error
    return WorkerConfig(
        pool=options.pool,
        name=name,
        token=_token(options.token_file),
        workspaces=_workspaces(options.workspaces or ["."], home),
        slots=options.slots,
        tls=tls,
    )


def _usual_name(text: str) -> str:
    """Return a valid name for a text with any characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "worker"


def _workspaces(given: Sequence[str], home: Home) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not is_pool_name(name):
            name, path = "", each
        real = os.path.realpath(os.path.expanduser(path))
        name = name or _usual_name(os.path.basename(real))
        if not os.path.isdir(real):
            raise CliError(f"--workspace: {visible(real)} is not a directory")
        if is_within(os.path.realpath(home.path), real):
            raise CliError(
                f"--workspace: {visible(real)} contains the home of callgate, which must be hidden"
            )
        if name in found:
            raise CliError(
                f"--workspace: two directories have the name {name}",
                hint="Use --workspace NAME=DIR.",
            )
        found[name] = real
    return found


def _token(file: str | None) -> str:
    """Return the token. It is removed from the environment, so that no command of a call can read
    it.
    """
    token = os.environ.pop(TOKEN, "")
    if file is not None:
        try:
            with open(os.path.expanduser(file), encoding="ascii") as opened:
                token = opened.read(1_000).strip()
        except (OSError, UnicodeError) as error:
            raise CliError(f"--token-file: {error}") from error
    if not token:
        raise CliError(
            "callgate worker needs a token",
            hint=f"Set {TOKEN}, or use --token-file FILE. Create one on the server with:"
            " callgate workers token create --pool NAME",
        )
    return token


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
