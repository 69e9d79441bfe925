"""An instance: a runtime that other processes find by its record and reach by socket and HTTP.

Features add listeners and jobs (`Feature.services`):

    open, in the order of the features ---> local socket ---> start, in the same order
close: the reverse order of their registrations on the exit stack

All surfaces of an instance share one `Draining` and check it before they start work:

    accepting ---SIGTERM---> draining: running calls continue, no new ones start ---> the end

    created ---async with---> listening, published, maintained ---end---> withdrawn, stopped, closed
                                             |                     ^
                                             +------- drain -------+

At its end it withdraws its record first, accepts no more peers, stops running calls,
sends the replies, and closes the runtime. After `drain`, running calls may finish. A failed start
leaves nothing behind. A program starts one with `callgate.serve`:

    async with callgate.serve(["."], tools=[count_words], http="127.0.0.1:0") as instance:
        await instance.wait()
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Protocol

from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.core.sessions import Mode
from callgate.core.stores import EngineTooOld, MissingPackage, StoreError, StoreMisconfigured
from callgate.core.tasks import start_task
from callgate.core.tools import ToolFactory
from callgate.core.version import __version__
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.feature import FEATURES, load
from callgate.instance.maintenance import LOOK_EVERY_S, IdlePruning, Maintenance, Memory, Usage
from callgate.instance.startup import (
    LOG,
    USUAL_HTTP,
    CannotServe,
    Endpoints,
    ServedDirectories,
    listen_local,
    rotate,
    served_roots,
)
from callgate.instance.wiring.builder import build, register_configured
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import is_within
from callgate.sandbox.processes.command_marks import is_within_a_call
from callgate.socket.buffers import Unfinished
from callgate.socket.connections import SocketServer
from callgate.socket.instances import InstanceRecord, publish, reap, running, withdraw
from callgate.socket.listening import Address, BadAddress, Listener, expect_many, read_address


class Draining:
    def __init__(self) -> None:
        self.has_begun = False
        self._callbacks: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Start draining. Idempotent."""
        if not self.has_begun:
            self.has_begun = True
            for callback in list(self._callbacks):
                callback()

    def on_begin(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function when draining begins; return the function that cancels this."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None


class Service:
    """One listener or job of an instance."""

    def open(self, closing: AsyncExitStack) -> None:
        """Listen, before the instance is published. Raises `CannotServe`."""

    def start(self, closing: AsyncExitStack) -> None:
        """Start to work, once the local socket accepts connections."""


class Http(Protocol):
    """The HTTP listener of an instance."""

    @property
    def url(self) -> str: ...

    @property
    def page_url(self) -> str:
        """URL for browsers. It may differ from `url`, such as behind a load balancer."""
        ...

    @property
    def token(self) -> str: ...


class ServiceContext:
    """The instance, as far as its services need it."""

    def __init__(
        self,
        wired: Wired,
        directories: ServedDirectories,
        endpoints: Endpoints,
        ceiling: Mode | None,
        draining: Draining,
        unfinished: Unfinished,
        record: InstanceRecord,
    ) -> None:
        """No session gets a wider mode than `ceiling`."""
        self.wired = wired
        self.directories = directories
        self.endpoints = endpoints
        self.ceiling = ceiling
        self.draining = draining
        self.unfinished = unfinished
        self.record = record
        self.http: Http | None = None
        """Set by the service that listens; None: no HTTP."""

    def page_url(self) -> str | None:
        return None if self.http is None else self.http.page_url


def make_services(context: ServiceContext) -> list[Service]:
    """Create the services of all installed features, in the order of `FEATURES`."""
    features = filter(None, (load(each.name) for each in FEATURES))
    return [service for feature in features for service in feature.services(context)]


_log = logging.getLogger("callgate.serve")
_DECLARE_S = 5.0
"""How long the start waits for a store that does not answer."""
_LOOK_AGAIN_S = 0.2
"""Interval of checks while draining: the last event precedes the end of its call."""


class Instance:
    """A running instance; created by `callgate.serve`."""

    def __init__(
        self,
        wired: Wired,
        directories: ServedDirectories,
        endpoints: Endpoints,
        *,
        label: str | None = None,
        ceiling: Mode | None = None,
        owns_process: bool = False,
        environment: str | None = None,
    ) -> None:
        """Closes `wired` at its end. No session gets a wider mode than `ceiling`.

        `owns_process`: adjust limits and memory of the process for an instance alone.
        `environment`: a call with this environment started it, for calls with the same.
        """
        self.pid = os.getpid()
        self.label = label or os.path.basename(directories.roots[0]) or "root"
        self.workspaces = directories.roots
        self.runtime = wired.runtime
        self._wired = wired
        self._directories = directories
        self._endpoints = endpoints
        self._ceiling = ceiling
        self._owns_process = owns_process
        self._environment = environment
        self._draining = Draining()

    @property
    def socket(self) -> str:
        """Path of its socket."""
        return self._record.socket

    @property
    def url(self) -> str | None:
        """Its HTTP address."""
        return self._record.http

    @property
    def token(self) -> str | None:
        """The token for HTTP clients; it changes with each rotation."""
        return None if self._context.http is None else self._context.http.token

    async def wait(self) -> str:
        """Wait until it can no longer serve, for example without its home; return the reason."""
        await asyncio.wait({self._maintaining})
        return self._maintaining.result()

    async def until_idle(self, limit_s: float) -> None:
        """Wait until it was unused for this time, or is idle and must restart to read its settings.

        Then it accepts no more peers, but serves those that have just connected.
        """
        usage = Usage(limit_s)
        unlisten = self.runtime.sessions.listen(usage.note)
        while self._is_busy() or not (usage.is_over or self._wired.policies.restart_for):
            if self._is_busy():
                usage.note()
            await asyncio.sleep(min(LOOK_EVERY_S, limit_s))
        unlisten()
        self._maintenance.stop_listening()
        while True:  # a connection that was just accepted becomes busy first
            await asyncio.sleep(min(LOOK_EVERY_S, limit_s))
            if not self._is_busy():
                return

    async def drain(self, limit_s: float) -> int:
        """Accept no more work, and wait until running work has ended.

        Return how many calls and turns are still running after `limit_s`. HTTP still answers, and
        redirects new work to other servers.
        """
        changed = asyncio.Event()
        unlisten = self.runtime.sessions.listen(lambda _: changed.set())
        self._draining.begin()
        self._maintenance.stop_listening()
        try:
            async with asyncio.timeout(limit_s):
                await self.runtime.sessions.drain()
                while self.runtime.sessions.unfinished():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN_S):
                            await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            unlisten()
        return self.runtime.sessions.unfinished()

    def _is_busy(self) -> bool:
        return len(self._server) > 0 or bool(self.runtime.calls.in_flight())

    def warm(self) -> None:
        """Fork Python hosts from a warm process, if there are any."""
        self._wired.warm()

    async def __aenter__(self) -> Instance:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._wired.close)
            await self._declare_home(closing)
            self._start(closing)
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._closing.aclose()

    async def _declare_home(self, closing: AsyncExitStack) -> None:
        """Raise `CannotServe` in a copy of a home in use, and for a store that can never be used.

        If the store does not answer now, the instance ends as soon as it reports this.
        """
        if self._wired.shared is None:
            return

        async def declare() -> None:
            try:
                await self._wired.recovery.declare(await self._wired.log.store())
            except (MissingPackage, StoreMisconfigured, EngineTooOld) as error:
                self._wired.recovery.refusal = str(error)
            except StoreError as error:
                _log.warning("whether this home is a copy is not known yet: %s", error)

        declaring = start_task(declare())
        closing.callback(declaring.cancel)
        await asyncio.wait({declaring}, timeout=_DECLARE_S)
        if (why := self._refusal()) is not None:
            raise CannotServe(why)

    def _refusal(self) -> str | None:
        """Return why the instance must end, if it must."""
        if self._wired.log.is_dead:
            return "other servers consider it dead: it must be restarted"
        return self._wired.recovery.refusal

    def _start(self, closing: AsyncExitStack) -> None:
        """Never waits, so that concurrent starts in one process run one after the other."""
        home, unfinished = self._wired.home.path, Unfinished()
        listener = self._listen()
        closing.callback(listener.close)
        self._record = self._describe(listener)
        self._context = context = ServiceContext(
            self._wired,
            self._directories,
            self._endpoints,
            self._ceiling,
            self._draining,
            unfinished,
            self._record,
        )
        services = make_services(context)
        for service in services:
            service.open(closing)
        if context.http is not None:
            self._record = self._record._replace(http=context.http.url)
        elif self._endpoints.http:
            raise CannotServe("this callgate has no HTTP: serve without it")
        self._server = server = SocketServer(
            self.runtime, self._directories.open_session, self._wired.hosting, unfinished
        )
        chores = [*self._process_chores(), self._wired.policies.refresh]
        maintenance = Maintenance(home, self._record, server, listener, chores, self._refusal)
        self._maintenance = maintenance
        closing.callback(maintenance.close)  # before HTTP has drained
        closing.push_async_callback(server.close)
        server.start(listener)
        reap(home)
        for service in services:
            service.start(closing)
        closing.callback(withdraw, home, self._record)
        publish(home, self._record)
        self._maintaining = start_task(maintenance.run())
        closing.callback(self._maintaining.cancel)
        self._recovering = start_task(self._wired.recovery.watch())
        closing.callback(self._recovering.cancel)
        pruning = IdlePruning(self.runtime, self._wired.home, self._sound_settings)
        closing.callback(start_task(pruning.run()).cancel)

    def _sound_settings(self) -> Settings | None:
        policies = self._wired.policies
        return policies.settings if policies.problem is None else None

    def _listen(self) -> Listener:
        home = self._wired.home.path
        if any(each.pid == self.pid for each in running(home)):  # one record per process
            raise CannotServe(f"this process serves {home} already")
        listener = listen_local(self._endpoints.socket, home, self.workspaces)
        if not is_within(listener.path, home):  # the home is hidden anyway
            self._wired.sandbox.hide(os.path.dirname(listener.path))
        return listener

    def _describe(self, listener: Listener) -> InstanceRecord:
        return InstanceRecord(
            pid=self.pid,
            socket=listener.path,
            label=self.label,
            cwd=self.workspaces[0],
            version=__version__,
            started_at=time.time_ns() // 1_000_000,
            workspaces=self._directories.untrusted_roots,
            environment=self._environment,
        )

    def _process_chores(self) -> list[Callable[[], object]]:
        """Return periodic work for a process that is only an instance."""
        if not self._owns_process:
            return []
        expect_many()
        log = os.path.join(self._wired.home.path, LOG)
        return [Memory().tidy, partial(rotate, log)]


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
    """Serve other programs for as long as the `async with` lasts, like `callgate serve`.

    Raises `CannotServe` if that is not possible.

    Args:
        workspaces: the directory or directories for peers; default: the current one.
        tools: in addition to the built-in and configured ones.
        socket: default: the one that systemd passed, or `run/callgate.sock` in the home.
        http: `"HOST:PORT"`, or True for 127.0.0.1:4177 or else any free port.
        http_allow_remote: `http` may be an address that other machines can reach.
        mode: the widest mode of a session; default: the mode in the settings, as initial mode.
        label: name of the instance for other programs; default: the name of the first directory.
        confirm: receives the questions about the calls of all peers. Without it another approver
            answers, or calls that need approval are refused.
        home: the directory of settings, sessions and the audit log; default: `CALLGATE_HOME`.
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
                attached.enter_context(wired.runtime.permission.attach(confirm))
            instance.warm()
            yield instance


def _open(home: Home, workspace: str) -> Wired:
    """Create the runtime. Runs in a thread, because it starts new hosts."""
    home.make()
    return build(home, workspace, register_configured)


def _addresses(http: str | bool, *, allow_remote: bool) -> Sequence[Address]:
    if isinstance(http, bool):
        return USUAL_HTTP if http else ()
    try:
        return (read_address(http, allow_remote=allow_remote),)
    except BadAddress as error:
        raise CannotServe(f"{error} (http_allow_remote permits that)") from error
