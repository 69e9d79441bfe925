"""A running instance and settings that change under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import Ran, callgate, start

DENY = '[policy.per_tool]\nread_file = "deny"\n'


@pytest.fixture
def served() -> Iterator[Path]:
    """A directory that an instance serves; its home lies beside it."""
    with short_directory() as place:
        workspace = place / "ws"
        workspace.mkdir()
        (workspace / "a.txt").write_text("here\n")
        home = place / "home"
        home.mkdir(mode=0o700)
        instance = start("serve", "--no-http", cwd=workspace, env={"CALLGATE_HOME": str(home)})
        try:
            assert instance.stdout is not None
            assert b"listening" in instance.stdout.readline()
            yield workspace
        finally:
            instance.terminate()
            instance.communicate(timeout=60)


def settings(served: Path, text: str) -> None:
    (served.parent / "home" / "settings.toml").write_text(text)


def run(served: Path, *words: str) -> Ran:
    return callgate(*words, cwd=served, env={"CALLGATE_HOME": str(served.parent / "home")})


def check(served: Path, name: str) -> dict[str, str]:
    found = [each for each in run(served, "doctor", "--json").json["checks"] if each["check"] == name]
    return dict(found[0])


def test_an_instance_decides_by_the_settings_as_they_are(served: Path) -> None:
    read = ("call", "read_file", "path=a.txt", "--json")
    before = run(served, *read).json
    settings(served, DENY)
    after = run(served, *read).json
    assert (before["ok"], after["ok"]) == (True, False)
    assert "settings.toml:2" in after["error"]["message"]
    sockets = {each["answered_by"]["instance"] for each in (before, after)}
    assert sockets == {str(served.parent / "home" / "run" / "callgate.sock")}
    assert before["answered_by"]["policy"] != after["answered_by"]["policy"]
    alone = run(served, *read, "--no-instance").json["answered_by"]
    assert alone == {"instance": None, "policy": after["answered_by"]["policy"]}


def test_broken_settings_refuse_effects_and_are_told(served: Path) -> None:
    settings(served, "[policy\n")
    assert run(served, "call", "read_file", "path=a.txt").out == "here\n"
    write = ("call", "write_file", "path=b.txt", "content=x", "--yes", "--json")
    refused = run(served, *write).json["error"]
    assert refused["reason"] == "settings_invalid"
    assert "settings.toml:1" in refused["message"]
    assert not (served / "b.txt").exists()
    [status] = run(served, "status", "--json").json["instances"]
    assert "settings.toml:1" in status["problem"]
    assert "settings.toml:1" in run(served, "status").out
    assert check(served, "instance")["level"] == "failed"
    settings(served, "")
    assert run(served, *write).json["ok"] is True


def test_a_command_says_who_answered(served: Path) -> None:
    ran = run(served, "call", "read_file", "path=a.txt", "-v")
    version = run(served, "status", "--json").json["instances"][0]["policy"]
    assert f"callgate.sock, policy {version}," in ran.err


def test_what_only_a_start_reads_is_named_and_not_silently_missing(served: Path) -> None:
    tools = served.parent / "home" / "more.py"
    tools.write_text(
        "from callgate import tool\n\n\n"
        '@tool(side_effects="none")\nasync def more() -> str:\n    "More."\n    return "yes"\n'
    )
    settings(served, f'[tools]\nload = ["{tools}"]\n')
    ran = run(served, "call", "more")
    assert (ran.code, ran.out) == (0, "yes\n")
    assert "the command uses no instance" in ran.err and "tools.load" in ran.err
    assert "tools.load" in run(served, "status").out
    found = check(served, "instance")
    assert found["level"] == "note" and "tools.load" in found["text"]


def test_doctor_knows_the_instance_that_runs(served: Path) -> None:
    [status] = run(served, "status", "--json").json["instances"]
    found = check(served, "instance")
    assert found["level"] == "ok"
    assert found["text"].startswith(f"{status['pid']} (ws) policy {status['policy']}")


def test_a_directory_that_is_not_served_is_told_to_whoever_wants_to_know(served: Path) -> None:
    other = served.parent / "other"
    other.mkdir()
    elsewhere = ("call", "list_dir", "--workspace", str(other))
    assert "the command uses no instance" not in run(served, *elsewhere).err
    assert "does not serve" in run(served, *elsewhere, "-v").err
