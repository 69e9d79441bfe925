"""Tasks and the lists they are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate import ToolOutput, ToolValidationError
from callgate_catalogue.google.moments import due_day
from callgate_catalogue.google.outputs import given, in_lines, one_line, text_output
from callgate_catalogue.google.requests import Call, path


async def list_tasks(call: Call) -> ToolOutput:
    input = call.input
    where = path("/lists/{list}/tasks", list=input["taskListId"])
    done = input["showCompleted"]
    params = {"showCompleted": done, "showHidden": done or None}
    page = await call.google.pages(
        "tasks", where, params, "items", input["maxResults"], "maxResults", 100
    )
    lists = await call.google.pages(
        "tasks", "/users/@me/lists", {}, "items", 1000, "maxResults", 1000
    )
    value = {
        "tasks": page.items,
        "taskLists": [given(each, "id", "title") for each in lists.items],
    }
    shown = in_lines(map(_line, page.items), "There are no tasks", page.more)
    named = "\n".join(f"  {each['id']}  {one_line(each.get('title', ''))}" for each in lists.items)
    return text_output(f"{shown}\n\nLists:\n{named}", value, metadata={"more": page.more})


def _line(task: Mapping[str, Any]) -> str:
    mark = "x" if task.get("status") == "completed" else " "
    due = f"  due {task['due'][:10]}" if task.get("due") else ""
    notes = f"\n      {one_line(task['notes'])}" if task.get("notes") else ""
    return f"[{mark}] {task['id']}  {one_line(task.get('title', ''))}{due}{notes}"


def _where(input: Mapping[str, Any]) -> str:
    return path("/lists/{list}/tasks/{task}", list=input["taskListId"], task=input["taskId"])


async def get_task(call: Call) -> ToolOutput:
    task = await call.google.get("tasks", _where(call.input))
    notes = f"\n\n{task['notes']}" if task.get("notes") else ""
    return text_output(_line({**task, "notes": ""}) + notes, task)


async def create_task(call: Call) -> ToolOutput:
    where = path("/lists/{list}/tasks", list=call.input["taskListId"])
    task = await call.google.send("POST", "tasks", where, _task_fields(call.input))
    return text_output(f"Created: {_line(task)}", task)


async def update_task(call: Call) -> ToolOutput:
    fields = _task_fields({**call.input.get("updates", {}), **call.input})
    if not fields:
        raise ToolValidationError(
            "Nothing would change: one of title, notes, due and status is needed."
        )
    if fields.get("status") == "needsAction":
        fields["completed"] = None
    task = await call.google.send("PATCH", "tasks", _where(call.input), fields)
    return text_output(f"Updated: {_line(task)}", task)


def _task_fields(input: Mapping[str, Any]) -> dict[str, Any]:
    fields = given(input, "title", "notes", "status")
    return {**fields, "due": due_day(input["due"])} if "due" in input else fields


async def complete_task(call: Call) -> ToolOutput:
    done = {"status": "completed"}
    task = await call.google.send("PATCH", "tasks", _where(call.input), done)
    return text_output(f"Done: {_line(task)}", task)


async def delete_task(call: Call) -> ToolOutput:
    task_id = call.input["taskId"]
    await call.google.send("DELETE", "tasks", _where(call.input))
    return text_output(f"Deleted the task {task_id}", {"id": task_id})
