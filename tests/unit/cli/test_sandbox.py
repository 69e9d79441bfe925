"""Commands of `callgate call shell`: nothing approves itself, and nothing outlives the runtime."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate.sandbox import machines
from tests.unit.cli.running import CALLGATE, callgate, running, start, wait_until_gone

PROFILES = {
    "read": (["--mode", "read"], ""),
    "workspace": ([], ""),
    "workspace with network": (["network=true"], ""),
    "open": ([], '[sandbox]\nprofile = "open"\n'),
}


@pytest.fixture(scope="module", autouse=True)
def _needs_a_sandbox() -> None:
    if all(each.problem for each in machines.look_now() if each.name in ("namespaces", "bubblewrap")):
        pytest.skip("needs namespaces: not for us here")


class Place:
    """A home and a workspace, not in /tmp, which commands do not see."""

    def __init__(self, base: Path) -> None:
        self.home, self.ws, self.outside = base / "home", base / "ws", base / "outside"
        for path in (self.home, self.ws, self.outside):
            path.mkdir(mode=0o700)
        self.env = {"CALLGATE_HOME": str(self.home), "HOME": str(base)}

    def run(self, *words: str) -> Any:
        return callgate(*words, cwd=self.ws, env=self.env)

    def files(self) -> list[str]:
        """All but the logs and locks, which every process leaves."""
        parents = (self.home, self.ws, self.outside)
        return sorted(str(path) for parent in parents for path in parent.iterdir())

    def settings(self, text: str) -> None:
        (self.home / "settings.toml").write_text(text)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as base:
        yield Place(Path(base))


def attempts(place: Place, question: str) -> list[str]:
    """Each ends with 0 if it gets anywhere. The mark of a call is taken off first."""
    ours = f"env -u CALLGATE_CALL CALLGATE_HOME={place.home} {CALLGATE}"
    home = place.home
    return [
        f"{ours} call --yes write_file path=approved content=x --workspace {place.outside}",
        f"{ours} call --yes shell command=true --workspace {place.outside}",
        f"{ours} confirmations allow {question}",
        f"{ours} confirmations deny {question}",
        f"{ours} confirmations | grep {question}",
        f"{ours} trust {place.outside}",
        f"{ours} audit tail | grep .",  # where there is no home, there is nothing to print
        f"ls {home}",
        f"cat {home}/settings.toml",
        f"cat {home}/callgate.db",
        f"cat {home}/audit.jsonl",
        f"ls {home}/run",
        f"echo 'mode = \"write\"' >> {home}/settings.toml",
        f"echo x > {home}/rules.toml",
        f"mkdir {home}/x",
        f'python3 -c \'import os; os.rename("{home}", "{home}.old")\'',
        f'python3 -c \'import os; os.rename("{home.parent}", "{home.parent}.old")\'',
        f"umount {home}",
        f"ln {home}/settings.toml {place.ws}/linked",
        "tr '\\0' '\\n' < /proc/$PPID/environ | grep CALLGATE_HOME",
        f"cat /proc/[0-9]*/environ 2>/dev/null | grep -a 'CALLGATE_HOME={home}'",
    ]


@contextmanager
def asking(place: Place) -> Iterator[str]:
    """The id of a question that waits for an answer."""
    waiting = start("call", "shell", "command=touch approved", "--wait", cwd=place.ws, env=place.env)
    try:
        assert waiting.stderr is not None
        assert b"waiting" in waiting.stderr.readline()
        (question,) = place.run("confirmations", "--json").json["confirmations"]
        yield question["id"]
    finally:
        waiting.kill()
        waiting.communicate(timeout=60)


@pytest.mark.spec("T06")
@pytest.mark.parametrize("profile", PROFILES)
def test_no_command_approves_itself(place: Place, profile: str) -> None:
    words, settings = PROFILES[profile]
    place.settings(settings)
    with asking(place) as question:
        before = place.files()
        tried = attempts(place, question)
        each_code = "".join(f"({each}) > /dev/null 2>&1; echo $?; " for each in tried)
        script = f"command=ulimit -x unlimited; {each_code}"
        ran = place.run("call", "shell", script, "--yes", "--json", *words)
        codes = ran.json["value"]["stdout"].split()
        assert len(codes) == len(tried)
        assert [each for each, code in zip(tried, codes, strict=True) if code == "0"] == []
        assert (place.home / "settings.toml").read_text() == settings
        assert place.files() == before
        (still_open,) = place.run("confirmations", "--json").json["confirmations"]
        assert still_open["id"] == question


@pytest.mark.parametrize("settings", ["", '[sandbox]\nprofile = "open"\n', 'sandbox = "off"\n'])
def test_nothing_of_a_command_outlives_a_runtime_that_is_killed(place: Place, settings: str) -> None:
    place.settings(settings)
    mark = f"600.{os.getpid()}{len(settings)}"
    fork = f"(trap '' TERM HUP; while :; do setsid sleep {mark} & wait; done) & setsid sleep {mark} & "
    command = f"command={fork} echo 1; sleep {mark}"
    process = start("call", "shell", command, "--yes", "-v", cwd=place.ws, env=place.env)
    try:
        assert process.stderr is not None
        assert any(line[:1].isdigit() for line in iter(process.stderr.readline, b""))
        assert len(running(mark)) >= 2
    finally:
        process.kill()
        process.communicate(timeout=60)
    wait_until_gone(mark)


def test_a_command_that_kills_its_parent_kills_only_itself(place: Place) -> None:
    mark = f"601.{os.getpid()}"
    ran = place.run("call", "shell", f"command=setsid sleep {mark} & kill -9 $PPID; echo on", "--yes", "--json")
    assert ran.code in (0, 1)
    wait_until_gone(mark)
    assert place.run("audit", "verify").code == 0


def test_explain_says_what_a_command_would_run_in(place: Place) -> None:
    def sandbox(*words: str) -> str:
        return place.run("policy", "explain", "shell", "command=ls", *words, "--json").json["sandbox"]

    assert (sandbox(), sandbox("network=true"), sandbox("--mode", "read")) == (
        "workspace",
        "workspace, with network",
        "read",
    )
    assert "\n  sandbox    workspace\n" in place.run("policy", "explain", "shell", "command=ls").out
    place.settings('sandbox = "off"\n')
    assert sandbox() == "off"


def test_looking_changes_nothing(place: Place) -> None:
    place.home.rmdir()
    place.run("policy", "explain", "shell", "command=ls")
    place.run("doctor")
    assert not place.home.exists()


def test_the_doctor_names_backends_and_what_keeps_each_profile(place: Place) -> None:
    report = place.run("doctor", "--json").json
    assert {each["name"] for each in report["sandbox"]["backends"]} >= {
        "landlock",
        "seccomp",
        "namespaces",
        "bubblewrap",
    }
    assert [(each["profile"], each["guaranteed"], each["missing"]) for each in report["sandbox"]["profiles"]] == [
        ("read", True, []),
        ("workspace", True, []),
        ("workspace with named hosts", True, []),
        ("workspace with network", True, []),
        ("open", True, []),
    ]
    place.settings('sandbox = "off"\n')
    checks = {each["check"]: each["level"] for each in place.run("doctor", "--json").json["checks"]}
    assert checks["sandbox"] == "note"


DENIED = '[[policy.rules]]\ndecision = "deny"\npath = "secrets/**"\n'


@pytest.fixture
def secret(place: Place) -> Place:
    (place.ws / "secrets").mkdir()
    (place.ws / "secrets/key.txt").write_text("private")
    place.settings(DENIED)
    return place


@pytest.mark.spec("T06")
@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_rule_about_a_path_binds_the_shell(secret: Place, mode: str) -> None:
    ran = secret.run("call", "shell", "command=cat secrets/key.txt; cat s*/*", "--mode", mode)
    assert ("private" in ran.out, ran.code) == (False, 1)


def test_what_a_rule_keeps_from_a_command_is_explained(secret: Place) -> None:
    ran = secret.run("policy", "explain", "shell", "command=ls", "--json")
    (kept,) = ran.json["restrictions"]
    assert (kept["path"], kept["how"], kept["rule"]) == ("secrets", "not there", "deny path = secrets/**")
    assert "  not there  secrets (deny path = secrets/**" in secret.run("policy", "explain", "shell", "command=ls").out
    assert "path rules for commands: 1 (1 hidden, 0 read-only here)" in secret.run("doctor").out
    secret.settings('sandbox = "off"\n' + DENIED)
    ran = secret.run("policy", "explain", "shell", "command=ls", "--json")
    assert [each["how"] for each in ran.json["restrictions"]] == ["not kept"]


def test_a_rule_that_cannot_be_kept_is_explained(secret: Place) -> None:
    secret.settings(DENIED.replace("secrets/**", "/**/key.txt"))
    ran = secret.run("policy", "explain", "shell", "command=ls", "--json")
    assert ran.json["ends_before"]["reason"] == "path_rule"
    assert secret.run("doctor").code != 0


HOST = '''
from callgate import tool

@tool(side_effects="read")
def look() -> str:
    """Read it."""
    try:
        return open("secrets/key.txt").read()
    except OSError as error:
        return type(error).__name__
'''


@pytest.mark.spec("T06")
def test_a_rule_about_a_path_binds_hosts(secret: Place) -> None:
    (secret.ws / "tools.py").write_text(HOST)
    command = f'["{sys.executable}", "-m", "callgate.host", "{secret.ws}/tools.py"]'
    host = f'[hosts.h]\ncommand = {command}\neffect = "read"\n'
    for rules, said in (("", "private"), (DENIED, "PermissionError")):
        secret.settings(host + rules)
        ran = secret.run("call", "look")
        assert said in ran.out, ran
