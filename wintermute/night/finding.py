"""What a status says of nights: the last one, the next one, what failed, and what is asked."""

from datetime import datetime, time
from zoneinfo import ZoneInfo

from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.db import Database
from wintermute.health.health import Finding
from wintermute.night.night_jobs import newest_night, next_night
from wintermute.night.nights import Night, Nights
from wintermute.night.report import failed
from wintermute.text import counted

PART = "nights"
MOST_FAILED = 3
"""Nights in a row in which something failed, before one is warned."""


async def night_finding(
    database: Database, clock: Clock, dreaming: Dreaming, zone: ZoneInfo
) -> Finding:
    """One line. It names phases and what went wrong, and no word of what is remembered."""
    if not await database.is_current():
        return Finding(PART, "ok", "the database is from before there were nights")
    nights = Nights(database, clock)
    newest = await nights.newest(MOST_FAILED)
    (asked,) = await database.scalars("SELECT count(*) FROM night_items WHERE state = 'open'")
    told = [_last(newest[0], zone) if newest else "none has run yet"]
    told.append(f"next {_next(clock.now(), dreaming, zone)}" if dreaming.enabled else "turned off")
    told += [f"{counted(asked, 'question')}, which `/night` shows"] if asked else []
    numbers = {"questions": asked, "failed": len(failed(newest[0])) if newest else 0}
    if len(newest) == MOST_FAILED and all(map(failed, newest)):
        told.append(f"{MOST_FAILED} in a row have failed -> `wintermute night report` says why")
        return Finding(PART, "warn", "; ".join(told), numbers)
    return Finding(PART, "ok", "; ".join(told), numbers)


def _next(now: datetime, dreaming: Dreaming, zone: ZoneInfo) -> str:
    begins = time(dreaming.hour, dreaming.minute)
    return f"{next_night(newest_night(now, begins, zone), begins, zone).astimezone(zone):%Y-%m-%d %H:%M}"


def _last(night: Night, zone: ZoneInfo) -> str:
    if night.state == "running":
        return f"at work since {night.began_at.astimezone(zone):%Y-%m-%d %H:%M}"
    said = f"last {(night.ended_at or night.began_at).astimezone(zone):%Y-%m-%d %H:%M}"
    names = ", ".join(dict.fromkeys(tally.name for tally in failed(night)))
    return f"{said}, failed: {names}" if names else said
