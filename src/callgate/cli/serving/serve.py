"""`callgate serve`: an instance that other programs reach through a socket, until it is told
to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from callgate.cli.embedded import open_runtime
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.serving.detach import detach
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.instance.directories import ServedDirectories, served_roots
from callgate.instance.errors import CannotServe
from callgate.instance.instance import Instance
from callgate.instance.listeners import USUAL_HTTP, Endpoints
from callgate.instance.log_file import LOG
from callgate.instance.systemd import notify_ready
from callgate.instance.watchdog import watch_runtime
from callgate.surfaces.http.addresses import Address, BadAddress, read_address
from callgate.wiring.runtime import Wired

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(options: Namespace) -> int:
    refuse_within_a_call("callgate serve")
    roots = _roots(options)
    options.workspace = roots[0]
    if options.idle is not None and not options.no_http:
        raise CliError("--idle is for an instance without HTTP", hint="Add --no-http.")
    home = Home.from_environment()
    home.make()
    ready = detach(os.path.join(home.path, LOG)) if options.detach else None
    wired, session = open_runtime(options, audit=True, log="warning")
    addresses = _addresses(options)
    instance = Instance(
        wired,
        ServedDirectories(wired, roots, session.mode),
        Endpoints(options.socket, addresses),
        label=options.label,
        ceiling=session.mode if options.mode else None,
        owns_process=True,
    )
    for address in addresses:
        if not address.is_local:
            say(f"callgate: {address.written} is open to other machines, and nothing is encrypted")
    try:
        ended = asyncio.run(_serve(instance, wired, ready, options))
    except CannotServe as error:
        raise CliError(
            str(error),
            hint="callgate status shows what runs.",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="cannot_listen",
        ) from error
    return OK if ended is None else FAILED


def _roots(options: Namespace) -> list[str]:
    try:
        return served_roots(options.workspaces or ())
    except CannotServe as error:
        raise CliError(f"--workspace: {error}") from error


def _addresses(options: Namespace) -> Sequence[Address]:
    if options.no_http:
        return ()
    if options.http is None:
        return USUAL_HTTP
    try:
        return (read_address(options.http, allow_remote=options.http_allow_remote),)
    except BadAddress as error:
        raise CliError(
            f"--http: {error}", hint="With --http-allow-remote it may be seen by other machines."
        ) from error


async def _serve(
    instance: Instance, wired: Wired, ready: Callable[[], None] | None, options: Namespace
) -> str | None:
    """Serve until a signal comes; returns why it ended, if nobody asked for that."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stopped.set)
    async with instance:
        _announce(instance)
        if ready is not None:
            ready()
        watch_runtime(wired, to_stderr=True)  # now that stderr is the log, where there is one
        instance.warm()
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(instance.wait())
            failing.add_done_callback(lambda _: stopped.set())
            others = [tasks.create_task(_watch_plugins(wired))] if options.dev else []
            idling = None
            if options.idle is not None:
                idling = tasks.create_task(instance.until_idle(options.idle * 60))
                idling.add_done_callback(lambda _: stopped.set())
                others.append(idling)
            await stopped.wait()
            ended = failing.result() if failing.done() else None
            idle = "nobody uses it" if idling is not None and idling.done() else None
            say("callgate: stopping" + (f": {why}" if (why := ended or idle) else ""))
            for task in (failing, *others):
                task.cancel()
    return ended


async def _watch_plugins(wired: Wired) -> None:
    from callgate.cli.hosts.dev_reload import watch  # lazy: only for --dev  # noqa: PLC0415

    await watch(wired.hosts)


def _announce(instance: Instance) -> None:
    """Say that peers may come: to a person or script, and to systemd."""
    print(f"callgate: listening on {instance.socket}", flush=True)
    if instance.url is not None:
        print(
            f"callgate: dashboard at {instance.url}: callgate dashboard logs a browser in",
            flush=True,
        )
    try:
        notify_ready()
    except OSError as error:
        print(f"callgate: systemd was not told: {error}", file=sys.stderr)
