"""What a question shows: every argument whole, who asks, and whose words a preview is."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Client, Session
from callgate.dispatch.permission.confirmations import Confirmation, arguments_text, preview_heading, requester_text
from tests.support import Bench, FakeHuman, make_tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(), JSON, max_size=4)


async def asked(caller: CallerKind = CallerKind.CLI, client: Client | None = None) -> Confirmation:
    human = FakeHuman(True)
    bench = Bench("/", make_tool("probe", SideEffects.WRITE), human=human)
    session = Session(workspace="/", client=client)
    await bench.run("probe", session=session, caller=caller)
    question: Confirmation = human.questions[0]
    return question


def test_a_plain_text_is_quoted_and_another_one_is_indented_line_by_line() -> None:
    arguments = {"command": "make test", "message": 'say "hi"\nretries = 4', "retries": 3, "a b": True}
    assert arguments_text(arguments).split("\n") == [
        'command = "make test"',
        "message:",
        '    say "hi"',
        "    retries = 4",
        "retries = 3",
        '"a b" = true',
    ]


@given(ARGUMENTS, ARGUMENTS)
def test_different_arguments_have_different_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = list(one.items()) == list(other.items()) and repr(one) == repr(other)
    assert (arguments_text(one) == arguments_text(other)) == same


async def test_a_question_names_the_process_that_asks_where_the_surface_names_none() -> None:
    question = await asked()
    assert question.caller is CallerKind.CLI
    assert question.client is not None
    assert (question.client.process, question.client.directory) == (os.getpid(), os.getcwd())
    text = requester_text(question)
    assert f"process {os.getpid()}" in text
    assert f"in {os.getcwd()}" in text


async def test_what_a_client_calls_itself_is_marked_as_its_own_word() -> None:
    client = Client(process=7, directory="/ws", name='callgate", process 1, in /')
    text = requester_text(await asked(CallerKind.MCP, client))
    assert text.endswith(r', process 7, in /ws, calls itself "callgate\", process 1, in /" (not checked)')


async def test_the_preview_of_a_tool_of_others_is_marked_as_its_own_words() -> None:
    assert preview_heading(await asked()) == "in the tool's own words (not checked)"
