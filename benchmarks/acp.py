"""`callgate acp` beside other agents of the Agent Client Protocol.

    python benchmarks/acp.py [--rounds N] [--sdk-python PATH] [--quick] [--json]

    starts     from nothing to the answer to `initialize`, and to the end after stdin was closed
    sessions   of callgate alone: a prompt to the first word of its answer, updates a second, a
               conversation of 10,000 updates loaded, memory with 100 sessions
    proxy      what `callgate acp-proxy` adds before the raw agent: a prompt with one update and
               its answer, updates a second

In every round each agent is started once, in turn, and ratios are taken within a round. The raw
agent is asyncio and json and nothing else (`peers/acp_raw.py`); the other is on the SDK
`agent-client-protocol` (`peers/acp_sdk.py`), of this Python or that of `--sdk-python`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import msgspec

from benchmarks import report
from callgate.core.content import Message, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.ids import call_id, ulid
from callgate.core.ops import AppendMessages
from callgate.core.stored import StoredMessage
from callgate.storage.sqlite.store import SqliteStore

PEERS = Path(__file__).parent / "peers"
RAW = "asyncio and json"
OURS = "callgate acp"
SDK = "the Python SDK"
_LIMIT_S = 60
_SESSIONS = 100
_GO = [{"type": "text", "text": "go"}]
_HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}


def agents(sdk_python: str | None) -> Mapping[str, list[str]]:
    callgate = os.path.join(os.path.dirname(sys.executable), "callgate")
    found = {RAW: [sys.executable, str(PEERS / "acp_raw.py")], OURS: [callgate, "acp"]}
    python = sdk_python or sys.executable
    if _has_sdk(python):
        found[SDK] = [python, str(PEERS / "acp_sdk.py")]
    return found


def _has_sdk(python: str) -> bool:
    return subprocess.run([python, "-P", "-c", "import acp"], capture_output=True).returncode == 0


class Spoken:
    """An agent that was started, spoken with over its pipes."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self._id = 0
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CALLGATE_HOME": str(home)},
        )

    def say(self, method: str, **params: Any) -> tuple[float, int, Any]:
        """The answer, how many updates came before it, and when the first word of a model did."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        first, updates = 0.0, 0
        for line in self.process.stdout:
            if b'"method":"session/update"' in line:
                updates += 1
                if not first and b'"agent_message_chunk"' in line:
                    first = time.perf_counter()
                continue
            answer = json.loads(line)
            if "result" not in answer:
                raise RuntimeError(f"{method} answered {answer}")
            return first, updates, answer["result"]
        raise RuntimeError(f"{method} was not answered")

    def ask(self, message: Mapping[str, Any]) -> Any:
        """The next line, which has to be the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if answer.get("id") != message["id"] or "result" not in answer:
            raise RuntimeError(f"{self.process.args!r} answered {answer}")
        return answer["result"]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=_LIMIT_S)


def measure_starts(
    commands: Mapping[str, list[str]], home: Path, rounds: int
) -> Mapping[str, Mapping[str, float]]:
    greeted: dict[str, list[float]] = {name: [] for name in commands}
    ended: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            agent = Spoken(command, home)
            agent.ask(_HELLO)
            answered = time.perf_counter()
            agent.end()
            if number:  # the first fills caches
                greeted[name].append((answered - began) * 1e3)
                ended[name].append((time.perf_counter() - answered) * 1e3)
    return {
        name: {
            "ms": round(median(greeted[name]), 1),
            "to_raw": round(median(map(_ratio, greeted[name], greeted[RAW])), 2),
            "end_ms": round(median(ended[name]), 1),
        }
        for name in commands
    }


def measure_sessions(home: Path, rounds: int, updates: int) -> Mapping[str, float]:
    """Of callgate alone, with models that play a script."""
    work = home / "work"
    work.mkdir()
    place: Any = {"cwd": str(work), "mcpServers": []}
    talk = _open(home, f'repeat = true\nchunk = 5\n[[replies]]\ntext = "{"word " * updates}"')
    session = talk.say("session/new", **place)[2]["sessionId"]
    began = time.perf_counter()
    told = talk.say("session/prompt", sessionId=session, prompt=_GO)[1]
    rate = told / (time.perf_counter() - began)
    talk.end()

    talk = _open(home, 'repeat = true\n[[replies]]\ntext = "Yes."')
    session = talk.say("session/new", **place)[2]["sessionId"]
    firsts = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        first = talk.say("session/prompt", sessionId=session, prompt=_GO)[0]
        firsts.append((first - began) * 1e3)
    before = _memory(talk.process.pid)
    for _ in range(_SESSIONS):
        talk.say("session/new", **place)
    grown = _memory(talk.process.pid) - before
    talk.say("session/close", sessionId=session)
    asyncio.run(_fill(home, session, updates))
    began = time.perf_counter()
    loaded = talk.say("session/load", sessionId=session, **place)[1]
    load_s = time.perf_counter() - began
    talk.end()
    return {
        "first_ms": round(median(firsts[1:]), 2),
        "updates_per_s": round(rate),
        "loaded": loaded,
        "load_s": round(load_s, 2),
        "memory_kb": round(before),
        "kb_per_session": round(grown / _SESSIONS, 1),
    }


def measure_proxy(work: Path, home: Path, rounds: int, updates: int) -> Mapping[str, float]:
    """The raw agent alone and behind the proxy, prompt by prompt in turn. What works in the sandbox
    cannot work in the home."""
    raw = [sys.executable, str(PEERS / "acp_raw.py")]
    callgate = os.path.join(os.path.dirname(sys.executable), "callgate")
    proxied = [callgate, "acp-proxy", "--network", "none", "--workspace", str(work), "--", *raw]
    talks = {"alone": Spoken(raw, home), "proxied": Spoken(proxied, home)}
    found: dict[str, list[float]] = {name: [] for name in talks}
    rates: dict[str, float] = {}
    for talk in talks.values():
        talk.say("initialize", **_HELLO["params"])
        talk.say("session/new", cwd=str(work), mcpServers=[])
    for _ in range(rounds * 10):
        for name, talk in talks.items():
            began = time.perf_counter()
            talk.say("session/prompt", sessionId="one", prompt=[{"type": "text", "text": "1"}])
            found[name].append((time.perf_counter() - began) * 1e3)
    for name, talk in talks.items():
        began = time.perf_counter()
        many = [{"type": "text", "text": str(updates)}]
        told = talk.say("session/prompt", sessionId="one", prompt=many)[1]
        rates[name] = told / (time.perf_counter() - began)
        talk.end()
    alone, behind = (median(found[name][rounds:]) for name in ("alone", "proxied"))
    return {
        "alone_ms": round(alone, 3),
        "proxied_ms": round(behind, 3),
        "added_ms": round(behind - alone, 3),
        "alone_updates_per_s": round(rates["alone"]),
        "proxied_updates_per_s": round(rates["proxied"]),
        "added_us_per_update": round(1e6 / rates["proxied"] - 1e6 / rates["alone"], 1),
    }


def _open(home: Path, script: str) -> Spoken:
    path = home / "script.toml"
    path.write_text(script)
    callgate = os.path.join(os.path.dirname(sys.executable), "callgate")
    made = Spoken([callgate, "acp", "--model", f"scripted:{path}"], home)
    made.say("initialize", **_HELLO["params"])
    return made


async def _fill(home: Path, session: str, updates: int) -> None:
    """Give a closed session a conversation that is told again in so many updates."""
    store = await SqliteStore.open(str(home))
    bodies: list[Message] = []
    for number in range(updates // 4):
        use = ToolUseBlock(id=call_id(), name="list_dir", input={"path": "."})
        result = ToolResultBlock(tool_use_id=use.id, content=[TextBlock(f"file {number}")])
        bodies += [
            Message.text("user", "Look again."),
            Message(role="assistant", content=[TextBlock("I look."), use]),
            Message(role="user", content=[result]),
        ]
    kept = tuple(
        StoredMessage(id=ulid(), turn_id=None, body=msgspec.to_builtins(body)) for body in bodies
    )
    await store.commit(AppendMessages(session=session, messages=kept, at=time.time()))
    await store.close()


def _memory(pid: int) -> float:
    """Kilobytes that belong to a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.split("VmRSS:")[1].split()[0])


def _ratio(one: float, other: float) -> float:
    return one / other


def show(found: Mapping[str, Any]) -> None:
    rows = [
        [name, f"{each['ms']:,.0f}", f"{each['to_raw']:.2f}", f"{each['end_ms']:,.0f}"]
        for name, each in found["starts"].items()
    ]
    head = ["an agent from nothing", "initialize answered, ms", "to the raw one", "then ended, ms"]
    print(report.table(head, rows), end="\n\n")
    said = found["sessions"]
    rows = [
        ["prompt to the first word of the answer", f"{said['first_ms']:.1f} ms"],
        ["updates", f"{said['updates_per_s']:,} a second"],
        [f"session/load of {said['loaded']:,} updates", f"{said['load_s']:.2f} s"],
        [
            f"memory; for each of {_SESSIONS} more sessions",
            f"{said['memory_kb'] / 1024:.0f} MB; {said['kb_per_session']:.0f} KB",
        ],
    ]
    print(report.table(["callgate acp, at work", ""], rows), end="\n\n")
    said = found["proxy"]
    rows = [
        [
            "a prompt, one update, its answer",
            f"{said['alone_ms']:.2f} ms",
            f"{said['proxied_ms']:.2f} ms",
            f"{said['added_ms']:.2f} ms",
        ],
        [
            "updates a second",
            f"{said['alone_updates_per_s']:,}",
            f"{said['proxied_updates_per_s']:,}",
            f"{said['added_us_per_update']:.0f} us each",
        ],
    ]
    head = ["the raw agent", "alone", "behind callgate acp-proxy", "added"]
    print(report.table(head, rows), end="\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sdk-python", metavar="PATH", help="a Python that has the SDK")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    commands = agents(options.sdk_python)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
        rounds = 2 if options.quick else options.rounds
        found["starts"] = measure_starts(commands, Path(directory), rounds)
        updates = 400 if options.quick else 10_000
        found["sessions"] = measure_sessions(Path(directory), rounds, updates)
        with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as work:
            found["proxy"] = measure_proxy(Path(work), Path(directory), rounds, updates)
    if not options.json:
        if SDK not in commands:
            print("Without the Python SDK of the protocol: see --sdk-python.\n")
        show(found)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
