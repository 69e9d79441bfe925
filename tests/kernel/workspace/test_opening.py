"""The two ways of opening, and that an audit hook can tell the wall's opening from others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import CREATE, DIRECTORY, READ, UNDECIDED, Openat2, Opener, best_opener
from tests.needs import needs

_WATCHED = """
import json, os, sys
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import ComponentWalk, best_opener
from callgate.workspace.paths import within_wall
from callgate.workspace.search import find, search

root, opener = sys.argv[1], ComponentWalk() if sys.argv[2] == "walk" else best_opener()
files = WorkspaceFileAPI(root, opener=opener)
find(files, "*")  # loads what it needs
events = []
sys.addaudithook(lambda name, args: events.append(within_wall()) if name == "open" else None)
files.write("a/b.txt", "old")
files.append("a/b.txt", "er")
files.patch("a/b.txt", "older", "new")
files.read("a/b.txt"), files.list("a"), files.exists("a"), files.locate("a/b.txt")
find(files, "*.txt"), search(files, "new"), search(files, "(n+)+e")
files.delete("a/b.txt")
mine = len(events)
open(root + "/raw.txt", "w").close()
print(json.dumps({"wall": events[:mine], "raw": events[mine:]}))
"""


def watched(root: Path, way: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _WATCHED, str(root), way], capture_output=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.spec("S4-42")
@pytest.mark.parametrize("way", ["walk", "best"])
def test_a_hook_can_tell_raw_opening_from_the_walls(root: Path, way: str) -> None:
    seen = watched(root, way)
    assert set(seen["wall"]) <= {True}
    assert seen["raw"] == [False]


@needs("linux")
@pytest.mark.spec("S4-42")
def test_the_kernels_way_opens_files_without_any_event(root: Path) -> None:
    if not isinstance(best_opener(), Openat2):
        pytest.skip("needs openat2: this kernel has none")
    # What remains are the pipes of the process that matches a difficult pattern.
    assert len(watched(root, "best")["wall"]) <= 4


@pytest.mark.spec("S4-40", "T03")
@pytest.mark.parametrize("flags", [READ, DIRECTORY, READ | os.O_DIRECTORY, CREATE])
@pytest.mark.parametrize("target", ["../outside", "../outside/secret.txt", "../outside/new", "in"])
def test_a_step_never_goes_through_a_link(root: Path, opener: Opener, target: str, flags: int) -> None:
    (root / "in").mkdir()
    (root / "link").symlink_to(target)
    fd = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError):
            os.close(opener.step(fd, b"link", flags, 0o600 if flags == CREATE else 0))
    finally:
        os.close(fd)
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


@needs("linux")
@pytest.mark.spec("S4-36", "S4-37")
@pytest.mark.parametrize("path", [b"..", b"link/x", b"abs/x", b"sub/../../x", b"/etc", b"proc/root/etc", b"link"])
def test_the_kernel_does_not_open_what_leads_out(root: Path, path: bytes) -> None:
    kernel = best_opener()
    if not isinstance(kernel, Openat2):
        pytest.skip("needs openat2: this kernel has none")
    (root / "sub").mkdir()
    (root / "link").symlink_to("../outside")
    (root / "abs").symlink_to(root.parent / "outside")
    (root / "proc").symlink_to("/proc/self")
    fd = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError) as refused:
            os.close(kernel.beneath(fd, path, READ))
    finally:
        os.close(fd)
    assert refused.value.errno in UNDECIDED


def test_a_file_removed_after_it_was_opened_keeps_its_name_for_rules(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "key.pem").write_text("key")
    (root / "twin (deleted)").hardlink_to(root / "key.pem")
    assert files.read("twin (deleted)") == "key"
    seen: list[str] = []

    def remember(real: str, access: str) -> None:
        seen.append(real)

    opened = files.wall.open("key.pem", 0)
    (root / "key.pem").unlink()
    assert files.wall.opener.real(opened.fd, opened.real) == f"{root}/key.pem"
    assert files.guarded(remember).read("twin (deleted)") == "key"
    assert seen == [f"{root}/twin (deleted)"]
