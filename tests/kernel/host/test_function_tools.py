"""`@tool` functions in a host process behave as they do in the runtime's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernel.host.driving import CONTEXT, OFFER, SAMPLES, Driven


@pytest.fixture(scope="module")
def shared() -> Iterator[Driven]:
    with Driven(str(SAMPLES)) as driven:
        driven.init()
        yield driven
        assert driven.end() == 0


@pytest.fixture
def own() -> Iterator[Driven]:
    """For tests that leave something behind."""
    with Driven(str(SAMPLES)) as driven:
        driven.init()
        yield driven


def success(value: Any, id: str = "c") -> dict[str, Any]:
    return {"id": id, "ok": True, "result": {"value": {"success": True, "result": value}, "state": {}}}


CANCELLED = {"type": "Cancelled", "detail": "The call was cancelled."}


@pytest.mark.spec("S1-15", "S1-35")
def test_a_host_says_what_it_answers_and_asks_for(shared: Driven) -> None:
    assert shared.init() == {
        "id": "q",
        "ok": True,
        "result": {
            "value": {},
            "state": {},
            "host": {
                "methods": ["cancel", "execute_tool", "get_tool_schemas", "init"],
                "asks": OFFER,
            },
        },
    }


@pytest.mark.spec("S1-21", "S1-22")
def test_every_decorated_function_is_a_tool(shared: Driven) -> None:
    answer = shared.ask("get_tool_schemas", state={})
    assert answer["result"]["value"][0] == {
        "name": "add",
        "description": "Add two numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
        },
        "x-capabilities": ["pure"],
    }
    assert len(answer["result"]["value"]) == 16


@pytest.mark.spec("S1-16", "S1-23", "S1-24")
def test_the_result_of_a_function_is_a_success_with_its_value(shared: Driven) -> None:
    assert shared.call("add", x=1, y=2) == success(3)


def test_state_comes_back_as_it_was_sent(shared: Driven) -> None:
    answer = shared.ask("execute_tool", tool_name="add", arguments={"x": 1, "y": 2}, state={"n": 1})
    assert answer["result"]["state"] == {"n": 1}


@pytest.mark.spec("S1-29", "S1-30")
def test_what_a_tool_says_becomes_parts_in_their_order(shared: Driven) -> None:
    shared.run("c", "chatty")
    assert [shared.part() for _ in range(4)] == [
        {"progress": {"message": "half", "fraction": 0.5}},
        {"text": "text", "stream": "text"},
        {"text": "err\n", "stream": "stderr"},
        {"log": {"level": "warning", "message": "careful 1"}},
    ]
    assert shared.next() == success(None)


@pytest.mark.spec("S1-34")
def test_the_parts_of_a_flood_arrive_in_order(shared: Driven) -> None:
    shared.run("c", "flood", count=10_000)
    assert [shared.part()["text"] for _ in range(10_000)] == [str(number) for number in range(10_000)]
    assert shared.next() == success(10_000)


@pytest.mark.spec("S1-33")
def test_nothing_follows_an_answer(own: Driven) -> None:
    own.run("c", "late")
    while "event" in own.next():
        pass
    assert own.call("add", x=1, y=1) == success(2)
    assert (own.end(), own.left()) == (0, b"")


def test_a_tool_knows_where_its_call_comes_from(shared: Driven) -> None:
    assert shared.value("where")["result"] == {**CONTEXT, "root": "/w"}


@pytest.mark.spec("S1-09", "S1-26")
def test_an_error_of_ours_keeps_its_class(shared: Driven) -> None:
    assert shared.call("fails", how="denied")["error"] == {
        "type": "PermissionDenied",
        "detail": "not this",
        "reason": "mine",
        "details": {"a": 1},
    }


@pytest.mark.spec("S1-09", "S1-26")
@pytest.mark.parametrize("how", ["secret", "exit", "stop"])
def test_what_else_is_raised_is_hidden_from_the_caller(shared: Driven, how: str) -> None:
    error = shared.call("fails", how=how)["error"]
    stack = error.pop("stack")
    raised = {"secret": "RuntimeError", "exit": "SystemExit", "stop": "StopIteration"}
    assert error == {
        "type": "ExecutionError",
        "detail": "The tool failed unexpectedly.",
        "reason": "exception",
        "details": {"exception": raised[how]},
    }
    assert "in fails" in stack


@pytest.mark.spec("S1-26")
def test_a_failed_call_ends_nothing_but_itself(shared: Driven) -> None:
    shared.call("fails", how="exit")
    assert shared.call("add", x=1, y=2) == success(3)


def test_a_result_that_is_not_json_is_a_failure(shared: Driven) -> None:
    error = shared.call("fails", how="nan")["error"]
    assert (error["type"], error["reason"]) == ("ExecutionError", "not_json")


def test_a_result_nested_deeper_than_the_runtime_reads_is_a_failure(shared: Driven) -> None:
    assert shared.call("fails", how="deep")["error"]["type"] == "Unsendable"


def test_an_envelope_loses_nothing_on_the_way(shared: Driven) -> None:
    assert shared.value("fails", how="itself") == {
        "success": False,
        "result": None,
        "error": "it did not work",
        "output": {"metadata": {"reason": "so"}},
    }
    assert shared.value("fails", how="not") == {
        "success": True,
        "result": 1,
        "output": {"metadata": {"m": 2}, "files_modified": ["a.txt"]},
    }


def test_an_unknown_tool_is_said_to_be_unknown(shared: Driven) -> None:
    assert shared.call("nobody")["error"]["type"] == "UnknownTool"


@pytest.mark.spec("S1-02", "S1-04")
def test_what_a_tool_prints_never_reaches_the_protocol(own: Driven) -> None:
    assert own.call("prints") == success("")
    assert (own.end(), own.left()) == (0, b"")
    assert own.stderr == "printed\nwritten\nraw\nchild\n"


def test_sync_functions_have_the_main_thread(shared: Driven) -> None:
    assert shared.value("thread")["result"] is True


def test_a_context_variable_is_forgotten_after_the_call(shared: Driven) -> None:
    assert [shared.value("remember", what=each)["result"] for each in "ab"] == ["nothing", "nothing"]


# Reaching back.


def test_every_file_operation_goes_to_the_runtime_and_back(shared: Driven) -> None:
    shared.run("c", "all_files")
    answers = ["one", "AAE=", None, None, None, True, ["x", "y"], None, None, "/kept/log.txt"]
    asked = []
    for answer in answers:
        frame = shared.next()
        asked.append((frame["method"], frame["params"]))
        shared.give(frame["id"], answer)
    assert asked == [
        ("read_file", {"call": "c", "path": "a"}),
        ("read_file", {"call": "c", "path": "b", "encoding": "base64"}),
        ("write_file", {"call": "c", "path": "c", "content": "x"}),
        ("write_file", {"call": "c", "path": "d", "content": "AAE=", "encoding": "base64"}),
        ("append_file", {"call": "c", "path": "e", "content": "y"}),
        ("file_exists", {"call": "c", "path": "f"}),
        ("list_files", {"call": "c", "path": "."}),
        ("delete_file", {"call": "c", "path": "g"}),
        ("patch_file", {"call": "c", "path": "h", "old": "1", "new": "2"}),
        ("keep_artifact", {"call": "c", "name": "log.txt"}),
    ]
    values = ["one", [0, 1], None, None, None, True, ["x", "y"], None, None, "/kept/log.txt"]
    assert shared.next() == success(values)


def test_an_async_tool_reads_files_too(shared: Driven) -> None:
    shared.run("c", "read_async", path="a")
    shared.give(shared.next()["id"], "one")
    assert shared.next() == success("one")


def test_a_refusal_of_the_runtime_is_raised_in_the_tool(shared: Driven) -> None:
    shared.run("c", "until_read", path="../x")
    error = {"type": "PermissionDenied", "detail": "It leaves the workspace.", "reason": "workspace_escape"}
    shared.refuse(shared.next()["id"], **error)
    assert shared.next() == {"id": "c", "ok": False, "error": error}


def test_what_the_runtime_does_not_offer_is_refused_without_asking() -> None:
    with Driven(str(SAMPLES)) as driven:
        driven.ask("init", config={})
        error = driven.call("until_read", path="a")["error"]
        assert (error["type"], error["reason"]) == ("PermissionDenied", "not_offered")


# Cancelling.


@pytest.mark.spec("S1-49")
def test_an_async_call_is_cancelled_and_answered_before_the_cancel_is(shared: Driven) -> None:
    shared.run("c", "later")
    shared.part()
    shared.send("x", "cancel", id="c")
    assert shared.part() == {"text": "cancelled True", "stream": "text"}
    assert shared.next() == {"id": "c", "ok": False, "error": CANCELLED}
    assert shared.next() == {"id": "x", "ok": True, "result": {"value": True}}


def test_a_cancelled_tool_may_still_give_what_it_has(shared: Driven) -> None:
    shared.run("c", "cooperative")
    shared.part()
    shared.send("x", "cancel", id="c")
    assert [shared.next(), shared.next()["id"]] == [success("half of it"), "x"]


def test_an_async_call_behind_a_sync_function_is_cancelled_too(shared: Driven) -> None:
    shared.run("c", "wrapper")
    shared.part()
    shared.send("x", "cancel", id="c")
    shared.part()
    assert [shared.next(), shared.next()["id"]] == [{"id": "c", "ok": False, "error": CANCELLED}, "x"]


def test_a_call_cancelled_in_the_same_breath_is_answered_once(shared: Driven) -> None:
    frames = [
        b'{"v":1,"id":"c","method":"execute_tool","params":{"tool_name":"flood","arguments":{"count":0}}}\n',
        b'{"v":1,"id":"x","method":"cancel","params":{"id":"c"}}\n',
    ]
    shared.write(b"".join(frames))
    assert [shared.next()["id"], shared.next()["id"]] == ["c", "x"]


@pytest.mark.spec("S1-49")
def test_a_sync_call_that_runs_cannot_be_cancelled_and_the_host_says_so(own: Driven) -> None:
    own.run("c", "stuck")
    own.part()
    answer = own.ask("cancel", id="c")
    assert (answer["id"], answer["ok"], answer["error"]["type"]) == ("q", False, "CannotCancel")


@pytest.mark.spec("S1-49")
def test_a_call_that_waits_for_its_turn_is_cancelled_without_running(shared: Driven) -> None:
    shared.run("a", "until_read", path="x")
    asked = shared.next()
    shared.run("b", "chatty")
    shared.send("x", "cancel", id="b")
    assert [shared.next(), shared.next()["id"]] == [{"id": "b", "ok": False, "error": CANCELLED}, "x"]
    shared.give(asked["id"], "done")
    assert shared.next() == success("done", "a")
    assert shared.call("add", x=1, y=1) == success(2)


@pytest.mark.parametrize("id", ["never", "c"])
def test_a_cancel_of_what_is_over_finds_nothing(shared: Driven, id: str) -> None:
    shared.call("add", x=1, y=2)
    assert shared.ask("cancel", id=id) == {"id": "q", "ok": True, "result": {"value": False}}


@pytest.mark.spec("S1-10")
def test_async_calls_overlap_and_a_sync_call_holds_up_none_of_them(shared: Driven) -> None:
    shared.run("s", "until_read", path="x")
    asked = shared.next()
    shared.run("l", "later")
    shared.part()
    shared.run("f", "flood", count=0)
    assert shared.next() == success(0, "f")
    shared.run("second", "add", x=1, y=2)
    shared.give(asked["id"], "done")
    assert [shared.next(), shared.next()] == [success("done", "s"), success(3, "second")]
    shared.send("x", "cancel", id="l")
    assert [shared.next().get("id") for _ in range(3)] == ["l", "l", "x"]
