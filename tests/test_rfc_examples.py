"""The examples of RFC 5545, section 3.8.5.3, with the dates that stand there; and what we refuse."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from wintermute.errors import ToolFailed
from wintermute.tasks.due import checked_rule, next_due, upcoming
from wintermute.tasks.schedules import RecurrenceRule

NEW_YORK = ZoneInfo("America/New_York")

SUMMERS = {
    1996: ("04-07", "10-27"),
    1997: ("04-06", "10-26"),
    1998: ("04-05", "10-25"),
    1999: ("04-04", "10-31"),
    2000: ("04-02", "10-29"),
    2001: ("04-01", "10-28"),
    2003: ("04-06", "10-26"),
    2004: ("04-04", "10-31"),
    2006: ("04-02", "10-29"),
    2007: ("03-11", "11-04"),
}
"""The first day of EDT and the first of EST after it."""

JANUARIES = "1998-01 1-31; 1999-01 1-31; 2000-01 1-31"
THURSDAYS = (
    "1997-06 5 12 19 26; 1997-07 3 10 17 24 31; 1997-08 7 14 21 28; "
    "1998-06 4 11 18 25; 1998-07 2 9 16 23 30; 1998-08 6 13 20 27; "
    "1999-06 3 10 17 24; 1999-07 1 8 15 22 29; 1999-08 5 12 19 26"
)
JUNES_AND_JULYS = "; ".join(f"{year}-06 10; {year}-07 10" for year in range(1997, 2002))
WINTERS = "; ".join(f"{year}-01 10; {year}-02 10; {year}-03 10" for year in (1999, 2001, 2003))
YEAR_DAYS = (
    "1997-01 1; 1997-04 10; 1997-07 19; 2000-01 1; 2000-04 9; 2000-07 18; "
    "2003-01 1; 2003-04 10; 2003-07 19; 2006-01 1"
)
ODD_DAYS = "1 3 5 7 9 11 13 15 17 19 21 23 25 27 29"
EVEN_DAYS = "2 4 6 8 10 12 14 16 18 20 22 24 26 28 30"

# DTSTART, the rule, and the dates: year-month and days. An endless rule: its first dates.
EXAMPLES = [
    ("1997-09-02", "FREQ=DAILY;COUNT=10", "1997-09 2-11"),
    (
        "1997-09-02",
        "FREQ=DAILY;UNTIL=19971224T000000Z",
        "1997-09 2-30; 1997-10 1-31; 1997-11 1-30; 1997-12 1-23",
    ),
    (
        "1997-09-02",
        "FREQ=DAILY;INTERVAL=2",
        f"1997-09 {EVEN_DAYS}; 1997-10 {EVEN_DAYS}; 1997-11 {ODD_DAYS}; 1997-12 1 3",
    ),
    ("1997-09-02", "FREQ=DAILY;INTERVAL=10;COUNT=5", "1997-09 2 12 22; 1997-10 2 12"),
    (
        "1998-01-01",
        "FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
        JANUARIES,
    ),
    ("1998-01-01", "FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1", JANUARIES),
    (
        "1997-09-02",
        "FREQ=WEEKLY;COUNT=10",
        "1997-09 2 9 16 23 30; 1997-10 7 14 21 28; 1997-11 4",
    ),
    (
        "1997-09-02",
        "FREQ=WEEKLY;UNTIL=19971224T000000Z",
        "1997-09 2 9 16 23 30; 1997-10 7 14 21 28; 1997-11 4 11 18 25; 1997-12 2 9 16 23",
    ),
    (
        "1997-09-02",
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
        "1997-09 2 16 30; 1997-10 14 28; 1997-11 11 25; 1997-12 9 23; 1998-01 6 20; 1998-02 3 17",
    ),
    (
        "1997-09-02",
        "FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH",
        "1997-09 2 4 9 11 16 18 23 25 30; 1997-10 2",
    ),
    (
        "1997-09-02",
        "FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH",
        "1997-09 2 4 9 11 16 18 23 25 30; 1997-10 2",
    ),
    (
        "1997-09-01",
        "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
        "1997-09 1 3 5 15 17 19 29; 1997-10 1 3 13 15 17 27 29 31; 1997-11 10 12 14 24 26 28; "
        "1997-12 8 10 12 22",
    ),
    (
        "1997-09-02",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
        "1997-09 2 4 16 18 30; 1997-10 2 14 16",
    ),
    (
        "1997-09-05",
        "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
        "1997-09 5; 1997-10 3; 1997-11 7; 1997-12 5; 1998-01 2; 1998-02 6; 1998-03 6; "
        "1998-04 3; 1998-05 1; 1998-06 5",
    ),
    (
        "1997-09-05",
        "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
        "1997-09 5; 1997-10 3; 1997-11 7; 1997-12 5",
    ),
    (
        "1997-09-07",
        "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
        "1997-09 7 28; 1997-11 2 30; 1998-01 4 25; 1998-03 1 29; 1998-05 3 31",
    ),
    (
        "1997-09-22",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        "1997-09 22; 1997-10 20; 1997-11 17; 1997-12 22; 1998-01 19; 1998-02 16",
    ),
    (
        "1997-09-28",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        "1997-09 28; 1997-10 29; 1997-11 28; 1997-12 29; 1998-01 29; 1998-02 26",
    ),
    (
        "1997-09-02",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
        "1997-09 2 15; 1997-10 2 15; 1997-11 2 15; 1997-12 2 15; 1998-01 2 15",
    ),
    (
        "1997-09-30",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
        "1997-09 30; 1997-10 1 31; 1997-11 1 30; 1997-12 1 31; 1998-01 1 31; 1998-02 1",
    ),
    (
        "1997-09-10",
        "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
        "1997-09 10-15; 1999-03 10-13",
    ),
    (
        "1997-09-02",
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
        "1997-09 2 9 16 23 30; 1997-11 4 11 18 25; 1998-01 6 13 20 27; 1998-03 3 10 17 24 31",
    ),
    ("1997-06-10", "FREQ=YEARLY;COUNT=10;BYMONTH=6,7", JUNES_AND_JULYS),
    ("1997-03-10", "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3", f"1997-03 10; {WINTERS}"),
    ("1997-01-01", "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200", YEAR_DAYS),
    ("1997-05-19", "FREQ=YEARLY;BYDAY=20MO", "1997-05 19; 1998-05 18; 1999-05 17"),
    ("1997-05-12", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "1997-05 12; 1998-05 11; 1999-05 17"),
    (
        "1997-03-13",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        "1997-03 13 20 27; 1998-03 5 12 19 26; 1999-03 4 11 18 25",
    ),
    ("1997-06-05", "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8", THURSDAYS),
    (
        "1997-09-02",
        "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
        "1998-02 13; 1998-03 13; 1998-11 13; 1999-08 13; 2000-10 13",
    ),
    (
        "1997-09-13",
        "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
        "1997-09 13; 1997-10 11; 1997-11 8; 1997-12 13; 1998-01 10; 1998-02 7; 1998-03 7; "
        "1998-04 11; 1998-05 9; 1998-06 13",
    ),
    (
        "1996-11-05",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        "1996-11 5; 2000-11 7; 2004-11 2",
    ),
    (
        "1997-09-04",
        "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
        "1997-09 4; 1997-10 7; 1997-11 6",
    ),
    (
        "1997-09-29",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
        "1997-09 29; 1997-10 30; 1997-11 27; 1997-12 30; 1998-01 29; 1998-02 26; 1998-03 30",
    ),
    ("1997-08-05", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "1997-08 5 10 19 24"),
    ("1997-08-05", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "1997-08 5 17 19 31"),
    (
        "2007-01-15",
        "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
        "2007-01 15 30; 2007-02 15; 2007-03 15 30",
    ),
]

REFUSED = [
    "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000Z",
    "FREQ=MINUTELY;INTERVAL=15;COUNT=6",
    "FREQ=MINUTELY;INTERVAL=90;COUNT=4",
    "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
    "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
]
"""The rest of the section: finer than a day."""


def days(text: str) -> list[date]:
    found = []
    for month in text.split("; "):
        name, *numbers = month.split()
        for number in numbers:
            first, _, last = number.partition("-")
            found += [
                date.fromisoformat(f"{name}-{day:02}")
                for day in range(int(first), int(last or first) + 1)
            ]
    return found


def nine_o_clock(day: date) -> datetime:
    """09:00 in New York in UTC, by the letters EDT and EST of the RFC."""
    edt, est = SUMMERS[day.year]
    summer = edt <= f"{day:%m-%d}" < est
    return datetime(day.year, day.month, day.day, 13 if summer else 14, tzinfo=UTC)


@pytest.mark.parametrize(("start", "rule", "expected"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_an_example_of_the_rfc_gives_the_dates_of_the_rfc(
    start: str, rule: str, expected: str
) -> None:
    """T-025."""
    schedule = RecurrenceRule(at=f"{start}T09:00:00", rrule=checked_rule(rule))
    dates = [nine_o_clock(day) for day in days(expected)]
    ends = "COUNT" in rule or "UNTIL" in rule
    before = nine_o_clock(date.fromisoformat(start)) - timedelta(seconds=1)
    assert list(upcoming(schedule, before, NEW_YORK, len(dates) + ends)) == dates
    after = next_due(schedule, dates[-1], NEW_YORK)
    assert after is None if ends else after is not None


@pytest.mark.parametrize("rule", REFUSED)
def test_an_example_that_is_finer_than_a_day_is_refused(rule: str) -> None:
    """T-025."""
    with pytest.raises(ToolFailed, match=r"FREQ|BYHOUR"):
        checked_rule(rule)


MANY = ",".join(["1"] * 32)


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("FREQ=HOURLY", "FREQ=HOURLY is not allowed"),
        ("FREQ=SECONDLY;COUNT=3", "FREQ=SECONDLY"),
        ("BYDAY=MO", "FREQ is missing"),
        ("FREQ=DAILY;BYHOUR=9", "BYHOUR: say the time of day with at"),
        ("FREQ=DAILY;BYSECOND=9", "BYSECOND"),
        ("DTSTART=20260301T090000;FREQ=DAILY", "DTSTART"),
        ("DTSTART;TZID=Europe/Berlin:20260301T090000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("FREQ=DAILY;BYEASTER=1", "BYEASTER is unknown"),
        ("FREQ=DAILY;FREQ=WEEKLY", "FREQ is given twice"),
        ("FREQ=DAILY;", "part '' is not NAME=VALUE"),
        ("every monday", "part 'EVERYMONDAY' is not NAME=VALUE"),
        ("FREQ=DAILY;COUNT=0", "COUNT=0"),
        (
            "FREQ=DAILY;COUNT=1001",
            "COUNT=1001 cannot be read; it must be one number from 1 to 1000",
        ),
        ("FREQ=DAILY;COUNT=-1", "COUNT=-1"),
        ("FREQ=DAILY;COUNT=99999999999999999999", "COUNT"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL=0"),
        ("FREQ=DAILY;INTERVAL=1,2", "INTERVAL=1,2"),
        ("FREQ=DAILY;COUNT=3;UNTIL=20270101", "COUNT or UNTIL"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL=TOMORROW"),
        ("FREQ=DAILY;UNTIL=20261301", "UNTIL=20261301"),
        ("FREQ=DAILY;UNTIL=00010101T000000Z", "UNTIL=00010101T000000Z"),
        ("FREQ=WEEKLY;BYDAY=XX", "BYDAY=XX"),
        ("FREQ=WEEKLY;BYDAY=2MO", "BYDAY=2MO has no meaning with FREQ=WEEKLY"),
        ("FREQ=WEEKLY;BYMONTHDAY=2", "BYMONTHDAY has no meaning with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYYEARDAY=2", "BYYEARDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=32", "BYMONTHDAY=32"),
        ("FREQ=MONTHLY;BYMONTHDAY=٣", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTH=13", "BYMONTH=13"),
        ("FREQ=YEARLY;BYWEEKNO=20", "BYWEEKNO needs BYDAY"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS needs"),
        (f"FREQ=MONTHLY;BYDAY=MO;BYSETPOS={MANY}", "BYSETPOS"),
        ("FREQ=DAILY;WKST=1", "WKST=1"),
        ("FREQ=DAILY;" + "X" * 500, "511 characters"),
    ],
)
def test_a_rule_that_is_wrong_is_refused_naming_the_part(rule: str, named: str) -> None:
    """T-025."""
    with pytest.raises(ToolFailed) as refused:
        checked_rule(rule)
    assert named in str(refused.value)
