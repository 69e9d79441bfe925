"""A worker that a test speaks for, frame by frame."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

from websockets.sync.client import ClientConnection, connect

LIMIT_S = 60.0
DESCRIPTION = {"version": "0.0.1", "platform": "scripted", "workspaces": ["app"]}
TOOLS = ("read_file", "write_file", "shell")


class ScriptedWorker:
    """Says what it has; all that is asked for later the test takes and answers."""

    def __init__(self, url: str, token: str, *, process: str = "0" * 16, name: str = "one", **query: str) -> None:
        given = {"pool": "build", "name": name, "process": process, "protocol": "1", "version": "0.0.1", **query}
        where = f"{url.replace('http', 'ws', 1)}/v1/workers/connect?{urlencode(given)}"
        headers = {"Authorization": f"Bearer {token}"}
        self._closing = ExitStack()
        connecting = connect(where, additional_headers=headers, proxy=None, max_size=None)
        self.socket: ClientConnection = self._closing.enter_context(connecting)

    def greet(self, description: Any = DESCRIPTION) -> int:
        """Answer until it is taken in; the generation that it was given."""
        asked = self.take("init")
        self.answer(asked, description)
        self.answer(self.take("get_tool_schemas"), [{"name": name} for name in TOOLS])
        joined = self.take("init")
        assert joined["params"]["config"]["joined"] is True
        self.answer(joined, description)
        return int(asked["params"]["config"]["generation"])

    def take(self, method: str) -> Any:
        frame = json.loads(self.socket.recv(LIMIT_S))
        assert frame["method"] == method, frame
        return frame

    def answer(self, request: Any, value: Any) -> None:
        self.send({"v": 1, "id": request["id"], "ok": True, "result": {"value": value}})

    def locate(self) -> Any:
        """Answer where a call leads: it names no path."""
        request = self.take("locate_call")
        self.answer(request, {})
        return request

    def send(self, frame: Any) -> None:
        self.socket.send(json.dumps(frame))

    def closed(self) -> int:
        """The code with which the server closes it."""
        try:
            while True:
                self.socket.recv(LIMIT_S)
        except Exception:
            assert self.socket.protocol.close_code is not None
            return int(self.socket.protocol.close_code)

    def close(self) -> None:
        self._closing.close()
