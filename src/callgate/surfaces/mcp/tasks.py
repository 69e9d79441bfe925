"""Calls that take long, as tasks: the client is told at once, and looks in again when it likes.

    tools/call ---> ended soon: its result
               ---> else a task: working <-> input_required ---> completed | failed | cancelled

For clients of 2026-07-28 that have the extension. A tool with the tag `task` always becomes one,
with `task-required` it needs a client that has it; any other call becomes one when it takes long.
Questions that it asks meanwhile are in `tasks/get`, and `tasks/update` answers them. Nobody but the
client_key who made a call knows of its task.
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

from callgate.surfaces.mcp.pending_requests import RESULTS, Context, PendingRequest

EXTENSION = "io.modelcontextprotocol/tasks"
TASK, REQUIRED = "task", "task-required"
PATIENCE_S = 5.0
"""How long a call may take before it becomes a task."""
KEPT_S = 600.0
"""How long what came of a task can be asked for."""
_POLL_MS = 500
_MOST = 256

Shape = Callable[[Any], dict[str, Any]]
"""A result of the work as `tools/call` answers it. Raises `MCPError`."""


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(alias="inputResponses", default=None)
    """Read one by one: an answer that is none does not spoil the others."""


class Task(NamedTuple):
    client_key: str
    pending: PendingRequest[Any]
    shape: Shape
    created_at: float
    marks: dict[str, float]
    """When it was cancelled, and when it was last seen to be another than before."""


def wants_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return modern and capabilities is not None and EXTENSION in (capabilities.extensions or {})


def ensure_named(ctx: Context, id: str) -> None:
    """By HTTP the task stands in a header, too, for whoever passes the request on."""
    ensure_wanted(ctx)
    if isinstance(ctx.request, Request) and ctx.request.headers.get("mcp-name") != id:
        raise MCPError(types.HEADER_MISMATCH, "Mcp-Name must be the id of the task.")


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
        """The answer to the call that becomes a task."""
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
            raise MCPError(types.INVALID_PARAMS, "There is no such task.")
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
        """Those that ended long ago; and if there are too many, the oldest."""
        now = self._clock()
        for id, task in list(self._tasks.items()):
            if task.pending.task.done() and now - task.marks["changed"] > KEPT_S:
                del self._tasks[id]
        while len(self._tasks) >= _MOST:
            self._tasks.pop(next(iter(self._tasks))).pending.end()


def _read(
    requests: Mapping[str, types.InputRequest], responses: Mapping[str, object]
) -> dict[str, object]:
    """The answers to what is asked, as values of the protocol."""
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
    except Exception:  # of work that is not a tool's: its text is not for others
        failed = {"code": types.INTERNAL_ERROR, "message": "The task failed unexpectedly."}
        return {"status": "failed", "error": failed}


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
