"""What rooms are told about tasks, without a model."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Doubt, spoken
from wintermute.tasks.records import Task
from wintermute.text import shortened, span

REMINDER = "\N{ALARM CLOCK} "
"""What a reminder begins with (T-046)."""

FAILED = "The run of `{id}` ({content}) failed: {why}."
AGAIN = " It runs again on {when}."
PAUSED = (
    " That was the third time in a row, so I paused it: `/tasks resume {id}` lets it run again."
)
NEVER_AGAIN = (
    " It was to run only now, so I paused it: give it a new time if it is to be tried again, and"
    " resume it."
)
PUT_OFF = "`{id}` ({content}) is due, but its run has to wait: {why}. I try again on {when}."
DOUBTED = (
    "{waits}the clock of this machine is {by} where it should be; I go by it when the"
    " homeserver's agrees, or after ten minutes"
)
UNKNOWN = (
    "waits: it is not known yet whether the clock of this machine is right; I go by it when the"
    " homeserver's agrees, or after ten minutes"
)
CONTENT_CHARACTERS = 120
WHY_CHARACTERS = 600


def failed(task: Task, why: str, zone: ZoneInfo, *, paused: bool, most: int) -> str:
    """A run failed; `paused`: it does not run again by itself (T-050)."""
    text = FAILED.format(
        id=task.id, content=_content(task), why=shortened(why, WHY_CHARACTERS).rstrip(".")
    )
    if not paused:
        return text + (AGAIN.format(when=spoken(task.next_due, zone)) if task.next_due else "")
    return text + (PAUSED if task.failures + 1 >= most else NEVER_AGAIN).format(id=task.id)


def put_off(task: Task, why: str, until: datetime, zone: ZoneInfo) -> str:
    """A run waits for what passes by itself: the budget of the day, or a model that is away."""
    return PUT_OFF.format(
        id=task.id, content=_content(task), why=why.rstrip("."), when=spoken(until, zone)
    )


def _content(task: Task) -> str:
    return shortened(task.content, CONTENT_CHARACTERS)


def doubted(doubt: Doubt) -> str:
    """Why the schedule does not go by the machine's clock (F-015)."""
    if doubt.ahead is None:
        return UNKNOWN
    waits = "waits: " if doubt.waits else ""
    way = "ahead of" if doubt.ahead > timedelta() else "behind"
    return DOUBTED.format(waits=waits, by=f"{span(abs(doubt.ahead))} {way}")
