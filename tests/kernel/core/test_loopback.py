"""The page to which a browser comes back: whoever else comes does not keep it waiting."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from callgate.core.http import Loopback

LIMIT_S = 60.0


async def test_many_who_say_nothing_keep_nobody_out_and_do_not_hold_up_the_end() -> None:
    async with asyncio.timeout(LIMIT_S):
        async with Loopback(path="/back") as back:
            port = urlsplit(back.address).port
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            for reader, _ in silent[:60]:
                assert await reader.read() == b""  # sent away for those who came later
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /back?state={back.state}&code=c HTTP/1.1\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            assert (await back.visit(LIMIT_S))["code"] == "c"
        for reader, each in silent:
            await reader.read()
            each.close()
        writer.close()
