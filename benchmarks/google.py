"""What Google tools cost: to have them, and to use many of them at once.

    python benchmarks/google.py [--rounds N] [--calls N] [--quick] [--json]

Start: CPU time in fresh interpreters that have all but the catalogue, and modules loaded: to have
the whole of it (Google, web, documents, memory, files), as every start does, for which the goal is
under 5 ms; then, once somebody looks, the tables and the registration of Google's tools, and of
all that there are, as a list of tools needs them.

Calls: 100 `gmail_read` at the same time against a local Google that answers at once, through the
whole dispatcher (validation, policy, events, record), beside as many plain requests of the same
client library. Both share one process with that server, so what counts is the difference.
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

from callgate.core.sessions import Mode, Session
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.oauth import OAuthClient, Tokens
from callgate_catalogue.google.pack import GoogleTools
from callgate_catalogue.settings import GoogleTable
from tests.catalogue.google.desk import LETTER, MAIL
from tests.google_server import SCOPE, GoogleServer
from tests.support import Bench

GOAL_MS = 5.0
_START = """
import asyncio, sys, time
from callgate.config.home import Home
from callgate.instance.wiring.runtime import Wired
from callgate.instance.wiring.runtime import BUILT_IN
wired = Wired(Home("/nowhere"), audit=False)
for factory in BUILT_IN:
    wired.register(factory)
registry = wired.registry
before, begun = set(sys.modules), time.process_time()
wired.register_catalogue()
had, at_start = time.process_time(), len(set(sys.modules) - before)
registry.find("gmail_list")
google = time.process_time()
registry.load_all()
done, listed = time.process_time(), len(set(sys.modules) - before)
times = (had - begun, google - had, done - had)
print(*(1e3 * each for each in times), at_start, listed, "httpx2" in sys.modules)
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
    had, google, listed = (median(float(each[at]) for each in found) for at in range(3))
    return {
        "had_ms": round(had, 3),
        "had_modules": int(found[0][3]),
        "google_ms": round(google, 2),
        "all_ms": round(listed, 2),
        "all_modules": int(found[0][4]),
        "goal_ms": GOAL_MS,
        "met": had < GOAL_MS,
        "loads_httpx2": found[0][5] == "True",
    }


async def calls(rounds: int, count: int) -> dict[str, Any]:
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as base:
        async with GoogleServer() as google:
            google.mail.receive(LETTER)
            accounts = GoogleAccounts(base, GoogleTable(endpoint=google.url))
            token = google.let_in("gmail.readonly")
            tokens = Tokens(
                access_token=token,
                refresh_token="1//r",
                expires_at=time.time() + 3600,
                scopes=(f"{SCOPE}gmail.readonly",),
            )
            accounts.put("default", tokens, OAuthClient(*google.client), read_only=True)
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
