"""The proxy reads prompts and outputs, so that the guard knows the conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callgate.features.agents.proxy.messages import output_of, words_of
from tests.features.agents.proxy.conftest import Open, asked, permission, play


async def test_a_question_knows_the_prompt(opened: Open, workspace: Path) -> None:
    fetch = {"kind": "fetch", "rawInput": {"url": "https://1.1.1.1/a"}}
    async with opened("--mode", "guarded") as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        await play(talk, permission("a", **fetch), {"say": "Read https://1.1.1.1/a"})
        shown = json.dumps([each["toolCall"]["content"] for each in asked(talk)])
    assert "reported none of your messages" not in shown


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "evil"}}], ""),
        ("a", ""),
        (None, ""),
    ],
)
def test_attachments_are_not_the_users_words(prompt: object, words: str) -> None:
    assert words_of({"prompt": prompt}) == words


@pytest.mark.parametrize(
    ("state", "output"),
    [
        ({"content": [{"type": "content", "content": {"type": "text", "text": "x"}}]}, "x"),
        ({"content": [{"type": "diff", "path": "/a"}], "rawOutput": "é"}, "é"),
        ({"rawOutput": {"a": "é"}}, '{"a": "é"}'),
        ({"content": []}, None),
    ],
)
def test_the_output_of_a_tool_is_its_text(state: dict[str, object], output: str | None) -> None:
    assert output_of(state) == output
