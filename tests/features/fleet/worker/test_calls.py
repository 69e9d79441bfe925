"""Calls of a session whose workspace is on a worker: a server and workers as real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.features.fleet.worker.deployments import LIMIT_S, Deployment, deployment, processes_with

OWN_TOOLS = """
from callgate import tool

@tool(side_effects="none")
def where() -> str:
    "Say where we are."
    import os
    return os.getcwd()

@tool(side_effects="none", requires_workspace=False)
def double(number: int) -> int:
    "Twice as much."
    return 2 * number
"""


@contextmanager
def connect_as_person(deployed: Deployment, session: str) -> Iterator[None]:
    """Somebody is there to be asked."""
    where = deployed.url.replace("http", "ws", 1) + "/v1/stream"
    headers = {"authorization": deployed.http.headers["authorization"]}
    with connect(where, additional_headers=headers, proxy=None) as socket:
        socket.send(json.dumps({"type": "subscribe", "id": "s", "session": session, "confirmer": True}))
        while json.loads(socket.recv(LIMIT_S))["type"] != "subscribe_ack":
            pass
        yield


def text(result: Any) -> str:
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


def test_files_and_commands_of_a_pool_are_those_of_its_worker(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session = deployed.session()
    written = deployed.call(session, "write_file", path="a.txt", content="hello\n")
    assert written["ok"], written
    assert (deployed.directory("one") / "a.txt").read_text() == "hello\n"
    assert not (deployed.root / "served" / "a.txt").exists()
    patched = deployed.call(session, "patch_file", path="a.txt", old="hello", new="bye")
    assert patched["ok"], patched
    assert "bye" in text(deployed.call(session, "read_file", path="a.txt"))
    assert "a.txt" in text(deployed.call(session, "search_text", pattern="bye"))
    ran = deployed.call(session, "shell", command="pwd; cat a.txt; echo out > b.txt")
    assert ran["ok"], ran
    assert str(deployed.directory("one")) in text(ran) and "bye" in text(ran)
    assert (deployed.directory("one") / "b.txt").read_text() == "out\n"


def test_the_server_judges_records_and_streams_what_a_worker_does(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session = deployed.session()
    result = deployed.call(session, "shell", command="echo one; echo two >&2")
    types = [event["type"] for event in deployed.events(session) if event["type"].startswith("tool.")]
    assert types[0] == "tool.called" and types[-1] == "tool.completed" and "tool.output_delta" in types
    row = deployed.get(f"/v1/calls/{result['call_id']}")
    assert (row["state"], row["tool"], row["session_id"]) == ("ok", "shell", session)
    assert deployed.get(f"/v1/sessions/{session}")["workspace"] == "pool:build/app"


def test_mode_read_changes_nothing_on_a_worker(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session = deployed.session(mode="read")
    written = deployed.call(session, "write_file", path="a.txt", content="x")
    assert (written["error"]["class"], written["error"]["reason"]) == ("permission_denied", "mode_read")
    deployed.call(session, "shell", command="echo x > b.txt")
    assert list(deployed.directory("one").iterdir()) == []


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "out/secret", "link"])
def test_no_path_leaves_the_workspace_of_a_worker(deployed: Deployment, path: str) -> None:
    deployed.worker(deployed.token("build"), "one")
    directory = deployed.directory("one")
    (directory.parent / "secret").write_text("SECRET")
    (directory / "out").symlink_to(directory.parent)
    (directory / "link").symlink_to(directory.parent / "secret")
    session = deployed.session()
    read = deployed.call(session, "read_file", path=path)
    assert (read["error"]["class"], read["error"]["reason"]) == ("permission_denied", "workspace_escape")
    written = deployed.call(session, "write_file", path=path, content="mine")
    assert written["error"]["class"] == "permission_denied"
    assert (directory.parent / "secret").read_text() == "SECRET"


def test_a_protected_place_of_a_worker_is_not_written(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session = deployed.session()
    result = deployed.call(session, "write_file", path=".git/hooks/pre-commit", content="#!/bin/sh")
    assert (result["error"]["class"], result["error"]["reason"]) == ("permission_denied", "protected_path")


def test_a_path_rule_of_the_server_binds_files_and_commands_of_a_worker(tmp_path: Path) -> None:
    with deployment(tmp_path) as deployed:
        deployed.settings('[[policy.rules]]\ndecision = "deny"\npath = "private/**"\n')
        deployed.serve()
        deployed.worker(deployed.token("build"), "one")
        private = deployed.directory("one") / "private"
        private.mkdir()
        (private / "key").write_text("SECRET")
        (deployed.directory("one") / "alias").symlink_to("private/key")
        session = deployed.session()
        for path in ("private/key", "alias"):
            result = deployed.call(session, "read_file", path=path)
            assert (result["error"]["class"], result["error"]["reason"]) == ("permission_denied", "policy_deny")
        ran = deployed.call(session, "shell", command="cat private/key alias")
        assert "SECRET" not in text(ran)
        assert "SECRET" not in text(deployed.call(session, "search_text", pattern="SECRET"))


def test_what_the_settings_of_a_worker_deny_is_refused_there(deployed: Deployment) -> None:
    home = deployed.root / "home-one"
    home.mkdir(mode=0o700)
    (home / "settings.toml").write_text('[policy.per_tool]\nshell = "deny"\n')
    deployed.worker(deployed.token("build"), "one")
    result = deployed.call(deployed.session(), "shell", command="echo ran > ran")
    assert result["error"]["class"] == "permission_denied"
    assert not (deployed.directory("one") / "ran").exists()


def test_a_question_about_a_call_on_a_worker_shows_its_diff_and_runs_after_the_yes(tmp_path: Path) -> None:
    with deployment(tmp_path) as deployed, ThreadPoolExecutor(1) as pool:
        deployed.serve("ask")
        deployed.worker(deployed.token("build"), "one")
        file = deployed.directory("one") / "a.txt"
        file.write_text("old\n")
        session = deployed.session()
        with connect_as_person(deployed, session):
            calling = pool.submit(deployed.call, session, "write_file", path="a.txt", content="new\n")
            question = deployed.until(lambda: deployed.get("/v1/confirmations")["confirmations"])[0]
            assert "-old" in question["preview"] and "+new" in question["preview"]
            assert file.read_text() == "old\n"
            answered = deployed.http.post(f"/v1/confirmations/{question['id']}", json={"decision": "allow"})
            assert answered.status_code == 200, answered.text
            assert calling.result(LIMIT_S)["ok"]
        assert file.read_text() == "new\n"


def test_a_change_made_by_a_worker_can_be_undone(deployed: Deployment) -> None:
    token = deployed.token("build")
    deployed.worker(token, "one")
    deployed.worker(token, "two")
    session = deployed.session()
    changed = deployed.call(session, "write_file", path="a.txt", content="x")
    (file,) = (name for name in ("one", "two") if (deployed.directory(name) / "a.txt").exists())
    undone = deployed.http.post(f"/v1/sessions/{session}/undo", json={"call": changed["call_id"], "confirmed": True})
    assert undone.status_code == 200 and undone.json()["ok"], undone.text
    assert not (deployed.directory(file) / "a.txt").exists()
    again = deployed.http.post(f"/v1/sessions/{session}/undo", json={"call": "tu_unknown"})
    assert again.status_code == 404


def test_a_cancel_ends_the_process_on_the_worker(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session, directory = deployed.session(), deployed.directory("one")
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(deployed.call, session, "shell", command="echo $$ > begun; sleep 300; echo x > ended")
        deployed.until((directory / "begun").exists)
        (row,) = deployed.get("/v1/calls?state=running")["calls"]
        assert deployed.http.delete(f"/v1/calls/{row['id']}").json() == {"cancelled": True}
        assert calling.result(LIMIT_S)["error"]["class"] == "cancelled"
    deployed.until(lambda: not deployed.workers()[0]["calls"])
    deployed.until(lambda: not processes_with("sleep 300"))
    assert not (directory / "ended").exists()


def test_a_time_limit_holds_on_a_worker(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    body = {"session": deployed.session(), "tool": "shell", "arguments": {"command": "sleep 301"}, "timeout_s": 0.5}
    result = deployed.http.post("/v1/calls", json=body).json()
    assert result["error"]["class"] == "timeout"
    deployed.until(lambda: not processes_with("sleep 301"))


def test_a_tool_that_works_with_files_of_the_server_is_not_for_a_pool(tmp_path: Path) -> None:
    with deployment(tmp_path) as deployed:
        (deployed.home / "own.py").write_text(OWN_TOOLS)
        deployed.settings('[tools]\nload = ["own.py"]\n')
        deployed.serve()
        deployed.worker(deployed.token("build"), "one")
        session = deployed.session()
        refused = deployed.call(session, "where")
        assert (refused["error"]["class"], refused["error"]["reason"]) == ("permission_denied", "not_in_pool")
        assert text(deployed.call(session, "double", number=2)) == "4"
        listed = deployed.http.get("/v1/tools", params={"session": session}).json()["tools"]
        shown = {each["name"] for each in listed if "hidden" not in each}
        assert {"double", "read_file", "shell"} <= shown and "where" not in shown
        (hidden,) = [each["hidden"] for each in listed if each["name"] == "where"]
        assert hidden == "it works with files of the server, and the workspace is pool:build/app"
        assert "where" in {each["name"] for each in deployed.http.get("/v1/tools").json()["tools"]}


def test_a_pool_without_workers_is_a_clear_error(deployed: Deployment) -> None:
    opened = deployed.http.post("/v1/sessions", json={"pool": "build"})
    assert opened.status_code == 409
    assert opened.json()["error"]["message"].startswith("No worker of pool build is connected.")
    worker = deployed.worker(deployed.token("build"), "one")
    assert deployed.http.post("/v1/sessions", json={"pool": "build/other"}).status_code == 404
    session = deployed.session("build/app")
    worker.close()
    deployed.until(lambda: not deployed.workers())
    result = deployed.call(session, "read_file", path="a.txt")
    assert (result["error"]["class"], result["error"]["reason"]) == ("host_unavailable", "no_worker")
    assert result["error"]["message"].startswith("No worker of pool build is connected")
