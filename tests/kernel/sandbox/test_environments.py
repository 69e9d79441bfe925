"""Machines without namespaces, and older kernels: what a jail promises holds, or nothing runs."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.sandbox import profiles
from callgate.sandbox.backends import restrict
from callgate.sandbox.jails import Jail, Network
from callgate.sandbox.plans import (
    Backend,
    CannotGuarantee,
    Landlock,
    Namespaces,
    Seccomp,
    Supervisor,
    choose,
)
from callgate.sandbox.profiles import SandboxPaths
from tests.environments import ENVIRONMENTS
from tests.kernel.sandbox.test_escapes import ESCAPED, EXPECTED, USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, hostile, listening, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)
ROOT = Path(__file__).parents[3]
SHORT = {"docker", "full"}
EVERYWHERE = [pytest.param(name, marks=() if name in SHORT else pytest.mark.soak) for name in sorted(ENVIRONMENTS)]
ABIS = [pytest.param(abi, marks=() if abi in (1, 4) else pytest.mark.soak) for abi in (1, 3, 4, 5)]
PROFILES = ("read", "workspace")
NETWORK = {"connect_tcp", "connect_tcp6", "listen_tcp", "send_udp", "ask_netlink", "use_a_high_half_to_hide_the_family"}
"""Attempts that are none where the whole network is allowed."""
ALLOWED = {"network": NETWORK, "hosts": {"use_a_high_half_to_hide_the_family"}}
"""With hosts, a socket that is not connected is none either."""


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    user = request.node.callspec.params.get("user", os.getuid())
    made = World(user)
    yield made
    made.remove()


def of_version(monkeypatch: pytest.MonkeyPatch, abi: int) -> list[Backend]:
    """The backends of an older kernel without namespaces."""
    needed({"landlock", "seccomp", "supervisor"})
    monkeypatch.setattr(restrict, "abi", lambda: abi)
    return [Landlock(abi), Seccomp(True), Supervisor(), Namespaces("user namespaces are off")]


def with_network(places: SandboxPaths) -> Jail:
    return profiles.workspace(places, network=Network.ALL)


def with_hosts(places: SandboxPaths) -> Jail:
    return profiles.workspace(places, network=Network.HOSTS)


JAILS = {
    "read": profiles.read,
    "workspace": profiles.workspace,
    "hosts": with_hosts,
    "network": with_network,
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("profile", JAILS)
@pytest.mark.parametrize("abi", ABIS)
def test_no_attempt_gets_out_with_an_older_landlock(
    monkeypatch: pytest.MonkeyPatch, world: World, abi: int, profile: str, user: int
) -> None:
    plan = choose(JAILS[profile](world.places), of_version(monkeypatch, abi))
    assert "supervisor" in plan.backends and plan.missing == ()
    before = world.outside_state()
    with listening(world) as where:
        argv = hostile(where)

        def work() -> tuple[int | None, str, str]:
            ended, out, err = asyncio.run(run(plan, argv, where["workspace"]))
            return ended.code, out, err

        code, out, err = as_user(user, work)
    assert (code, err) == (0, "")
    assert world.outside_state() == before
    outcomes = json.loads(out)
    assert outcomes.keys() == EXPECTED.keys()
    escaped = {name for name, outcome in outcomes.items() if outcome == ESCAPED}
    assert escaped <= ALLOWED.get(profile, set())


@pytest.mark.parametrize("profile", PROFILES)
def test_without_landlock_nothing_runs_and_the_refusal_says_why(
    monkeypatch: pytest.MonkeyPatch, world: World, profile: str
) -> None:
    with pytest.raises(CannotGuarantee) as refused:
        choose(getattr(profiles, profile)(world.places), of_version(monkeypatch, 0))
    assert "no Landlock in the kernel, or a sandbox around us hides it" in refused.value.problems
    assert {"writes_confined", "hidden_masked"} <= refused.value.missing


def within(environment: str, *program: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.environments", environment, *program],
        cwd=ROOT,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_the_escape_suite_holds_without_namespaces(environment: str) -> None:
    who = "user" if os.getuid() else "root"
    done = within(
        environment,
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"),
        *(
            "-k",
            f"(supervisor or landlock) and (read-{who} or workspace-{who})",
            "tests/kernel/sandbox/test_escapes.py",
        ),
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout.rsplit("\n", 2)[-2]


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_commands_run_without_namespaces_and_say_what_differs(environment: str, tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    workspace.mkdir()
    callgate = (sys.executable, "-m", "callgate")
    where = {"CALLGATE_HOME": str(home), "HOME": str(tmp_path)}
    command = f"cd {workspace} && echo written > file && cat file; echo no > {tmp_path}/outside || true"
    asked = within(
        environment,
        *("sh", "-c", 'cd "$0" && exec "$@"', str(workspace)),
        *(*callgate, "call", "shell", f"command={command}", "--yes", "--json"),
        PYTHONPATH=str(ROOT / "src"),
        **where,
    )
    assert asked.returncode == 0, asked.stderr
    assert (workspace / "file").read_text() == "written\n"
    assert not (tmp_path / "outside").exists()
    recorded = within(environment, *callgate, "audit", "tail", "--json", PYTHONPATH=str(ROOT / "src"), **where)
    assert "fresh_tmp: TMPDIR names a private directory" in recorded.stdout
    ran = within(
        environment,
        *("sh", "-c", 'cd "$0" && exec "$@"', str(workspace)),
        *(*callgate, "sandbox", "--", "sh", "-c", "echo through > other; cat other"),
        PYTHONPATH=str(ROOT / "src"),
        **where,
    )
    assert (ran.returncode, ran.stdout) == (0, "through\n"), ran.stderr
    assert "callgate: sandbox: fresh_tmp: " in ran.stderr
    (home / "settings.toml").write_text('[sandbox]\nnetwork = "loopback"\n')
    refused = within(
        environment,
        *("sh", "-c", 'cd "$0" && exec "$@"', str(workspace)),
        *(*callgate, "call", "shell", "command=touch never", "--yes"),
        PYTHONPATH=str(ROOT / "src"),
        **where,
    )
    assert refused.returncode != 0 and not (workspace / "never").exists()
    assert "cannot guarantee here: " in refused.stderr and "no_network_tcp" in refused.stderr


FETCH = """
import http.client, sys, urllib.request
host = f"127.0.0.1:{sys.argv[1]}"
print(urllib.request.urlopen(f"http://{host}/proxy").read())
for port in sys.argv[1:]:
    direct = http.client.HTTPConnection("127.0.0.1", int(port))
    try:
        direct.request("GET", "/direct")
        print(direct.getresponse().read())
    except OSError as error:
        print(error.errno)
"""


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_a_command_reaches_named_hosts_without_namespaces(environment: str, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as named,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as other,
    ):
        for each in (named, other):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        ran = within(
            environment,
            *(sys.executable, "-m", "callgate", "sandbox", "--workspace", str(workspace)),
            *("--network", f"127.0.0.1:{named.server_port}", "--", PYTHON, "-I", "-S", "-c", FETCH),
            *(str(named.server_port), str(other.server_port)),
            CALLGATE_HOME=str(tmp_path / "home"),
            HOME=str(tmp_path),
        )
        for each in (named, other):
            each.shutdown()
    assert (ran.returncode, ran.stdout) == (0, "b'/proxy'\nb'/direct'\n111\n"), ran.stderr
    assert "callgate: sandbox: own_loopback: it cannot listen" in ran.stderr


@pytest.mark.parametrize("killed", ["callgate", "keeper", "both"])
def test_nothing_outlives_a_sandboxed_program(killed: str, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    script = "(setsid sleep 300 &); sleep 301 & echo $PPID; exec sleep 302"
    program = (sys.executable, "-m", "callgate", "sandbox", "--workspace", str(workspace), "--", "sh", "-c", script)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.environments", "full", *program],
        cwd=ROOT,
        env={**os.environ, "CALLGATE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        keeper = int(running.stdout.readline())
        for pid in {"callgate": [running.pid], "keeper": [keeper], "both": [running.pid, keeper]}[killed]:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 30
        while _in(workspace) and time.monotonic() < until:
            time.sleep(0.05)
        assert _in(workspace) == []


def _in(directory: Path) -> list[str]:
    """Return the processes whose working directory is this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(directory):
                found.append(entry.name)
        except OSError:
            continue
    return found
