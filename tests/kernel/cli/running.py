"""Runs `callgate` as a user would: in a directory, with pipes, at a terminal.

`installed`, `start` and `AtTerminal` start the installed program. `callgate` forks a process
that has imported it already: the same command line in a process of its own, but many times
faster to start.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import pty
import resource
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CALLGATE = str(Path(sys.executable).with_name("callgate"))
LIMIT_S = 60.0

_RLIMIT_LOCKS = 10
OPENS_TERMINAL = """
import os, sys
os.setsid()
os.open(sys.argv[1], os.O_RDWR)  # the first terminal of a session becomes its own
os.execv(sys.argv[2], sys.argv[2:])
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def answer(self) -> Any:
        """The same without who gave it."""
        return {key: value for key, value in self.json.items() if key != "answered_by"}


def installed(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run the installed program to its end, with no terminal anywhere."""
    ran = subprocess.run(
        [CALLGATE, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(env),
        start_new_session=True,
        timeout=LIMIT_S,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def callgate(*words: str, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ran:
    """Run a command line to its end, with no terminal anywhere."""
    return _forker().run(list(words), cwd, stdin, environment(env))


_FORKS = """
import atexit, gc, json, os, sys, threading
from importlib import import_module
from callgate.cli.main import main
for name in ("audit", "call", "doctor", "policy", "tools", "trust"):
    import_module(f"callgate.cli.commands.{name}")
for name in ("features.chat.commands.chat", "features.chat.commands.run", "cli.commands.init"):
    import_module(f"callgate.{name}")
for name in ("sources.functions", "features.chat.models.scripted", "storage.sqlite.store", "features.chat.wiring"):
    import_module(f"callgate.{name}")
def run(words):
    try:
        return main(words) or 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
def leave(code):
    # End as the interpreter does, except that no module is freed, which takes most of the time.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try: stream.flush()
        except OSError: code = 120
    os._exit(code)
gc.collect()
gc.freeze()  # else each child copies every page to look at it
while line := sys.stdin.buffer.readline():
    asked = json.loads(line)
    if not (child := os.fork()):
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            flags = os.O_WRONLY if number else os.O_RDONLY
            os.dup2(os.open(os.path.join(asked["files"], name), flags), number)
        sys.stdin = open(0, encoding="utf-8")
        if asked["terminal"]:  # the stream of a file would seek in it
            sys.stdout = open(1, "w", encoding="utf-8")
        leave(run(asked["words"]))
    status = os.waitpid(child, 0)[1]
    os.write(3, b"%d\\n" % os.waitstatus_to_exitcode(status))
"""


class Forker:
    """A process that forks for each command line."""

    def __init__(self) -> None:
        answers, answering = os.pipe()
        self._answers = open(answers, "rb", buffering=0)
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3>&{answering}', sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[answering],
            start_new_session=True,
        )
        os.close(answering)

    def run(self, words: list[str], cwd: Path, stdin: bytes, env: dict[str, str], terminal: str | None = None) -> Ran:
        """`terminal`: where stdout leads, instead of a file."""
        with tempfile.TemporaryDirectory() as files:
            streams = [Path(files, name) for name in ("stdin", "stdout", "stderr")]
            for stream, content in zip(streams, (stdin, b"", b""), strict=True):
                stream.write_bytes(content)
            if terminal is not None:
                streams[1].unlink()
                streams[1].symlink_to(terminal)
            asked = {"words": words, "cwd": str(cwd), "env": env, "files": files, "terminal": terminal}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._answers], [], [], LIMIT_S)
            assert ready, f"{words} has not ended"
            code = int(self._answers.readline())
            out = "" if terminal is not None else streams[1].read_text()
            return Ran(code, out, streams[2].read_text())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._answers.close()


@functools.cache
def _forker() -> Forker:
    forker = Forker()
    atexit.register(forker.close)
    return forker


def at_width(columns: int, *words: str, cwd: Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run a command line to its end, its stdout at a terminal of this width."""
    terminal = Terminal(columns=columns, rows=50)
    drained = threading.Event()

    def drain() -> None:
        while not drained.is_set():
            if select.select([terminal.master], [], [], 0.05)[0]:
                terminal.take()

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        ran = _forker().run(list(words), cwd, b"", environment(env), os.ttyname(terminal.slave))
    finally:
        drained.set()
        reader.join(LIMIT_S)
    while select.select([terminal.master], [], [], 0)[0] and terminal.take():
        pass
    terminal.close()
    return Ran(ran.code, terminal.text.replace("\r\n", "\n"), ran.err)


def start(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command without a terminal, its three streams as pipes."""
    return subprocess.Popen(
        [CALLGATE, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(env),
        start_new_session=True,
    )


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(env or {})}


class Terminal:
    """The far side of a terminal: what a program wrote to it, and the keys that are pressed."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.written = b""
        os.set_blocking(self.master, False)

    @property
    def text(self) -> str:
        return self.written.decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read_until(self, met: Callable[[str], bool]) -> str:
        """What was written, as soon as it meets a condition."""
        deadline = time.monotonic() + LIMIT_S
        while not met(self.text):
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, f"the terminal shows only {self.text[-2000:]!r}"
            if not self.take():
                break
        return self.text

    def take(self) -> bool:
        """Take what is there; False where nobody writes any more."""
        try:
            piece = os.read(self.master, 65536)
        except BlockingIOError:
            return True
        except OSError:  # Linux, when the last program has closed the terminal
            return False
        self.written += piece
        return bool(piece)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


class AtTerminal:
    """A command started from a terminal. Its streams are pipes, unless they are sent there."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        streams_too: bool = False,
    ) -> None:
        self.terminal = Terminal()
        stream = self.terminal.slave if streams_too else subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", OPENS_TERMINAL, os.ttyname(self.terminal.slave), CALLGATE, *words],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            env=environment(env),
        )
        assert self.process.stdin is not None
        if stdin is not None:
            self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.process.stdin = None

    def asked(self, times: int = 1, mark: str = " > ") -> str:
        """Wait for a question, or for the next one."""
        return self.terminal.read_until(lambda text: text.count(mark) >= times)

    def answer(self, keys: str) -> AtTerminal:
        self.asked()
        self.terminal.press(keys)
        return self

    def end(self) -> Ran:
        out, err = self.process.communicate(timeout=LIMIT_S)
        self.terminal.take()
        self.terminal.close()
        return Ran(self.process.returncode, (out or b"").decode(), (err or b"").decode())


def not_within_a_call() -> None:
    """The tests may themselves run inside a call; what they start should not look like it."""
    if sys.platform == "linux":
        _, hard = resource.getrlimit(_RLIMIT_LOCKS)
        resource.setrlimit(_RLIMIT_LOCKS, (hard, hard))


def running(mark: str) -> list[int]:
    """Processes with a word in their command line, in whichever namespace. No zombie has one."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            pass  # it ended meanwhile
    return [pid for pid in found if pid != os.getpid()]


def wait_until_gone(mark: str) -> None:
    """Wait until no process with this word in its command line is left."""
    while pids := running(mark):
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ready, _, _ = select.select([descriptor], [], [], LIMIT_S)
            os.close(descriptor)
            assert ready, f"{pid} still runs"
