"""A program that calls a running instance, with a person who approves and a limited wait.

The example starts a separate instance in a separate home, so it runs anywhere. Omit `home` to
use the instance that `callgate serve` started.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import callgate


@contextmanager
def instance(home: str, workspace: str) -> Iterator[None]:
    serve = subprocess.Popen(
        [sys.executable, "-m", "callgate", "serve"],
        cwd=workspace,
        env={**os.environ, "CALLGATE_HOME": home},
        stdout=subprocess.PIPE,
    )
    assert serve.stdout is not None
    print(serve.stdout.readline().decode().partition(" on ")[0])
    try:
        yield
    finally:
        serve.terminate()
        serve.communicate()


async def allowed_elsewhere(home: str, workspace: str) -> None:
    async with callgate.connect(home=home, cwd=workspace, confirmer=True) as gate:
        events = gate.events(["tool.confirmation_requested"])
        write = asyncio.create_task(gate.call("write_file", path="a.txt", content="hello"))
        await anext(events)
        (question,) = await gate.confirmations()
        await asyncio.to_thread(person, home, question.id)
        print((await write).ok)


def person(home: str, question: str) -> None:
    """Approve at another terminal; a program cannot allow its own calls."""
    subprocess.run(
        [sys.executable, "-m", "callgate", "confirmations", "allow", question, "--json"],
        env={**os.environ, "CALLGATE_HOME": home},
        stdout=subprocess.DEVNULL,
        check=True,
    )


async def side_by_side(home: str, workspace: str) -> None:
    async with callgate.connect(home=home, cwd=workspace) as gate:
        results = await asyncio.gather(*(gate.call("read_file", path="a.txt") for _ in range(3)))
        print([result.value for result in results])
        try:
            async with asyncio.timeout(0.5):  # the call ends with its task
                await gate.call("search_text", pattern="x", path=".")
        except TimeoutError:
            print("too slow")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cg") as base:
        home, workspace = os.path.join(base, "home"), os.path.join(base, "workspace")
        os.mkdir(workspace)
        with instance(home, workspace):
            with callgate.connect(home=home, cwd=workspace) as gate:
                refused = gate.call("shell", command="rm a.txt")  # no approver is available
                print(refused.ok, refused.text)
            asyncio.run(allowed_elsewhere(home, workspace))
            asyncio.run(side_by_side(home, workspace))
        try:
            with callgate.connect(home=home):
                pass
        except callgate.NoInstance as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main()
