"""Files that an agent behind the proxy asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.features.agents.proxy.conftest import Open, asked, play, records
from tests.features.editor.acp.editor import environment


async def test_a_file_is_written_after_a_yes_and_recorded(opened: Open, home: Path, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        path = str(workspace / "a.txt")
        [written] = await play(talk, {"ask": "fs/write_text_file", "params": {"path": path, "content": "hello\n"}})
    assert written["result"] == {}
    assert (workspace / "a.txt").read_text() == "hello\n"
    [record] = records(home)
    assert (record["tool"], record["decision"], record["caller"]) == ("write_file", "allow", "agent")
    assert record["answered_by"] == "acp a test editor"


async def test_a_written_file_can_be_undone(opened: Open, home: Path, workspace: Path) -> None:
    (workspace / "a.txt").write_text("old\n")
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        await play(
            talk, {"ask": "fs/write_text_file", "params": {"path": str(workspace / "a.txt"), "content": "new\n"}}
        )
    assert (workspace / "a.txt").read_text() == "new\n"
    subprocess.run(
        [sys.executable, "-m", "callgate", "undo", "--last", "--yes", "--workspace", str(workspace)],
        env=environment(home),
        check=True,
        capture_output=True,
    )
    assert (workspace / "a.txt").read_text() == "old\n"


async def test_a_denied_write_never_happens(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        path = str(workspace / "a.txt")
        [refused] = await play(talk, {"ask": "fs/write_text_file", "params": {"path": path, "content": "x"}})
    assert refused["error"]["data"]["class"] == "user_denied"
    assert not (workspace / "a.txt").exists()


async def test_a_rule_denies_without_a_question(opened: Open, workspace: Path) -> None:
    settings = '[[policy.rules]]\ntool = "write_file"\npath = "secret/**"\ndecision = "deny"\n'
    async with opened(settings=settings) as editor:
        talk = await editor.new(workspace)
        path = str(workspace / "secret" / "a")
        [refused] = await play(talk, {"ask": "fs/write_text_file", "params": {"path": path, "content": "x"}})
        assert asked(talk) == []
    assert refused["error"]["data"]["class"] == "permission_denied"


async def test_paths_outside_and_links_are_refused(opened: Open, home: Path, workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc/passwd")
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        outcomes = await play(
            talk,
            *(
                {"ask": method, "params": {"path": path, "content": "x"}}
                for method in ("fs/read_text_file", "fs/write_text_file")
                for path in ("/etc/passwd", str(workspace / "link"), str(home / "settings.toml"))
            ),
        )
    assert [each["error"]["data"]["class"] for each in outcomes] == ["permission_denied"] * 6


async def test_a_part_of_a_file_is_read_exactly(opened: Open, workspace: Path) -> None:
    text = "".join(f"line {n}\r\n" for n in range(1, 5000))
    (workspace / "long.txt").write_bytes(text.encode())
    path = str(workspace / "long.txt")
    async with opened() as editor:
        talk = await editor.new(workspace)
        whole, part = await play(
            talk,
            {"ask": "fs/read_text_file", "params": {"path": path}},
            {"ask": "fs/read_text_file", "params": {"path": path, "line": 3, "limit": 2}},
        )
    assert whole["result"] == {"content": text}
    assert part["result"] == {"content": "line 3\r\nline 4\r\n"}


async def test_a_missing_file_is_an_error_but_for_agents_that_need_it_not_to_be(opened: Open, workspace: Path) -> None:
    read = {"ask": "fs/read_text_file", "params": {"path": str(workspace / "none")}}
    async with opened() as editor:
        [strict] = await play(await editor.new(workspace), read)
    async with opened(env={"SCRIPTED_NAME": "gemini-cli"}) as editor:
        [lenient] = await play(await editor.new(workspace), read)
    assert strict["error"]["code"] == -32002
    assert lenient["result"] == {"content": ""}


async def test_a_session_of_another_name_reaches_nothing(opened: Open, workspace: Path) -> None:
    (workspace / "a").write_text("x")
    async with opened() as editor:
        talk = await editor.new(workspace)
        [refused] = await play(
            talk, {"ask": "fs/read_text_file", "session": "other", "params": {"path": str(workspace / "a")}}
        )
    assert refused["error"]["code"] == -32602


async def test_wrong_parameters_are_refused_in_words(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        outcomes = await play(
            talk,
            {"ask": "fs/read_text_file", "params": {"path": 7}},
            {"ask": "fs/write_text_file", "params": {"path": "a"}},
            {"ask": "terminal/create", "params": {"command": ["a"]}},
            {"ask": "terminal/output", "params": {"terminalId": "none"}},
            {"ask": "session/request_permission", "params": {"toolCall": {}, "options": "x"}},
        )
    assert {each["error"]["code"] for each in outcomes} == {-32602}
