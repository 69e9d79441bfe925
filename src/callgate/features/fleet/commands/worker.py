"""`callgate worker`: runs calls of a server on this machine until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from callgate.cli.commands.on_demand import detach
from callgate.cli.errors import OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import is_pool_name
from callgate.features.fleet.worker.calls import WorkerCalls
from callgate.features.fleet.worker.connection import (
    Refused,
    WorkerConfig,
    WorkerConnection,
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
        refused = [each for each in _leaves(group) if isinstance(each, Refused)]
        if not refused:
            raise
        raise CliError(
            str(refused[0]), error_class=ToolErrorClass.PERMISSION_DENIED, reason="worker_refused"
        ) from None
    return OK


def _leaves(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


async def _run(
    servers: Sequence[ServerAddress],
    config: WorkerConfig,
    calls: WorkerCalls,
    ready: Callable[[], None],
) -> None:
    """Serve until a signal arrives. Raises a group of `Refused`. `ready` is called after the first
    connection.
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


def _servers(options: Namespace) -> list[ServerAddress]:
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
