"""What Google tools cost: to have them, and to use many of them at once.

    python benchmarks/google.py [--rounds N] [--calls N] [--quick] [--json]

Start: CPU time of a fresh interpreter for the table of tools and for the registration of all of
them, and whether anything that makes requests was loaded by it. Calls: 100 `gmail_read` at the
same time against a local Google that answers at once, through the whole dispatcher (validation,
policy, events, record), beside as many plain requests of the same client library. Both share one
process with that server, so what counts is the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import httpx2

from callgate.config.google import GoogleAccounts
from callgate.config.places import Home
from callgate.config.schema import GoogleTable
from callgate.core.sessions import Mode, Session
from callgate.tools.google.oauth import Client, Tokens
from callgate.tools.google.tool import GoogleTools
from tests.google_server import SCOPE, GoogleServer
from tests.support import Bench
from tests.unit.tools.google.desk import LETTER, MAIL

_START = """
import sys, time
import callgate.dispatch.registry, callgate.config.load, callgate.tools.loading, asyncio
before, begun = set(sys.modules), time.process_time()
from callgate.config.google import GoogleAccounts
from callgate.config.places import Home
from callgate.config.schema import GoogleTable
from callgate.tools.google.tool import GoogleTools
imported = time.process_time()
registry = callgate.dispatch.registry.Registry()
tools = GoogleTools(GoogleAccounts(Home("/nowhere"), GoogleTable()))
made = time.process_time()
for _, factory in tools.factories():
    registry.register(factory)
done = time.process_time()
new = set(sys.modules) - before
print(1e3 * (imported - begun), 1e3 * (done - made), len(new), "httpx2" in sys.modules)
"""


def start(rounds: int) -> dict[str, Any]:
    found = []
    for _ in range(rounds + 1):
        environ = dict(os.environ)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        ran = subprocess.run(
            [sys.executable, "-c", _START], capture_output=True, text=True, check=True, env=environ
        )
        found.append(ran.stdout.split())
    found = found[1:]  # the first wrote the bytecode
    table, registered = (median(float(each[at]) for each in found) for at in (0, 1))
    return {
        "table_ms": round(table, 2),
        "register_ms": round(registered, 2),
        "start_ms": round(table + registered, 2),
        "modules": int(found[0][2]),
        "loads_httpx2": found[0][3] == "True",
    }


async def calls(rounds: int, count: int) -> dict[str, Any]:
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as base:
        async with GoogleServer() as google:
            google.mail.receive(LETTER)
            accounts = GoogleAccounts(Home(base), GoogleTable(endpoint=google.url))
            token = google.let_in("gmail.readonly")
            tokens = Tokens(
                access_token=token,
                refresh_token="1//r",
                expires_at=time.time() + 3600,
                scopes=(f"{SCOPE}gmail.readonly",),
            )
            accounts.put("default", tokens, Client(*google.client), read_only=True)
            tools = GoogleTools(accounts, google.url)
            workspace = Path(base, "ws")
            workspace.mkdir()
            bench = Bench(workspace, *(factory for _, factory in tools.factories()))
            sessions = [Session(workspace=str(workspace), mode=Mode.READ) for _ in range(count)]
            address = f"{google.url}/gmail/v1/users/me/messages/{MAIL}?format=full"

            async def ours_once() -> None:
                asked = (
                    bench.run("gmail_read", {"messageId": MAIL}, session=each) for each in sessions
                )
                results = await asyncio.gather(*asked)
                assert all(each.ok for each in results)

            async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as client:

                async def plain_once() -> None:
                    answers = await asyncio.gather(*(client.get(address) for _ in range(count)))
                    assert all(each.json()["id"] == MAIL for each in answers)

                await ours_once()
                await plain_once()
                for _ in range(rounds):
                    for once, into in ((ours_once, ours), (plain_once, plain)):
                        google.exchanges.clear()
                        bench.recorder.events.clear()
                        begun, cpu = time.perf_counter(), time.process_time()
                        await once()
                        into.append((time.perf_counter() - begun, time.process_time() - cpu))
            await tools.close()
            await bench.log.close()
    return {
        "calls": count,
        "ours_wall_ms": round(1e3 * median(each[0] for each in ours), 1),
        "ours_cpu_ms": round(1e3 * median(each[1] for each in ours), 1),
        "plain_wall_ms": round(1e3 * median(each[0] for each in plain), 1),
        "plain_cpu_ms": round(1e3 * median(each[1] for each in plain), 1),
        "ratio_cpu": round(median(a[1] / b[1] for a, b in zip(ours, plain, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="a look, no figures to keep")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    found = {"start": start(rounds), "calls": asyncio.run(calls(rounds, options.calls))}
    if options.json:
        print(json.dumps(found))
        return
    for part, figures in found.items():
        print(part)
        for name, value in figures.items():
            print(f"  {name:<14} {value}")


if __name__ == "__main__":
    main()
