"""What the routes give: calls, sessions, tools, records, counts, and what would be decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callgate.core.errors import ToolRegistrationError
from callgate.core.ops import NewSession
from callgate.core.sessions import Mode
from callgate.protocol.socket_v1.frames import HostEntry, HostTool
from callgate.sources.logs import LoggedMessage
from callgate.sources.pins import Proposal
from tests.features.web.instances import DONE, Client, Instance, serving


async def test_a_call_gives_its_result_and_a_failure_is_an_answer(instance: Instance) -> None:
    client = instance.client()
    result = await client.call("show", what="é\u2028\u0007")
    assert {
        key: result[key] for key in ("tool", "ok", "value", "content", "error", "truncated", "partial", "diagnostics")
    } == {
        "tool": "show",
        "ok": True,
        "value": "é\u2028\u0007",
        "content": [{"type": "text", "text": "é\u2028\u0007"}],
        "error": None,
        "truncated": False,
        "partial": False,
        "diagnostics": [],
    }
    for tool, arguments, error_class in [
        ("nothing", {}, "not_found"),
        ("show", {"more": 1}, "validation_error"),
        ("read_file", {"path": "/etc/passwd"}, "permission_denied"),
    ]:
        failed = await client.call(tool, **arguments)
        assert (failed["ok"], failed["error"]["class"]) == (False, error_class)


async def test_a_call_is_made_as_http_and_recorded(instance: Instance) -> None:
    client = instance.client()
    result = await client.call("show", what="a")
    (record,) = (await client.get("/v1/audit"))["records"]
    assert (record["caller"], record["tool"], record["call_id"]) == ("http", "show", result["call_id"])


async def test_a_call_as_it_happens(instance: Instance) -> None:
    client = instance.client()
    body = {"tool": "show", "arguments": {"what": "a"}}
    async with client.http.stream("POST", "/v1/calls", json=body, headers={"accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line async for line in answer.aiter_lines() if line]
    told = [
        (lines[at].removeprefix("event: "), json.loads(lines[at + 1].removeprefix("data: ")))
        for at in range(0, len(lines), 2)
    ]
    assert [(kind, said.get("type")) for kind, said in told] == [
        ("event", "tool.called"),
        ("event", "tool.completed"),
        ("result", None),
    ]
    assert told[-1][1]["value"] == "a"


async def test_a_caller_who_leaves_a_call_that_is_told_ends_it(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session)
        body = {"tool": "wait", "session": session}
        async with instance.client().http.stream(
            "POST", "/v1/calls", json=body, headers={"accept": "text/event-stream"}
        ) as answer:
            await answer.aiter_lines().__anext__()
        assert (await watcher.event("tool.failed"))["payload"]["error_class"] == "cancelled"
    assert instance.runtime.calls.in_flight() == []


async def test_a_running_call_is_listed_looked_at_and_cancelled(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session)
        running = asyncio.get_running_loop().create_task(client.call("wait", session))
        id = (await watcher.event("tool.called"))["payload"]["call_id"]
        (row,) = (await client.get("/v1/calls", state="running"))["calls"]
        assert (row["id"], row["state"], row["session_id"]) == (id, "running", session)
        assert (await client.get("/v1/calls"))["calls"] == [row]
        assert (await client.get(f"/v1/calls/{id}"))["state"] == "running"
        assert (await client.http.delete(f"/v1/calls/{id}")).json() == {"cancelled": True}
        assert (await running)["error"]["class"] == "cancelled"
    shown = await client.get(f"/v1/calls/{id}")
    assert (shown["state"], shown["confirmation"], shown["answer"]) == ("cancelled", None, None)
    assert [each["type"] for each in shown["events"]] == ["tool.called", "tool.failed"]
    assert (await client.http.delete("/v1/calls/tu_x")).status_code == 404


async def test_calls_are_listed_newest_first_page_by_page_and_chosen(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    ids = [(await client.call("show", session, what=f"number {n}"))["call_id"] for n in range(7)]
    await client.call("nothing")
    pages, before = list[Any](), None
    while True:
        page = await client.get("/v1/calls", session=session, limit=3, **({} if before is None else {"before": before}))
        pages.append([each["id"] for each in page["calls"]])
        before = page["before"]
        if before is None:
            break
    assert pages == [ids[:3:-1], ids[3:0:-1], ids[:1]]
    assert [each["tool"] for each in (await client.get("/v1/calls", state="failed"))["calls"]] == ["nothing"]
    assert [each["id"] for each in (await client.get("/v1/calls", search="NUMBER 4"))["calls"]] == [ids[4]]
    assert len((await client.get("/v1/calls", tool="show"))["calls"]) == 7
    assert (await client.get("/v1/calls", before="nobody"))["calls"] == []


async def test_a_call_that_a_person_allowed_shows_the_question_and_the_answer(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = asyncio.get_running_loop().create_task(client.call("put", session, what="a"))
        question = (await watcher.event("tool.confirmation_requested"))["payload"]["confirmation_request_id"]
        await client.post(f"/v1/confirmations/{question}", decision="allow")
        id = (await running)["call_id"]
        await watcher.event("tool.completed")
    shown = await client.get(f"/v1/calls/{id}")
    assert (shown["state"], shown["confirmation"]["id"], shown["confirmation_state"]) == ("ok", question, "allowed")
    assert (shown["answer"]["decision"], shown["answer"]["by"]) == ("allow", "http")
    assert len(shown["events"]) == 4


async def test_sessions_are_opened_listed_changed_and_closed(instance: Instance) -> None:
    client = instance.client()
    one = await client.session(title="first", mode="read")
    two = await client.session(title="second")
    listed = (await client.get("/v1/sessions"))["sessions"]
    assert [(each["id"], each["title"], each["mode"], each["live"]) for each in listed] == [
        (two, "second", "ask", True),
        (one, "first", "read", True),
    ]
    assert [each["id"] for each in (await client.get("/v1/sessions", search="FIRST"))["sessions"]] == [one]
    page = await client.get("/v1/sessions", limit=1)
    assert [each["id"] for each in (await client.get("/v1/sessions", limit=1, before=page["before"]))["sessions"]] == [
        one
    ]
    assert (await client.get("/v1/sessions", workspace="/nowhere"))["sessions"] == []
    assert (await client.http.get("/v1/sessions", params={"before": "x"})).status_code == 404
    changed = (await client.http.patch(f"/v1/sessions/{one}", json={"mode": "ask", "title": "renamed"})).json()
    assert (changed["mode"], changed["title"]) == ("ask", "renamed")
    assert (await client.http.delete(f"/v1/sessions/{one}")).status_code == 200
    shown = await client.get(f"/v1/sessions/{one}")
    assert (shown["owned"], shown["live"], shown["title"]) == (False, False, "renamed")
    assert (await client.http.delete(f"/v1/sessions/{one}")).status_code == 200
    assert (await client.http.delete("/v1/sessions/nobody")).status_code == 404


async def test_the_sessions_of_sub_agents_are_listed_on_request_alone(instance: Instance) -> None:
    client = instance.client()
    parent = await client.session(title="parent")
    store = await instance.wired.runtime.sessions.store()
    await store.commit(NewSession(session="worker", workspace="/", parent=parent, at=1.0))
    assert [each["id"] for each in (await client.get("/v1/sessions"))["sessions"]] == [parent]
    listed = (await client.get("/v1/sessions", workers="true"))["sessions"]
    assert {each["id"] for each in listed} == {parent, "worker"}


async def test_closing_a_session_stops_its_calls_and_forgets_its_answers(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session)
        running = asyncio.get_running_loop().create_task(client.call("wait", session))
        await watcher.event("tool.called")
        await client.http.delete(f"/v1/sessions/{session}")
        assert (await running)["error"]["class"] == "cancelled"


async def test_a_workspace_that_is_not_served_is_refused(instance: Instance) -> None:
    client = instance.client()
    for path, body in (("/v1/sessions", {}), ("/v1/calls", {"tool": "show"}), ("/v1/policy/explain", {"tool": "show"})):
        for workspace, status in {"/nowhere": 403, "relative": 422, "": 422, "/x\0y": 422}.items():
            assert (await client.post(path, workspace=workspace, **body)).status_code == status
    session = await client.session()
    assert (await client.post("/v1/calls", tool="show", session=session, workspace="/nowhere")).status_code == 409


async def test_an_instance_with_a_ceiling_gives_no_wider_mode(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", ceiling=Mode.READ) as instance:
        client = instance.client()
        assert (await client.post("/v1/sessions", mode="write")).status_code == 403
        session = await client.session(mode="read")
        answer = await client.http.patch(f"/v1/sessions/{session}", json={"mode": "ask"})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "mode_ceiling")


async def test_a_session_that_was_kept_with_a_wider_mode_is_narrowed(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws") as before:
        session = await before.client().session(mode="write")
    async with serving(home, tmp_path / "ws", ceiling=Mode.READ) as instance:
        client = instance.client()
        answer = await client.call("put", session, what="x")
        assert (answer["ok"], answer["error"]["class"], DONE) == (False, "permission_denied", [])
        assert (await client.get(f"/v1/sessions/{session}"))["mode"] == "read"


async def test_tools_say_what_they_are_and_why_they_are_not_seen(instance: Instance) -> None:
    client = instance.client()
    tools = {each["name"]: each for each in (await client.get("/v1/tools"))["tools"]}
    assert {"show", "read_file", "shell"} <= set(tools) and "undo" not in tools
    assert (tools["put"]["side_effects"], tools["put"]["source"], "hidden" in tools["put"]) == (
        "write",
        "python",
        False,
    )
    session = await client.session(mode="none")
    assert all(each["hidden"] for each in (await client.get("/v1/tools", session=session))["tools"])
    assert (await client.http.get("/v1/tools", params={"session": "nobody"})).status_code == 404


async def change(client: Client, session: str) -> str:
    made = await client.call("write_file", session, path="a.txt", content="new\n")
    assert made["ok"], made
    return str(made["call_id"])


async def test_a_change_is_taken_back(instance: Instance, tmp_path: Path) -> None:
    file = tmp_path / "ws" / "a.txt"
    file.write_text("old\n")
    client = instance.client()
    session = await client.session(mode="write")
    call = await change(client, session)
    assert file.read_text() == "new\n"
    result = (await client.post(f"/v1/sessions/{session}/undo", call=call)).json()
    assert (result["ok"], result["files_modified"], file.read_text()) == (True, ["a.txt"], "old\n")
    await change(client, session)
    assert (await client.post(f"/v1/sessions/{session}/undo")).json()["ok"]
    assert file.read_text() == "old\n"
    other = await client.session()
    for id, body in ((other, {"call": call}), (other, {}), ("nobody", {}), (session, {"call": "tu_x"})):
        assert (await client.post(f"/v1/sessions/{id}/undo", **body)).status_code == 404
    assert (await client.call("undo", session, call_id=call))["error"]["class"] == "not_found"


async def test_taking_a_change_back_is_asked_about_like_any_other(instance: Instance, tmp_path: Path) -> None:
    file = tmp_path / "ws" / "a.txt"
    client = instance.client()
    session = await client.session(mode="write")
    await change(client, session)
    await client.http.patch(f"/v1/sessions/{session}", json={"mode": "ask"})
    refused = (await client.post(f"/v1/sessions/{session}/undo")).json()
    assert (refused["ok"], refused["error"]["class"], file.exists()) == (False, "permission_denied", True)
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        undoing = asyncio.get_running_loop().create_task(client.post(f"/v1/sessions/{session}/undo"))
        question = (await watcher.event("tool.confirmation_requested"))["payload"]["confirmation_request_id"]
        await client.post(f"/v1/confirmations/{question}", decision="allow")
        assert (await undoing).json()["ok"]
    assert not file.exists()


async def test_an_answer_saves_a_pattern_that_the_question_offered(instance: Instance) -> None:
    client = instance.client()
    session = await client.session(mode="ask")
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        calling = asyncio.get_running_loop().create_task(client.call("shell", session, command="git commit -m one"))
        await watcher.event("tool.confirmation_requested")
        (question,) = (await client.get("/v1/confirmations"))["confirmations"]
        exact, wider = question["proposals"]
        assert (exact["covers"], wider["covers"]) == ("exactly these words", "git commit -m <one text>")
        await client.post(
            f"/v1/confirmations/{question['id']}", decision="allow", scope="always", pattern=wider["pattern"]
        )
        await calling
    for command, outcome in (("git commit -m two", "allow"), ("git commit -m two --no-verify", "ask")):
        body = {"tool": "shell", "arguments": {"command": command}, "session": session}
        assert (await client.post("/v1/policy/explain", **body)).json()["outcome"] == outcome


async def test_what_cannot_be_taken_back_says_so_and_asks_nobody(instance: Instance, tmp_path: Path) -> None:
    client = instance.client()
    session = await client.session(mode="write")
    await change(client, session)
    (tmp_path / "ws" / "a.txt").write_text("by hand\n")
    await client.http.patch(f"/v1/sessions/{session}", json={"mode": "ask"})
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        refused = (await client.post(f"/v1/sessions/{session}/undo")).json()
        assert (refused["ok"], refused["error"]["reason"]) == (False, "changed_since")
        assert (await client.get("/v1/confirmations"))["confirmations"] == []


async def test_records_are_found_and_counted(instance: Instance) -> None:
    client = instance.client()
    for n in range(4):
        await client.call("show", what=str(n))
    await client.call("put", what="refused")
    await client.call("show", more=1)
    first = await client.get("/v1/audit", limit=2)
    assert [each["tool"] for each in first["records"]] == ["show", "put"]
    rest = await client.get("/v1/audit", before=first["before"])
    assert ([each["args"] for each in rest["records"]], rest["before"]) == (
        [f'{{"what":"{n}"}}' for n in (3, 2, 1, 0)],
        None,
    )
    assert [each["tool"] for each in (await client.get("/v1/audit", decision="deny"))["records"]] == ["put"]
    assert len((await client.get("/v1/audit", error="validation_error"))["records"]) == 1
    assert (await client.get("/v1/audit", since=9e9))["records"] == []
    stats = await client.get("/v1/stats")
    counted = [{key: each[key] for key in ("tool", "calls", "errors", "denials")} for each in stats["tools"]]
    assert counted == [
        {"tool": "put", "calls": 1, "errors": 0, "denials": 1},
        {"tool": "show", "calls": 5, "errors": 1, "denials": 0},
    ]
    assert sum(each["calls"] for each in stats["times"]) == 6
    assert all(0 <= each["p50_ms"] <= each["p95_ms"] for each in stats["tools"])
    assert (await client.get("/v1/stats", since=9e9))["tools"] == []


async def test_what_would_be_decided_is_said_and_nothing_is_recorded(instance: Instance) -> None:
    client = instance.client()
    asked = (await client.post("/v1/policy/explain", tool="put", arguments={"what": "a"})).json()
    assert (asked["outcome"], asked["reason"], asked["ends_before"]) == ("ask", "class_default", None)
    assert asked["sentence"]
    denied = (await client.post("/v1/policy/explain", tool="put", arguments={"what": "a"}, mode="read")).json()
    assert denied["outcome"] == "deny"
    session = await client.session(mode="write")
    assert (await client.post("/v1/policy/explain", tool="put", arguments={"what": "a"}, session=session)).json()[
        "outcome"
    ] == "allow"
    unknown = (await client.post("/v1/policy/explain", tool="nothing")).json()
    assert (unknown["outcome"], unknown["ends_before"]["class"]) == (None, "not_found")
    assert (await client.get("/v1/audit"))["records"] == []


async def test_other_settings_are_tested_on_the_calls_on_record(instance: Instance) -> None:
    client = instance.client()
    for _ in range(3):
        await client.call("put", what="a")
    await client.call("show")
    body = {"settings": '[[policy.rules]]\ntool = "put"\ndecision = "allow"\n'}
    found = (await client.post("/v1/policy/test", **body)).json()
    assert (found["judged"], found["same"], found["loosened"], found["steps"]) == (4, 1, 3, {"ask->allow": 3})
    (changed,) = found["changed"]
    assert (changed["tool"], changed["count"], changed["new"]["origin"]) == ("put", 3, {"file": "settings", "line": 1})
    assert (await client.post("/v1/policy/test", **body, since=9e9)).json()["judged"] == 0
    for wrong in ("rules = 1", "[", "mode = 'x'"):
        answer = await client.post("/v1/policy/test", settings=wrong)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (422, "settings_invalid")
    assert (await client.call("put", what="a"))["error"]["class"] == "permission_denied"


async def test_the_instance_says_what_it_is(instance: Instance) -> None:
    client = instance.client()
    assert (await client.get("/healthz")) == {"ok": True, "version": "0.1.0"}
    said = await client.get("/v1/instance")
    assert len(said.pop("policy")) == 12
    assert said == {
        "settings_problem": None,
        "restart_for": [],
        "pid": 1,
        "version": "0.1.0",
        "started_at": 1.5,
        "workspaces": [instance.workspace],
        "mode": "ask",
        "model": None,
        "models": [],
        "home": instance.wired.home.path,
    }
    assert (await client.get("/v1/hosts")) == {"hosts": []}
    assert (await client.post("/v1/hosts/nobody/restart")).status_code == 404


class FakeHosts:
    """One host, which can be started anew, and one whose tools can not."""

    def __init__(self) -> None:
        self.renewed: list[tuple[str, bool]] = []

    def entries(self) -> list[HostEntry]:
        return [self.entry("words"), self.entry("broken")]

    def entry(self, name: str) -> HostEntry:
        tools = [HostTool(name="count", effect="none", changed=True)]
        elements = [{"type": "button", "label": "<b>Go</b>"}]
        return HostEntry(
            name=name, health="resting", command=["run", "it"], tools=tools, problem=None, ui_elements=elements
        )

    def log_path(self, name: str) -> str:
        raise KeyError(name)

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        raise KeyError(name)

    async def look(self, name: str, workspace: str) -> Proposal:
        raise KeyError(name)

    async def approve(self, name: str, sha256: str) -> HostEntry:
        raise KeyError(name)

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        if name == "broken":
            raise ToolRegistrationError("the name is taken")
        self.renewed.append((name, forget))
        return {each.name: each for each in self.entries()}[name]


async def test_hosts_are_listed_and_started_anew(home: Path, tmp_path: Path) -> None:
    hosts = FakeHosts()
    async with serving(home, tmp_path / "ws", hosts=hosts) as instance:
        client = instance.client()
        words = {
            "name": "words",
            "health": "resting",
            "command": ["run", "it"],
            "problem": None,
            "tools": [{"name": "count", "effect": "none", "changed": True}],
            "ui_elements": [{"type": "button", "label": "<b>Go</b>"}],
        }
        assert (await client.get("/v1/hosts"))["hosts"] == [words, {**words, "name": "broken"}]
        assert (await client.post("/v1/hosts/words/restart")).json() == words
        assert hosts.renewed == [("words", True)]
        statuses = [(await client.post(f"/v1/hosts/{name}/restart")).status_code for name in ("nobody", "broken")]
        assert statuses == [404, 409]


async def test_a_query_that_means_nothing_is_refused(instance: Instance) -> None:
    client = instance.client().http
    for query in (
        "limit=0",
        "limit=501",
        "limit=x",
        "state=maybe",
        "more=1",
        "limit=1&limit=2",
        "a",
        "%ff=1",
        "limit=%00",
    ):
        assert (await client.get(f"/v1/calls?{query}")).status_code == 400, query


async def test_a_text_that_is_no_unicode_is_still_shown(home: Path, tmp_path: Path) -> None:
    from callgate import tool

    @tool(side_effects="none")
    async def odd() -> dict[str, Any]:
        """Give back what JSON has no spelling for."""
        return {"a": "\ud800"}

    async with serving(home, tmp_path / "ws", tools=[odd]) as instance:
        answer = await instance.client().post("/v1/calls", tool="odd")
        assert answer.status_code == 200 and answer.json()["ok"] in (True, False)


async def test_the_changes_of_a_session_are_listed_compared_and_undone_from_a_call(
    instance: Instance, tmp_path: Path
) -> None:
    workspace = tmp_path / "ws"
    client = instance.client()
    session = await client.session(mode="write")
    calls = []
    for path, content in (("a.txt", "one\n"), ("b.txt", "b\n"), ("a.txt", "two\n")):
        calls.append((await client.call("write_file", session, path=path, content=content))["call_id"])
    listed = (await client.get(f"/v1/sessions/{session}/changes"))["calls"]
    assert [(each["call"], each["tool"], each["count"], each["files"]) for each in listed] == [
        (calls[0], "write_file", 1, [{"path": "a.txt", "kind": "created"}]),
        (calls[1], "write_file", 1, [{"path": "b.txt", "kind": "created"}]),
        (calls[2], "write_file", 1, [{"path": "a.txt", "kind": "changed"}]),
    ]
    of_call = await client.get(f"/v1/calls/{calls[0]}/diff")
    assert [each["diff"] for each in of_call["files"]] == ["--- /dev/null\n+++ a.txt\n@@ -0,0 +1 @@\n+one"]
    after = await client.get(f"/v1/sessions/{session}/diff", after=calls[0])
    assert [(each["path"], each["kind"]) for each in after["files"]] == [("a.txt", "changed"), ("b.txt", "created")]
    upto = await client.get(f"/v1/sessions/{session}/diff", after=calls[0], upto=calls[1])
    assert [(each["path"], each["kind"]) for each in upto["files"]] == [("b.txt", "created")]
    other = await client.session()
    assert (await client.get(f"/v1/sessions/{other}/changes")) == {"calls": []}
    for path in (
        "/v1/sessions/nobody/changes",
        "/v1/sessions/nobody/diff",
        f"/v1/sessions/{other}/diff",
        f"/v1/sessions/{other}/diff?after={calls[0]}",
        "/v1/calls/tu_x/diff",
    ):
        assert (await client.http.get(path)).status_code == 404, path
    (workspace / "b.txt").write_text("by hand\n")
    undo = f"/v1/sessions/{session}/undo"
    planned = (await client.post(undo, from_call=calls[1], dry_run=True)).json()
    assert (planned["ok"], planned["error"]["reason"], planned["error"]["details"]["files"]) == (
        False,
        "changed_since",
        ["b.txt"],
    )
    planned = (await client.post(undo, from_call=calls[1], dry_run=True, others=True)).json()
    assert planned["ok"] and "-two" in planned["content"][0]["text"]
    assert (workspace / "a.txt").read_text() == "two\n"
    assert (await client.post(undo, from_call=calls[1], others=True)).json()["files_modified"] == ["a.txt"]
    assert ((workspace / "a.txt").read_text(), (workspace / "b.txt").read_text()) == ("one\n", "by hand\n")
    assert (await client.post(f"/v1/sessions/{other}/undo", from_call=calls[1])).status_code == 404
    records = (await client.get("/v1/audit"))["records"]
    assert [(each["tool"], each.get("changed")) for each in records][:2] == [("undo", 1), ("undo_preview", None)]
