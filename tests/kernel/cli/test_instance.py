"""`callgate call` through a real instance: nobody can tell it from a runtime of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.audit.reading import newest_first
from tests.kernel.cli.conftest import TOOLS
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import AtTerminal, Ran, callgate, running, start, wait_until_gone

MORE = '''
from callgate import JsonBlock, TextBlock, error_result, ok_result


@tool(side_effects="none")
async def both() -> Any:
    """Show something else than the value."""
    return ok_result({"rows": 2}, content=TextBlock("two rows, ä"), diagnostics=["slow"], meta={"x": [1.5]})


@tool(side_effects="none")
async def blocks() -> Any:
    """Show several things."""
    return [TextBlock("see"), JsonBlock({"a": 1e16, "ä": [None]}), TextBlock("\\u2028end")]


@tool(side_effects="none")
async def sorry() -> Any:
    """Report a failure."""
    return error_result("no such row", reason="no_row", details={"row": 7})


@tool(side_effects="none")
async def large() -> str:
    """Return six megabytes."""
    return "x" * 6_000_000


@tool(side_effects="none")
async def steps(context: ToolContext) -> str:
    """Say how far it is."""
    context.progress("half", 0.5)
    return "done"
'''


class Instance:
    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        for name in ("one", "two", "three"):
            (self.ws / name).mkdir(parents=True)
            (self.ws / name / "a.txt").write_text("one\ntwo\nthree\n")
            (self.ws / name / "b.bin").write_bytes(bytes(range(256)) * 4)
        (self.home / "mine.py").write_text(TOOLS + MORE)
        (self.home / "settings.toml").write_text(
            '[tools]\nload = ["mine.py"]\n[policy.per_tool]\ndelete_file = "deny"\n'
        )
        self.process = start("serve", cwd=self.ws, env=self.env)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    @property
    def env(self) -> dict[str, str]:
        return {"CALLGATE_HOME": str(self.home)}

    def run(self, *words: str, where: str = "one", stdin: bytes = b"") -> Ran:
        return callgate(*words, cwd=self.ws / where, env=self.env, stdin=stdin)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def shared() -> Iterator[Instance]:
    """One for all calls that leave nothing behind but files."""
    with short_directory() as base:
        instance = Instance(base)
        yield instance
        instance.close()


@pytest.fixture
def instance() -> Iterator[Instance]:
    with short_directory() as base:
        instance = Instance(base)
        yield instance
        instance.close()


def told(ran: Ran) -> tuple[int, str, str]:
    """All of it, but for ids, times and which of the two it was."""

    def same(text: str) -> str:
        text = re.sub(r"(tu|sess)_[0-9A-Z]{26}", r"\1_X", text)
        text = re.sub(r"(?m)^ERROR callgate\..*\n", "", text)  # an instance keeps its log
        text = re.sub(r'("duration_ms": |, )[0-9.]+( ms)?', r"\1N", text)
        text = re.sub(r"callgate: (embedded runtime|instance at \S+), policy \w+,", "callgate: R,", text)
        text = re.sub(r'"instance": (null|"[^"]*"), "policy": "\w+"', "", text)
        return re.sub(r"/ws/(one|two)\b", "/ws/DIR", text)

    return ran.code, same(ran.out), same(ran.err)


CALLS = [
    "read_file path=a.txt",
    "read-file path=a.txt limit=2 --json",
    "list_dir",
    "list_dir --json",
    "find_files pattern=*.txt",
    "search_text pattern=t --json",
    "search_text pattern=t",
    "read_file path=b.bin",
    "read_file path=b.bin --json",
    "read_file path=missing.txt",
    "read_file path=../../x",
    "read_file path=../../x --json",
    "no_such_tool",
    "read_fil --json",
    "read_file path=a.txt limit=x ofset=1",
    "read_file limit=x ofset=1 --json",
    "read_file novalue",
    "read_file --args {",
    "read_file --args [] --json",
    "read_file path=a.txt --mode read",
    "write_file path=n.txt content=x",
    "write_file path=n.txt content=x --no-input --json",
    "write_file path=n.txt content=ä --yes",
    "write_file path=n.txt content=y --yes --json",
    "delete_file path=a.txt --yes",
    "delete_file path=a.txt --yes --json",
    "shell command=echo\0hi --yes",
    "shell command=echo\0hi;echo\0no>&2;exit\07 --yes -v",
    "shell command=exit\07 --yes --json",
    "shell command=cat\0b.bin --yes",
    "shell command=seq\090000 --yes --json",
    "shell command=echo\0a;sleep\060 --yes --timeout 0.5",
    "shell command=echo\0a;sleep\060 --yes --timeout 0.5 --json",
    "shell command=true -v --yes",
    'show text=20 count=20 size=2 deep=true tags=a tags=b at={"x":1} --json',
    "show",
    "fail kind=ToolShuttingDown",
    "fail kind=ToolHostUnavailable --json",
    "fail kind=ToolProtocolError",
    "fail kind=ConfirmationTimeout --json",
    "fail kind=ToolCancelled",
    "crash",
    "crash --json",
    "nothing",
    "nothing -q",
    "nothing --json",
    "image",
    "image --json",
    "escape",
    "escape --json",
    "both",
    "both --json",
    "both -qv",
    "blocks",
    "blocks --json",
    "sorry",
    "sorry --json",
    "large",
    "large --json",
    "steps -v",
]


@pytest.mark.spec("S0-57")
@pytest.mark.parametrize("line", CALLS, ids=lambda each: each.replace("\0", " "))
def test_a_call_says_the_same_wherever_it_runs(line: str, shared: Instance) -> None:
    words = [word.replace("\0", " ") for word in line.split(" ")]
    through = shared.run("call", *words, where="one")
    alone = shared.run("call", *words, "--no-instance", where="two")
    assert told(through) == told(alone)
    if "--json" in words:
        assert json.loads(through.out)["ok"] is (through.code == 0)


def test_the_instance_made_these_calls(shared: Instance) -> None:
    ran = shared.run("call", "read_file", "path=a.txt", "-v")
    assert str(shared.home / "run" / "callgate.sock") in ran.err
    assert "embedded" not in ran.err


def test_arguments_on_stdin_arrive(shared: Instance) -> None:
    ran = shared.run("call", "show", "count=1", "--args", "-", "--json", stdin='{"text": "ä"}'.encode())
    assert (ran.json["value"]["text"], ran.json["value"]["count"]) == ("ä", 1)


@pytest.mark.spec("S0-53")
def test_a_directory_that_is_not_served_is_no_matter_and_one_call_is_one_record(instance: Instance, ws: Path) -> None:
    assert callgate("call", "read_file", "path=a.txt", cwd=ws, env=instance.env).out == "one\ntwo\nthree\n"
    socket = str(instance.home / "run" / "callgate.sock")
    ran = callgate("call", "read_file", "path=a.txt", "--json", "--socket", socket, cwd=ws, env=instance.env)
    assert (ran.code, ran.json["error"]["reason"]) == (3, "workspace_not_served")
    callgate("trust", ".", cwd=ws, env=instance.env)
    ran = callgate("call", "read_file", "path=a.txt", "-v", cwd=ws, env=instance.env)
    assert (ran.out, "instance at" in ran.err) == ("one\ntwo\nthree\n", True)
    assert len(list(newest_first(str(instance.home / "audit.jsonl")))) == 3


def test_another_mode_is_a_runtime_of_its_own(shared: Instance) -> None:
    words = ("call", "write_file", "path=m.txt", "content=x", "--yes", "--json", "--mode", "read")
    assert shared.run(*words).json["error"]["reason"] == "mode_read"
    ran = shared.run(*words, "--socket", str(shared.home / "run" / "callgate.sock"))
    assert (ran.code, ran.json["error"]["reason"]) == (3, "not_taken")
    assert not (shared.ws / "one" / "m.txt").exists()


def started(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    for line in iter(process.stderr.readline, b""):
        if line.startswith(b"1"):
            return
    raise AssertionError("the command did not start")


def test_an_instance_that_is_killed_during_a_call_is_an_error_and_no_second_call(
    instance: Instance,
) -> None:
    mark = f"600.{os.getpid()}9"
    command = f"command=echo 1 >> ran; echo 1; exec sleep {mark}"
    process = start("call", "shell", command, "--yes", "-v", "--json", cwd=instance.ws / "one", env=instance.env)
    started(process)
    instance.process.kill()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["error"]["reason"]) == (5, "instance_lost")
    assert (instance.ws / "one" / "ran").read_text() == "1\n"
    for pid in running(mark):
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(mark)


@pytest.mark.parametrize("options", [[], ["--no-instance"]], ids=["instance", "alone"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_call_and_shows_what_it_had(
    number: signal.Signals, options: list[str], shared: Instance
) -> None:
    mark = f"600.{os.getpid()}{number:d}{len(options)}"
    command = f"command=echo 1; sleep {mark} & exec sleep {mark}"
    process = start("call", "shell", command, "--yes", "-v", *options, cwd=shared.ws / "one", env=shared.env)
    started(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[:1]) == (128 + number, [b"1"])
    assert b"callgate: stopping the call\n" in err
    assert b"error (cancelled): " in err
    wait_until_gone(mark)


def asked(instance: Instance, keys: list[str], *options: str, where: str, path: str = "q.txt") -> tuple[Ran, str]:
    words = ("call", "write_file", f"path={path}", "content=new", *options)
    at = AtTerminal(*words, cwd=instance.ws / where, env=instance.env)
    for number, key in enumerate(keys, 1):
        at.asked(number)
        at.terminal.press(key)
    ran = at.end()
    text = re.sub(r"process \d+", "process N", at.terminal.text.replace("\r\n             ", ""))
    return ran, text.replace(f"/ws/{where}", "/ws/DIR")


@pytest.mark.parametrize(
    ("keys", "code"),
    [(["y\n"], 0), (["n\n"], 3), (["\x03"], 130), (["f\n", "\n", "y\n"], 0), (["s\n", "n\n", "\n"], 3)],
    ids=["yes", "no", "Ctrl-C", "in full", "a rule, but then not"],
)
def test_a_person_is_asked_the_same_question(keys: list[str], code: int, shared: Instance) -> None:
    path = f"{len(''.join(keys))}{ord(keys[0][0])}.txt"
    through, seen = asked(shared, keys, where="one", path=path)
    alone, seen_alone = asked(shared, keys, "--no-instance", where="two", path=path)
    assert (told(through), seen) == (told(alone), seen_alone)
    assert through.code == code
    assert (shared.ws / "one" / path).exists() is (code == 0)


def test_a_saved_rule_is_saved_by_the_instance(instance: Instance) -> None:
    ran, _ = asked(instance, ["s\n", "\n"], where="one")
    assert (ran.code, "write_file" in (instance.home / "rules.toml").read_text()) == (0, True)
    assert instance.run("call", "write_file", "path=q.txt", "content=again").code == 0


def test_a_question_can_be_answered_elsewhere(instance: Instance) -> None:
    words = ("call", "write_file", "path=q.txt", "content=new")
    waiting = start(*words, "--wait", cwd=instance.ws / "one", env=instance.env)
    assert waiting.stderr is not None
    id = waiting.stderr.readline().split()[-1].decode()
    assert instance.run("confirmations", "allow", id).code == 0
    out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (0, b"Created 'q.txt' (3 bytes)\n")
    at = AtTerminal(*words, cwd=instance.ws / "two", env=instance.env)
    at.asked()
    (open_one,) = instance.run("confirmations", "--json").json["confirmations"]
    assert instance.run("confirmations", "deny", open_one["id"]).code == 0
    assert at.end().code == 3
    assert "the question was withdrawn" in at.terminal.text


def test_two_calls_at_once_do_not_see_each_other(shared: Instance) -> None:
    processes = [
        start("call", "shell", f"command=echo {number}", "--yes", cwd=shared.ws / "three", env=shared.env)
        for number in range(6)
    ]
    assert [each.communicate(timeout=60)[0] for each in processes] == [b"%d\n" % n for n in range(6)]


@pytest.mark.parametrize("options", [[], ["--all"], ["--all", "--json"], ["--names"]])
def test_the_tools_of_an_instance_are_shown_like_our_own(options: list[str], instance: Instance) -> None:
    alone = instance.run("tools", *options, "--no-instance")
    assert (alone.code, alone.err) == (0, "")
    path = str(instance.home / "run" / "callgate.sock")
    assert instance.run("tools", *options, "--socket", path) == alone
    assert instance.run("tools", *options) == alone


def test_an_instance_that_was_named_is_the_only_one_whose_tools_are_shown(instance: Instance, tmp_path: Path) -> None:
    path = str(instance.home / "run" / "callgate.sock")
    elsewhere = instance.run("tools", "--json", "--socket", path, "--workspace", str(tmp_path))
    assert (elsewhere.code, elsewhere.json["error"]["class"]) == (3, "permission_denied")
    nowhere = instance.run("tools", "--json", "--instance", "nobody")
    assert (nowhere.code, nowhere.json["error"]["class"]) == (5, "host_unavailable")
    assert instance.run("tools", "--names", "--workspace", str(tmp_path)).code == 0
