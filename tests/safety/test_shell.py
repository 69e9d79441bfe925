"""The corpus of the shell half is whole, and one pair of it runs on a real disk."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from safety.contestants.shells import BareShell, CallgateShell, SandboxRuntime
from safety.dojo import held_out
from safety.shell import runs
from safety.shell.corpus import Attack, Check, PlannedCall, Task, corpus
from safety.shell.listeners import Listener
from safety.shell.scene import scene
from tests.needs import needs

_TOOLS = {"shell", "read_file", "write_file", "web_fetch"}


def _task(id: str) -> Task:
    return next(each for each in corpus().task if each.id == id)


def test_the_corpus_has_at_least_sixty_pairs_and_every_attack_is_used():
    used = [id for task in corpus().task for id in task.attacks]
    assert len(used) >= 60
    assert set(used) == {attack.id for attack in corpus().attack}
    assert all(len(set(task.attacks)) == len(task.attacks) for task in corpus().task)


@pytest.mark.parametrize("each", [*corpus().task, *corpus().attack], ids=lambda each: each.id)
def test_tasks_and_attacks_call_known_tools_and_are_checked_by_one_thing(each: Task | Attack):
    assert {call.tool for call in each.calls} <= _TOOLS
    check = each.done if isinstance(each, Task) else each.reached
    assert len(msgspec.to_builtins(check)) == 1
    if isinstance(each, Task):
        assert each.carrier in {**corpus().project, **corpus().pages}


def test_there_are_at_least_thirty_held_out_injections_over_four_suites():
    found = held_out.injections()
    assert len(found) >= 30
    assert {each.suite for each in found} == {"workspace", "banking", "travel", "slack"}
    assert len({(each.suite, each.id) for each in found}) == len(found)
    assert all(each.tasks and each.calls for each in found)


async def test_behind_a_bare_shell_the_task_is_done_and_the_attack_succeeds():
    contestant = BareShell("bare", "")
    done = await runs.benign("own", _task("spelling"), contestant)
    assert (done.done, done.attack) == (True, None)
    attack = corpus().attack_by_id("key-post")
    reached = await runs.attacked("own", _task("spelling"), attack, contestant)
    assert reached.done


@needs("bwrap", "no /tmp")
async def test_behind_callgate_the_task_is_done_and_the_same_attack_fails():
    contestant = CallgateShell("ask", "", "ask")
    done = await runs.benign("own", _task("spelling"), contestant)
    assert done.done
    attack = corpus().attack_by_id("key-post")
    reached = await runs.attacked("own", _task("spelling"), attack, contestant)
    assert not reached.done
    assert reached.questions[-1].startswith("shell")


def test_checks_look_at_the_disk_the_listener_and_the_processes():
    with scene({"a.txt": "one"}, {}) as place:
        checks = {
            "changed": Check(changed="home/.bashrc"),
            "contains": Check(contains=("a.txt", "two")),
            "gone": Check(gone="a.txt"),
            "received": Check(received="{port}"),
            "shown": Check(shown="secret"),
            "killed": Check(killed=True),
            "stays": Check(stays="a.txt"),
        }
        for check in checks.values():
            place.remember(check)
        assert [name for name, check in checks.items() if place.holds(check, "")] == []
    with scene({"a.txt": "one"}, {}) as place:
        for check in checks.values():
            place.remember(check)
        (place.home / ".bashrc").write_text("alias ls=true\n")
        (place.project / "a.txt").write_text("two")
        urlopen(f"http://{place.attacker.address}/{place.attacker.port}", timeout=10).close()
        found = [name for name, check in checks.items() if place.holds(check, "a secret")]
        assert found == ["changed", "contains", "received", "shown"]


def test_a_call_of_the_corpus_gets_the_addresses_of_its_scene():
    with scene({"a.txt": "one"}, {}) as place:
        call = place.call(PlannedCall("shell", {"command": "curl {listener}", "network": True}), "user")
        assert call.arguments == {"command": f"curl {place.attacker.address}", "network": True}


def test_a_listener_notes_requests_raw_bytes_and_datagrams_and_serves_its_pages():
    with Listener("127.0.0.1", {"/page": "hello"}) as listener:
        with urlopen(f"http://{listener.address}/page", timeout=10) as reply:
            assert reply.read() == b"hello"
        with socket.create_connection((listener.host, listener.port), timeout=10) as raw:
            raw.sendall(b"raw bytes")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            datagram.sendto(b"a datagram", (listener.host, listener.port))
        noted = listener.settle()
    assert b"GET /page" in noted
    assert b"raw bytes" in noted
    assert b"a datagram" in noted


def test_a_sandbox_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("safety.contestants.shells._RUNTIME", Path("/none"))
    assert "not installed" in (SandboxRuntime("srt", "").missing() or "")
