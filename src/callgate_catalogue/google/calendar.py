"""Calendar events, tasks and task lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from callgate import ToolOutput, ToolValidationError
from callgate_catalogue.google.outputs import given, in_lines, listed, one_line, text_output
from callgate_catalogue.google.requests import Call, Google, path
from callgate_catalogue.web.markdown import convert

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z")


def is_day(text: str) -> bool:
    return _DAY.match(text) is not None


def needs_zone(name: str, text: str) -> bool:
    """Return whether the text is a time without a zone."""
    return not is_day(text) and _read(name, text).tzinfo is None


def event_time(name: str, text: str, zone: str | None) -> dict[str, Any]:
    """Return the start or end of an event. A time without a zone is in `zone`."""
    if is_day(text):
        _read(name, text)
        # A PATCH preserves unnamed fields: clear them to turn a timed event into a whole day.
        return {"date": text, "dateTime": None, "timeZone": None}
    moment = _read(name, text)
    fields = {"dateTime": moment.isoformat(), "date": None}
    return fields if zone is None else {**fields, "timeZone": zone}


def instant(name: str, text: str, zone: str | None) -> str:
    """Return an unambiguous moment; a day means its beginning."""
    moment = _read(name, text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(zone or "UTC"))
    return moment.isoformat()


def check_order(start: str, end: str) -> None:
    """Raise `ToolValidationError` if an event would end before it begins."""
    if is_day(start) != is_day(end):
        raise ToolValidationError("start and end: both are times, or both are days.")
    first, last = _read("start", start), _read("end", end)
    if (first.tzinfo is None) == (last.tzinfo is None) and not first < last:
        hint = " The end of whole days is the day after the last." if is_day(start) else ""
        raise ToolValidationError(f"end: it must be after the start.{hint}")


def due_day(text: str) -> str:
    """Return a day in the format of Google Tasks, which has no times."""
    return f"{_read('due', text[:10]).date().isoformat()}T00:00:00.000Z"


def _read(name: str, text: str) -> datetime:
    try:
        if is_day(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day)
        return datetime.fromisoformat(text)
    except ValueError:
        raise ToolValidationError(
            f"{name}: {text!r} is not a time; use 2026-01-31T12:00:00+01:00 or 2026-01-31."
        ) from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ToolValidationError(
            f"timeZone: {name!r} is unknown; use a name such as Europe/Berlin."
        ) from None


_LONGEST_HTML = 8_192
_LONGEST_ABOUT = 500
"""Characters of a description in a list."""


async def list_calendars(call: Call) -> ToolOutput:
    page = await call.google.pages(
        "calendar", "/users/me/calendarList", {}, "items", 1000, "maxResults", 250
    )
    lines = (
        f"{each['id']}  {one_line(each.get('summary', ''))}  {each.get('timeZone', '')}"
        f"  {each.get('accessRole', '')}{'  (primary)' if each.get('primary') else ''}"
        for each in page.items
    )
    return listed(lines, page.items, nothing="There are no calendars", more=page.more)


async def list_events(call: Call) -> ToolOutput:
    input = call.input
    where = path("/calendars/{id}/events", id=input["calendarId"])
    limits = given(input, "timeMin", "timeMax")
    zone = input.get("timeZone")
    bounds = limits.items()
    if zone is None and any(is_day(text) or needs_zone(name, text) for name, text in bounds):
        zone = await _zone_of(call.google, where)
    moments = {name: instant(name, text, zone) for name, text in bounds}
    if "timeMin" not in moments and "timeMax" not in moments:
        moments["timeMin"] = datetime.now(UTC).replace(microsecond=0).isoformat()
    params = {
        **moments,
        "singleEvents": True,
        "orderBy": "startTime",
        "q": input.get("query"),
        "timeZone": input.get("timeZone"),
    }
    page = await call.google.pages(
        "calendar", where, params, "items", input["maxResults"], "maxResults", 2500
    )
    lines = (_line(each) for each in page.items)
    return listed(lines, page.items, nothing="There are no events", more=page.more)


def _line(event: Mapping[str, Any]) -> str:
    location = f"  at {one_line(event['location'])}" if event.get("location") else ""
    people = [one_line(each.get("email", "")) for each in event.get("attendees") or ()]
    beside = f"  with {', '.join(people)}" if people else ""
    title = one_line(event.get("summary", "")) or "(no title)"
    when = f"{_when(event.get('start'))} - {_when(event.get('end'))}"
    online = f"  {event['hangoutLink']}" if event.get("hangoutLink") else ""
    return f"{event['id']}  {when}  {title}{location}{online}{beside}{_about(event)}"


def _about(event: Mapping[str, Any]) -> str:
    """Return the beginning of a description, which Google stores as HTML."""
    markdown = convert(str(event.get("description") or "")[:_LONGEST_HTML], "").markdown
    shown = one_line(markdown)
    more = " ..." if len(shown) > _LONGEST_ABOUT else ""
    return f"\n    {shown[:_LONGEST_ABOUT]}{more}" if shown else ""


def _when(moment: Any) -> str:
    fields = moment or {}
    zone = f" ({fields['timeZone']})" if fields.get("timeZone") else ""
    return f"{fields.get('dateTime') or fields.get('date') or '?'}{zone}"


async def _zone_of(google: Google, events: str) -> str:
    """Return the time zone of a calendar."""
    found = await google.get("calendar", events, {"maxResults": 1, "fields": "timeZone"})
    return str(found.get("timeZone") or "UTC")


async def create_event(call: Call) -> ToolOutput:
    where, event = await _event(call, "/calendars/{id}/events", id=call.input["calendarId"])
    params = given(call.input, "sendUpdates")
    created = await call.google.send("POST", "calendar", where, event, params)
    return _event_output("Created", created)


async def update_event(call: Call) -> ToolOutput:
    where, event = await _event(
        call,
        "/calendars/{id}/events/{event}",
        id=call.input["calendarId"],
        event=call.input["eventId"],
    )
    if not event:
        raise ToolValidationError(
            "Nothing would change: one of summary, start, end, description, location and attendees"
            " is needed."
        )
    params = given(call.input, "sendUpdates")
    return _event_output(
        "Updated", await call.google.send("PATCH", "calendar", where, event, params)
    )


async def _event(call: Call, template: str, **ids: str) -> tuple[str, dict[str, Any]]:
    """Return the location and content of an event."""
    input = call.input
    times, zone = given(input, "start", "end"), input.get("timeZone")
    if len(times) == 2:
        check_order(times["start"], times["end"])
    if zone is None and any(needs_zone(name, text) for name, text in times.items()):
        events = path("/calendars/{id}/events", id=input["calendarId"])
        zone = await _zone_of(call.google, events)
    event = given(input, "summary", "description", "location")
    for name, text in times.items():
        fields = event_time(name, text, zone)
        created = "eventId" not in input
        event[name] = {key: each for key, each in fields.items() if not created or each is not None}
    if "attendees" in input:
        event["attendees"] = [{"email": each} for each in input["attendees"]]
    return path(template, **ids), event


async def delete_event(call: Call) -> ToolOutput:
    event_id = call.input["eventId"]
    where = path("/calendars/{id}/events/{event}", id=call.input["calendarId"], event=event_id)
    params = given(call.input, "sendUpdates")
    await call.google.send("DELETE", "calendar", where, None, params)
    return text_output(f"Deleted the event {event_id}", {"id": event_id})


def _event_output(done: str, event: Mapping[str, Any]) -> ToolOutput:
    link = f"\n{event['htmlLink']}" if event.get("htmlLink") else ""
    return text_output(f"{done}: {_line(event)}{link}", event)


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
    shown = in_lines(map(_task_line, page.items), "There are no tasks", page.more)
    named = "\n".join(f"  {each['id']}  {one_line(each.get('title', ''))}" for each in lists.items)
    return text_output(f"{shown}\n\nLists:\n{named}", value, metadata={"more": page.more})


def _task_line(task: Mapping[str, Any]) -> str:
    mark = "x" if task.get("status") == "completed" else " "
    due = f"  due {task['due'][:10]}" if task.get("due") else ""
    notes = f"\n      {one_line(task['notes'])}" if task.get("notes") else ""
    return f"[{mark}] {task['id']}  {one_line(task.get('title', ''))}{due}{notes}"


def _where(input: Mapping[str, Any]) -> str:
    return path("/lists/{list}/tasks/{task}", list=input["taskListId"], task=input["taskId"])


async def get_task(call: Call) -> ToolOutput:
    task = await call.google.get("tasks", _where(call.input))
    notes = f"\n\n{task['notes']}" if task.get("notes") else ""
    return text_output(_task_line({**task, "notes": ""}) + notes, task)


async def create_task(call: Call) -> ToolOutput:
    where = path("/lists/{list}/tasks", list=call.input["taskListId"])
    task = await call.google.send("POST", "tasks", where, _task_fields(call.input))
    return text_output(f"Created: {_task_line(task)}", task)


async def update_task(call: Call) -> ToolOutput:
    fields = _task_fields({**call.input.get("updates", {}), **call.input})
    if not fields:
        raise ToolValidationError(
            "Nothing would change: one of title, notes, due and status is needed."
        )
    if fields.get("status") == "needsAction":
        fields["completed"] = None
    task = await call.google.send("PATCH", "tasks", _where(call.input), fields)
    return text_output(f"Updated: {_task_line(task)}", task)


def _task_fields(input: Mapping[str, Any]) -> dict[str, Any]:
    fields = given(input, "title", "notes", "status")
    return {**fields, "due": due_day(input["due"])} if "due" in input else fields


async def complete_task(call: Call) -> ToolOutput:
    done = {"status": "completed"}
    task = await call.google.send("PATCH", "tasks", _where(call.input), done)
    return text_output(f"Done: {_task_line(task)}", task)


async def delete_task(call: Call) -> ToolOutput:
    task_id = call.input["taskId"]
    await call.google.send("DELETE", "tasks", _where(call.input))
    return text_output(f"Deleted the task {task_id}", {"id": task_id})
