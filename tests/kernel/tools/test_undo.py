"""The tool `undo`: all is as it was before, or nothing is touched and the reason is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.ids import ulid
from callgate.core.local.environment import LocalEnvironment
from callgate.core.sessions import Mode, Root
from callgate.core.tools import CannotSucceed, Tool, ToolContext
from callgate.dispatch.call_files import CallFiles
from callgate.policy.decide import Rulebook
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.tools.files import DeleteFile, WriteFile
from callgate.tools.undo import Undo
from callgate.workspace.files import Guard, WorkspaceFileAPI
from callgate.workspace.undo.history import Bounds, History
from callgate.workspace.undo.planning import plan, take
from callgate.workspace.undo.records import Origin
from tests.support import Bench


class World:
    """A workspace, its history, and calls that change files in it."""

    def __init__(self, base: Path) -> None:
        self.root = base / "ws"
        self.root.mkdir()
        self.history = History(str(base / "undo"))
        self.guard: Guard | None = None
        self._numbers = count(1)

    def files(self, call: str | None = None, turn: str | None = None) -> WorkspaceFileAPI:
        origin = Origin(
            session="s",
            call=call or f"undo{next(self._numbers)}",
            tool="t",
            workspace=os.fsencode(self.root),
            turn=turn,
        )
        return WorkspaceFileAPI(str(self.root), guard=self.guard, changes=self.history.of(origin))

    async def undo(self, call: str = "c1", by: str | None = None, **more: Any) -> str:
        input = more if "session" in more else {"call_id": call, **more}
        context = ToolContext(
            session_id="mine",
            turn_id=None,
            tool_use_id="t",
            workspace_path=str(self.root),
            open_files=lambda: self.files(by),
            publish=lambda event_type, payload: None,
        )
        output = await Undo(self.history).execute(input, context)
        (block,) = output.content
        assert isinstance(block, TextBlock)
        return block.text

    def preview(self, call: str = "c1") -> str:
        return Undo(self.history).preview({"call_id": call}, LocalEnvironment(self.files()))

    async def refused(self, call: str = "c1", **more: Any) -> ToolError:
        before = self.seen()
        with pytest.raises(ToolError) as refused:
            await self.undo(call, **more)
        assert self.seen() == before, "a refusal changes nothing"
        return refused.value

    def seen(self) -> dict[str, Any]:
        found = {}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if path.is_symlink():
                found[name] = ("link", os.readlink(path))
            elif path.is_dir():
                found[name] = ("directory",)
            else:
                found[name] = (oct(path.stat().st_mode & 0o777), path.read_bytes())
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = os.umask(0o022)
    try:
        yield World(tmp_path)
    finally:
        os.umask(before)


def test_it_is_a_tool_that_writes_and_one_that_only_looks_reads(world: World) -> None:
    tool, looker = Undo(world.history), Undo(world.history, only_look=True)
    assert isinstance(tool, Tool)
    assert (tool.definition.name, tool.definition.side_effects) == ("undo", SideEffects.WRITE)
    assert (looker.definition.name, looker.definition.side_effects) == ("undo", SideEffects.READ)


CONTENTS = {
    "text": b"one\ntwo\n",
    "no newline at the end": b"one\ntwo",
    "carriage returns": b"one\r\ntwo\r\n",
    "binary": bytes(range(256)) * 10,
    "empty": b"",
    "other encoding": "häßlich".encode("latin-1"),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
async def test_everything_a_call_did_is_taken_back(world: World, content: bytes) -> None:
    (world.root / "a").write_bytes(content)
    (world.root / "a").chmod(0o750)
    (world.root / "gone").write_bytes(content)
    (world.root / "gone").chmod(0o600)
    (world.root / "link").symlink_to("a")
    before = world.seen()
    files = world.files("c1")
    files.write("a", "changed")
    files.append("a", " again")
    files.write("new/deep/er.txt", "new")
    files.write("new/b.txt", "new")
    files.delete("gone")
    files.delete("link")
    assert world.seen() != before
    await world.undo()
    assert world.seen() == before


async def test_an_undo_can_be_undone_and_that_again(world: World) -> None:
    (world.root / "a").write_text("one")
    (world.root / "run").write_text("x")
    (world.root / "run").chmod(0o755)
    (world.root / "link").symlink_to("a")
    states = [world.seen()]
    files = world.files("c1")
    files.write("a", "two")
    files.write("new/deep/b", "b")
    files.delete("run")
    files.delete("link")
    states.append(world.seen())
    for turn in range(4):
        await world.undo("c1" if not turn else f"u{turn - 1}", by=f"u{turn}")
        assert world.seen() == states[turn % 2], turn


async def test_a_file_deleted_and_made_anew_gets_its_mode_back(world: World) -> None:
    (world.root / "run.sh").write_text("old")
    (world.root / "run.sh").chmod(0o755)
    before = world.seen()
    for content in ("old", "new"):
        files = world.files("c1")
        files.delete("run.sh")
        files.write("run.sh", content)
        assert world.seen() != before
        await world.undo()
        assert world.seen() == before


async def test_a_mode_that_someone_chose_since_stays(world: World) -> None:
    (world.root / "run.sh").write_text("old")
    world.files("c1").write("run.sh", "new")
    (world.root / "run.sh").chmod(0o700)
    await world.undo()
    assert world.seen() == {"run.sh": ("0o700", b"old")}


async def test_a_link_that_became_a_file_becomes_a_link_again(world: World) -> None:
    (world.root / "a").write_text("a")
    (world.root / "link").symlink_to("a")
    before = world.seen()
    files = world.files("c1")
    files.delete("link")
    files.write("link", "a file now")
    await world.undo()
    assert world.seen() == before


async def test_a_name_that_is_no_text_is_restored(world: World) -> None:
    odd = Path(os.fsdecode(os.fsencode(world.root) + b"/\xff.txt"))
    odd.write_text("old")
    (world.root / "link").symlink_to(odd.name)
    world.files("c1").write("link", "new")
    assert "\\xff.txt" in world.preview()
    assert "\\xff.txt" in await world.undo()
    assert odd.read_text() == "old"


async def test_an_undone_call_is_said_to_be_undone(world: World) -> None:
    world.files("c1").write("a", "x")
    await world.undo()
    before = world.seen()
    assert (await world.undo()).startswith("Nothing to undo")
    with pytest.raises(CannotSucceed) as refused:
        world.preview()
    assert refused.value.error.reason == "nothing_to_undo"
    assert world.seen() == before


async def test_a_change_that_was_noted_and_never_made_stands_in_nobodys_way(world: World) -> None:
    """As after a kill: the second line was written, the file was not."""
    (world.root / "a").write_text("one")
    world.files("c1").write("a", "two")
    world.files("c1").write("a", "three")
    (world.root / "a").write_text("two")
    await world.undo()
    assert (world.root / "a").read_text() == "one"


async def test_a_file_that_someone_put_back_by_hand_needs_no_undo(world: World) -> None:
    (world.root / "a").write_text("one")
    world.files("c1").write("a", "two")
    world.files("c1").write("a", "three")
    (world.root / "a").write_text("one")
    assert (await world.undo()).startswith("Nothing to undo")


@pytest.mark.parametrize("kind", ["changed", "deleted", "created"])
def test_a_file_that_changes_after_it_was_looked_at_is_left_alone(world: World, kind: str) -> None:
    if kind != "created":
        (world.root / "a").write_text("one")
    if kind == "deleted":
        world.files("c1").delete("a")
    else:
        world.files("c1").write("a", "two")
    files = world.files()
    (step,) = plan(files, world.history, world.history.of_call("c1").changes).steps
    (world.root / "a").write_text("by hand")
    with pytest.raises(ToolExecutionError) as refused:
        take(files, world.history, step)
    assert (refused.value.reason, (world.root / "a").read_text()) == ("changed", "by hand")


async def test_a_file_changed_since_is_shown_and_nothing_is_touched(world: World) -> None:
    (world.root / "a").write_text("one\n")
    files = world.files("c1")
    files.write("a", "one\ntwo\n")
    files.write("b", "b")
    (world.root / "a").write_text("one\ntwo\nby hand\n")
    error = await world.refused()
    assert (type(error), error.reason) == (ToolExecutionError, "changed_since")
    assert error.details == {
        "files": ["a"],
        "partial_output": "--- a\n+++ a\n@@ -1,2 +1,3 @@\n one\n two\n+by hand",
    }


@pytest.mark.parametrize("what", ["deleted", "directory", "link", "fifo", "binary"])
async def test_whatever_stands_there_by_now_is_respected(world: World, what: str) -> None:
    (world.root / "a").write_text("one\n")
    files = world.files("c1")
    files.write("b", "b")
    files.write("a", "two\n")
    path = world.root / "a"
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "link":
        path.symlink_to("b")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "binary":
        path.write_bytes(b"\0\xff")
    status = path.lstat() if what != "deleted" else None
    with pytest.raises(ToolExecutionError) as refused:
        await world.undo()
    assert refused.value.reason == "changed_since"
    assert refused.value.details is not None
    assert refused.value.details["files"] == ["a"]
    assert (path.lstat() if what != "deleted" else None) == status
    assert (world.root / "b").exists()


async def test_a_directory_swapped_for_a_link_is_not_followed(world: World, tmp_path: Path) -> None:
    (world.root / "d").mkdir()
    (world.root / "d" / "a").write_text("one")
    world.files("c1").write("d/a", "two")
    (world.root / "d").rename(world.root / "other")
    (world.root / "d").symlink_to("other")
    assert (await world.refused()).reason == "changed_since"


async def test_a_directory_that_became_a_file_is_in_the_way(world: World) -> None:
    (world.root / "d").mkdir()
    (world.root / "d" / "a").write_text("one")
    files = world.files("c1")
    files.write("b", "b")
    files.delete("d/a")
    (world.root / "d").rmdir()
    (world.root / "d").write_text("a file now")
    error = await world.refused()
    assert (error.reason, (error.details or {})["files"]) == ("changed_since", ["d/a"])


async def test_a_directory_that_is_gone_is_made_again(world: World) -> None:
    (world.root / "d").mkdir()
    (world.root / "d" / "a").write_text("one")
    before = world.seen()
    world.files("c1").delete("d/a")
    (world.root / "d").rmdir()
    await world.undo()
    assert world.seen() == before


async def test_a_later_call_must_be_undone_first(world: World) -> None:
    for call, text in (("c1", "one"), ("c2", "two")):
        world.files(call).write("a", text)
    assert (await world.refused("c1")).reason == "changed_since"
    await world.undo("c2")
    await world.undo("c1")
    assert world.seen() == {}


async def test_a_directory_with_something_in_it_stays(world: World) -> None:
    world.files("c1").write("d/e/a", "x")
    (world.root / "d" / "mine").write_text("mine")
    said = await world.undo()
    assert world.seen() == {"d": ("directory",), "d/mine": ("0o644", b"mine")}
    assert said.splitlines() == [
        "Removed 'd/e/a'",
        "Removed directory 'd/e'",
        "Left 'd': it is not empty",
    ]


@pytest.mark.parametrize("lost", ["too large", "pruned", "damaged"])
async def test_a_content_that_is_not_kept_is_named_and_nothing_is_touched(tmp_path: Path, lost: str) -> None:
    world = World(tmp_path)
    if lost == "too large":
        world.history = History(str(tmp_path / "undo"), Bounds(max_file=10))
    (world.root / "a").write_text("x" * 100)
    files = world.files("c1")
    files.write("b", "b")
    files.write("a", "small")
    for path in (tmp_path / "undo" / "blobs").rglob("*"):
        if path.is_file() and lost == "pruned":
            path.unlink()
        elif path.is_file() and lost == "damaged":
            path.write_text("y")
    error = await world.refused()
    assert (error.reason, error.details) == ("not_kept", {"files": ["a"]})


async def test_what_lies_outside_the_session_is_refused_as_a_whole(world: World, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    origin = Origin(session="s", call="c1", tool="t", workspace=b"/")
    files = WorkspaceFileAPI(
        str(world.root),
        extra_roots=[Root(str(more), writable=True)],
        changes=world.history.of(origin),
    )
    files.write("a", "a")
    files.write(str(more / "b"), "b")
    error = await world.refused()
    assert (type(error), error.reason) == (ToolPermissionDenied, "workspace_escape")
    assert (more / "b").read_text() == "b"


@pytest.mark.parametrize("access", ["read", "write"])
async def test_the_guard_has_its_say_before_anything_is_touched(world: World, access: str) -> None:
    files = world.files("c1")
    files.write("a", "a")
    files.write("z", "z")

    def guard(real: str, wanted: str) -> None:
        if real.endswith("/a") and wanted == access:
            raise ToolPermissionDenied("no", reason="policy_deny")

    world.guard = guard
    assert (await world.refused()).reason == "policy_deny"


async def test_protected_paths_are_protected_from_an_undo(world: World) -> None:
    world.guard = lambda real, access: None  # a rule allowed it once
    world.files("c1").write(".git/config", "x")
    world.guard = None
    assert (await world.refused()).reason == "protected_path"


async def test_a_dry_run_shows_the_change_and_makes_none(world: World) -> None:
    (world.root / "a").write_text("one\n")
    files = world.files("c1")
    files.write("a", "two\n")
    files.write("d/b", "b\n")
    before = world.seen()
    shown = "\n".join(
        [
            "--- d/b",
            "+++ d/b",
            "@@ -1 +0,0 @@",
            "-b",
            "['d/b' goes]",
            "--- a",
            "+++ a",
            "@@ -1 +1 @@",
            "-two",
            "+one",
            "d: a directory -> nothing",
        ]
    )
    assert sorted((await world.undo(dry_run=True)).split("\n")) == sorted(shown.split("\n"))
    assert world.preview() == "Restores 3 files:\n" + await world.undo(dry_run=True)
    assert world.seen() == before


def test_a_preview_ends_a_call_that_cannot_be_undone(world: World) -> None:
    with pytest.raises(CannotSucceed) as refused:
        world.preview("unknown")
    assert refused.value.error.reason == "no_changes"


async def test_what_came_after_a_turn_is_taken_back_and_the_turn_stays(world: World) -> None:
    turns = [ulid() for _ in range(4)]
    states = []
    for number, turn in enumerate(turns):
        world.files(f"tu_{ulid()}", turn).write("a", f"{number}")
        world.files(f"tu_{ulid()}", turn).write(f"d/{number}", "x")
        states.append(world.seen())
    world.files(f"tu_{ulid()}").write("direct", "x")
    for back in (2, 2, 0):
        await world.undo(session="s", to_turn=turns[back])
        assert world.seen() == states[back]


async def test_a_turn_that_changed_nothing_is_placed_by_its_id(world: World) -> None:
    first, idle, last = ulid(), ulid(), ulid()
    world.files(f"tu_{ulid()}", first).write("a", "1")
    world.files(f"tu_{ulid()}", last).write("a", "2")
    await world.undo(session="s", to_turn=idle)
    assert (world.root / "a").read_text() == "1"


@pytest.mark.parametrize(
    "input",
    [{"session": "s", "to_turn": "unknown"}, {"session": "x", "to_turn": "t"}, {"call_id": "x"}],
    ids=str,
)
async def test_what_is_not_in_the_history_is_refused(world: World, input: dict[str, str]) -> None:
    world.files("c1", "turn").write("a", "x")
    assert (await world.refused(**{"call": "x", **input})).reason == "no_changes"


@pytest.mark.parametrize(
    "input", [{}, {"turn": "t", "since": 0}, {"to_turn": "t"}, {"call_id": "c", "session": "s"}], ids=str
)
async def test_it_must_be_clear_what_to_undo(world: World, input: dict[str, Any]) -> None:
    context = ToolContext(
        session_id="s",
        turn_id=None,
        tool_use_id="t",
        workspace_path=str(world.root),
        open_files=world.files,
        publish=lambda event_type, payload: None,
    )
    with pytest.raises(ToolValidationError):
        await Undo(world.history).execute(input, context)
    context.cancel_event.set()
    with pytest.raises(ToolCancelled):
        await Undo(world.history).execute(input, context)


async def test_a_damaged_line_is_reported(world: World, tmp_path: Path) -> None:
    world.files("c1").write("a", "x")
    (file,) = (tmp_path / "undo" / "calls").iterdir()
    with file.open("ab") as lines:
        lines.write(b'{"line":"change","ori')
    assert "1 damaged" in await world.undo()
    assert world.seen() == {}


async def test_a_dispatched_call_is_kept_under_its_own_id(world: World) -> None:
    """The whole way: what a call changes is found by its id, its session and its turn."""
    bench = Bench(world.root, WriteFile, DeleteFile, lambda: Undo(world.history), mode=Mode.WRITE)
    keep_changes(bench, world.history)
    first = await bench.run("write_file", {"path": "a", "content": "1"}, turn_id="turn_1")
    second = await bench.run("write_file", {"path": "a", "content": "2"}, turn_id="turn_2")
    assert first.ok and second.ok
    (change,) = world.history.of_call(second.call_id).changes
    assert change.origin == Origin(
        session=bench.session.id,
        call=second.call_id,
        tool="write_file",
        workspace=os.fsencode(world.root),
        turn="turn_2",
    )
    undone = await bench.run("undo", {"session": bench.session.id, "to_turn": "turn_1"})
    assert undone.ok and (world.root / "a").read_text() == "1"
    assert [record.tool for record in bench.recorder.records] == ["write_file"] * 2 + ["undo"]
    again = await bench.run("undo", {"call_id": undone.call_id})
    assert again.ok and (world.root / "a").read_text() == "2"


async def test_a_rule_about_a_path_holds_for_an_undo(world: World) -> None:
    world.files("c1").write("secret/a", "x")
    rule = Rule(decision=Outcome.DENY, tool="undo", path="secret/**")
    policy = Policy(rules=(rule,))
    bench = Bench(world.root, lambda: Undo(world.history), mode=Mode.WRITE, policy=policy)
    result = await bench.run("undo", {"call_id": "c1"})
    assert (result.error.error_class, result.error.reason) == ("permission_denied", "policy_deny")
    assert (world.root / "secret" / "a").exists()


def keep_changes(bench: Bench, history: History) -> None:
    book = Rulebook(Policy(), None)
    bench.dispatcher.files = CallFiles(lambda workspace: book, history=lambda: history)
