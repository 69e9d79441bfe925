"""Replies of a model, or of whoever stands in for it, that mean harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.events import DIAGNOSED, FAILED, SPEECH
from callgate.core.models import ModelErrorKind, Piece, Prompt, Retrying, TextDelta
from callgate.features.chat.agent.outputs import MOST_PASSED_ON
from callgate.sessions.shows import Asked, Opened, Restarted, Said, Spoken
from tests.features.chat.agent.talks import END, LOG, call, calls, talk, text


@pytest.mark.parametrize("voice", [["Kore"], {}, 7, True])
@pytest.mark.spec("S3-33")
async def test_a_voice_that_is_no_text_is_spoken_by_the_usual_one(tmp_path: Path, voice: Any) -> None:
    async with talk(tmp_path, calls(call("say", utterance="Hi.", voiceId=voice), END)) as bench:
        assert (await bench.turn()).stop == "end_turn"
    assert [each for each in bench.shows if isinstance(each, Spoken)] == [Spoken(utterance="Hi.")]
    assert [dict(event.payload) for event in bench.of(SPEECH)] == [{"utterance": "Hi."}]


@pytest.mark.spec("S3-39")
async def test_calls_of_replies_that_broke_off_count(tmp_path: Path) -> None:
    reads = json.dumps({"toolCalls": [call("look", f"c{n}", what=str(n)) for n in range(20)]})

    async def breaking_off(prompt: Prompt) -> AsyncIterator[Piece]:
        for attempt in range(1, 6):
            before = len(LOG)
            yield TextDelta(reads)
            while len(LOG) < min(before + 20, 50):  # they run while the reply comes
                await asyncio.sleep(0)
            yield Retrying(ModelErrorKind.CUT, "gone", 0.0, attempt)
        last = calls(END)
        yield TextDelta(json.dumps({"toolCalls": [END]}))
        yield last

    async with talk(tmp_path, breaking_off) as bench, asyncio.timeout(60):
        end = await bench.turn()
    assert (len(LOG), end.calls, end.stop) == (50, 50, "end_turn")


@pytest.mark.spec("T43")
async def test_complaints_hold_no_secret_and_are_few(tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "aB1x" * 12
    bad = [call(secret, f"c{n}") for n in range(300)]
    async with talk(tmp_path, calls(*bad), calls(END)) as bench:
        await bench.turn()
    (event,) = bench.of(DIAGNOSED)
    assert len(event.payload["errors"]) == 20
    assert secret not in repr(event.payload)


async def test_what_was_shown_is_taken_back_where_the_reply_is_another(tmp_path: Path) -> None:
    async def turning(prompt: Prompt) -> AsyncIterator[Piece]:
        yield TextDelta("I will do nothing.")
        yield text("All is gone.")

    async with talk(tmp_path, turning, native=True) as bench:
        end = await bench.turn()
    assert end.text == "All is gone."
    assert [type(each) for each in bench.shows] == [Asked, Said, Restarted, Said]
    assert bench.shows[-1] == Said("All is gone.", ends=True)


@pytest.mark.spec("S3-39")
async def test_thousands_of_calls_too_many_leave_room_for_others(tmp_path: Path) -> None:
    turns = 0

    def tick() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(tick)

    many = calls(*(call("look", f"c{n}", what="x") for n in range(500)))
    refused: list[int] = []
    async with talk(tmp_path, many) as bench:
        bench.gate.runtime.sessions.listen(lambda e: refused.append(turns) if e.type == FAILED else None)
        asyncio.get_running_loop().call_soon(tick)
        end = await bench.turn()
        assert (end.stop, end.calls, len(refused)) == ("max_turn_requests", 20, 480)
        assert refused[-1] - refused[0] >= 479


async def test_a_reply_that_comes_all_at_the_end_is_read(tmp_path: Path) -> None:
    async def late(prompt: Prompt) -> AsyncIterator[Piece]:
        yield calls(call("send_chat", content="Hi."), call("look", what="it"), END)

    async with talk(tmp_path, late) as bench:
        end = await bench.turn()
    assert (end.stop, end.text, LOG) == ("end_turn", "Hi.", ["look it"])


@pytest.mark.spec("S3-33")
async def test_what_was_heard_or_opened_comes_once_however_often_a_reply_breaks_off(
    tmp_path: Path,
) -> None:
    page = "https://example.com/"
    some = [call("say", "a", utterance="Hi."), call("say", "b", utterance="Hi.")]
    document = json.dumps({"toolCalls": [*some, call("open_url", url=page)]})

    async def breaking_off(prompt: Prompt) -> AsyncIterator[Piece]:
        for attempt, upto in enumerate((-5, 120, -5), 1):
            yield TextDelta(document[:upto])
            yield Retrying(ModelErrorKind.CUT, "gone", 0.0, attempt)
        yield TextDelta(document)
        yield text(document)

    again = calls(call("say", utterance="Hi."), END)
    async with talk(tmp_path, breaking_off, again) as bench:
        await bench.turn()
    shown = [each for each in bench.shows if isinstance(each, Spoken | Opened)]
    hi = Spoken(utterance="Hi.")
    assert shown == [hi, hi, Opened(page), hi]


async def test_a_turn_opens_only_so_many_pages(tmp_path: Path) -> None:
    urls = [f"https://example.com/{n}" for n in range(MOST_PASSED_ON + 10)]
    some = [call("open_url", f"c{n}", url=url) for n, url in enumerate(urls)]
    async with talk(tmp_path, calls(*some), calls(END)) as bench:
        await bench.turn()
    opened = [each for each in bench.shows if isinstance(each, Opened)]
    assert opened == [Opened(url) for url in urls[:MOST_PASSED_ON]]
    assert [each["success"] for each in bench.results()].count(False) == 10
