"""`callgate sandbox -- COMMAND` runs a program with our terminal, inside the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs

pytestmark = needs("linux")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "gate").mkdir(mode=0o700)
    (tmp_path / "person").mkdir()
    (tmp_path / "person/secret.txt").write_text("secret")
    return tmp_path


def sandbox(place: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CALLGATE_HOME": str(place / "gate"), "HOME": str(place / "person"), **more}
    return subprocess.run(
        [sys.executable, "-m", "callgate", "sandbox", *words],
        cwd=place / "work", env=env, capture_output=True, text=True, timeout=60, input="given\n",
    )  # fmt: skip


def test_it_writes_in_the_workspace_and_nowhere_else_and_reads_our_input(place: Path) -> None:
    done = sandbox(place, "--", "sh", "-c", f"cat; touch a; touch {place}/person/b; exit 3")
    assert (done.returncode, done.stdout) == (3, "given\n")
    assert (place / "work/a").exists()
    assert not (place / "person/b").exists()


def test_it_sees_neither_our_home_nor_the_users_secrets_nor_our_variables(place: Path) -> None:
    (place / "gate/settings.toml").write_text("")
    look = f"ls {place}/gate {place}/person; env | grep -c ^CALLGATE_HOME"
    done = sandbox(place, "--", "sh", "-c", look, CALLGATE_SECRETS_KEY="k")
    assert "settings.toml" not in done.stdout
    assert "secret.txt" not in done.stdout
    assert done.stdout.strip().endswith("0")


def test_a_path_that_a_rule_denies_is_hidden_if_it_appears_after_an_earlier_run(place: Path) -> None:
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "**/private.txt"\n'
    (place / "gate/settings.toml").write_text(rule)
    assert sandbox(place, "--", "cat", "note.txt").returncode == 1
    (place / "work/deep").mkdir()
    (place / "work/deep/private.txt").write_text("private")
    (place / "work/note.txt").write_text("public")
    done = sandbox(place, "--", "cat", "deep/private.txt", "note.txt")
    assert done.stdout == "public"


@pytest.mark.parametrize("inside", ["", "sub/"])
def test_a_repository_that_appears_after_an_earlier_run_keeps_its_hooks(place: Path, inside: str) -> None:
    script = f"echo x > {inside}.git/hooks/post-checkout; echo x >> {inside}.git/config; echo x > made"
    sandbox(place, "--", "sh", "-c", script)
    subprocess.run(["git", "init", "-q", f"work/{inside}"], cwd=place, check=True, timeout=60)
    before = (place / f"work/{inside}.git/config").read_text()
    sandbox(place, "--", "sh", "-c", script)
    assert (place / "work/made").exists()
    assert not (place / f"work/{inside}.git/hooks/post-checkout").exists()
    assert (place / f"work/{inside}.git/config").read_text() == before


def test_programs_with_the_same_name_are_told_apart(place: Path) -> None:
    for name in ("one", "two"):
        agent(place / name, "tool", f"echo {name}")
    assert [sandbox(place, "--", f"{place}/{name}/bin/tool").stdout for name in ("one", "two")] == ["one\n", "two\n"]


@needs("bwrap")
def test_without_namespaces_bubblewrap_takes_over(place: Path) -> None:
    """As where the system lets only bubblewrap make them."""
    program = f"""
import errno, shutil, sys
from callgate.cli.main import main
from callgate.sandbox import machines
from callgate.sandbox.backends import landlock, namespaces
from callgate.sandbox.plans import Bubblewrap, Landlock, Namespaces, Seccomp
def begin(*words):
    raise OSError(errno.EPERM, "no")
def look_now():
    return Landlock(landlock.abi()), Seccomp(True), Namespaces("off"), Bubblewrap(shutil.which("bwrap"))
namespaces.begin, machines.look_now = begin, look_now
sys.exit(main(["sandbox", "--", "sh", "-c", "touch a; touch {place}/person/b; exit 4"]))
"""
    env = {**os.environ, "CALLGATE_HOME": str(place / "gate"), "HOME": str(place / "person")}
    done = subprocess.run([sys.executable, "-c", program], cwd=place / "work", env=env, timeout=60)
    assert done.returncode == 4
    assert (place / "work/a").exists()
    assert not (place / "person/b").exists()


def test_a_path_that_a_rule_denies_is_not_there(place: Path) -> None:
    (place / "work/hidden").mkdir()
    (place / "work/hidden/x").write_text("private")
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "hidden/**"\n'
    (place / "gate/settings.toml").write_text(rule)
    assert "private" not in sandbox(place, "--", "cat", "hidden/x").stdout


def test_an_agent_without_an_instance_is_not_started_with_its_hooks(place: Path) -> None:
    done = sandbox(place, "--", "claude")
    assert done.returncode == 2
    assert "no callgate instance runs" in done.stderr


def test_a_program_that_is_not_there_is_said_so(place: Path) -> None:
    done = sandbox(place, "--", "no-such-program")
    assert done.returncode == 127


def test_without_a_program_there_is_nothing_to_run(place: Path) -> None:
    assert sandbox(place).returncode == 2
    (place / "gate/settings.toml").write_text('sandbox = "off"\n')
    assert sandbox(place, "--", "true").returncode == 2


def agent(place: Path, name: str, script: str) -> str:
    """A program with the name of an agent."""
    program = place / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


SETTINGS = {
    "claude": (".claude/settings.json", ".claude/settings.local.json", ".claude/plugins/x", ".claude/skills/x"),
    "codex": (".codex/config.toml", ".codex/hooks.json", ".codex/rules/x"),
    "gemini": (".gemini/settings.json", ".gemini/extensions/x"),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("exists", [True, False])
def test_an_agent_cannot_write_what_it_runs_outside_later(place: Path, name: str, exists: bool) -> None:
    own = place / "person" / f".{name}"
    own.mkdir()
    in_workspace = (*(path for paths in SETTINGS.values() for path in paths), ".qwen/settings.json", ".git/config")
    paths = [place / "person" / each for each in SETTINGS[name]] + [place / "work" / each for each in in_workspace]
    if exists:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    lines = [f"mkdir -p {path.parent}; echo '{{\"x\": 1}}' > {path}; rm -f {path}; mv {path.parent} {path.parent}.away"
             for path in paths]  # fmt: skip
    program = agent(place, name, "\n".join([*lines, f"echo kept > {own}/state", "echo made > made"]))
    done = sandbox(place, "--no-hooks", "--", program)
    assert done.returncode == 0, done.stderr
    assert (own / "state").read_text() == "kept\n"
    assert (place / "work/made").exists()
    for path in paths:
        assert path.exists() is exists, path
        assert not exists or path.read_text() == "{}", path
        if path.parent != own and path.parent.exists() is not exists:  # a directory runs nothing
            assert not [each for each in path.parent.rglob("*") if each.is_file()], path


@pytest.mark.parametrize("linked", [True, False])
def test_settings_in_a_directory_that_a_variable_names_stay_too(place: Path, linked: bool) -> None:
    own = place / "person/mine"
    own.mkdir()
    (place / "person/link").symlink_to(own)
    given = place / "person/link" if linked else own
    names = ("config.toml", "hooks.json", "rules/x")
    script = "\n".join(f"mkdir -p $(dirname {own}/{name}); echo x > {own}/{name}" for name in names)
    program = agent(place, "codex", f"{script}\necho kept > {own}/state")
    done = sandbox(place, "--no-hooks", "--", program, CODEX_HOME=str(given))
    assert done.returncode == 0, done.stderr
    assert [each.name for each in own.iterdir()] == ["state"]


def test_an_agent_whose_settings_are_a_link_is_not_started(place: Path) -> None:
    (place / "person/.claude").mkdir()
    (place / "person/.claude/settings.json").symlink_to(place / "elsewhere.json")
    done = sandbox(place, "--no-hooks", "--", agent(place, "claude", "echo ran"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "settings.json is a link" in done.stderr
