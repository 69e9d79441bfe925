"""An instance: a runtime that others reach through a socket and HTTP, and find by its records.

    made ---async with---> listening, published, maintained ---end---> withdrawn, stopped, closed
                                             |                   ^
                                             +------ drain ------+

Its end takes the record back first, then no more peers are taken, what runs is stopped, answers
go out, and the runtime is closed. With `drain` before it, what runs may end by itself. If it
cannot begin, nothing of it is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

from callgate.config.schema import Settings
from callgate.config.secrets.opening import preload
from callgate.config.secrets.sealing import SecretsError
from callgate.core.sessions import Mode
from callgate.core.stores import EngineTooOld, MissingPackage, StoreError, StoreMisconfigured
from callgate.core.task_sets import start_task
from callgate.core.version import __version__
from callgate.instance.agent_hooks import AgentHooks
from callgate.instance.directories import ServedDirectories
from callgate.instance.errors import CannotServe
from callgate.instance.http import open_http
from callgate.instance.idle_pruning import IdlePruning
from callgate.instance.listeners import Endpoints, listen_local
from callgate.instance.log_file import LOG, rotate
from callgate.instance.maintenance import LOOK_EVERY_S, Maintenance
from callgate.instance.memory_release import Memory
from callgate.instance.question_notices import QuestionNotices
from callgate.instance.usage import Usage
from callgate.policy.rules import is_within
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.access import Access, reap_tokens
from callgate.surfaces.http.lazy_server import LazyHttpServer
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.http.servers.shared_access import SharedAccess
from callgate.surfaces.socket.instances import InstanceRecord, publish, reap, running, withdraw
from callgate.surfaces.socket.listening import Listener, expect_many
from callgate.surfaces.socket.server import SocketServer
from callgate.surfaces.unfinished import Unfinished
from callgate.wiring.runtime import Wired

_log = logging.getLogger("callgate.serve")
_DECLARE_S = 5.0
"""How long the start waits for a store that does not answer."""
_LOOK_AGAIN_S = 0.2
"""What ends is told by an event just before it is over."""


class Instance:
    """What runs and where; made by `callgate.serve`."""

    def __init__(
        self,
        wired: Wired,
        directories: ServedDirectories,
        endpoints: Endpoints,
        *,
        label: str | None = None,
        ceiling: Mode | None = None,
        owns_process: bool = False,
    ) -> None:
        """It closes `wired` at its end. No session gets a wider mode than `ceiling`. With
        `owns_process` it sets limits and memory of the process as suits an instance alone."""
        self.pid = os.getpid()
        self.label = label or os.path.basename(directories.roots[0]) or "root"
        self.workspaces = directories.roots
        self.runtime = wired.runtime
        self._wired = wired
        self._directories = directories
        self._endpoints = endpoints
        self._ceiling = ceiling
        self._owns_process = owns_process
        self._http: LazyHttpServer | None = None
        self._access: Access | None = None
        self._draining = Draining()
        self._hooks = AgentHooks(wired, directories, self._draining)

    @property
    def socket(self) -> str:
        """Where it listens."""
        return self._record.socket

    @property
    def url(self) -> str | None:
        """Where it answers HTTP."""
        return self._record.http

    @property
    def token(self) -> str | None:
        """What a client has to show over HTTP; another one once it was rotated."""
        return None if self._access is None else self._access.token

    async def wait(self) -> str:
        """Wait until it can serve no longer, its home being gone, say; returns why."""
        await asyncio.wait({self._maintaining})
        return self._maintaining.result()

    async def until_idle(self, limit_s: float) -> None:
        """Wait until nobody has used it for so long, or it would have to start anew to read its
        settings. From then on it takes no more peers; those who came just then are served."""
        usage = Usage(limit_s)
        unlisten = self.runtime.listen(usage.note)
        while self._is_busy() or not (usage.is_over or self._wired.policies.restart_for):
            if self._is_busy():
                usage.note()
            await asyncio.sleep(min(LOOK_EVERY_S, limit_s))
        unlisten()
        self._maintenance.stop_listening()
        while True:  # one that was taken just now joins first
            await asyncio.sleep(min(LOOK_EVERY_S, limit_s))
            if not self._is_busy():
                return

    async def drain(self, limit_s: float) -> int:
        """Take no more work, and wait until what runs has ended; returns how many calls and turns
        had not after `limit_s`. HTTP goes on to answer: who asks for work is sent elsewhere."""
        changed = asyncio.Event()
        unlisten = self.runtime.listen(lambda _: changed.set())
        self._draining.begin()
        self._maintenance.stop_listening()
        try:
            async with asyncio.timeout(limit_s):
                await self.runtime.drain()
                while self.runtime.unfinished():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN_S):
                            await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            unlisten()
        return self.runtime.unfinished()

    def _is_busy(self) -> bool:
        return len(self._server) > 0 or bool(self.runtime.in_flight())

    def warm(self) -> None:
        """Have hosts in Python forked from a warm process, where there may be any."""
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
        """Raises `CannotServe` in a copy of a home that is in use, and for a store that can never
        be used. Where the store does not say so now, the instance ends as soon as it does."""
        if self._wired.sharing is None:
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
        """Why it must not go on."""
        if self._wired.log.is_dead:
            return "other servers took it for dead: it has to start anew"
        return self._wired.recovery.refusal

    def _start(self, closing: AsyncExitStack) -> None:
        """Nothing here waits: of two who start in one process, one is first."""
        home, unfinished = self._wired.home.path, Unfinished()
        listener = self._listen()
        closing.callback(listener.close)
        self._record = self._describe(listener)
        if self._endpoints.http:
            self._http, self._access = self._open_http(unfinished)
            closing.push_async_callback(self._http.close)
            self._record = self._record._replace(http=self._http.url)
        self._server = server = SocketServer(
            self.runtime, self._directories.open_session, self._wired.hosting, unfinished
        )
        chores = [*self._process_chores(), self._wired.policies.refresh]
        maintenance = Maintenance(home, self._record, server, listener, chores, self._refusal)
        self._maintenance = maintenance
        closing.callback(maintenance.close)  # before HTTP has drained
        closing.push_async_callback(server.close)
        server.start(listener)
        closing.push_async_callback(self._hooks.close)
        self._hooks.start()
        reap(home)
        reap_tokens(home)
        if self._http is not None:
            closing.callback(self._http.stop_accepting)
            self._http.start()
            self._join_servers(self._http.servers, closing)
        closing.callback(withdraw, home, self._record)
        publish(home, self._record)
        self._maintaining = start_task(maintenance.run())
        closing.callback(self._maintaining.cancel)
        self._recovering = start_task(self._wired.recovery.watch())
        closing.callback(self._recovering.cancel)
        if self._wired.sharing is not None:
            closing.callback(start_task(self._wired.sharing.follow()).cancel)
            closing.callback(start_task(self._preload_secrets()).cancel)
        if isinstance(self._access, SharedAccess):
            closing.callback(start_task(self._access.follow()).cancel)
        notices = QuestionNotices(self._wired, self._page_url)
        closing.callback(start_task(notices.run()).cancel)
        pruning = IdlePruning(self.runtime, self._wired.home, self._sound_settings)
        closing.callback(start_task(pruning.run()).cancel)

    def _page_url(self) -> str | None:
        return None if self._http is None else self._http.page_url

    async def _preload_secrets(self) -> None:
        """Have the secrets of the shared store at hand: no reader in the event loop waits."""
        try:
            await asyncio.to_thread(preload, self._wired.home)
        except SecretsError as error:
            _log.warning("secrets of the shared store are not at hand: %s", error)

    def _join_servers(self, servers: Servers | None, closing: AsyncExitStack) -> None:
        """Be one of the servers that share the store."""
        if servers is not None:
            closing.push_async_callback(servers.close)
            closing.callback(self.runtime.ask_elsewhere(servers.has_person_for))
            servers.start()

    def _sound_settings(self) -> Settings | None:
        policies = self._wired.policies
        return policies.settings if policies.problem is None else None

    def _listen(self) -> Listener:
        home = self._wired.home.path
        if any(each.pid == self.pid for each in running(home)):  # one record a process
            raise CannotServe(f"this process serves {home} already")
        listener = listen_local(self._endpoints.socket, home, self.workspaces)
        if not is_within(listener.path, home):  # which is hidden anyway
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
        )

    def _open_http(self, unfinished: Unfinished) -> tuple[LazyHttpServer, Access]:
        return open_http(
            self._endpoints.http,
            self._wired,
            self._directories,
            self._record,
            self._ceiling,
            unfinished,
            self._draining,
        )

    def _process_chores(self) -> list[Callable[[], object]]:
        """What a process needs that is nothing but an instance."""
        if not self._owns_process:
            return []
        expect_many()
        log = os.path.join(self._wired.home.path, LOG)
        return [Memory().tidy, partial(rotate, log)]
