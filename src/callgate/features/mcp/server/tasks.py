"""Long calls as tasks (MCP's tasks extension): the client polls for the result.

    tools/call ---> ends soon: its result
               ---> else a task: working <-> input_required ---> completed | failed | cancelled

For clients of protocol 2026-07-28 with the extension. The call of a tool with tag `task` becomes a
task immediately, any other call after `PATIENCE_S`. A tool with tag `task-required` needs a client
with the extension. `tasks/get` returns the open questions, and `tasks/update` answers them. A task
is visible only to the client that made the call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field, ValidationError
from starlette.requests import Request

from callgate.features.mcp.server.pending_requests import RESULTS, Context, PendingRequest

EXTENSION = "io.modelcontextprotocol/tasks"
TASK, REQUIRED = "task", "task-required"
PATIENCE_S = 5.0
"""Time after which a call becomes a task."""
KEPT_S = 600.0
"""Retention of an ended task."""
_POLL_MS = 500
_MOST = 256

Shape = Callable[[Any], dict[str, Any]]
"""Converts a result of the work to the result of `tools/call`. Raises `MCPError`."""


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(alias="inputResponses", default=None)
    """Decoded one by one, so that an invalid answer does not affect the others."""


class Task(NamedTuple):
    client_key: str
    pending: PendingRequest[Any]
    shape: Shape
    created_at: float
    marks: dict[str, float]
    """Times of the cancellation (`cancelled`) and of the last change (`changed`)."""


def wants_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return modern and capabilities is not None and EXTENSION in (capabilities.extensions or {})


def ensure_named(ctx: Context, id: str) -> None:
    """Check the task id in the HTTP header, which exists for proxies. Raises `MCPError`."""
    ensure_wanted(ctx)
    if isinstance(ctx.request, Request) and ctx.request.headers.get("mcp-name") != id:
        raise MCPError(types.HEADER_MISMATCH, "The header Mcp-Name must contain the task id.")


def ensure_wanted(ctx: Context) -> None:
    if not wants_tasks(ctx):
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This needs a client with the tasks extension.",
            {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


class Tasks:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tasks: dict[str, Task] = {}

    def add(self, client_key: str, pending: PendingRequest[Any], shape: Shape) -> dict[str, Any]:
        """Add a task and return the response to its call."""
        self._forget()
        id, now = secrets.token_urlsafe(24), self._clock()
        task = self._tasks[id] = Task(client_key, pending, shape, now, {"changed": now})
        pending.task.add_done_callback(lambda _: self._mark(task, "changed"))
        return {**self._described(id, task), "status": "working", "resultType": "task"}

    def get(self, id: str, client_key: str) -> dict[str, Any]:
        task = self._find(id, client_key)
        return {**self._described(id, task), **_state(task), "resultType": "complete"}

    def update(
        self, id: str, client_key: str, responses: Mapping[str, object] | None
    ) -> dict[str, Any]:
        task = self._find(id, client_key)
        task.pending.answer(_read(task.pending.open_requests(), responses or {}))
        self._mark(task, "changed")
        return {"resultType": "complete"}

    def cancel(self, id: str, client_key: str) -> dict[str, Any]:
        task = self._find(id, client_key)
        if not task.pending.task.done() and "cancelled" not in task.marks:
            self._mark(task, "cancelled")
            self._mark(task, "changed")
            task.pending.end()
        return {"resultType": "complete"}

    def close(self) -> None:
        for task in self._tasks.values():
            task.pending.end()
        self._tasks.clear()

    def _find(self, id: str, client_key: str) -> Task:
        task = self._tasks.get(id)
        if task is None or task.client_key != client_key:
            raise MCPError(types.INVALID_PARAMS, "The task does not exist or has expired.")
        return task

    def _mark(self, task: Task, status: str) -> None:
        task.marks[status] = self._clock()

    def _described(self, id: str, task: Task) -> dict[str, Any]:
        return {
            "taskId": id,
            "createdAt": _written(task.created_at),
            "lastUpdatedAt": _written(task.marks["changed"]),
            "ttlMs": None,
            "pollIntervalMs": _POLL_MS,
        }

    def _forget(self) -> None:
        """Delete tasks that ended more than `KEPT_S` ago and, if there are too many, the oldest."""
        now = self._clock()
        for id, task in list(self._tasks.items()):
            if task.pending.task.done() and now - task.marks["changed"] > KEPT_S:
                del self._tasks[id]
        while len(self._tasks) >= _MOST:
            self._tasks.pop(next(iter(self._tasks))).pending.end()


def _read(
    requests: Mapping[str, types.InputRequest], responses: Mapping[str, object]
) -> dict[str, object]:
    """Decode the valid answers to the open requests."""
    found: dict[str, object] = {}
    for name in requests.keys() & responses.keys():
        try:
            kind = RESULTS[type(requests[name])]
            found[name] = kind.model_validate(responses[name], by_name=False)
        except ValidationError:
            continue
    return found


def _state(task: Task) -> dict[str, Any]:
    work = task.pending.task
    if "cancelled" in task.marks:
        return {"status": "cancelled"}
    if not work.done():
        requests = task.pending.open_requests()
        if not requests:
            return {"status": "working"}
        shown = {
            name: each.model_dump(by_alias=True, mode="json", exclude_none=True)
            for name, each in requests.items()
        }
        return {"status": "input_required", "inputRequests": shown}
    try:
        if work.cancelled():
            return {"status": "cancelled"}
        return {"status": "completed", "result": task.shape(work.result())}
    except MCPError as error:
        body = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"status": "failed", "error": body}
    except Exception:  # an internal error: its text is not for clients
        failed = {"code": types.INTERNAL_ERROR, "message": "The task failed unexpectedly."}
        return {"status": "failed", "error": failed}


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
