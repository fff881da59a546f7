"""A time zone for a calendar application: when its clock is put forward and back. Pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from icalendar import Timezone, TimezoneDaylight, TimezoneStandard

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


def described(zone: ZoneInfo, first: int, last: int) -> Timezone:
    """The VTIMEZONE of a zone, with its clock changes in these years.

    When a change happens is told by the clock as it was before (RFC 5545, 3.6.5).
    """
    begins, ends = datetime(first, 1, 1, tzinfo=UTC), datetime(last + 1, 1, 1, tzinfo=UTC)
    before = _offset(begins, zone)
    onsets: dict[tuple[timedelta, timedelta, str, bool], list[datetime]] = defaultdict(list)
    for change in (begins, *_changes(zone, begins, ends)):
        local, offset = change.astimezone(zone), _offset(change, zone)
        onset = (change + before).replace(tzinfo=None)
        onsets[before, offset, local.tzname() or "", bool(local.dst())].append(onset)
        before = offset
    component = Timezone()
    component.add("TZID", zone.key)
    for (before, offset, name, summer), found in onsets.items():
        part = TimezoneDaylight() if summer else TimezoneStandard()
        part.add("DTSTART", found[0])
        if found[1:]:
            part.add("RDATE", found[1:])
        part.add("TZNAME", name)
        part.add("TZOFFSETFROM", before)
        part.add("TZOFFSETTO", offset)
        component.add_component(part)
    return component


def _changes(zone: ZoneInfo, begins: datetime, ends: datetime) -> Iterator[datetime]:
    """To the second; a clock is not changed twice a day."""
    day = begins
    while day < ends:
        before = _offset(day, zone)
        if _offset(day + DAY, zone) != before:
            yield _change(zone, day, before)
        day += DAY


def _change(zone: ZoneInfo, day: datetime, before: timedelta) -> datetime:
    def changed(second: int) -> bool:
        return _offset(day + timedelta(seconds=second), zone) != before

    return day + timedelta(seconds=bisect_right(range(DAY // SECOND), False, key=changed))


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
