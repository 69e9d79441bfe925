"""A script plays what it says, in either mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callgate.core.models import ModelError, ModelErrorKind, Prompt, TextDelta, Usage
from callgate.features.chat.models.make import make_model
from callgate.features.chat.models.scripted import Script, ScriptedModel, ScriptedReply
from callgate.features.chat.settings import ModelTable
from callgate.protocol.toolcalls.parse import parse
from tests.features.chat.models.asking import HELLO, pieces_of, reply_of

SCRIPT = """
chunk = 4

[[replies]]
expect = "Hello"
thinking = "I need the file."
text = "Let me look."
calls = [{ tool = "read_file", input = { path = "README.md" } }, { tool = "end_turn" }]
usage = { input = 7, output = 3 }

[[replies]]
expect = "seven words"
text = "It is a small project."
chunk = 100
delay_s = 0.001

[[replies]]
text = "Half"
error = "cut"

[[replies]]
calls = [{ tool = "read_file", raw = '{"path": ', id = "c9" }]
stop = "max_tokens"
"""


def model(tmp_path: Path, text: str = SCRIPT, **table: Any) -> Any:
    path = tmp_path / "script.toml"
    path.write_text(text)
    return make_model("demo", ModelTable(kind="scripted", path=str(path), **table))


async def test_replies_are_played_in_order(tmp_path: Path) -> None:
    scripted = model(tmp_path)
    first = await pieces_of(scripted)
    reply = first[-1]
    thought, text, use, end = reply.message.content
    assert (thought, text) == (ThinkingBlock("I need the file."), TextBlock("Let me look."))
    assert use == ToolUseBlock(use.id, "read_file", {"path": "README.md"})
    assert end == ToolUseBlock(end.id, "end_turn", {})
    assert (reply.stop, reply.usage, reply.unreadable) == ("tool_use", Usage(input=7, output=3), {})
    assert [each.text for each in first if isinstance(each, TextDelta)] == ["Let ", "me l", "ook."]
    result = Message(role="user", content=[ToolResultBlock(use.id, [TextBlock("It has seven words")])])
    second = await reply_of(scripted, Prompt(messages=[*HELLO.messages, reply.message, result]))
    assert (second.message.content, second.stop) == ([TextBlock("It is a small project.")], "end_turn")
    with pytest.raises(ModelError) as caught:
        await reply_of(scripted)
    assert caught.value.kind is ModelErrorKind.CUT
    last = await reply_of(scripted)
    assert (last.message.content, list(last.unreadable), last.stop) == (
        [ToolUseBlock("c9", "read_file", {})],
        ["c9"],
        "max_tokens",
    )
    with pytest.raises(ModelError) as caught:
        await reply_of(scripted)
    assert caught.value.kind is ModelErrorKind.REQUEST
    assert len(scripted.prompts) == 5


async def test_in_text_mode_the_calls_are_written(tmp_path: Path) -> None:
    scripted = model(tmp_path, tools="text")
    (thought, said) = (await reply_of(scripted)).message.content
    assert isinstance(said, TextBlock)
    calls = parse(said.text, strict=True, types={"send_chat", "read_file", "end_turn"}).calls
    assert (scripted.native_tools, thought) == (False, ThinkingBlock("I need the file."))
    assert [(each.id, each.type, each.parameters) for each in calls] == [
        ("c1", "send_chat", {"content": "Let me look."}),
        ("c2", "read_file", {"path": "README.md"}),
        ("c3", "end_turn", {}),
    ]


async def test_what_was_not_expected_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        await reply_of(model(tmp_path), Prompt(messages=[Message.text("user", "Good evening")]))
    assert caught.value.kind is ModelErrorKind.REQUEST


async def test_a_script_may_begin_anew() -> None:
    script = Script(repeat=True, replies=[ScriptedReply(text="a"), ScriptedReply(text="b")])
    scripted = ScriptedModel("demo", ModelTable(kind="scripted"), script)
    got = [(await reply_of(scripted)).message.content for _ in range(3)]
    assert got == [[TextBlock("a")], [TextBlock("b")], [TextBlock("a")]]


@pytest.mark.parametrize(
    "text", ["x = [", "[[replies]]\nsays = 1", "[[replies]]\nstop = 'never'", "chunk = 0", "replies = 7"]
)
def test_what_is_no_script_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        model(tmp_path, text)
    assert caught.value.kind is ModelErrorKind.REQUEST


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        make_model("demo", ModelTable(kind="scripted", path=str(tmp_path / "none.toml")))
    with pytest.raises(ModelError):
        make_model("demo", ModelTable(kind="scripted", path=str(tmp_path)))
