"""What is said in groups to others: kept as long as it may be background of an answer (F-030)."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.groups import begin_group, group_line
from tests.world.house import House, house_at_work, open_house
from tests.world.model import ModelServer, Text
from tests.world.redacted import EVE, GROUP_SCOPE, PASSWORD_WORD, is_told, take_back
from wintermute.night.expiry import LINES_KEPT, Expiry

SOON = timedelta(minutes=1).total_seconds()
WEEK = LINES_KEPT.total_seconds()


async def purge(house: House) -> None:
    """What is done once a day."""
    await Expiry(house.stores, house.checked).purge()


async def stored_lines(house: House) -> list[str]:
    """What is kept of the lines, in order; of one that has expired nothing but its ids."""
    rows = await house.rows("SELECT * FROM inbox WHERE kind = 'context' ORDER BY seq")
    assert all(row["event_id"] and row["sender"] == EVE for row in rows)
    assert all(row["body"] or not (row["raw"] or row["sender_name"]) for row in rows)
    return [row["body"] for row in rows]


async def test_lines_that_are_background_of_nothing_any_more_go_after_seven_days(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-030: those before an answer, and behind the newest twenty; what was answered stays whole."""
    clock = FakeClock()
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await begin_group(house, clock)
        first = await group_line(house, "before")
        await house.incoming("ann asks", scope=GROUP_SCOPE)
        await house.said(1)
        for n in range(30):
            await group_line(house, f"{n}")
        clock.advance(WEEK - SOON)
        await purge(house)
        assert "" not in await stored_lines(house)
        clock.advance(2 * SOON)
        await group_line(house, "new")
        await purge(house)
        assert await stored_lines(house) == [""] * 12 + [f"{n}" for n in range(11, 30)] + ["new"]
        await house.incoming("ann asks again", scope=GROUP_SCOPE)
        await house.said(2)
        seen = model.requests[-1]
        assert [f"): {n}\n" in seen.last_user for n in (10, 11, 29)] == [False, True, True]
        assert "): before\n" in seen.messages[1]["content"]
        await house.incoming("said twice", event_id=first, kind="context", scope=GROUP_SCOPE)
        clock.advance(WEEK + SOON)
        await purge(house)
        assert set(await stored_lines(house)) == {""}


async def test_a_new_beginning_leaves_the_lines_before_it_to_nothing(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-030: each group has its own newest lines."""
    clock = FakeClock()
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await begin_group(house, clock, "!other:test")
        await begin_group(house, clock)
        await group_line(house, "other room", room="!other:test")
        await group_line(house, "before")
        clock.advance(SOON)
        await house.incoming("/new", scope=GROUP_SCOPE)
        await house.said(1)
        clock.advance(SOON)
        await group_line(house, "after")
        clock.advance(WEEK + SOON)
        await purge(house)
        assert await stored_lines(house) == ["other room", "", "after"]


async def test_many_lines_go_bit_by_bit(tmp_path: Path) -> None:
    """F-030: so that nothing else waits for long; none is forgotten over that."""
    clock = FakeClock()
    async with open_house(tmp_path, None, clock=clock) as house:
        await begin_group(house, clock)
        await group_line(house, "first")
        async with house.database.transaction() as tx:
            await tx.execute(
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 1300)"
                " INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, direct, raw, sent_at, received_at, state) SELECT '$' || n,"
                " conversation_id, room_id, sender, sender_name, origin, kind, n, direct, raw,"
                " sent_at, received_at, state FROM inbox, n"
            )
        clock.advance(WEEK + SOON)
        [conversation] = await house.inbox.groups()
        async with house.database.transaction() as tx:
            before = house.checked.now() - LINES_KEPT
            assert await house.inbox.expire_context(tx, conversation, before, 10_000) == 500
        await purge(house)
        assert await stored_lines(house) == [""] * 1281 + [f"{n}" for n in range(1281, 1301)]


@pytest.mark.breaks("redaction")
async def test_a_line_whose_text_is_gone_can_still_be_taken_back(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, F-030: which of its sender's lines it was is not known, so all of them go there."""
    clock = FakeClock()
    model.script(Text("one"), Text("two"))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await begin_group(house, clock)
        gone = await group_line(house, f"{PASSWORD_WORD}\nand more")
        await group_line(house, "fine")
        await house.incoming("said ben", sender="@ben:test", kind="context", scope=GROUP_SCOPE)
        await house.incoming("ann asks", scope=GROUP_SCOPE)
        await house.said(1)
        await group_line(house, "later")
        await house.incoming("ann asks on", scope=GROUP_SCOPE)
        await house.said(2)
        clock.advance(WEEK + SOON)
        await purge(house)
        await take_back(house, gone)
        await take_back(house, gone)
        await house.incoming("and now?", scope=GROUP_SCOPE)
        await house.said(3)
        seen = model.requests[-1]
        assert [word in str(seen.messages) for word in (PASSWORD_WORD, "more", "fine")] == [
            False
        ] * 3
        assert "said ben" in str(seen.messages)
        assert "later" in str(seen.messages)
        assert not is_told(seen)
