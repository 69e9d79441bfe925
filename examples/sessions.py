"""A durable session: one process asks, another answers, a third resumes.

Everything happens in a temporary directory. The three parts share only the home, like
three processes.
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
    """Run a turn that wants to deploy; no approver is available, and the process ends."""
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
    """List the pending questions and allow one, like `callgate confirmations allow ID`."""
    async with Gate(workspace, [deploy], home=home) as gate:
        for question in await gate.runtime.open_confirmations():
            allow = Answer(decision=Outcome.ALLOW, by="an admin")
            receipt = await gate.runtime.answer(question.id, allow)
            print("answered:", receipt.applied)


async def resume(home: Path, session: str) -> None:
    """Resume the session, which runs the approved call once."""
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
