"""`callgate serve`: an instance that other programs reach through a socket, until it is told
to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from callgate.cli.embedded import open_runtime
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.serving.detach import detach
from callgate.cli.serving.maintenance import Upkeep
from callgate.cli.serving.watchdog import watch_runtime
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.instance_records import usual_socket
from callgate.config.load import SettingsError
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolErrorClass, ToolPermissionDenied
from callgate.core.sessions import Session
from callgate.core.version import __version__
from callgate.policy.rules import is_within
from callgate.surfaces.http.access import Access, private_name, reap_tokens, token_path
from callgate.surfaces.http.addresses import (
    USUAL_HOST,
    USUAL_PORT,
    Address,
    BadAddress,
    Names,
    bind,
    read_address,
)
from callgate.surfaces.http.dependencies import Dependencies, Served
from callgate.surfaces.http.lazy_server import LazyHttpServer
from callgate.surfaces.socket.instances import Instance, publish, reap, withdraw
from callgate.surfaces.socket.listening import (
    CannotListen,
    Listener,
    expect_many,
    fitting,
    handed_over,
    listen,
)
from callgate.surfaces.socket.server import SocketServer
from callgate.surfaces.unfinished import Unfinished
from callgate.wiring.runtime import Wired

LOG = "serve.log"
"""In the home: what an instance in the background has to say."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(options: Namespace) -> int:
    refuse_within_a_call("callgate serve")
    roots = [os.path.realpath(os.path.expanduser(each)) for each in options.workspaces or ["."]]
    for root in roots:
        if not os.path.isdir(root):
            raise CliError(f"--workspace: {root} is not a directory")
    options.workspace = roots[0]
    home = Home.from_environment()
    home.make()
    ready = detach(os.path.join(home.path, LOG)) if options.detach else None
    wired, session = open_runtime(options, audit=True, log="warning")
    listener = _listen(options.socket, home, roots)
    if not is_within(listener.path, home.path):  # which is hidden anyway
        wired.sandbox.hide(os.path.dirname(listener.path))
    instance = Instance(
        pid=os.getpid(),
        socket=listener.path,
        label=options.label or os.path.basename(roots[0]) or "root",
        cwd=roots[0],
        version=__version__,
        started_at=time.time_ns() // 1_000_000,
    )
    unfinished = Unfinished()
    http = _http(options, wired, session, roots, instance, home, unfinished)
    if http is not None:
        instance = instance._replace(http=http.url)
    expect_many()
    beside = _watch_plugins(wired) if options.dev else None
    ended = asyncio.run(
        _serve(wired, session, roots, listener, instance, home, unfinished, ready, beside, http)
    )
    return OK if ended is None else FAILED


def _watch_plugins(wired: Wired) -> Callable[[], Coroutine[Any, Any, None]]:
    from callgate.cli.hosts.dev_reload import watch  # lazy: only for --dev  # noqa: PLC0415

    return partial(watch, wired.hosts)


def _http(
    options: Namespace,
    wired: Wired,
    session: Session,
    roots: list[str],
    instance: Instance,
    home: Home,
    unfinished: Unfinished,
) -> LazyHttpServer | None:
    """The HTTP address: the one that was asked for, the usual one, or any if that is taken."""
    if options.no_http:
        return None
    address = _address(options)
    try:
        listening = bind(address)
    except BadAddress as error:
        if options.http is not None:
            raise _cannot_listen(str(error)) from error
        listening = bind(Address(USUAL_HOST, 0))
    if not address.is_local:
        say(f"callgate: {address.written} is open to other machines, and nothing is encrypted")
    bound = Address(address.host, listening.getsockname()[1])
    names = Names(bound, private_name(home.path) if bound.is_local else None)
    settings = wired.settings
    served = Served(
        pid=instance.pid,
        version=instance.version,
        started_at=instance.started_at / 1000,
        workspaces=roots,
        mode=session.mode,
        ceiling=session.mode if options.mode else None,
        model=settings.model,
        models=sorted(settings.models),
        home=home.path,
        audit=home.audit,
    )
    dependencies = Dependencies(
        runtime=wired.runtime,
        open_session=partial(_session, wired, session, roots),
        open_agent=wired.open_agent,
        hosts=wired.hosting,
        served=served,
        access=Access(token_path(home.path, instance.pid)),
        names=names,
        skills=lambda: wired.skills,
        refresh=wired.policies.refresh,
        unfinished=unfinished,
    )
    return LazyHttpServer(listening, dependencies)


def _address(options: Namespace) -> Address:
    if options.http is None:
        return Address(USUAL_HOST, USUAL_PORT)
    try:
        return read_address(options.http, allow_remote=options.http_allow_remote)
    except BadAddress as error:
        raise CliError(
            f"--http: {error}", hint="With --http-allow-remote it may be seen by other machines."
        ) from error


def _listen(path: str | None, home: Home, roots: list[str]) -> Listener:
    """The socket: the one we were started for, the one that was asked for, or the usual one."""
    try:
        listener = handed_over() if path is None else None
        if listener is None:
            listener = listen(path or fitting(usual_socket(home.path)))
    except CannotListen as error:
        raise _cannot_listen(str(error)) from error
    directory = os.path.realpath(os.path.dirname(listener.path))
    if any(is_within(root, directory) for root in roots):
        listener.close()
        raise _cannot_listen(
            f"{directory} holds a workspace, so the socket there cannot be hidden from commands: "
            "put it into a directory of its own"
        )
    return listener


def _cannot_listen(problem: str) -> CliError:
    return CliError(
        problem,
        hint="callgate status shows what runs.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="cannot_listen",
    )


async def _serve(
    wired: Wired,
    session: Session,
    roots: list[str],
    listener: Listener,
    instance: Instance,
    home: Home,
    unfinished: Unfinished,
    ready: Callable[[], None] | None,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    http: LazyHttpServer | None = None,
) -> str | None:
    """Returns why it ended, if nobody asked for that. `beside` is done meanwhile."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stopped.set)

    def open_session(cwd: str | None, id: str) -> Session:
        return _session(wired, session, roots, cwd, id)

    server = SocketServer(wired.runtime, open_session, wired.hosting, unfinished)
    log, refresh = os.path.join(home.path, LOG), wired.policies.refresh
    upkeep = Upkeep(home.path, instance, server, listener, log, refresh)
    try:
        server.start(listener)
        reap(home.path)
        reap_tokens(home.path)
        if http is not None:
            http.start()
        publish(home.path, instance)
        _announce(listener.path, instance.http)
        if ready is not None:
            ready()
        watch_runtime(wired, to_stderr=True)  # now that stderr is the log, where there is one
        wired.warm()
        async with asyncio.TaskGroup() as working:
            besides = None if beside is None else working.create_task(beside())
            watching = working.create_task(upkeep.watch())
            watching.add_done_callback(lambda _: stopped.set())
            await stopped.wait()
            ended = watching.result() if watching.done() else None
            say("callgate: stopping" + (f": {ended}" if ended else ""))
            watching.cancel()
            if besides is not None:
                besides.cancel()
        return ended
    finally:
        withdraw(home.path, instance)
        if http is not None:
            http.stop_accepting()
        await server.close()
        upkeep.listener.close()
        if http is not None:
            await http.close()
        await wired.close()


def _session(
    wired: Wired,
    like: Session,
    roots: list[str],
    cwd: str | None,
    id: str,
) -> Session:
    """A session in a peer's directory, if this instance serves it or the user trusts it."""
    if cwd is not None and not os.path.isabs(cwd):
        raise ToolPermissionDenied("clientInfo.cwd must be absolute.", reason="cwd_relative")
    if cwd is not None and "\0" in cwd:
        raise ToolPermissionDenied("clientInfo.cwd is not a path.", reason="cwd_invalid")
    try:
        real = roots[0] if cwd is None else os.path.realpath(cwd)
        if not any(is_within(real, root) for root in roots) and not is_trusted(wired.home, real):
            raise ToolPermissionDenied(
                f"{real} is not served here. Start callgate serve with --workspace for it, or "
                "trust it with callgate trust.",
                reason="workspace_not_served",
            )
        if not os.path.isdir(real):
            raise ToolPermissionDenied(f"{real} is not a directory.", reason="workspace_gone")
        session = wired.session(real, like.mode)
    except SettingsError as error:
        raise ToolPermissionDenied(str(error), reason="settings_invalid") from error
    except OSError as error:
        raise ToolPermissionDenied(
            f"{cwd or roots[0]} cannot be used: {error.strerror or error}", reason="workspace_gone"
        ) from error
    session.id = id
    return session


def _announce(path: str, url: str | None) -> None:
    """Say that peers may come: to a person or script, and to systemd."""
    print(f"callgate: listening on {path}", flush=True)
    if url is not None:
        print(f"callgate: dashboard at {url}: callgate dashboard logs a browser in", flush=True)
    notify_socket = os.environ.get("NOTIFY_SOCKET")
    if notify_socket:
        address = "\0" + notify_socket[1:] if notify_socket.startswith("@") else notify_socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            try:
                notify.connect(address)
                notify.sendall(b"READY=1")
            except OSError as error:
                print(f"callgate: systemd was not told: {error}", file=sys.stderr)
