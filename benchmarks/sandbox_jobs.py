"""What a sandbox costs at work: four jobs and connections in each sandbox that works here, one run.

    python benchmarks/sandbox_jobs.py [--rounds N] [--bwrap PATH] [--sandlock PYTHON] [--srt PATH]

"bare" is our broker with nothing restricted; "supervisor" is Landlock, seccomp and calls that the
keeper performs, for machines without namespaces. The ways run in turn, round by round, and a ratio
is the median over rounds of the time divided by the bare time of the same round. `--sandlock` is a
Python with sandlock, `--srt` the program of Anthropic's sandbox runtime. What does not work here
is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from callgate.core.commands import Command, Launcher
from callgate.sandbox import allowed_hosts, machines, profiles
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import CannotGuarantee, choose
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess

PYTHON = "/usr/bin/python3"
FILES, MODULES, ADDED = 20_000, 1_000, 1_000
JOBS: dict[str, tuple[str, str]] = {
    "true": (".", "true"),
    "git status": ("status", "git status --porcelain >/dev/null"),
    "compileall": ("modules", f"{PYTHON} -m compileall -f -q . >/dev/null"),
    "git add": ("added", "git add ."),
}
"""Its directory, and the command."""
CONNECTS = 2_000
_CONNECT = """
import socket, sys, time
times = []
address = socket.gethostbyname(sys.argv[1]), int(sys.argv[2])
for _ in range(int(sys.argv[3])):
    began = time.perf_counter()
    with socket.socket() as each:
        each.connect(address)
        each.recv(1)
    times.append(time.perf_counter() - began)
print(sorted(times)[len(times) // 2] * 1e6)
"""
_SERVER = """
import socket
listener = socket.create_server(("127.0.0.2", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    peer.send(b"x")
    peer.close()
"""
BOUNDS = {"git status": 1.1, "compileall": 2.0, "git add": 3.0}
BOUND_OF_CONNECTS = 3.0
_SANDLOCK = """
import sys
from sandlock import Sandbox
system = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"]
print("ready", flush=True)
for line in sys.stdin:
    box = Sandbox(fs_readable=system, fs_writable=[sys.argv[1], "/dev/null"])
    words = ["/bin/true"] if line.strip() == "true" else ["/bin/sh", "-c", line.strip()]
    result = box.run(words, timeout=300)
    print("done" if result.success else "failed", flush=True)
"""
"""One process for all commands, so that no start of Python counts."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bwrap", default=shutil.which("bwrap"))
    parser.add_argument("--sandlock", help="a Python with sandlock")
    parser.add_argument("--srt", help="where the program is")
    parser.add_argument("--job", choices=JOBS, action="append", help="default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = asyncio.run(measure(options))
    print(json.dumps(figures, indent=2)) if options.json else show(figures)
    return 0


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    process = BrokerProcess(PYTHON)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        os.chmod(base, 0o755)
        prepare(base)
        try:
            ways, left_out = await launchers(process, base, options)
            result = {
                job: await in_turn(ways, base, job, options.rounds, left_out)
                for job in options.job or JOBS
            }
            connects = await measure_connects(process, base, options)
        finally:
            process.close()
    return {
        "jobs": result,
        "connects": connects,
        "left out": left_out,
        "load": os.getloadavg()[0],
    }


async def measure_connects(
    process: BrokerProcess, base: str, options: argparse.Namespace
) -> dict[str, float]:
    """Microseconds from a connect to the first byte of a listed host, the median of each way. The
    name of the host has a local address, so no lookup leaves this machine."""
    look_up = socket.getaddrinfo

    def look_up_locally(host: str, *args: Any, **more: Any) -> Any:
        return look_up("127.0.0.2" if host == "bench.test" else host, *args, **more)

    socket.getaddrinfo = look_up_locally
    found = {each.name: each for each in await machines.look(process, bwrap=options.bwrap)}
    home = os.path.expanduser("~")
    places = profiles.SandboxPaths(workspace=base, home=home, callgate_home=f"{home}/.callgate")
    with subprocess.Popen([PYTHON, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        jail = profiles.workspace(
            places,
            network=Network.HOSTS,
            hosts=(allowed_hosts.parse(f"private:bench.test:{port}"),),
        )
        result = {}
        for name, parts in (
            ("bare", ()),
            ("supervisor", ("landlock", "seccomp", "supervisor")),
            ("namespaces", ("seccomp", "namespaces")),
        ):
            try:
                plan = choose(jail, [found[each] for each in parts]) if parts else None
            except CannotGuarantee:
                continue
            output: list[bytes] = []
            host = "bench.test" if parts else "127.0.0.2"
            argv = (PYTHON, "-I", "-S", "-c", _CONNECT, host, port, str(CONNECTS))
            command = Command(argv=argv, cwd=base, env={"PATH": "/usr/bin:/bin"})
            running = await BrokerLauncher(process, plan).start(
                command, lambda stream, data, output=output: output.append(data)
            )
            await running.wait()
            result[name] = float(b"".join(output))
        server.kill()
    return result


async def launchers(
    process: BrokerProcess, base: str, options: argparse.Namespace
) -> tuple[dict[str, Callable[[str, str], Any]], dict[str, str]]:
    found = {each.name: each for each in await machines.look(process, bwrap=options.bwrap)}
    home = os.path.expanduser("~")
    git = tuple(
        os.path.join(base, directory, ".git", name)
        for directory in ("status", "added")
        for name in ("config", "hooks")
    )
    places = profiles.SandboxPaths(
        workspace=base, home=home, callgate_home=f"{home}/.callgate", protected=git
    )
    jail = profiles.workspace(places)
    ways: dict[str, Callable[[str, str], Any]] = {"bare": started(BrokerLauncher(process, None))}
    left_out = {}
    for name, parts in (
        ("supervisor", ("landlock", "seccomp", "supervisor")),
        ("namespaces", ("seccomp", "namespaces")),
        ("bubblewrap", ("seccomp", "bubblewrap")),
    ):
        try:
            plan = choose(jail, [found[each] for each in parts])
            ways[name] = started(BrokerLauncher(process, plan, bwrap=options.bwrap))
        except CannotGuarantee as refused:
            left_out[name] = str(refused)
    if options.bwrap:
        least = (
            options.bwrap,
            "--unshare-all",
            "--ro-bind",
            "/",
            "/",
            "--bind",
            base,
            base,
            "--dev",
            "/dev",
        )
        ways["bwrap alone"] = started(BrokerLauncher(process, None), least)
    if options.sandlock:
        ways["sandlock"] = served([options.sandlock, "-c", _SANDLOCK, base])
    if options.srt:
        settings = os.path.join(base, "srt.json")
        with open(settings, "w", encoding="utf-8") as file:
            network = {"allowedDomains": [], "deniedDomains": []}
            files = {"denyRead": [], "allowWrite": [base], "denyWrite": []}
            json.dump({"network": network, "filesystem": files}, file)
        ways["srt"] = program(
            lambda at, script: [options.srt, "--settings", settings, "-c", f"cd {at} && {script}"]
        )
    return ways, left_out


def started(launcher: Launcher, before: tuple[str, ...] = ()) -> Callable[[str, str], Any]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}

    async def once(at: str, script: str) -> None:
        argv = ("/bin/true",) if script == "true" else ("/bin/sh", "-c", script)
        errors: list[bytes] = []
        command = Command(argv=(*before, *argv), cwd=at, env=environment)
        ended = await (
            await launcher.start(command, lambda stream, data: errors.append(data))
        ).wait()
        if ended.code != 0:
            raise OSError(f"{ended} {b''.join(errors)[-300:]!r}")

    return once


def served(argv: list[str]) -> Callable[[str, str], Any]:
    server = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # ends with us
    assert server.stdin is not None and server.stdout is not None
    server.stdout.readline()

    async def once(at: str, script: str) -> None:
        print("true" if script == "true" else f"cd {at} && {script}", file=server.stdin, flush=True)
        if await asyncio.to_thread(server.stdout.readline) != "done\n":
            raise OSError("it failed")

    return once


def program(argv: Callable[[str, str], list[str]]) -> Callable[[str, str], Any]:
    async def once(at: str, script: str) -> None:
        await asyncio.to_thread(
            subprocess.run, argv(at, script), check=True, capture_output=True, timeout=300
        )

    return once


async def in_turn(
    ways: dict[str, Callable[[str, str], Any]],
    base: str,
    job: str,
    rounds: int,
    left_out: dict[str, str],
) -> dict[str, dict[str, float]]:
    directory, script = JOBS[job]
    at = os.path.join(base, directory)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if f"{name}, {job}" in left_out:
                continue
            reset(job, at)
            began = time.perf_counter()
            try:
                await way(at, script)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", b"") or b""
                left_out[f"{name}, {job}"] = f"{error} {said.decode(errors='replace')[-200:]}"
                times[name].clear()
                continue
            times[name].append(time.perf_counter() - began)
    return {
        name: {
            "ms": round(median(each) * 1e3, 2),
            "least ms": round(min(each) * 1e3, 2),
            "ratio": round(median(a / b for a, b in zip(each, times["bare"], strict=True)), 2),
        }
        for name, each in times.items()
        if each
    }


def prepare(base: str) -> None:
    for name, count in (("status", FILES), ("modules", MODULES), ("added", ADDED)):
        for number in range(count):
            directory = os.path.join(base, name, str(number // 100))
            if number % 100 == 0:
                os.makedirs(directory)
            with open(os.path.join(directory, f"m{number}.py"), "w", encoding="utf-8") as file:
                text = f"def f{number}(value):\n    return [value + n for n in range({number})]\n"
                file.write(text * 5)
    git("init", "-q", ".", at=os.path.join(base, "status"))
    git("add", ".", at=os.path.join(base, "status"))
    git("init", "-q", ".", at=os.path.join(base, "added"))


def reset(job: str, at: str) -> None:
    if job != "git add":
        return
    repository = os.path.join(at, ".git")
    shutil.rmtree(os.path.join(repository, "objects"))
    os.makedirs(os.path.join(repository, "objects", "pack"))
    if os.path.exists(os.path.join(repository, "index")):
        os.unlink(os.path.join(repository, "index"))


def git(*words: str, at: str) -> None:
    subprocess.run(["git", *words], cwd=at, check=True)


def show(figures: dict[str, Any]) -> None:
    for job, ways in figures["jobs"].items():
        bound = f", bound {BOUNDS[job]}" if job in BOUNDS else ""
        print(f"{job}{bound}")
        for name, each in ways.items():
            ms, least, ratio = each["ms"], each["least ms"], each["ratio"]
            print(f"  {name:14}{ms:>10.2f} ms  least {least:>9.2f} ms  {ratio:>6.2f} x")
    print(f"connect to the first byte, bound {BOUND_OF_CONNECTS}")
    for name, microseconds in figures["connects"].items():
        ratio = microseconds / figures["connects"]["bare"]
        print(f"  {name:14}{microseconds:>10.1f} µs  {ratio:>6.2f} x")
    for name, why in figures["left out"].items():
        print(f"left out: {name}: {why}")
    print(f"load {figures['load']:.1f}")


if __name__ == "__main__":
    raise SystemExit(main())
