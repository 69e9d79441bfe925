"""What it costs to know where the values of a call come from: one call in a conversation of 200 KB.

    python benchmarks/provenance.py [--calls N] [--rounds N] [--json]

Three gates make the same call of a tool that sends something, interleaved: without a conversation,
with a short one, and with one of 200 KB, in mode write, so that no call needs approval. The
difference is the guard's. The destination is one that the user named (known), or another one in
each call (new). The last figure is the time to index the conversation, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack

from callgate import Gate, tool
from callgate.policy.provenance.index import ConversationIndex
from callgate.policy.provenance.sources import Source, SourceKind

PROMPT = "Send a summary to bob@corp.example."
WORDS = " ".join(f"word{n % 7919} of a page, line {n}" for n in range(8_000))[:200_000]


@tool(side_effects="read", output_labels=["workspace"])
async def look() -> str:
    """A long text."""
    return WORDS


@tool(capabilities=["read-only", "accesses-network"], output_labels=[])
async def send(to: str, body: str) -> int:
    """Goes out, and is no effect that waits for a disk."""
    return 1


def arguments(kind: str, number: int) -> dict[str, str]:
    to = "bob@corp.example" if kind == "known" else f"person{number}@new{number % 97}.example"
    return {"to": to, "body": "all is well"}


async def measure(calls: int, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    count = 0
    async with AsyncExitStack() as stack:
        gates = {}
        for name in ("no conversation", "short", "200 KB"):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            gate = Gate(directory, [look, send], mode="write", home=f"{directory}/.home")
            gates[name] = await stack.enter_async_context(gate)
            if name != "no conversation":
                await stack.enter_async_context(gate.turn(PROMPT))
            if name == "200 KB":
                await gate.call("look")
            await gate.call("send", arguments("known", 0))
        for _ in range(rounds):
            for name, gate in gates.items():
                for kind in ("known", "new"):
                    count += calls
                    made = [arguments(kind, count + n) for n in range(calls)]
                    started = time.process_time()
                    for each in made:
                        await gate.call("send", each)
                    taken = (time.process_time() - started) / calls * 1e6
                    times.setdefault(f"{name}, {kind}", []).append(taken)
    return {name: statistics.median(found) for name, found in times.items()}


def index_ms() -> float:
    index = ConversationIndex()
    index.add(Source(SourceKind.TOOL, "look", 1), WORDS)
    started = time.process_time()
    index.catch_up()
    return (time.process_time() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.calls, options.rounds))
    found["index 200 KB, ms"] = statistics.median(index_ms() for _ in range(5))
    if options.json:
        print(json.dumps(found))
        return
    for kind in ("known", "new"):
        bare = found[f"no conversation, {kind}"]
        for name in ("short", "200 KB"):
            took = found[f"{name}, {kind}"]
            print(f"guard, {name}, {kind}: {took - bare:.1f} µs of CPU a call (of {took:.1f})")
    print(f"indexing 200 KB, once: {found['index 200 KB, ms']:.1f} ms of CPU")


if __name__ == "__main__":
    main()
