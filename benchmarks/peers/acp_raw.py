"""The floor: an agent of asyncio and json, which greets alike and checks nothing.

A prompt is a number: so many updates come before its answer.
"""

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

SAID = {
    "sessionUpdate": "agent_message_chunk",
    "content": {"type": "text", "text": "a few words of an answer"},
}
UPDATE = (
    json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "session/update",
            "params": {"sessionId": "one", "update": SAID},
        },
        separators=(",", ":"),
    ).encode()
    + b"\n"
)


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    mixin = asyncio.streams.FlowControlMixin
    transport, protocol = await loop.connect_write_pipe(mixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    while line := await reader.readline():
        asked = json.loads(line)
        result = RESULT
        if asked["method"] == "session/new":
            result = {"sessionId": "one"}
        elif asked["method"] == "session/prompt":
            result = {"stopReason": "end_turn"}
            for _ in range(int(asked["params"]["prompt"][0]["text"])):
                writer.write(UPDATE)
                await writer.drain()
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
