"""`callgate hosts`: what is pinned, what changed, and what a running instance does about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.protocol.socket_v1 import frames
from callgate.socket.instances import live
from callgate.socket.queries import answer
from callgate.sources.logs import Trouble, trouble
from callgate.sources.pins import Difference, PinChanges, Pinned, compare
from tests.kernel.cli.host_places import Place
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import AtTerminal, start
from tests.needs import needs

STAMP = "[callgate 2026-01-31 12:00:00] "


@pytest.fixture
def place() -> Iterator[Place]:
    with short_directory() as base:
        yield Place(base)


@pytest.fixture
def served(place: Place) -> Iterator[Place]:
    process = start("serve", cwd=place.ws, env=place.env)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"callgate: listening on ")
    yield place
    process.terminate()
    process.communicate(timeout=60)


# --- without an instance -------------------------------------------------------------------------


def test_a_list_starts_nothing_and_tells_what_is_pinned(place: Place) -> None:
    command = [sys.executable, "-I", str(place.plugin)]
    new = {"name": "plain", "health": "new", "command": command, "tools": [], "problem": None}
    assert place.run("hosts", "list", "--json").answer == {"instance": None, "hosts": [new]}
    assert not place.log.exists()
    assert place.run("tools").code == 0
    known = place.host()
    assert (known["health"], len(known["tools"])) == ("resting", 15)
    assert known["tools"][0] == {"name": "echo", "effect": "none", "changed": False}
    row = place.run("hosts", "list").out.split()
    assert row[:4] == ["plain", "resting", "15", "tools"]


@pytest.mark.spec("T21")
def test_a_changed_tool_is_refused_until_its_change_was_accepted(place: Place) -> None:
    place.settings(more='config = { words = "One." }')
    assert place.refusal() == (0, None)
    place.settings(more='config = { words = "Two\\u001b[2J." }')
    assert place.refusal() == (3, "definition_changed")
    assert place.host()["problem"] is not None

    pinned = place.pin.read_bytes()
    looked = place.run("hosts", "reload")
    assert (looked.code, place.pin.read_bytes()) == (3, pinned)
    assert "- One." in looked.out and r"+ Two\x1b[2J." in looked.out and "\x1b" not in looked.out

    (accepted,) = place.run("hosts", "reload", "plain", "--yes", "--json").json["hosts"]
    difference = [{"path": "description", "before": "One.", "after": "Two\x1b[2J."}]
    assert (accepted["added"], accepted["removed"]) == ({}, [])
    assert accepted["changed"] == dict.fromkeys((t["name"] for t in place.host()["tools"]), difference)
    assert place.refusal() == (0, None)


@pytest.mark.spec("T21")
def test_a_renamed_tool_is_offered_under_neither_name_before_a_yes(place: Place) -> None:
    assert place.refusal() == (0, None)
    place.change('"echo raw ', '"cooked raw ')
    assert (place.refusal(), place.refusal("cooked")[0]) == ((3, "definition_changed"), 1)
    assert place.refusal("refuse") == (1, None)  # its other tools are as they were
    assert place.run("hosts", "reload", "--yes").code == 0
    assert (place.refusal()[0], place.refusal("cooked")) == (1, (0, None))


def test_added_and_removed_tools_are_named(place: Place) -> None:
    assert place.run("hosts", "reload").code == 0
    place.change('"echo raw ', '"echo cooked ')
    (found,) = place.run("hosts", "reload", "--yes", "--json").json["hosts"]
    assert (list(found["added"]), found["removed"], found["changed"]) == (["cooked"], ["raw"], {})
    names = [tool["name"] for tool in place.host()["tools"]]
    assert "cooked" in names and "raw" not in names


@pytest.mark.parametrize(("key", "code"), [("y\n", 0), ("n\n", 3), ("\n", 3)])
def test_only_a_yes_at_the_terminal_accepts(place: Place, key: str, code: int) -> None:
    place.run("hosts", "reload")
    pinned = place.pin.read_bytes()
    place.change('"A tool."', '"Another tool."')
    asking = AtTerminal("hosts", "reload", cwd=place.ws, env=place.env).answer(key)
    for page in range(3 if code == 0 else 0):  # more than fits: a yes opens it first
        asking.asked(2 + page)
        asking.terminal.press("\n")
    if code == 0:
        asking.asked(5)
        asking.terminal.press(key)
    assert "+ Another tool." in asking.terminal.text  # stdout is a pipe: the person sees it here
    assert asking.end().code == code
    assert (place.pin.read_bytes() != pinned) == (code == 0)


def test_what_a_person_is_asked_about_is_printed_once(place: Place) -> None:
    place.run("hosts", "reload")
    place.change('"A tool."', '"Another tool."')
    asking = AtTerminal("hosts", "reload", cwd=place.ws, env=place.env, streams_too=True).answer("n\n")
    assert asking.end().code == 3
    assert asking.terminal.text.count("~ echo\r\n") == 1


def test_a_host_that_does_not_start_leaves_its_pin(place: Place) -> None:
    place.run("hosts", "reload")
    pinned = place.pin.read_bytes()
    place.plugin.write_text("import sys; sys.exit('no paper')")
    ran = place.run("hosts", "reload", "--yes", "--json")
    assert (ran.code, ran.json["ok"], place.pin.read_bytes()) == (5, False, pinned)
    assert place.host()["problem"] == "it exited with 1 when it was started"


@pytest.mark.spec("T22")
def test_a_tool_by_a_taken_name_is_not_pinned(place: Place) -> None:
    place.run("hosts", "reload")
    place.change('"echo raw ', '"read_file raw ')
    assert place.run("hosts", "reload", "--yes").code == 5
    assert place.run("tools").code == 0


@pytest.mark.parametrize("words", [["reload"], ["restart", "plain"]], ids=lambda words: words[0])
def test_a_running_call_cannot_accept_a_tool(place: Place, words: list[str]) -> None:
    assert place.run("hosts", *words, CALLGATE_CALL="tu_1").code == 3
    assert not place.log.exists()


def test_a_host_that_nobody_named_is_not_found(place: Place) -> None:
    for words in (["reload", "other"], ["logs", "../plain"], ["restart", "other"], ["restart", "plain"]):
        assert place.run("hosts", *words).code == 1


# --- logs ----------------------------------------------------------------------------------------


def test_a_log_cannot_act_on_a_terminal(place: Place) -> None:
    place.log.parent.mkdir()
    Path(f"{place.log}.1").write_bytes(b"zero\none\n")
    place.log.write_bytes(b"two\x1b[2J\nthree\xff\nfour")
    assert place.run("hosts", "logs", "plain", "-n", "4").out.splitlines() == [
        "one",
        r"two\x1b[2J",
        r"three\xff",
        "four",
    ]
    assert place.run("hosts", "logs", "plain", "-n", "0").out == ""


def test_a_log_is_followed_into_the_next_file(place: Place) -> None:
    place.log.parent.mkdir()
    place.log.write_bytes(b"one\n")
    following = start("hosts", "logs", "plain", "--follow", cwd=place.ws, env=place.env)
    assert following.stdout is not None
    try:
        assert following.stdout.readline() == b"one\n"
        with place.log.open("ab") as file:
            file.write(b"two\n")
        assert following.stdout.readline() == b"two\n"
        with place.log.open("ab") as file:
            file.write(b"three\n")
        os.replace(place.log, f"{place.log}.1")
        place.log.write_bytes(b"four\n")
        assert [following.stdout.readline() for _ in range(2)] == [b"three\n", b"four\n"]
    finally:
        following.kill()
        following.communicate(timeout=60)


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        (["starting: x", "problem: it exited with 1"], Trouble("it exited with 1", False)),
        (["problem: a", "problem: b", "quarantined"], Trouble("b", True)),
        (["problem: a", "quarantined", "starting: x"], None),
        (["problem: a", "quarantined", "restarted by hand"], None),
        ([], None),
    ],
)
def test_the_last_trouble_is_read_from_a_log(tmp_path: Path, notes: list[str], told: Trouble | None) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"noise \udc80 {note}\n{STAMP}{note}\n" for note in notes), errors="replace")
    assert trouble(str(path)) == told
    assert trouble(str(tmp_path / "none")) is None


# --- doctor --------------------------------------------------------------------------------------


def test_a_doctor_finds_what_is_wrong_with_hosts_and_starts_none(place: Place) -> None:
    level, text = place.checked()
    assert (level, text.split("; ")[0]) == ("note", "1 in the settings")
    assert not place.log.exists()
    place.run("hosts", "reload")
    assert place.checked() == ("ok", "1 in the settings")
    with place.log.open("a") as file:
        file.write(f"{STAMP}problem: it exited with 1\n{STAMP}quarantined\n")
    level, text = place.checked()
    assert (level, "not restarted any more: it exited with 1" in text) == ("note", True)
    place.settings(command=["no-such-program-9c1f"])
    assert place.checked()[0] == "failed"
    (place.home / "settings.toml").write_text("")
    assert place.checked() == ("ok", "none")


# --- with an instance ----------------------------------------------------------------------------


def test_an_instance_tells_how_its_hosts_are(served: Place) -> None:
    assert served.host()["health"] == "resting"
    assert served.refusal() == (0, None)
    (instance,) = live(str(served.home))
    told = served.run("hosts", "list", "--json").json
    assert (told["instance"], told["hosts"][0]["health"]) == (instance.pid, "running")


def test_an_instance_takes_over_what_was_accepted(served: Place) -> None:
    assert served.refusal() == (0, None)
    served.change('"A tool."', '"Another tool."')
    served.change(" raw ", " new_one ")
    assert served.refusal("die") == (5, "host_died")
    assert served.refusal() == (3, "definition_changed")
    changed = [tool["name"] for tool in served.host()["tools"] if tool["changed"]]
    assert len(changed) == 15 and "changed" in served.run("hosts", "list").out

    (found,) = served.run("hosts", "reload", "--yes", "--json").json["hosts"]
    (instance,) = live(str(served.home))
    assert found["instances"] == [{"pid": instance.pid, "problem": None}]
    # Each of these goes through the instance, which was told nothing else.
    assert served.run("call", "echo", "text=hi", "--instance", str(instance.pid)).out == "hi\n"
    assert served.refusal("new_one") == (0, None)
    assert served.refusal("raw")[0] == 1
    assert served.host()["health"] == "running"
    assert [tool for tool in served.host()["tools"] if tool["changed"]] == []


def test_a_call_under_way_survives_a_reload(served: Place) -> None:
    os.mkfifo(served.ws / "go")
    calling = start("call", "hang", cwd=served.ws, env=served.env)
    with open(served.ws / "go", "w") as go:  # opens when the call has opened it
        served.change('"A tool."', '"Another tool."')
        assert served.run("hosts", "reload", "--yes").code == 0
        assert served.refusal() == (0, None)
        go.write("done at last")
    out, _ = calling.communicate(timeout=60)
    assert (calling.returncode, out) == (0, b"done at last\n")


@pytest.mark.spec("S1-48")
def test_a_restart_ends_a_quarantine(served: Place) -> None:
    for _ in range(5):
        assert served.refusal("die") == (5, "host_died")
    assert served.refusal() == (5, "host_quarantined")
    assert served.host()["health"] == "quarantined"
    assert served.run("hosts", "restart", "plain").code == 0
    known = served.host()
    assert (known["health"], known["problem"]) == ("resting", None)
    assert served.refusal() == (0, None)
    assert served.run("hosts", "restart", "other").code == 1


MARKED = """
import resource, socket, sys
from callgate.sandbox.processes import command_marks
resource.setrlimit(10, (command_marks._LEAST_NUMBER, resource.getrlimit(10)[1]))
gate = socket.socket(socket.AF_UNIX)
gate.connect(sys.argv[1])
gate.sendall(b'{"type":"renew_host","requestId":"r","name":"plain","forget":true}\\n')
print(gate.makefile().readline())
"""


@needs("linux")
def test_a_process_of_a_running_call_cannot_renew_a_host(served: Place) -> None:
    assert served.refusal() == (0, None)
    (instance,) = live(str(served.home))
    told = subprocess.run([sys.executable, "-c", MARKED, instance.socket], capture_output=True, check=True)
    assert json.loads(told.stdout)["type"] == "error"
    assert served.host()["health"] == "running"


def test_an_instance_does_not_lose_tools_to_a_pin_for_another_command(served: Place) -> None:
    assert served.refusal() == (0, None)
    other = served.ws / "other.py"
    other.write_text(served.plugin.read_text())
    served.settings(command=[sys.executable, "-I", str(other)])
    (found,) = served.run("hosts", "reload", "--yes", "--json").json["hosts"]
    assert [each["problem"] is None for each in found["instances"]] == [False]
    (instance,) = live(str(served.home))
    assert served.run("call", "echo", "text=hi", "--instance", str(instance.pid)).out == "hi\n"


@pytest.mark.spec("T22")
def test_an_instance_keeps_its_tools_where_the_new_ones_cannot_be_registered(served: Place) -> None:
    text = served.pin.read_text()
    served.pin.write_text(text.replace('"reach"', '"read_file"'))
    assert served.run("hosts", "restart", "plain").code == 1
    assert served.refusal() == (0, None)
    (instance,) = live(str(served.home))
    names = served.run("tools", "--names", "--instance", str(instance.pid)).out.split()
    assert {"echo", "reach", "read_file"} <= {*names}


def test_without_dev_an_edit_is_not_believed(served: Place) -> None:
    served.change('"A tool."', '"Another tool."')
    assert served.refusal() == (3, "definition_changed")


# --- its parts -----------------------------------------------------------------------------------


class FakeHosting:
    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def entries(self) -> list[frames.HostEntry]:
        return [WEB]

    async def renew(self, name: str, *, forget: bool) -> frames.HostEntry:
        if name != "web":
            raise KeyError(name)
        self.asked.append((name, forget))
        return WEB


WEB = frames.HostEntry(name="web", health="resting", command=["web"], tools=[])


async def test_a_peer_within_a_call_has_no_say_about_hosts() -> None:
    hosting = FakeHosting()
    for request in (frames.ListHosts(request_id="r"), frames.RenewHost(request_id="r", name="web")):
        refused = await answer(hosting, request, may_ask=False)
        assert isinstance(refused, frames.Error) and refused.request_id == "r"
    assert hosting.asked == []


async def test_a_peer_is_answered_about_hosts() -> None:
    hosting, request = FakeHosting(), frames.RenewHost(request_id="r", name="web", forget=True)
    assert await answer(hosting, request, may_ask=True) == frames.HostRenewed(request_id="r", host=WEB)
    assert hosting.asked == [("web", True)]
    other = frames.RenewHost(request_id="r", name="other")
    for hosts in (hosting, None):
        assert isinstance(await answer(hosts, other, may_ask=True), frames.Error)
    assert await answer(None, frames.ListHosts(), may_ask=True) == frames.HostsList(hosts=[])


def tool(name: str = "t", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **more}


def pinned(*tools: dict[str, Any], **more: Any) -> Pinned:
    return Pinned(command=("x",), schemas=list(tools), **more)


def test_a_comparison_tells_where_two_descriptions_differ() -> None:
    before = pinned(tool(description="a", n=1, deep={"x": [1], "y": None}), tool("u"))
    after = pinned(tool("u"), tool(description="a", n=True, deep={"x": [1, 2]}), tags=["s"])
    assert compare("h", before, after) == PinChanges(
        changed={
            "t": [
                Difference(path="n", before=1, after=True),
                Difference(path="deep.x", before=[1], after=[1, 2]),
                Difference(path="deep.y", before=None),
            ]
        },
        about=[Difference(path="tags", after=["s"])],
    )
    assert not compare("h", before, before)
    assert compare("h", None, pinned(tool("v"))) == PinChanges(
        added={"v": [Difference(path="input_schema", after={"type": "object"})]}
    )
