"""Speak a model's utterances on this machine, one after another.

    speak(spoken) -> queue -> voice_options -> espeak-ng -> heard
                                 |
                                 +--> voice.py -> a WAV file -> a player -> heard

`speak` never waits and never raises: a turn continues while its words are spoken, or fail to be.
The text comes from a model, so it goes only through stdin, without engine commands. A failure is
reported once, until an utterance succeeds again.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec

from callgate.packs.processes import Command, Exit, Launcher, Stream, child_environment
from callgate.packs.speech import Spoken
from callgate_catalogue.speech.voice_options import plain, voice_options

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
