"""When a task is due, as a value, and in the words of its bracket. Pure."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal, get_args
from zoneinfo import ZoneInfo

Kind = Literal["once", "daily", "weekly", "monthly", "interval", "rrule"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Mode = Literal["reminder", "autonomous_notify", "autonomous_silent"]
MODES: tuple[Mode, ...] = get_args(Mode)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a task is due.

    `at` is, by kind: once, `2026-03-01T09:00:00` on the wall clock, or with an offset an instant;
    daily, weekly and monthly, `09:00:00`; rrule, the first wall clock time that may be meant
    (DTSTART of RFC 5545); interval, the instant from which it counts.
    """

    kind: Kind
    at: str
    days: tuple[int, ...] = ()
    """Weekly: 0 is Monday; sorted."""
    day: int = 0
    """Monthly: 1 to 31, in shorter months the last day."""
    seconds: int = 0
    """Interval: of elapsed time."""
    window: tuple[str, str] | None = None
    """Interval: local times between which it is due, both included; the end may be on the next day."""
    rrule: str = ""

    def stored(self) -> str:
        """As JSON, without what it does not need."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When something is to happen, and what: the text is said, or `ai_prompt` is worked on."""

    schedule: Schedule | None = None
    mode: Mode = "reminder"
    ai_prompt: str = ""


UNPLANNED = Plan()


def read(stored: str) -> Schedule:
    """The schedule that `stored` gave."""
    fields = json.loads(stored)
    if "window" in fields:
        start, end = fields["window"]
        fields["window"] = (start, end)
    return Schedule(**{**fields, "days": tuple(fields.get("days", ()))})


def bracket(schedule: Schedule, zone: ZoneInfo) -> str:
    """The schedule in a few words (T-027), as in `weekly on mon, thu at 09:00`."""
    if schedule.kind == "once":
        when = datetime.fromisoformat(schedule.at)
        local = when.astimezone(zone) if when.tzinfo else when
        return f"once at {local:%Y-%m-%d} {clock(local.time().isoformat())}"
    if schedule.kind == "rrule":
        return f"rrule {schedule.rrule}"
    if schedule.kind == "interval":
        minutes, rest = divmod(schedule.seconds, 60)
        every = f"every {schedule.seconds} s" if rest else f"every {minutes} min"
        return f"{every} {'-'.join(map(clock, schedule.window))}" if schedule.window else every
    on = {
        "weekly": f" on {', '.join(DAYS[day] for day in schedule.days)}",
        "monthly": f" on day {schedule.day}",
    }.get(schedule.kind, "")
    return f"{schedule.kind}{on} at {clock(schedule.at)}"


def clock(time: str) -> str:
    """A time of day without the seconds it does not have."""
    return time[:8].removesuffix(":00") if len(time) > 5 else time
