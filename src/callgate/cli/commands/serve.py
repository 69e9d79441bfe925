"""`callgate serve`, `status` and `stop`: run an instance for other programs, show it, and stop it.

`callgate status` and `callgate stop`: the running instances of this home.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import datetime

from callgate.cli.commands.on_demand import detach
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.instance_http import InstanceHttp, end_instance, note_provenance, state_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui import provenance
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.home_check import HOOKS
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass
from callgate.core.tasks import TaskSet
from callgate.feature import load, port
from callgate.instance.instance import Instance
from callgate.instance.startup import (
    LOG,
    USUAL_HTTP,
    CannotServe,
    Endpoints,
    ServedDirectories,
    login_directory,
    notify_ready,
    served_roots,
    trusted_roots,
    until_logout,
)
from callgate.instance.watchdog import Watchdog, watch_runtime
from callgate.instance.wiring.runtime import Wired
from callgate.socket.instances import InstanceRecord, origin_in_words, running
from callgate.socket.instances import running as instances
from callgate.socket.listening import Address, BadAddress, read_address

_LISTENER_S = 3.0
_LISTENERS = {
    "proven": "is this instance",
    "foreign": "is ANOTHER process, not this instance: do not send it a token",
    "silent": "does not answer",
}

_HEADINGS = (Column("pid"), Column("name"), Column("runs"), Column("socket"))


def status(options: Namespace) -> int:
    home = Home.from_environment().path
    running = instances(home)
    states = [state_of(each) for each in running]
    listening = [_listener_of(home, each) for each in running]
    for each, state in zip(running, states, strict=True):
        provenance.from_instance_at(each.socket, state.policy)
    if options.json:
        found = [
            {
                **each._asdict(),
                "reachable": each.is_reachable,
                "http_listener": listener,
                **state._asdict(),
            }
            for each, state, listener in zip(running, states, listening, strict=True)
        ]
        print_json({"instances": found})
        return OK if running else FAILED
    for each, state, listener in zip(running, states, listening, strict=True):
        since = datetime.fromtimestamp(each.started_at / 1000).strftime("%Y-%m-%d %H:%M:%S")
        where = each.socket if each.is_reachable else f"{each.socket} (missing)"
        print_rows(_HEADINGS, [(str(each.pid), each.label, f"since {since}", where)])
        print_field("  ", state.in_words + origin_in_words(each))
        if listener is not None:
            print_field("  ", f"{each.http} {_LISTENERS[listener]}")
    if not running:
        print("no instance runs")
    return OK if running else FAILED


def _listener_of(home: str, instance: InstanceRecord) -> str | None:
    """Return the kind of process at the HTTP address of an instance; None if it has none."""
    if instance.http is None:
        return None
    return {True: "proven", False: "foreign", None: "silent"}[
        InstanceHttp(home, instance).is_proven(_LISTENER_S)
    ]


def stop(options: Namespace) -> int:
    refuse_within_a_call("callgate stop")
    if len(options.words) > 1:
        raise CliError(f"unexpected argument {options.words[1]!r}")
    home = Home.from_environment().path
    instance = _find(home, options.words[0] if options.words else None)
    note_provenance(instance)
    end_instance(home, instance, now=options.now)
    if options.json:
        print_json({"stopped": instance.pid})
    else:
        print(f"stopped {instance.pid} ({instance.label})")
    return OK


def _find(home: str, name: str | None) -> InstanceRecord:
    fitting = [each for each in running(home) if name in (None, str(each.pid), each.label)]
    if name is None:  # an instance that a call started ends without help
        fitting = [each for each in fitting if each.environment is None] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(f"{each.pid} ({each.label})" for each in fitting)
        raise CliError(f"several instances run; name one of {names}", reason="ambiguous")
    raise CliError(
        "no instance runs" if name is None else f"no instance {name!r} runs",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )


_log = logging.getLogger("callgate.serve")
_AT_ONCE = (signal.SIGINT, signal.SIGHUP)
"""Signals of the terminal, which stop running calls. SIGTERM lets them finish."""


def serve(options: Namespace) -> int:
    refuse_within_a_call("callgate serve")
    home = Home.from_environment()
    roots = _roots(options, home)
    options.workspace = roots[0]
    if options.idle is not None and not options.no_http:
        raise CliError("--idle works only without HTTP", hint="Add --no-http.")
    home.make()
    ready = detach(os.path.join(home.path, LOG)) if options.detach else None
    wired, session = open_runtime(options, audit=True, log="warning")
    addresses = _addresses(options)
    instance = Instance(
        wired,
        ServedDirectories(wired, roots, session.mode, only_trusted=options.trusted),
        Endpoints(options.socket, addresses),
        label=options.label or ("trusted" if options.trusted else None),
        ceiling=session.mode if options.mode else None,
        owns_process=True,
        environment=options.environment,
    )
    for address in addresses:
        if not address.is_local:
            say(f"callgate: {address.written} is open to other machines, without encryption")
    try:
        ended = asyncio.run(_serve(instance, wired, ready, options))
    except CannotServe as error:
        raise CliError(
            str(error),
            hint="callgate status lists the running instances.",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="cannot_listen",
        ) from error
    return OK if ended is None else FAILED


def _roots(options: Namespace, home: Home) -> list[str]:
    if options.trusted and options.workspaces:
        raise CliError("--trusted and --workspace exclude each other", hint="Leave one out.")
    try:
        if options.trusted:
            return trusted_roots(home)
        return served_roots(options.workspaces or ())
    except CannotServe as error:
        raise CliError(f"--workspace: {error}") from error
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def _addresses(options: Namespace) -> Sequence[Address]:
    if options.no_http:
        return ()
    if options.http is None:
        return USUAL_HTTP if load("web") is not None else ()
    try:
        return (read_address(options.http, allow_remote=options.http_allow_remote),)
    except BadAddress as error:
        raise CliError(
            f"--http: {error}", hint="Use --http-allow-remote to listen for other machines."
        ) from error


async def _serve(
    instance: Instance, wired: Wired, ready: Callable[[], None] | None, options: Namespace
) -> str | None:
    """Serve until a signal arrives; return the reason of another end, or None."""
    ending = _Ending()
    stopped = ending.wanted
    async with instance:
        _announce(instance)
        _warn(instance, wired.home.path)
        if ready is not None:
            ready()
        # after `ready`, which redirects stderr to the log
        watchdog = watch_runtime(wired, to_stderr=True)
        instance.warm()
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(instance.wait())
            failing.add_done_callback(lambda _: stopped.set())
            others = [tasks.create_task(_watch_plugins(wired))] if options.dev else []
            idling = leaving = None
            if options.idle is not None:
                idling = tasks.create_task(instance.until_idle(options.idle * 60))
                idling.add_done_callback(lambda _: stopped.set())
                others.append(idling)
            if options.environment is not None and (login := login_directory()) is not None:
                leaving = tasks.create_task(until_logout(login))
                leaving.add_done_callback(lambda _: ending.terminate())
                others.append(leaving)
            await stopped.wait()
            ended = failing.result() if failing.done() else None
            idle = "no client uses it" if idling is not None and idling.done() else None
            if leaving is not None and leaving.done():
                idle = "the user has logged out"
            if ending.may_drain:
                await _drain(instance, wired, watchdog, ending)
            say("callgate: stopping" + (f": {why}" if (why := ended or idle) else ""))
            for task in (failing, *others):
                task.cancel()
    return ended


class _Ending:
    """Effect of signals: the first SIGTERM starts a drain, any other signal stops immediately."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.may_drain = False
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        for each in _AT_ONCE:
            loop.add_signal_handler(each, self._end)

    def terminate(self) -> None:
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
    """Let running calls finish, up to the limit of the settings or a second signal."""
    limit_s = wired.settings.instance.drain_seconds
    count = instance.runtime.sessions.unfinished()
    if watchdog is not None:
        watchdog.allow(limit_s)
    if count and limit_s:
        say(f"callgate: waiting up to {limit_s:g} s for {count} in flight")
    tasks = TaskSet(_log, "the drain failed")
    drained = tasks.start(instance.drain(limit_s))
    interrupted = tasks.start(ending.at_once.wait())
    await asyncio.wait({drained, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    tasks.cancel()
    if watchdog is not None:
        watchdog.allow(0.0)
    left = instance.runtime.sessions.unfinished()
    if left:
        say(f"callgate: {left} in flight did not finish in time, and are stopped")


async def _watch_plugins(wired: Wired) -> None:
    from callgate.cli.hosts.reloads import watch  # lazy: only for --dev  # noqa: PLC0415

    await watch(wired.hosts)


def _warn(instance: Instance, home: str) -> None:
    """Print warnings about agents whose hooks do not protect."""
    warnings = port("hook_warnings") if os.path.isdir(os.path.join(home, HOOKS)) else None
    if warnings is not None:
        for warning in warnings(home, instance.workspaces):
            say(f"callgate: {warning}")


def _announce(instance: Instance) -> None:
    """Announce readiness to the terminal or script, and to systemd."""
    print(f"callgate: listening on {instance.socket}", flush=True)
    if instance.url is not None:
        print(
            f"callgate: dashboard at {instance.url}: log in with callgate dashboard",
            flush=True,
        )
    try:
        notify_ready()
    except OSError as error:
        print(f"callgate: systemd was not notified: {error}", file=sys.stderr)
