"""What a person must be asked: in the client where it shows forms, elsewhere where not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from callgate.core.events import CONFIRMATION_REQUESTED
from callgate.core.sessions import Mode
from callgate.dispatch.permission.confirmations import Answer
from callgate.features.mcp.server import pending_requests
from callgate.policy.rules import Outcome
from tests.features.mcp.server.talks import GENERATIONS, World, answers, texts, world

each_generation = pytest.mark.parametrize("generation", GENERATIONS)
YES = Answer(decision=Outcome.ALLOW, by="test")


@each_generation
@pytest.mark.parametrize(
    ("decision", "done"),
    [("Allow once", ["it"]), ("Deny", []), ("decline", []), ("cancel", [])],
)
async def test_the_client_is_asked_and_its_answer_counts(
    tmp_path: Path, generation: str, decision: str, done: list[str]
) -> None:
    seen: list[str] = []
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=answers(decision, seen)) as client:
            result = await client.call_tool("put", {"what": "it"})
    assert (len(seen), here.did, result.is_error) == (1, done, not done)


@each_generation
async def test_an_answer_for_the_session_is_asked_for_once(tmp_path: Path, generation: str) -> None:
    seen: list[str] = []
    whole = answers("Allow this tool for the rest of the session", seen)
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=whole) as client:
            for what in ("one", "two"):
                await client.call_tool("put", {"what": what})
    assert (len(seen), here.did) == (1, ["one", "two"])


@each_generation
async def test_what_cannot_be_seen_is_made_visible_in_the_question(tmp_path: Path, generation: str) -> None:
    seen: list[str] = []
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=answers("Deny", seen)) as client:
            await client.call_tool("put", {"what": "a\u202eb\x1b[2Jc"})
    assert "\u202e" not in seen[0]
    assert "\x1b" not in seen[0]


@each_generation
async def test_all_of_the_arguments_are_in_the_question_or_the_call_is_refused(tmp_path: Path, generation: str) -> None:
    seen: list[str] = []
    long, longer = f"{'x' * 9_000} the end", "x" * 65_536
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=answers("Allow once", seen)) as client:
            await client.call_tool("put", {"what": long})
            refused = await client.call_tool("put", {"what": longer})
    assert len(seen) == 1 and f'what = "{long}"' in seen[0]
    assert (here.did, refused.is_error) == ([long], True)


async def _answered_elsewhere(here: World, client: Client) -> types.CallToolResult:
    with here.wired.runtime.sessions.events(types=[CONFIRMATION_REQUESTED]) as events:
        calling = asyncio.create_task(client.call_tool("put", {"what": "it"}))
        async for _ in events:
            break
        while not (questions := await here.wired.runtime.permission.open_confirmations()):
            await asyncio.sleep(0)
        await here.wired.runtime.permission.answer(questions[0].id, YES)
        return await calling


@each_generation
async def test_a_client_without_forms_waits_for_an_answer_from_elsewhere(tmp_path: Path, generation: str) -> None:
    async with world(tmp_path, Mode.ASK) as here, here.client(generation) as client:
        result = await _answered_elsewhere(here, client)
    assert (texts(result), here.did) == (["put it"], ["it"])


@each_generation
async def test_a_server_that_asks_elsewhere_only_does_not_ask_its_client(tmp_path: Path, generation: str) -> None:
    seen: list[str] = []
    async with world(tmp_path, Mode.ASK, elicits=False) as here:
        async with here.client(generation, elicitation_callback=answers("Deny", seen)) as client:
            result = await _answered_elsewhere(here, client)
    assert (texts(result), seen) == (["put it"], [])


@each_generation
async def test_an_answer_from_elsewhere_wins_while_the_client_still_asks(tmp_path: Path, generation: str) -> None:
    shown = asyncio.Event()

    async def never(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        shown.set()
        questions = await here.wired.runtime.permission.open_confirmations()
        await here.wired.runtime.permission.answer(questions[0].id, YES)
        if generation == "legacy":
            await asyncio.Event().wait()
        return types.ElicitResult(action="accept", content={"decision": "Deny"})

    async with world(tmp_path, Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=never) as client:
            result = await client.call_tool("put", {"what": "it"})
    assert (shown.is_set(), texts(result), here.did) == (True, ["put it"], ["it"])


async def _parked(client: Client, what: str = "it") -> types.InputRequiredResult:
    said = await client.session.call_tool("put", {"what": what}, allow_input_required=True)
    assert isinstance(said, types.InputRequiredResult)
    return said


def _yes(asked: types.InputRequiredResult) -> dict[str, types.InputResponse]:
    assert asked.input_requests is not None
    accepted = types.ElicitResult(action="accept", content={"decision": "Allow once"})
    return dict.fromkeys(asked.input_requests, accepted)


@pytest.mark.spec("T31")
@pytest.mark.parametrize("change", ["state", "arguments", "tool", "again"])
async def test_a_parked_call_goes_on_only_with_its_own_request_and_once(tmp_path: Path, change: str) -> None:
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client("2026-07-28", elicitation_callback=answers("Deny")) as client:
            asked = await _parked(client)
            state = f"{asked.request_state}{'x' if change == 'state' else ''}"
            tool = "count" if change == "tool" else "put"
            what = "other" if change == "arguments" else "it"
            given = {"input_responses": _yes(asked), "request_state": state}
            if change == "again":
                await client.session.call_tool("put", {"what": "it"}, **given)
                here.did.clear()
            with pytest.raises(MCPError) as refused:
                await client.session.call_tool(tool, {"what": what}, **given)
    assert (refused.value.code, here.did) == (types.INVALID_PARAMS, [])


async def test_an_answer_that_nobody_asked_for_allows_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client("2026-07-28", elicitation_callback=answers("Deny")) as client:
            before = _yes(await _parked(client))
            said = await client.session.call_tool(
                "put", {"what": "it"}, input_responses=before, allow_input_required=True
            )
    assert isinstance(said, types.InputRequiredResult)
    assert here.did == []


async def test_parked_calls_are_bounded_and_the_oldest_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_requests, "_MOST_PARKED", 1)
    async with world(tmp_path, Mode.ASK) as here:
        async with here.client("2026-07-28", elicitation_callback=answers("Deny")) as client:
            first, second = await _parked(client, "one"), await _parked(client, "two")
            with pytest.raises(MCPError):
                await client.session.call_tool(
                    "put",
                    {"what": "one"},
                    input_responses=_yes(first),
                    request_state=first.request_state,
                )
            await client.session.call_tool(
                "put",
                {"what": "two"},
                input_responses=_yes(second),
                request_state=second.request_state,
            )
    assert here.did == ["two"]
