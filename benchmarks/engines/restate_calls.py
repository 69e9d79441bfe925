"""A handler of Restate with one journaled step, called through the ingress of a running server.

python benchmarks/engines/restate_calls.py INGRESS ADMINISTRATION COUNT AT_ONCE
"""

import asyncio
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import hypercorn.asyncio
from callers import ANSWER, NAME, measure
from hypercorn.config import Config
from restate import Context, Service, app

service = Service("Bench")


async def note() -> str:
    return ANSWER


@service.handler()
async def call(context: Context, text: str) -> str:
    return await context.run_typed(NAME, note)


def post(connection: HTTPConnection, path: str, body: object) -> Any:
    headers = {"content-type": "application/json"}
    connection.request("POST", path, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status < 300, data
    return json.loads(data)


async def main(ingress: str, administration: str, count: int, at_once: int) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config, stop = Config(), asyncio.Event()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    serving = asyncio.create_task(
        hypercorn.asyncio.serve(app([service]), config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    )
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        await asyncio.sleep(0.05)
    uri = {"uri": f"http://127.0.0.1:{port}", "force": True}
    await asyncio.to_thread(post, HTTPConnection(administration), "/deployments", uri)
    unused = [HTTPConnection(ingress) for _ in range(at_once)]
    threads, loop = ThreadPoolExecutor(at_once), asyncio.get_running_loop()

    async def invoke(number: int) -> object:
        connection = unused.pop()
        try:
            return await loop.run_in_executor(threads, post, connection, "/Bench/call", "x")
        finally:
            unused.append(connection)

    rate = await measure(invoke, count, at_once)
    stop.set()
    await serving
    return rate


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
