"""What happened in a directory between two looks, and what nobody can say."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from callgate.dispatch import foreign_code
from callgate.sandbox.dry_runs.manifests import Observed, compare, observe, take
from tests.kernel.sandbox.worlds import NOBODY, World, as_user
from tests.needs import needs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "d" / "deep").mkdir(parents=True)
    (root / "a").write_text("one")
    (root / "d" / "b").write_text("two")
    (root / "d" / "deep" / "c").write_text("three")
    (root / "l").symlink_to("a")
    return root


def between(tree: Path, work: Callable[[], object]) -> Observed:
    before = take(str(tree))
    work()
    return compare(before, take(str(tree)))


def put_date_back(file: Path) -> None:
    was = file.stat()
    file.write_text("eno")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


def relink(link: Path) -> None:
    link.unlink()
    link.symlink_to("d/b")


WORKS: dict[str, tuple[Callable[[Path], object], Observed]] = {
    "nothing": (lambda t: None, Observed()),
    "reading": (lambda t: (t / "a").read_text(), Observed()),
    "creating": (lambda t: (t / "d" / "new").write_text(""), Observed(created=("d/new",))),
    "making a directory": (lambda t: (t / "n" / "m").mkdir(parents=True), Observed(created=("n", "n/m"))),
    "rewriting to the same size": (lambda t: (t / "a").write_text("eno"), Observed(changed=("a",))),
    "putting the date back": (lambda t: put_date_back(t / "a"), Observed(changed=("a",))),
    "changing a mode": (lambda t: (t / "d" / "b").chmod(0o600), Observed(changed=("d/b",))),
    "changing a directory's mode": (lambda t: (t / "d").chmod(0o700), Observed(changed=("d",))),
    "deleting": (lambda t: (t / "d" / "deep" / "c").unlink(), Observed(deleted=("d/deep/c",))),
    "renaming": (lambda t: (t / "a").rename(t / "z"), Observed(created=("z",), deleted=("a",))),
    "another target": (lambda t: relink(t / "l"), Observed(changed=("l",))),
    "a directory renamed": (
        lambda t: (t / "d").rename(t / "e"),
        Observed(created=("e", "e/b", "e/deep", "e/deep/c"), deleted=("d", "d/b", "d/deep", "d/deep/c")),
    ),
}


@pytest.mark.parametrize("work", WORKS)
def test_every_work_is_observed_as_what_it_was(tree: Path, work: str) -> None:
    act, expected = WORKS[work]
    assert between(tree, lambda: act(tree)) == expected


def test_links_are_not_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree / "out").symlink_to(outside)
    assert between(tree, lambda: (outside / "f").write_text("x")) == Observed()
    assert sorted(take(str(tree)).entries) == ["a", "d", "d/b", "d/deep", "d/deep/c", "l", "out"]


def test_what_a_bound_hid_is_neither_created_nor_deleted(tree: Path) -> None:
    whole, part = take(str(tree)), take(str(tree), most=3)
    expected = Observed(incomplete=("d: more than 3 names",))
    assert compare(part, whole) == compare(whole, part) == expected


def test_a_bound_is_kept_within_one_directory_too(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).touch()
    found = take(str(tmp_path), most=300)
    assert (len(found.entries) < 600, found.unlisted) == (True, {"": "more than 300 names"})


def test_changes_beside_a_bound_are_still_seen(tree: Path) -> None:
    before = take(str(tree), most=3)
    (tree / "a").write_text("other")
    (tree / "new").touch()
    seen = compare(before, take(str(tree), most=3))
    assert seen == Observed(created=("new",), changed=("a",), incomplete=("d: more than 3 names",))


def test_a_look_that_ran_out_of_time_says_so(tree: Path) -> None:
    found = take(str(tree), seconds=-1.0)
    assert compare(found, found) == Observed(incomplete=("d: no time was left",))


def test_a_tree_that_is_too_deep_says_so(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    found = take(str(tmp_path))
    assert (len(found.entries), list(found.unlisted.values())) == (201, ["deeper than 200 directories"])


def test_a_directory_that_is_gone_says_so(tmp_path: Path) -> None:
    found = take(str(tmp_path / "none"))
    assert (found.entries, compare(found, found)) == ({}, Observed(incomplete=(".: No such file or directory",)))


@needs("root")
def test_a_directory_that_is_closed_to_us_is_named() -> None:
    """As a user for whom modes count."""
    world = World(NOBODY)
    try:
        (world.workspace / ".git").chmod(0)
        found = as_user(NOBODY, lambda: dict(take(str(world.workspace)).unlisted))
    finally:
        world.remove()
    assert found == {".git": "Permission denied"}


async def test_a_name_that_is_no_text_can_be_sent(tree: Path) -> None:
    before = await observe(str(tree))
    with open(os.fsencode(tree) + b"/\xff\n", "wb"):
        pass
    seen = await before.changes()
    assert (seen.files, seen.as_metadata()) == (
        ["\\xff\n"],
        {
            "created": ["\\xff\n"],
            "changed": [],
            "deleted": [],
            "counts": {"created": 1, "changed": 0, "deleted": 0},
            "incomplete": [],
        },
    )


def test_metadata_names_the_first_of_many(tmp_path: Path) -> None:
    seen = Observed(created=tuple(f"{number:04}" for number in range(1000)))
    said = seen.as_metadata()
    assert (len(said["created"]), said["counts"]["created"], len(seen.files)) == (50, 1000, 1000)


async def test_looking_is_not_taken_for_the_tools_doing(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign_code.watch_opens()
    token = foreign_code.watched.set(["tool", "session"])
    try:
        with caplog.at_level(logging.WARNING, "callgate.raw_open"):
            await (await observe(str(tree))).changes()
            take(str(tree))
    finally:
        foreign_code.watched.reset(token)
    assert caplog.records == []
