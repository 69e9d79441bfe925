"""`callgate demo` at a real terminal and without one: every sentence follows from what happened."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callgate.cli.command_line import split
from callgate.cli.commands.demo_narration import NEXT, CallEnd, DemoCommand, answer_words, command_words
from callgate.cli.commands.demo_stage import BY_DEMO, KEY
from callgate.socket.instances import live
from tests.kernel.cli.running import CALLGATE, LIMIT_S, OPENS_TERMINAL, Terminal, not_within_a_call
from tests.needs import needs

QUESTION = "Allow this edit?"
GREETS = "Good morning, Ada"
UNSEEN = "The key exists, and the sandbox does not show it to commands."
RESTORED = "greet.sh is as it was before."
NOTHING_TO_UNDO = "so the file was not changed and there is nothing to undo."
STOPPED = "Stopped. The instance has ended, and the temporary files are removed."
LAST = "stays open until you press Enter"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
_LINK = re.compile(r"http://\S+/login\?code=\S+")

pytestmark = needs("linux", "bwrap")


@pytest.fixture
def directory() -> Iterator[Path]:
    """TMPDIR of the demo: short, because sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="cg") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def _outside() -> None:
    not_within_a_call()


def environment(directory: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory), "TERM": "xterm", **more}


class Demo:
    """A demo on a terminal of 100 columns and 40 rows."""

    def __init__(self, directory: Path, code: str | None = None, **more: str) -> None:
        self.directory = directory
        self.terminal = Terminal(100, 40)
        command = [CALLGATE, "demo"] if code is None else [sys.executable, "-c", code]
        slave = self.terminal.slave
        self.process = subprocess.Popen(
            [sys.executable, "-c", OPENS_TERMINAL, os.ttyname(slave), *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(directory, **more),
        )

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.terminal.text)

    def until(self, words: str) -> str:
        self.terminal.read_until(lambda _: words in self.text)
        assert words in self.text
        return self.text

    def press(self, keys: str) -> Demo:
        self.terminal.press(keys)
        return self

    def asked(self) -> Demo:
        self.until(f"{QUESTION}  [y]es  [n]o > ")
        return self

    def finish(self) -> str:
        """Press Enter at the last prompt, and return everything that was shown."""
        self.until(LAST)
        self.terminal.read_until(lambda _: self.text.rstrip(" ").endswith(">"))
        self.press("\r")
        assert self.end() == 0
        return self.text

    def end(self) -> int:
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self.terminal.read_until(lambda _: self.process.poll() is not None or self._take())
        self._take()
        self.terminal.close()
        return self.process.returncode

    def _take(self) -> bool:
        self.terminal.take()
        return True


def run(directory: Path, *words: str, stdin: Any = subprocess.DEVNULL, **more: str) -> tuple[int, str]:
    ran = subprocess.run(
        [CALLGATE, "demo", *words],
        stdin=stdin,
        capture_output=True,
        text=True,
        env=environment(directory, **more),
        start_new_session=True,
        timeout=LIMIT_S,
    )
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def is_clean(directory: Path) -> bool:
    """Whether neither files nor processes of the demo are left."""
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return os.listdir(directory) == [] and str(directory) not in running


def records(text: str) -> list[str]:
    """The lines of `audit tail`, unwrapped: outcome, caller and the rest."""
    shown = text.split("$ callgate audit tail\n")[1].split("   $ callgate audit verify")[0]
    return re.findall(r"\d\d:\d\d:\d\d  (.*?)(?=\n   \d{4}-|\n$|$)", shown, re.DOTALL)


def test_an_edit_allowed_at_the_terminal_is_shown_run_undone_and_recorded(directory: Path) -> None:
    text = Demo(directory).asked().press("y\r").finish()
    assert text.count(QUESTION) == 1
    assert text.count("refused: ") == 1
    assert "read_file ../.ssh/id_ed25519: refused: Path '../.ssh/id_ed25519' escapes workspace boundary" in text
    assert "Allowed at this terminal." in text
    assert f"| {GREETS}" in text
    assert "[not visible in the sandbox: " in text
    assert (KEY.strip() in text, UNSEEN in text) == (False, True)
    assert "Restored 'greet.sh'" in text and RESTORED in text
    assert any("patch_file" in each and "answered by terminal" in each.replace("\n   ", "") for each in records(text))
    assert "intact: records 5," in text
    assert [command for command, _ in NEXT if command not in text.split("── Next")[1]] == []
    assert is_clean(directory)


@pytest.mark.parametrize("keys", ["n\r", "\r", "no\r"], ids=["n", "Enter", "no"])
def test_a_denied_edit_neither_greets_nor_is_undone(directory: Path, keys: str) -> None:
    text = Demo(directory).asked().press(keys).finish()
    assert "Denied at this terminal." in text
    assert ("| hello, Ada" in text, GREETS in text.split(QUESTION)[1]) == (True, False)
    assert (RESTORED in text, NOTHING_TO_UNDO in text) == (False, True)
    assert "callgate undo" not in text
    assert any("user_denied" in each and "patch_file" in each for each in records(text))
    assert is_clean(directory)


def test_a_second_denial_is_no_answer_to_anything_else(directory: Path) -> None:
    demo = Demo(directory).asked().press("n\r")
    demo.until("Denied at this terminal.")
    text = demo.press("n\r").finish()
    assert (text.count("Denied"), text.count(QUESTION)) == (1, 1)
    assert (UNSEEN in text, NOTHING_TO_UNDO in text) == (True, True)


def test_keys_that_are_no_answer_ask_again(directory: Path) -> None:
    demo = Demo(directory).asked().press("maybe\r")
    demo.terminal.read_until(lambda _: demo.text.count(f"{QUESTION}  [y]es  [n]o > ") == 2)
    assert "Denied at this terminal." in demo.press("n\r").finish()


def test_the_end_of_input_is_a_no_and_ends_the_demo(directory: Path) -> None:
    demo = Demo(directory).asked().press("\x04")
    demo.until("Denied at this terminal.")
    demo.until(LAST)
    demo.terminal.read_until(lambda _: demo.text.rstrip(" ").endswith(">"))
    demo.press("\x04")
    assert (demo.end(), is_clean(directory)) == (0, True)


def test_a_question_that_expires_is_shown_as_expired(directory: Path) -> None:
    code = "import sys; from callgate.cli.commands.demo import *; sys.exit(run(Options(answer_within_s=1)))"
    text = Demo(directory, code).finish()
    assert "No answer within 1 s: the question expired, the call is refused." in text
    assert not re.search(r"Allowed|Denied|None|elsewhere", text)
    assert "The question about the edit expired, " + NOTHING_TO_UNDO in text.replace("\n   ", "")
    assert "| hello, Ada" in text


def answer_in_browser(demo: Demo, decision: str) -> None:
    """Log in by the link, as a browser does, and answer by its cookie."""
    link = _LINK.search(demo.asked().text)
    assert link is not None
    url = urlsplit(link[0])
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=LIMIT_S)
    headers = {"Host": url.netloc, "Origin": f"http://{url.netloc}", "Sec-Fetch-Site": "same-origin"}
    connection.request("GET", f"{url.path}?{url.query}", headers={"Host": url.netloc, "Accept": "text/html"})
    response = connection.getresponse()
    page, cookie = response.read(), response.getheader("Set-Cookie")
    assert cookie is not None, page
    answer(connection, {**headers, "Cookie": cookie.partition(";")[0]}, decision)


def answer(connection: http.client.HTTPConnection, headers: dict[str, str], decision: str) -> None:
    connection.request("GET", "/v1/confirmations", headers=headers)
    (question,) = json.loads(connection.getresponse().read())["confirmations"]
    body = json.dumps({"decision": decision})
    headers = {**headers, "Content-Type": "application/json"}
    connection.request("POST", f"/v1/confirmations/{question['id']}", body, headers)
    assert json.loads(connection.getresponse().read())["applied"] is True
    connection.close()


@pytest.mark.parametrize(("decision", "words"), [("allow", "Allowed"), ("deny", "Denied")])
def test_an_answer_in_the_browser_is_shown_as_one(directory: Path, decision: str, words: str) -> None:
    demo = Demo(directory)
    answer_in_browser(demo, decision)
    text = demo.finish()
    assert f"{words} in the browser." in text
    assert "at this terminal" not in text
    assert "answered by dashboard" in "".join(records(text)).replace("\n   ", "")


def test_an_answer_of_a_program_over_http_is_shown_as_one(directory: Path) -> None:
    demo = Demo(directory).asked()
    (home,) = directory.glob("callgate-demo-*/home/.callgate")
    (token,) = (home / "run").glob("*.token")
    link = _LINK.search(demo.text)
    assert link is not None
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(link[0]).port, timeout=LIMIT_S)
    answer(connection, {"Authorization": f"Bearer {token.read_text().strip()}"}, "deny")
    assert "Denied over HTTP." in demo.finish()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_question_stops_the_instance_and_removes_the_files(directory: Path, number: int) -> None:
    demo = Demo(directory).asked()
    if number == signal.SIGINT:
        demo.press("\x03")
    else:
        demo.process.send_signal(number)
    assert demo.end() == 128 + number
    assert (STOPPED in demo.text, "Denied" in demo.text, is_clean(directory)) == (True, False, True)


def test_ctrl_c_at_the_end_ends_the_demo(directory: Path) -> None:
    demo = Demo(directory).asked().press("y\r")
    demo.until(LAST)
    demo.terminal.read_until(lambda _: demo.text.rstrip(" ").endswith(">"))
    demo.press("\x03")
    assert (demo.end(), is_clean(directory)) == (130, True)


def test_the_end_of_the_instance_is_reported(directory: Path) -> None:
    demo = Demo(directory).asked()
    (home,) = directory.glob("callgate-demo-*/home/.callgate")
    (instance,) = live(str(home))
    os.kill(instance.pid, signal.SIGKILL)
    assert demo.end() == 1
    assert "the instance of the demo ended" in demo.text


def test_without_a_terminal_the_demo_answers_and_says_so(directory: Path) -> None:
    code, text = run(directory)
    assert code == 0
    assert "No terminal: the demo answers yes after 2 s without an answer." in text
    assert "Allowed by the demo itself, because there is no terminal to ask at." in text
    assert f"answered by {BY_DEMO}" in "".join(records(text)).replace("\n   ", "")
    assert (LAST in text, GREETS in text, is_clean(directory)) == (False, True, True)


def test_with_closed_streams_the_demo_ends(directory: Path) -> None:
    for closed in ("<&-", ">&-", "2>&-"):
        ran = subprocess.run(
            ["sh", "-c", f'exec "$0" demo {closed}', CALLGATE],
            env=environment(directory),
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert (ran.returncode, ran.stderr) == (0, ""), closed
    assert is_clean(directory)


def test_yes_allows_the_edit_unasked_and_is_named(directory: Path) -> None:
    code, text = run(directory, "--yes")
    assert (code, "Allowed by --yes." in text, "/login?" in text) == (0, True, False)


def test_a_reader_who_has_seen_enough_ends_the_demo(directory: Path) -> None:
    piped = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" demo --yes | head -n 1', CALLGATE],
        env=environment(directory),
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (piped.returncode, piped.stderr, is_clean(directory)) == (141, "", True)


def test_two_demos_run_at_once(directory: Path) -> None:
    first, second = Demo(directory).asked(), Demo(directory).asked()
    first.press("y\r")
    second.press("n\r")
    assert RESTORED in first.finish()
    assert NOTHING_TO_UNDO in second.finish()
    assert is_clean(directory)


NO_SANDBOX = """
from callgate.sandbox import plans

def choose(jail, backends, require=()):
    raise plans.CannotGuarantee(list(plans.Guarantee)[:1], ["nothing works here"])

plans.choose = choose
"""


def test_a_machine_without_a_sandbox_runs_no_command_and_says_so(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_SANDBOX)
    code, text = run(directory, "--yes", PYTHONPATH=str(tmp_path))
    assert code == 0
    assert "This machine cannot sandbox commands, so callgate did not run it." in text.replace("\n   ", " ")
    assert ("| Good" in text, UNSEEN in text, RESTORED in text) == (False, False, True)


RAN = CallEnd()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (DemoCommand(RAN, f"x\n{KEY}", KEY), "The command read the key: the sandbox of this machine did not hide it."),
        (DemoCommand(RAN, "cat: Permission denied", KEY), "The key exists, and the command could not read it."),
        (DemoCommand(RAN, "", ""), "The planted key is gone, so the command shows nothing about the sandbox."),
        (DemoCommand(None, "", KEY), "The agent ran no command."),
        (
            DemoCommand(CallEnd("timeout", "too long"), "", KEY),
            "The command did not finish, so it shows nothing about the sandbox.",
        ),
    ],
)
def test_the_sentence_about_the_key_follows_from_the_output(command: DemoCommand, words: str) -> None:
    assert command_words(command) == words
    assert command.leaked == ("read the key" in words and "could not" not in words)


@pytest.mark.parametrize(
    ("decision", "by", "words"),
    [
        ("cancelled", None, "The question was withdrawn, and the call is refused."),
        ("deny", "callgate watch", "Denied by callgate watch."),
        ("timeout", None, "No answer within 30 s: the question expired, the call is refused."),
    ],
)
def test_an_answer_from_elsewhere_is_named(decision: str, by: str | None, words: str) -> None:
    assert answer_words(decision, by, 30.0) == words


@pytest.mark.parametrize("command", [command for command, _ in NEXT])
def test_each_next_command_exists(command: str) -> None:
    name, _ = split(command.split()[1:])
    assert command.removeprefix("callgate ").startswith(name)


def test_next_commands_name_a_program_that_is_not_on_the_path(directory: Path) -> None:
    path = ":".join(each for each in os.environ["PATH"].split(":") if not os.path.exists(f"{each}/callgate"))
    code, text = run(directory, "--yes", PATH=path)
    program = text.split("── Next")[1].split()[0]
    assert (code, os.path.samefile(program, CALLGATE)) == (0, True)


def test_a_demo_takes_no_words(directory: Path) -> None:
    ran = subprocess.run([CALLGATE, "demo", "x"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, "takes no arguments" in ran.stderr) == (2, True)
