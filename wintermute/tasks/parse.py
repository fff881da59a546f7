"""What a tool call, a command line or a chat line says about when and how, read strictly.

What can be misread is refused (T-018), with what to write instead.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from wintermute.errors import ToolFailed
from wintermute.tasks.due import (
    DAYS,
    KINDS,
    MODES,
    UNPLANNED,
    FiringMode,
    Plan,
    Schedule,
    ScheduleKind,
    checked_rule,
    comes_twice,
    in_gap,
    instant,
    next_due,
)
from wintermute.text import clean, one_line

CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
ISO = rf"(?P<date>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:t| )(?P<clock>{CLOCK})(?:\.[0-9]+)?(?P<offset>z|[+-][0-9]{{2}}:?[0-9]{{2}})?"
DAY = rf"(?:(?P<day>today|tomorrow) )?(?P<time>{CLOCK})"
DISTANCE = r"in (?P<number>[0-9]{1,9}) (?P<unit>minutes?|min|hours?|h|days?|weeks?)(?![0-9a-z])"
FORMS = f"{ISO}|{DAY}|{DISTANCE}"
"""What `moment` reads, in small letters and with single blanks."""

FURTHEST = timedelta(days=36_525)
SHOWN = 60
ELAPSED = {"m": timedelta(minutes=1), "h": timedelta(hours=1)}
DAYS_OF = {"d": 1, "w": 7}


def moment(text: str, now: datetime, zone: ZoneInfo) -> str:
    """The `at` of a schedule `once` (T-017): a wall clock time, or with an offset an instant in UTC."""
    at = readable(text, now, zone)
    if at is None:
        raise ToolFailed(
            f"at '{shown(text)}' cannot be read; write for example "
            f"{now.astimezone(zone) + timedelta(days=1):%Y-%m-%d}T09:00 or in 30 minutes"
        )
    return checked(at, text, now, zone).isoformat()


def checked(at: datetime, text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """The moment, if it is still to come (T-019)."""
    # Years first: at the ends of the calendar there are no time zones.
    past, far = at.year < now.year - 1, at.year > now.year + 101
    if not past and not far:
        when = at if at.tzinfo else instant(at, zone)
        past, far = when <= now, when > now + FURTHEST
    if past:
        raise ToolFailed(f"at '{shown(text)}': that time has passed, it is {local(now, zone)} now")
    if far:
        raise ToolFailed(f"at '{shown(text)}' is more than a hundred years ahead")
    return at


def local(when: datetime, zone: ZoneInfo) -> str:
    """A moment with weekday, date, time and zone."""
    return f"{when.astimezone(zone):%a %Y-%m-%d %H:%M} {zone.key}"


def shown(text: str) -> str:
    """What was written, short and harmless."""
    return one_line(text)[:SHOWN]


def readable(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """The wall clock time or the instant that is meant; None if it cannot be read."""
    found = re.fullmatch(FORMS, " ".join(text.lower().split()))
    if found is None:
        return None
    if found["unit"]:
        return _ahead(int(found["number"]), found["unit"][0], now, zone)
    if found["date"]:
        return _iso(found["date"], found["clock"], found["offset"])
    clock = clock_time(found["time"])
    return None if clock is None else _by_clock(found["day"], clock, now, zone)


def clock_time(text: str) -> time | None:
    """`9:00`, `09:00` or `09:00:30`; None if it is no time of day."""
    text = text.strip()
    if not re.fullmatch(CLOCK, text):
        return None
    try:
        return time.fromisoformat(text if text[1] != ":" else f"0{text}")
    except ValueError:
        return None


def coming(clock: time, now: datetime, zone: ZoneInfo) -> datetime:
    """The wall clock time on the first day on which it is still to come."""
    today = datetime.combine(now.astimezone(zone).date(), clock)
    return today if instant(today, zone) > now else today + timedelta(days=1)


def _by_clock(day: str | None, clock: time, now: datetime, zone: ZoneInfo) -> datetime:
    if day is None:
        return coming(clock, now, zone)
    today = datetime.combine(now.astimezone(zone).date(), clock)
    return today + timedelta(days=day == "tomorrow")


def _iso(day: str, clock: str, offset: str | None) -> datetime | None:
    at = clock_time(clock)
    if at is None:
        return None
    try:
        wall = datetime.combine(date.fromisoformat(day), at)
        return datetime.fromisoformat(f"{wall}{offset.upper()}").astimezone(UTC) if offset else wall
    except (ValueError, OverflowError):
        return None


def _ahead(number: int, unit: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Minutes and hours are elapsed time; days and weeks keep the time of day.

    More than can be counted is as good as the furthest that is too far.
    """
    most = FURTHEST.days + 366
    if unit in ELAPSED:
        ahead = min(number, most * 24 * 60) * ELAPSED[unit]
        return now.astimezone(UTC).replace(microsecond=0) + min(ahead, timedelta(days=most))
    today = now.astimezone(zone).replace(tzinfo=None, fold=0, microsecond=0)
    return today + timedelta(days=min(number * DAYS_OF[unit], most))


NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LEAST_SECONDS = 60
MOST_SECONDS = 366 * 24 * 60 * 60


def time_of_day(name: str, text: str) -> str:
    """`9:00`, `09:00` or `09:00:30` as it is stored."""
    clock = clock_time(text)
    if clock is None:
        raise ToolFailed(
            f"{name} '{shown(text)}' is no time of day; write for example 09:00 or 18:30"
        )
    return clock.isoformat()


def weekdays(text: str) -> tuple[int, ...]:
    """English names or their first three letters, in any case, with commas between them (T-021)."""
    found = set()
    for word in text.lower().split(","):
        name = word.strip()
        if name not in DAYS and name not in NAMES:
            raise ToolFailed(
                f"day_of_week '{shown(name)}' is no day; write for example mon,thu or monday"
            )
        found.add(DAYS.index(name[:3]))
    return tuple(sorted(found))


def day_of_month(day: int) -> int:
    """From 1 to 31; in shorter months it is the last day (T-022)."""
    if not 1 <= day <= 31:
        raise ToolFailed("day_of_month must be from 1 to 31; 31 is the last day of every month")
    return day


def pace(seconds: int) -> int:
    """How many seconds lie between two due moments (T-023)."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ToolFailed(
            f"interval_seconds must be from {LEAST_SECONDS} to {MOST_SECONDS} (366 days)"
        )
    return seconds


def window(start: str | None, end: str | None, seconds: int) -> tuple[str, str] | None:
    """The times of day between which an interval is due (T-024); `none` twice takes them away."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise ToolFailed("window_start and window_end are given together, as in 22:00 and 06:00")
    if start.strip().lower() == end.strip().lower() == "none":
        return None
    opens, closes = time_of_day("window_start", start), time_of_day("window_end", end)
    if opens == closes:
        raise ToolFailed("window_start and window_end are equal; leave out both for the whole day")
    length = datetime.fromisoformat(f"2000-01-01T{closes}") - datetime.fromisoformat(
        f"2000-01-01T{opens}"
    )
    if length % timedelta(days=1) < timedelta(seconds=seconds):
        raise ToolFailed(
            f"the window from window_start to window_end is shorter than interval_seconds {seconds};"
            " for once a day use schedule_type daily"
        )
    return opens, closes


def first_time(text: str, now: datetime, zone: ZoneInfo) -> str:
    """The wall clock time from which a rule counts: of the first day on which it is still to come."""
    clock = clock_time(text)
    if clock is not None:
        return coming(clock, now, zone).isoformat()
    start = readable(text, now, zone) if text.strip()[:1].isdigit() else None
    if start is None or start.tzinfo is not None:
        raise ToolFailed(
            f"at '{shown(text)}' cannot be read; with rrule write for example 09:00, or "
            f"{now.astimezone(zone) + timedelta(days=1):%Y-%m-%d}T09:00 without an offset"
        )
    return checked(start, text, now, zone).isoformat()


MOST_PROMPT_CHARACTERS = 4000
RULE_DEADLINE = 2.0
"""Seconds that the search for the first date of a rule may take."""
MOST_WORDS = 8
"""Of a chat line about when: all seven days and a time."""

TAKEN: dict[ScheduleKind, tuple[str, ...]] = {
    "once": ("at",),
    "daily": ("at",),
    "weekly": ("at", "day_of_week"),
    "monthly": ("at", "day_of_month"),
    "interval": ("interval_seconds", "window_start", "window_end"),
    "rrule": ("at", "rrule"),
}
"""What goes with each schedule_type (T-026)."""
OPTIONAL = {"window_start", "window_end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was said; None: nothing."""

    schedule_type: str | None = None
    at: str | None = None
    day_of_week: str | None = None
    day_of_month: int | None = None
    interval_seconds: int | None = None
    window_start: str | None = None
    window_end: str | None = None
    rrule: str | None = None
    execution_mode: str | None = None
    ai_prompt: str | None = None

    @classmethod
    def of(cls, args: Mapping[str, object]) -> "Asked":
        """What is among these arguments. A blank text says nothing; of ai_prompt it says: none."""
        names = [field.name for field in fields(cls) if args.get(field.name) is not None]
        return cls(**{name: _typed(name, args[name]) for name in names if not _blank(name, args)})

    @property
    def is_empty(self) -> bool:
        """Whether neither a schedule nor a mode is asked for."""
        return self == NOTHING

    @property
    def times(self) -> bool:
        """Whether anything about the schedule is asked."""
        return self.schedule_type is not None or bool(_times(self))


NOTHING = Asked()


async def planned(asked: Asked, now: datetime, zone: ZoneInfo, before: Plan = UNPLANNED) -> Plan:
    """What is to happen, after what was said; what was not said stays as it was."""
    schedule = before.schedule
    if asked.times:
        schedule = await _schedule(asked, now, zone, before.schedule)
    mode, ai_prompt = _execution(asked, before)
    if mode != "reminder" and schedule is None:
        raise ToolFailed(
            f"execution_mode {mode} needs a schedule_type; without one it must be reminder"
        )
    return Plan(schedule=schedule, mode=mode, ai_prompt=ai_prompt)


def remarks(schedule: Schedule | None, due: datetime | None, zone: ZoneInfo) -> str:
    """What must be pointed out about the schedule (T-022, T-032); empty: nothing."""
    if schedule is None:
        return ""
    if schedule.kind == "monthly" and schedule.day > 28:
        return f"in a month without a day {schedule.day} it is due on the last day"
    if schedule.kind != "once" or due is None:
        return ""
    at = datetime.fromisoformat(schedule.at)
    if at.tzinfo is None and in_gap(at, zone):
        there = due.astimezone(zone)
        return f"{at:%Y-%m-%d %H:%M} does not exist there; it is due at {there:%Y-%m-%d %H:%M}"
    if at.tzinfo is None and comes_twice(at, zone):
        return f"{at:%Y-%m-%d %H:%M} comes twice there; the first is meant"
    return ""


def chat_line(text: str, now: datetime, zone: ZoneInfo) -> tuple[Asked, str] | None:
    """What follows `/remind` (T-062): when, and what; None if it is none of the forms."""
    for length in range(1, MOST_WORDS + 1):
        words = text.split(maxsplit=length)
        asked = _said(" ".join(words[:length]), now, zone)
        if asked is not None and len(words) > length:
            return asked, words[length].strip()
    return None


def _said(when: str, now: datetime, zone: ZoneInfo) -> Asked | None:
    if readable(when, now, zone) is not None:
        return Asked(schedule_type="once", at=when)
    days, _, at = when.rpartition(" ")
    if clock_time(at) is None:
        return None
    if days.lower() == "daily":
        return Asked(schedule_type="daily", at=at)
    try:
        weekdays(days)
    except ToolFailed:
        return None
    return Asked(schedule_type="weekly", day_of_week=days, at=at)


def _blank(name: str, args: Mapping[str, object]) -> bool:
    value = args[name]
    return name != "ai_prompt" and isinstance(value, str) and not value.strip()


def _typed(name: str, value: object) -> Any:
    number = name in {"day_of_month", "interval_seconds"}
    if number and isinstance(value, int) and not isinstance(value, bool):
        return value
    if not number and isinstance(value, str):
        return value
    raise ToolFailed(f"{name} must be {'a whole number' if number else 'a text'}")


def _times(asked: Asked) -> dict[str, str | int]:
    """What is asked about the schedule, without its type."""
    other = {"schedule_type", "execution_mode", "ai_prompt"}
    return {
        name: value
        for name, value in asdict(asked).items()
        if value is not None and name not in other
    }


async def _schedule(
    asked: Asked, now: datetime, zone: ZoneInfo, before: Schedule | None
) -> Schedule | None:
    given = _times(asked)
    kind = _kind(asked.schedule_type, before, given)
    _check_together(kind, given)
    if kind is None:
        return None
    if before is not None and before.kind == kind:
        if not given:
            return before
        given = {**_present(before, now, zone), **given}
    lacking = [name for name in TAKEN[kind] if name not in given and name not in OPTIONAL]
    if lacking:
        raise ToolFailed(f"schedule_type {kind} needs {' and '.join(lacking)}")
    schedule = _read(kind, Asked.of(given), now, zone)
    if kind == "rrule":
        await _check_coming(schedule, now, zone)
    return schedule


def _kind(
    text: str | None, before: Schedule | None, given: Mapping[str, object]
) -> ScheduleKind | None:
    """What sort of schedule it is to be; None: none."""
    if text is None:
        if before is None:
            raise ToolFailed(
                f"{' and '.join(given)} needs a schedule_type: once for a single time, or "
                f"{', '.join(KINDS[1:-1])} or {KINDS[-1]}"
            )
        return before.kind
    name = text.strip().lower()
    kind = next((kind for kind in KINDS if kind == name), None)
    if kind is None and name != "none":
        raise ToolFailed(
            f"schedule_type '{shown(text)}' is unknown; it must be {', '.join(KINDS)} or none"
        )
    return kind


def _check_together(kind: ScheduleKind | None, given: Mapping[str, object]) -> None:
    """What contradicts the type is named (T-026)."""
    takes = TAKEN[kind] if kind else ()
    other = [name for name in given if name not in takes]
    if other:
        raise ToolFailed(
            f"schedule_type {kind or 'none'} does not go with {' and '.join(other)}; "
            f"it takes {', '.join(takes) or 'nothing else'}"
        )


def _present(schedule: Schedule, now: datetime, zone: ZoneInfo) -> dict[str, str | int]:
    """A schedule as it could have been asked for now, part by part."""
    at = schedule.at
    if schedule.kind == "rrule" and instant(datetime.fromisoformat(at), zone) <= now:
        at = at[len("2026-03-01T") :]
    start, end = schedule.window or ("", "")
    asked: dict[str, str | int] = {
        "at": at,
        "day_of_week": ",".join(DAYS[day] for day in schedule.days),
        "day_of_month": schedule.day,
        "interval_seconds": schedule.seconds,
        "window_start": start,
        "window_end": end,
        "rrule": schedule.rrule,
    }
    return {name: value for name, value in asked.items() if value and name in TAKEN[schedule.kind]}


def _read(kind: ScheduleKind, given: Asked, now: datetime, zone: ZoneInfo) -> Schedule:
    at = given.at or ""
    if kind == "once":
        return Schedule(kind=kind, at=moment(at, now, zone))
    if kind == "rrule":
        rule = checked_rule(given.rrule or "")
        return Schedule(kind=kind, at=first_time(at, now, zone), rrule=rule)
    if kind == "interval":
        seconds = pace(given.interval_seconds or 0)
        between = window(given.window_start, given.window_end, seconds)
        since = now.astimezone(UTC).replace(microsecond=0)
        return Schedule(kind=kind, at=since.isoformat(), seconds=seconds, window=between)
    return Schedule(
        kind=kind,
        at=time_of_day("at", at),
        days=weekdays(given.day_of_week or "") if kind == "weekly" else (),
        day=day_of_month(given.day_of_month or 0) if kind == "monthly" else 0,
    )


async def _check_coming(schedule: Schedule, now: datetime, zone: ZoneInfo) -> None:
    """A rule must come true once at least, and soon be found to (T-025)."""
    try:
        async with asyncio.timeout(RULE_DEADLINE):
            due = await asyncio.to_thread(next_due, schedule, now, zone)
    except TimeoutError:
        raise ToolFailed(f"rrule {schedule.rrule} takes too long; write a simpler one") from None
    if due is None:
        raise ToolFailed(f"rrule {schedule.rrule} never comes; check its parts and its UNTIL")


def _execution(asked: Asked, before: Plan) -> tuple[FiringMode, str]:
    """The mode, and the objective of an autonomous run (T-047)."""
    mode = before.mode if asked.execution_mode is None else _mode(asked.execution_mode)
    said = before.ai_prompt if asked.ai_prompt is None else clean(asked.ai_prompt).strip()
    if mode == "reminder":
        if said and asked.ai_prompt is not None:
            raise ToolFailed(
                "ai_prompt needs the execution_mode autonomous_notify or autonomous_silent; "
                "execution_mode reminder only says the content"
            )
        return mode, ""
    if not said:
        raise ToolFailed(f"execution_mode {mode} needs an ai_prompt that says what is to be done")
    if len(said) > MOST_PROMPT_CHARACTERS:
        raise ToolFailed(
            f"ai_prompt has {len(said)} characters; at most {MOST_PROMPT_CHARACTERS} are allowed"
        )
    return mode, said


def _mode(text: str) -> FiringMode:
    mode = next((mode for mode in MODES if mode == text.strip().lower()), None)
    if mode is None:
        raise ToolFailed(
            f"execution_mode '{shown(text)}' is unknown; it must be {', '.join(MODES)}"
        )
    return mode
