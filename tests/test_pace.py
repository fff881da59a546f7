"""How fast signs follow: freely, until a homeserver has said that it counts."""

import pytest

from wintermute.matrix.outbox import BURST, RateLimiter


def signs_at(pace: RateLimiter, now: float) -> int:
    """How many signs may go at this time."""
    count = 0
    while count < 100 and not pace.reaction_delay(now):
        count += 1
    return count


def test_signs_go_freely_where_nobody_limits_them() -> None:
    pace = RateLimiter()
    assert [signs_at(pace, now) for now in (1000.0, 1000.0)] == [100, 100]


def test_after_a_refusal_signs_leave_something_for_answers() -> None:
    """T-063: the homeserver's own count never reaches its limit by signs alone."""
    pace = RateLimiter()
    pace.reaction_delay(1000.0)
    pace.note_limit(1000.0)
    assert pace.reaction_delay(1000.0) == 20
    assert pace.reaction_delay(1019.0) == pytest.approx(1)
    assert signs_at(pace, 1020.1) == 1
    assert signs_at(pace, 1025.2) == 1
    for _ in range(3):
        pace.count(1025.2)
    assert pace.reaction_delay(1025.2) == pytest.approx(20, abs=1)
    assert signs_at(pace, 1e6) == BURST - 3
    assert signs_at(pace, 1e6 + 5.1) == 1


def test_messages_that_went_through_count_however_many_they_are() -> None:
    pace = RateLimiter()
    for _ in range(200):  # nobody has limited these
        pace.count(0.0)
    pace.note_limit(0.0)
    for _ in range(30):
        pace.count(0.0)
    assert pace.reaction_delay(0.0) == pytest.approx(5 * (40 - 6))
    pace.note_limit(0.0)
    assert pace.reaction_delay(0.0) == pytest.approx(5 * (40 - 6))
