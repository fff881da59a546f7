"""The types of schedules, a class each, and the plan that a request makes of one (T-016..T-027).

A new type is a class here with its place in `KINDS`, its arguments in `PlanRequest`, and its words
in the tool's definition.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from itertools import count, dropwhile, product
from typing import Any, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from wintermute.errors import ToolFailed
from wintermute.tasks.due import (
    checked_rule,
    comes_twice,
    dates,
    excerpt,
    in_gap,
    instant,
    moments,
    next_due,
    short_time,
    upcoming,
)
from wintermute.tasks.parse import DAYS, plan_parts, time_of_day, wall_time, weekdays
from wintermute.text import clean, is_blank

FiringMode = Literal["reminder", "autonomous_notify", "autonomous_silent"]
MODES: tuple[FiringMode, ...] = get_args(FiringMode)
LAST_YEAR = 9998
"""The last year to compute with; the calendar of Python ends a year later."""
LEAST_SECONDS = 60
MOST_SECONDS = 366 * 24 * 60 * 60
MOST_POSITIONS = 366
"""The highest BYSETPOS that RFC 5545 allows."""
MOST_DATES = 100
"""The number of due moments that an export lists for a schedule without a recurrence rule."""
UNITS = (("DAILY", 86_400), ("HOURLY", 3_600), ("MINUTELY", 60), ("SECONDLY", 1))
RULE_DEADLINE = 2.0
"""Seconds to search for the first date of a rule."""
MOST_PROMPT_CHARACTERS = 4000


def _part(text: str) -> Any:
    """Declare an optional part of a request, with its help on the command line."""
    return field(default=None, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A schedule and a mode as a person or a model asks for them. None: not asked for."""

    schedule_type: str | None = _part("How it repeats; none: it is never due.")
    at: str | None = _part(
        "When, as you say it: `tomorrow at 9`, `in 30 minutes`, `2026-03-01 09:00`;"
        " or how often: `every monday at 8`."
    )
    day_of_week: str | None = _part("With weekly: the days, as in mon,thu.")
    day_of_month: int | None = _part("With monthly: 1 to 31; in shorter months, the last day.")
    interval_seconds: int | None = _part("With interval: seconds between two times, at least 60.")
    window_start: str | None = _part("With interval: not before this time of day, as in 22:00.")
    window_end: str | None = _part("With interval: not after this time of day, as in 06:00.")
    rrule: str | None = _part(
        "With rrule: a rule of RFC 5545, as in FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4."
    )
    execution_mode: str | None = _part(
        "When it is due: post a reminder; work on --ai-prompt and post the result; or work on it silently."
    )
    ai_prompt: str | None = _part("The instruction to work on when it is due.")

    @classmethod
    def of(cls, args: Mapping[str, object]) -> "PlanRequest":
        """Read a request from arguments. A blank text means nothing, except for ai_prompt: it
        removes the prompt.
        """
        given: dict[str, Any] = {}
        for part in fields(cls):
            value, kind = args.get(part.name), get_args(part.type)[0]
            blank = isinstance(value, str) and is_blank(value) and part.name != "ai_prompt"
            if value is None or blank:
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                known = "a whole number" if kind is int else "a text"
                raise ToolFailed(f"{part.name} must be {known}")
            given[part.name] = value
        if given.keys() - {"execution_mode", "ai_prompt"} == {"at"}:
            given |= plan_parts(given.pop("at"))
        return cls(**given)

    @property
    def is_empty(self) -> bool:
        """True if neither a schedule nor a mode is asked for."""
        return self == NOTHING

    @property
    def has_schedule(self) -> bool:
        """True if any part of a schedule is asked for."""
        return self.schedule_type is not None or bool(self.parts())

    def parts(self) -> dict[str, Any]:
        """Return the parts of the schedule that are asked for, without its type."""
        other = {"schedule_type", "execution_mode", "ai_prompt"}
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: given[name] for name in given if name not in other}


NOTHING = PlanRequest()


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrence as in RFC 5545: a start (in UTC unless it follows the wall clock), a rule,
    further dates.
    """

    start: datetime
    rule: str = ""
    more: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ABC):
    """The due moments of a task, computed from a rule."""

    kind: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ("at",)
    """The parts of a request that go with this type (T-026)."""
    optional: ClassVar[tuple[str, ...]] = ()
    recurs: ClassVar[bool] = True
    once_a_day: ClassVar[bool] = True
    """Due by the wall clock, at most once a day."""

    at: str

    @classmethod
    @abstractmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Schedule":
        """Read a request. Raises: ToolFailed if it is ambiguous (T-018)."""

    @abstractmethod
    def describe(self, zone: ZoneInfo) -> str:
        """Describe the schedule in a few words (T-027), as in `weekly on mon, thu at 09:00`."""

    @abstractmethod
    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Yield the due moments in order, from somewhat before `after`. A moment may come twice."""

    @abstractmethod
    def recurrence(self, due: datetime | None, since: datetime, zone: ZoneInfo) -> Recurrence:
        """Return the recurrence from the first moment after `since` on. `due`: the task's next due moment."""

    def parts(self, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
        """Return the parts of a request that would ask for this schedule now."""
        return {"at": self.at}

    def remark(self, due: datetime | None, zone: ZoneInfo) -> str:
        """Return a remark for the person about a surprising date (T-022, T-032); empty: none."""
        return ""

    def stored(self) -> str:
        """Return the schedule as JSON, without empty fields."""
        known = {"kind": self.kind, **asdict(self)}
        return json.dumps({name: value for name, value in known.items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Once(Schedule):
    """A single moment. `at`: `2026-03-01T09:00:00` on the wall clock, or an instant if it has an offset."""

    kind = "once"
    recurs = False
    once_a_day = False

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Once":
        return cls(at=wall_time(request.at or "", now, zone))

    def describe(self, zone: ZoneInfo) -> str:
        when = datetime.fromisoformat(self.at)
        local = when.astimezone(zone) if when.tzinfo else when
        return f"once at {local:%Y-%m-%d} {short_time(local.time().isoformat())}"

    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        at = datetime.fromisoformat(self.at)
        yield at.astimezone(UTC) if at.tzinfo else instant(at, zone)

    def recurrence(self, due: datetime | None, since: datetime, zone: ZoneInfo) -> Recurrence:
        local = (due or next(self.due_times(since, zone))).astimezone(zone)
        # Of two equal local times only the first can be named: the second is given in UTC.
        return Recurrence(local.astimezone(UTC) if local.fold else local)

    def remark(self, due: datetime | None, zone: ZoneInfo) -> str:
        at = datetime.fromisoformat(self.at)
        if due is None or at.tzinfo is not None:
            return ""
        if in_gap(at, zone):
            there = due.astimezone(zone)
            return f"{at:%Y-%m-%d %H:%M} is skipped by the clock change; it is due at {there:%Y-%m-%d %H:%M}"
        twice = f"{at:%Y-%m-%d %H:%M} comes twice that day; it is due the first time"
        return twice if comes_twice(at, zone) else ""


def every_day(first: date) -> Iterator[date]:
    """Yield this day and all that follow."""
    last = date(LAST_YEAR, 12, 31)
    return map(date.fromordinal, range(first.toordinal(), last.toordinal()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily(Schedule):
    """A time every day, `at` as in `09:00:00`. Weekly and monthly schedules inherit from it."""

    kind = "daily"

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Daily":
        return cls(at=time_of_day("at", request.at or ""))

    def days_from(self, first: date) -> Iterator[date]:
        """Yield the days on which it is due."""
        return every_day(first)

    def day_rule(self) -> tuple[str, str]:
        """Return the days in words and as a part of a recurrence rule."""
        return "", ""

    def describe(self, zone: ZoneInfo) -> str:
        return f"{self.kind}{self.day_rule()[0]} at {short_time(self.at)}"

    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        at, today = time.fromisoformat(self.at), after.astimezone(zone).date()
        return (instant(datetime.combine(day, at), zone) for day in self.days_from(today))

    def recurrence(self, due: datetime | None, since: datetime, zone: ZoneInfo) -> Recurrence:
        first = (next_due(self, since, zone) or since).astimezone(zone)
        # If this time does not exist on the first day, it is due later on that day only.
        wall = datetime.combine(first.date(), time.fromisoformat(self.at), zone)
        # The types that inherit this have the names of RFC 5545, section 3.3.10.
        return Recurrence(wall, f"FREQ={self.kind.upper()}{self.day_rule()[1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekly(Daily):
    """A time on some days of the week."""

    kind = "weekly"
    takes = ("at", "day_of_week")
    days: tuple[int, ...]
    """Days of the week, sorted; 0 is Monday."""

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Weekly":
        at, days = time_of_day("at", request.at or ""), weekdays(request.day_of_week or "")
        return cls(at=at, days=days)

    def days_from(self, first: date) -> Iterator[date]:
        return (day for day in every_day(first) if day.weekday() in self.days)

    def day_rule(self) -> tuple[str, str]:
        names = [DAYS[day] for day in self.days]
        return f" on {', '.join(names)}", f";BYDAY={','.join(name[:2].upper() for name in names)}"

    def parts(self, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
        return {"at": self.at, "day_of_week": ",".join(DAYS[day] for day in self.days)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Monthly(Daily):
    """A time on one day of each month, 1 to 31; in shorter months on the last day (T-022)."""

    kind = "monthly"
    takes = ("at", "day_of_month")
    day: int

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Monthly":
        at, day = time_of_day("at", request.at or ""), request.day_of_month or 0
        if not 1 <= day <= 31:
            raise ToolFailed("day_of_month must be from 1 to 31; 31 is the last day of every month")
        return cls(at=at, day=day)

    def days_from(self, first: date) -> Iterator[date]:
        for months in count(first.year * 12 + first.month - 1):
            year, month = months // 12, months % 12 + 1
            if year > LAST_YEAR:
                return
            yield date(year, month, min(self.day, monthrange(year, month)[1]))

    def day_rule(self) -> tuple[str, str]:
        # The last day of this list that a month has is the day itself, or the end of the month (T-022).
        days = ",".join(map(str, range(min(self.day, 28), self.day + 1)))
        last = ";BYSETPOS=-1" if self.day > 28 else ""
        return f" on day {self.day}", f";BYMONTHDAY={days}{last}"

    def parts(self, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
        return {"at": self.at, "day_of_month": self.day}

    def remark(self, due: datetime | None, zone: ZoneInfo) -> str:
        last = f"in a month without a day {self.day} it is due on the last day"
        return last if self.day > 28 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Schedule):
    """A repetition in elapsed time (T-031): from `at`, an instant, or from each opening of a window
    (T-024).
    """

    kind = "interval"
    takes = ("interval_seconds", "window_start", "window_end")
    optional = ("window_start", "window_end")
    once_a_day = False
    seconds: int
    window: tuple[str, str] | None = None
    """The local times between which it is due, both included. The end may be on the next day."""

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "Interval":
        seconds = request.interval_seconds or 0
        if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            raise ToolFailed(f"interval_seconds must be from {LEAST_SECONDS} to {MOST_SECONDS}")
        window = parsed_window(request.window_start, request.window_end, seconds)
        since = now.astimezone(UTC).replace(microsecond=0)
        return cls(at=since.isoformat(), seconds=seconds, window=window)

    def parts(self, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
        window = zip(("window_start", "window_end"), self.window or (), strict=False)
        return {"interval_seconds": self.seconds, **dict(window)}

    def describe(self, zone: ZoneInfo) -> str:
        minutes, rest = divmod(self.seconds, 60)
        every = f"every {self.seconds} s" if rest else f"every {minutes} min"
        return f"{every} {'-'.join(map(short_time, self.window))}" if self.window else every

    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        if self.window is None:
            at = datetime.fromisoformat(self.at).astimezone(UTC)
            yield from self._beats(at, datetime(LAST_YEAR, 1, 1, tzinfo=UTC), max(at, after))
            return
        for day in every_day(after.astimezone(zone).date() - timedelta(days=2)):
            first, last = (instant(local, zone) for local in self._opening(day))
            yield from self._beats(first, last, after)

    def recurrence(self, due: datetime | None, since: datetime, zone: ZoneInfo) -> Recurrence:
        """Return a rule in UTC, where clocks never change. With a window: a rule of all its times
        of day, which in a night of a clock change follows the wall clock (we do not), or a list of
        moments.
        """
        if self.window is None:
            unit, seconds = next(unit for unit in UNITS if self.seconds % unit[1] == 0)
            rule = f"FREQ={unit};INTERVAL={self.seconds // seconds}"
            return Recurrence(next_due(self, since, zone) or since, rule)
        beats = self._times_of_day()
        rule = rule_of_each_day(beats)
        if not rule:
            first, *more = upcoming(self, since, zone, MOST_DATES)
            return Recurrence(first, more=tuple(more))
        local = (moment.astimezone(zone) for moment in moments(self, since, zone))
        return Recurrence(next(at for at in local if at.time() in beats and not at.fold), rule)

    def _opening(self, day: date) -> tuple[datetime, datetime]:
        """Return the beginning and the end of the window that opens on this day."""
        opens, closes = map(time.fromisoformat, self.window or ())
        overnight = timedelta(days=closes <= opens)
        return datetime.combine(day, opens), datetime.combine(day, closes) + overnight

    def _beats(self, first: datetime, last: datetime, after: datetime) -> Iterator[datetime]:
        pace = timedelta(seconds=self.seconds)
        beat = first + max(0, (after - first) // pace + 1) * pace
        while beat <= last:
            yield beat
            beat += pace

    def _times_of_day(self) -> set[time]:
        first, last = self._opening(date(2001, 1, 1))
        return {beat.time() for beat in self._beats(first, last, first - timedelta(days=1))}


def parsed_window(start: str | None, end: str | None, seconds: int) -> tuple[str, str] | None:
    """Return the times of day between which an interval is due (T-024); `none` twice removes the window."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise ToolFailed("window_start and window_end are given together, as in 22:00 and 06:00")
    if start.strip().lower() == end.strip().lower() == "none":
        return None
    opens, closes = time_of_day("window_start", start), time_of_day("window_end", end)
    if opens == closes:
        raise ToolFailed("window_start and window_end are equal; leave out both for the whole day")
    first, last = (datetime.fromisoformat(f"2000-01-01T{at}") for at in (opens, closes))
    if (last - first) % timedelta(days=1) < timedelta(seconds=seconds):
        raise ToolFailed(f"the window is shorter than interval_seconds {seconds}; or use daily")
    return opens, closes


def rule_of_each_day(beats: set[time]) -> str:
    """Return a rule for these times of every day; empty if no rule can express them.

    The rule names all hours, minutes and seconds, and selects from their combinations.
    """
    hours, minutes, seconds = (
        sorted({getattr(beat, unit) for beat in beats}) for unit in ("hour", "minute", "second")
    )
    made = [time(*parts) for parts in product(hours, minutes, seconds)]
    positions = [number for number, at in enumerate(made, 1) if at in beats]
    by = {"BYHOUR": hours, "BYMINUTE": minutes, "BYSECOND": seconds}
    if len(positions) < len(made):
        if positions[-1] > MOST_POSITIONS:
            return ""
        by["BYSETPOS"] = positions
    return ";".join(["FREQ=DAILY", *(f"{name}={','.join(map(str, by[name]))}" for name in by)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRule(Schedule):
    """A recurrence rule of RFC 5545. `at`: the earliest wall clock time that may match (DTSTART)."""

    kind = "rrule"
    takes = ("at", "rrule")
    rrule: str

    @classmethod
    async def parse(cls, request: PlanRequest, now: datetime, zone: ZoneInfo) -> "RecurrenceRule":
        """Read a rule that matches at least once, and whose first date is found quickly (T-025)."""
        rule = checked_rule(request.rrule or "")
        at = wall_time(request.at or "", now, zone)
        if (begin := datetime.fromisoformat(at)).tzinfo:
            local = f"{begin.astimezone(zone):%Y-%m-%dT%H:%M}"
            raise ToolFailed(f"with rrule, at is a time of day or a date with one, as in {local}")
        schedule = cls(at=at, rrule=rule)
        try:
            async with asyncio.timeout(RULE_DEADLINE):
                due = await asyncio.to_thread(next_due, schedule, now, zone)
        except TimeoutError:
            raise ToolFailed(f"rrule {rule} takes too long; write a simpler one") from None
        if due is None:
            raise ToolFailed(f"rrule {rule} never comes; check its parts and its UNTIL")
        return schedule

    def parts(self, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
        has_begun = instant(datetime.fromisoformat(self.at), zone) <= now
        at = self.at[len("2026-03-01T") :] if has_begun else self.at
        return {"at": at, "rrule": self.rrule}

    def describe(self, zone: ZoneInfo) -> str:
        return f"rrule {self.rrule}"

    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        local = after.astimezone(zone).replace(tzinfo=None, fold=0)
        found = dates(self.rrule, datetime.fromisoformat(self.at), zone)
        return (instant(at, zone) for at in dropwhile(lambda at: at <= local, found))

    def recurrence(self, due: datetime | None, since: datetime, zone: ZoneInfo) -> Recurrence:
        """Return the rule unchanged, from its own first date, so that its COUNT stays right."""
        at = datetime.fromisoformat(self.at)
        first = next(dates(self.rrule, at, zone), at)
        return Recurrence(first.replace(tzinfo=zone), self.rrule)


KINDS: dict[str, type[Schedule]] = {
    schedule.kind: schedule for schedule in (Once, Daily, Weekly, Monthly, Interval, RecurrenceRule)
}


def read(stored: str) -> Schedule:
    """Read a schedule from its JSON."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(stored).items()
    }
    return KINDS[known.pop("kind")](**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule and a mode: when it is due the task's text is posted, or a model works on `ai_prompt`."""

    schedule: Schedule | None = None
    mode: FiringMode = "reminder"
    ai_prompt: str = ""

    @property
    def recurs(self) -> bool:
        """True if it may be due more than once."""
        return self.schedule is not None and self.schedule.recurs


UNPLANNED = Plan()


async def apply_request(
    request: PlanRequest, now: datetime, zone: ZoneInfo, before: Plan = UNPLANNED
) -> Plan:
    """Apply a request to a plan. Parts that are not asked for stay unchanged."""
    schedule = before.schedule
    if request.has_schedule:
        schedule = await _scheduled(request, now, zone, before.schedule)
    mode, ai_prompt = _execution(request, before)
    if mode != "reminder" and schedule is None:
        raise ToolFailed(f"execution_mode {mode} needs a schedule_type; else it must be reminder")
    return Plan(schedule=schedule, mode=mode, ai_prompt=ai_prompt)


async def _scheduled(
    request: PlanRequest, now: datetime, zone: ZoneInfo, before: Schedule | None
) -> Schedule | None:
    given = request.parts()
    name = (request.schedule_type or (before.kind if before else "")).strip().lower()
    if not name and given.keys() == {"at"}:
        name = Once.kind
    if not name:
        raise ToolFailed(f"{' and '.join(given)} needs a schedule_type: {', '.join(KINDS)}")
    if name not in KINDS and name != "none":
        kinds = f"{', '.join(KINDS)} or none"
        raise ToolFailed(f"schedule_type '{excerpt(name)}' is unknown; it must be {kinds}")
    kind = KINDS.get(name)
    takes = kind.takes if kind else ()
    if other := [part for part in given if part not in takes]:
        raise ToolFailed(
            f"schedule_type {name} does not go with {' and '.join(other)}; "
            f"it takes {', '.join(takes) or 'nothing else'}"
        )
    if kind is None:
        return None
    if before is not None and before.kind == name:
        if not given:
            return before
        given = {**before.parts(now, zone), **given}
    lacking = [part for part in takes if part not in given and part not in kind.optional]
    if lacking:
        raise ToolFailed(f"schedule_type {name} needs {' and '.join(lacking)}")
    return await kind.parse(PlanRequest(**given), now, zone)


def _execution(request: PlanRequest, before: Plan) -> tuple[FiringMode, str]:
    """Return the mode and the instruction of an autonomous run (T-047)."""
    name = (request.execution_mode or before.mode).strip().lower()
    mode = next((mode for mode in MODES if mode == name), None)
    if mode is None:
        raise ToolFailed(
            f"execution_mode '{excerpt(name)}' is unknown; it must be {', '.join(MODES)}"
        )
    prompt = before.ai_prompt if request.ai_prompt is None else clean(request.ai_prompt).strip()
    if mode == "reminder":
        if not is_blank(prompt) and request.ai_prompt is not None:
            raise ToolFailed(
                "ai_prompt needs the execution_mode autonomous_notify or autonomous_silent; "
                "execution_mode reminder only says the content"
            )
        return mode, ""
    if is_blank(prompt):
        raise ToolFailed(f"execution_mode {mode} needs an ai_prompt that says what is to be done")
    if len(prompt) > MOST_PROMPT_CHARACTERS:
        most = f"at most {MOST_PROMPT_CHARACTERS} are allowed"
        raise ToolFailed(f"ai_prompt has {len(prompt)} characters; {most}")
    return mode, prompt
