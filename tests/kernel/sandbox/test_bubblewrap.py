"""The command line for bubblewrap: as a value, and what it looks at before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from callgate.sandbox.backends import bubblewrap, placeholders
from callgate.sandbox.backends.bubblewrap import Found, Survey, arguments, survey
from callgate.sandbox.jails import Jail, Network
from tests.kernel.sandbox.worlds import NOBODY, World, as_user
from tests.needs import needs

ALWAYS = (
    "bwrap",
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--new-session",
    "--cap-drop",
    "ALL",
)
DEVICES = ("--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc")
SYS = ("--ro-bind-try", "/sys", "/sys")
LAST = ("--chdir", "/ws", "--seccomp", "10", "--", "true")


def line(jail: Jail, found: Survey | None = None) -> tuple[str, ...]:
    return arguments("bwrap", jail, found or Survey(), "/ws", ("true",))


def test_a_jail_that_reads_all_binds_the_root_read_only_and_has_no_network() -> None:
    expected = (*ALWAYS, "--unshare-net", "--ro-bind-try", "/", "/", *DEVICES, *LAST)
    assert line(Jail()) == expected


def test_an_open_jail_keeps_the_network_and_drops_capabilities_all_the_same() -> None:
    jail = Jail(writable=("/",), network=Network.ALL)
    assert line(jail) == (*ALWAYS, "--bind", "/", "/", *SYS, *DEVICES, *LAST)


def test_only_what_is_readable_is_there() -> None:
    jail = Jail(readable=("/usr", "/lib"), network=Network.ALL)
    binds = ("--ro-bind-try", "/lib", "/lib", "--ro-bind-try", "/usr", "/usr")
    assert line(jail) == (*ALWAYS, *binds, *DEVICES, *LAST)


def test_what_lies_deeper_is_laid_over_what_lies_above() -> None:
    jail = Jail(writable=("/ws", "/tmp/extra"), fresh_tmp=True, network=Network.ALL)
    found = Survey(
        pinned=("/ws/.git",),
        read_only=("/ws/.git/hooks",),
        missing=("/ws/.envrc",),
        missing_directories=("/ws/.callgate",),
        hidden_directories=("/home/me/.ssh",),
        hidden_files=("/home/me/.netrc",),
    )
    assert line(jail, found) == (
        *ALWAYS,
        "--ro-bind-try",
        "/",
        "/",
        *DEVICES,
        "--tmpfs",
        "/tmp",
        "--bind-try",
        "/ws",
        "/ws",
        "--bind-try",
        "/tmp/extra",
        "/tmp/extra",
        "--bind",
        "/ws/.git",
        "/ws/.git",
        "--ro-bind",
        "/ws/.git/hooks",
        "/ws/.git/hooks",
        "--ro-bind-try",
        "/ws/.envrc",
        "/ws/.envrc",
        "--ro-bind-try",
        "/ws/.callgate",
        "/ws/.callgate",
        "--ro-bind",
        "/dev/null",
        "/home/me/.netrc",
        "--perms",
        "0000",
        "--tmpfs",
        "/home/me/.ssh",
        "--remount-ro",
        "/home/me/.ssh",
        *LAST,
    )


def test_a_command_that_looks_like_an_option_is_a_command() -> None:
    assert arguments("bwrap", Jail(), Survey(), "/", ("--bind", "/"))[-3:] == ("--", "--bind", "/")


def test_a_survey_tells_what_is_there_from_what_is_missing(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path))
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "worktree").mkdir()
    (root / "worktree" / ".git").write_text("gitdir: elsewhere")
    (root / "secret").mkdir()
    (root / "password").write_text("")
    names = (".git/hooks", ".git/config", ".callgate/settings.toml", "worktree/.git/hooks")
    jail = Jail(
        writable=(str(root),),
        protected=tuple(str(root / name) for name in names),
        hidden=tuple(str(root / name) for name in ("secret", "password", "nothing")),
    )
    assert survey(jail) == Survey(
        pinned=(str(root / ".git"), str(root / "worktree")),
        read_only=(str(root / ".git" / "hooks"), str(root / "worktree" / ".git")),
        missing=(str(root / ".git" / "config"),),
        missing_directories=(str(root / ".callgate"),),
        hidden_directories=(str(root / "secret"),),
        hidden_files=(str(root / "password"),),
    )


def test_what_another_command_keeps_in_a_missing_place_is_missing(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path))
    (root / ".envrc").write_text("")
    (root / ".envrc").chmod(placeholders.MODE)
    jail = Jail(writable=(str(root),), protected=(str(root / ".envrc"),))
    assert survey(jail) == Survey(missing=(str(root / ".envrc"),))


@needs("root")
def test_what_the_system_keeps_from_the_user_needs_no_cover() -> None:
    world = World(NOBODY)
    try:
        secrets = {name: world.outside / name for name in ("theirs", "shut", "entered", "own")}
        for name in ("theirs", "own"):
            secrets[name].write_text("")
            secrets[name].chmod(0)
        secrets["shut"].mkdir(mode=0o700)
        secrets["entered"].mkdir(mode=0o711)
        os.chown(secrets["own"], NOBODY, NOBODY)
        jail = Jail(hidden=tuple(map(str, secrets.values())))

        def work() -> dict[str, tuple[str, ...]]:
            return {
                "directories": survey(jail).hidden_directories,
                "files": survey(jail).hidden_files,
            }

        assert as_user(NOBODY, work) == {
            "directories": [str(secrets["entered"])],
            "files": [str(secrets["own"])],
        }
        assert {*work()["directories"], *work()["files"]} == {*map(str, secrets.values())}
    finally:
        world.remove()


@pytest.mark.spec("T02", "T07")
@pytest.mark.parametrize("link", [".git", ".git/hooks"])
def test_a_link_on_the_way_to_a_protected_path_is_refused(tmp_path: Path, link: str) -> None:
    root = Path(os.path.realpath(tmp_path))
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(root)
    jail = Jail(writable=(str(root),), protected=(str(root / ".git" / "hooks"),))
    with pytest.raises(OSError) as refused:
        survey(jail)
    assert refused.value.errno == errno.ELOOP


@pytest.mark.parametrize(
    ("mode", "problem"),
    [(0o755, None), (0o4755, "bubblewrap is setuid"), (0o2755, "bubblewrap is setuid")],
)
def test_a_program_that_would_run_as_another_is_not_used(tmp_path: Path, mode: int, problem: str | None) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(mode)
    assert bubblewrap.find(str(program)) == Found(str(program), problem)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = bubblewrap.find(str(tmp_path / "bwrap"))
    assert missing == Found(None, "bubblewrap is not installed")


@pytest.mark.spec("T14")
def test_a_program_that_path_names_first_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap.find().path != str(program)
