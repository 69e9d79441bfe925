"""A session that outlives its process: asked in one, answered from another, resumed in a third.

Everything happens in a temporary directory. The three parts share nothing but the home, as
three processes would.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from callgate import Answer, Gate, Message, Outcome, ToolContext, tool


@tool(side_effects="write")
async def deploy(version: str, context: ToolContext) -> str:
    """Pretend to deploy."""
    context.workspace_files.write("deployed.txt", version)
    return f"{version} is live"


async def ask(home: Path, workspace: Path) -> str:
    """An agent's turn wants to deploy. Nobody is there, and the process ends."""
    async with Gate(workspace, [deploy], home=home) as gate:
        questions = gate.runtime.events(types=["tool.confirmation_requested"])
        said = Message.text("user", "deploy 1.2, please")
        await gate.runtime.conversations.begin_turn(gate.session, said)
        call = asyncio.create_task(gate.call("deploy", {"version": "1.2"}))
        async for event in questions:
            print("asked:   ", event.payload["input_summary"])
            break
    print("left:    ", (await call).text)
    return gate.session.id


async def answer(home: Path, workspace: Path) -> None:
    """Somebody looks at what is open, and allows it: also `callgate confirmations allow ID`."""
    async with Gate(workspace, [deploy], home=home) as gate:
        for question in await gate.runtime.open_confirmations():
            allow = Answer(decision=Outcome.ALLOW, by="an admin")
            receipt = await gate.runtime.answer(question.id, allow)
            print("answered:", receipt.applied)


async def resume(home: Path, session: str) -> None:
    """Whoever resumes the session runs what was allowed, once."""
    async with Gate(tools=[deploy], home=home, session=session) as gate:
        assert gate.resumed is not None
        for result in await asyncio.gather(*gate.resumed.calls.values()):
            print("resumed: ", result.text)
        await gate.runtime.conversations.end_turn(gate.session)
        print("messages:", [message.role for message in await gate.messages()])


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="callgate-") as directory:
        home, workspace = Path(directory, "home"), Path(directory, "workspace")
        workspace.mkdir()
        session = await ask(home, workspace)
        await answer(home, workspace)
        await resume(home, session)
        print("on disk: ", (workspace / "deployed.txt").read_text())


if __name__ == "__main__":
    asyncio.run(main())
