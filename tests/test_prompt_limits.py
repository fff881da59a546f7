"""When a part of the prompt that is too long is told about, and when not again."""

from datetime import UTC, datetime, timedelta

import pytest

from wintermute.prompt.context_builder import Component, SizeNotice, components_to_report

NOW = datetime(2025, 1, 15, 13, 32, tzinfo=UTC)
LIMITS: dict[Component, int] = {"memories": 10_000, "tasks": 5_000, "skills": 2_000}


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"memories": 10_000, "tasks": 5_000, "skills": 2_000}, ()),
        ({"memories": 10_001}, ("memories",)),
        ({"tasks": 5_001}, ("tasks",)),
        ({"skills": 2_001, "tasks": 9_000, "memories": 10_001}, ("memories", "tasks", "skills")),
        ({}, ()),
    ],
)
def test_parts_over_their_limit_are_told(
    sizes: dict[Component, int], told: tuple[Component, ...]
) -> None:
    """P-048, P-050, P-052: a size that is not given never counts."""
    assert components_to_report(sizes, LIMITS, {}, NOW) == told


@pytest.mark.parametrize(
    ("then", "ago", "size", "again"),
    [
        (5_100, timedelta(0), 5_100, False),
        (5_100, timedelta(hours=24, seconds=-1), 5_600, False),
        (5_100, timedelta(hours=24), 5_001, True),
        (5_100, timedelta(hours=24), 5_000, False),
        (5_100, timedelta(minutes=1), 5_609, False),
        (5_100, timedelta(minutes=1), 5_610, True),
    ],
)
def test_within_a_day_only_growth_is_told(
    then: int, ago: timedelta, size: int, again: bool
) -> None:
    """P-051: a tenth more is news."""
    told: dict[Component, SizeNotice] = {"tasks": SizeNotice(then, NOW - ago)}
    assert components_to_report({"tasks": size}, LIMITS, told, NOW) == (("tasks",) if again else ())
    assert components_to_report({"tasks": size, "skills": 2_001}, LIMITS, told, NOW)[-1] == "skills"
