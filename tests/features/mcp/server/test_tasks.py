"""Long calls as tasks: told of at once, looked at later, by nobody but who made them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import advertise
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from callgate.core.sessions import Mode
from callgate.features.mcp.server import tasks
from callgate.features.mcp.server.pending_requests import PendingRequest
from callgate.features.mcp.server.tasks import EXTENSION, Tasks
from tests.features.mcp.server.talks import World, answers, world


def _with_tasks(here: World, **more: Any) -> Client:
    return here.client("2026-07-28", extensions=[advertise(EXTENSION)], **more)


async def _send(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """A request that the SDK's client has no method for, as it goes over the wire."""
    meta = {
        types.PROTOCOL_VERSION_META_KEY: "2026-07-28",
        types.CLIENT_CAPABILITIES_META_KEY: {"extensions": {EXTENSION: {}}, "elicitation": {}},
    }
    return await client.session._dispatcher.send_raw_request(method, {**params, "_meta": meta})


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    return await _send(client, "tools/call", name=tool, arguments=arguments)


async def _until(client: Client, id: str, status: str) -> dict[str, Any]:
    while (task := await _send(client, "tasks/get", taskId=id))["status"] != status:
        await asyncio.sleep(0.01)
    return task


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PATIENCE_S", 0.0)


async def test_a_call_that_ends_soon_is_answered_and_no_task(tmp_path: Path) -> None:
    async with world(tmp_path) as here, _with_tasks(here) as client:
        result = await _call(client, "count")
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"counted": 3})


async def test_a_long_call_becomes_a_task_that_can_be_cancelled(tmp_path: Path, impatient: None) -> None:
    async with world(tmp_path) as here, _with_tasks(here) as client:
        made = await _call(client, "wait")
        id = made["taskId"]
        working = await _send(client, "tasks/get", taskId=id)
        await _send(client, "tasks/cancel", taskId=id)
        await here.stopped.wait()
        cancelled = await _send(client, "tasks/get", taskId=id)
    assert (made["resultType"], made["status"]) == ("task", "working")
    assert (working["status"], cancelled["status"]) == ("working", "cancelled")
    assert "result" not in cancelled


async def test_a_client_without_the_extension_waits_to_the_end(tmp_path: Path, impatient: None) -> None:
    async with world(tmp_path) as here, here.client("2026-07-28") as client:
        calling = asyncio.create_task(client.call_tool("wait", {}))
        await here.started.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not calling.done()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


async def test_a_question_of_a_task_is_in_it_and_is_answered_there(tmp_path: Path, impatient: None) -> None:
    async with world(tmp_path, Mode.ASK) as here:
        async with _with_tasks(here, elicitation_callback=answers("Deny")) as client:
            id = (await _call(client, "put", what="it"))["taskId"]
            asked = await _until(client, id, "input_required")
            said = {"action": "accept", "content": {"decision": "Allow once"}}
            answered = dict.fromkeys(asked["inputRequests"], said)
            await _send(client, "tasks/update", taskId=id, inputResponses=answered)
            done = await _until(client, id, "completed")
    assert (done["result"]["isError"], here.did) == (False, ["it"])


class _Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def _pending(here: World, work: Any) -> PendingRequest[Any]:
    made: list[PendingRequest[Any]] = []

    class Ctx:
        params: dict[str, Any] = {}
        method = "tools/call"

        class session:
            client_capabilities = types.ClientCapabilities(elicitation=types.ElicitationCapability())

    made.append(PendingRequest(Ctx(), work))  # type: ignore[arg-type]
    return made[0]


@pytest.mark.spec("T31")
async def test_a_task_is_unknown_to_another_visitor_and_forgotten_in_time(tmp_path: Path) -> None:
    async def work(pending: PendingRequest[Any]) -> str:
        return "done"

    async with world(tmp_path) as here:
        clock = _Clock()
        kept = Tasks(clock)
        id = kept.add("me", await _pending(here, work), lambda said: {"said": said})["taskId"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for act in (kept.get, kept.cancel, lambda id, who: kept.update(id, who, {})):
            with pytest.raises(MCPError) as unknown:
                act(id, "somebody else")
            assert unknown.value.code == types.INVALID_PARAMS
        assert kept.get(id, "me")["result"] == {"said": "done"}
        clock.now += tasks.KEPT_S + 1
        kept.add("me", await _pending(here, work), lambda said: {"said": said})
        with pytest.raises(MCPError):
            kept.get(id, "me")


async def test_answers_are_taken_one_by_one_and_a_wrong_one_is_none(tmp_path: Path) -> None:
    form = types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message="?",
            requested_schema={
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "required": ["x"],
            },
        )
    )

    async def work(pending: PendingRequest[Any]) -> list[str]:
        return sorted(await pending.ask({"a": form, "b": form}))

    async with world(tmp_path) as here:
        kept = Tasks()
        id = kept.add("me", await _pending(here, work), lambda said: {"said": said})["taskId"]
        await asyncio.sleep(0)
        good = {"action": "accept", "content": {"x": 1}}
        kept.update(id, "me", {"a": good, "b": {"action": "accept", "content": {}}, "c": good})
        half = kept.get(id, "me")
        kept.update(id, "me", {"b": good, "a": 7})
        while kept.get(id, "me")["status"] != "completed":
            await asyncio.sleep(0)
        assert (half["status"], list(half["inputRequests"])) == ("input_required", ["b"])
        assert kept.get(id, "me")["result"] == {"said": ["a", "b"]}
