"""Who may connect as a worker, and what those are told who may not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.features.fleet.worker.deployments import CALLGATE, LIMIT_S, Deployment
from tests.features.fleet.worker.scripted import ScriptedWorker
from tests.features.fleet.worker.tls import tls_proxy


def test_a_wrong_token_and_a_wrong_pool_are_refused_for_good(deployed: Deployment) -> None:
    code, output = deployed.worker("cgw_wrong", "one", joined=False).ended()
    assert code == 3 and "This worker token is unknown or revoked." in output
    token = deployed.token("build", "test", name="mine")
    code, output = deployed.worker(token, "one", pool="prod", joined=False).ended()
    assert code == 3 and "The token 'mine' is not for pool 'prod', only for: build, test." in output
    deployed.worker(token, "one", pool="test")


def test_a_token_that_is_bound_to_a_worker_is_good_for_no_other(deployed: Deployment) -> None:
    token = deployed.token("build", name="mine", worker="one")
    code, output = deployed.worker(token, "two", joined=False).ended()
    assert code == 3 and "only for the worker 'one'" in output
    deployed.worker(token, "one")
    (known,) = deployed.command("workers", "token", "list")["tokens"]
    assert known["worker"] == "one"


@pytest.mark.parametrize("enclosure", [{"nonsense": 1}, {}, {"profile": "\0", "writes": "yes"}])
def test_an_enclosure_that_makes_no_sense_refuses_the_call(deployed: Deployment, enclosure: Any) -> None:
    worker = ScriptedWorker(deployed.url, deployed.token("build"))
    worker.greet()
    session = deployed.session()
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(deployed.call, session, "read_file", path="a.txt")
        worker.answer(worker.take("locate_call"), {"enclosure": enclosure})
        result = calling.result(LIMIT_S)
    worker.close()
    assert (result["ok"], result["error"]["reason"]) == (False, "worker_answer")


def refusal(deployed: Deployment, token: str, **query: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        ScriptedWorker(deployed.url, token, **query)
    response = caught.value.response
    return response.status_code, (response.body or b"").decode()


def test_another_version_of_the_protocol_is_refused_with_both_versions(deployed: Deployment) -> None:
    status, body = refusal(deployed, deployed.token("build"), protocol="2", version="9.9")
    assert status == 426 and "version 1" in body and "(callgate 9.9) version 2" in body


@pytest.mark.parametrize("query", [{"name": "../x"}, {"pool": "a/b"}, {"process": "x"}, {"name": ""}])
def test_names_that_are_none_are_refused(deployed: Deployment, query: dict[str, str]) -> None:
    assert refusal(deployed, deployed.token("build"), **query)[0] == 400


def test_a_worker_token_opens_nothing_else(deployed: Deployment) -> None:
    token = deployed.token("build")
    headers = {"authorization": f"Bearer {token}"}
    for path in ("/v1/workers", "/v1/sessions", "/v1/calls", "/v1/workers/connect"):
        assert deployed.http.get(path, headers=headers).status_code in (401, 404), path
    status, _ = refusal(deployed, deployed.http.headers["authorization"].removeprefix("Bearer "))
    assert status == 403  # nor does the token of the instance make a worker


def test_workers_are_listed_with_what_they_have(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build", name="mine"), "one", "--slots", "3")
    (row,) = deployed.workers()
    expected = {"pool": "build", "name": "one", "generation": 1, "here": True, "workspaces": ["app"], "slots": 3}
    assert {key: row[key] for key in expected} == expected
    assert {"read_file", "write_file", "patch_file", "shell", "undo"} <= {*row["tools"]}
    (listed,) = deployed.command("workers", "list")["workers"]
    assert (listed["name"], listed["server"], listed["version"]) == ("one", row["server"], row["version"])
    (known,) = deployed.command("workers", "token", "list")["tokens"]
    assert (known["name"], known["pools"]) == ("mine", ["build"]) and "sha256" not in known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "http://192.0.2.1", "--pool", "p"], "is not encrypted"),
        (["--server", "ftp://127.0.0.1", "--pool", "p"], "is not a server URL"),
        (["--server", "http://127.0.0.1:1", "--pool", "a b"], "is not a valid name"),
        (["--server", "http://127.0.0.1:1"], "needs --pool"),
        (["--server", "http://127.0.0.1:1", "--pool", "p", "--workspace", "/nowhere"], "is not a directory"),
        (["--server", "http://127.0.0.1:1", "--pool", "p", "--workspace", "/"], "contains the home"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(deployed: Deployment, words: list[str], said: str) -> None:
    code, output = deployed.start([CALLGATE, "worker", *words], deployed.home, CALLGATE_WORKER_TOKEN="cgw_x").ended()
    assert code == 2 and said in output


def test_a_worker_does_not_show_its_token_to_commands(deployed: Deployment) -> None:
    token = deployed.token("build")
    deployed.worker(token, "one")
    ran = deployed.call(deployed.session(), "shell", command="env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert token not in ran["content"][0]["text"]


def test_a_worker_at_a_second_server_of_the_store_cuts_the_older_process_at_the_first(deployed: Deployment) -> None:
    token, first_url = deployed.token("build"), deployed.url
    old = deployed.worker(token, "one")
    first = deployed.http
    deployed.serve("write", "--socket", str(deployed.root / "second" / "s.sock"))
    assert deployed.url != first_url
    new = deployed.worker(token, "one", joined=False)
    new.line(r"generation 2\)")
    code, output = old.ended()
    assert code == 3 and "Another process connected" in output
    (row,) = deployed.workers()
    assert (row["generation"], row["here"]) == (2, True)
    (seen,) = first.get("/v1/workers").json()["workers"]
    assert (seen["generation"], seen["here"]) == (2, False)
    first.close()


def test_one_worker_may_serve_two_servers(deployed: Deployment) -> None:
    token, first_url, first = deployed.token("build"), deployed.url, deployed.http
    deployed.serve("write", "--socket", str(deployed.root / "second" / "s.sock"))
    worker = deployed.worker(token, "one", "--server", first_url, joined=False)
    worker.line("is connected")
    worker.line("is connected")
    for client in (first, deployed.http):
        opened = client.post("/v1/sessions", json={"pool": "build"}).json()
        body = {"session": opened["id"], "tool": "list_dir", "arguments": {}}
        assert client.post("/v1/calls", json=body).json()["ok"]
    first.close()


def test_a_worker_reaches_a_server_through_tls_and_trusts_only_the_authority_it_is_given(
    deployed: Deployment,
) -> None:
    token = deployed.token("build")
    with tls_proxy(deployed.root, deployed.url) as (url, authority):
        code, output = deployed.worker(token, "one", server=url, joined=False).ended()
        assert code == 3 and "cannot be verified" in output
        deployed.worker(token, "one", "--ca", str(authority), server=url)
        assert deployed.call(deployed.session(), "list_dir")["ok"]


def test_a_redirect_does_not_get_the_token(deployed: Deployment) -> None:
    asked: list[bytes] = []

    class Redirecting(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.headers["authorization"].encode())
            self.send_response(302)
            self.send_header("location", deployed.url.replace("http", "ws", 1) + self.path)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        worker = deployed.worker(
            deployed.token("build"), "one", server=f"http://127.0.0.1:{server.server_port}", joined=False
        )
        worker.line("status 302; retrying", 20)
        worker.line("status 302; retrying", 20)
        worker.close()
        server.shutdown()
        thread.join()
    assert len(asked) >= 2 and deployed.workers() == []
