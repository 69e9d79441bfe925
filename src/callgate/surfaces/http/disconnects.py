"""Work that lasts as long as the client of a request is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from callgate.core.task_sets import start_task
from callgate.surfaces.http.operations import Request
from callgate.surfaces.http.problems import bad_request

T = TypeVar("T")


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Do something while the client of the request is connected."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    def on_disconnect(watching: asyncio.Task[None]) -> None:
        nonlocal left
        if not watching.cancelled():
            left = True
            task.cancel()

    async def watch() -> None:
        await request.disconnected()

    watching = start_task(watch())
    watching.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if left and task.uncancel() == 0:
            raise bad_request("Whoever asked has gone.", "gone") from None
        raise
    finally:
        watching.remove_done_callback(on_disconnect)
        watching.cancel()
