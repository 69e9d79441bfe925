"""What a session has read, over HTTP: shown with it, and cleared by a person."""

from __future__ import annotations

from callgate.core.content import Message
from callgate.core.effects import SideEffects
from tests.features.web.instances import Instance
from tests.support import make_tool


async def test_labels_are_shown_with_the_session_and_can_be_cleared(instance: Instance) -> None:
    client = instance.client()
    id = await client.session(mode="ask")
    runtime = instance.wired.runtime
    runtime.tools.register(make_tool("read_mail", SideEffects.READ, output_labels=frozenset({"private", "untrusted"})))
    session = await instance.sessions.take(id)
    with runtime.sessions.turns.reserve(session, stop=lambda: False) as turn:
        await turn.begin(Message.text("user", "Read my mail."))
        called = await client.http.post("/v1/calls", json={"tool": "read_mail", "arguments": {}, "session": id})
        assert called.status_code == 200, called.text
        await turn.end()
    shown = await client.get(f"/v1/sessions/{id}")
    assert shown["labels"] == {"private": "read_mail #1", "untrusted": "read_mail #1"}
    changed = await client.http.patch(f"/v1/sessions/{id}", json={"clear_labels": ["untrusted"]})
    assert changed.json()["labels"] == {"private": "read_mail #1"}
    refused = await client.http.patch(f"/v1/sessions/{id}", json={"clear_labels": ["everything"]})
    assert refused.status_code == 422
