"""compose.yaml: two servers, two workers, a database and a load balancer that fit each other."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import pytest
import yaml

from callgate.config.schema import InstanceTable
from tests.deploy.programs import PROJECT, accept

COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = ["callgate-1", "callgate-2"]
WORKERS = ["worker-1", "worker-2"]


def serve_words(name: str) -> list[str]:
    (script,) = SERVICES[name]["command"]
    line = next(line for line in script.splitlines() if line.startswith("exec callgate-entrypoint "))
    return shlex.split(line)[2:]


@pytest.mark.parametrize("name", SERVERS)
def test_our_command_line_takes_what_the_servers_run(name: str) -> None:
    accept(serve_words(name))


@pytest.mark.parametrize("name", WORKERS)
def test_our_command_line_takes_what_the_workers_run(name: str) -> None:
    accept(SERVICES[name]["command"])


def test_everything_that_is_named_is_there() -> None:
    for kind in ("secrets", "configs", "networks"):
        used = {each for service in SERVICES.values() for each in service.get(kind, [])}
        assert used == set(COMPOSE[kind]), kind
    mounted = [each.split(":")[0] for service in SERVICES.values() for each in service.get("volumes", [])]
    assert {each for each in mounted if not each.startswith(".")} == set(COMPOSE["volumes"])
    for each in mounted:
        assert not each.startswith(".") or (PROJECT / each).is_file()
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_servers_are_known_by_the_names_under_which_they_are_reached() -> None:
    caddy = (PROJECT / "deploy" / "Caddyfile").read_text()
    match = re.search(r"\{\$CALLGATE_SERVERS:([^}]*)\}", caddy)
    assert match is not None
    words = serve_words("callgate-1")
    port = words[words.index("--http") + 1].rpartition(":")[2]
    addresses = [f"{name}:{port}" for name in SERVERS]
    assert match[1].split() == addresses
    advertised = [SERVICES[name]["environment"]["CALLGATE_ADVERTISE_URL"] for name in SERVERS]
    assert advertised == [f"http://{each}" for each in addresses]
    for name in WORKERS:
        command = SERVICES[name]["command"]
        assert [command[n + 1] for n, word in enumerate(command) if word == "--server"] == advertised


def test_the_balancer_is_published_to_this_machine_alone_and_nothing_else_is() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"balancer": ["127.0.0.1:8080:8080"]}
    listens = re.search(r"\{\$CALLGATE_LISTEN:(\S*)\}", (PROJECT / "deploy" / "Caddyfile").read_text())
    assert listens is not None and listens[1] == ":8080"
    assert SERVICES["callgate-1"]["environment"]["CALLGATE_PUBLIC_URL"].endswith("-http://127.0.0.1:8080}")


def test_a_server_has_time_to_drain_before_it_is_killed() -> None:
    settings = tomllib.loads(COMPOSE["configs"]["settings"]["content"])
    assert settings["instance"].keys() <= set(InstanceTable.__struct_fields__)
    for name in SERVERS:
        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace >= settings["instance"]["drain_seconds"] + 10
        assert SERVICES[name]["environment"]["CALLGATE_SETTINGS"] == "/settings"  # where configs are put


def test_no_worker_is_given_the_database_or_the_key() -> None:
    for name in WORKERS:
        assert SERVICES[name]["secrets"] == ["worker-token"]
        assert "environment" not in SERVICES[name]


def test_secrets_are_files_that_git_and_the_image_leave_out() -> None:
    assert all(each["file"].startswith("./secrets/") for each in COMPOSE["secrets"].values())
    assert "/secrets/" in (PROJECT / ".gitignore").read_text().splitlines()
    text = (PROJECT / "compose.yaml").read_text()
    assert not re.search(r"postgresql://[^:\s]+:[^$@\s][^@\s]*@", text)
