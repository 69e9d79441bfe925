"""What many tests build on: a dispatcher with everything real but the disk it records to."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from callgate.audit.records import CallRecord
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import Command, Launcher, OnOutput
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.events import TERMINAL, Event
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox
from callgate.dispatch.dispatcher import CallLimits, ToolDispatcher
from callgate.dispatch.permission.asking import Confirmations
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.dispatch.permission.deciding import Authority
from callgate.dispatch.permission.flows import Flows
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.running import StopLimits
from callgate.events.log import SessionLog
from callgate.policy.decide import Rulebook
from callgate.policy.rules import Policy
from callgate.sandbox.processes.broker_client import BrokeredProcess, BrokerLauncher, BrokerProcess
from tests.memory_store import MemoryStore, Tables


def descriptors() -> set[str]:
    """What this process holds open. Collected first: what an earlier test forgot must not close now."""
    gc.collect()
    return set(os.listdir("/dev/fd"))


QUICK = CallLimits(stop=StopLimits(grace_s=0.02, abandon_s=0.3, slot_s=0.5))


class Recorder:
    """An event sink and an audit log that remember everything."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.records: list[CallRecord] = []
        self.key = b"the key of the tests"
        self.unwritable: OSError | None = None
        self._changed = asyncio.Event()

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def ensure_open(self) -> None:
        if self.unwritable is not None:
            raise self.unwritable

    def append(self, record: CallRecord, *, is_stored: bool = False) -> None:
        if self.unwritable is not None:
            raise self.unwritable
        self.records.append(record)

    def request_sync(self) -> Future[None]:
        synced: Future[None] = Future()
        synced.set_result(None)
        return synced

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.events if event.type == event_type]

    def one(self, event_type: str) -> Event:
        (event,) = self.of(event_type)
        return event

    @property
    def terminal(self) -> list[Event]:
        return [event for event in self.events if event.type in TERMINAL]

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until the events so far meet a condition."""
        async with asyncio.timeout(60):
            while not met():
                self._changed.clear()
                await self._changed.wait()

    async def seen(self, event_type: str, count: int = 1) -> Event:
        await self.until(lambda: len(self.of(event_type)) >= count)
        return self.of(event_type)[-1]


class FakeHuman:
    """Answers each question with the next of its answers, and remembers the questions."""

    def __init__(self, *answers: Answer | bool | str) -> None:
        self.answers = list(answers)
        self.questions: list[Confirmation] = []

    async def __call__(self, question: Confirmation) -> Answer | bool | str:
        self.questions.append(question)
        return self.answers.pop(0)


class UnwalledLauncher:
    """Starts commands with nothing around them, each by a broker that is closed when it ends."""

    async def start(self, command: Command, on_output: OnOutput) -> BrokeredProcess:
        process = BrokerProcess()
        try:
            running = await BrokerLauncher(process, None).start(command, on_output)
        except BaseException:
            process.close()
            raise
        running.then(process.close)
        return running


class Unwalled(Sandbox):
    """Starts commands with nothing around them; nothing has to be closed."""

    def launcher(self, enclosure: Enclosure, session: Session) -> Launcher:
        return UnwalledLauncher()


async def _no_preview(call: Any, subject: Any) -> None:
    return None


class Bench:
    """A dispatcher, a session, and what they recorded."""

    def __init__(
        self,
        workspace: Any = "/",
        *tools: Any,
        policy: Policy = Policy(),
        narrowed_by: Policy | None = None,
        mode: Mode = Mode.ASK,
        human: Any = None,
        confirmation_timeout_s: float = 5.0,
        limits: CallLimits = QUICK,
        save: Any = None,
        tables: Tables | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.recorder = Recorder()
        book = Rulebook(policy, narrowed_by)
        policies = lambda workspace: book  # noqa: E731
        self.tables = tables if tables is not None else Tables()
        self.log = SessionLog(self._open_store)
        self.confirmations = Confirmations(self.log, confirmation_timeout_s)
        self.grants = Grants(self.log)
        self.saved: list[tuple[ToolCall, Any, Answer]] = []
        self.dispatcher = ToolDispatcher(
            authority=Authority(
                policies=policies,
                grants=self.grants,
                flows=Flows(self.log, self.recorder, self.grants),
                confirmations=self.confirmations,
                preview=_no_preview,
                save=lambda *args: self.saved.append(args),
            ),
            files=CallFiles(policies),
            sink=self.recorder,
            log=self.log,
            audit=self.recorder,
            limits=limits,
            sandbox=Unwalled(OFF) if sandbox is None else sandbox,
        )
        for tool in tools:
            self.dispatcher.register(tool)
        self.session = Session(workspace=str(workspace), mode=mode)
        self.human = human
        if human is not None:
            self._attached = self.confirmations.attach(human)
            self._attached.__enter__()

    async def _open_store(self) -> MemoryStore:
        return MemoryStore(self.tables)

    def tool_call(self, tool: str, arguments: Any = None, **more: Any) -> ToolCall:
        more.setdefault("session", self.session)
        more.setdefault("caller", CallerKind.CLI)
        return ToolCall(tool=tool, arguments={} if arguments is None else arguments, **more)

    async def run(self, tool: str, arguments: Any = None, **more: Any) -> Any:
        return await self.dispatcher.run(self.tool_call(tool, arguments, **more))

    def start(self, tool: str, arguments: Any = None, **more: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.run(tool, arguments, **more))


NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


def make_tool(
    name: str = "probe",
    effect: SideEffects | None = SideEffects.NONE,
    schema: dict[str, Any] | None = None,
    run: Callable[[dict[str, Any], ToolContext], Any] | None = None,
    on_cancel: Callable[[], Any] | None = None,
    **definition: Any,
) -> Callable[[], Any]:
    """A factory of a tool whose body is `run(input, context)`, plain or async."""
    made = ToolDefinition(
        name=name,
        description=f"The tool {name}.",
        input_schema=NO_ARGUMENTS if schema is None else schema,
        side_effects=effect,
        **definition,
    )

    class Probe:
        definition = made

        async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
            result = run(input, context) if run is not None else "ok"
            if asyncio.iscoroutine(result):
                result = await result
            if isinstance(result, str):
                return ToolOutput(content=[TextBlock(result)])
            return result

        async def cancel(self) -> bool:
            return bool(on_cancel()) if on_cancel is not None else False

    return Probe


LIMIT_S = 60


class HeldWork:
    """Says when it begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.free = threading.Semaphore(0)
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.begun.release()
        assert self.free.acquire(timeout=LIMIT_S)
