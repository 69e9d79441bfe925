"""Settings with a mistake: every command says so once, and its hints lead to no further error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import Ran, callgate, start

MISTAKES = {
    "value": ('mode = "reed"\n', "settings.toml:1: mode: 'reed' is not one of none, read, ask, guarded, write"),
    "key": ("\nmodle = 1\n", "settings.toml:2: unknown key 'modle'; did you mean 'mode'?"),
    "type": ("tags = 1\n", "settings.toml:1: tags: expected a list, got a whole number"),
    "toml": ("[policy\n", "settings.toml:1: not valid TOML"),
}
READ = ("call", "read_file", "path=a.txt")
WRITE = ("call", "write_file", "path=b.txt", "content=x", "--yes")
RECORDS = (
    "sessions list", "audit tail", "audit verify", "events", "confirmations", "undo", "store status", "workers list",
)  # fmt: skip


class Place:
    def __init__(self, directory: Path) -> None:
        self.workspace, self.home = directory / "ws", directory / "home"
        self.workspace.mkdir()
        self.home.mkdir(mode=0o700)
        (self.workspace / "a.txt").write_text("here\n")
        self.settings = self.home / "settings.toml"
        self.env = {"CALLGATE_HOME": str(self.home)}

    def run(self, *words: str) -> Ran:
        return callgate(*words, cwd=self.workspace, env=self.env)

    def run_hints(self, printed: str) -> None:
        """Run every command that a message names; none may fail for another reason."""
        hints = re.findall(r"callgate (doctor|policy explain \S+|stop \d+|status)", printed)
        assert hints == ["doctor"], printed
        ran = self.run("doctor")
        assert ran.err == "" and ran.code == 1
        assert "Settings are valid: NO." in ran.out and "settings.toml" in ran.out


@pytest.fixture
def place() -> Iterator[Place]:
    with short_directory() as directory:
        yield Place(directory)


@pytest.fixture(scope="module")
def served() -> Iterator[Place]:
    """A directory with an instance, whose settings are right."""
    with short_directory() as directory:
        place = Place(directory)
        instance = start("serve", "--no-http", cwd=place.workspace, env=place.env)
        try:
            assert instance.stdout is not None
            assert b"listening" in instance.stdout.readline()
            assert place.run(*WRITE).code == 0  # so that there is something to list
            yield place
        finally:
            instance.terminate()
            instance.communicate(timeout=60)


@pytest.fixture
def instance(served: Place) -> Iterator[Place]:
    yield served
    served.settings.unlink(missing_ok=True)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_read_through_an_instance_warns_once_and_is_answered(name: str, instance: Place) -> None:
    text, problem = MISTAKES[name]
    instance.settings.write_text(text)
    ran = instance.run(*READ)
    assert (ran.code, ran.out) == (0, "here\n")
    [line] = ran.err.splitlines()
    assert line.startswith(f"warning: {instance.home}/{problem}")
    assert "uses its earlier settings" in line
    instance.run_hints(line)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_refused_write_names_the_mistake_once(name: str, instance: Place) -> None:
    text, problem = MISTAKES[name]
    instance.settings.write_text(text)
    ran = instance.run(*WRITE)
    assert ran.code == 3
    said = problem.partition(": ")[2]
    assert ran.err.count(said) == 1 and "?." not in ran.err
    assert len(ran.err.splitlines()) == 2
    instance.run_hints(ran.err)


@pytest.mark.parametrize("words", (*RECORDS, "tools", "tools --json"))
def test_every_command_that_reads_warns_once(words: str, instance: Place) -> None:
    instance.settings.write_text('mode = "reed"\n')
    ran = instance.run(*words.split())
    assert ran.code == 0
    assert [line for line in ran.err.splitlines() if "reed" in line] == [
        line for line in ran.err.splitlines() if line.startswith("warning: ")
    ]
    assert ran.err.count("'reed' is not one of") == 1
    assert "warning" not in ran.out
    instance.settings.write_text("")
    assert "warning: " not in instance.run(*words.split()).err


def test_status_and_doctor_report_it_themselves(instance: Place) -> None:
    instance.settings.write_text('mode = "reed"\n')
    status = instance.run("status")
    assert (status.out + status.err).count("'reed' is not one of") == 1
    doctor = instance.run("doctor")
    assert "warning: " not in doctor.err
    fixes = re.findall(r"-> (.+)", doctor.out)
    assert "correct the settings: the instance reads them again without a restart" in fixes
    assert not any("callgate stop" in fix for fix in fixes)
    instance.settings.write_text("")
    assert instance.run(*WRITE).code == 0  # as the fix says


@pytest.mark.parametrize("name", MISTAKES)
def test_without_an_instance_records_are_read_with_a_warning_and_calls_refused(name: str, place: Place) -> None:
    assert place.run(*WRITE).code == 0
    text, problem = MISTAKES[name]
    place.settings.write_text(text)
    for words in ("sessions list", "audit tail"):
        ran = place.run(*words.split())
        [line] = ran.err.splitlines()
        assert ran.code == 0 and ran.out
        assert line.startswith(f"warning: {place.home}/{problem}")
        assert "Calls are refused until you correct it." in line
        place.run_hints(line)
    for words in (READ, WRITE, ("tools",), ("policy", "explain", "read_file", "path=a.txt")):
        ran = place.run(*words)
        assert ran.code == 2 and ran.err.startswith(f"error (validation_error): {place.home}/{problem}")
        assert len(ran.err.splitlines()) == 2
        place.run_hints(ran.err)


def test_a_file_that_cannot_be_read_is_named(place: Place) -> None:
    place.settings.mkdir()
    ran = place.run("sessions", "list")
    assert f"{place.settings}: cannot be read: Is a directory." in ran.err
    assert place.run(*READ).code == 2


def test_saved_rules_and_settings_of_a_workspace_count_too(place: Place) -> None:
    (place.home / "rules.toml").write_text('[[rules]]\ntool = "x"\ndecision = "alow"\n')
    ran = place.run("audit", "tail")
    assert "rules.toml:3: rules.0.decision: 'alow' is not one of allow, ask, deny; did you mean 'allow'?" in ran.err
    (place.home / "rules.toml").unlink()
    (place.workspace / ".callgate").mkdir()
    (place.workspace / ".callgate" / "settings.toml").write_text('[policy.default]\nread = "den"\n')
    empty = "no calls are recorded\n"
    assert place.run("audit", "tail").err == empty  # it is not trusted, so it does not count
    (place.workspace / ".callgate" / "settings.toml").write_text("")
    assert place.run("trust", ".").code == 0
    (place.workspace / ".callgate" / "settings.toml").write_text('[policy.default]\nread = "den"\n')
    err = place.run("audit", "tail").err
    assert err.startswith(empty)
    [line] = err.removeprefix(empty).splitlines()
    assert "/ws/.callgate/settings.toml:2: policy.default.read: 'den' is not one of" in line
    assert "did you mean 'deny'?" in line


def test_a_mistake_in_the_workspace_refuses_calls_there_while_an_instance_runs(instance: Place) -> None:
    directory = instance.workspace / ".callgate"
    directory.mkdir()
    try:
        (directory / "settings.toml").write_text("")
        assert instance.run("trust", ".").code == 0
        assert instance.run(*READ).err == ""
        (directory / "settings.toml").write_text('[policy.default]\nread = "den"\n')
        ran = instance.run(*READ)
        assert (ran.code, ran.out) == (2, "")
        assert "/ws/.callgate/settings.toml:2: policy.default.read: 'den' is not one of" in ran.err
        assert len(ran.err.splitlines()) == 2
        instance.run_hints(ran.err)
        listed = instance.run("audit", "tail")
        assert "/ws/.callgate/settings.toml:2: " in listed.err and listed.out
    finally:
        (directory / "settings.toml").unlink()
        directory.rmdir()
