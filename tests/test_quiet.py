"""When work that nobody waits for may ask a model: a table, and a real server that has one slot."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest

from wintermute.learning.idle_gate import next_idle

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    """By the clock of Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)


@pytest.mark.parametrize(
    ("now", "last_said", "quiet"),
    [
        ("2026-11-24 14:00", "2026-11-24 13:59", "2026-11-24 19:59"),
        ("2026-11-24 14:00", "2026-11-24 08:00", "2026-11-24 14:00"),
        ("2026-11-24 14:00", None, "2026-11-24 14:00"),
        ("2026-11-24 23:30", "2026-11-24 23:29", "2026-11-25 01:00"),
        ("2026-11-25 01:00", "2026-11-25 00:59", "2026-11-25 01:00"),
        ("2026-11-25 05:59", "2026-11-25 05:58", "2026-11-25 05:59"),
        ("2026-11-25 06:00", "2026-11-25 05:59", "2026-11-25 11:59"),
        ("2026-11-25 00:30", "2026-11-25 00:29", "2026-11-25 01:00"),
        ("2026-10-25 00:30", "2026-10-25 00:29", "2026-10-25 01:00"),  # the clock goes back at 3
        ("2026-03-28 20:00", "2026-03-28 19:59", "2026-03-29 01:00"),  # and forward at 2
    ],
)
def test_the_night_or_six_hours_of_silence_are_quiet(
    now: str, last_said: str | None, quiet: str
) -> None:
    """M-064."""
    said = at(last_said) if last_said else None
    assert next_idle(at(now), said, BERLIN, time(1, 0)) == at(quiet)
