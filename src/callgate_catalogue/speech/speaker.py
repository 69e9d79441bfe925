"""Speak a model's utterances on this machine, one after another.

    speak(spoken) -> queue -> voice_options -> espeak-ng -> heard
                                 |
                                 +--> voice.py -> a WAV file -> a player -> heard

`speak` never waits and never raises: a turn continues while its words are spoken, or fail to be.
The text comes from a model, so it goes only through stdin, without engine commands. A failure is
reported once, until an utterance succeeds again.

Options of an utterance, and its text without engine commands.

The options equal the options of espeak-ng, which `voice` understands too. A model writes all input:
only its language tag reaches a command line.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec

from callgate.packs.processes import Command, Exit, Launcher, Stream, child_environment
from callgate.packs.speech import Spoken

LONGEST_TEXT = 5_000
"""Maximum spoken characters of one utterance."""
_RATE, _PITCH = 175, 50
_SLOWEST, _FASTEST, _HIGHEST = 80, 400, 99
_LANGUAGE = re.compile(r"([a-z]{2,3})((?:-[a-z0-9]{2,8}){0,3})(?:[.@].*)?", re.DOTALL)
_VARIANTS = {
    "Kore": "f2",
    "Aoede": "f3",
    "Leda": "f4",
    "Zephyr": "f5",
    "Puck": "m1",
    "Charon": "m3",
    "Fenrir": "m7",
    "Orus": "m8",
}
_STYLES = {
    ("slow", "clear", "careful", "patient"): (0.75, 0),
    ("calm", "gentle", "gently", "soft", "relaxed", "soothing", "warm"): (0.9, -5),
    ("serious", "firm", "formal", "grave", "solemn"): (0.9, -12),
    ("sad", "tired", "sombre", "somber"): (0.8, -18),
    ("deep", "low"): (1.0, -25),
    ("high", "bright"): (1.0, 20),
    ("fast", "quick", "brisk", "hurried", "urgent"): (1.35, 5),
    ("happy", "happily", "cheerful", "upbeat", "playful", "friend"): (1.1, 12),
    ("excited", "enthusiastic", "energetic"): (1.2, 20),
}
"""Effect of a style word on rate (factor) and pitch (offset); "-ly" may follow it."""
_BY_WORD = {word: style for words, style in _STYLES.items() for word in words}
_UNHEARD = frozenset({"Cc", "Co", "Cn", "Cs"})


def plain(utterance: str) -> str:
    """Return the text without engine commands.

    In espeak-ng a control character starts a command, and `[[` starts phonemes. Inaudible
    characters become spaces; line breaks stay, as pauses.
    """
    cut = utterance[:LONGEST_TEXT]
    cleaned = "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNHEARD else " " for char in cut
    )
    return re.sub(r"\[(?=\[)", "[ ", cleaned).strip()


def voice_options(spoken: Spoken, *, language: str | None = None) -> tuple[str, ...]:
    """Return the options for an utterance, in its own language or in another.

    Unknown values keep the defaults.
    """
    tongue = language or _language(spoken.locale) or "en"
    variant = _VARIANTS.get(spoken.voice or "")
    rate, pitch = _sound(spoken.style or "")
    voice = tongue if variant is None else f"{tongue}+{variant}"
    return ("-v", voice, "-s", str(rate), "-p", str(pitch))


def _language(locale: str | None) -> str | None:
    """Return a language tag: `de-at` for de_AT.UTF-8."""
    found = _LANGUAGE.fullmatch((locale or "").strip().lower().replace("_", "-"))
    return None if found is None else found[1] + found[2]


def _sound(style: str) -> tuple[int, int]:
    rate, pitch = float(_RATE), _PITCH
    for word in dict.fromkeys(re.findall(r"[a-z]+", style[:200].lower())):
        times, more = _BY_WORD.get(word) or _BY_WORD.get(word.removesuffix("ly"), (1.0, 0))
        rate, pitch = rate * times, pitch + more
    return round(min(max(rate, _SLOWEST), _FASTEST)), min(max(pitch, 0), _HIGHEST)


MOST_WAITING = 8
"""Maximum length of the queue; a further utterance drops the oldest."""
ENGINES = ("espeak-ng", "espeak")
PLAYERS = (("pw-play",), ("paplay",), ("aplay", "-q"), ("afplay",))
"""Programs that play the WAV file of their last argument."""
_VOICE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "voice.py")
"""Run by file, without callgate's `sys.path`, which may contain a workspace."""
_SOUND = (
    "XDG_RUNTIME_DIR",
    "PIPEWIRE_REMOTE",
    "PIPEWIRE_RUNTIME_DIR",
    "PULSE_SERVER",
    "PULSE_SINK",
    "PULSE_COOKIE",
    "ALSA_CARD",
    "ALSA_CONFIG_PATH",
    "AUDIODEV",
    "ESPEAK_DATA_PATH",
)
"""Environment variables that programs need to find the sound output."""

_log = logging.getLogger("callgate.features.chat.agent")


class _Unheard(Exception):
    """No speech program is available, or it failed. The text is safe to show to the user."""

    def __init__(self, message: str, code: int | None = None) -> None:
        """`code`: exit code of a program that ended without a signal, probably before any sound."""
        super().__init__(message)
        self.code = code


class ProgramSpeaker:
    """Background speech, in the event loop that calls `speak`."""

    def __init__(
        self,
        launcher: Callable[[], Launcher],
        *,
        on_failure: Callable[[str], None] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Create a speaker.

        `on_failure` receives the reason for missing sound. `limit_s` is the time limit of one
        utterance, by default the time of a slow voice.
        """
        self._launcher = launcher
        self._on_failure = on_failure
        self._limit_s = limit_s
        self._waiting: deque[Spoken] = deque()
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Task[None] | None = None
        self._closed = False
        self._reported = False

    def speak(self, spoken: Spoken) -> None:
        """Queue an utterance. Never waits, never raises."""
        if self._closed:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            _log.warning("speech: the queue is full, the oldest utterance is dropped")
        self._waiting.append(spoken)
        if self._task is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._waiting.clear()
                self._fail("Speech needs a running event loop.")
                return
            # The task outlives the turn, so it uses an empty context.
            self._task = loop.create_task(self._work(), context=contextvars.Context())

    def stop(self) -> None:
        """Stop speaking and clear the queue; later utterances are spoken again."""
        self._waiting.clear()
        if self._current is not None:
            self._current.cancel()

    async def heard(self) -> None:
        """Wait until the queue is empty."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop permanently. All processes have ended when this returns."""
        self._closed = True
        self.stop()
        await self.heard()

    async def _work(self) -> None:
        try:
            while self._waiting:
                spoken = self._waiting.popleft()
                self._current = asyncio.get_running_loop().create_task(self._hear(spoken))
                await asyncio.wait([self._current])
                self._judge(self._current)
        finally:
            self._task = self._current = None

    def _judge(self, done: asyncio.Task[None]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._reported = False
        elif isinstance(error, _Unheard):
            self._fail(str(error))
        else:  # a launcher is foreign code and may raise anything
            _log.debug("speech failed", exc_info=error)
            self._fail(f"Speech could not be started: {type(error).__name__}.")

    def _fail(self, why: str) -> None:
        if self._reported:
            return
        self._reported = True
        _log.warning("speech: %s", why)
        if self._on_failure is not None:
            try:
                self._on_failure(why)
            except Exception:
                _log.exception("speech: the failure callback has failed")

    # --- one utterance ----------------------------------------------------------------------

    async def _hear(self, spoken: Spoken) -> None:
        text = plain(spoken.utterance)
        if not text:
            return
        wanted, default = voice_options(spoken), voice_options(spoken, language="en")
        try:
            await self._engine(wanted, text)
        except _Unheard as error:
            if error.code is None or wanted == default:
                raise
            await self._engine(default, text)  # the program may not know the language

    async def _engine(self, options: tuple[str, ...], text: str) -> None:
        limit = 30.0 + len(text) if self._limit_s is None else self._limit_s
        for name in ENGINES:
            if (program := _found(name)) is not None:
                await self._run((program, "--stdin", "-b", "1", *options), text, limit)
                return
        if find_spec("espeakng_loader") is None:
            raise _Unheard(
                "No speech program is installed: apt install espeak-ng, brew install espeak-ng, "
                "or pip install 'callgate[speech]'."
            )
        players = [
            (path, *arguments) for name, *arguments in PLAYERS if (path := _found(name)) is not None
        ]
        if not players:
            raise _Unheard("No sound player is installed: apt install alsa-utils.")
        with tempfile.TemporaryDirectory(prefix="callgate-speech-") as folder:
            wav = os.path.join(folder, "speech.wav")
            await self._run((sys.executable, "-P", _VOICE, *options, "-w", wav), text, limit)
            await self._play([(*player, wav) for player in players], limit)

    async def _play(self, ways: list[tuple[str, ...]], limit: float) -> None:
        for argv in ways:
            try:
                await self._run(argv, "", limit)
                return
            except _Unheard as error:  # the sound output may be missing
                if error.code is None or argv is ways[-1]:
                    raise

    async def _run(self, argv: tuple[str, ...], text: str, limit: float) -> None:
        """Run a program with the text as its stdin, and wait for its end."""
        heard = bytearray()

        def read(stream: Stream, data: bytes) -> None:
            if stream == "stderr":
                heard.extend(data)
                del heard[:-2_000]

        name = os.path.basename(argv[0])
        try:
            with tempfile.TemporaryFile() as file:  # a full pipe would block the writer
                file.write(text.encode())
                file.seek(0)
                command = Command(argv=argv, cwd="/", env=_environment(), stdin=file.fileno())
                running = await self._launcher().start(command, read)
            async with running:
                try:
                    async with asyncio.timeout(limit):
                        ended = await running.wait()
                finally:
                    running.stop(0)  # discard the remaining output
        except TimeoutError:
            raise _Unheard(f"{name} did not end in time.") from None
        except OSError as error:
            raise _Unheard(f"{name} could not be started: {error.strerror}.") from None
        _ensure_heard(name, ended, heard.decode(errors="replace").splitlines())


def _ensure_heard(name: str, ended: Exit, stderr: list[str]) -> None:
    if ended.code == 0 and not any(line.lower().startswith("error") for line in stderr):
        return
    _log.debug("speech: %s said: %s", name, stderr[-5:])
    if ended.code == 0:  # exit of espeak-ng without a sound card
        raise _Unheard(f"{name} reports an error: is there a sound card?")
    if ended.code is None:
        raise _Unheard(f"{name} was ended by a signal.")
    raise _Unheard(f"{name} ended with the code {ended.code}.", ended.code)


def _found(program: str) -> str | None:
    """Return the path of a program on PATH, ignoring the working directory."""
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(program, path=os.pathsep.join(filter(os.path.isabs, directories)))


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _SOUND if name in os.environ}
    return child_environment(os.environ) | passed
