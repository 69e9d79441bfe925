"""Calendars and their events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from callgate import ToolOutput, ToolValidationError
from callgate_catalogue.google.moments import check_order, event_time, instant, is_day, needs_zone
from callgate_catalogue.google.outputs import given, listed, one_line, text_output
from callgate_catalogue.google.requests import Call, Google, path
from callgate_catalogue.web.markdown import convert

_LONGEST_HTML = 8_192
_LONGEST_ABOUT = 500
"""Characters of a description, in a list."""


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
    """The beginning of a description, which Google keeps as HTML."""
    markdown = convert(str(event.get("description") or "")[:_LONGEST_HTML], "").markdown
    shown = one_line(markdown)
    more = " ..." if len(shown) > _LONGEST_ABOUT else ""
    return f"\n    {shown[:_LONGEST_ABOUT]}{more}" if shown else ""


def _when(moment: Any) -> str:
    fields = moment or {}
    zone = f" ({fields['timeZone']})" if fields.get("timeZone") else ""
    return f"{fields.get('dateTime') or fields.get('date') or '?'}{zone}"


async def _zone_of(google: Google, events: str) -> str:
    """In which a calendar counts."""
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
    """Where it is, and what it is to say."""
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
