"""Skills as slash commands, and calls without a model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.models import Models, Says, texts
from tests.features.editor.acp.talks import Fault, Talk

pytestmark = pytest.mark.asyncio(loop_scope="session")


def skill(home: Path, name: str, body: str = "Do it.", description: str = "Does it.") -> Path:
    made = home / "skills" / name
    made.mkdir(parents=True)
    (made / "SKILL.md").write_text(f"---\ndescription: {description}\n---\n{body}\n")
    return made


def offered(talk: Talk) -> list[str]:
    return [each["name"] for each in talk.updates("available_commands_update")[-1]["availableCommands"]]


@pytest.mark.spec("S2-64", "S2-65", "S2-71")
async def test_skills_are_offered_with_each_session_and_each_prompt(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    home = new_home()
    skill(home, "review", description="Reviews the changes.")
    skill(home, ".hidden")
    (home / "skills/empty").mkdir()
    (home / "skills/broken").mkdir()
    (home / "skills/broken/SKILL.md").write_text("no front matter")
    (home / "skills/bare").mkdir()
    (home / "skills/bare/SKILL.md").write_text("---\nname: bare\n---\nno description\n")
    async with Editor.opened(home) as editor:
        talk = await editor.new(workspace)
        await talk.seen("available_commands_update")
        commands = talk.updates("available_commands_update")[0]["availableCommands"]
        found = [each for each in commands if each["name"] == "review"]
        assert [(each["description"], bool(each["input"]["hint"])) for each in found] == [
            ("Reviews the changes.", True)
        ]
        assert not {".hidden", "hidden", "empty", "broken", "bare"} & set(offered(talk))
        assert all(each["input"]["hint"] for each in commands)
        skill(home, "added")
        play = models.play(Says("hi"))
        before = len(talk.wire)
        await talk.prompt(f"hello {play}")
        assert "added" in offered(talk)
        kinds = [kind for kind, _ in talk.wire[before + 1 :]]
        assert kinds.index("available_commands_update") < kinds.index("agent_message_chunk")
        for open_again in (editor.load, editor.resume):
            await talk.close()
            talk = await open_again(talk.id, workspace)
            await talk.seen("available_commands_update")
            assert {"review", "added"} <= set(offered(talk))


@pytest.mark.spec("S2-66", "S2-69")
@pytest.mark.parametrize(
    "text",
    [
        "plain {play}",
        "  two  spaces\n\n{play} and lines\n",
        "/etc/hosts {play}",
        "//x {play}",
        "/ x {play}",
        "/-x {play}",
        "see /review {play}",
        "/usr/bin/env python {play}",
        "\\/review {play}",
        "<a b=\"c\"> & {play} 'q'",
        "/.. {play}",
        "/* {play} */",
        "/é {play}",
        "日本 {play} 🎉",
    ],
)
async def test_what_is_no_command_reaches_the_model_as_it_is(
    rich: Editor, models: Models, workspace: Path, text: str
) -> None:
    play = models.play(Says("ok"))
    said = text.replace("{play}", str(play))
    talk = await rich.new(workspace)
    assert await talk.prompt(said) == "end_turn"
    assert texts(play.requests[0]["messages"][-1]) == said


@pytest.mark.spec("S2-67")
async def test_a_skill_is_told_with_its_variables_filled_in_and_what_was_typed_before_it(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    home = new_home()
    body = "In ${CALLGATE_SKILL_DIR} for ${CALLGATE_SESSION_ID}; ${MEKA_SKILL_DIR} ${MEKA_SESSION_ID} ${OTHER}"
    place = skill(home, "greet", body)
    async with Editor.opened(home) as editor:
        talk = await editor.new(workspace)
        play = models.play(Says("ok"))
        assert await talk.prompt(f"/greet extra ${{CALLGATE_SESSION_ID}} {play}") == "end_turn"
        told = texts(play.requests[0]["messages"][-1])
    extra, _, rest = told.partition("\n\n")
    assert extra == f"extra ${{CALLGATE_SESSION_ID}} {play}"
    header, _, filled = rest.partition("\n")
    assert str(place) in header
    assert filled.strip() == f"In {place} for {talk.id}; {place} {talk.id} ${{OTHER}}"


@pytest.mark.spec("S2-68", "T-11")
@pytest.mark.parametrize("text", ["/nonexistent", "/nonexistent with more", "/a", "/not_there-1 x"])
async def test_a_command_that_nobody_knows_is_an_error(
    rich: Editor, models: Models, workspace: Path, text: str
) -> None:
    talk = await rich.new(workspace)
    with pytest.raises(Fault) as caught:
        await talk.prompt(text)
    assert caught.value.code == -32602
    assert {"agent_message_chunk", "tool_call"} & set(talk.kinds()) == set()
    assert await talk.prompt(f"go on {models.play(Says('ok'))}") == "end_turn"


@pytest.mark.spec("S2-70")
async def test_a_skill_that_can_no_longer_be_read_is_an_internal_error(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    """Its text turns into no text while the description stands as it was offered."""
    home = new_home()
    place = skill(home, "gone")
    async with Editor.opened(home) as editor:
        talk = await editor.new(workspace)
        await talk.seen("available_commands_update")
        assert "gone" in offered(talk)
        file = place / "SKILL.md"
        seen = file.stat()
        text = file.read_bytes()
        file.write_bytes(text.replace(b"Do it.", b"\xff\xfe\xff\xfe\xff\xfe"))
        os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        with pytest.raises(Fault) as caught:
            await talk.prompt("/gone")
        assert caught.value.code == -32603
        assert await talk.prompt(f"go on {models.play(Says('ok'))}") == "end_turn"


async def test_a_call_without_a_model_ends_the_turn_whatever_becomes_of_it(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.buffers[str(workspace / "a.txt")] = "alpha\n"
    good = await talk.tool("read_file", '{"path": "a.txt"}')
    assert (good["status"], good["rawInput"], good["kind"]) == ("completed", {"path": "a.txt"}, "read")
    assert talk.statuses(good["toolCallId"]) == ["pending", "in_progress", "completed"]
    for name, input in (
        ("read_file", '{"path": "nothing.txt"}'),
        ("read_file", '{"paths": "a.txt"}'),
        ("nothing", "{}"),
    ):
        assert (await talk.tool(name, input))["status"] == "failed"


@pytest.mark.parametrize(
    "text", ["/tool", "/tool read_file {", "/tool read_file [1]", '/tool read_file {"path": "a"} x', "/tool {}"]
)
async def test_a_call_that_cannot_be_read_runs_nothing(rich: Editor, workspace: Path, text: str) -> None:
    talk = await rich.new(workspace)
    try:
        assert await asyncio.wait_for(talk.prompt(text), 60) == "end_turn"
    except Fault as fault:
        assert fault.code == -32602
    assert [card["status"] for card in talk.cards() if card["status"] != "failed"] == []
    assert talk.asked("fs/read_text_file") == []


async def test_a_skill_of_the_workspace_is_there_only_when_it_is_trusted(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    made = workspace / ".callgate/skills/theirs"
    made.mkdir(parents=True)
    (made / "SKILL.md").write_text("---\ndescription: Theirs.\n---\nTheir words.\n")
    async with Editor.opened(new_home()) as editor:
        talk = await editor.new(workspace)
        await talk.seen("available_commands_update")
        assert "theirs" not in offered(talk)
        with pytest.raises(Fault):
            await talk.prompt("/theirs")
