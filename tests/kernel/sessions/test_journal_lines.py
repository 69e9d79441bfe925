"""Events from the lines of a process that was killed: the same as it would have written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from callgate.audit.journals import dead_journals, living_journals
from callgate.audit.log import AuditLog
from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.events import TERMINAL, Event
from callgate.core.stored import StoredSession
from callgate.sessions.journal_lines import events_of
from callgate.sessions.recovery import needs_recovery, recover
from tests.memory_store import MemoryStore
from tests.support import Bench, make_tool

LOST = ("input_size_bytes", "output_size_bytes", "input_hash", "validation_errors")
"""What a line does not say, or says otherwise."""


def known(event: Event) -> dict[str, Any]:
    """What both must agree on; a line knows no more than milliseconds."""
    payload = {name: value for name, value in event.payload.items() if name not in LOST}
    return {
        "id": event.id,
        "type": event.type,
        "actor": event.actor,
        "turn": event.turn_id,
        "session": event.session_id,
        "parent": event.parent_event_id if event.type in TERMINAL else None,
        **payload,
    }


def fail(input: Any, context: Any) -> str:
    raise ToolExecutionError("no", reason="broken")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("look", {}), ("fails", {}), ("look", {"unknown": 1}), ("missing", {})],
    ids=["completed", "failed", "invalid", "not found"],
)
async def test_a_line_gives_the_events_that_its_process_wrote(tool: str, arguments: Any) -> None:
    bench = Bench("/", make_tool("look", SideEffects.READ), make_tool("fails", SideEffects.READ, run=fail))
    await bench.run(tool, arguments, turn_id="turn_1", tool_use_id="toolu_1")
    (line,) = bench.recorder.records
    made = list(map(known, events_of(line)))
    assert made == list(map(known, bench.recorder.events))


def line(session: str, n: int, **more: Any) -> CallRecord:
    given = {"caller": "cli", "principal": "local", "tool": "look", "decision": "allow", "side_effects": "read"}
    ids = {"id": f"audit_e{n}", "call_id": f"c{n}", "session": session, "cwd": "/w", "args": "{}", "ts": 1_000 + n}
    return CallRecord(**{**given, **ids, **more})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def killed(home: Path, *lines: CallRecord, max_bytes: int = 1 << 20) -> None:
    """What a process leaves that wrote these lines and was killed."""
    log = AuditLog(str(home / "audit.jsonl"), journals=str(home / "run"), owner="own_dead", max_bytes=max_bytes)
    for each in lines:
        log.append(each)
        log._looked = 0.0
    log.close()


async def recovered(home: Path, store: MemoryStore) -> None:
    audit = AuditLog(str(home / "audit.jsonl"))
    assert await needs_recovery(store, str(home / "run"))
    await recover(store, audit, str(home / "run"))
    assert not await needs_recovery(store, str(home / "run"))
    audit.close()


async def test_lines_are_found_in_every_file_they_were_written_to(home: Path) -> None:
    killed(home, *(line("s1", n) for n in range(20)), max_bytes=1_000)
    assert len(os.listdir(home)) > 5
    store = MemoryStore()
    await recovered(home, store)
    ends = [event.id for event in await store.read_events("s1") if event.type in TERMINAL]
    kept = [each.id.removeprefix("audit_") for each, _ in newest_first(str(home / "audit.jsonl"))]
    assert ends == kept[::-1] and len(ends) > 5


async def test_lines_before_the_place_that_the_store_had_reached_are_not_read_again(home: Path) -> None:
    log = AuditLog(str(home / "audit.jsonl"), journals=str(home / "run"), owner="own_1")
    log.append(line("deleted", 1))
    log.stored(log.position)
    log.append(line("s2", 2))
    assert [each.owner for each in living_journals(str(home / "run"))] == ["own_1"]
    assert dead_journals(str(home / "run")) == []
    log.close()
    store = MemoryStore()
    await recovered(home, store)
    assert [each.id for each in store.tables.all(StoredSession)] == ["s2"]


async def test_a_process_that_left_nothing_behind_leaves_no_file(home: Path) -> None:
    log = AuditLog(str(home / "audit.jsonl"), journals=str(home / "run"), owner="own_1")
    log.append(line("s1", 1))
    log.close(is_stored=True)
    assert os.listdir(home / "run") == []


async def test_lines_that_cannot_be_stored_hold_up_no_other(home: Path) -> None:
    killed(home, line("s1", 1), line("s2", 1, call_id="c2"), line("s3", 3, error_class="no such class"), line("s4", 4))
    store = MemoryStore()
    await recovered(home, store)
    assert {"s1", "s4"} <= {each.id for each in store.tables.all(StoredSession)}
    assert [event.id for event in await store.read_events("s4")][-1] == "e4"
