"""The floor: an agent of asyncio and json, which greets alike and checks nothing."""

from __future__ import annotations

import asyncio
import json
import sys

RESULT = {
    "protocolVersion": 1,
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
        "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
    },
    "agentInfo": {"name": "raw", "title": "raw", "version": "1"},
    "authMethods": [{"id": "settings", "name": "settings"}],
}


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    mixin = asyncio.streams.FlowControlMixin
    transport, protocol = await loop.connect_write_pipe(mixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    while line := await reader.readline():
        asked = json.loads(line)
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": RESULT}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
