"""Who may connect as a worker, and what those are told who may not."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from tests.unit.instance.worker.deployments import Deployment
from tests.unit.instance.worker.scripted import ScriptedWorker


def test_a_wrong_token_and_a_wrong_pool_are_refused_for_good(deployed: Deployment) -> None:
    code, output = deployed.worker("cgw_wrong", "one", joined=False).ended()
    assert code == 3 and "This worker token is not known, or was revoked." in output
    token = deployed.token("build", "test", name="mine")
    code, output = deployed.worker(token, "one", pool="prod", joined=False).ended()
    assert code == 3 and "The token 'mine' is not for pool 'prod', only for: build, test." in output
    deployed.worker(token, "one", pool="test")


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
        (["--server", "ftp://127.0.0.1", "--pool", "p"], "is no URL of a server"),
        (["--server", "http://127.0.0.1:1", "--pool", "a b"], "is no name"),
        (["--server", "http://127.0.0.1:1"], "needs --pool"),
        (["--server", "http://127.0.0.1:1", "--pool", "p", "--workspace", "/nowhere"], "is not a directory"),
        (["--server", "http://127.0.0.1:1", "--pool", "p", "--workspace", "/"], "holds the home"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(deployed: Deployment, words: list[str], said: str) -> None:
    from tests.unit.instance.worker.deployments import CALLGATE

    code, output = deployed.start([CALLGATE, "worker", *words], deployed.home, CALLGATE_WORKER_TOKEN="cgw_x").ended()
    assert code == 2 and said in output


def test_a_worker_does_not_show_its_token_to_commands(deployed: Deployment) -> None:
    token = deployed.token("build")
    deployed.worker(token, "one")
    ran = deployed.call(deployed.session(), "shell", command="env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert token not in ran["content"][0]["text"]
