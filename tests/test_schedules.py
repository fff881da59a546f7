"""What a person or a model says about when and how: read strictly, or refused with what to write."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from wintermute.errors import ToolFailed
from wintermute.tasks.due import next_due, upcoming
from wintermute.tasks.parse import EXAMPLES
from wintermute.tasks.schedules import (
    KINDS,
    NOTHING,
    UNPLANNED,
    Plan,
    PlanRequest,
    Schedule,
    apply_request,
    read,
)
from wintermute.tools.definition import definition

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 2, 27, 12, 34, 56, 789_000, tzinfo=UTC)
"""A Friday, 13:34:56 in Berlin."""


async def plan(before: Plan = UNPLANNED, now: datetime = NOW, **said: Any) -> Plan:
    return await apply_request(PlanRequest.of(said), now, BERLIN, before)


async def schedule(before: Plan = UNPLANNED, **said: Any) -> Schedule:
    found = (await plan(before, **said)).schedule
    assert found is not None
    return found


def local(due: datetime | None) -> str:
    assert due is not None
    return f"{due.astimezone(BERLIN):%a %Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("at", "due"),
    [
        ("2026-03-01T09:00:30", "Sun 2026-03-01 09:00:30"),
        ("  2026-03-01   9:00 ", "Sun 2026-03-01 09:00:00"),
        ("2026-03-01T09:00Z", "Sun 2026-03-01 10:00:00"),
        ("2026-03-01 09:00:30.000z", "Sun 2026-03-01 10:00:30"),
        ("2026-03-01T09:00+0530", "Sun 2026-03-01 04:30:00"),
        ("18:30:15", "Fri 2026-02-27 18:30:15"),
        ("8", "Sat 2026-02-28 08:00:00"),
        ("13:34", "Sat 2026-02-28 13:34:00"),
        ("in 30 minutes", "Fri 2026-02-27 14:04:56"),
        ("in 1 Min", "Fri 2026-02-27 13:35:56"),
        ("in 48 h", "Sun 2026-03-01 13:34:56"),
        ("2028-02-29T00:00", "Tue 2028-02-29 00:00:00"),
        ("2026-03-29T02:30", "Sun 2026-03-29 03:00:00"),
        ("2026-10-25T02:30", "Sun 2026-10-25 02:30:00"),
    ],
)
async def test_a_single_time_is_read(at: str, due: str) -> None:
    """T-017, T-032."""
    found = await schedule(schedule_type="once", at=at)
    assert local(next_due(found, NOW, BERLIN)) == due


@pytest.mark.parametrize(
    "at",
    [
        "1:2",
        "in -3 days",
        "2026-02-30T09:00",
        "0000-01-01T00:00",
        "2026-03-01T09:00+99:99",
        "in 3 daysx",
        "''",
        "in ²2 hours",
        "�",
        "0001-01-01T00:00+14:00",
        "1" * 5000,
    ],
)
async def test_a_time_that_cannot_be_read_is_refused_with_three_examples(at: str) -> None:
    """T-018."""
    with pytest.raises(
        ToolFailed,
        match=rf"(cannot be read|I cannot read .*|no such date or time as .*)\. Write for example {EXAMPLES}\.$",
    ) as refused:
        await plan(schedule_type="once", at=at)
    str(refused.value).encode()


@pytest.mark.parametrize(
    "at", ["2026-02-27T12:34:56Z", "today 13:34", "0001-01-01T00:00", "1999-12-31 23:59:59"]
)
async def test_a_time_that_has_passed_is_refused(at: str) -> None:
    """T-019."""
    with pytest.raises(ToolFailed, match="that time has passed, it is Fri 2026-02-27 13:34"):
        await plan(schedule_type="once", at=at)


@pytest.mark.parametrize("at", ["in 999999999 weeks", "in 999999999 minutes", "2126-03-01T00:00Z"])
async def test_a_time_that_nobody_will_see_is_refused(at: str) -> None:
    """T-018."""
    for zone in (BERLIN, ZoneInfo("America/New_York")):
        with pytest.raises(ToolFailed, match="more than a hundred years ahead"):
            await apply_request(PlanRequest(schedule_type="once", at=at), NOW, zone)


async def test_the_present_moment_has_passed() -> None:
    """T-019, T-028."""
    now = NOW.replace(microsecond=0)
    with pytest.raises(ToolFailed, match="has passed"):
        await plan(now=now, schedule_type="once", at="2026-02-27T12:34:56Z")


@pytest.mark.parametrize(
    ("said", "words", "first"),
    [
        ({"schedule_type": "daily", "at": "9:00"}, "daily at 09:00", "Sat 2026-02-28 09:00:00"),
        (
            {"schedule_type": "Daily ", "at": "18:00:30"},
            "daily at 18:00:30",
            "Fri 2026-02-27 18:00:30",
        ),
        (
            {"schedule_type": "weekly", "at": "09:00", "day_of_week": "THU, Monday"},
            "weekly on mon, thu at 09:00",
            "Mon 2026-03-02 09:00:00",
        ),
        (
            {"schedule_type": "monthly", "at": "09:00", "day_of_month": 31},
            "monthly on day 31 at 09:00",
            "Sat 2026-02-28 09:00:00",
        ),
        (
            {"schedule_type": "interval", "interval_seconds": 5400},
            "every 90 min",
            "Fri 2026-02-27 15:04:56",
        ),
        (
            {
                "schedule_type": "interval",
                "interval_seconds": 5400,
                "window_start": "22:00",
                "window_end": "6:00",
            },
            "every 90 min 22:00-06:00",
            "Fri 2026-02-27 22:00:00",
        ),
        (
            {"schedule_type": "rrule", "at": "09:00", "rrule": "rrule:freq=weekly; byday=mo,we"},
            "rrule FREQ=WEEKLY;BYDAY=MO,WE",
            "Mon 2026-03-02 09:00:00",
        ),
        (
            {"schedule_type": "rrule", "at": "2026-05-01T09:00", "rrule": "FREQ=MONTHLY"},
            "rrule FREQ=MONTHLY",
            "Fri 2026-05-01 09:00:00",
        ),
        (
            {"schedule_type": "once", "at": "2026-03-01T09:00"},
            "once at 2026-03-01 09:00",
            "Sun 2026-03-01 09:00:00",
        ),
    ],
)
async def test_each_kind_is_read_said_and_stored(
    said: dict[str, Any], words: str, first: str
) -> None:
    """T-020, T-021, T-023, T-024, T-025, T-027."""
    found = await schedule(**said)
    assert found.describe(BERLIN) == words
    assert local(next_due(found, NOW, BERLIN)) == first
    assert read(found.stored()) == found


def test_a_model_may_ask_for_each_kind_with_all_that_goes_with_it() -> None:
    """T-016, T-026."""
    parameters = definition("task")["parameters"]
    assert parameters["properties"]["schedule_type"]["enum"] == [*KINDS, "none"]
    assert {name for kind in KINDS.values() for name in kind.takes} <= {*parameters["properties"]}


async def test_a_window_over_midnight_is_due_as_often_as_it_should() -> None:
    """T-024."""
    window: dict[str, Any] = {"window_start": "22:00", "window_end": "06:00"}
    found = await schedule(schedule_type="interval", interval_seconds=5400, **window)
    due = [f"{at.astimezone(BERLIN):%H:%M}" for at in upcoming(found, NOW, BERLIN, 7)]
    assert due == ["22:00", "23:30", "01:00", "02:30", "04:00", "05:30", "22:00"]


@pytest.mark.parametrize(("at", "first"), [("13:00", "2026-03-02"), ("14:00", "2026-02-27")])
async def test_a_rule_counts_only_what_is_to_come(at: str, first: str) -> None:
    """T-025."""
    rule = "FREQ=WEEKLY;BYDAY=MO,FR;COUNT=4"
    found = await schedule(schedule_type="rrule", at=at, rrule=rule)
    due = upcoming(found, NOW, BERLIN, 10)
    assert len(due) == 4
    assert local(due[0])[4:14] == first


@pytest.mark.parametrize(
    ("at", "local"),
    [("in 30 minutes", "2026-02-27T14:04"), ("2026-12-01T09:00+01:00", "2026-12-01T09:00")],
)
async def test_a_rule_starts_at_a_wall_clock_time(at: str, local: str) -> None:
    """T-018, T-025."""
    with pytest.raises(ToolFailed, match=f"at is a time of day or a date with one, as in {local}$"):
        await plan(schedule_type="rrule", at=at, rrule="FREQ=DAILY")


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY;UNTIL=20200101", "FREQ=DAILY;BYMONTHDAY=30;BYMONTH=2"]
)
async def test_a_rule_that_never_comes_true_is_refused(rule: str) -> None:
    """T-025: and soon, or it would be refused for the time it takes."""
    with pytest.raises(ToolFailed, match=f"{rule} never comes"):
        await plan(schedule_type="rrule", at="09:00", rrule=rule)


async def test_a_new_time_of_day_leaves_a_series_a_series() -> None:
    """T-004."""
    daily = await plan(at="daily 09:00")
    assert await plan(daily, at="10:00") == await plan(at="daily 10:00")
    weekly = await schedule(at="weekly mon 10:00")
    assert (await plan(daily, at="every monday 10:00")).schedule == weekly


INTERVAL: dict[str, Any] = {"schedule_type": "interval", "interval_seconds": 3600}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"schedule_type": "hourly"}, "'hourly' is unknown; it must be once, daily"),
        ({"schedule_type": "once"}, "once needs at"),
        ({"schedule_type": "weekly"}, "weekly needs at and day_of_week"),
        ({"schedule_type": "weekly", "at": "09:00", "day_of_week": " "}, "needs day_of_week"),
        ({"schedule_type": "interval"}, "interval needs interval_seconds"),
        ({"schedule_type": "rrule", "rrule": "FREQ=DAILY"}, "rrule needs at"),
        (
            {"schedule_type": "daily", "at": "09:00", "day_of_month": 3},
            "daily does not go with day_of_month; it takes at",
        ),
        ({**INTERVAL, "at": "09:00"}, "interval does not go with at"),
        ({"schedule_type": "none", "at": "09:00"}, "none does not go with at"),
        (
            {"schedule_type": "once", "at": "18:00", "rrule": "FREQ=DAILY", "day_of_week": "mon"},
            "once does not go with day_of_week and rrule",
        ),
        ({"day_of_week": "mon", "at": "9:00"}, "at and day_of_week needs a schedule_type: once, "),
        ({"at": "daily 25:00"}, "no such date or time as '25:00'"),
        ({"at": "funday 09:00"}, "cannot be read"),
        ({"at": "monthly 15 9:00", "schedule_type": "once"}, "leave out schedule_type"),
        ({"at": "mon 9:00", "schedule_type": "daily"}, "is no time of day"),
        ({"at": "fri 9:00", "schedule_type": "weekly", "day_of_week": "tue"}, "is no time of day"),
        ({"at": "monthly 32 09:00"}, "from 1 to 31"),
        ({"schedule_type": "daily", "at": "2026-03-01T09:00"}, "is no time of day; write for exa"),
        (
            {"schedule_type": "daily", "at": "in 3 days"},
            "or 18:30; a date goes with schedule_type once",
        ),
        (
            {"schedule_type": "weekly", "at": "09:00", "day_of_week": "mon,funday"},
            "'funday' is no day; write for example mon,thu",
        ),
        ({"schedule_type": "weekly", "at": "09:00", "day_of_week": "mon,"}, "'' is no day"),
        ({"schedule_type": "monthly", "at": "09:00", "day_of_month": 32}, "from 1 to 31"),
        ({"schedule_type": "monthly", "at": "09:00", "day_of_month": 0}, "from 1 to 31"),
        ({"schedule_type": "monthly", "at": "09:00", "day_of_month": "15"}, "a whole number"),
        ({"schedule_type": "monthly", "at": "09:00", "day_of_month": True}, "a whole number"),
        ({"schedule_type": "interval", "interval_seconds": 59}, "from 60 to 31622400"),
        ({"schedule_type": "interval", "interval_seconds": 10**5000}, "from 60 to 31622400"),
        ({"schedule_type": "interval", "interval_seconds": 90.5}, "a whole number"),
        ({"schedule_type": "once", "at": 900}, "at must be a text"),
        ({**INTERVAL, "window_start": "22:00"}, "given together"),
        ({**INTERVAL, "window_start": "22:00", "window_end": "22:00:00"}, "are equal"),
        ({**INTERVAL, "window_start": "22:00", "window_end": "22:59"}, "shorter than interval"),
        ({**INTERVAL, "window_start": "22h", "window_end": "23:59"}, "window_start '22h'"),
        ({"execution_mode": "silent"}, "'silent' is unknown; it must be reminder, autonomous_n"),
        ({"execution_mode": "autonomous_notify"}, "needs an ai_prompt"),
        ({"execution_mode": "autonomous_notify", "ai_prompt": " \n"}, "needs an ai_prompt"),
        ({"execution_mode": "autonomous_notify", "ai_prompt": "look"}, "needs a schedule_type"),
        ({"ai_prompt": "look"}, "ai_prompt needs the execution_mode autonomous_notify or"),
        ({"execution_mode": "reminder", "ai_prompt": "look"}, "execution_mode reminder only"),
        (
            {**INTERVAL, "execution_mode": "autonomous_silent", "ai_prompt": "x" * 4001},
            "4001 characters",
        ),
    ],
)
async def test_what_contradicts_itself_or_is_half_said_is_refused(
    said: dict[str, Any], named: str
) -> None:
    """T-016, T-018, T-021, T-023, T-024, T-026, T-047."""
    with pytest.raises(ToolFailed) as refused:
        await plan(**said)
    assert named in str(refused.value)


async def test_without_a_schedule_nothing_is_planned() -> None:
    """T-016."""
    assert NOTHING.is_empty
    assert PlanRequest.of({"content": "milk", "at": "", "day_of_month": None}) == NOTHING
    assert await apply_request(NOTHING, NOW, BERLIN) == UNPLANNED
    assert (await plan(schedule_type="none")).schedule is None


async def test_what_is_asked_about_times_is_told_from_the_mode() -> None:
    """T-004: only another schedule replaces the next occurrence."""
    assert PlanRequest(at="09:00").has_schedule
    assert PlanRequest(schedule_type="none").has_schedule
    assert not PlanRequest(execution_mode="reminder", ai_prompt="").has_schedule
    assert not PlanRequest(ai_prompt="").is_empty


@pytest.mark.parametrize(
    ("first", "change", "words"),
    [
        ("daily 09:00", {"at": "10:00"}, "daily at 10:00"),
        ("daily 09:00", {"schedule_type": "daily"}, "daily at 09:00"),
        ("daily 09:00", {"schedule_type": "once", "at": "18:00"}, "once at 2026-02-27 18:00"),
        ("mon,thu 09:00", {"day_of_week": "fri"}, "weekly on fri at 09:00"),
        ("mon,thu 09:00", {"at": "8:00"}, "weekly on mon, thu at 08:00"),
        ("18:00", {"at": "19:00"}, "once at 2026-02-27 19:00"),
    ],
)
async def test_what_is_not_said_stays_as_it_was(
    first: str, change: dict[str, Any], words: str
) -> None:
    """T-004."""
    before = await plan(at=first)
    assert (await schedule(before, **change)).describe(BERLIN) == words


async def test_parts_of_an_interval_and_of_a_month_change_alone() -> None:
    """T-004."""
    window: dict[str, Any] = {"window_start": "22:00", "window_end": "06:00"}
    before = await plan(**INTERVAL, **window)
    assert (await schedule(before, interval_seconds=5400)).describe(BERLIN) == (
        "every 90 min 22:00-06:00"
    )
    assert (await schedule(before, window_end="07:00")).describe(
        BERLIN
    ) == "every 60 min 22:00-07:00"
    whole = await schedule(before, window_start="none", window_end="none")
    assert whole.describe(BERLIN) == "every 60 min"
    same = await plan(before, NOW + timedelta(hours=1), schedule_type="interval")
    assert same == before
    month = await plan(schedule_type="monthly", at="09:00", day_of_month=15)
    assert (await schedule(month, day_of_month=1)).describe(BERLIN) == "monthly on day 1 at 09:00"


async def test_another_rule_keeps_its_time_and_counts_from_now() -> None:
    """T-004, T-025."""
    before = await plan(schedule_type="rrule", at="09:00", rrule="FREQ=DAILY;COUNT=2")
    later = NOW + timedelta(days=30)
    after = (await plan(before, later, rrule="FREQ=DAILY;COUNT=3")).schedule
    assert after is not None
    assert [local(due) for due in upcoming(after, later, BERLIN, 5)] == [
        "Mon 2026-03-30 09:00:00",
        "Tue 2026-03-31 09:00:00",
        "Wed 2026-04-01 09:00:00",
    ]
    ahead = await plan(schedule_type="rrule", at="2026-05-01T09:00", rrule="FREQ=DAILY")
    assert (await schedule(ahead, rrule="FREQ=WEEKLY")).at == "2026-05-01T09:00:00"


async def test_parts_of_another_kind_do_not_fit_the_present_schedule() -> None:
    """T-026."""
    before = await plan(schedule_type="daily", at="09:00")
    with pytest.raises(ToolFailed, match="daily does not go with day_of_week"):
        await plan(before, day_of_week="mon")
    with pytest.raises(ToolFailed, match="weekly needs at"):
        await plan(before, schedule_type="weekly", day_of_week="mon")
    assert await plan(before, schedule_type="none") == UNPLANNED


async def test_a_mode_changes_alone_and_takes_its_prompt_with_it() -> None:
    """T-004, T-047."""
    reminder = await plan(schedule_type="daily", at="09:00")
    run = await plan(reminder, execution_mode="Autonomous_Notify", ai_prompt=" look\ud800 ")
    assert (run.schedule, run.mode, run.ai_prompt) == (
        reminder.schedule,
        "autonomous_notify",
        "look\ufffd",
    )
    silent = await plan(run, execution_mode="autonomous_silent")
    assert (silent.mode, silent.ai_prompt) == ("autonomous_silent", run.ai_prompt)
    assert (await plan(silent, ai_prompt="think")).ai_prompt == "think"
    assert await plan(silent, execution_mode="reminder") == reminder
    with pytest.raises(ToolFailed, match="needs an ai_prompt"):
        await plan(silent, ai_prompt="")
    with pytest.raises(ToolFailed, match="needs a schedule_type"):
        await plan(silent, schedule_type="none")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"schedule_type": "monthly", "at": "09:00", "day_of_month": 28}, ""),
        (
            {"schedule_type": "monthly", "at": "09:00", "day_of_month": 29},
            "in a month without a day 29 it is due on the last day",
        ),
        (
            {"schedule_type": "once", "at": "2026-03-29T02:30"},
            "2026-03-29 02:30 is skipped by the clock change; it is due at 2026-03-29 03:00",
        ),
        (
            {"schedule_type": "once", "at": "2026-10-25T02:30"},
            "2026-10-25 02:30 comes twice that day; it is due the first time",
        ),
        ({"schedule_type": "once", "at": "2026-10-25T02:30Z"}, ""),
        ({"schedule_type": "once", "at": "18:00"}, ""),
        ({"schedule_type": "daily", "at": "02:30"}, ""),
    ],
)
async def test_what_is_not_as_it_was_said_is_pointed_out(said: dict[str, Any], words: str) -> None:
    """T-022, T-032."""
    found = await schedule(**said)
    assert found.remark(next_due(found, NOW, BERLIN), BERLIN) == words
