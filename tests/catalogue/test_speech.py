"""What a model says is heard by a real program, beside the turn and never in its way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import wave
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.events import TURN_CANCELLED, Event
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sessions.shows import Opened, Said, Show, Spoken, screen_with_speech
from callgate_catalogue.speech.speaker import LONGEST_TEXT, MOST_WAITING, ProgramSpeaker, plain, voice_options
from tests.features.chat.agent.talks import END, LOG, call, calls, talk

OPTIONS = ["--stdin", "-b", "1", "-v", "en", "-s", "175", "-p", "50"]
"""With which a text is spoken that has nothing special."""
_PROGRAM = """
import json, os, signal, sys, time
def note(**said):
    with open({log!r}, "a") as file:
        file.write(json.dumps(said) + "\\n")
text = sys.stdin.buffer.read().decode()
note(argv=sys.argv[1:], text=text, pid=os.getpid())
{then}
note(ended=text)
"""


class Desk:
    """A directory that is all of PATH, with programs that note what they are given."""

    def __init__(self, path: Path) -> None:
        self.bin = path / "bin"
        self.bin.mkdir()
        self._log = path / "log"
        self._began, self._gate = path / "began", path / "gate"
        self._pipes = []
        for each in (self._began, self._gate):
            os.mkfifo(each)
            self._pipes.append(os.open(each, os.O_RDWR | os.O_NONBLOCK))  # never waits for a peer

    def close(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)

    def put(self, then: str = "", name: str = "espeak-ng") -> None:
        """A program that does this after it has read its stdin."""
        script = self.bin / f"{name}.py"
        script.write_text(_PROGRAM.format(log=str(self._log), then=then))
        program = self.bin / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{script}" "$@"\n')
        program.chmod(0o755)

    @property
    def holding(self) -> str:
        """Say that it has begun, and wait to be let go; for ever if nobody does."""
        return f"open({str(self._began)!r}, 'w').write('.'); open({str(self._gate)!r}).read(1)"

    async def begun(self) -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipes[0], began.set)
        try:
            await asyncio.wait_for(began.wait(), 60)
        finally:
            loop.remove_reader(self._pipes[0])

    def let_go(self) -> None:
        os.write(self._pipes[1], b".\n")

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    @property
    def texts(self) -> list[str]:
        return [note["text"] for note in self.notes if "text" in note]

    @property
    def ended(self) -> list[str]:
        return [note["ended"] for note in self.notes if "ended" in note]

    @property
    def alive(self) -> list[int]:
        pids = [pid for note in self.notes for key in ("pid", "child") if (pid := note.get(key))]
        return [pid for pid in pids if _answers(pid)]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    yield made
    made.close()


@pytest.fixture
def launcher() -> Iterator[BrokerLauncher]:
    broker = BrokerProcess()
    yield BrokerLauncher(broker, None)
    broker.close()


@pytest.fixture
async def speaker(launcher: BrokerLauncher, failures: list[str]) -> AsyncIterator[ProgramSpeaker]:
    made = ProgramSpeaker(lambda: launcher, on_failure=failures.append)
    yield made
    await made.close()


@pytest.fixture
def failures() -> list[str]:
    return []


def say(text: str, **rest: str) -> Spoken:
    return Spoken(utterance=text, **rest)


# --- beside a turn --------------------------------------------------------------------------


@pytest.mark.spec("S3-33")
async def test_the_next_call_and_the_whole_turn_end_before_a_word_is_heard(
    tmp_path: Path, desk: Desk, speaker: ProgramSpeaker
) -> None:
    desk.put(desk.holding)
    reply = calls(call("say", utterance="one moment"), call("look", what="it"), END)
    async with talk(tmp_path, reply) as bench:
        screen = screen_with_speech(bench.shows.append, speaker)
        end = await bench.agent.turn(bench.gate.session, "go", screen)
    await desk.begun()
    assert (end.stop, LOG, desk.texts, desk.ended) == ("end_turn", ["look it"], ["one moment"], [])
    assert Spoken(utterance="one moment") in bench.shows
    desk.let_go()
    await speaker.heard()
    assert desk.ended == ["one moment"]


BROKEN = {
    "ends with 1": "sys.exit(1)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "has no sound card": "print('error: No such file or directory', file=sys.stderr)",
    "hangs": "time.sleep(3600)",
    "is deaf and hangs": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)",
    "is missing": None,
    "is no program": "",
}


@pytest.mark.spec("S3-33")
@pytest.mark.parametrize("how", BROKEN)
async def test_a_voice_that_fails_does_not_fail_the_turn_and_is_told_once(
    tmp_path: Path,
    desk: Desk,
    launcher: BrokerLauncher,
    failures: list[str],
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if (then := BROKEN[how]) is not None:
        desk.put(then)
    if how == "is no program":
        (desk.bin / "espeak-ng").write_bytes(b"\x7fELF nothing")
    speaker = ProgramSpeaker(lambda: launcher, on_failure=failures.append, limit_s=0.5)
    said = [call("say", str(each), utterance=f"number {each}") for each in range(2)]
    async with talk(tmp_path, calls(*said, call("look", what="it"), END)) as bench:
        screen = screen_with_speech(bench.shows.append, speaker)
        end = await bench.agent.turn(bench.gate.session, "go", screen)
        await speaker.heard()
    assert (end.stop, LOG) == ("end_turn", ["look it"])
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert (len(failures), len(warnings), desk.alive) == (1, 1, [])


async def test_a_cancelled_turn_falls_silent_and_the_next_one_is_heard(
    tmp_path: Path, desk: Desk, speaker: ProgramSpeaker
) -> None:
    desk.put(f"if text == 'first': {desk.holding}")

    def hush(event: Event) -> None:
        if event.type == TURN_CANCELLED:
            speaker.stop()

    async def wait(_: object) -> None:
        await asyncio.Event().wait()

    said = [call("say", each, utterance=each) for each in ("first", "second")]
    steps = calls(*said, call("put", what="it")), calls(call("say", utterance="third"), END)
    async with talk(tmp_path, *steps, confirm=wait) as bench:
        bench.gate.runtime.sessions.listen(hush)
        screen = screen_with_speech(bench.shows.append, speaker)
        turn = asyncio.ensure_future(bench.agent.turn(bench.gate.session, "go", screen))
        await desk.begun()
        assert bench.agent.cancel(bench.gate.session.id)
        assert (await turn).stop == "cancelled"
        assert (await bench.agent.turn(bench.gate.session, "on", screen)).stop == "end_turn"
        await speaker.heard()
    assert (desk.texts, desk.ended, desk.alive) == (["first", "third"], ["third"], [])


def test_a_screen_with_speech_shows_all_that_it_showed_before(launcher: BrokerLauncher) -> None:
    shows: list[Show] = []
    screen = screen_with_speech(shows.append, ProgramSpeaker(lambda: launcher))
    given: list[Show] = [Said("a"), Spoken(utterance="b"), Opened("https://example.org/")]
    for each in given:  # and nothing is raised where there is no event loop
        screen(each)
    assert shows == given


# --- one after another ----------------------------------------------------------------------


async def test_utterances_are_heard_one_after_another(desk: Desk, speaker: ProgramSpeaker) -> None:
    desk.put()
    for text in ("one", "two", "three"):
        speaker.speak(say(text))
    await speaker.heard()
    order = [note.get("text") or note["ended"] for note in desk.notes]
    assert order == ["one", "one", "two", "two", "three", "three"]


async def test_of_too_many_utterances_the_oldest_that_wait_are_dropped(
    desk: Desk, speaker: ProgramSpeaker, caplog: pytest.LogCaptureFixture
) -> None:
    desk.put(f"if text == '0': {desk.holding}")
    speaker.speak(say("0"))
    await desk.begun()
    last = MOST_WAITING + 2
    for each in range(1, last + 1):
        speaker.speak(say(f"secret {each}"))
    desk.let_go()
    await speaker.heard()
    assert desk.ended == ["0", *(f"secret {each}" for each in range(3, last + 1))]
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


async def test_closing_leaves_no_process_and_nothing_is_heard_afterwards(desk: Desk, speaker: ProgramSpeaker) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = "child = os.fork()\nif child == 0:\n    time.sleep(3600)\nnote(child=child)"
    desk.put(f"{deaf}\n{child}\n{desk.holding}")
    speaker.speak(say("first"))
    speaker.speak(say("second"))
    await desk.begun()
    assert len(desk.alive) == 2
    await asyncio.wait_for(speaker.close(), 60)
    speaker.speak(say("third"))
    await speaker.heard()
    assert (desk.texts, desk.ended, desk.alive) == (["first"], [], [])


async def test_closing_before_anything_was_started_is_silent(desk: Desk, speaker: ProgramSpeaker) -> None:
    desk.put()
    speaker.speak(say("first"))
    await speaker.close()
    assert (desk.notes, desk.alive) == ([], [])


async def test_a_failure_is_told_again_after_something_was_heard(
    desk: Desk, speaker: ProgramSpeaker, failures: list[str]
) -> None:
    desk.put("if text == 'bad': sys.exit(1)")
    for text in ("bad", "bad", "good", "bad"):
        speaker.speak(say(text))
    await speaker.heard()
    assert len(failures) == 2
    assert failures == failures[:1] * 2


async def test_whoever_fails_at_hearing_of_a_failure_stops_no_speech(desk: Desk, launcher: BrokerLauncher) -> None:
    def fail(why: str) -> None:
        raise RuntimeError(why)

    desk.put("if text == 'bad': sys.exit(1)")
    speaker = ProgramSpeaker(lambda: launcher, on_failure=fail)
    speaker.speak(say("bad"))
    speaker.speak(say("good"))
    await speaker.heard()
    assert desk.ended == ["good"]


async def test_a_launcher_that_fails_is_a_failure_as_any_other(desk: Desk, failures: list[str]) -> None:
    def launcher() -> BrokerLauncher:
        raise RuntimeError("a secret")

    desk.put()
    speaker = ProgramSpeaker(launcher, on_failure=failures.append)
    speaker.speak(say("first"))
    await speaker.heard()
    assert len(failures) == 1
    assert "secret" not in failures[0]


# --- text, and nothing but text -------------------------------------------------------------


TEXTS = {
    "-v": "-v",
    "--version": "--version",
    "-w /tmp/x -f /etc/passwd": "-w /tmp/x -f /etc/passwd",
    "$(touch x); `id` 'a' \"b\" %s \\n": "$(touch x); `id` 'a' \"b\" %s \\n",
    "a\x0150Pb\x00c\x1b[31m\x7f\x9bd": "a 50Pb c [31m  d",
    "[[h@l'oU]] [[[": "[ [h@l'oU]] [ [ [",
    "<speak><audio src='x'/></speak>": "<speak><audio src='x'/></speak>",
    "one\ntwo\r\nthree\t": "one\ntwo \nthree",
    "Grüße, नमस्ते, 你好, 👋": "Grüße, नमस्ते, 你好, 👋",
    "a\ud800b\ue000c": "a b c",
    "x" * 200_000: "x" * LONGEST_TEXT,
}
"""As a model writes it, and as it is heard."""


async def test_whatever_a_model_writes_is_spoken_as_text(
    desk: Desk, speaker: ProgramSpeaker, failures: list[str]
) -> None:
    desk.put()
    for written in TEXTS:
        speaker.speak(say(written))
        await speaker.heard()
    given = [(note["argv"], note["text"]) for note in desk.notes if "text" in note]
    assert (given, failures) == ([(OPTIONS, heard) for heard in TEXTS.values()], [])


@given(st.text(alphabet=st.characters() | st.sampled_from("[\x01\x00\n\x1b")))
def test_no_text_has_anything_that_an_engine_would_obey(text: str) -> None:
    made = plain(text)
    made.encode()
    assert not [char for char in made if char != "\n" and (char < " " or "\x7f" <= char <= "\x9f")]
    assert "[[" not in made


async def test_what_cannot_be_heard_starts_nothing(desk: Desk, speaker: ProgramSpeaker, failures: list[str]) -> None:
    desk.put()
    for text in ("", " \n", "\x00\x01"):
        speaker.speak(say(text))
    await speaker.heard()
    assert (desk.notes, failures) == ([], [])


# --- voice, language and style --------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "options"),
    [
        ({}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"voice": "Kore"}, ("-v", "en+f2", "-s", "175", "-p", "50")),
        ({"voice": "Nobody"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"voice": "Puck", "locale": "de_AT.UTF-8"}, ("-v", "de-at+m1", "-s", "175", "-p", "50")),
        ({"locale": "pt-BR"}, ("-v", "pt-br", "-s", "175", "-p", "50")),
        ({"locale": "/etc/passwd"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"locale": "-w/tmp/x"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"locale": "en+../../x"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"locale": "de\n-w"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"style": "speak slowly, please"}, ("-v", "en", "-s", "131", "-p", "50")),
        ({"style": "Calm and deep."}, ("-v", "en", "-s", "158", "-p", "20")),
        ({"style": "-s 9999"}, ("-v", "en", "-s", "175", "-p", "50")),
        ({"style": "slow slow sad sombre tired clear calm firm low"}, ("-v", "en", "-s", "80", "-p", "0")),
        ({"style": "fast quick urgent brisk excited high bright"}, ("-v", "en", "-s", "400", "-p", "99")),
    ],
)
def test_voice_language_and_style_become_options_and_the_unknown_sounds_as_usual(
    rest: dict[str, str], options: tuple[str, ...]
) -> None:
    assert voice_options(say("x", **rest)) == options


async def test_a_language_that_the_engine_does_not_know_is_spoken_as_usual(
    desk: Desk, speaker: ProgramSpeaker, failures: list[str]
) -> None:
    desk.put("if 'xx+f2' in sys.argv: sys.exit(1)")
    speaker.speak(say("hello", locale="xx", voice="Kore"))
    await speaker.heard()
    assert (desk.ended, failures) == (["hello"], [])
    assert "en+f2" in desk.notes[1]["argv"]


# --- what speaks ----------------------------------------------------------------------------


async def test_espeak_speaks_where_espeak_ng_is_not(desk: Desk, speaker: ProgramSpeaker) -> None:
    desk.put(name="espeak")
    speaker.speak(say("hello"))
    await speaker.heard()
    assert desk.ended == ["hello"]


async def test_an_engine_sees_where_sound_goes_and_no_secret(
    desk: Desk, speaker: ProgramSpeaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.setenv("SOME_API_KEY", "sk-1")
    desk.put("note(seen=[os.environ.get(each) for each in ('XDG_RUNTIME_DIR', 'SOME_API_KEY')])")
    speaker.speak(say("hello"))
    await speaker.heard()
    assert desk.notes[1] == {"seen": ["/run/user/1", None]}


@pytest.mark.parametrize("here", [".", "", "bin"])
async def test_a_program_in_the_working_directory_is_not_taken_for_an_engine(
    tmp_path: Path, desk: Desk, speaker: ProgramSpeaker, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    desk.put("note(planted=True)")
    (desk.bin / "good").mkdir()
    (desk.bin / "good" / "espeak").write_text(f"#!/bin/sh\necho '{{\"ended\": \"good\"}}' >> '{tmp_path / 'log'}'\n")
    (desk.bin / "good" / "espeak").chmod(0o755)
    monkeypatch.chdir(tmp_path if here == "bin" else desk.bin)
    monkeypatch.setenv("PATH", f"{here}:{desk.bin / 'good'}")
    speaker.speak(say("hello"))
    await speaker.heard()
    assert desk.notes == [{"ended": "good"}]


async def test_a_module_in_the_workspace_is_not_taken_for_the_wheel(
    tmp_path: Path, desk: Desk, speaker: ProgramSpeaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("espeakng_loader", "wave"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()")
    monkeypatch.syspath_prepend(planted)
    monkeypatch.setenv("PYTHONPATH", str(planted))
    desk.put(name="aplay")
    speaker.speak(say("hello"))
    await speaker.heard()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("espeakng_loader") is None, reason="needs espeakng-loader: not installed")
async def test_the_wheel_speaks_through_a_player_where_no_engine_is(
    tmp_path: Path, desk: Desk, speaker: ProgramSpeaker, failures: list[str]
) -> None:
    kept = tmp_path / "kept.wav"
    desk.put("sys.exit(1)", name="pw-play")  # is there, and has nothing to play to
    desk.put(f"open({str(kept)!r}, 'wb').write(open(sys.argv[-1], 'rb').read())", name="aplay")
    speaker.speak(say("Guten Morgen", locale="de-DE", voice="Kore", style="slowly"))
    await speaker.heard()
    with wave.open(str(kept)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 22_050)
        assert file.getnframes() > 11_025
    assert (failures, [note["argv"][0] for note in desk.notes if "argv" in note][1:]) == ([], ["-q"])
    assert not os.path.exists(desk.notes[0]["argv"][-1])
