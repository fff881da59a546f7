"""When a schedule is due: over clock changes, short months and long absences."""

import subprocess
import sys
from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import DAILY, MONTHLY, WEEKLY, rrule, rrulestr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import utc
from wintermute.tasks.due import (
    MOST_MISSED,
    Missed,
    in_gap,
    instant,
    missed,
    moments,
    next_due,
    tomorrow,
    upcoming,
)
from wintermute.tasks.schedules import (
    Daily,
    Interval,
    Monthly,
    Once,
    RecurrenceRule,
    Schedule,
    Weekly,
)

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
LORD_HOWE, KATHMANDU = ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Asia/Kathmandu")
APIA, ZULU = ZoneInfo("Pacific/Apia"), ZoneInfo("UTC")
ZONES = [BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU, APIA, ZULU]


def daily(at: str) -> Schedule:
    return Daily(at=at)


def weekly(at: str, *days: int) -> Schedule:
    return Weekly(at=at, days=days)


def monthly(at: str, day: int) -> Schedule:
    return Monthly(at=at, day=day)


def every(seconds: int, start: str = "2025-01-01T00:00Z", *window: str) -> Schedule:
    between = (window[0], window[1]) if window else None
    return Interval(at=start, seconds=seconds, window=between)


def once(at: str) -> Schedule:
    return Once(at=at)


def ruled(start: str, rule: str) -> Schedule:
    return RecurrenceRule(at=start, rrule=rule)


wall = datetime.fromisoformat


CHANGES = {
    "a gap of an hour (T-029)": (
        BERLIN,
        daily("02:30"),
        "2025-03-28T12:00",
        "2025-03-29T01:30 2025-03-30T01:00 2025-03-31T00:30",
    ),
    "a repeated hour, the first is meant (T-030)": (
        BERLIN,
        daily("02:30"),
        "2025-10-24T12:00",
        "2025-10-25T00:30 2025-10-26T00:30 2025-10-27T01:30",
    ),
    "asked between the two readings of a repeated hour": (
        BERLIN,
        daily("02:30"),
        "2025-10-26T01:10",
        "2025-10-27T01:30",
    ),
    "summer and winter (T-020)": (
        BERLIN,
        daily("09:00"),
        "2025-10-24T12:00",
        "2025-10-25T07:00 2025-10-26T08:00 2025-10-27T08:00",
    ),
    "weekly on the day of the gap": (
        NEW_YORK,
        weekly("02:15", 6),
        "2025-03-02T12:00",
        "2025-03-09T07:00 2025-03-16T06:15",
    ),
    "weekly on the day of the repeated hour": (
        NEW_YORK,
        weekly("01:15", 6),
        "2025-10-26T12:00",
        "2025-11-02T05:15 2025-11-09T06:15",
    ),
    "monthly on the day of the repeated hour": (
        NEW_YORK,
        monthly("01:00", 2),
        "2025-10-03T12:00",
        "2025-11-02T05:00 2025-12-02T06:00",
    ),
    "a gap of half an hour": (
        LORD_HOWE,
        daily("02:10"),
        "2025-10-03T12:00",
        "2025-10-03T15:40 2025-10-04T15:30 2025-10-05T15:10",
    ),
    "a repeated half hour": (
        LORD_HOWE,
        daily("01:45"),
        "2025-04-04T12:00",
        "2025-04-04T14:45 2025-04-05T14:45 2025-04-06T15:15",
    ),
    "an offset of quarters of an hour, without changes": (
        KATHMANDU,
        daily("09:00"),
        "2025-03-29T12:00",
        "2025-03-30T03:15 2025-03-31T03:15",
    ),
    "a gap of a quarter of an hour": (
        KATHMANDU,
        daily("00:10"),
        "1985-12-30T12:00",
        "1985-12-30T18:40 1985-12-31T18:30 1986-01-01T18:25",
    ),
    "a day that was left out": (
        APIA,
        daily("09:00"),
        "2011-12-29T12:00",
        "2011-12-29T19:00 2011-12-30T10:00 2011-12-30T19:00 2011-12-31T19:00",
    ),
    "once in the gap (T-032)": (
        BERLIN,
        once("2025-03-30T02:30:00"),
        "2025-03-01T00:00",
        "2025-03-30T01:00",
    ),
    "once in the repeated hour (T-032)": (
        BERLIN,
        once("2025-10-26T02:30:00"),
        "2025-03-01T00:00",
        "2025-10-26T00:30",
    ),
    "once with an offset": (
        BERLIN,
        once("2025-10-26T01:30:00+00:00"),
        "2025-03-01T00:00",
        "2025-10-26T01:30",
    ),
    "elapsed time over a gap (T-031)": (
        BERLIN,
        every(5400, "2025-03-29T23:00Z"),
        "2025-03-29T23:10",
        "2025-03-30T00:30 2025-03-30T02:00 2025-03-30T03:30",
    ),
    "elapsed time in a window over a gap (T-031)": (
        BERLIN,
        every(5400, "2025-01-01T00:00Z", "22:00", "06:00"),
        "2025-03-29T12:00",
        "2025-03-29T21:00 2025-03-29T22:30 2025-03-30T00:00 2025-03-30T01:30 2025-03-30T03:00 2025-03-30T20:00",
    ),
    "elapsed time in a window over a repeated hour (T-031)": (
        BERLIN,
        every(3600, "2025-01-01T00:00Z", "01:00", "04:00"),
        "2025-10-25T12:00",
        "2025-10-25T23:00 2025-10-26T00:00 2025-10-26T01:00 2025-10-26T02:00 2025-10-26T03:00 2025-10-27T00:00",
    ),
    "a window over midnight, its end included (T-024)": (
        BERLIN,
        every(5400, "2025-01-01T00:00Z", "22:00", "05:30"),
        "2025-01-10T21:00",
        "2025-01-10T22:30 2025-01-11T00:00 2025-01-11T01:30 2025-01-11T03:00 2025-01-11T04:30 2025-01-11T21:00",
    ),
    "short months (T-022)": (
        BERLIN,
        monthly("09:00", 31),
        "2025-01-31T12:00",
        "2025-02-28T08:00 2025-03-31T07:00 2025-04-30T07:00 2025-05-31T07:00",
    ),
    "a leap day (T-022)": (
        BERLIN,
        monthly("09:00", 30),
        "2028-02-01T12:00",
        "2028-02-29T08:00 2028-03-30T07:00",
    ),
    "mon, thu (T-020)": (
        BERLIN,
        weekly("09:00", 0, 3),
        "2025-03-25T12:00",
        "2025-03-27T08:00 2025-03-31T07:00 2025-04-03T07:00",
    ),
    "a rule in the gap": (
        BERLIN,
        ruled("2025-03-28T02:30:00", "FREQ=DAILY"),
        "2025-03-29T12:00",
        "2025-03-30T01:00 2025-03-31T00:30",
    ),
    "a rule counts from its start (T-025)": (
        BERLIN,
        ruled("2025-03-01T09:00:00", "FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4"),
        "2025-03-04T12:00",
        "2025-03-05T08:00 2025-03-10T08:00 2025-03-12T08:00",
    ),
    "a rule until an instant": (
        BERLIN,
        ruled("2025-06-01T09:00:00", "FREQ=DAILY;UNTIL=20250603T070000Z"),
        "2025-06-01T12:00",
        "2025-06-02T07:00 2025-06-03T07:00",
    ),
    "a rule until a time before the last date": (
        BERLIN,
        ruled("2025-06-01T09:00:00", "FREQ=DAILY;UNTIL=20250603T065959Z"),
        "2025-06-01T12:00",
        "2025-06-02T07:00",
    ),
    "a rule until the end of a day": (
        BERLIN,
        ruled("2025-06-01T09:00:00", "FREQ=DAILY;UNTIL=20250603"),
        "2025-06-01T12:00",
        "2025-06-02T07:00 2025-06-03T07:00",
    ),
}
ENDLESS = {"daily", "weekly", "monthly", "interval"}


@pytest.mark.parametrize("name", CHANGES)
def test_a_clock_change_table(name: str) -> None:
    """T-020, T-022, T-024, T-025, T-029..T-032."""
    zone, schedule, after, expected = CHANGES[name]
    endless = schedule.kind in ENDLESS or "=DAILY" in schedule.describe(zone)[-6:]
    due = [utc(text) for text in expected.split()]
    most = len(due) if endless else 100
    assert list(upcoming(schedule, utc(after), zone, most)) == due


@pytest.mark.slow
def test_the_zone_of_the_host_changes_nothing() -> None:
    """T-020."""
    table = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        ["env", "TZ=America/Los_Angeles", *table, "-k", "test_a_clock_change_table"],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        check=False,
        text=True,
    )
    assert f"{len(CHANGES)} passed" in run.stdout


def test_another_zone_keeps_the_local_time() -> None:
    """T-033."""
    for zone, due in [(BERLIN, "2025-07-02T07:00"), (NEW_YORK, "2025-07-01T13:00")]:
        assert next_due(daily("09:00"), utc("2025-07-01T12:00"), zone) == utc(due)


def test_two_times_that_become_one_instant_are_due_once() -> None:
    """T-030: on two days of the year a rule names, 02:00 and 03:00 would be the same moment."""
    window = every(1800, "2025-01-01T00:00Z", "02:00", "03:10")
    due = upcoming(window, utc("2025-03-29T12:00"), BERLIN, 2)
    assert due == (utc("2025-03-30T01:00"), utc("2025-03-31T00:00"))
    assert len(set(upcoming(daily("12:00"), utc("2011-12-29T12:00"), APIA, 5))) == 5


def test_a_time_that_has_passed_is_never_due_again() -> None:
    """T-028."""
    at = utc("2025-03-01T08:00")
    assert next_due(once("2025-03-01T09:00"), at - timedelta(microseconds=1), BERLIN) == at
    assert next_due(once("2025-03-01T09:00"), at, BERLIN) is None


@pytest.mark.parametrize(
    "rule", ["FREQ=MONTHLY;BYMONTHDAY=31;BYMONTH=2", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=3"]
)
def test_a_rule_that_never_comes_true_has_an_end(rule: str) -> None:
    """T-025."""
    assert next_due(ruled("2025-03-01T09:00:00", rule), utc("2025-03-01T08:00"), BERLIN) is None


def test_a_rule_is_followed_for_a_hundred_years() -> None:
    """T-025."""
    for until in ("", ";UNTIL=25000101"):
        leap = ruled("2096-02-29T09:00:00", f"FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29{until}")
        found = upcoming(leap, utc("2096-01-01T00:00"), ZULU, 100)
        assert [due.year for due in found] == [2096, *range(2104, 2197, 4)]


def test_tomorrow_is_the_same_local_time_on_the_day_after_now() -> None:
    """T-063."""
    due = utc("2025-03-27T08:00")
    assert tomorrow(due, utc("2025-03-29T22:30"), BERLIN) == utc("2025-03-30T07:00")
    assert tomorrow(due, utc("2025-03-29T23:30"), BERLIN) == utc("2025-03-31T07:00")
    assert tomorrow(utc("2025-03-27T01:30"), utc("2025-03-29T12:00"), BERLIN) == utc(
        "2025-03-30T01:00"
    )


clocks = st.times().map(lambda clock: clock.replace(microsecond=0).isoformat())
starts = st.datetimes(wall("2010-01-01"), wall("2032-01-01")).map(
    lambda start: start.replace(microsecond=0)
)
afters = st.datetimes(wall("2010-01-01"), wall("2040-01-01"), timezones=st.just(UTC))
# Days around clock changes, where the errors would be.
near_changes = st.builds(
    lambda day, hour: utc(day) + timedelta(hours=hour),
    st.sampled_from(["2025-03-29", "2025-10-25", "2025-03-08", "2025-11-01", "2025-04-05"])
    | st.sampled_from(["2025-10-04", "2011-12-29", "2028-02-28"]),
    st.floats(0, 60),
)
zones = st.sampled_from(ZONES)
windows = st.tuples(clocks, clocks).filter(lambda pair: pair[0] != pair[1])
rules = st.builds(
    lambda frequency, *parts: ";".join([f"FREQ={frequency}", *filter(None, parts)]),
    st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    st.integers(1, 5).map(lambda number: f"INTERVAL={number}"),
    st.sampled_from(["", "BYDAY=MO", "BYDAY=TU,SA", "BYDAY=MO,TU,WE,TH,FR"]),
    st.sampled_from(["", "BYMONTH=2", "BYMONTH=1,6,12"]),
    st.sampled_from(["", "WKST=SU"]),
    st.sampled_from(["", "COUNT=1", "COUNT=7", "UNTIL=20310505T050505"]),
)
schedules = st.one_of(
    st.builds(daily, clocks),
    st.builds(
        lambda at, days: weekly(at, *sorted(days)), clocks, st.sets(st.integers(0, 6), min_size=1)
    ),
    st.builds(monthly, clocks, st.integers(1, 31)),
    st.builds(
        lambda start, seconds: every(seconds, f"{start}+00:00"), starts, st.integers(60, 10**6)
    ),
    st.builds(lambda pair, seconds: every(seconds, "", *pair), windows, st.integers(60, 10**5)),
    st.builds(lambda start, rule: ruled(start.isoformat(), rule), starts, rules),
    st.builds(lambda start: once(start.isoformat()), starts),
)


@given(schedules, afters | near_changes, zones, st.floats(0, 1))
def test_each_due_moment_is_strictly_after_the_one_before(
    schedule: Schedule, after: datetime, zone: ZoneInfo, share: float
) -> None:
    """T-028: and from any moment between two of them the later one is the next."""
    due = upcoming(schedule, after, zone, 5)
    for before, later in pairwise([after, *due]):
        assert before < later
        between = before + (later - before - timedelta(microseconds=1)) * share
        assert next_due(schedule, between, zone) == later


@given(schedules, afters | near_changes, zones)
def test_no_period_is_left_out(schedule: Schedule, after: datetime, zone: ZoneInfo) -> None:
    """T-028: two due moments are never further apart than the rule says, and a clock change."""
    periods = {"daily": 1, "weekly": 7, "monthly": 31, "interval": 1}
    assume(schedule.kind in periods)
    longest = timedelta(days=periods[schedule.kind])
    if isinstance(schedule, Interval):
        longest = max(longest, timedelta(seconds=schedule.seconds))
    due = upcoming(schedule, after, zone, 8)
    assert len(due) == 8
    # A day that was left out makes the next one no further, since its own due moment is kept.
    assert all(later - before <= longest + timedelta(hours=1) for before, later in pairwise(due))


@given(
    schedule=st.one_of(
        st.builds(daily, clocks),
        st.builds(lambda at, day: weekly(at, day), clocks, st.integers(0, 6)),
        st.builds(monthly, clocks, st.integers(1, 31)),
        st.builds(lambda start, rule: ruled(start.isoformat(), rule), starts, rules),
    ),
    after=afters | near_changes,
    zone=zones,
)
def test_dateutil_finds_the_same_wall_clock_times(
    schedule: Schedule, after: datetime, zone: ZoneInfo
) -> None:
    """T-028: gaps and repeated hours are all that we add."""
    found = upcoming(schedule, after, zone, 5)
    assume(found)
    naive = by_dateutil(schedule, after.astimezone(zone).replace(tzinfo=None))
    expected = sorted({at for at in (instant(moment, zone) for moment in naive) if at > after})
    assert list(found) == expected[:5]


def by_dateutil(schedule: Schedule, local: datetime) -> list[datetime]:
    """What dateutil makes of it, without our limits and without a zone."""
    if isinstance(schedule, RecurrenceRule):
        count, text = "COUNT" in schedule.rrule, schedule.rrule
        rule = rrulestr(text, dtstart=datetime.fromisoformat(schedule.at))
        return list(rule) if count else list(islice(rule.xafter(local - timedelta(days=2)), 12))
    at = time.fromisoformat(schedule.at)
    start = datetime.combine(local.date().replace(day=1), at)
    if schedule.kind == "daily":
        return list(rrule(DAILY, dtstart=start, count=50))
    if isinstance(schedule, Weekly):
        return list(rrule(WEEKLY, dtstart=start, byweekday=schedule.days, count=20))
    assert isinstance(schedule, Monthly)
    days = range(min(28, schedule.day), schedule.day + 1)
    return list(rrule(MONTHLY, dtstart=start, bymonthday=days, bysetpos=-1, count=8))


@pytest.mark.slow
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE], ids=str)
def test_ten_years_of_hours_have_no_repeats_and_no_gaps(zone: ZoneInfo) -> None:
    """T-028."""
    first, last = utc("2020-01-01T00:00"), utc("2030-01-01T00:00")
    schedule = daily("02:10")
    due = list(takewhile(lambda at: at < last + timedelta(days=3), moments(schedule, first, zone)))
    days = [at.astimezone(zone).date() for at in due]
    assert days == [date.fromordinal(days[0].toordinal() + n) for n in range(len(days))]
    for hour in range((last - first) // timedelta(hours=1)):
        now = first + timedelta(hours=hour)
        assert next_due(schedule, now, zone) == due[bisect_right(due, now)]


@pytest.mark.quick(
    "interval0-Europe/Berlin",
    "monthly-Europe/Berlin",
    "weekly-America/New_York",
    "monthly-Australia/Lord_Howe",
)
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE], ids=str)
@pytest.mark.parametrize(
    "schedule",
    [weekly("02:10", 2, 6), monthly("02:10", 31), every(7000), every(7000, "", "22:00", "06:00")],
    ids=lambda schedule: schedule.kind,
)
def test_ten_years_are_the_same_walked_or_asked(schedule: Schedule, zone: ZoneInfo) -> None:
    """T-028."""
    last = utc("2030-01-01T00:00")
    due = list(takewhile(lambda at: at < last, moments(schedule, utc("2020-01-01T00:00"), zone)))
    for before, later in pairwise(due):
        assert next_due(schedule, before, zone) == later
        assert next_due(schedule, later - timedelta(microseconds=1), zone) == later


@given(st.datetimes(wall("1980-01-01"), wall("2037-12-31")), zones)
def test_an_instant_is_read_back_as_the_same_wall_clock_time(
    local: datetime, zone: ZoneInfo
) -> None:
    """T-029, T-030: unless it does not exist; then it is where the clock was put forward."""
    found = instant(local, zone)
    shown = found.astimezone(zone).replace(tzinfo=None, fold=0)
    assert found.tzinfo is UTC
    assert shown > local if in_gap(local, zone) else shown == local
    just_before = (found - timedelta(microseconds=1)).astimezone(zone).replace(tzinfo=None)
    assert just_before < local


@settings(max_examples=examples(60))
@given(schedules, afters | near_changes, zones, st.integers(0, 60 * 24 * 3600))
def test_what_was_missed_agrees_with_counting(
    schedule: Schedule, after: datetime, zone: ZoneInfo, away: int
) -> None:
    """T-043."""
    first = next_due(schedule, after, zone)
    assume(first is not None)
    assert first is not None
    now = first + timedelta(seconds=away)
    due = [first, *takewhile(lambda at: at <= now, moments(schedule, first, zone))]
    assert missed(schedule, first, now, zone) == Missed(due[-1], min(len(due), MOST_MISSED))


def test_a_year_away_is_counted_at_once() -> None:
    """T-043: nobody waits for half a million moments to be listed."""
    start, now = utc("2025-01-01T00:01"), utc("2026-01-01T00:00:30")
    latest = utc("2026-01-01T00:00")
    assert missed(every(60), start, now, BERLIN) == Missed(latest, MOST_MISSED)
    window = every(60, "", "06:00", "07:00")
    assert missed(window, start, now, BERLIN) == Missed(utc("2025-12-31T06:00"), MOST_MISSED)


def test_a_single_one_that_was_missed_is_the_latest() -> None:
    """T-042."""
    at = utc("2025-03-01T08:00")
    assert missed(once("2025-03-01T09:00"), at, utc("2030-01-01T00:00"), BERLIN) == Missed(at, 1)
