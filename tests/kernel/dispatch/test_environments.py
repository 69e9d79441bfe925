"""Calls that read, write and run commands where their session's client offers to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from callgate import Gate, Message
from callgate.core.commands import Command, Exit, OnOutput
from callgate.core.content import FileDiff, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.local.environment import Offered
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tools import ToolContext, ToolOutput
from callgate.dispatch.commands.sandboxes import EDITORS_TERMINAL, Enclosure, Sandbox, Surroundings
from callgate.dispatch.environments import WRITTEN_ON_DISK, Environments
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.questions import read_question
from callgate.features.chat.agent.prompts import result_block, to_native, to_text
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox.profiles import Profile
from callgate.tools.files import DeleteFile, ListDir, PatchFile, ReadFile, WriteFile
from callgate.tools.search import SearchText
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman, Unwalled, make_tool

ALL = (ReadFile, WriteFile, PatchFile, ListDir, DeleteFile, SearchText)


class FakeEditor:
    """Buffers by absolute path, and everything that was asked for."""

    def __init__(self, buffers: dict[str, str] | None = None, *, reads: bool = True, writes: bool = True) -> None:
        self.reads, self.writes = reads, writes
        self.buffers = buffers if buffers is not None else {}
        self.asked: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.creates = True
        self.hold: asyncio.Event | None = None

    async def read(self, path: str, line: int | None, limit: int | None) -> str:
        self.asked.append(("read", path, line, limit))
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        if path not in self.buffers:
            raise FileNotFoundError(path)
        lines = self.buffers[path].splitlines(keepends=True)[(line or 1) - 1 :]
        return "".join(lines[:limit])

    async def write(self, path: str, content: str) -> None:
        self.asked.append(("write", path, content))
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if path not in self.buffers and not self.creates:
            raise FileNotFoundError(path)
        self.buffers[path] = content


class FakeTerminals:
    """A launcher whose commands say something and end at once."""

    def __init__(self, output: bytes = b"", does: Callable[[], object] = lambda: None) -> None:
        self.commands: list[Command] = []
        self._output = output
        self._does = does

    async def start(self, command: Command, on_output: OnOutput) -> FakeTerminals._Ended:
        self.commands.append(command)
        on_output("stdout", self._output)
        self._does()
        return self._Ended()

    class _Ended:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *exc: object) -> None:
            pass

        async def wait(self) -> Exit:
            return Exit(code=0)

        def stop(self, grace: float = 5.0) -> bool:
            return False


def editing(workspace: Path, editor: FakeEditor, *tools: Any, **more: Any) -> Bench:
    more.setdefault("mode", Mode.WRITE)
    bench = Bench(workspace, *(tools or ALL), **more)
    bench.dispatcher.environments.offer(bench.session.id, Offered(files=editor))
    return bench


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.spec("S2-07", "S2-16")
async def test_text_is_read_from_the_editor_and_not_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on disk\n")
    path = str(tmp_path / "a.txt")
    editor = FakeEditor({path: "one\ntwo\nthree\nfour\n"})
    bench = editing(tmp_path, editor)
    whole = await bench.run("read_file", {"path": "a.txt"})
    part = await bench.run("read_file", {"path": path, "offset": 2, "limit": 2})
    rest = await bench.run("read_file", {"path": "./a.txt", "offset": 3})
    assert [whole.text, part.text, rest.text] == [
        "one\ntwo\nthree\nfour\n",
        "two\nthree\n",
        "three\nfour\n",
    ]
    assert [each.meta for each in (whole, part, rest)] == [
        {"total_lines": 4},
        {},
        {"total_lines": 4},
    ]
    assert editor.asked == [
        ("read", path, None, None),
        ("read", path, 2, 2),
        ("read", path, 3, None),
    ]


@pytest.mark.spec("S2-07")
async def test_a_buffer_that_was_never_saved_can_be_read(tmp_path: Path) -> None:
    editor = FakeEditor({str(tmp_path / "new/a.txt"): "unsaved"})
    assert (await editing(tmp_path, editor).run("read_file", {"path": "new/a.txt"})).text == "unsaved"


async def test_an_editor_that_sends_more_than_was_asked_for_is_cut(tmp_path: Path) -> None:
    class Generous(FakeEditor):
        async def read(self, path: str, line: int | None, limit: int | None) -> str:
            return "line\n" * 5_000

    bench = editing(tmp_path, Generous())
    part = await bench.run("read_file", {"path": "a", "offset": 10, "limit": 3})
    assert (part.text, part.truncated) == ("line\n" * 3, False)
    whole = await bench.run("read_file", {"path": "a"})
    assert whole.truncated and whole.text.endswith("of 5,000 shown; continue with offset=2001]")


@pytest.mark.parametrize(("text", "reason"), [("a\0b", "not_text"), ("\ud800", "not_text")])
async def test_what_is_no_text_is_refused_from_an_editor_too(tmp_path: Path, text: str, reason: str) -> None:
    editor = FakeEditor({str(tmp_path / "a"): text})
    result = await editing(tmp_path, editor).run("read_file", {"path": "a"})
    assert (result.ok, result.error.reason) == (False, reason)


async def test_a_line_behind_the_end_is_told(tmp_path: Path) -> None:
    editor = FakeEditor({str(tmp_path / "a"): "one\n"})
    result = await editing(tmp_path, editor).run("read_file", {"path": "a", "offset": 9})
    assert result.error.reason == "out_of_range"


@pytest.mark.spec("S2-08")
async def test_images_patterns_lists_and_searches_stay_local(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (tmp_path / "a.txt").write_text("on disk\n")
    editor = FakeEditor({str(tmp_path / name): "in the editor\n" for name in ("a.png", "a.txt", "b")})
    bench = editing(tmp_path, editor)
    image = await bench.run("read_file", {"path": "a.png"})
    assert image.content[0].media_type == "image/png"
    assert (await bench.run("read_file", {"path": "a.txt", "regex": "disk"})).text == "1:on disk\n"
    assert (await bench.run("list_dir", {})).value == ["a.png", "a.txt"]
    assert (await bench.run("search_text", {"pattern": "editor"})).value == []
    assert (await bench.run("delete_file", {"path": "a.txt"})).ok
    assert editor.asked == []


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.spec("S2-09", "S2-16")
async def test_a_write_goes_to_the_editor_and_leaves_the_disk_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on disk\n")
    path, new = str(tmp_path / "a.txt"), str(tmp_path / "sub/new.txt")
    editor = FakeEditor({path: "in the editor\n"})
    bench = editing(tmp_path, editor)
    replaced = await bench.run("write_file", {"path": "a.txt", "content": "mine\n"})
    made = await bench.run("write_file", {"path": "sub/new.txt", "content": "new\n"})
    assert (replaced.text, made.text) == (
        "Replaced 'a.txt' (5 bytes)",
        "Created 'sub/new.txt' (4 bytes)",
    )
    assert replaced.diffs == (FileDiff(path=path, old="in the editor\n", new="mine\n"),)
    assert made.diffs == (FileDiff(path=new, old=None, new="new\n"),)
    assert (replaced.files_modified, made.files_modified) == (["a.txt"], ["sub/new.txt"])
    assert editor.buffers == {path: "mine\n", new: "new\n"}
    assert ((tmp_path / "a.txt").read_text(), (tmp_path / "sub").exists()) == ("on disk\n", False)


@pytest.mark.spec("S2-09")
async def test_a_patch_changes_the_text_in_the_buffer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on disk\n")
    path = str(tmp_path / "a.txt")
    editor = FakeEditor({path: "one\ntwo\n"})
    bench = editing(tmp_path, editor)
    patched = await bench.run("patch_file", {"path": "a.txt", "old": "two", "new": "2"})
    assert patched.diffs == (FileDiff(path=path, old="one\ntwo\n", new="one\n2\n"),)
    assert (editor.buffers[path], (tmp_path / "a.txt").read_text()) == ("one\n2\n", "on disk\n")
    missed = await bench.run("patch_file", {"path": "a.txt", "old": "on disk", "new": ""})
    assert (missed.error.reason, editor.buffers[path]) == ("no_match", "one\n2\n")


async def test_of_changes_side_by_side_in_one_buffer_none_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "a.txt")
    editor = FakeEditor({path: "".join(f"<{n}>\n" for n in range(20))})
    bench = editing(tmp_path, editor)
    worker = Session(workspace=str(tmp_path), mode=Mode.WRITE, parent=bench.session.id)
    results = await asyncio.gather(
        *(
            bench.run(
                "patch_file",
                {"path": "a.txt", "old": f"<{n}>", "new": f"{n}"},
                session=worker if n % 2 else bench.session,
            )
            for n in range(20)
        )
    )
    assert all(each.ok for each in results)
    assert editor.buffers[path] == "".join(f"{n}\n" for n in range(20))


async def test_text_that_no_wire_can_carry_does_not_reach_the_editor(tmp_path: Path) -> None:
    editor = FakeEditor()

    async def write(input: Any, context: ToolContext) -> str:
        return str(await context.environment.write_text("a", "\ud800"))

    tool = make_tool("rough", SideEffects.WRITE, run=write)
    result = await editing(tmp_path, editor, tool).run("rough")
    assert (result.error.error_class, editor.asked) == ("validation_error", [])


# --- what the editor does not have, and what it fails at ---------------------------------------------


@pytest.mark.spec("S2-15")
async def test_what_the_editor_does_not_have_is_taken_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    editor = FakeEditor()
    editor.creates = False
    bench = editing(tmp_path, editor)
    read = await bench.run("read_file", {"path": "a.txt", "offset": 2, "limit": 1})
    written = await bench.run("write_file", {"path": "b.txt", "content": "b"})
    patched = await bench.run("patch_file", {"path": "a.txt", "old": "one", "new": "1"})
    assert [read.text, written.text, patched.text] == [
        "two\n",
        f"Created 'b.txt' (1 bytes)\n[{WRITTEN_ON_DISK}]",
        f"Patched 'a.txt'\n[{WRITTEN_ON_DISK}]",
    ]
    assert (tmp_path / "b.txt").read_text() == "b"
    assert (tmp_path / "a.txt").read_text() == "1\ntwo\nthree\n"
    missing = await bench.run("read_file", {"path": "none"})
    assert missing.error.reason == "file_not_found"


@pytest.mark.spec("S2-15")
@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("patch_file", {"old": "on disk", "new": "x"}),
    ],
)
async def test_any_other_failure_of_the_editor_fails_the_tool(tmp_path: Path, tool: str, more: dict[str, str]) -> None:
    (tmp_path / "a.txt").write_text("on disk")
    editor = FakeEditor({str(tmp_path / "a.txt"): "in the editor"})
    editor.failure = ToolExecutionError("The editor could not.", reason="editor_failed")
    result = await editing(tmp_path, editor).run(tool, {"path": "a.txt", **more})
    assert (result.ok, result.error.reason) == (False, "editor_failed")
    assert (tmp_path / "a.txt").read_text() == "on disk"


@pytest.mark.spec("S2-13")
@pytest.mark.parametrize(("reads", "writes"), [(True, False), (False, True), (False, False)])
async def test_what_is_not_offered_is_done_here(tmp_path: Path, reads: bool, writes: bool) -> None:
    (tmp_path / "a.txt").write_text("same\n")
    path = str(tmp_path / "a.txt")
    editor = FakeEditor({path: "same\n"}, reads=reads, writes=writes)
    bench, plain = editing(tmp_path, editor), Bench(tmp_path, *ALL, mode=Mode.WRITE)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": "a.txt"}),
        ("write_file", {"path": "a.txt", "content": "new\n"}),
        ("patch_file", {"path": "a.txt", "old": "new", "new": "newer"}),
    ]
    shown = []
    for each in (bench, plain):
        (tmp_path / "a.txt").write_text("same\n")
        editor.buffers[path] = "same\n"
        results = []
        for tool, arguments in calls[:2] if writes else calls:
            result = await each.run(tool, arguments)
            results.append((result.text, result.meta, result.files_modified, result.diffs))
        shown.append(results)
        if each is bench:
            disk = (tmp_path / "a.txt").read_text()
            assert (disk != "same\n", editor.buffers[path] != "same\n") == (not writes, writes)
    assert shown[0] == shown[1]
    asked = {kind for kind, *_ in editor.asked}
    assert ("read" in asked, "write" in asked) == (reads, writes)


def test_only_the_session_and_those_who_work_for_it_use_an_offer(tmp_path: Path) -> None:
    environments, offered = Environments(), Offered(files=FakeEditor())
    session = Session(workspace=str(tmp_path))
    worker = Session(workspace=str(tmp_path), parent=session.id, is_worker=True)
    other = Session(workspace=str(tmp_path))
    environments.offer(session.id, offered)
    found = [environments.of(each) for each in (session, worker, other)]
    assert found == [offered, offered, None]
    environments.withdraw(session.id)
    environments.withdraw(session.id)
    assert environments.of(worker) is None


async def test_an_offer_ends_with_its_session(tmp_path: Path) -> None:
    bench = editing(tmp_path, FakeEditor())
    await bench.dispatcher.close_session(bench.session)
    assert bench.dispatcher.environments.of(bench.session) is None


# --- the wall stands before the editor ---------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["../out.txt", "/etc/hostname", "link/x", "out.txt", "a/../../x", "", "a\0b", "sub", ".", "new/"],
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "patch_file"])
async def test_a_path_that_is_refused_here_never_reaches_the_editor(tmp_path: Path, tool: str, path: str) -> None:
    workspace = tmp_path / "ws"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "link").symlink_to(tmp_path)
    (workspace / "out.txt").symlink_to(tmp_path / "out.txt")
    (tmp_path / "out.txt").write_text("outside")
    editor = FakeEditor({str(tmp_path / "out.txt"): "outside"})

    def rough(do: Callable[[ToolContext], Any]) -> Any:
        async def run(input: Any, context: ToolContext) -> str:
            return str(await do(context))

        return run

    probes = [  # a path that no stage before has seen
        make_tool("reads", SideEffects.WRITE, run=rough(lambda c: c.environment.read_text(path))),
        make_tool("writes", SideEffects.WRITE, run=rough(lambda c: c.environment.write_text(path, "x"))),
        make_tool("edits", SideEffects.WRITE, run=rough(lambda c: c.environment.edit_text(path, str.upper))),
    ]
    bench = editing(workspace, editor, *ALL, *probes)
    more = {"content": "x", "old": "outside", "new": "x"}
    keys = {"read_file": (), "write_file": ("content",), "patch_file": ("old", "new")}[tool]
    assert not (await bench.run(tool, {"path": path, **{key: more[key] for key in keys}})).ok
    assert [(await bench.run(name)).ok for name in ("reads", "writes", "edits")] == [False] * 3
    assert (editor.asked, (tmp_path / "out.txt").read_text()) == ([], "outside")


@pytest.mark.spec("S2-16")
async def test_the_editor_is_asked_for_the_file_that_was_judged(tmp_path: Path) -> None:
    real, extra = tmp_path / "real", tmp_path / "extra"
    for each in (real, extra):
        each.mkdir()
    (real / "a.txt").write_text("")
    (real / "link.txt").symlink_to("a.txt")
    spelled = tmp_path / "spelled"
    spelled.symlink_to(real)
    editor = FakeEditor({str(spelled / "a.txt"): "a", str(extra / "b.txt"): "b"})
    bench = editing(spelled, editor)
    bench.session.extra_roots = (Root(str(extra)),)
    paths = ["link.txt", str(real / "a.txt"), str(extra / "b.txt")]
    texts = [(await bench.run("read_file", {"path": path})).text for path in paths]
    assert texts == ["a", "a", "b"]
    refused = await bench.run("write_file", {"path": str(extra / "b.txt"), "content": "x"})
    assert refused.error.reason == "read_only_root"
    assert [path for _, path, *_ in editor.asked] == [
        str(spelled / "a.txt"),
        str(spelled / "a.txt"),
        str(extra / "b.txt"),
    ]


async def test_a_name_that_is_no_text_is_read_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("\udcff.txt")
    (tmp_path / "\udcff.txt").write_text("odd")
    editor = FakeEditor()
    bench = editing(tmp_path, editor)
    assert (await bench.run("read_file", {"path": "link"})).text == "odd"
    assert (await bench.run("write_file", {"path": "link", "content": "mine"})).ok
    assert ((tmp_path / "\udcff.txt").read_text(), editor.asked) == ("mine", [])


async def test_rules_and_protected_paths_hold_for_the_editor(tmp_path: Path) -> None:
    async def meddle(input: Any, context: ToolContext) -> str:
        return str(await context.environment.write_text(input["to"], "x"))

    async def look(input: Any, context: ToolContext) -> str:
        return await context.environment.read_text(input["to"])

    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    rule = Rule(decision=Outcome.DENY, path="secret/**")
    editor = FakeEditor({str(tmp_path / "secret/key"): "key"})
    bench = editing(
        tmp_path,
        editor,
        *ALL,
        make_tool("meddle", SideEffects.WRITE, schema, meddle),
        make_tool("look", SideEffects.READ, schema, look),
        policy=Policy(rules=(rule,)),
    )
    (tmp_path / "secret").mkdir()
    calls: list[tuple[str, dict[str, str]]] = [
        ("write_file", {"path": ".git/hooks/pre-commit", "content": "x"}),
        ("read_file", {"path": "secret/key"}),
        ("meddle", {"to": ".git/hooks/pre-commit"}),
        ("meddle", {"to": "secret/new"}),
        ("look", {"to": "secret/key"}),
    ]
    reasons = [(await bench.run(tool, given)).error.reason for tool, given in calls]
    assert reasons == [
        "protected_path",
        "policy_deny",
        "protected_path",
        "policy_deny",
        "policy_deny",
    ]
    assert editor.asked == []


async def test_a_tool_that_declares_no_effects_cannot_write_in_the_editor(tmp_path: Path) -> None:
    async def write(input: Any, context: ToolContext) -> str:
        return str(await context.environment.write_text("a.txt", "x"))

    async def edit(input: Any, context: ToolContext) -> str:
        return str(await context.environment.edit_text("a.txt", str.upper))

    editor = FakeEditor({str(tmp_path / "a.txt"): "a"})
    tools = [make_tool("writes", SideEffects.READ, run=write), make_tool("edits", SideEffects.NONE, run=edit)]
    bench = editing(tmp_path, editor, *tools)
    reasons = [(await bench.run(name)).error.reason for name in ("writes", "edits")]
    assert (reasons, editor.asked) == (["effect_undeclared"] * 2, [])


# --- previews and diffs ---------------------------------------------------------------------------


async def test_a_question_shows_the_change_as_the_editor_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on disk\n")
    path = str(tmp_path / "a.txt")
    human = FakeHuman(False, False)
    kept = []

    async def confirm(question: Confirmation) -> Any:
        store = await gate._wired.log.store()
        kept.append(read_question(await store.get_confirmation(question.id)))
        return await human(question)

    async with Gate(tmp_path, home=tmp_path / "home", mode="ask", confirm=confirm) as gate:
        gate._wired.dispatcher.environments.offer(gate.session.id, Offered(files=FakeEditor({path: "typed\n"})))
        await gate.call("write_file", {"path": "a.txt", "content": "new\n"})
        await gate.call("patch_file", {"path": "a.txt", "old": "typed", "new": "done"})
    assert [each.diffs for each in human.questions] == [
        (FileDiff(path=path, old="typed\n", new="new\n"),),
        (FileDiff(path=path, old="typed\n", new="done\n"),),
    ]
    assert [(each.preview or "").split("\n")[3:] for each in human.questions] == [
        ["-typed", "+new"],
        ["-typed", "+done"],
    ]
    assert kept == human.questions


def test_a_question_that_was_stored_without_diffs_can_be_read() -> None:
    asked = {
        "id": "c",
        "event_id": "e",
        "call_id": "t",
        "tool_use_id": "t",
        "session_id": "s",
        "turn_id": None,
        "tool": "write_file",
        "side_effects": "write",
        "destructive": False,
        "arguments": {},
        "arguments_sha256": "",
        "workspace": "/",
        "why": "",
        "input_summary": "",
        "expires_at": 1.0,
    }
    assert msgspec.convert(asked, Confirmation).diffs == ()


async def test_an_editor_that_never_answers_keeps_nobody_from_stopping_a_question(
    tmp_path: Path,
) -> None:
    editor = FakeEditor({str(tmp_path / "a.txt"): "a"})
    editor.hold = asyncio.Event()
    async with Gate(tmp_path, home=tmp_path / "home", mode="ask", confirm=FakeHuman()) as gate:
        gate._wired.dispatcher.environments.offer(gate.session.id, Offered(files=editor))
        call = asyncio.ensure_future(gate.call("write_file", {"path": "a.txt", "content": "b"}))
        async with asyncio.timeout(60):
            while not editor.asked:
                await asyncio.sleep(0)
            await gate._wired.dispatcher.cancel_session_tools(gate.session.id)
            assert (await call).error.error_class == "cancelled"


async def test_diffs_are_kept_with_the_message_and_said_nowhere_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *ALL, mode=Mode.WRITE)
    (tmp_path / "a.txt").write_text("before-the-change\n")
    result = await bench.run("write_file", {"path": "a.txt", "content": "x\n"})
    diffs = (FileDiff(path=str(tmp_path / "a.txt"), old="before-the-change\n", new="x\n"),)
    block = result_block(result, "tu_1")
    assert (result.diffs, block.diffs) == (diffs, diffs)
    said = [
        Message(role="assistant", content=[ToolUseBlock("tu_1", "write_file", {})]),
        Message(role="user", content=[block]),
    ]
    assert msgspec.json.decode(msgspec.json.encode(said), type=list[Message]) == said
    shown = [*to_native(said, 1_000), *to_text(said, 1_000)]
    everything = msgspec.json.encode([shown, bench.recorder.events, bench.recorder.records])
    assert b"before-the-change" not in everything
    plain = result_block(await bench.run("read_file", {"path": "a.txt"}), "tu_2")
    assert b"diffs" not in msgspec.json.encode(plain)


async def test_diffs_of_a_tool_that_are_none_are_no_output(tmp_path: Path) -> None:
    odd: Any = [{"path": "a"}]
    tool = make_tool(run=lambda input, context: ToolOutput(content=[], diffs=odd))
    assert (await Bench(tmp_path, tool).run("probe")).error.reason == "bad_output"


# --- terminals ------------------------------------------------------------------------------------


def in_terminal(workspace: Path, terminals: FakeTerminals, mode: Mode = Mode.WRITE, **more: Any) -> Bench:
    bench = Bench(workspace, Shell, mode=mode, **more)
    bench.dispatcher.environments.offer(bench.session.id, Offered(terminals=terminals))
    return bench


async def test_a_command_runs_in_the_terminal_of_the_editor(tmp_path: Path) -> None:
    terminals = FakeTerminals(b"hello\n", (tmp_path / "made").touch)
    bench = in_terminal(tmp_path, terminals)
    result = await bench.run("shell", {"command": "make", "network": True})
    assert (result.text, result.files_modified) == ("hello\n", ["made"])
    (command,) = terminals.commands
    assert (command.argv[-1], command.cwd, command.call) == ("make", str(tmp_path), result.call_id)
    shown = "the editor's terminal, outside the sandbox"
    assert bench.recorder.one("tool.called").payload["sandbox"] == shown
    assert bench.recorder.records[0].sandbox == shown


async def test_the_question_says_that_nothing_is_around_the_command(tmp_path: Path) -> None:
    terminals, human = FakeTerminals(), FakeHuman(False)
    bench = in_terminal(tmp_path, terminals, Mode.ASK, human=human)
    assert not (await bench.run("shell", {"command": "make", "network": True})).ok
    (question,) = human.questions
    assert question.sandbox == "the editor's terminal, outside the sandbox"
    assert (question.why, terminals.commands) == ("Calls with effect execute need approval by default.", [])


async def test_what_the_settings_say_of_the_network_is_for_commands_in_the_sandbox(
    tmp_path: Path,
) -> None:
    terminals = FakeTerminals()
    auto = Setting(PolicyMode.AUTO)
    bench = in_terminal(tmp_path, terminals, Mode.ASK, policy=Policy(per_tool={"shell": auto}))
    assert (await bench.run("shell", {"command": "make", "network": True})).ok
    assert len(terminals.commands) == 1


async def test_a_yes_to_commands_in_the_sandbox_is_none_to_those_outside(tmp_path: Path) -> None:
    always, once = Answer(decision=Outcome.ALLOW, scope=Scope.SESSION), True
    human, terminals = FakeHuman(always, once), FakeTerminals()
    bench = Bench(tmp_path, Shell, mode=Mode.ASK, human=human)
    for _ in range(2):
        assert (await bench.run("shell", {"command": "true"})).ok
    bench.dispatcher.environments.offer(bench.session.id, Offered(terminals=terminals))
    assert (await bench.run("shell", {"command": "true"})).ok
    assert (len(human.questions), len(terminals.commands)) == (2, 1)


@pytest.mark.spec("S2-12")
async def test_mode_read_never_uses_the_terminal_of_the_editor(tmp_path: Path) -> None:
    terminals = FakeTerminals()
    sandbox = Sandbox(Surroundings(home="/nowhere", callgate_home="/nowhere/.callgate"))
    session = Session(workspace=str(tmp_path))
    chosen = {}
    for mode in Mode:
        session.mode = mode
        chosen[mode] = sandbox.enclosure(session, {}, terminals=terminals)
    assert [mode for mode, each in chosen.items() if each == EDITORS_TERMINAL] == [Mode.ASK, Mode.WRITE]
    assert chosen[Mode.READ].profile is Profile.READ
    session.mode = Mode.WRITE
    looks = sandbox.enclosure(session, {}, has_effects=False, terminals=terminals)
    assert looks.profile is Profile.READ
    bench = in_terminal(tmp_path, terminals, Mode.READ)
    assert not (await bench.run("shell", {"command": "true"})).ok
    assert terminals.commands == []


class Narrowing(Unwalled):
    """Starts commands bare, and remembers what was to be around them."""

    enclosures: list[Enclosure]

    def launcher(self, enclosure: Enclosure, session: Session) -> Any:
        self.enclosures.append(enclosure)
        return super().launcher(enclosure, session)


@pytest.mark.spec("S2-12")
async def test_a_mode_that_becomes_read_before_the_start_keeps_the_command_here(
    tmp_path: Path,
) -> None:
    sandbox = Narrowing(Surroundings(home="/nowhere", callgate_home="/nowhere/.callgate"), ())
    sandbox.enclosures = []
    terminals = FakeTerminals()
    session = Session(workspace=str(tmp_path), mode=Mode.WRITE)
    launcher = sandbox.delegating(session, lambda session: terminals)
    session.mode = Mode.READ
    command = Command(argv=("true",), cwd=str(tmp_path), env={})
    async with await launcher.start(command, lambda stream, data: None) as running:
        assert (await running.wait()).code == 0
    assert (sandbox.enclosures, terminals.commands) == ([Enclosure(Profile.READ)], [])


async def test_a_terminal_that_is_gone_when_the_command_starts_is_no_reason_to_run_it_here(
    tmp_path: Path,
) -> None:
    bench = in_terminal(tmp_path, FakeTerminals(), Mode.ASK)

    async def leave(question: Confirmation) -> bool:
        bench.dispatcher.environments.withdraw(bench.session.id)
        return True

    with bench.confirmations.attach(leave):
        result = await bench.run("shell", {"command": f"touch {tmp_path / 'made'}"})
    assert (result.error.reason, (tmp_path / "made").exists()) == ("terminal_gone", False)
    with pytest.raises(ValueError, match="client"):
        Sandbox(Surroundings(home="/", callgate_home="/")).launcher(EDITORS_TERMINAL, bench.session)


@pytest.mark.spec("S2-13")
async def test_without_a_terminal_the_command_runs_here(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Shell, mode=Mode.WRITE)
    bench.dispatcher.environments.offer(bench.session.id, Offered(files=FakeEditor()))
    delegated = in_terminal(tmp_path, FakeTerminals(b"hello\n"))
    here = await bench.run("shell", {"command": "echo hello"})
    there = await delegated.run("shell", {"command": "echo hello"})
    assert (here.text, here.value) == (there.text, there.value)


async def test_only_commands_of_the_session_itself_go_to_its_client(tmp_path: Path) -> None:
    started: list[str] = []

    async def run(input: Any, context: ToolContext) -> str:
        command = Command(argv=("true",), cwd=str(tmp_path), env={})
        async with await context.launcher.start(command, lambda stream, data: None) as running:
            started.append(str((await running.wait()).code))
        return "ran"

    terminals = FakeTerminals()
    bench = Bench(
        tmp_path,
        make_tool("mine", SideEffects.EXECUTE, run=run, sandboxed=True, source="host"),
        mode=Mode.WRITE,
    )
    bench.dispatcher.environments.offer(bench.session.id, Offered(terminals=terminals))
    assert (await bench.run("mine")).ok
    assert (started, terminals.commands) == (["0"], [])


@pytest.mark.spec("S2-17")
@pytest.mark.parametrize("delegates", [True, False])
async def test_a_setting_keeps_commands_out_of_the_editor(tmp_path: Path, delegates: bool) -> None:
    home, workspace = tmp_path / "home", tmp_path / "ws"
    for each in (home, workspace):
        each.mkdir()
    (home / "settings.toml").write_text(f'sandbox = "off"\n[acp]\ndelegate_terminal = {str(delegates).lower()}\n')
    terminals, editor = FakeTerminals(), FakeEditor({str(workspace / "a"): "typed"})
    async with Gate(workspace, home=home, mode="write") as gate:
        gate._wired.dispatcher.environments.offer(gate.session.id, Offered(editor, terminals))
        assert (await gate.call("shell", {"command": "true"})).ok
        assert (await gate.call("read_file", {"path": "a"})).text == "typed"
    assert len(terminals.commands) == delegates


# --- cost -----------------------------------------------------------------------------------------


async def test_nothing_is_made_for_a_call_that_does_not_ask_for_it(tmp_path: Path) -> None:
    def ask(input: Any, context: ToolContext) -> str:
        before = (context._environment, context._files)
        same = context.environment is context.environment
        return str((before, same, context.environment.files is context.workspace_files))

    bench = editing(tmp_path, FakeEditor(), make_tool(run=ask))
    assert (await bench.run("probe")).text == str(((None, None), True, True))
