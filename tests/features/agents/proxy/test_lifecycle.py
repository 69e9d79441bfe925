"""How agent, proxy and editor come and go, and what passes between them untouched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.features.agents.proxy.conftest import AGENT, Open, asked, permission, play
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Fault


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def gone(pids: set[int]) -> None:
    async with asyncio.timeout(30):
        while any(_is_alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_the_agent_is_told_what_we_and_the_editor_can_do(opened: Open) -> None:
    given = {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "elicitation": {"form": {}},
        "auth": {"terminal": True},
        "_meta": {"x": 1},
    }
    async with opened(capabilities=given) as editor:
        told = editor.greeting["agentCapabilities"]["_meta"]["told"]
    assert told == {
        "fs": {"readTextFile": True, "writeTextFile": True},
        "terminal": True,
        "elicitation": {"form": {}},
        "auth": {"terminal": False},
        "_meta": {"x": 1},
    }
    assert editor.greeting["agentInfo"]["name"] == "scripted"


async def test_updates_stay_in_their_order_around_answers(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        await talk.seen("available_commands_update")
        assert talk.kinds()[:2] == ["answer session/new", "available_commands_update"]
        await play(talk, *({"say": n} for n in range(200)))
        said = [json.loads(line) for line in talk.text().splitlines()]
        assert said == list(range(200))
        assert talk.kinds()[-1] == "answer session/prompt"


async def test_extensions_of_the_editor_and_questions_to_the_user_pass(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        params = {"deep": [1, {"a": None}], "_meta": {"trace": "x"}}
        editor.loose.add(7000)
        _, answer = editor.start("_extension/echo", params, 7000)
        assert await answer == params
        talk.answers["elicitation/create"] = lambda given: {"action": "accept", "content": {"a": given["message"]}}
        ask = {"ask": "elicitation/create", "params": {"mode": "form", "message": "hm", "requestedSchema": {}}}
        [elicited] = await play(talk, ask)
        assert elicited["result"] == {"action": "accept", "content": {"a": "hm"}}
        assert await editor.refused("session/unheard_of", {"sessionId": talk.id}) == -32601
        assert await talk.ask("session/set_mode", modeId="x") == {}
        editor.problems.clear()  # the test's editor knows no extensions


async def test_a_loaded_session_is_replayed_and_worked_in(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        await editor.ask("session/load", {"sessionId": "old", "cwd": str(workspace), "mcpServers": []})
        talk = editor.talks["old"]
        assert talk.text("user_message_chunk") == "before"
        assert await play(talk, {"say": 1}) == [1]


@pytest.mark.parametrize("end", [{"exit": 3}, {"kill": 1}])
async def test_an_agent_that_dies_is_reported_and_started_anew(
    opened: Open, workspace: Path, end: dict[str, int]
) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        with pytest.raises(Fault, match="the agent has ended"):
            await talk.prompt(json.dumps([{"errors": "last words\n"}, end]))
        with pytest.raises(Fault):
            await talk.prompt("[]")
        assert await play(await editor.new(workspace), {"say": "again"}) == ["again"]


async def test_an_agent_that_cannot_be_started_is_an_error_with_a_sentence(opened: Open) -> None:
    with pytest.raises(Fault, match="no-such-agent"):
        async with opened(command=("no-such-agent", "--acp")):
            pass


async def test_a_program_that_the_sandbox_hides_is_an_error_with_its_path_and_advice(opened: Open, home: Path) -> None:
    program = home / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(Fault, match=f"hides {program}. Give the agent access with --readable"):
        async with opened(command=(str(program),)):
            pass


async def test_a_hidden_program_that_the_agent_starts_is_named(opened: Open, tmp_path: Path) -> None:
    program = tmp_path / "beside" / "agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(Fault, match=f"hides {program}. Give the agent access with --readable"):
        async with opened(command=("/bin/sh", "-c", f"exec {program}")):
            pass


async def test_an_agent_that_ends_at_once_is_an_error_with_its_words(opened: Open) -> None:
    with pytest.raises(Fault, match="bad key"):
        async with opened(command=("/bin/sh", "-c", "echo bad key >&2; exit 7")):
            pass


async def test_malformed_and_huge_frames_of_the_agent_change_nothing(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        said = await play(
            talk,
            {"raw": "Welcome to the agent!\n"},
            {"raw": "{\n[]\n7\nnull\n\n\x00\n"},
            {"raw": '{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}\n'},
            {"raw": "x" * 1024, "times": 10 * 1024},
            {"raw": "\n"},
            {"raw": '{"jsonrpc":"2.0","id":99999,"result":{}}\n'},
            {"say": "still here"},
        )
    assert said == ["still here"]


async def test_malformed_frames_of_the_editor_are_answered(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        for line in (b"{", b"[]", b"\xff\xfe"):
            editor.send_line(line)
        assert await play(talk, {"say": "x"}) == ["x"]
        errors = [each for each in editor.received if "error" in each]
        assert [each["id"] for each in errors] == [None] * 3


async def test_nothing_stays_when_the_editor_goes(opened: Open, workspace: Path) -> None:
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        steps = [{"ask": "terminal/create", "params": {"command": "sleep 600"}}, {"say": "on"}, {"run": "sleep 600"}]
        talk.start(json.dumps(steps)).add_done_callback(lambda done: done.exception())
        await editor.until(lambda: '"on"' in talk.text())
        processes = descendants(editor.process.pid)
        assert len(processes) > 3
        assert await editor.stop() == 0
        await gone(processes)


async def test_nothing_stays_when_the_proxy_is_killed(opened: Open, workspace: Path) -> None:
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        steps = [{"ask": "terminal/create", "params": {"command": "sleep 600"}}, {"say": "on"}, {"hang": 1}]
        talk.start(json.dumps(steps)).add_done_callback(lambda done: done.exception())
        await editor.until(lambda: '"on"' in talk.text())
        processes = descendants(editor.process.pid)
        os.kill(editor.process.pid, signal.SIGKILL)
        await gone(processes)
        await editor.process.wait()


async def test_nothing_that_waits_for_an_answer_runs_when_the_editor_goes(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        never: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        talk.answers["session/request_permission"] = lambda params: never
        write = {"ask": "fs/write_text_file", "params": {"path": str(workspace / "a"), "content": "x"}}
        talk.start(json.dumps([write])).add_done_callback(lambda done: done.exception())
        await talk.seen("session/request_permission")
        assert await editor.stop() == 0
    assert not (workspace / "a").exists()


async def test_sessions_in_two_directories_have_two_sandboxes(opened: Open, workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with opened() as editor:
        here, there = await editor.new(workspace), await editor.new(other)
        first, second = await asyncio.gather(
            play(here, {"run": f"echo x > {workspace}/a; echo x > {other}/a"}),
            play(there, {"run": f"echo x > {workspace}/b; echo x > {other}/b"}),
        )
        assert here.id != there.id
    assert first[0]["err"] and second[0]["err"]
    assert sorted(each.name for each in (*workspace.iterdir(), *other.iterdir())) == ["a", "b"]


async def test_one_sessions_question_holds_up_no_other(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        asking, working = await editor.new(workspace), await editor.new(workspace)
        never: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asking.answers["session/request_permission"] = lambda params: never
        waiting = asking.start(json.dumps([permission("a", kind="execute", rawInput={"command": "ls"})]))
        await asking.seen("session/request_permission")
        assert await play(working, {"say": 1}) == [1]
        asking.cancel()
        await asyncio.wait_for(waiting, 30)


async def test_a_cancelled_request_cancels_the_prompt(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        steps = json.dumps([{"until_cancelled": 1}])
        prompt = {"sessionId": talk.id, "prompt": [{"type": "text", "text": steps}]}
        talk.wire.append(("prompt", {}))
        id, answer = editor.start("session/prompt", prompt)
        await editor.until(lambda: '"waiting"' in talk.text())
        editor.notify("$/cancel_request", {"requestId": id})
        with pytest.raises(Fault) as refused:
            await asyncio.wait_for(answer, 30)
        assert refused.value.code == -32800
        assert await play(talk, {"say": "next"}) == ["next"]


async def test_a_closed_session_is_let_go_of(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        await talk.close()
        assert await talk.refused("session/prompt", prompt=[]) == -32602


async def test_words_that_are_wrong_are_refused_before_anything_starts(home: Path) -> None:
    for words, expected in (((), b"the agent's command is missing"), (("--network", "a b", "--", "x"), b"--network")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "callgate", "acp-proxy", *words,
            stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={"CALLGATE_HOME": str(home)},
        )  # fmt: skip
        _, errors = await process.communicate(b"")
        assert process.returncode == 2 and expected in errors, errors


async def test_a_greeting_comes_first_and_once(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        again = {"protocolVersion": 1, "clientCapabilities": {}}
        assert await editor.refused("initialize", again) == -32600
        assert await editor.refused("proxy/initialize", again) == -32601
        assert asked(await editor.new(workspace)) == []
        assert AGENT.exists()


async def test_an_agent_that_ignores_a_cancel_is_ended(opened: Open, workspace: Path) -> None:
    settings = "[acp.proxy]\ncancel_patience_s = 0.5\n"
    async with opened(settings=settings, env={"SCRIPTED_DEAF": "1"}) as editor:
        talk = await editor.new(workspace)
        prompt = talk.start(json.dumps([{"until_cancelled": 1}]))
        await editor.until(lambda: '"waiting"' in talk.text())
        talk.cancel()
        with pytest.raises(Fault, match="did not end its turn"):
            await asyncio.wait_for(prompt, 30)


async def test_an_agent_that_never_greets_is_ended(opened: Open) -> None:
    settings = "[acp.proxy]\nstart_timeout_s = 1\n"
    with pytest.raises(Fault, match="did not answer initialize"):
        async with opened(settings=settings, env={"SCRIPTED_HANG": "initialize"}):
            pass


async def test_an_agent_that_waits_for_many_answers_at_once_gets_them_all(opened: Open, workspace: Path) -> None:
    """As Gemini CLI does: nothing is run before all of a batch are answered."""
    questions = [permission(f"q{n}", kind="execute", rawInput={"command": f"echo {n}"}) for n in range(12)]
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        said = await play(talk, {"all": questions})
    assert len(said) == 12 and all("result" in each for each in said)


async def test_commands_that_run_on_hold_up_no_file(opened: Open, workspace: Path) -> None:
    (workspace / "a").write_text("x")
    start = {"ask": "terminal/create", "params": {"command": "sleep 600"}}
    read = {"ask": "fs/read_text_file", "params": {"path": str(workspace / "a")}}
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        *_, last = await play(talk, *[start] * 8, read)
    assert last["result"] == {"content": "x"}


async def test_a_known_agent_has_its_own_sign_in_and_no_other(
    opened: Open, home: Path, workspace: Path, tmp_path: Path
) -> None:
    person, program = home.parent, tmp_path / "bin" / "claude-agent-acp.py"
    for name in (".claude/.credentials.json", ".codex/auth.json", ".ssh/id_ed25519"):
        (person / name).parent.mkdir()
        (person / name).write_text('{"a": "secret"}')
    program.parent.mkdir()
    program.write_text(AGENT.read_text())
    newer = '{"claudeAiOauth": {"accessToken": "new"}}'
    replace = f"echo '{newer}' > ~/.claude/next && mv ~/.claude/next ~/.claude/.credentials.json"
    async with opened(command=(sys.executable, str(program))) as editor:
        talk = await editor.new(workspace)
        own, renewed, other, ssh = await play(
            talk,
            {"run": "cat ~/.claude/.credentials.json"},
            {"run": replace},
            {"run": "cat ~/.codex/auth.json"},
            {"run": "cat ~/.ssh/id_ed25519"},
        )
    assert own["out"] == '{"a": "secret"}'
    assert renewed["code"] == 0, renewed
    saved = json.loads((person / ".claude/.credentials.json").read_text())
    assert saved == {"a": "secret", "claudeAiOauth": {"accessToken": "new"}}
    assert other["out"] == ssh["out"] == ""


async def test_a_session_is_loaded_once(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        params = {"sessionId": "old", "cwd": str(workspace), "mcpServers": []}
        await editor.ask("session/load", params)
        talk = editor.talks["old"]
        assert await editor.refused("session/load", params) == -32602
        editor.talks["old"] = talk
        assert await play(talk, {"say": 1}) == [1]


async def test_an_editor_in_the_home_gives_the_agent_an_empty_directory(home: Path, workspace: Path) -> None:
    (home / "settings.toml").write_text("")
    (home.parent / "diary").write_text("x")
    editor = await Editor.spawned(
        home, "--network", "none", "--", sys.executable, str(AGENT), subcommand="acp-proxy", cwd=home.parent
    )
    try:
        await editor.greet({})
        talk = await editor.new(workspace)
        [seen] = await play(talk, {"run": f"pwd; cat {home.parent}/diary"})
    finally:
        await editor.stop()
    assert seen["out"] == f"{workspace}\n"


async def test_a_workspace_may_be_reached_by_a_link(opened: Open, workspace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(workspace)
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(link)
        written, ran = await play(
            talk,
            {"ask": "fs/write_text_file", "params": {"path": str(link / "a"), "content": "x"}},
            {"run": "cat a"},
        )
    assert (written["result"], ran["out"]) == ({}, "x")


@pytest.mark.parametrize(("mode", "writes"), [("read", False), ("ask", True), ("guarded", True), ("write", True)])
async def test_the_agent_writes_in_its_workspace_where_the_mode_lets_it(
    opened: Open, workspace: Path, mode: str, writes: bool
) -> None:
    async with opened("--mode", mode) as editor:
        await play(await editor.new(workspace), {"run": "echo new > made"})
    assert (workspace / "made").exists() is writes


async def test_mode_read_without_a_sandbox_is_refused(opened: Open) -> None:
    with pytest.raises(Fault, match="needs a sandbox"):
        async with opened("--mode", "read", settings='sandbox = "off"\n'):
            pass


async def test_without_a_sandbox_the_question_says_so(opened: Open, workspace: Path) -> None:
    async with opened(settings='sandbox = "off"\n') as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        await play(talk, permission("a", kind="execute", rawInput={"command": "ls"}))
        assert "outside the sandbox" in json.dumps(asked(talk))
