"""What the dashboard sums up: how long calls took and waited, what failed alike, tokens, sessions by
what they are, and the rules in force."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.config.home import Home
from callgate.core.models import Price
from callgate.features.chat.agent.agent import Agent
from callgate.features.mcp.wiring import add_servers
from callgate.features.web.routes.tallies import count_log
from callgate.instance.wiring.runtime import Wired
from callgate.sources.providers import AllProvidedTools
from tests.features.chat.agent.talks import PlayedModel, text
from tests.features.mcp.client.labs import stdio
from tests.features.web.instances import Client, Instance, serving

REQUESTED = "tool.confirmation_requested"


async def answered(instance: Instance, tool: str, decision: str, **arguments: Any) -> Any:
    """A call that a person answers."""
    client = instance.client()
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        running = asyncio.get_running_loop().create_task(client.call(tool, **arguments))
        asked = await watcher.event(REQUESTED)
        id = asked["payload"]["confirmation_request_id"]
        await client.post(f"/v1/confirmations/{id}", decision=decision)
        return await running


async def test_the_wait_for_a_person_is_no_part_of_how_long_a_call_took(instance: Instance) -> None:
    client = instance.client()
    for decision in ("allow", "deny"):
        await answered(instance, "put", decision, what="a")
    allowed, denied = (await client.get("/v1/audit"))["records"][::-1]
    assert all(each["waited_ms"] > 0 for each in (allowed, denied))
    (event,) = [
        each["payload"] for each in await events_of(instance, denied["session"]) if each["type"] == "tool.failed"
    ]
    assert abs(denied["ms"] + denied["waited_ms"] - event["latency_ms"]) < 0.01
    (stats,) = (await client.get("/v1/stats"))["tools"]
    assert (stats["asked"], stats["calls"]) == (2, 2)
    waits = sorted((allowed["waited_ms"], denied["waited_ms"]))
    assert [stats["waited_p50_ms"], stats["waited_p95_ms"]] == waits
    assert [stats["p50_ms"], stats["p95_ms"]] == [allowed["ms"]] * 2, "only what ran"


async def test_answers_are_counted_with_their_share_and_their_median(instance: Instance) -> None:
    client = instance.client()
    for decision in ("allow", "deny", "allow"):
        await answered(instance, "put", decision, what="a")
    waits = sorted(each["waited_ms"] for each in (await client.get("/v1/audit"))["records"])
    answers = (await client.get("/v1/stats"))["answers"]
    assert (answers["approved"], answers["denied"]) == (2, 1)
    assert (answers["p50_ms"], answers["p95_ms"]) == (waits[1], waits[2])
    nothing = (await client.get("/v1/stats", since=9e9))["answers"]
    assert nothing == {"approved": 0, "denied": 0, "p50_ms": 0.0, "p95_ms": 0.0}


def test_answers_by_a_flag_or_by_nobody_are_not_counted(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path / "audit.jsonl"))
    for number, (by, error) in enumerate(
        [("dashboard", None), ("terminal", "user_denied"), ("--yes", None), (None, "confirmation_timeout")]
    ):
        log.append(
            CallRecord(
                id=f"audit_{number}",
                ts=1_000 + number,
                caller="http",
                tool="put",
                decision="allow",
                call_id=f"tu_{number}",
                session="sess_1",
                cwd="/",
                args="{}",
                confirmation_id=f"conf_{number}",
                answered_by=by,
                waited_ms=10.0 * (number + 1),
                error_class=error,
            )
        )
    log.close()
    answers = count_log(log.path, 0.0, 60.0).answers
    assert (answers.approved, answers.denied, answers.waited) == (1, 1, {"10": 1, "20": 1})


async def test_a_row_names_the_reason_of_a_call_that_did_not_run(instance: Instance) -> None:
    client = instance.client()
    await client.call("read_file", path="../../etc/passwd")
    await client.call("put", what="a")
    await client.call("show")
    fine, unasked, outside = (await client.get("/v1/calls"))["calls"]
    assert (outside["state"], outside["reason"]) == ("denied", "workspace_escape")
    assert "escapes workspace" in outside["message"]
    assert (unasked["state"], unasked["reason"]) == ("denied", "no_confirmer")
    assert "reason" not in fine and "message" not in fine


async def events_of(instance: Instance, session: str) -> list[Any]:
    page = await instance.client().get(f"/v1/sessions/{session}/events")
    return [event for _, event in page["events"]]


async def test_what_failed_alike_is_one_group_with_its_newest_call(instance: Instance) -> None:
    client = instance.client()
    for name in ("a", "b", "c"):
        newest = await client.call("read_file", path=f"{name}.txt")
    await client.call("show", more=1)
    await client.call("show")
    groups = (await client.get("/v1/stats"))["errors"]
    assert [(each["tool"], each["error_class"], each["count"]) for each in groups] == [
        ("read_file", newest["error"]["class"], 3),
        ("show", "validation_error", 1),
    ]
    assert (groups[0]["call"], groups[0]["message"]) == (newest["call_id"], newest["error"]["message"])


async def test_tokens_and_what_they_cost_are_counted_by_model(home: Path, tmp_path: Path) -> None:
    def open_agent(wired: Wired, name: str | None) -> Agent:
        model = PlayedModel([text("Hello.", input=1000, output=500)], native=True)
        model.price = Price(input=1.0, output=2.0)
        return Agent(wired.runtime, model)

    async with serving(home, tmp_path / "ws", open_agent=open_agent) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/sessions/{session}/turns", prompt="Hello")
            completed = (await watcher.event("llm.call_completed"))["payload"]
            await watcher.event("turn.completed")
        (model,) = (await client.get("/v1/stats"))["models"]
        assert model == {
            "model": completed["model"],
            "replies": 1,
            "input_tokens": completed["input_tokens"],
            "output_tokens": completed["output_tokens"],
            "cost_usd": completed["cost_usd"],
        }
        (cost,) = (await client.get("/v1/stats"))["sessions"]
        use = {name: value for name, value in model.items() if name != "model"}
        assert cost == {**use, "session": session, "title": "Hello"}
        assert (await client.get("/v1/stats", since=9e9))["models"] == []


async def test_a_session_says_who_works_in_it_and_with_which_tool_it_began(instance: Instance) -> None:
    client = instance.client()
    client.http.headers["user-agent"] = "my-editor/2"
    await client.call("show", what="a")
    talk = await client.session(title="Plans")
    sessions = {each["id"]: each for each in (await client.get("/v1/sessions"))["sessions"]}
    named = sessions.pop(talk)
    (other,) = sessions.values()
    assert (named["client"], named["title"], named["first_tool"]) == ("my-editor/2", "Plans", None)
    assert (other["client"], other["title"], other["first_tool"]) == ("my-editor/2", None, "show")
    (row,) = (await client.get("/v1/calls"))["calls"]
    assert (row["client"], row["waited_ms"]) == ("my-editor/2", 0)


RULES = """
[policy.per_tool]
show = "deny"

[[policy.rules]]
decision = "allow"
tool = "put"
arguments = { what = "a" }
"""


async def test_the_rules_in_force_are_given_with_file_and_line(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", settings=RULES) as instance:
        found = await instance.client().get("/v1/policy")
        file = str(home / "settings.toml")
        assert found["rules"] == [
            {
                "decision": "allow",
                "says": "tool = put, what = a",
                "origin": {"file": file, "line": 5},
                "workspace": False,
            }
        ]
        assert found["tools"] == [{"name": "show", "word": "deny", "origin": {"file": file, "line": 3}}]
        writes = next(each for each in found["classes"] if each["name"] == "write")
        assert (writes["word"], writes["origin"]) == ("prompt", {"file": "built-in default", "line": None})


async def test_lines_to_add_are_tested_on_top_of_the_settings_in_force(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", settings=RULES) as instance:
        client = instance.client()
        await client.call("show")
        await client.call("put", what="b")
        body = {"settings": '[[policy.rules]]\ndecision = "deny"\ntool = "put"\n', "added": True}
        found = (await client.post("/v1/policy/test", **body)).json()
        assert (found["judged"], found["steps"]) == (2, {"ask->deny": 1}), "show is denied before and after"


async def test_a_used_login_link_is_answered_in_words_to_a_browser(instance: Instance) -> None:
    client = instance.client(token=None)
    for kind, accept in (("text/html", "text/html,*/*"), ("application/json", "*/*")):
        answer = await client.http.get("/login", params={"code": "used"}, headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (401, kind)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert kind == "application/json" or "callgate dashboard" in answer.text


async def test_a_server_is_looked_at_approved_by_a_browser_and_its_log_read(home: Path, tmp_path: Path) -> None:
    listing = tmp_path / "tools.json"
    listing.write_text(json.dumps([{"name": "echo", "description": "Say it.", "inputSchema": {"type": "object"}}]))
    settings = f'sandbox = "off"\n[mcp.odd]\n{stdio("--file", str(listing))}effect = "read"\n'
    (home / "settings.toml").write_text(settings)
    owner = Wired(Home(str(home)), audit=False)
    tools = add_servers(owner, str(tmp_path))
    owner.dispatcher.registry.add(tools)
    async with serving(home, tmp_path / "ws", hosts=AllProvidedTools(None, lambda: tools, lambda: None)) as instance:
        client = instance.client()
        seen = (await client.post("/v1/hosts/mcp.odd/look")).json()
        assert (seen["is_new"], [(each["effect"], each["news"], each["description"]) for each in seen["tools"]]) == (
            True,
            [("read", "new", "Say it.")],
        )
        approval = {"sha256": seen["sha256"]}
        assert (await client.post("/v1/hosts/mcp.odd/approve", **approval)).status_code == 403, "a token is no person"
        browser = await logged_in(instance)
        other = await browser.post("/v1/hosts/mcp.odd/approve", sha256="0" * 64)
        assert (other.status_code, other.json()["error"]["reason"]) == (500, "not_looked_at")
        done = (await browser.post("/v1/hosts/mcp.odd/approve", **approval)).json()
        assert [each["effect"] for each in done["tools"]] == ["read"]
        again = (await client.post("/v1/hosts/mcp.odd/look")).json()
        assert [each["news"] for each in again["tools"]] == ["as approved"]
        assert "approved by a person" in (await client.get("/v1/hosts/mcp.odd/log"))["text"]
        assert (await client.http.get("/v1/hosts/mcp.none/log")).status_code == 404
        refused = await client.http.get("/v1/hosts/mcp.odd/messages")
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "login")
        messages = (await browser.get("/v1/hosts/mcp.odd/messages"))["messages"]
        assert {"tools/list"} <= {each["method"] for each in messages if each["direction"] == "received"}
        assert (await browser.http.get("/v1/hosts/mcp.none/messages")).status_code == 404
    await tools.close()
    await owner.close()


async def test_a_rule_is_saved_by_the_owners_login_after_a_yes_and_holds_at_once(instance: Instance) -> None:
    client = instance.client()
    rule = {"decision": "allow", "tool": "put"}
    refused = await client.post("/v1/policy/rules", **rule)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "login")
    browser = await logged_in(instance)
    for decision, held in (("deny", False), ("allow", True)):
        async with client.stream() as watcher:
            await watcher.subscribe(confirmer=True)
            saving = asyncio.get_running_loop().create_task(browser.post("/v1/policy/rules", **rule))
            asked = (await watcher.event(REQUESTED))["payload"]
            assert asked["tool_name"] == "save_rule"
            await client.post(f"/v1/confirmations/{asked['confirmation_request_id']}", decision=decision)
            assert (await saving).json()["ok"] is held
        assert bool((await client.get("/v1/policy"))["rules"]) is held
    assert (await client.call("put", what="a"))["ok"]
    assert [each["tool"] for each in (await client.get("/v1/audit"))["records"]] == ["put", "save_rule", "save_rule"]
    assert "save_rule" not in [each["name"] for each in (await client.get("/v1/tools"))["tools"]]
    hidden = await client.post("/v1/calls", tool="save_rule", arguments=rule)
    assert hidden.json()["error"]["class"] == "not_found"


async def test_suggested_rules_are_listed_and_one_is_saved_as_it_stands(instance: Instance) -> None:
    client = instance.client()
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        for _ in range(3):
            calling = asyncio.get_running_loop().create_task(client.call("put", what="a"))
            asked = (await watcher.event(REQUESTED))["payload"]
            await client.post(f"/v1/confirmations/{asked['confirmation_request_id']}", decision="allow")
            assert (await calling)["ok"]
    found = await client.get("/v1/policy/suggestions")
    (only,) = found["suggestions"]
    assert (only["count"], only["answered"], only["steps"], only["rule"]["arguments"]) == (
        *(3, 3, {"ask->allow": 3}, {"what": "a"}),
    )
    assert tomllib.loads(only["toml"])["policy"]["rules"] == [only["rule"]]
    assert (await client.get("/v1/policy/suggestions", least=4))["suggestions"] == []
    assert (await client.http.get("/v1/policy/suggestions", params={"least": 0})).status_code == 400
    refused = await client.post("/v1/policy/rules", **only["rule"])
    assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "login")
    browser = await logged_in(instance)
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        saving = asyncio.get_running_loop().create_task(browser.post("/v1/policy/rules", **only["rule"]))
        asked = (await watcher.event(REQUESTED))["payload"]
        await client.post(f"/v1/confirmations/{asked['confirmation_request_id']}", decision="allow")
        assert (await saving).json()["ok"]
    assert (await client.get("/v1/policy/suggestions"))["suggestions"] == []
    assert (await client.call("put", what="a"))["ok"]


async def test_explaining_a_call_shows_what_is_used_of_its_budgets(instance: Instance, home: Path) -> None:
    (home / "settings.toml").write_text("[policy.budgets.day]\ncalls = 1\n")
    client = instance.client()
    show = {"tool": "show", "arguments": {}}
    before = (await client.post("/v1/policy/explain", **show)).json()
    assert (before["outcome"], before["budgets"]) == ("allow", ["0 of 1 calls today"])
    (only,) = (await client.get("/v1/policy"))["budgets"]
    assert (only["amount"], only["per"], only["tool"], only["limit"], only["origin"]["line"]) == (
        *("calls", "day", None, 1, 2),
    )
    assert (await client.call("show"))["ok"]
    after = (await client.post("/v1/policy/explain", **show)).json()
    assert (after["outcome"], after["reason"], after["origin"]["line"]) == ("ask", "budget", 2)


async def test_a_rule_that_could_not_be_read_again_is_not_saved(instance: Instance) -> None:
    browser = await logged_in(instance)
    client = instance.client()
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        saving = asyncio.get_running_loop().create_task(browser.post("/v1/policy/rules", decision="allow"))
        asked = (await watcher.event(REQUESTED))["payload"]
        await client.post(f"/v1/confirmations/{asked['confirmation_request_id']}", decision="allow")
        result = (await saving).json()
    assert (result["ok"], (await client.get("/v1/policy"))["rules"]) == (False, [])


async def logged_in(instance: Instance) -> Client:
    """A browser with the cookie of a login."""
    login = (await instance.client().post("/v1/login")).json()["url"]
    browser = instance.client(token=None)
    answer = await browser.http.get(f"/login{login.partition('/login')[2]}")
    browser.http.headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
    return browser
