"""A process is alive exactly as long as it is: no crash and no child keeps its lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from callgate.storage.owners import Owners


def test_an_owner_lives_from_its_declaration_to_its_end(tmp_path: Path) -> None:
    one, two = Owners(str(tmp_path / "run"), "own_1"), Owners(str(tmp_path / "run"), "own_2")
    assert not two.alive("own_1")
    one.declare()
    one.declare()
    assert two.alive("own_1")
    assert one.alive("own_1")
    one.withdraw()
    assert not two.alive("own_1")
    assert os.listdir(tmp_path / "run") == []


def test_asking_again_and_again_does_not_make_a_dead_owner_live(tmp_path: Path) -> None:
    one, two, three = (Owners(str(tmp_path), f"own_{n}") for n in range(3))
    one.declare()
    one.forget()  # as a crash does: the file stays, the lock does not
    assert (tmp_path / "own_0.lock").exists()
    assert [each.alive("own_0") for each in (two, three, two, three)] == [False] * 4


def test_an_owner_whose_file_was_removed_says_again_that_it_lives(tmp_path: Path) -> None:
    one, two = Owners(str(tmp_path), "own_1"), Owners(str(tmp_path), "own_2")
    one.declare()
    (tmp_path / "own_1.lock").unlink()
    assert not two.alive("own_1")
    one.declare()
    assert two.alive("own_1")


def test_what_crashed_processes_left_is_swept_away(tmp_path: Path) -> None:
    dead, living = Owners(str(tmp_path), "own_dead"), Owners(str(tmp_path), "own_living")
    dead.declare()
    living.declare()
    dead.forget()
    (tmp_path / "callgate.sock").touch()
    (tmp_path / "other.lock").touch()
    Owners(str(tmp_path), "own_new").declare()
    assert sorted(os.listdir(tmp_path)) == [
        "callgate.sock",
        "other.lock",
        "own_living.lock",
        "own_new.lock",
    ]
    assert not living.alive("own_dead")


def test_a_name_that_no_process_can_have_is_not_alive(tmp_path: Path) -> None:
    owners = Owners(str(tmp_path / "run"), "own_1")
    owners.declare()
    (tmp_path / "outside.lock").touch()
    for name in ("", "../outside", "own_1/../own_1", "own\x00", "x" * 300):
        assert not owners.alive(name)


def test_where_it_cannot_be_told_an_owner_lives(tmp_path: Path) -> None:
    (tmp_path / "own_odd.lock").symlink_to("own_odd.lock")  # cannot be opened
    assert Owners(str(tmp_path), "own_1").alive("own_odd")


_FORKING = """
import os, sys, time
from callgate.storage.owners import Owners
owners = Owners(sys.argv[1], "own_parent")
owners.declare()
if os.fork():
    sys.stdin.readline()
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_child_that_outlives_its_parent_does_not_keep_its_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKING, str(tmp_path)]
    watching = Owners(str(tmp_path), "own_watching")
    with subprocess.Popen(command, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert watching.alive("own_parent")
        parent.stdin.write("go\n")
        parent.wait(timeout=60)
        assert not watching.alive("own_parent")
        os.kill(child, signal.SIGKILL)  # until now it was there
