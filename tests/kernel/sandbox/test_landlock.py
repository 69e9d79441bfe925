"""Landlock's rules for a jail, and what older kernels know of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.sandbox.backends import restrict
from callgate.sandbox.backends.restrict import DEVICES, READ, WRITE
from callgate.sandbox.jails import Jail

DEVICE = restrict.READ_FILE | restrict.WRITE_FILE | restrict.IOCTL_DEV


def granted(jail: Jail, below: Path) -> dict[str, int]:
    """The rules for what is below a directory, by relative path."""
    root = str(below)
    return {
        os.path.relpath(path, root): rights
        for path, rights in restrict.rules(jail)
        if path == root or path.startswith(root + "/")
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path))
    for name in ("home/.ssh", "home/.config/gcloud", "home/.config/fish", "home/code", "ws"):
        (root / name).mkdir(parents=True)
    (root / "home" / ".netrc").write_text("")
    (root / "home" / "notes").write_text("")
    (root / "home" / "shortcut").symlink_to(root / "home" / ".ssh")
    return root


def test_without_secrets_a_root_is_one_rule() -> None:
    expected = {"/usr": READ, "/ws": READ | WRITE} | dict.fromkeys(DEVICES, DEVICE)
    assert dict(restrict.rules(Jail(readable=("/usr",), writable=("/ws",)))) == expected


def test_no_process_is_granted_but_the_first_one_of_the_command() -> None:
    granted = [path for path, _ in restrict.rules(Jail()) if path.startswith("/proc")]
    assert "/proc/cpuinfo" in granted and "/proc/self" in granted
    assert not [path for path in granted if path == "/proc" or path[len("/proc/")].isdigit()]


def test_an_opaque_directory_grants_only_what_is_shown_in_it(root: Path) -> None:
    home = root / "home"
    jail = Jail(
        readable=(str(root), str(home / "code")),
        writable=(str(home / "notes"),),
        opaque=(str(home),),
    )
    expected = {"ws": READ, "home/code": READ, "home/notes": READ | WRITE}
    assert granted(jail, root) == expected


def test_around_secrets_their_neighbours_are_granted_one_by_one(root: Path) -> None:
    home = root / "home"
    hidden = tuple(str(home / name) for name in (".ssh", ".config/gcloud", ".netrc"))
    assert granted(Jail(readable=(str(root),), hidden=hidden), root) == {
        "ws": READ,
        "home/code": READ,
        "home/notes": READ,
        "home/.config/fish": READ,
    }


def test_a_secret_that_does_not_exist_yet_is_not_granted_either(root: Path) -> None:
    jail = Jail(readable=(str(root),), hidden=(str(root / "home" / ".aws"),))
    names = {name.split("/")[-1] for name in granted(jail, root)}
    assert names == {"ws", ".ssh", ".config", "code", ".netrc", "notes"}


def test_a_root_inside_a_secret_stays_secret(root: Path) -> None:
    inside = str(root / "home" / ".ssh")
    jail = Jail(readable=(inside,), hidden=(str(root / "home"),))
    assert granted(jail, root) == {}


def test_where_something_is_hidden_no_disk_can_be_read() -> None:
    paths = {path for path, _ in restrict.rules(Jail(hidden=("/nowhere",)))}
    assert {path for path in paths if path.startswith("/dev")} == set(DEVICES)
    assert "/" not in paths


@pytest.mark.parametrize(("version", "known"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16), (9, 16)])
def test_a_kernel_is_asked_only_for_what_it_knows(version: int, known: int) -> None:
    assert restrict.handled(version) == (1 << known) - 1
