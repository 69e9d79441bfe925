"""An instance that the first call starts for those that follow, and that ends when nobody uses it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.config import instance_records
from callgate.features.agents.known import sockets_directory
from callgate.socket.instances import lasting
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import CALLGATE, LIMIT_S, Ran, callgate, environment, installed, start, wait_until_gone


class World:
    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        (self.ws / "deeper").mkdir(parents=True)
        for each in (self.ws, self.ws / "deeper"):
            (each / "a.txt").write_text("one\n")
        self.set("[instance]\non_demand_minutes = 30\n")

    def set(self, text: str) -> None:
        (self.home / "settings.toml").write_text(text)

    @property
    def env(self) -> dict[str, str]:
        return {"CALLGATE_HOME": str(self.home)}

    def call(self, *words: str, where: str = ".", **env: str) -> Ran:
        return installed("call", "read_file", "path=a.txt", *words, cwd=self.ws / where, env=self.env | env)

    def log_in(self) -> Path:
        """The directory that exists while the user is logged in; the settings say nothing."""
        (self.home / "settings.toml").unlink()
        login = self.home.parent / "login"
        login.mkdir(mode=0o700)
        return login

    def running(self) -> list[int]:
        return [record["pid"] for record in instance_records.live(str(self.home))]

    def wait_for_one(self) -> int:
        limit = time.monotonic() + LIMIT_S
        while not self.running():
            assert time.monotonic() < limit, "no instance was started"
            time.sleep(0.02)
        [pid] = self.running()
        return int(pid)

    @property
    def has_started_any(self) -> bool:
        return (self.home / "run" / "on_demand").exists()


@pytest.fixture
def world() -> Iterator[World]:
    with short_directory() as base:
        world = World(base)
        yield world
        for pid in world.running():
            os.kill(pid, signal.SIGTERM)
        wait_until_gone(str(world.ws))


def test_a_call_starts_an_instance_for_those_that_follow(world: World) -> None:
    first = world.call("--json")
    assert (first.code, first.json["answered_by"]["instance"], first.err) == (0, None, "")
    pid = world.wait_for_one()
    second = world.call("--json")
    assert second.json["content"] == first.json["content"]
    assert os.path.dirname(second.json["answered_by"]["instance"]) == str(world.home / "run")
    assert world.call("--json", where="deeper").json["answered_by"] == second.json["answered_by"]
    assert world.running() == [pid]
    assert callgate("stop", str(pid), cwd=world.ws, env=world.env).code == 0


def test_of_several_first_calls_at_once_one_starts_it(world: World) -> None:
    calls = [start("call", "read_file", "path=a.txt", cwd=world.ws, env=world.env) for _ in range(5)]
    assert [call.communicate(timeout=60)[0] for call in calls] == [b"one\n"] * 5
    assert [call.returncode for call in calls] == [0] * 5
    world.wait_for_one()
    log = world.home / "serve.log"
    assert "another instance" not in log.read_text()


def test_it_keeps_nothing_of_its_caller_open(world: World) -> None:
    reading, writing = os.pipe()
    subprocess.run(
        [CALLGATE, "call", "read_file", "path=a.txt"],
        cwd=world.ws,
        env=environment(world.env),
        pass_fds=[writing],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    os.close(writing)
    pid = world.wait_for_one()
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert os.getsid(pid) == pid


def test_none_is_started_where_no_login_is_known(world: World) -> None:
    world.set("")
    assert world.call().code == 0
    assert world.call(XDG_RUNTIME_DIR=str(world.home.parent / "missing")).code == 0
    assert (world.has_started_any, world.running()) == (False, [])


def test_one_setting_turns_it_off(world: World) -> None:
    login = world.log_in()
    world.set("[instance]\non_demand_minutes = 0\n")
    assert world.call(XDG_RUNTIME_DIR=str(login)).code == 0
    assert (world.has_started_any, world.running()) == (False, [])


def test_by_default_it_ends_with_the_login(world: World) -> None:
    login = world.log_in()
    assert world.call(XDG_RUNTIME_DIR=str(login)).code == 0
    pid = world.wait_for_one()
    used = world.call("--json", XDG_RUNTIME_DIR=str(login)).json["answered_by"]["instance"]
    assert used is not None
    shown = callgate("doctor", cwd=world.ws, env=world.env)
    assert f"{pid} (ws)" in shown.out and "started by a call" in shown.out
    assert "started by a call" in callgate("status", cwd=world.ws, env=world.env).out
    login.rmdir()
    limit = time.monotonic() + LIMIT_S
    while world.running():
        assert time.monotonic() < limit, "it outlives the login"
        time.sleep(0.05)
    assert "stopping: the user has logged out" in (world.home / "serve.log").read_text()


def test_it_serves_only_calls_with_the_environment_of_the_first(world: World) -> None:
    assert world.call(COLOUR="red").code == 0
    world.wait_for_one()
    red = world.call("--json", COLOUR="red", OLDPWD="/", SHLVL="7").json["answered_by"]["instance"]
    assert red is not None
    assert world.call("--json", "--no-instance", COLOUR="blue").json["answered_by"]["instance"] is None
    (world.home / "run" / "on_demand").unlink()  # a start moments ago does not count
    assert world.call("--json", COLOUR="blue").json["answered_by"]["instance"] is None
    limit = time.monotonic() + LIMIT_S
    while len(world.running()) < 2:
        assert time.monotonic() < limit, "no second instance was started"
        time.sleep(0.02)
    blue = world.call("--json", COLOUR="blue").json["answered_by"]["instance"]
    assert blue not in (None, red)
    assert world.call("--json", COLOUR="red").json["answered_by"]["instance"] == red


def test_programs_that_need_a_lasting_instance_do_not_find_it(world: World) -> None:
    assert world.call().code == 0
    world.wait_for_one()
    assert lasting(str(world.home)) == []
    assert not (world.home / "config.json").exists()
    assert not list(Path(sockets_directory(str(world.home))).glob("*"))


@pytest.mark.parametrize("words", [["--no-instance"], ["--debug"]])
def test_none_is_started_for_a_call_that_wants_none(words: list[str], world: World) -> None:
    assert world.call(*words).code == 0
    assert (world.has_started_any, world.running()) == (False, [])


def test_none_is_started_where_one_serves_the_directory(world: World) -> None:
    serving = start("serve", "--no-http", cwd=world.ws, env=world.env)
    assert serving.stdout is not None and serving.stdout.readline()
    ran = world.call("--mode", "read")  # another mode: it makes the call itself
    assert (ran.code, world.has_started_any, world.running()) == (0, False, [serving.pid])
    serving.terminate()
    serving.communicate(timeout=60)


def test_an_instance_that_nobody_uses_ends_by_itself(world: World) -> None:
    serving = start("serve", "--no-http", "--idle", "0.01", cwd=world.ws, env=world.env)
    out, err = serving.communicate(timeout=60)
    assert (serving.returncode, err.decode().splitlines()[-1]) == (0, "callgate: stopping: no client uses it")
    assert out.startswith(b"callgate: listening on ")
    assert not list((world.home / "instances").iterdir()) and not (world.home / "run" / "callgate.sock").exists()


def test_one_that_would_have_to_read_its_settings_anew_ends_when_nobody_uses_it(world: World) -> None:
    serving = start("serve", "--no-http", "--idle", "1000", cwd=world.ws, env=world.env)
    assert serving.stdout is not None and serving.stdout.readline()
    world.set("[limits]\nconcurrency = 2\n")
    err = serving.communicate(timeout=60)[1].decode()
    assert (serving.returncode, err.splitlines()[-1]) == (0, "callgate: stopping: no client uses it")


def test_it_serves_whoever_is_there_before_it_ends(world: World) -> None:
    serving = start("serve", "--no-http", "--idle", "1000", cwd=world.ws, env=world.env)
    assert serving.stdout is not None and serving.stdout.readline()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(LIMIT_S)
        peer.connect(str(world.home / "run" / "callgate.sock"))
        frames = peer.makefile("rwb")

        def ask(**frame: Any) -> Any:
            frames.write(json.dumps({"protocol": 1, "requestId": "r", **frame}).encode() + b"\n")
            frames.flush()
            return json.loads(frames.readline())

        world.set("[limits]\nconcurrency = 2\n")
        asked = {"type": "list_tools", "settings": True, "clientInfo": {"caller": "cli", "cwd": str(world.ws)}}
        limit = time.monotonic() + LIMIT_S
        while not ask(**asked)["settings"]["restartFor"]:
            assert time.monotonic() < limit
        looks = time.monotonic() + 2.5  # it looks whether it is used each second
        while time.monotonic() < looks:
            assert ask(type="check_alive")["type"] == "alive"
        frames.close()
    assert serving.communicate(timeout=60) is not None and serving.returncode == 0


def test_the_end_of_an_idle_instance_is_for_the_socket_alone(world: World) -> None:
    ran = callgate("serve", "--idle", "5", cwd=world.ws, env=world.env)
    assert (ran.code, "--no-http" in ran.err) == (2, True)
