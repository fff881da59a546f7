"""Tasks in a calendar application: what it reads is what we do (T-064)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from dateutil.tz import tzical
from hypothesis import given, settings
from hypothesis import strategies as st
from icalendar import Calendar

from tests.tiers import examples
from wintermute.tasks.due import in_gap, instant, next_due, upcoming
from wintermute.tasks.ical import calendar, described
from wintermute.tasks.schedules import KINDS, Interval, Plan, RecurrenceRule, Schedule
from wintermute.tasks.tasks import Task
from wintermute.text import harmless, one_line

BERLIN, ZULU = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
MADE = datetime(2026, 3, 20, 12, 0, tzinfo=UTC)
SUMMER = datetime(2026, 6, 20, 12, 0, tzinfo=UTC)
COMPARED = 60


def planned(schedule: Schedule | None, zone: ZoneInfo = BERLIN, now: datetime = MADE) -> Task:
    """A task as it is stored at a moment."""
    return Task(
        id="task_ab12cd34",
        scope="person:@ann:test",
        content="Water the plants",
        priority=5,
        status="active",
        created_at=MADE,
        plan=Plan(schedule=schedule),
        next_due=next_due(schedule, now, zone) if schedule else None,
    )


def read(task: Task, zone: ZoneInfo = BERLIN) -> Any:
    """The only entry of the calendar, as the library reads it."""
    whole = Calendar.from_ical(calendar([task], zone))
    [entry] = [part for part in whole.subcomponents if part.name != "VTIMEZONE"]
    return entry


def expanded(event: Any, zone: ZoneInfo) -> Iterator[datetime]:
    """The moments of an event, by dateutil; wall clock times in gaps are moved as we do."""
    start = event["DTSTART"].dt
    if "RRULE" not in event:
        more = event.get("RDATE")
        dates = [start, *([date.dt for date in more.dts] if more else [])]
        yield from (date.astimezone(UTC) for date in dates)
        return
    rule = rrulestr(event["RRULE"].to_ical().decode(), dtstart=start)
    yield from (moment(date, zone) for date in rule)


def moment(date: datetime, zone: ZoneInfo) -> datetime:
    """The moment of a date of the calendar."""
    told_in = ZULU if str(date.tzinfo) == "UTC" else zone
    return instant(date.replace(tzinfo=None), told_in)


def every(seconds: int, *window: str, start: str = "2026-03-20T12:00:00+00:00") -> Schedule:
    between = (window[0], window[1]) if window else None
    return Interval(at=start, seconds=seconds, window=between)


def ruled(start: str, rule: str) -> Schedule:
    return RecurrenceRule(at=start, rrule=rule)


def by_clock(kind: Any, at: str, **more: Any) -> Schedule:
    return KINDS[kind](at=at, **more)


SCHEDULES = {
    "daily, over the change of the clock": by_clock("daily", "09:00:00"),
    "daily, in the gap of 29 March": by_clock("daily", "02:30:00"),
    "daily, with seconds": by_clock("daily", "18:30:15"),
    "weekly": by_clock("weekly", "08:00:00", days=(0, 3)),
    "weekly, the last day": by_clock("weekly", "23:59:00", days=(6,)),
    "monthly": by_clock("monthly", "09:00:00", day=15),
    "monthly, always": by_clock("monthly", "09:00:00", day=28),
    "monthly, clamped in February": by_clock("monthly", "09:00:00", day=29),
    "monthly, clamped in February too": by_clock("monthly", "09:00:00", day=30),
    "monthly, its last day": by_clock("monthly", "09:00:00", day=31),
    "once": by_clock("once", "2026-05-01T09:00:00"),
    "once, in the gap": by_clock("once", "2026-03-29T02:30:00"),
    "once, the first of two": by_clock("once", "2026-10-25T02:30:00"),
    "once, the second of two": by_clock("once", "2026-10-25T01:30:00+00:00"),
    "every 90 minutes": every(5400),
    "every 61 seconds": every(61),
    "every 3 hours": every(3 * 3600),
    "every 2 days": every(2 * 86_400),
    "every hour of the working day": every(3600, "09:00:00", "17:00:00"),
    "every 45 minutes of it": every(2700, "09:00:00", "17:00:00"),
    "every 61 seconds of an hour": every(61, "09:00:00", "10:00:00"),
    "rule": ruled("2026-03-24T08:00:00", "FREQ=WEEKLY;BYDAY=MO,WE"),
    "rule with a count": ruled("2026-03-24T08:00:00", "FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4"),
    "rule until a day": ruled("2026-03-24T08:00:00", "FREQ=DAILY;UNTIL=20260410"),
    "rule until a local time": ruled("2026-03-24T08:00:00", "FREQ=DAILY;UNTIL=20260410T075959"),
    "rule until an instant": ruled("2026-03-24T08:00:00", "FREQ=DAILY;UNTIL=20260410T060000Z"),
    "rule until just before": ruled("2026-03-24T08:00:00", "FREQ=DAILY;UNTIL=20260410T055959Z"),
    "rule of every second week": ruled(
        "2026-03-24T08:00:00", "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=MO,FR"
    ),
    "rule of last Fridays": ruled("2026-03-24T08:00:00", "FREQ=MONTHLY;BYDAY=-1FR"),
    "rule of last working days": ruled(
        "2026-03-24T08:00:00", "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=10"
    ),
    "rule of a day": ruled("2026-03-31T08:00:00", "FREQ=MONTHLY"),
    "rule of a year": ruled("2026-03-24T08:00:00", "FREQ=YEARLY;BYMONTH=1,5;BYMONTHDAY=+1,-1"),
    "rule of a week number": ruled("2026-03-24T08:00:00", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO"),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("zone", [BERLIN, ZULU], ids=str)
def test_an_event_recurs_as_the_task_is_due(schedule: Schedule, zone: ZoneInfo) -> None:
    """T-064: from the next due time on, also over a change of the clock."""
    event = read(planned(schedule, zone), zone)
    due = upcoming(schedule, MADE, zone, COMPARED)
    assert tuple(islice(expanded(event, zone), COMPARED)) == due
    # Applications count DTSTART as the first date, whatever the rule says.
    assert moment(event["DTSTART"].dt, zone) == due[0]


@pytest.mark.parametrize("seconds", [5400, 3600, 1800, 61, 7200])
def test_a_window_over_midnight_is_told_between_changes_of_the_clock(seconds: int) -> None:
    """T-024: what a rule of 366 positions cannot say is told as the next hundred moments."""
    schedule = every(seconds, "22:00:00", "06:00:00")
    event = read(planned(schedule, now=SUMMER))
    due = upcoming(schedule, SUMMER, BERLIN, 100)
    assert ("RRULE" in event) == (seconds != 61)
    assert tuple(islice(expanded(event, BERLIN), 100)) == due


def test_a_window_is_not_told_from_a_time_that_comes_twice() -> None:
    """T-030: a local time in a calendar is the first of two, and now is between them."""
    between = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
    event = read(planned(every(1800, "01:00:00", "05:00:00"), now=between))
    assert event["DTSTART"].dt.astimezone(UTC) == datetime(2026, 10, 25, 2, 0, tzinfo=UTC)


@settings(max_examples=examples(60), deadline=None)
@given(
    minutes=st.integers(1, 400),
    seconds=st.sampled_from([0, 0, 0, 1, 30]),
    opens=st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    length=st.integers(400, 1439),
)
def test_any_window_is_told_exactly(minutes: int, seconds: int, opens: Any, length: int) -> None:
    """T-024."""
    closes = (datetime.combine(MADE, opens) + timedelta(minutes=length)).time()
    schedule = every(minutes * 60 + seconds, opens.isoformat(), closes.isoformat())
    event = read(planned(schedule, ZULU), ZULU)
    assert tuple(islice(expanded(event, ZULU), 100)) == upcoming(schedule, MADE, ZULU, 100)


def test_times_stand_in_the_configured_zone() -> None:
    """What follows the wall clock is local with its zone; elapsed time is counted in UTC."""
    text = calendar([planned(SCHEDULES["daily, over the change of the clock"])], BERLIN)
    assert b"DTSTART;TZID=Europe/Berlin:20260321T090000\r\n" in text
    assert text.count(b"TZID:Europe/Berlin\r\n") == 1
    alone = calendar([planned(every(5400))], BERLIN)
    assert b"DTSTART:20260320T133000Z\r\nD" in alone
    assert b"VTIMEZONE" not in alone
    assert b"VTIMEZONE" not in calendar([planned(by_clock("daily", "09:00:00"), ZULU)], ZULU)


@pytest.mark.parametrize("key", ["Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_the_zone_is_described_for_those_who_do_not_know_it(key: str) -> None:
    """RFC 5545, 3.6.5: also the hour of a change is right."""
    zone = ZoneInfo(key)
    text = f"BEGIN:VCALENDAR\r\n{described(zone, 2025, 2027).to_ical().decode()}END:VCALENDAR\r\n"
    found = tzical(StringIO(text)).get(key)
    first = datetime.fromisoformat("2025-01-01T12:00")
    walls = [first + timedelta(minutes=30 * number) for number in range(2 * 365 * 48)]
    wrong = [
        wall
        for wall in walls
        if not in_gap(wall, zone)
        and wall.replace(tzinfo=found).utcoffset() != wall.replace(tzinfo=zone).utcoffset()
    ]
    assert wrong == []


def test_a_task_without_a_schedule_is_a_thing_to_do() -> None:
    """T-064."""
    todo = read(planned(None))
    assert (todo.name, todo["UID"]) == ("VTODO", "task_ab12cd34@wintermute")
    assert (str(todo["SUMMARY"]), todo["STATUS"]) == ("Water the plants", "NEEDS-ACTION")


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (5, 5), (9, 9), (10, 9)])
def test_a_priority_is_one_of_nine(ours: int, theirs: int) -> None:
    task = planned(None)
    assert read(_with(task, priority=ours))["PRIORITY"] == theirs


@pytest.mark.parametrize("status", ["paused", "completed", "deleted"])
def test_only_what_is_active_is_in_the_calendar(status: Any) -> None:
    task = _with(planned(by_clock("daily", "09:00:00")), status=status)
    assert Calendar.from_ical(calendar([task], BERLIN)).subcomponents == []


def test_two_exports_are_the_same_bytes() -> None:
    tasks = [planned(schedule) for schedule in SCHEDULES.values()]
    assert calendar(tasks, BERLIN) == calendar(list(tasks), ZoneInfo("Europe/Berlin"))


def test_what_was_put_off_keeps_its_place() -> None:
    """T-063: a single time moves; a series stays as it is."""
    later = MADE + timedelta(minutes=10)
    single = read(_with(planned(by_clock("once", "2026-03-20T12:00:00")), next_due=later))
    assert single["DTSTART"].dt == later
    series = by_clock("daily", "09:00:00")
    event = read(_with(planned(series), next_due=later))
    assert event["DTSTART"].dt == next_due(series, MADE, BERLIN)


HOSTILE = "a\r\nEND:VEVENT\r\nBEGIN:VEVENT\nSUMMARY:b;c,d\\n\\\x00\x07\x85\u2028\u202e\ud800é🌱"
CONTROLS = {*range(32), 127} - {ord("\t")}


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "x" * 2000, "🌱" * 500, "\\", ";", ",", ":", '"', "\\n", "\ufeff", "\ufeffa\ufeff"],
)
def test_hostile_text_stays_where_it_is(text: str) -> None:
    """T-064."""
    _check_text(text, text)


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_comes_back_as_it_was(content: str, prompt: str) -> None:
    """T-064."""
    _check_text(content, prompt)


def _check_text(content: str, prompt: str) -> None:
    schedule = by_clock("daily", "09:00:00")
    plan = Plan(schedule=schedule, mode="autonomous_notify", ai_prompt=prompt)
    task = _with(planned(schedule), content=content, plan=plan)
    lines = calendar([task], ZULU).split(b"\r\n")
    assert all(len(line) <= 75 for line in lines)
    assert not any(set(line) & CONTROLS for line in lines)
    assert lines.count(b"BEGIN:VEVENT") == lines.count(b"END:VEVENT") == 1
    event = read(task, ZULU)
    assert str(event["SUMMARY"]) == one_line(content)
    assert str(event.get("DESCRIPTION", "")) == harmless(prompt)


def _with(task: Task, **fields: Any) -> Task:
    return Task(**{**{name: getattr(task, name) for name in Task.__slots__}, **fields})
