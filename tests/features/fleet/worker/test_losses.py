"""Workers and servers that are lost: effects at most once, reads elsewhere, old connections fenced."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.features.fleet.worker.deployments import LIMIT_S, Deployment, processes_with
from tests.features.fleet.worker.scripted import ScriptedWorker

ONCE = "echo run >> runs; sleep 302"


def runs(deployed: Deployment, *names: str) -> int:
    files = [deployed.directory(name) / "runs" for name in names]
    return sum(len(file.read_text().splitlines()) for file in files if file.exists())


def test_a_worker_killed_in_a_call_with_effects_interrupts_it_and_it_runs_once(deployed: Deployment) -> None:
    token = deployed.token("build")
    workers = {name: deployed.worker(token, name) for name in ("one", "two")}
    session = deployed.session()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(deployed.call, session, "shell", command=ONCE)
        at = deployed.until(lambda: [name for name in workers if runs(deployed, name)])[0]
        workers[at].kill()
        result = calling.result(LIMIT_S)
    assert (result["error"]["class"], result["error"]["reason"]) == ("execution_error", "interrupted")
    assert runs(deployed, "one", "two") == 1
    deployed.until(lambda: not processes_with("sleep 302"))
    row = deployed.get(f"/v1/calls/{result['call_id']}")
    assert row["state"] == "failed"
    ends = [each for each in deployed.events(session) if each["type"] == "tool.failed"]
    assert [each["payload"]["call_id"] for each in ends] == [result["call_id"]]
    assert deployed.call(session, "shell", command="echo next")["ok"]  # by the other one


def test_a_read_of_a_worker_that_is_lost_is_answered_by_another(deployed: Deployment) -> None:
    token = deployed.token("build")
    silent = ScriptedWorker(deployed.url, token, name="one")
    silent.greet()
    session = deployed.session()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(deployed.call, session, "read_file", path="a.txt")
        located = silent.take("locate_call")
        path = {"given": "a.txt", "real": "/elsewhere/a.txt", "root": "/elsewhere", "relative": "a.txt"}
        path |= {"exists": True, "protected": False, "writable": True}
        silent.answer(located, {"resolved_paths": [path]})
        silent.take("execute_tool")
        directory = deployed.directory("two")
        directory.mkdir(parents=True)
        (directory / "a.txt").write_text("of two")
        deployed.worker(token, "two")
        silent.close()
        result = calling.result(LIMIT_S)
    assert result["ok"] and "of two" in result["content"][0]["text"]
    called = [each for each in deployed.events(session) if each["type"] == "tool.called"]
    assert len(called) == 1


def test_a_stopped_worker_is_passed_over_once_it_is_killed(deployed: Deployment) -> None:
    token = deployed.token("build")
    first = deployed.worker(token, "one")
    session = deployed.session()
    deployed.call(session, "list_dir")  # the session stays with it
    deployed.worker(token, "two")
    first.send(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(deployed.call, session, "list_dir")
        deployed.until(lambda: deployed.get("/v1/calls?state=running")["calls"] or calling.done())
        first.kill()
        assert calling.result(LIMIT_S)["ok"]


def effect(deployed: Deployment, worker: ScriptedWorker, pool: ThreadPoolExecutor, session: str) -> Any:
    """A call with effects that the worker has been given: its future, and the worker's request."""
    calling = pool.submit(deployed.call, session, "shell", command="true")
    worker.locate()
    return calling, worker.take("execute_tool")


def test_a_result_of_an_older_connection_does_not_count(deployed: Deployment) -> None:
    token = deployed.token("build")
    old = ScriptedWorker(deployed.url, token, process="a" * 16)
    generation = old.greet()
    session = deployed.session()
    with ThreadPoolExecutor(1) as pool:
        calling, request = effect(deployed, old, pool, session)
        new = ScriptedWorker(deployed.url, token, process="b" * 16)
        assert new.greet() > generation
        result = calling.result(LIMIT_S)
        assert result["error"]["reason"] == "interrupted"
        try:
            old.answer(request, {"success": True, "result": "late"})
        except Exception:
            pass  # the server has closed it
        assert old.closed() == 4409
        old.close()
        assert [each["generation"] > generation for each in deployed.workers()] == [True]
        calling, request = effect(deployed, new, pool, session)
        new.answer(request, {"success": True, "result": "done"})
        assert calling.result(LIMIT_S)["ok"]
    kept = deployed.get(f"/v1/calls/{result['call_id']}")
    assert kept["state"] == "failed"
    new.close()


def test_a_replaced_worker_ends_with_a_sentence_and_does_not_come_back(deployed: Deployment) -> None:
    token = deployed.token("build")
    first = deployed.worker(token, "one")
    second = deployed.worker(token, "one", joined=False)
    second.line("is connected")
    code, output = first.ended()
    assert code == 3 and "Another process connected as this worker" in output
    deployed.until(lambda: [each["generation"] for each in deployed.workers()] == [2])


def test_a_worker_comes_back_when_its_server_was_away(deployed: Deployment) -> None:
    token = deployed.token("build")
    server = deployed.restartable()
    worker = deployed.worker(token, "one")
    session = deployed.session()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(deployed.try_call, session, "shell", command=ONCE.replace("302", "303"))
        deployed.until(lambda: runs(deployed, "one"))
        server.kill()
        calling.result(LIMIT_S)
    worker.line("retrying")
    deployed.until(lambda: not processes_with("sleep 303"))  # nobody waits for it any more
    deployed.restartable()
    worker.line("is connected")
    deployed.until(deployed.workers)
    assert deployed.call(session, "list_dir")["ok"]
    ends = [each for each in deployed.events(session) if each["type"] == "tool.failed"]
    assert [each["payload"]["reason"] for each in ends] == ["interrupted"]
    assert runs(deployed, "one") == 1


def test_a_revoked_token_cuts_its_workers(deployed: Deployment) -> None:
    worker = deployed.worker(deployed.token("build", name="mine"), "one")
    deployed.command("workers", "token", "revoke", "mine")
    code, output = worker.ended()
    assert code == 3 and "The worker token was revoked." in output
    deployed.until(lambda: not deployed.workers())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"v": 2, "ok": True, "result": {"value": 1}}, "worker_answer"),
        ({"v": 1, "ok": True}, "worker_answer"),
        ({"v": 1, "ok": False, "error": {"type": "Nonsense", "detail": "no"}}, None),
    ],
)
def test_a_wrong_answer_of_a_worker_ends_the_call_and_no_other(
    deployed: Deployment, answer: dict[str, Any], reason: str | None
) -> None:
    worker = ScriptedWorker(deployed.url, deployed.token("build"))
    worker.greet()
    session = deployed.session()
    with ThreadPoolExecutor(1) as pool:
        calling, request = effect(deployed, worker, pool, session)
        worker.send({**answer, "id": request["id"]})
        assert calling.result(LIMIT_S)["error"].get("reason") == reason
        calling, request = effect(deployed, worker, pool, session)
        worker.answer(request, {"success": True, "result": "fine"})
        assert calling.result(LIMIT_S)["ok"]
    worker.close()
