"""What an agent means to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.core.content import ToolResultBlock
from callgate.core.events import PLANNED, Event
from callgate.features.chat.agent.tools import LONGEST_ENTRY, MOST_ENTRIES, UPDATE_PLAN
from tests.features.chat.agent.talks import PlayedModel, text, uses


def entry(content: str = "look", status: str = "pending", **more: Any) -> dict[str, Any]:
    return {"content": content, "status": status, **more}


async def planned(tmp_path: Path, *plans: Any) -> tuple[list[Event], list[bool]]:
    """The plans that are kept as events, and which calls failed."""
    replies = [uses((f"p{n}", UPDATE_PLAN, plan)) for n, plan in enumerate(plans)]
    model = PlayedModel([*replies, text("Done.")], native=True)
    heard: list[Event] = []
    async with Gate(tmp_path, mode="read", home=tmp_path / "home") as gate:
        gate.runtime.sessions.listen(heard.append)
        await gate.run("go", model=model)
        await gate.runtime.sessions.conversations.flush()
        store = await gate.runtime.sessions.store()
        events = await store.read_events(gate.session.id)
    kept = [event for event in events if event.type == PLANNED]
    assert kept == [event for event in heard if event.type == PLANNED]
    results = [
        block.is_error
        for message in model.prompts[-1].messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    return kept, results


async def test_a_plan_is_told_whole_each_time_and_kept(tmp_path: Path) -> None:
    first = [entry(), entry("write", "pending", priority="high")]
    second = [entry(status="completed"), entry("write", "in_progress", priority="high")]
    kept, failed = await planned(tmp_path, {"entries": first}, {"entries": second})
    assert [event.payload["entries"] for event in kept] == [
        [{"priority": "medium", **each} for each in plan] for plan in (first, second)
    ]
    assert failed == [False, False]


async def test_a_plan_is_kept_without_secrets(tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    kept, _ = await planned(tmp_path, {"entries": [entry(f"use {secret} to log in")]})
    (event,) = kept
    assert secret not in str(event.payload)
    assert event.payload["entries"][0]["content"].startswith("use ")


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"entries": [entry()] * (MOST_ENTRIES + 1)},
        {"entries": [entry("x" * (LONGEST_ENTRY + 1))]},
        {"entries": [entry("")]},
        {"entries": [entry(status="soon")]},
        {"entries": [entry(priority="urgent")]},
        {"entries": [entry(more="x")]},
    ],
)
async def test_a_plan_that_is_none_is_refused_and_shown_to_nobody(tmp_path: Path, plan: Any) -> None:
    assert await planned(tmp_path, plan) == ([], [True])


async def test_the_largest_plan_is_kept(tmp_path: Path) -> None:
    plan = [entry("x y" * 166, priority="low")] * MOST_ENTRIES
    kept, failed = await planned(tmp_path, {"entries": plan})
    assert [event.payload["entries"] for event in kept] == [plan]
    assert failed == [False]
