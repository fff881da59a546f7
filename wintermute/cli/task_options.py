"""The options that say when a task is due and what happens then, for all verbs that take them."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from wintermute.tasks.asked import Asked
from wintermute.tasks.schedule import KINDS, MODES

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS: dict[str, tuple[Any, str]] = {
    "schedule_type": (
        click.Choice([*KINDS, "none"], case_sensitive=False),
        "How it recurs; none: it is never due.",
    ),
    "at": (
        str,
        "When: 09:00; for once also 2026-03-01T09:00, `tomorrow 09:00` or `in 30 minutes`.",
    ),
    "day_of_week": (str, "With weekly: mon,thu."),
    "day_of_month": (int, "With monthly: 1 to 31; shorter months: their last day."),
    "interval_seconds": (int, "With interval: 60 or more."),
    "window_start": (str, "With interval: not before this time of day, as in 22:00."),
    "window_end": (str, "With interval: and not after this one, as in 06:00."),
    "rrule": (str, "With rrule: a rule of RFC 5545, as in FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4."),
    "execution_mode": (
        click.Choice(MODES, case_sensitive=False),
        "When it is due, say it, or work on --ai-prompt and post the result or not.",
    ),
    "ai_prompt": (str, "What is to be worked on when it is due."),
}


def schedule_options(command: Command) -> Callable[..., Any]:
    """Give the command these options as one value, `asked`."""

    @wraps(command)
    def packed(*args: Any, **given: Any) -> Any:
        asked = Asked.of({name: given.pop(name) for name in OPTIONS})
        return command(*args, asked=asked, **given)

    for name, (kind, text) in reversed(OPTIONS.items()):
        packed = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(packed)
    return packed
