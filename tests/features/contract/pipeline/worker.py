"""Entry of a session whose workspace is on a worker; server and worker share the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Mode, Session
from callgate.features.fleet import directory
from callgate.features.fleet.pools import WorkerIdentity, WorkerLink
from callgate.features.fleet.worker.calls import WorkerCalls
from callgate.features.fleet.worker.service import WorkerService
from callgate.instance.wiring.runtime import Wired
from tests.features.contract.pipeline.cases import COMMON, ECHO, WRITE, Case, rule
from tests.features.contract.pipeline.players import Entry
from tests.features.contract.pipeline.scenes import Scene

WORKER = (
    *(case for case in COMMON if case.stop not in ("running", "queued") or case.tool == "work"),
    Case(name="no worker", tool="read_file", arguments={"path": "a.txt"}, variant="none"),
    Case(name="command without worker", tool="shell", arguments=ECHO, mode="write", variant="none"),
    Case(
        name="worker lost while it runs",
        tool="shell",
        arguments={"command": "exec sleep 60"},
        mode="write",
        variant="lost",
    ),
    Case(
        name="cancelled on the worker",
        tool="shell",
        arguments={"command": "exec sleep 60"},
        mode="write",
        variant="stopped",
    ),
    Case(name="refused by a rule of the worker", arguments=WRITE, mode="write", variant="rule"),
)


class Pooled(Entry):
    def __init__(self, scene: Scene, wired: Wired, link: WorkerLink) -> None:
        super().__init__(scene, wired)
        self.session = Session(workspace="pool:build/app", mode=Mode(scene.case.mode))
        self.link = link

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        call = ToolCall(tool=tool, arguments=arguments, session=self.session, caller=CallerKind.HTTP)
        running = asyncio.ensure_future(self.wired.runtime.calls.run(call))
        if self.scene.case.variant in ("lost", "stopped"):
            while not self.link.calls and not running.done():
                await asyncio.sleep(0.005)
            if self.scene.case.variant == "lost":
                self.link.lose()
            else:
                await self.wired.runtime.calls.cancel(call.id)
        return await running


@asynccontextmanager
async def worker(scene: Scene) -> AsyncIterator[Entry]:
    wired = Wired(Home(str(scene.home)))
    wired.register_built_in()
    for each in scene.tools():
        wired.register(each)
    scene.watch(wired)
    home = scene.base / "worker"
    home.mkdir(mode=0o700)
    if scene.case.variant == "rule":
        (home / "settings.toml").write_text(rule("deny", tool="write_file"))
    calls = WorkerCalls(Home(str(home)), {"app": str(scene.work)})
    loop = asyncio.get_running_loop()

    def to_server(data: bytes, droppable: bool) -> bool:
        loop.call_soon(link.receive, data)
        return True

    service = WorkerService(calls, {"app": str(scene.work)}, 8, to_server)
    identity = WorkerIdentity("build", "one", "0" * 16, "mine")
    link = WorkerLink(identity, lambda data: service.receive(data.rstrip(b"\n")), lambda code, reason: None)
    await directory.create_token(await wired.runtime.sessions.store(), "mine", ("build",))
    if scene.case.variant != "none":
        await wired.workers.pools.join(link)
    with ExitStack() as stack:
        if scene.case.person:
            stack.enter_context(wired.runtime.permission.attach(scene.person))
        try:
            yield Pooled(scene, wired, link)
        finally:
            await wired.workers.pools.leave(link)
            await service.close()
            calls.sandbox.close()
            await wired.close()
