"""Many servers on one store in virtual time: they work, die, stop and come back; messages are late or lost.

    server ---ops---> [network: late, lost] ---> batch ---> store ---> [late, lost] ---> server
                              |                    |
                       sent again, the same     checked against what must hold (`rules`)

One seed gives one schedule. A server knows only what it was told. A stopped server counts as gone
after a while; when it goes on it first does what it was about to do, then learns that it was taken
for dead and starts anew under another name.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from callgate.core.effects import SideEffects
from callgate.core.events import CALLED, COMPLETED, CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED, Event
from callgate.core.ops import (
    Acquire,
    Append,
    ExpireConfirmations,
    FinishCall,
    NewSession,
    PutConfirmation,
    Reap,
    Release,
    ResolveConfirmation,
    StartCall,
)
from callgate.core.stored import CallState, ConfirmationState
from callgate.core.stores import SessionLocked, StaleOwner
from tests.features.fleet.simulation.engines import Engine, Ops, Outcome
from tests.features.fleet.simulation.rules import CAP, Rules

TICK_S = 0.02
SILENT_S = 3.0
RESEND_S = 1.0
_ABOUT: dict[str, Any] = {"tool": "shell", "side_effects": SideEffects.EXECUTE, "arguments_sha256": "a"}


class Request:
    """Ops on their way, and who hears of the outcome."""

    def __init__(self, server: Server, ops: Ops, heard: Callable[[Outcome], None]) -> None:
        self.server = server
        self.owner = server.owner
        self.ops = ops
        self.heard = heard
        self.is_answered = False


class Server:
    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.lives = 0
        self.state = "dead"
        self.begin()

    def begin(self) -> None:
        """A new process, under a name that no other ever has."""
        self.lives += 1
        self.owner = f"own_{self.number}_{self.lives}"
        self.state = "up"
        self.fences: dict[str, int] = {}
        self.running: dict[str, str] = {}
        """Calls, and their sessions."""
        self.starting: dict[str, str] = {}
        self.finishing: set[str] = set()
        self.asked: dict[str, tuple[str, str]] = {}
        """Calls that wait: their sessions and questions."""
        self.unheard: list[Callable[[], None]] = []
        self.simulation.set_alive(self.owner, True)

    def act(self) -> None:
        dice = self.simulation.dice
        wanted: list[Callable[[], None]] = [self.acquire]
        if self.fences:
            wanted += [self.append, self.append, self.start, self.start, self.ask]
            wanted += [self.release] if dice.random() < 0.1 else []
        if self.running:
            wanted += [self.finish] * 3
        wanted += [self.answer] if self.simulation.questions else []
        dice.choice(wanted)()

    def acquire(self) -> None:
        session = self.simulation.some_session()
        if session in self.fences or len(self.fences) >= 4:
            return

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, SessionLocked):
                return
            (fence,) = outcome
            self.fences[session] = fence
            self.simulation.go_on_with_questions(self, session)

        self.send(Acquire(session=session, owner=self.owner, at=self.simulation.now), heard=heard)

    def fenced(self) -> tuple[str, int]:
        session = self.simulation.dice.choice(sorted(self.fences))
        return session, self.fences[session]

    def lose(self, session: str) -> None:
        self.fences.pop(session, None)
        for calls in (self.running, self.starting):
            for call in [call for call, where in calls.items() if where == session]:
                del calls[call]

    def append(self) -> None:
        session, fence = self.fenced()
        events = tuple(self.event(session, "note") for _ in range(self.simulation.dice.randrange(1, 4)))

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, StaleOwner):
                self.lose(session)

        self.send(Append(session=session, fence=fence, events=events), heard=heard)

    def start(self) -> None:
        session, fence = self.fenced()
        self.start_call(session, fence, self.simulation.name("call"))

    def start_call(self, session: str, fence: int, call: str) -> None:
        active = [*self.running.values(), *self.starting.values()]
        if active.count(session) >= CAP:
            return
        self.starting[call] = session

        def heard(outcome: Outcome) -> None:
            self.starting.pop(call, None)
            if isinstance(outcome, StaleOwner):
                self.lose(session)
                return
            (receipt,) = outcome
            if receipt.applied:
                self.simulation.rules.run(call, self.owner)
                self.running[call] = session

        event = self.event(session, CALLED, call)
        op = StartCall(session=session, fence=fence, call=call, owner=self.owner, event=event, turn_id="t", **_ABOUT)
        self.send(op, heard=heard)

    def finish(self) -> None:
        call = self.simulation.dice.choice(sorted(self.running))
        session = self.running[call]
        if call in self.finishing:
            return
        self.finishing.add(call)

        def heard(outcome: Outcome) -> None:
            self.running.pop(call, None)

        # Without a fence: the end of a call is told whoever has the session now.
        event = self.event(session, COMPLETED, call)
        self.send(FinishCall(session=session, call=call, owner=self.owner, event=event), heard=heard)

    def ask(self) -> None:
        session, fence = self.fenced()
        call, question = self.simulation.name("call"), self.simulation.name("question")
        turn = self.simulation.dice.choice(["t", None])

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, StaleOwner):
                self.lose(session)
                return
            self.asked[call] = (session, question)
            self.simulation.questions[question] = session

        op = PutConfirmation(
            session=session,
            fence=fence,
            confirmation=question,
            call=call,
            owner=self.owner,
            turn_id=turn,
            expires_at=self.simulation.now + 20,
            question={},
            event=self.event(session, CONFIRMATION_REQUESTED, call),
            **_ABOUT,
        )
        self.send(op, heard=heard)

    def answer(self) -> None:
        """A person at any server; others may answer the same question."""
        question = self.simulation.dice.choice(sorted(self.simulation.questions))
        session = self.simulation.questions[question]
        state = self.simulation.dice.choice([ConfirmationState.ALLOWED, ConfirmationState.DENIED])

        def heard(outcome: Outcome) -> None:
            self.simulation.questions.pop(question, None)

        op = ResolveConfirmation(
            session=session,
            confirmation=question,
            state=state,
            at=self.simulation.now,
            event=self.event(session, CONFIRMATION_RESOLVED),
        )
        self.send(op, heard=heard)

    def release(self) -> None:
        session, fence = self.fenced()
        if session in [*self.running.values(), *self.starting.values()]:
            return
        del self.fences[session]
        self.send(Release(session=session, owner=self.owner, fence=fence), heard=lambda outcome: None)

    def event(self, session: str, type: str, call: str = "") -> Event:
        return Event(
            id=self.simulation.name("event"),
            timestamp=self.simulation.now,
            session_id=session,
            type=type,
            actor="agent",
            payload={"call_id": call} if call else {},
        )

    def send(self, *ops: Any, heard: Callable[[Outcome], None]) -> None:
        self.simulation.send(Request(self, ops, heard))

    # What happens to it.

    def die(self) -> None:
        self.state = "dead"
        self.simulation.set_alive(self.owner, False)
        self.simulation.after(self.simulation.dice.uniform(1, 6), self.begin)

    def stop(self) -> None:
        self.state = "stopped"
        owner = self.owner
        pause = self.simulation.dice.choice([0.5, 2.0, 4.0, 8.0])

        def silent() -> None:
            if self.state == "stopped" and self.owner == owner:
                self.simulation.set_alive(owner, False)

        self.simulation.after(SILENT_S, silent)
        self.simulation.after(pause, lambda: self.go_on(owner))

    def go_on(self, owner: str) -> None:
        if self.state != "stopped" or self.owner != owner:
            return
        self.state = "up"
        unheard, self.unheard = self.unheard, []
        for act in unheard:
            act()
        for _ in range(3):  # it does not know yet
            self.act()
        if self.simulation.rules.is_taken(self.owner):
            self.begin()
        else:
            self.simulation.set_alive(self.owner, True)


class Simulation:
    def __init__(self, engine: Engine, seed: int, servers: int, sessions: int) -> None:
        self.engine = engine
        self.dice = random.Random(seed)
        self.now = 0.0
        self.rules = Rules()
        self.questions: dict[str, str] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._names = 0
        self._inbox: list[Request] = []
        self._reading: list[tuple[Server, str]] = []
        self.trace: list[str] = []
        self.sessions = [f"sess_{n}" for n in range(sessions)]
        self.servers = [Server(self, n) for n in range(servers)]

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names:08}"

    def some_session(self) -> str:
        return self.dice.choice(self.sessions)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._names += 1
        heapq.heappush(self._heap, (self.now + seconds, self._names, act))

    def set_alive(self, owner: str, alive: bool) -> None:
        self.rules.living[owner] = alive
        self.engine.set_alive(owner, alive)

    def go_on_with_questions(self, server: Server, session: str) -> None:
        """Whoever takes a session over runs what was allowed meanwhile."""
        self._reading.append((server, session))

    # The network.

    def send(self, request: Request) -> None:
        if request.is_answered:
            return
        if self.dice.random() > 0.04:  # else it is lost
            self.after(self.dice.expovariate(1 / 0.03), lambda: self._inbox.append(request))
        self.after(RESEND_S, lambda: self._send_again(request))

    def _send_again(self, request: Request) -> None:
        server = request.server
        if server.owner == request.owner and server.state == "up":
            self.send(request)
        elif server.owner == request.owner and server.state == "stopped":
            self.after(RESEND_S, lambda: self._send_again(request))

    def _reply(self, request: Request, outcome: Outcome) -> None:
        server = request.server
        if request.is_answered or server.owner != request.owner or server.state == "dead":
            return
        if server.state == "stopped":
            server.unheard.append(lambda: self._reply(request, outcome))
            return
        request.is_answered = True
        request.heard(outcome)

    # Time.

    async def run(self, until_s: float) -> None:
        await self.engine.commit([[NewSession(session=id, workspace="/w", at=0.0)] for id in self.sessions])
        while self.now < until_s:
            self.now += TICK_S
            for server in self.servers:
                self._live(server)
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            await self._flush()
            await self._read()

    def _live(self, server: Server) -> None:
        if server.state != "up":
            return
        chance = self.dice.random()
        if chance < 0.0008:
            server.die()
        elif chance < 0.0028:
            server.stop()
        elif chance < 0.0032:
            self._reap(server)
        elif chance < 0.06:
            server.act()

    def _reap(self, server: Server) -> None:
        dead = [owner for owner, alive in self.rules.living.items() if not alive and not self.rules.is_reaped(owner)]
        for owner in dead[:5]:
            server.send(Reap(owner=owner, at=self.now), heard=lambda outcome: None)

    async def _flush(self) -> None:
        inbox, self._inbox = self._inbox, []
        if not inbox:
            return
        outcomes = await self.engine.commit([request.ops for request in inbox])
        for request, outcome in zip(inbox, outcomes, strict=True):
            self.trace.append(f"{self.now:.2f} {request.owner} {_short(request.ops)} -> {_short(outcome)}")
            self.rules.check(request.ops, outcome)
            if self.dice.random() > 0.04:
                delay = self.dice.expovariate(1 / 0.03)
                self.after(delay, lambda request=request, outcome=outcome: self._reply(request, outcome))  # type: ignore[misc]
        del self.trace[:-40]

    async def _read(self) -> None:
        reading, self._reading = self._reading, []
        for server, session in reading:
            snapshot = await self.engine.store.snapshot(session)
            allowed = {q.id for q in snapshot.confirmations if q.state is ConfirmationState.ALLOWED}
            for call in snapshot.calls:
                if call.state is CallState.WAITING and call.confirmation in allowed and session in server.fences:
                    server.start_call(session, server.fences[session], call.id)
            running = sum(call.state is CallState.RUNNING for call in snapshot.calls)
            assert running <= CAP, f"{running} calls run in {session}"

    async def end(self) -> None:
        """All processes die, and one that is left ends what they left."""
        await self._flush()
        for server in self.servers:
            server.state = "dead"
            self.set_alive(server.owner, False)
        for owner in self.rules.living:
            await self._commit(Reap(owner=owner, at=self.now))
        while (await self.engine.commit([[ExpireConfirmations(at=1e9)]]))[0][0]:
            pass
        # What was allowed may still start: whoever has the session next ends it here.
        for call in await self.engine.store.open_calls():
            assert call.state is CallState.WAITING
            event = self.servers[0].event(call.session_id, COMPLETED, call.id)
            end = FinishCall(session=call.session_id, call=call.id, owner="own_last", event=event)
            [(receipt,)] = await self.engine.commit([[end]])
            assert receipt.applied

    async def _commit(self, *ops: Any) -> None:
        if ops:
            [outcome] = await self.engine.commit([ops])
            self.rules.check(ops, outcome)


_SHOWN = ("session", "fence", "owner", "call", "confirmation", "applied")


def _short(values: Any) -> str:
    """For a failure: who did what, and how it ended."""
    if isinstance(values, BaseException):
        return repr(values)
    return ", ".join(
        f"{type(each).__name__}({' '.join(str(getattr(each, name)) for name in _SHOWN if hasattr(each, name))})"
        for each in values
    )
