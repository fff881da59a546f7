"""What people see of a night and say to it: the morning, `/night`, `/dream`, yes, no, and the way back."""

import asyncio
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tests.world.clock import HeldClock, until_so
from tests.world.house import ROOM, House
from tests.world.model import ModelServer, Seen, Slow, Step, Text
from tests.world.nights import (
    BEN,
    BENS,
    FIRST_TURN,
    HOUR,
    KNOWN,
    OWNER,
    Fails,
    SmallNight,
    Waits,
    begin,
    live_texts,
    look,
    nights,
    opened,
    remember,
    says_at_night,
    slept,
)
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Context, Dreaming
from wintermute.mailbox.outbox import TERMINAL
from wintermute.night.expiry import purge_expired
from wintermute.night.pipeline import night_lock
from wintermute.prompt.context_block import Layout
from wintermute.text import EMPTY_LISTS


async def until_it_is(house: House, true: Callable[[], bool]) -> None:
    """Wait until something became true; each look lets others work."""

    async def so() -> bool:
        await house.rows("SELECT 1")
        return true()

    await until_so(so)


async def test_the_morning_tells_once_of_what_was_done_and_is_asked(
    house: House, clock: HeldClock, model: ModelServer
) -> None:
    """M-078, M-079: at 08:00, no earlier, without a model, with signs for the one question."""
    await begin(house, *KNOWN)
    asked = len(model.requests)
    await slept(house, clock, 17.9)
    assert await nights(house) == [("2026-05-05", "schedule", "done")]
    assert len(await house.spoken()) == 1
    await slept(house, clock, 0.3)
    (said,) = (await house.spoken())[1:]
    assert said == (
        "Last night: 4 memories merged; 1 question. `/night` shows all, `/night undo` takes it"
        " back.\nThe question: Set this aside, so that only a search finds it? “Sells the car?”"
        " (is it so?)\n"
        "✅ yes, ❌ no, or `/night yes 20260505#3`."
    )
    assert len(model.requests) == asked
    assert await house.rows("SELECT 1 FROM nights WHERE reported_at IS NULL") == []
    await house.deliver()
    signs = await house.one("SELECT body FROM outbox WHERE reacts_to IS NOT NULL")
    assert signs["body"] == "✅ ❌"


@pytest.mark.parametrize(("word", "asks"), [("car", False), ("merged", True)])
async def test_a_held_report_is_told_anew_without_what_was_forgotten_meanwhile(
    house: House, clock: HeldClock, word: str, *, asks: bool
) -> None:
    """U-017, M-084: what is left is said, and a question that is open is asked."""
    await begin(house, *KNOWN)
    await says_at_night(house, f"I remember a {word}")
    await slept(house, clock, 18.2)
    await says_at_night(house, f"/forget {word}")
    asked = await house.one("SELECT id FROM outbox ORDER BY seq DESC LIMIT 1")
    await house.outbox.mark_shown(asked["id"])  # the report is held behind it
    await says_at_night(house, "/forget yes")
    await slept(house, clock, 0.2)
    told = [text for text in await house.spoken() if text.startswith("Last night: 4 memories")]
    assert [("Sells the car?" in text, "/night yes" in text) for text in told] == [(asks, asks)]


@pytest.mark.slow
async def test_where_nothing_was_done_nothing_is_said(tmp_path: Path, model: ModelServer) -> None:
    """M-078: nor where it is turned off."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
        await begin(house, "Likes tea")
        await slept(house, clock, 30)
        assert len(await house.spoken()) == 1
        assert await house.rows("SELECT 1 FROM nights WHERE reported_at IS NULL") == []
    async with opened(tmp_path, model, clock, Dreaming(report=False)) as house:
        await remember(house, "Likes tea, again")
        await slept(house, clock, 30)
        assert await live_texts(house) == ["Likes tea"]
        assert len(await house.spoken()) == 1


async def test_each_person_hears_of_their_own_and_nobody_of_others(
    house: House, clock: HeldClock
) -> None:
    """M-010, M-078: others are a number."""
    await begin(house, "Likes tea", "Likes tea, again")
    await says_at_night(house, "hi", room="!ben:test", sender=BEN)
    await remember(house, "CANARY swims", "CANARY swims, again", "CANARY?", scope=BENS)
    await slept(house, clock)
    (bens,) = (await house.spoken("!ben:test"))[1:]
    assert "1 question" in bens
    assert "CANARY?" in bens
    listed = await says_at_night(house, "/night")
    assert "CANARY" not in "".join(await house.spoken())
    assert "and 2 items of other chats: `/night` shows them there" in listed
    theirs = await says_at_night(house, "/night", room="!ben:test", sender=BEN)
    assert (
        "- `2` merged: “CANARY swims”; “CANARY swims, again” → “CANARY swims” (said twice)"
        in theirs
    )
    assert "tea" not in theirs
    refused = await says_at_night(house, "/night yes 20260505#3")
    assert refused == "The night 20260505 has no item 3: the newest are 20260505#1."
    assert "CANARY?" in await live_texts(house, BENS)


@pytest.mark.slow
async def test_whose_room_comes_later_hears_it_then(house: House, clock: HeldClock) -> None:
    """M-078: once, for as long as a week; who has a room does not wait for them."""
    await begin(house, "Likes tea", "Likes tea, again")
    await says_at_night(house, "hi", room="!ben:test", sender=BEN)
    house.speaker.unfit.add("!ben:test")
    await remember(house, "Swims?", scope=BENS)
    await slept(house, clock)
    assert len(await house.spoken()) == 2
    assert len(await house.spoken("!ben:test")) == 1
    await slept(house, clock, 30)
    assert await house.rows("SELECT 1 FROM nights WHERE reported_at IS NULL") != []
    house.speaker.unfit.clear()
    await slept(house, clock, 30)
    (_, told) = await house.spoken("!ben:test")
    assert told.startswith("Tidied up since 2026-05-04: 1 question.")
    assert len(await house.spoken()) == 2
    assert await house.rows("SELECT 1 FROM nights WHERE reported_at IS NULL") == []


@pytest.mark.slow
async def test_what_nobody_could_be_told_of_in_a_week_is_told_no_more(
    house: House, clock: HeldClock
) -> None:
    """M-078."""
    await begin(house, "Likes tea", "Likes tea, again")
    house.speaker.unfit.add(ROOM)
    await slept(house, clock)
    clock.advance(7 * 24 * HOUR)
    await look(house)
    house.speaker.unfit.clear()
    await slept(house, clock, 30)
    assert len(await house.spoken()) == 1
    assert await house.rows("SELECT 1 FROM nights WHERE reported_at IS NULL") == []


async def test_a_terminal_takes_no_message_that_is_meant_for_a_room(
    house: House, clock: HeldClock
) -> None:
    """M-078: the daemon says it when it is back."""
    await begin(house, "Likes tea", "Likes tea, again")
    house.speaker.elsewhere.add(ROOM)
    await says_at_night(house, "I sit here", room=TERMINAL)
    await slept(house, clock)
    assert await nights(house) == [("2026-05-05", "schedule", "done")]
    assert len(await house.spoken(TERMINAL)) == 1
    house.speaker.elsewhere = {TERMINAL}
    await look(house)
    assert (await house.spoken())[1].startswith("Last night: 2 memories merged.")


async def test_who_has_no_room_at_all_is_told_at_the_terminal(
    house: House, clock: HeldClock
) -> None:
    """M-078."""
    await says_at_night(house, "I sit here", room=TERMINAL)
    await remember(house, "Likes tea", "Likes tea, again")
    await slept(house, clock)
    assert (await house.spoken(TERMINAL))[1].startswith("Last night: 2 memories merged.")


async def test_a_sign_answers_only_what_is_shown_whole_and_one_item_is_shown_whole(
    house: House, clock: HeldClock
) -> None:
    """M-078, M-079: nobody says yes to what they could not read."""
    long = f"Sells {'very ' * 80}many\n*cars*?"
    await begin(house, "Likes tea", "Likes tea, again", long)
    await slept(house, clock)
    told = (await house.spoken())[1]
    assert "very ver…”" in told
    assert told.endswith(
        "`/night 20260505#2` shows it whole; `/night yes 20260505#2` or `/night no 20260505#2`"
        " answers."
    )
    await house.deliver()
    assert await house.rows("SELECT 1 FROM outbox WHERE reacts_to IS NOT NULL") == []
    fact = await house.one("SELECT id FROM facts WHERE text LIKE 'Sells%'")
    shown = (
        "`20260505#2` Set this aside, so that only a search finds it? — waits for your yes or no\n"
        f"Before:\n> Sells {'very ' * 80}many\n> \\*cars\\*?\nWhy: is it so?\n"
        f"Source: `{fact['id']}`\n\n"
        "`/night yes 20260505#2` or `/night no 20260505#2` answers."
    )
    assert await says_at_night(house, "/night 2") == shown
    assert await says_at_night(house, "/night 20260505#2") == shown
    assert (await says_at_night(house, "/night 1")).startswith(
        "`20260505#1` merged — done\nBefore:\n> Likes tea\nBefore:\n> Likes tea, again\n"
        "Now:\n> Likes tea\nWhy: said twice\n"
    )
    await says_at_night(house, "hi", room="!ben:test", sender=BEN)
    theirs = await says_at_night(house, "/night 20260505#2", room="!ben:test", sender=BEN)
    assert theirs == "The night 20260505 has no item 2: it has none, or they have expired."


@pytest.mark.slow
@FIRST_TURN
@pytest.mark.parametrize("layout", ["append", "system"])
async def test_the_model_is_told_of_a_night_once_with_the_next_message(
    tmp_path: Path, model: ModelServer, layout: Layout
) -> None:
    """M-078: no cast of its own, in both layouts; what was taken back is told as that."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock, context=Context(layout=layout)) as house:
        await begin(house, *KNOWN)
        await slept(house, clock)
        asked = len(model.requests)
        await says_at_night(house, "What did you change?")
        await says_at_night(house, "Thank you")
        first, second = (seen.body["messages"] for seen in model.requests[asked:])
        shown = first[-1]["content"]
        assert shown.startswith('<event kind="night_report" id="20260505">\n')
        assert (
            "20260505#1 merged, done: Likes tea; Likes tea, again -> Likes tea (said twice)"
            in shown
        )
        assert "20260505#3 rest, waits for the person's yes: Sells the car? (is it so?)" in shown
        assert "What did you change?" in shown
        shown = [each["content"] for each in second if each["role"] == "user"]
        assert sum("night_report" in text for text in shown) == 1
        assert "night_report" not in second[-1]["content"]


@pytest.mark.slow
async def test_yes_and_no_answer_by_number_by_range_and_all_at_once(
    house: House, clock: HeldClock
) -> None:
    """M-079: each once; what was refused is not asked again."""
    asked = [f"Sells the {thing}?" for thing in ("car", "boat", "house", "bike", "piano")]
    await begin(house, *asked)
    await slept(house, clock)
    assert "5 questions" in (await house.spoken())[1]
    assert (await says_at_night(house, "/night yes 2")) == (
        "- `20260505#2` done: set aside, found only by a search: “Sells the boat?” (is it so?)"
    )
    assert (await says_at_night(house, "/night yes 2")) == "- `20260505#2` was done already"
    assert (
        await says_at_night(house, "/night yes 20260505#2")
    ) == "- `20260505#2` was done already"
    assert (await says_at_night(house, "/night no 3-4")).count("stays as it is") == 2
    assert (await says_at_night(house, "/night yes all")).count("done") == 2
    assert await live_texts(house) == ["Sells the house?", "Sells the bike?"]
    assert await says_at_night(house, "/night yes all") == "I have no open questions here."
    before = len(await house.spoken())
    await slept(house, clock, 48)
    assert len(await house.spoken()) == before
    assert await says_at_night(house, "/undo") == "There is nothing to undo here."
    assert await live_texts(house) == ["Sells the house?", "Sells the bike?"]
    assert await says_at_night(house, "/night undo 2") == "- the memory is back: Sells the boat?"
    assert "taken back" in await says_at_night(house, "/night 2")


async def test_what_is_taken_back_by_the_name_of_its_change_set_reads_so(
    house: House, clock: HeldClock
) -> None:
    """M-076, M-079: of a yes as of what a night did by itself."""
    await begin(house, "Likes tea", "Likes tea, again", "Sells the car?", "Sells the boat?")
    await slept(house, clock)
    await says_at_night(house, "/night yes 2")
    for n in (1, 2):
        row = await house.one(f"SELECT change_set AS id FROM answered_decisions WHERE n = {n}")
        assert "the memory is back" in await says_at_night(house, f"/undo {row['id']}")
        assert "taken back" in await says_at_night(house, f"/night {n}")
    assert len(await live_texts(house)) == 4
    assert "waits for your yes or no" in await says_at_night(house, "/night 3")


@pytest.mark.parametrize(
    ("later", "its"),
    [
        (
            ("Sells the boat?", "Likes tea", "Likes tea, again"),
            "Set this aside, so that only a search finds it? “Sells the boat?” (is it so?)"
            " — waits for your yes or no",
        ),
        (
            ("Likes tea", "Likes tea, again"),
            "merged: “Likes tea”; “Likes tea, again” → “Likes tea” (said twice)",
        ),
    ],
)
async def test_a_number_under_which_an_older_night_asks_as_well_answers_neither(
    tmp_path: Path, model: ModelServer, later: tuple[str, ...], its: str
) -> None:
    """M-079: nobody says yes to what they were not shown; both are named, and lists name them so."""
    clock, small = HeldClock(), SmallNight()
    async with opened(tmp_path, model, clock, night=small) as house:
        await begin(house, "Sells the car?")
        await slept(house, clock)
        assert "- `1` Set this aside" in await says_at_night(house, "/night")
        await remember(house, *later)
        (tidying,) = small.built
        async with house.database.transaction() as tx:
            night = await house.stores.nights.begin(tx, date(2026, 5, 5), "command")
        assert night is not None
        await tidying.run_night(night)  # which nobody was told of yet
        before = sorted(await live_texts(house))
        both = (
            "Several nights have a question with that number, so I did nothing. Write the number as NIGHT#N.\n"
            "- `20260505#1` Set this aside, so that only a search finds it? “Sells the car?” (is it so?)"
            f" — waits for your yes or no\n- `20260505-2#1` {its}"
        )
        for line in ("/night yes 1", "/night no 1", "/night yes #1", "/night yes 1-1"):
            assert await says_at_night(house, line) == both
        assert sorted(await live_texts(house)) == before
        listed = await says_at_night(house, "/night")
        assert f"- `20260505-2#1` {its}" in listed
        assert ("- `2` merged" in listed) == (len(later) > 2)
        assert "Still asked: `20260505#1`" in listed
        assert "- `20260505#1` Set this aside" in await says_at_night(house, "/night 20260505")
        assert "`20260505#1` stays as it is" in await says_at_night(house, "/night no 20260505#1")
        assert ("`20260505-2#1` done" in await says_at_night(house, "/night yes 1")) == (
            len(later) > 2
        )
        assert await says_at_night(house, "/night yes 1") == "- `20260505-2#1` was done already"


async def test_what_has_changed_meanwhile_is_not_done_and_what_waits_too_long_expires(
    house: House, clock: HeldClock
) -> None:
    """M-079."""
    await begin(house, "Sells the car?", "Sells the boat?")
    await slept(house, clock)
    (car,) = [fact for fact in await house.stores.facts.live(OWNER) if "car" in fact.text]
    async with house.database.transaction() as tx:
        await house.stores.facts.supersede(
            tx, Reason("command", OWNER), (), dict.fromkeys([car.id])
        )
    assert "has changed or was decided elsewhere" in await says_at_night(house, "/night yes 1")
    clock.advance(14 * 24 * HOUR)
    assert "is no longer open" in await says_at_night(house, "/night yes 2")
    assert "14 days" in await says_at_night(house, "/night yes 20260505#2")
    assert await live_texts(house) == ["Sells the boat?"]


@pytest.mark.slow
async def test_a_night_is_taken_back_item_by_item_or_whole_and_the_second_time_says_so(
    house: House, clock: HeldClock
) -> None:
    """M-065, M-076, M-081: `/undo` never means a night."""
    await begin(house, *KNOWN)
    before = sorted(await live_texts(house))
    await slept(house, clock)
    assert await says_at_night(house, "/undo") == "There is nothing to undo here."
    assert "Write it as NIGHT#ITEM" in await says_at_night(house, "/night undo 20260505#")
    assert await says_at_night(house, "/night undo `1`") == "- the memory is back: Likes tea, again"
    assert "Has a dog, again" not in await live_texts(house)
    assert await says_at_night(house, "/night undo") == "- the memory is back: Has a dog, again"
    assert sorted(await live_texts(house)) == before
    nothing = "There is nothing to undo: everything is as it was before."
    assert await says_at_night(house, "/night undo") == nothing
    assert await says_at_night(house, "/night undo 1") == nothing
    await slept(house, clock, 48)
    assert sorted(await live_texts(house)) == before
    listed = await says_at_night(house, "/night 2026-05-05")
    assert listed.count("taken back") == 2


async def test_what_is_older_than_thirty_days_cannot_be_taken_back_and_that_is_said(
    house: House, clock: HeldClock
) -> None:
    """M-065: item or night, whether or not its items are there still."""
    await begin(house, "Likes tea", "Likes tea, again")
    await slept(house, clock)
    clock.advance(31 * 24 * HOUR)
    for gone in (False, True):
        if gone:
            await purge_expired(house.stores, clock.now())
            async with house.database.transaction() as tx:
                await house.stores.decisions.expire(tx)
            assert await house.rows("SELECT 1 FROM decisions") == []
        for which in ("20260505", "2026-05-05", "20260505#1"):
            assert await says_at_night(house, f"/night undo {which}") == (
                "It is too late to undo that: changes are kept for 30 days."
            )
    assert await live_texts(house) == ["Likes tea"]


async def test_a_night_asked_for_in_a_group_says_that_others_have_something_to_hear(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-054, M-078: what it did in the owner's chat is told there in the morning."""
    clock, group = HeldClock(), "!club:test"
    async with opened(tmp_path, model, clock) as house:
        await begin(house, "Likes tea", "Likes tea, again")
        async with house.working():
            await house.incoming("/dream", room=group, scope=f"room:{group}", direct=False)
            await house.said(1, group)
        await look(house)
        assert (await house.spoken(group))[1:] == [
            "Done: there was nothing to tidy here. Other chats get their own report."
        ]
        await slept(house, clock)
        assert "2 memories merged" in (await house.spoken())[1]


@pytest.mark.opens(night=SmallNight(more=[Fails()]))
async def test_what_went_wrong_stands_in_the_report(house: House, clock: HeldClock) -> None:
    """M-054, M-055: the others ran."""
    await begin(house, "Likes tea", "Likes tea, again")
    await slept(house, clock)
    assert "2 memories merged; 1 step failed." in (await house.spoken())[1]
    assert "- fails failed: the disk is upside down" in await says_at_night(house, "/night")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/night", EMPTY_LISTS["nights"]),
        ("/night 2026-05-01", "There is no night 2026-05-01: none has run yet."),
        ("/night yes", "`/night [DATE]`"),
        ("/night yes 5", "No change or question of a night has the number 5 here."),
        ("/night 5", "No change or question of a night has the number 5 here."),
        ("/night no x#y", "Write it as NIGHT#ITEM, such as 20260504#3, not x#y."),
        ("/night undo", "There is nothing to undo"),
        ("/night undo 7", "No change of a night has the number 7 here."),
        ("/night undo #7", "No change of a night has the number #7 here."),
        ("/night undo 20260504#", "There is no night 20260504: none has run yet."),
        ("/night undo a b", "`/night [DATE]`"),
        ("/night one two", "`/night [DATE]`"),
    ],
)
async def test_what_means_nothing_is_answered_with_what_would(
    house: House, line: str, told: str
) -> None:
    await begin(house)
    assert (await says_at_night(house, line)).startswith(told)


async def test_only_the_owner_starts_a_night(house: House) -> None:
    """M-054: and hears there how it went."""
    await begin(house, "Likes tea", "Likes tea, again")
    told = await says_at_night(house, "/dream", room="!ben:test", sender=BEN)
    assert told == "Only the owner can start a night, from a verified session."
    await look(house)
    assert await nights(house) == []
    assert (await says_at_night(house, "/dream")).startswith("I'm tidying up what I know.")
    await look(house)
    assert (await house.spoken())[2].startswith("Done: 2 memories merged.")
    await look(house)
    assert len(await house.spoken()) == 3


async def test_a_reply_waits_for_one_question_of_a_night_at_most(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-064: no other is asked until it is there."""
    of_night, of_chat = asyncio.Event(), asyncio.Event()

    def slowly(seen: Seen) -> Step | None:
        said = str(seen.body["messages"][-1]["content"])
        if said.startswith("Is it so?"):
            return Slow(of_night, Text("yes"))
        return Slow(of_chat, Text("I am here")) if "are you there?" in said else None

    def order() -> list[str]:
        return ["night" if "Is it so?" in str(s.body) else "chat" for s in model.requests[1:]]

    model.keyed(slowly)
    asked = [f"Sells the {thing}?" for thing in ("car", "boat", "house")]
    async with opened(tmp_path, model, HeldClock(), night=SmallNight(asks_model=True)) as house:
        await begin(house, *asked)
        async with house.working():
            await house.incoming("/dream")
            await house.said(2)
            house.runner.wake("night")
            await until_it_is(house, lambda: order() == ["night"])
            await house.incoming("are you there?")
            await until_it_is(house, lambda: order() == ["night", "chat"])
            of_night.set()
            while not await house.rows("SELECT 1 FROM answered_decisions"):
                pass
            await asyncio.sleep(0.1)  # so long another question has time to come
            assert order() == ["night", "chat"]
            of_chat.set()
            assert (await house.said(3))[2] == "I am here"
            await house.said(4)
        assert order() == ["night", "chat", "night", "night"]


async def test_a_night_that_was_interrupted_goes_on_at_the_next_start(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-054, M-063: the same night, and nothing of it twice."""
    clock, at_work, more = HeldClock(), asyncio.Event(), asyncio.Event()

    async def meanwhile() -> None:
        at_work.set()
        await more.wait()

    waits = Waits(meanwhile)
    async with opened(tmp_path, model, clock, night=SmallNight(last=[waits])) as house:
        await begin(house, "Likes tea", "Likes tea, again")
        clock.advance(11 * HOUR)
        async with house.working():
            await at_work.wait()
        assert await nights(house) == [("2026-05-05", "schedule", "running")]
    more.set()
    async with opened(tmp_path, model, clock, night=SmallNight(last=[waits])) as house:
        async with house.working():

            async def over() -> bool:
                return await nights(house) == [("2026-05-05", "schedule", "done")]

            await until_so(over)
        assert waits.done == [OWNER]
        assert [row["n"] for row in await house.rows("SELECT n FROM answered_decisions")] == [1]
        assert await live_texts(house) == ["Likes tea"]


async def test_a_night_waits_while_another_process_is_at_work(
    house: House, clock: HeldClock, tmp_path: Path
) -> None:
    """M-063: two processes start a night at once."""
    await begin(house, "Likes tea", "Likes tea, again")
    clock.advance(11 * HOUR)
    async with night_lock(tmp_path):
        for _ in range(4):
            await look(house)
            clock.advance(60)
        assert await nights(house) == []
        waiting = await house.one("SELECT state, waits_for FROM jobs WHERE name = 'night'")
        assert waiting["state"] == "waiting"
        assert "a night is already running" in waiting["waits_for"]
    await look(house)
    assert await nights(house) == [("2026-05-05", "schedule", "done")]
    assert await live_texts(house) == ["Likes tea"]
