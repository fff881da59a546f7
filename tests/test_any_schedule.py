"""Whatever a model or a person writes about when: it is understood, or refused in words."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wintermute.errors import ToolFailed
from wintermute.tasks.due import next_due
from wintermute.tasks.grammar import WORDS
from wintermute.tasks.parse import find_time, wall_time
from wintermute.tasks.schedules import KINDS, PlanRequest, apply_request, read

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 2, 27, 12, 34, 56, 789_000, tzinfo=UTC)

known = [word.text for word in WORDS] + ["9", "31", "9:30", "1.12.", "1/12", "9h", "x", ","] * 9
words = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(known), max_size=6).map(" ".join),
    st.from_regex(r"\A[0-9]{1,4}[-: ][0-9]{1,2}[-:T ][0-9]{1,2}[:+-Zz]?[0-9]{0,4}\Z"),
    st.from_regex(r"\A(in|today|tomorrow|mon|daily)? ?[0-9]{1,12}:?[0-9]* ?(min|h|weeks|days)?\Z"),
    st.from_regex(r"\A[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]([+-][0-9]{4})?\Z"),
    st.characters(categories=["Cs", "Nd", "No"]),
)
rules = st.one_of(
    words,
    st.lists(
        st.builds(
            "{}={}".format,
            st.sampled_from(["FREQ", "UNTIL", "COUNT", "BYDAY", "BYMONTHDAY", "BYWEEKNO", "WKST"])
            | st.sampled_from(["INTERVAL", "BYMONTH", "BYYEARDAY", "BYSETPOS"]),
            st.sampled_from(["DAILY", "MONTHLY", "YEARLY", "MO", "1,-1", "-1FR", "20300101"])
            | st.integers(-400, 400).map(str)
            | words,
        ),
        max_size=4,
        unique_by=lambda part: part.split("=")[0],
    ).map(lambda parts: ";".join(["FREQ=YEARLY", *parts])),
)
anything: st.SearchStrategy[Any] = st.one_of(st.none(), words, st.integers(), st.floats())
calls = st.fixed_dictionaries(
    {},
    optional={
        "schedule_type": st.sampled_from([*KINDS, "none"]) | anything,
        "at": words | anything,
        "day_of_week": st.sampled_from(["mon", "tue,wed"]) | anything,
        "day_of_month": st.integers(-1, 40) | anything,
        "interval_seconds": st.integers(0, 10**9) | anything,
        "window_start": st.just("22:00") | words,
        "window_end": st.just("06:00") | words,
        "rrule": rules,
        "execution_mode": st.just("autonomous_silent") | anything,
        "ai_prompt": anything,
    },
)


@settings(max_examples=examples(400))
@given(calls)
def test_whatever_is_said_is_planned_or_refused(said: dict[str, Any]) -> None:
    """T-010, T-018: never another error, and what is planned has a next due moment."""
    try:
        made = asyncio.run(apply_request(PlanRequest.of(said), NOW, BERLIN))
    except ToolFailed as refused:
        str(refused).encode()
        return
    made.ai_prompt.encode()
    if made.schedule is not None:
        due = next_due(made.schedule, NOW, BERLIN)
        assert due is not None
        assert due > NOW
        assert read(made.schedule.stored()) == made.schedule
        assert made.schedule.describe(BERLIN)
        made.schedule.remark(due, BERLIN).encode()


@settings(max_examples=examples(400))
@given(words, words)
def test_whatever_a_line_says_is_a_reminder_or_none(when: str, text: str) -> None:
    """T-018, T-062."""
    try:
        find_time(f"{text} {when} {text}", NOW, BERLIN)
        at = datetime.fromisoformat(wall_time(when, NOW, BERLIN))
    except ToolFailed:
        return
    assert at.year < 2127
