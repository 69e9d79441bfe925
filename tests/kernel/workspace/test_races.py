"""Someone swaps a directory or a file for a link that leads out, while we work.

Two names are exchanged thousands of times a second by another process: one is what we were
given, the other a link to its counterpart outside. No operation may ever reach that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.workspace.files import Access, WorkspaceFileAPI
from callgate.workspace.opening import Opener
from tests.kernel.workspace import swapping
from tests.needs import needs

pytestmark = [needs("linux"), pytest.mark.spec("S4-40", "T03", "T04")]

LEAST_S, MOST_S = 0.1, 30.0
"""How long each race runs at least, and at most if one side does not get its turn."""


class Arena:
    """A workspace in which `door` (or `leaf`) flips between inside and a link outside."""

    def __init__(self, base: Path, opener: Opener, kind: str) -> None:
        self.outside = base / "outside"
        self.root = base / "ws"
        for place in (self.outside, self.root, self.root / "inside"):
            place.mkdir()
        (self.outside / "f").write_text("SECRET")
        (self.outside / "mark").write_text("")
        self.inside = os.open(self.root / "inside", os.O_RDONLY | os.O_DIRECTORY)
        self.kind = kind
        self.path = "door/f" if kind == "parent" else "leaf"
        self.judged: list[tuple[str, Access]] = []
        self.files = WorkspaceFileAPI(str(self.root), guard=self._guard, opener=opener)
        self.names = ("door", "door.out") if kind == "parent" else ("leaf", "leaf.out")
        if kind == "parent":
            (self.root / "inside").rename(self.root / "door")
            (self.root / "door.out").symlink_to("../outside")
        self.restore()

    def _guard(self, real: str, access: Access) -> None:
        self.judged.append((real, access))

    def restore(self) -> None:
        """Put back what an allowed write or delete took away."""
        if self.kind == "parent":
            fd = os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=self.inside)
            os.pwrite(fd, b"inside", 0)
            os.close(fd)
            return
        first, second = (self.root / name for name in self.names)
        links = [path for path in (first, second) if path.is_symlink()]
        for path in (first, second):
            if not os.path.lexists(path) or (len(links) != 1 and path is second):
                path.unlink(missing_ok=True)
                if links:
                    path.write_text("inside")
                else:
                    path.symlink_to("../outside/f")
                    links.append(path)

    def close(self) -> None:
        os.close(self.inside)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        first, second = (str(self.root / name) for name in self.names)
        with subprocess.Popen(
            [sys.executable, swapping.__file__, first, second],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield

    def check(self) -> None:
        """Nothing outside was touched, and nothing outside was ever judged as ours."""
        assert sorted(os.listdir(self.outside)) == ["f", "mark"]
        assert (self.outside / "f").read_text() == "SECRET"
        assert all(real.startswith(f"{self.root}/") for real, _ in self.judged)
        self.judged.clear()


def _read(arena: Arena) -> None:
    assert arena.files.read(arena.path) in {"inside", ""}


def _write(arena: Arena) -> None:
    arena.files.write(arena.path, "inside")


def _append(arena: Arena) -> None:
    arena.files.append(arena.path, "")


def _patch(arena: Arena) -> None:
    arena.files.patch(arena.path, "inside", "inside")


def _delete(arena: Arena) -> None:
    arena.files.delete(arena.path)


def _make(arena: Arena) -> None:
    arena.files.write("door/new/deep/f", "inside")
    os.unlink("new/deep/f", dir_fd=arena.inside)
    os.rmdir("new/deep", dir_fd=arena.inside)
    os.rmdir("new", dir_fd=arena.inside)


def _list(arena: Arena) -> None:
    assert set(arena.files.list("door")) <= {"f"}


def _climb(arena: Arena) -> None:
    assert arena.files.read("door/../door/f") in {"inside", ""}


def _locate(arena: Arena) -> None:
    assert arena.files.locate(arena.path).real.startswith(f"{arena.root}/")


TAKING = {_write, _append, _patch, _delete}
"""What can take away one of the two names that are swapped."""

RACES = [
    ("parent", _read),
    ("parent", _write),
    ("parent", _append),
    ("parent", _patch),
    ("parent", _delete),
    ("parent", _make),
    ("parent", _list),
    ("parent", _climb),
    ("parent", _locate),
    ("leaf", _read),
    ("leaf", _write),
    ("leaf", _append),
    ("leaf", _patch),
    ("leaf", _delete),
    ("leaf", _locate),
]


def race(tmp_path: Path, opener: Opener, kind: str, act: Callable[[Arena], None], least: float) -> tuple[int, int]:
    """Run one operation against the swapping: how often it was done, how often refused."""
    arena = Arena(tmp_path, opener, kind)
    done = refused = 0
    start = time.monotonic()
    try:
        with arena.swapped():
            while (now := time.monotonic() - start) < MOST_S:
                if now > least and done and refused:
                    break
                try:
                    act(arena)
                    done += 1
                except ToolPermissionDenied:
                    refused += 1
                except ToolError as error:
                    assert error.reason in {"file_not_found", "changed", "no_match"}
                if act in TAKING:
                    arena.restore()
                if (done + refused) % 50 == 0:
                    arena.check()
            arena.check()
    finally:
        arena.close()
    return done, refused


@pytest.mark.parametrize(("kind", "act"), RACES, ids=lambda value: getattr(value, "__name__", value))
def test_no_operation_is_led_out_by_swapping(
    tmp_path: Path, opener: Opener, kind: str, act: Callable[[Arena], None]
) -> None:
    done, refused = race(tmp_path, opener, kind, act, LEAST_S)
    assert done
    assert refused


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "act"), RACES, ids=lambda value: getattr(value, "__name__", value))
def test_no_operation_is_led_out_by_swapping_for_long(
    tmp_path: Path, opener: Opener, kind: str, act: Callable[[Arena], None]
) -> None:
    done, refused = race(tmp_path, opener, kind, act, 5.0)
    assert done
    assert refused
