"""Status line about nights: the last one, the next one, failures and open questions."""

from datetime import time
from pathlib import Path
from zoneinfo import ZoneInfo

from wintermute.changes.nights import Night, Nights
from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.db import Database
from wintermute.health.health import StatusLine
from wintermute.night.night_jobs import newest_night, next_night
from wintermute.night.pipeline import is_night_running
from wintermute.night.report import failed_phases
from wintermute.text import counted

PART = "nights"
MOST_FAILED = 3
"""Failed nights in a row that make the status a warning."""


async def night_status(
    database: Database, clock: Clock, dreaming: Dreaming, zone: ZoneInfo, data_dir: Path
) -> StatusLine:
    """Return the status line. It names phases and problems, but nothing that is remembered."""
    nights = Nights(database, clock)
    newest = await nights.newest(MOST_FAILED)
    (questions,) = await database.scalars(
        "SELECT count(*) FROM decisions WHERE state = 'open' AND night <> ''"
    )
    parts = [_last(newest[0], zone, data_dir) if newest else "none has run yet"]
    parts.append(
        f"next {await _next(nights, clock, dreaming, zone)}" if dreaming.enabled else "turned off"
    )
    parts += [f"{counted(questions, 'question')}, which `/night` shows"] if questions else []
    numbers = {"questions": questions, "failed": len(failed_phases(newest[0])) if newest else 0}
    if len(newest) == MOST_FAILED and all(map(failed_phases, newest)):
        parts.append(f"{MOST_FAILED} in a row have failed -> `wintermute night report` says why")
        return StatusLine(PART, "warn", "; ".join(parts), numbers)
    return StatusLine(PART, "ok", "; ".join(parts), numbers)


async def _next(nights: Nights, clock: Clock, dreaming: Dreaming, zone: ZoneInfo) -> str:
    """Return the time of the next night: one for each date, also if the hour was changed after today's."""
    begins = time(dreaming.hour, dreaming.minute)
    night = next_night(newest_night(clock.now(), begins, zone), begins, zone)
    if await nights.was_started(night.day):
        night = next_night(night, begins, zone)
    return f"{night.at.astimezone(zone):%Y-%m-%d %H:%M}"


def _last(night: Night, zone: ZoneInfo, data_dir: Path) -> str:
    if night.state == "running":
        began = f"{night.began_at.astimezone(zone):%Y-%m-%d %H:%M}"
        if is_night_running(data_dir):
            return f"running since {began}"
        return f"the night of {began} was interrupted: the daemon or `wintermute night run` finishes it"
    said = f"last {(night.ended_at or night.began_at).astimezone(zone):%Y-%m-%d %H:%M}"
    names = ", ".join(dict.fromkeys(tally.name for tally in failed_phases(night)))
    return f"{said}, but not all of it could be done ({names})" if names else said
