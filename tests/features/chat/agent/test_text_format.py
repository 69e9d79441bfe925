"""The format's own examples, from the model's text to what the user sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from callgate import tool
from callgate.core.events import CALLED
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.teach import document_schema, teach
from callgate.sessions.shows import Said, Spoken
from tests.features.chat.agent.talks import talk, text


@tool(side_effects="read")
async def gmail_list(maxResults: int = 10) -> list[dict[str, Any]]:  # noqa: N803  # the catalogue's name
    """List emails."""
    return [{"id": f"m{n}", "subject": f"Mail {n}"} for n in range(maxResults)]


def document(*calls: tuple[str, str, str, dict[str, Any]]) -> str:
    return json.dumps(
        {
            "toolCalls": [
                {"type": type, "id": id, "operation": operation, "parameters": parameters}
                for type, id, operation, parameters in calls
            ]
        },
        indent=2,
        ensure_ascii=False,
    )


SAY = ("say", "v1", "speak", {"utterance": "Let me check..."})
CHECK = ("send_chat", "c1", "respond", {"content": "Let me check..."})
LIST = ("gmail_list", "g1", "list", {"maxResults": 10})
HERE = ("send_chat", "c2", "respond", {"content": "Here are your emails..."})
END = ("end_turn", "e1", "end_turn", {})
EXAMPLES = ((SAY, CHECK, LIST, HERE, END), (HERE, END))


@pytest.mark.spec("T-17")
def test_what_we_teach_passes_what_we_read() -> None:
    definition = gmail_list().definition
    examples = documents(teach([definition]))
    parsed = [parse(json.dumps(example), strict=True) for example in examples]
    assert [[found.type for found in each.calls] for each in parsed] == [
        ["send_chat", "gmail_list"],
        ["send_chat", "end_turn"],
    ]
    assert parsed[0].calls[1].parameters == {"maxResults": 10}
    assert [(each.errors, each.diagnostics) for each in parsed] == [((), ())] * 2
    schema = jsonschema_rs.Draft7Validator(document_schema([definition]))
    for each in (*examples, *(json.loads(document(*some)) for some in EXAMPLES)):
        schema.validate(each)


def documents(lesson: str) -> list[Any]:
    starts = [found.start() for found in re.finditer(r'\{"toolCalls"', lesson)]
    return [json.JSONDecoder().raw_decode(lesson[start:])[0] for start in starts]


def test_a_small_model_either_calls_tools_or_speaks_and_ends() -> None:
    definition = gmail_list().definition
    calling, ending = documents(teach([definition], short=True))
    schema = jsonschema_rs.Draft202012Validator(document_schema([definition], short=True))
    schema.validate(calling)
    schema.validate(ending)
    both = {"toolCalls": calling["toolCalls"] + ending["toolCalls"]}
    for wrong in (both, {"toolCalls": []}, {"toolCalls": ending["toolCalls"][:1]}):
        assert not schema.is_valid(wrong)
    assert [found.type for found in parse(json.dumps(both)).calls] == ["gmail_list", "send_chat", "end_turn"]
    jsonschema_rs.Draft202012Validator(document_schema([], short=True)).validate(ending)


def test_speech_is_taught_with_its_voices_and_only_where_it_is_heard() -> None:
    lesson = teach([])
    assert "say" in lesson and "voiceId" in lesson and "Kore" in lesson and "style" in lesson
    assert "utterance" not in teach([], speech=False)
    say = ("say", "v1", "speak", {"utterance": "Hi", "voiceId": "Kore", "style": "calm"})
    spoken = json.loads(document(say))
    jsonschema_rs.Draft7Validator(document_schema([])).validate(spoken)
    assert not jsonschema_rs.Draft7Validator(document_schema([], speech=False)).is_valid(spoken)


@pytest.mark.spec("S3-18", "T-17")
@pytest.mark.parametrize("fenced", [False, True])
async def test_the_first_example_runs_in_one_reply(tmp_path: Path, fenced: bool) -> None:
    reply = document(SAY, CHECK, LIST, HERE, END)
    said = f"```json\n{reply}\n```" if fenced else reply
    async with talk(tmp_path, text(said), tools=[gmail_list]) as bench:
        end = await bench.turn("Any mail?")
    assert (end.stop, end.cycles, end.calls) == ("end_turn", 1, 1)
    assert bench.said == "Let me check...\nHere are your emails...\n"
    assert Spoken(utterance="Let me check...") in bench.shows


@pytest.mark.spec("S3-18", "S3-36")
async def test_the_second_example_runs_in_two_cycles_of_one_turn(tmp_path: Path) -> None:
    searching = ("send_chat", "c1", "respond", {"content": "🔍 Searching now..."})
    first = document(SAY, searching, LIST)
    recent = {"content": "Here are your recent emails:\n\n1. ..."}
    second = document(("send_chat", "c2", "respond", recent), END)
    async with talk(tmp_path, text(first), text(second), tools=[gmail_list]) as bench:
        end = await bench.turn("Any mail?")
    assert (end.stop, end.cycles, end.calls) == ("end_turn", 2, 1)
    assert bench.said == "🔍 Searching now...\nHere are your recent emails:\n\n1. ...\n"
    assert [r["toolId"] for r in bench.results()] == ["v1", "c1", "g1"]
    assert len(bench.results()[2]["result"]) == 10
    (called,) = bench.of(CALLED)
    assert called.payload["tool_name"] == "gmail_list"
    first_mail = next(i for i, show in enumerate(bench.shows) if isinstance(show, Said))
    assert isinstance(bench.shows[first_mail], Said)


def test_the_same_tools_are_taught_without_writing_them_again_and_others_anew() -> None:
    definition = gmail_list.definition
    lesson = teach([definition])
    assert teach([definition]) is lesson
    other = msgspec.structs.replace(definition, description="Something else.")
    assert teach([other]) != lesson and "Something else." in teach([other])
    assert teach([definition], short=True) != lesson and teach([definition], speech=False) != lesson
