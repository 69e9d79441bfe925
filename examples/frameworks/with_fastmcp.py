"""A FastMCP server behind a gate: two lines, marked (1) and (2).

pip install 'callgate[fastmcp]'
"""

from __future__ import annotations

import asyncio

from fastmcp import Client, FastMCP

from callgate import Confirmation, Gate
from callgate.adapters.fastmcp import GateMiddleware

server = FastMCP("mails")


@server.tool
def send_mail(to: str, subject: str | None = None) -> str:
    """Send a mail."""
    return f"sent to {to}"


async def ask(question: Confirmation) -> bool:
    print(f"{question.tool} {dict(question.arguments)}? yes")
    return True


async def main() -> None:
    async with Gate(tools=[], confirm=ask) as gate:  # (1)
        server.add_middleware(GateMiddleware(gate, effects={"send_mail": "network"}))  # (2)
        async with Client(server) as client:
            print((await client.call_tool("send_mail", {"to": "ann@example.org"})).data)


if __name__ == "__main__":
    asyncio.run(main())
