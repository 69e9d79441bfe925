"""Times: each is of some zone, and the same moment whoever writes it."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.errors import ToolErrorClass
from tests.catalogue.google.desk import EVENT, Desk


@pytest.mark.parametrize(
    ("said", "start"),
    [
        (
            {"start": "2035-02-01T16:00:00+09:00", "end": "2035-02-01T17:00:00+09:00"},
            {"dateTime": "2035-02-01T16:00:00+09:00"},
        ),
        ({"start": "2035-02-01T16:00:00Z", "end": "2035-02-01T17:00:00Z"}, {"dateTime": "2035-02-01T16:00:00+00:00"}),
        (
            {"start": "2035-02-01T16:00", "end": "2035-02-01T17:00"},
            {"dateTime": "2035-02-01T16:00:00", "timeZone": "Europe/Berlin"},
        ),
        (
            {"start": "2035-02-01T16:00", "end": "2035-02-01T17:00", "timeZone": "Asia/Tokyo"},
            {"dateTime": "2035-02-01T16:00:00", "timeZone": "Asia/Tokyo"},
        ),
        ({"start": "2035-02-01", "end": "2035-02-03"}, {"date": "2035-02-01"}),
    ],
)
async def test_an_event_begins_when_it_was_said(said: dict[str, str], start: dict[str, str], desk: Desk) -> None:
    made = await desk.value("calendar_create", summary="S", **said)
    assert desk.google.calendars.events[made["id"]]["start"] == start


@pytest.mark.parametrize(
    "said",
    [
        {"start": "tomorrow at 10", "end": "2035-02-01T17:00:00Z"},
        {"start": "noon", "end": "2035-02-01T17:00:00Z"},
        {"start": "2035-02-01T17:00:00Z", "end": "2035-02-01T16:00:00Z"},
        {"start": "2035-02-01T17:00:00+02:00", "end": "2035-02-01T15:00:00Z"},
        {"start": "2035-02-01", "end": "2035-02-01"},
        {"start": "2035-02-01", "end": "2035-02-01T17:00:00Z"},
        {"start": "2035-02-31", "end": "2035-03-01"},
        {"start": "2035-02-01T25:00:00Z", "end": "2035-02-01T26:00:00Z"},
    ],
    ids=lambda said: said["start"],
)
async def test_a_time_that_is_none_is_refused_before_anything_is_sent(said: dict[str, str], desk: Desk) -> None:
    result = await desk.call("calendar_create", summary="S", **said)
    assert result.error is not None
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert desk.google.exchanges == []


async def test_an_event_of_an_hour_can_become_one_of_a_day_and_back(desk: Desk) -> None:
    await desk.value("calendar_update", eventId=EVENT, start="2035-02-01", end="2035-02-02")
    assert desk.google.calendars.events[EVENT]["start"] == {"date": "2035-02-01"}
    await desk.value("calendar_update", eventId=EVENT, start="2035-02-01T10:00", end="2035-02-01T11:00")
    assert desk.google.calendars.events[EVENT]["start"] == {
        "dateTime": "2035-02-01T10:00:00",
        "timeZone": "Europe/Berlin",
    }
    assert desk.google.calendars.events[EVENT]["summary"] == "Standup"


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"timeMin": "2035-07-01T00:00:00Z"}, {"timeMin": "2035-07-01T00:00:00+00:00"}),
        ({"timeMin": "2035-07-01"}, {"timeMin": "2035-07-01T00:00:00+02:00"}),
        ({"timeMin": "2035-01-01T09:00"}, {"timeMin": "2035-01-01T09:00:00+01:00"}),
        ({"timeMax": "2035-01-01T09:00", "timeZone": "America/New_York"}, {"timeMax": "2035-01-01T09:00:00-05:00"}),
    ],
)
async def test_a_day_begins_where_the_calendar_is(said: dict[str, str], asked: dict[str, str], desk: Desk) -> None:
    await desk.value("calendar_events", **said)
    query = dict(desk.google.asked()[-1].query)
    assert {name: query[name] for name in ("timeMin", "timeMax") if name in query} == asked


async def test_without_a_time_events_from_now_on_are_listed_in_order(desk: Desk) -> None:
    desk.google.calendars.put(summary="Past", start={"date": "2001-01-01"}, end={"date": "2001-01-02"})
    desk.google.calendars.put(summary="First", start={"date": "2034-01-01"}, end={"date": "2034-01-02"})
    result = await desk.call("calendar_events")
    assert [each["summary"] for each in result.value] == ["First", "Standup"]
    assert "2035-01-31T09:00:00+01:00" in result.text


async def test_an_event_says_what_it_is_about(desk: Desk) -> None:
    desk.google.calendars.put(
        summary="Plan\u202e\U000e0041",
        start={"date": "2034-01-01"},
        end={"date": "2034-01-02"},
        hangoutLink="https://meet.example/abc",
        description="<p>Bring <b>tea</b>.</p><ul><li>one</ul>" + "x" * 600,
    )
    result = await desk.call("calendar_events", maxResults=1)
    first, second, more = result.text.splitlines()
    assert first == "event0002  2034-01-01 - 2034-01-02  Plan  https://meet.example/abc"
    assert second.startswith("    Bring tea. - one") and second.endswith("xx ...") and len(second) == 508
    assert more == "[the first 1; there are more]"


@pytest.mark.parametrize("said", [{}, {"timeZone": "Asia/Tokyo"}, {"sendUpdates": "all"}])
async def test_a_change_of_nothing_is_none(said: dict[str, str], desk: Desk) -> None:
    result = await desk.call("calendar_update", eventId=EVENT, **said)
    assert result.error is not None
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert desk.google.exchanges == []


async def test_a_zone_that_nobody_knows_is_refused(desk: Desk) -> None:
    for zone in ("Mars/Base", "../../etc/passwd", "/etc/passwd"):
        result = await desk.call("calendar_events", timeMin="2035-01-01", timeZone=zone)
        assert result.error is not None
        assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR


async def test_nobody_is_told_unless_it_is_said(desk: Desk) -> None:
    said: dict[str, Any] = {
        "summary": "S",
        "start": "2035-02-01",
        "end": "2035-02-02",
        "attendees": ["bob@example.org"],
    }
    await desk.value("calendar_create", **said)
    await desk.value("calendar_create", **said, sendUpdates="all")
    assert desk.google.calendars.told == ["none", "all"]
