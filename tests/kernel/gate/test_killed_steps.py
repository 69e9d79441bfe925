"""A process is killed before each thing it does to the disk, and so is the one that recovers it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.audit.reading import newest_first
from callgate.audit.verify import verify
from callgate.core.events import CALLED, TERMINAL
from callgate.sessions.audit_comparison import compare
from callgate.sessions.recovery import needs_recovery
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.storage.processes import Child, all_events, child
from tests.needs import needs

pytestmark = needs("linux")
NEVER = 1_000_000


@pytest.fixture
async def zygote() -> AsyncIterator[Child]:
    async with child("", module="tests.kernel.gate.steps") as process:
        yield process


async def run(zygote: Child, role: str, base: Path, nth: int) -> tuple[list[Any], bool]:
    """What a process said, and whether it got to its end."""
    zygote.tell(json.dumps([role, str(base / "home"), str(base / "ws"), nth]))
    heard: list[Any] = []
    while "died" not in (said := await zygote.hear()):
        heard.append(said)
    ended = bool(heard) and "steps" in heard[-1]
    return heard[:-1] if ended else heard, ended


async def check(base: Path, answered: list[Any]) -> None:
    log, directory = str(base / "home" / "audit.jsonl"), str(base / "home" / "run")
    async with await SqliteStore.open(str(base / "home")) as store:
        assert not await needs_recovery(store, directory)
        assert [*await store.open_calls(), *await store.outbox(), *await store.cut_sessions()] == []
        assert (await compare(store, log, directory)).problems == ()
        events = [event for some in (await all_events(store)).values() for event in some]
    assert verify(log).problems == ()
    lines = {line.call_id: line for line, _ in newest_first(log)}
    ends = {e.payload["call_id"]: e for e in events if e.type in TERMINAL}
    assert len(lines) == len(list(newest_first(log))), "a call has two lines"
    assert {call: f"audit_{e.id}" for call, e in ends.items()} == {call: line.id for call, line in lines.items()}
    starts = Counter(e.payload["call_id"] for e in events if e.type == CALLED)
    assert set(starts.values()) <= {1} and starts.keys() <= ends.keys()
    for said in answered:
        line = lines[said["call"]]
        assert (line.error_class is None, line.reason == "interrupted") == (said["ok"], False)
    marks = base / "marks"
    ran = Counter(marks.read_text().split() if marks.exists() else [])
    assert set(ran.values()) <= {1} and ran.keys() <= starts.keys(), "a call ran twice, or before its start was kept"


SHARDS = 4
STEPS = [
    pytest.param(17, 67, 89, id="some"),
    *(pytest.param(nth, SHARDS, 25, marks=pytest.mark.soak, id=f"all-{nth}") for nth in range(1, SHARDS + 1)),
]
"""First step, distance to the next one, and distance of the kills of a recovery."""


@pytest.mark.spec("T46", "T48")
@pytest.mark.timeout(3400)
@pytest.mark.parametrize(("first", "step", "recovery_step"), STEPS)
async def test_whichever_step_a_kill_prevents_each_call_has_one_line_and_one_end(
    tmp_path: Path, zygote: Child, first: int, step: int, recovery_step: int
) -> None:
    ended, nth = False, first
    while not ended:
        base = tmp_path / str(nth)
        (base / "ws").mkdir(parents=True)
        answered, ended = await run(zygote, "live", base, nth)
        recovered, killed = False, 1
        while not recovered:  # and whoever recovers is killed too, each time a few steps later
            again = tmp_path / f"{nth} again"
            shutil.copytree(base, again)
            _, recovered = await run(zygote, "recover", again, killed)
            assert (await run(zygote, "recover", again, NEVER))[1]
            await check(again, answered)
            shutil.rmtree(again)
            killed += recovery_step
        shutil.rmtree(base)
        nth += step
