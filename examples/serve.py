"""A program that runs an instance, serves a tool and answers approval questions.

The peer is the command line, in a separate process. Omit `home` to serve in the user's home.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile

import callgate


@callgate.tool(side_effects="write")
async def announce(text: str) -> str:
    """Tell everyone."""
    return f"everyone knows: {text}"


async def ask(question: callgate.Confirmation) -> bool:
    """Answer by a rule; a program with a window asks its user."""
    print("asked about", question.tool, flush=True)
    return "secret" not in question.arguments["text"]


async def peer(home: str, workspace: str, text: str) -> None:
    words = ["call", "announce", f"text={text}"]
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "callgate", *words),
        cwd=workspace,
        env={**os.environ, "CALLGATE_HOME": home},
    )
    print("exit code", await command.wait(), flush=True)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cg") as base:
        home, workspace = os.path.join(base, "home"), os.path.join(base, "workspace")
        os.mkdir(workspace)
        async with callgate.serve([workspace], tools=[announce], confirm=ask, home=home):
            await peer(home, workspace, "lunch is ready")
            await peer(home, workspace, "the secret")


if __name__ == "__main__":
    asyncio.run(main())
