"""`callgate serve`: an instance that other programs reach through a socket, until it is told
to stop."""

from __future__ import annotations

import asyncio
import logging
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
from callgate.config.agents.settings_files import DIRECTORY as HOOKS_DIRECTORY
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.core.task_sets import TaskSet
from callgate.instance.directories import ServedDirectories, served_roots
from callgate.instance.errors import CannotServe
from callgate.instance.instance import Instance
from callgate.instance.listeners import USUAL_HTTP, Endpoints
from callgate.instance.log_file import LOG
from callgate.instance.systemd import notify_ready
from callgate.instance.watchdog import Watchdog, watch_runtime
from callgate.surfaces.http.addresses import Address, BadAddress, read_address
from callgate.wiring.runtime import Wired

_log = logging.getLogger("callgate.serve")
_AT_ONCE = (signal.SIGINT, signal.SIGHUP)
"""A person at the terminal, or one who left it; after SIGTERM what runs may end."""


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
    ending = _Ending()
    stopped = ending.wanted
    async with instance:
        _announce(instance)
        _warn(instance, wired.home.path)
        if ready is not None:
            ready()
        # now that stderr is the log, where there is one
        watchdog = watch_runtime(wired, to_stderr=True)
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
            if ending.may_drain:
                await _drain(instance, wired, watchdog, ending)
            say("callgate: stopping" + (f": {why}" if (why := ended or idle) else ""))
            for task in (failing, *others):
                task.cancel()
    return ended


class _Ending:
    """What signals ask for: the first SIGTERM a drain, any other an end at once."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.may_drain = False
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        for each in _AT_ONCE:
            loop.add_signal_handler(each, self._end)

    def _terminate(self) -> None:
        if self.wanted.is_set():
            self._end()
        else:
            self.may_drain = True
            self.wanted.set()

    def _end(self) -> None:
        self.at_once.set()
        self.wanted.set()


async def _drain(
    instance: Instance, wired: Wired, watchdog: Watchdog | None, ending: _Ending
) -> None:
    """Let what runs end, within the limit of the settings, or until a second signal comes."""
    limit_s = wired.settings.instance.drain_seconds
    count = instance.runtime.unfinished()
    if watchdog is not None:
        watchdog.allow(limit_s)
    if count and limit_s:
        say(f"callgate: draining: {count} under way, which have {limit_s:g} s to end")
    tasks = TaskSet(_log, "the drain failed")
    drained = tasks.start(instance.drain(limit_s))
    interrupted = tasks.start(ending.at_once.wait())
    await asyncio.wait({drained, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    tasks.cancel()
    if watchdog is not None:
        watchdog.allow(0.0)
    left = instance.runtime.unfinished()
    if left:
        say(f"callgate: {left} under way did not end in time, and are stopped")


async def _watch_plugins(wired: Wired) -> None:
    from callgate.cli.hosts.dev_reload import watch  # lazy: only for --dev  # noqa: PLC0415

    await watch(wired.hosts)


def _warn(instance: Instance, home: str) -> None:
    """Name the agents whose hooks do not protect."""
    from callgate.cli.hooks.checks import warnings  # lazy: only with hooks  # noqa: PLC0415

    if os.path.isdir(os.path.join(home, HOOKS_DIRECTORY)):
        for warning in warnings(home, instance.workspaces):
            say(f"callgate: {warning}")


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
