"""Who asks whether an instance takes work costs the store little, and learns no secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate.core.stores import StoreClosed, StoreError, StoreTooNew
from callgate.features.web.contexts import FRESH_S, Readiness
from callgate.instance.instance import Draining
from tests.features.web.instances import Instance

SECRET = "postgresql://user:hunter2secret@db.internal/callgate"


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeRuntime:
    """Settings that can be used, and a store that does what the test says."""

    def __init__(self) -> None:
        self.reads = 0
        self.failure: StoreError | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.sessions = self.permission = self

    def settings_state(self, workspace: str) -> Any:
        class State:
            problem = None

        return State

    async def store(self) -> Any:
        return self

    async def entries(self, kind: str) -> list[Any]:
        self.reads += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return []


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def readiness(runtime: FakeRuntime, clock: FakeClock, limit_s: float = 60.0) -> Readiness:
    return Readiness(runtime, Draining(), "/ws", limit_s=limit_s, clock=clock)  # type: ignore[arg-type]


async def test_a_thousand_questions_are_one_read(runtime: FakeRuntime, clock: FakeClock) -> None:
    ready = readiness(runtime, clock)
    answers = await asyncio.gather(*(ready.checks() for _ in range(1_000)))
    assert all(each["store"] == "ok" for each in answers) and runtime.reads == 1
    clock.now += FRESH_S / 2
    await ready.checks()
    assert runtime.reads == 1
    clock.now += FRESH_S
    await ready.checks()
    assert runtime.reads == 2


async def test_a_store_that_hangs_is_read_once_until_it_answers(runtime: FakeRuntime, clock: FakeClock) -> None:
    ready = readiness(runtime, clock, limit_s=0.01)
    runtime.answers.clear()
    for _ in range(3):
        assert (await ready.checks())["store"] == "no_answer"
        clock.now += 10
    assert runtime.reads == 1
    runtime.answers.set()
    ready = readiness(runtime, clock)
    assert (await ready.checks())["store"] == "ok"


@pytest.mark.parametrize(
    ("failure", "word"),
    [
        (StoreError(f"{SECRET} is away"), "unreachable"),
        (StoreTooNew(SECRET, 9, 1), "too_new"),
        (StoreClosed(), "closed"),
    ],
)
async def test_a_store_that_fails_is_named_by_one_word(
    failure: StoreError, word: str, runtime: FakeRuntime, clock: FakeClock
) -> None:
    ready = readiness(runtime, clock)
    runtime.failure = failure
    assert await ready.checks() == {"settings": "ok", "store": word, "work": "ok"}
    runtime.failure = None
    clock.now += 2 * FRESH_S
    assert (await ready.checks())["store"] == "ok"


async def test_readyz_needs_no_token_and_another_host_name_gets_nothing(instance: Instance) -> None:
    anybody = instance.client(token=None)
    assert (await anybody.http.get("/readyz")).status_code == 200
    foreign = await anybody.http.get("/readyz", headers={"host": "evil.example"})
    assert foreign.status_code == 403
