"""Replies of a model, or of whoever stands in for it, that mean harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.agent.shows import Restarted, Said, Spoken
from callgate.core.events import DIAGNOSED, SPEECH
from callgate.core.models import ModelErrorKind, Piece, Prompt, Retrying, TextDelta
from tests.unit.agent.talks import END, LOG, call, calls, talk, text


@pytest.mark.parametrize("voice", [["Kore"], {}, 7, True])
@pytest.mark.spec("S3-33")
async def test_a_voice_that_is_no_text_is_spoken_by_the_usual_one(
    tmp_path: Path, voice: Any
) -> None:
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

    async with talk(tmp_path, breaking_off) as bench, asyncio.timeout(10):
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
    assert [type(each) for each in bench.shows] == [Said, Restarted, Said]
    assert bench.shows[-1] == Said("All is gone.", ends=True)


@pytest.mark.spec("S3-39")
async def test_thousands_of_calls_too_many_leave_room_for_others(tmp_path: Path) -> None:
    turns = 0

    def tick() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(tick)

    many = calls(*(call("look", f"c{n}", what="x") for n in range(500)))
    async with talk(tmp_path, many) as bench:
        bench.model._chunk = 1_000_000  # so that nobody else gives room
        asyncio.get_running_loop().call_soon(tick)
        end = await bench.turn()
        assert (end.stop, end.calls) == ("max_turn_requests", 20)
        assert turns > 400
