"""What people hear of a model that does not answer, when more than one thing happens at once."""

import asyncio
from pathlib import Path

import pytest

from tests.world.asking import DEAD, backend, gone
from tests.world.clock import SYSTEM, WITHIN, HeldClock, promptly
from tests.world.house import house_at_work, open_house
from tests.world.model import Drip, Events, Fail, Hang, ModelServer, Seen, Step
from tests.world.story import Story
from tests.world.trouble import LONG, POISON, poisoned, seconds_pass
from wintermute.config.schema import Llm, Roles
from wintermute.db import Transaction
from wintermute.mailbox.inbox import Inbox, InboxRow

OTHER = "!other"


@pytest.mark.slow
async def test_a_message_answered_meanwhile_is_not_looked_at(story: Story) -> None:
    """F-021: both are due at once, and one has its answer before the other has been told."""
    clock, words, begun = HeldClock(), asyncio.Semaphore(0), asyncio.Event()

    class SlowInbox(Inbox):
        async def find(self, tx: Transaction, event_id: str) -> InboxRow | None:
            if not begun.is_set() and clock.monotonic() >= 60:
                words.release()
                async with asyncio.timeout(WITHIN):
                    while not any("so" in piece for piece in house.speaker.drafts):  # noqa: ASYNC110  drafts tell nobody
                        await asyncio.sleep(0.01)
                begun.set()
            return await super().find(tx, event_id)

    def choose(seen: Seen) -> Step:
        late = seen.last_user == "late" and clock.monotonic() >= 45
        return Drip("so it is", words) if late else Fail(500)

    story.model.keyed(choose)
    opened = story.house(clock=clock, retries=99, wards=LONG, inbox_type=SlowInbox)
    async with opened as house, house.working():
        await house.incoming("hello")
        await clock.asleep()
        await clock.move(15)
        await house.incoming("late", room=OTHER)
        await clock.asleep(2)
        await clock.move(31)
        await clock.asleep()
        await asyncio.sleep(1)
        await clock.move(15)
        await asyncio.wait_for(begun.wait(), WITHIN)
        words.release()
        words.release()
        assert await house.said(1, OTHER) == ["so it is "]
        (told,) = await house.said(1)
        assert "does not answer" in told


async def test_who_dropped_a_message_hears_of_the_same_outage_with_the_next(tmp_path: Path) -> None:
    """F-036: nothing is kept any more that they were told is kept."""
    clock = HeldClock()
    async with house_at_work(tmp_path, DEAD, clock=clock) as house:
        await house.incoming("hello")
        await clock.asleep()
        await clock.move(3)
        await house.said(1)
        await house.incoming("/stop")
        await house.said(2)
        await clock.move(24 * 3600)
        await house.incoming("hello again")
        await seconds_pass(house, clock, 20)
        told, stopped, again = await house.said(3)
    assert "cannot be reached" in told
    assert stopped == "Stopped."
    assert again == told


@pytest.mark.slow
async def test_neither_a_restart_nor_an_edit_is_a_reason_to_tell_it_again(tmp_path: Path) -> None:
    """F-036: never twice the same of one message."""
    clock = HeldClock()
    async with house_at_work(tmp_path, DEAD, clock=clock) as house:
        event = await house.incoming("hello")
        await clock.asleep()
        await seconds_pass(house, clock, 10)
        told = await house.said(1)
    async with house_at_work(tmp_path, DEAD, clock=clock) as house:
        await clock.asleep()
        await seconds_pass(house, clock, 10)
        await house.incoming("hello, all of you", edits=event)
        await seconds_pass(house, clock, 80)
        assert await house.spoken() == told
        casts = await house.rows("SELECT event_id FROM casts")
    assert len({cast["event_id"] for cast in casts}) == 2


@pytest.mark.slow
async def test_an_outage_that_follows_is_no_reason_to_give_up(tmp_path: Path) -> None:
    """F-021: nothing is answered any more, so that the message is kept (L-034)."""
    clock = HeldClock()
    port, url = await gone()
    async with house_at_work(tmp_path, url, clock=clock) as house:
        async with ModelServer(port=port) as server:
            server.keyed(poisoned)
            await house.incoming(POISON)
            await clock.asleep()
            await seconds_pass(house, clock, 60)
            (told,) = await house.said(1)
            assert "answers other messages, but not this one" in told
        for _ in range(28):  # more than half an hour
            await clock.move(60)
            await seconds_pass(house, clock, 5)
        assert await house.spoken() == [told]
        async with ModelServer(port=port):
            await seconds_pass(house, clock, 15)
            assert (await house.said(2))[-1].endswith(POISON)


@pytest.mark.slow
async def test_an_outage_elsewhere_is_no_business_of_a_room(tmp_path: Path) -> None:
    """F-036: what waits in a terminal that is closed is answered once it is open."""
    clock = HeldClock()
    port, url = await gone()
    async with open_house(tmp_path, url, clock=clock) as closed:
        await closed.incoming("at the terminal", room=OTHER)
    async with open_house(tmp_path, url, clock=clock) as house:
        house.speaker.elsewhere.add(OTHER)
        async with house.working():
            await house.incoming("here")
            await clock.asleep()
            await seconds_pass(house, clock, 90)
            async with ModelServer(port=port) as server:
                await seconds_pass(house, clock, 20)
                assert (await house.spoken())[-1].endswith("here")
                await asyncio.sleep(0.5)
                assert len(server.requests) == 1


@pytest.mark.slow
async def test_servers_that_all_are_away_are_told_within_five_seconds(tmp_path: Path) -> None:
    """F-036: also while the first of them is tried again."""
    llm = Llm(backends={"a": backend(DEAD), "b": backend(DEAD)}, roles=Roles(base=("a", "b")))
    opened = open_house(tmp_path, DEAD, clock=SYSTEM, llm=llm)
    async with opened as house, house.working(), promptly(5):
        await house.incoming("hello")
        (told,) = await house.said(1)
    assert "(nothing answers at 127.0.0.1:9)" in told


@pytest.mark.slow
async def test_a_server_that_begins_to_answer_others_answers_them(story: Story) -> None:
    """F-021: it may think for long before it says that all is well."""
    clock = HeldClock()
    thinks = Events(({"choices": [{"delta": {"reasoning_content": "hm"}}]},), stay=True)
    story.model.keyed(lambda seen: thinks if seen.is_probe else Fail(500))
    async with story.at_work(clock=clock) as house:
        await house.incoming("hello")
        await clock.asleep()
        await clock.move(46)
        await clock.asleep()
        await story.model.probe_arrived()
        await clock.move(10)
        (told,) = await house.said(1)
    assert "answers other messages, but not this one" in told


async def test_what_only_reads_passes_a_message_behind_those_of_other_rooms(story: Story) -> None:
    """F-035: as many of a person's rooms as may be at work wait for the model."""
    clock = HeldClock()
    story.model.keyed(lambda _: Hang())
    async with story.at_work(clock=clock) as house:
        for n in range(4):
            await house.incoming("go", room=f"!{n}")
        await story.model.request_arrived(4)
        await house.incoming("go")
        await asyncio.sleep(0.3)
        await clock.move(6)
        await house.incoming("/help")
        assert len(await house.said(1)) == 1


async def test_new_behind_a_message_whose_model_is_silent_says_that_it_waits(story: Story) -> None:
    """F-035: it keeps its place, and nobody wonders whether it was heard."""
    clock = HeldClock()
    story.model.script(Hang())
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await clock.move(6)
        await house.incoming("/new")
        (kept,) = await house.said(1)
    assert "`/new` waits until I have answered" in kept
