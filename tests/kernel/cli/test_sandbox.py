"""`callgate sandbox -- COMMAND` runs a program with our terminal, inside the sandbox."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent_files import DATA, EXECUTED, attack, files
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


def without_namespaces(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`sandbox` where the system lets only bubblewrap make namespaces."""
    program = f"""
import errno, shutil, sys
from callgate.cli.main import main
from callgate.sandbox import machines
from callgate.sandbox.backends import namespaces, restrict
from callgate.sandbox.plans import Bubblewrap, Landlock, Namespaces, Seccomp
def begin(*words):
    raise OSError(errno.EPERM, "no")
def look_now():
    return Landlock(restrict.abi()), Seccomp(True), Namespaces("off"), Bubblewrap(shutil.which("bwrap"))
namespaces.begin, machines.look_now = begin, look_now
sys.exit(main(["sandbox", *{words!r}]))
"""
    env = {**os.environ, "CALLGATE_HOME": str(place / "gate"), "HOME": str(place / "person")}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=place / "work", env=env, timeout=60, capture_output=True, text=True
    )


@needs("bwrap")
def test_without_namespaces_bubblewrap_takes_over(place: Path) -> None:
    done = without_namespaces(place, "--", "sh", "-c", f"touch a; touch {place}/person/b; exit 4")
    assert done.returncode == 4, done.stderr
    assert (place / "work/a").exists()
    assert not (place / "person/b").exists()


@needs("bwrap")
@pytest.mark.parametrize("name", ["claude", "gemini", "vibe"])
@pytest.mark.parametrize("exists", [True, False])
def test_bubblewrap_protects_the_home_of_an_agent_too(place: Path, name: str, exists: bool) -> None:
    person = place / "person"
    paths = [person / each for each in EXECUTED[name].split()]
    for path in paths if exists else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    before = files(person)
    data = "\n".join(f"mkdir -p {(person / each).parent}; echo data >> {person / each}" for each in DATA[name])
    done = without_namespaces(place, "--no-hooks", "--", agent(place, name, f"{attack(paths)}\n{data}\nexit 0"))
    assert done.returncode == 0, done.stderr
    after = files(person)
    left = {path: text for path, text in after.items() if before.get(path) != text and text}
    assert left == dict.fromkeys(DATA[name], "data\n")
    assert before.keys() <= after.keys()


def test_a_path_that_a_rule_denies_is_not_there(place: Path) -> None:
    (place / "work/hidden").mkdir()
    (place / "work/hidden/x").write_text("private")
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "hidden/**"\n'
    (place / "gate/settings.toml").write_text(rule)
    assert "private" not in sandbox(place, "--", "cat", "hidden/x").stdout


def test_an_agent_without_an_instance_is_not_started_with_its_hooks(place: Path) -> None:
    done = sandbox(place, "--", "claude")
    assert done.returncode == 2
    assert "no callgate instance is running" in done.stderr


def test_a_file_is_created_through_a_descriptor_of_the_program(place: Path) -> None:
    """As Claude Code creates the file for the output of a command."""
    script = "import os; os.dup2(os.open('.', os.O_RDONLY), 700); open('/proc/self/fd/700/made', 'x').close()"
    done = sandbox(place, "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert (place / "work/made").exists()


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


@pytest.mark.parametrize("name", EXECUTED)
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("home", ["write", "read"])
def test_an_agent_leaves_sessions_and_nothing_that_runs_later(place: Path, name: str, exists: bool, home: str) -> None:
    person = place / "person"
    paths = [person / each for each in EXECUTED[name].split()]
    for path in paths if exists else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    (place / "gate/settings.toml").write_text(f'[hooks]\nhome = "{home}"\n')
    before = files(person)
    data = [person / each for each in DATA[name]]
    script = "\n".join(f"mkdir -p {path.parent}; echo data >> {path} || exit 9" for path in data)
    program = agent(place, name, f"{attack(paths)}\n{script}\nexit 0")
    done = sandbox(place, "--no-hooks", "--", program)
    assert done.returncode == 0, done.stderr
    after = files(person)
    left = {path: text for path, text in after.items() if before.get(path) != text and text}
    assert left == (dict.fromkeys(DATA[name], "data\n") if home == "write" else {})
    assert before.keys() <= after.keys()
    assert list((place / "gate/run").glob("agent-home-*")) == []


@pytest.mark.parametrize("exists", [True, False])
def test_settings_are_as_they_were_during_the_run(place: Path, exists: bool) -> None:
    """Agents read their settings again when they change: a hook would be gone at once."""
    names = ("settings.json", "settings.local.json", "skills/x/SKILL.md", "plugins/x.json", "hooks/x.sh")
    own = place / "person/.claude"
    for name in names if exists else ():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text("{}\n")
    look = "\n".join(f"cat {own}/{name} 2>/dev/null | grep evil" for name in names)
    program = agent(place, "claude", f"{attack([own / name for name in names])}\n{look}\necho looked")
    assert sandbox(place, "--no-hooks", "--", program).stdout == "looked\n"


def test_files_of_a_workspace_that_agents_run_later_stay(place: Path) -> None:
    paths = [place / "work" / each for each in (".claude/settings.json", ".codex/hooks.json", ".git/config")]
    program = agent(place, "claude", f"{attack(paths)}\necho made > made")
    assert sandbox(place, "--no-hooks", "--", program).returncode == 0
    assert (place / "work/made").exists()
    assert [path for path in paths if path.is_file()] == []


@pytest.mark.parametrize("linked", [True, False])
def test_a_directory_that_a_variable_names_is_protected_too(place: Path, linked: bool) -> None:
    own = place / "person/mine"
    own.mkdir()
    (place / "person/link").symlink_to(own)
    given = place / "person/link" if linked else own
    names = ("config.toml", "hooks.json", ".env", "rules/x", "skills/x")
    program = agent(place, "codex", f"{attack([given / name for name in names])}\necho data > {given}/sessions/x")
    done = sandbox(place, "--no-hooks", "--", program, CODEX_HOME=str(given))
    assert done.returncode == 0, done.stderr
    assert {path: text for path, text in files(own).items() if text} == {"sessions/x": "data\n"}


def test_a_directory_that_holds_the_workspace_is_refused(place: Path) -> None:
    done = sandbox(place, "--no-hooks", "--", agent(place, "codex", "echo ran"), CODEX_HOME=str(place))
    assert (done.returncode, done.stdout) == (2, "")
    assert "contains the workspace" in done.stderr


def test_settings_and_skills_that_are_links_are_shown_and_stay(place: Path) -> None:
    own, dotfiles = place / "person/.claude", place / "person/dotfiles"
    own.mkdir()
    (dotfiles / "skills/x").mkdir(parents=True)
    (dotfiles / "settings.json").write_text("{}\n")
    (dotfiles / "skills/x/SKILL.md").write_text("a skill\n")
    (own / "settings.json").symlink_to("../dotfiles/settings.json")
    (own / "skills").symlink_to(dotfiles / "skills")
    before = files(place / "person")
    paths = [own / "settings.json", own / "skills/x/SKILL.md", dotfiles / "settings.json"]
    program = agent(place, "claude", f"cat {own}/settings.json {own}/skills/x/SKILL.md\n{attack(paths)}\nexit 0")
    done = sandbox(place, "--no-hooks", "--", program)
    assert done.stdout == "{}\na skill\n"
    after = files(place / "person")
    assert {path: text for path, text in after.items() if before.get(path) != text and text} == {}


def test_links_that_a_run_leaves_among_its_sessions_lead_nowhere_else(place: Path) -> None:
    person = place / "person"
    (person / ".bashrc").write_text("mine\n")
    sessions = person / ".claude/projects/-work"
    sessions.mkdir(parents=True)
    (person / "archive").mkdir()
    (sessions / "archive").symlink_to(person / "archive")  # the user's own
    script = "ln -s ~/.bashrc a.jsonl; ln -s ../../../.bashrc b.jsonl; echo x > c.jsonl; ln -s c.jsonl d.jsonl"
    script += "; ln -s /etc e; ln ~/.claude/settings.json f"
    done = sandbox(place, "--no-hooks", "--", agent(place, "claude", f"cd {sessions} || exit 9\n{script}\nexit 0"))
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in sessions.iterdir()) == ["archive", "c.jsonl", "d.jsonl"]


def test_a_login_is_saved_without_the_settings_around_it(place: Path) -> None:
    person = place / "person"
    (person / ".claude").mkdir()
    (person / ".claude/.credentials.json").write_text('{"claudeAiOauth": {"accessToken": "old"}}')
    (person / ".claude.json").write_text('{"theme": "dark", "mcpServers": {"mine": {"command": "x"}}}')
    credentials = '{"claudeAiOauth": {"accessToken": "new", "refreshToken": "r"}, "helper": "evil"}'
    state = '{"oauthAccount": {"emailAddress": "a@b"}, "mcpServers": {"evil": {"command": "evil"}}, "theme": "x"}'
    script = f"""
cd ~/.claude || exit 9
grep -q mine .claude.json || exit 8
echo '{credentials}' > next && mv next .credentials.json || exit 7
echo '{state}' > next && mv next .claude.json || exit 6
test "$CLAUDE_CONFIG_DIR" = "$PWD" || exit 5
"""
    done = sandbox(place, "--no-hooks", "--", agent(place, "claude", script))
    assert done.returncode == 0, done.stderr
    saved = {name: json.loads((person / name).read_text()) for name in (".claude/.credentials.json", ".claude.json")}
    assert saved == {
        ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "new", "refreshToken": "r"}},
        ".claude.json": {
            "theme": "dark", "mcpServers": {"mine": {"command": "x"}}, "oauthAccount": {"emailAddress": "a@b"},
        },
    }  # fmt: skip


def test_the_login_of_a_killed_run_is_saved_by_the_next_one(place: Path) -> None:
    person = place / "person"
    login = '{"tokens": {"refresh_token": "new"}}'
    script = f"[ -e ~/.codex/auth.json ] && exit 3\necho '{login}' > ~/.codex/auth.json; echo written; sleep 60"
    program = agent(place, "codex", script)
    env = {**os.environ, "CALLGATE_HOME": str(place / "gate"), "HOME": str(person)}
    words = [sys.executable, "-m", "callgate", "sandbox", "--no-hooks", "--", program]
    with subprocess.Popen(words, cwd=place / "work", env=env, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "written\n"
        running.kill()
    [scratch] = (place / "gate/run").glob("agent-home-*")
    descriptor = os.open(scratch, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # until nothing of the run is left
    os.close(descriptor)
    assert not (person / ".codex/auth.json").exists()
    done = sandbox(place, "--no-hooks", "--", program)
    assert done.returncode == 3, done
    assert json.loads((person / ".codex/auth.json").read_text()) == {"tokens": {"refresh_token": "new"}}
    assert list((place / "gate/run").glob("agent-home-*")) == []


def test_after_a_run_all_that_it_left_to_be_executed_later_is_printed(place: Path) -> None:
    names = [f"d{n}/.vscode/tasks.json" for n in range(30)]
    script = f"""
    for name in {" ".join(names)}; do mkdir -p $(dirname $name); (echo x > $name) 2>/dev/null; done
    mkdir -p b; printf '[core]\\nfsmonitor = ./x\\n' > b/config; mkdir b/objects b/refs
    mkdir -p .github/workflows; echo x > .github/workflows/x.yml
    kill -9 $$
    """
    done = sandbox(place, "--", "sh", "-c", script)
    assert done.returncode == 128 + 9
    assert "changed, and runs on a server after a push: .github/workflows\n" in done.stderr
    assert all(name in done.stderr for name in names)
    assert "git would run programs by b/config (core.fsmonitor): renamed" in done.stderr
    assert not (place / "work/b/config").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_opencode_creates_the_file_that_it_does_not_start_without(place: Path, exists: bool) -> None:
    if exists:
        (place / "work/.opencode/agent").mkdir(parents=True)
    script = """
    mkdir -p .opencode && echo x > .opencode/.gitignore && echo started
    echo x > .opencode/opencode.json; mkdir .opencode/plugin; echo x > .opencode/plugin/x.ts; mv .opencode/.gitignore .opencode/opencode.json
    """
    done = sandbox(place, "--no-hooks", "--", agent(place, "opencode", script))
    assert done.stdout == "started\n", done.stderr
    left = [path.name for path in (place / "work/.opencode").rglob("*") if path.is_file()]
    assert left == [".gitignore"]
    assert "not written: .opencode/opencode.json, .opencode/plugin/x.ts" in done.stderr
