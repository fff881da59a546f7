"""`/why`, `/memory WORDS` and `/undo` of merged memories: what people see of what is remembered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock, HeldClock
from tests.world.house import ANN, PROMPTS, ROOM, House, house_at_work
from tests.world.model import Calls, ModelServer, Text, Use
from wintermute.changes.change_sets import Cause, Reason
from wintermute.config.schema import Context, Memory
from wintermute.memory.fact import Fact, NewFact, Source
from wintermute.text import EMPTY_LISTS

MINE = f"person:{ANN}"
CLUB = "room:!room:test"
RANKED = Memory(backend="fts5")
BACKENDS = pytest.mark.parametrize("kept", [Memory(), RANKED], ids=["flat_file", "fts5"])


@asynccontextmanager
async def ranked(folder: Path, model: ModelServer, **more: Any) -> AsyncIterator[House]:
    """A house in which only memories that fit are in the prompt."""
    async with house_at_work(folder, model.url, prompts=PROMPTS, memory=RANKED, **more) as house:
        yield house


@pytest.fixture
async def house(tmp_path: Path, model: ModelServer) -> AsyncIterator[House]:
    async with ranked(tmp_path, model) as house:
        yield house


async def remember(
    house: House, text: str, *origins: str, scope: str = MINE, source: Source = "user_explicit"
) -> Fact:
    """Store one memory."""
    async with house.database.transaction() as tx:
        fact, _ = await house.stores.facts.add(
            tx, Reason("tool", scope), text, source, scope=scope, origins=origins
        )
    return fact


async def end(house: House, fact: Fact, until: datetime) -> None:
    """It is no longer true."""
    async with house.database.transaction() as tx:
        assert await house.stores.facts.end(tx, Reason("night", fact.scope), fact.id, until)


async def merge(house: House, text: str, *old: Fact, cause: Cause = "night") -> Fact:
    """Put one memory in the place of others, as the work of a night."""
    async with house.database.transaction() as tx:
        done = await house.stores.facts.replace(
            tx, Reason(cause, MINE), MINE, [fact.id for fact in old], [(text, "dreaming_merge")]
        )
    return done.facts[0]


def names(said: str) -> list[str]:
    """The memories that an answer lists, and its headings."""
    return [line.removeprefix("- ").split(" (")[0] for line in said.splitlines() if line]


async def listed(house: House) -> list[str]:
    return [fact.text for fact in await house.stores.facts.live(MINE)]


async def test_why_tells_what_a_message_brought(tmp_path: Path, model: ModelServer) -> None:
    """Issue: the last answer, or the one that is replied to; source, day and the message itself."""
    async with ranked(tmp_path, model, clock=HeldClock()) as house:
        assert await house.ask("/why") == "I have not answered anything here yet."
        event = await house.incoming("I drink a lot of tea, my dog hates it")
        await house.said(2)
        await remember(house, "Drinks green *tea*", event)
        await remember(house, "Has a dog", "elsewhere", source="harvest")
        assert "none fitted" in await house.ask("/why")
        await house.ask("Which tea shall I buy?")
        await house.deliver()
        said = await house.ask("/why")
        assert said.splitlines() == [
            "**Found for that message**",
            "- Drinks green \\*tea\\* (on request,"
            f" you on [2026-05-04](https://matrix.to/#/{ROOM}/{event}))",
        ]
        await house.ask("And for the dog?")
        await house.ask("Does the dog like tea?")
        assert names(await house.ask("/why")) == [
            "**Already known in this conversation**",
            "Has a dog",
            "Drinks green \\*tea\\*",
        ]
        first = (
            await house.one("SELECT id FROM outbox WHERE body = 'echo: Which tea shall I buy?'")
        )["id"]
        assert await house.ask("/why", replies_to=f"$of-{first}") == said
        assert "do not know that answer" in await house.ask("/why", replies_to="$nowhere")
        assert "`/memory WORDS` finds" in await house.ask("/why cheese")
        await house.deliver()
        command = (await house.rows("SELECT id FROM outbox ORDER BY seq LIMIT 1"))[0]["id"]
        assert "without a model" in await house.ask("/why", replies_to=f"$of-{command}")


async def test_why_after_a_fresh_start_knows_nothing_from_before(house: House) -> None:
    """Issue, L-074: what a message brings is what was not in view."""
    await remember(house, "Drinks green tea")
    await house.ask("Which tea?")
    await house.ask("Which tea again?")
    assert names(await house.ask("/why"))[0] == "**Already known in this conversation**"
    await house.ask("/new")
    await house.ask("Which tea now?")
    assert names(await house.ask("/why")) == ["**Found for that message**", "Drinks green tea"]


async def test_why_says_what_became_of_a_memory_since(house: House) -> None:
    """M-074: an answer may have been wrong for it."""
    lyon = await remember(house, "Lives in Lyon")
    await remember(house, "Lyon is far away")
    await house.ask("How far is Lyon?")
    await house.ask("/undo")
    await end(house, lyon, datetime(2026, 5, 20, tzinfo=UTC))
    said = await house.ask("/why")
    assert ", until May 2026)" in next(line for line in said.splitlines() if "Lives" in line)
    assert ", removed since)" in next(line for line in said.splitlines() if "far" in line)


async def test_why_with_all_in_the_system_message_has_no_view_from_before(
    tmp_path: Path, model: ModelServer
) -> None:
    async with ranked(tmp_path, model, context=Context(layout="system")) as house:
        await remember(house, "Drinks green tea")
        await house.ask("Which tea?")
        await house.ask("Which tea again?")
        assert names(await house.ask("/why")) == ["**Found for that message**", "Drinks green tea"]


async def test_why_says_that_all_memories_are_shown(tmp_path: Path, model: ModelServer) -> None:
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await remember(house, "Drinks green tea")
        await house.ask("Which tea?")
        assert "each answer has all of them" in await house.ask("/why")


async def test_why_shows_nothing_of_another_scope(house: House) -> None:
    """M-010: who came in since sees nothing of what was said before."""
    await remember(house, "Drinks canary tea")
    await house.ask("Which tea?")
    await house.deliver()
    last = (await house.rows("SELECT id FROM outbox ORDER BY seq DESC LIMIT 1"))[0]["id"]
    for replies_to in (None, f"$of-{last}"):
        said = await house.ask("/why", scope=CLUB, replies_to=replies_to)
        assert "canary" not in said
    assert said == "Other people were here when I said that, so I do not show it."


@BACKENDS
async def test_memory_finds_what_fits_as_the_prompt_does(
    tmp_path: Path, model: ModelServer, kept: Memory
) -> None:
    """Issue, M-074: what is no longer true comes last, with until when it was; nobody else's."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS, memory=kept) as house:
        old = await remember(house, "Lives in Lyon near the river")
        await remember(house, "Lives in Rome")
        await remember(house, "Lives in canary land", scope="person:@bob:test")
        await remember(house, "Has a dog")
        await end(house, old, datetime(2026, 5, 20, tzinfo=UTC))
        assert names(await house.ask("/memory")) == ["Has a dog", "Lives in Rome"]
        said = await house.ask("/memory where I lives in Lyon?")
        assert names(said) == ["Lives in Rome", "Lives in Lyon near the river"]
        assert "(until May 2026)" in said
        assert await house.ask('/memory "') == "I remember nothing with these words."
        assert await house.ask("/memory aeroplanes") == "I remember nothing with these words."


@BACKENDS
async def test_what_ends_leaves_the_list(tmp_path: Path, model: ModelServer, kept: Memory) -> None:
    """M-074: "until" may lie ahead."""
    clock = FakeClock()
    async with house_at_work(
        tmp_path, model.url, prompts=PROMPTS, memory=kept, clock=clock
    ) as house:
        async with house.database.transaction() as tx:
            why, until = Reason("command", MINE), datetime(2026, 5, 5, tzinfo=UTC)
            await house.stores.facts.add(
                tx, why, "Is on holiday", "user_explicit", scope=MINE, until=until
            )
        assert names(await house.ask("/memory")) == ["Is on holiday"]
        clock.advance(24 * 3600)
        assert await house.ask("/memory") == EMPTY_LISTS["memories"]
        assert "(until May 2026)" in await house.ask("/memory holiday")


@BACKENDS
async def test_undo_takes_the_merge_back(tmp_path: Path, model: ModelServer, kept: Memory) -> None:
    """M-076: newest first, and it says so; what was merged with it is there again."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS, memory=kept) as house:
        dog = await remember(house, "Has a dog")
        cat = await remember(house, "Has a cat")
        bird = await remember(house, "Has a bird")
        both = await merge(house, "Has a dog and a cat", dog, cat)
        await merge(house, "Has a dog, a cat and a bird", both, bird)
        await remember(house, "Likes tea")
        assert (await house.ask("/undo")).endswith(": Likes tea")
        said = (await house.ask("/undo")).splitlines()
        assert said == [
            "- undone first, because it was merged since: the memory is back: Has a dog and a cat",
            "- undone first, because it was merged since: the memory is back: Has a bird",
            "- undone first, because it was merged since: the memory is gone again: Has a dog, a cat and a bird",
            "- the memory is gone again: Has a bird",
        ]
        assert await listed(house) == ["Has a dog and a cat"]
        said = (await house.ask("/undo")).splitlines()
        assert said[-1] == "- the memory is gone again: Has a cat"
        assert await listed(house) == ["Has a dog"]
        assert await house.ask("/undo") == "- the memory is gone again: Has a dog"
        assert await house.ask("/undo") == "There is nothing to undo here."


async def test_only_the_merge_it_is_in_goes_back_with_a_memory(house: House) -> None:
    """M-076: a night merges many things in one change set; the others stay merged."""
    facts = [await remember(house, f"Has a {pet}") for pet in ("dog", "cat", "car", "bike")]
    old = [fact.id for fact in facts]
    async with house.database.transaction() as tx:
        new: list[tuple[str, Source]] = [
            ("Has a dog and a cat", "dreaming_merge"),
            ("Has a car and a bike", "dreaming_merge"),
        ]
        await house.stores.facts.replace(tx, Reason("night", MINE), MINE, old, new)
    await house.ask("/undo")
    assert sorted(await listed(house)) == ["Has a car", "Has a dog and a cat"]


@pytest.mark.parametrize("ids", [("fact_", "fact_z"), ("fact_z", "fact_")])
async def test_of_merges_of_one_moment_the_newest_goes_back_first(
    tmp_path: Path, model: ModelServer, ids: tuple[str, str]
) -> None:
    """M-076: whatever the names of what they are about, and however coarse the clock is."""
    async with ranked(tmp_path, model, clock=HeldClock()) as house:
        facts, why = house.stores.facts, Reason("tool", MINE)
        texts = ("Has a dog", "Has a cat")
        new = [NewFact(MINE, text, id=name) for text, name in zip(texts, ids, strict=True)]
        async with house.database.transaction() as tx:
            taken = await facts.supersede(tx, why, new, {})
        dog, cat = taken.facts
        bird = await remember(house, "Has a bird")
        await merge(house, "Has a cat", dog)
        await merge(house, "Has a dog", cat, bird)  # as one that is no more
        wanted = await house.stores.changes.get(str(taken.set_id))
        assert wanted is not None
        undone = await house.stores.undo.apply(wanted)
        assert [each.kept for each in (undone, *undone.merges)] == [(), (), ()]
        assert await listed(house) == ["Has a bird"]


async def test_a_merge_taken_out_since_stays_away(tmp_path: Path, model: ModelServer) -> None:
    """M-076: what a person removed by hand stays removed, with all that was in it."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        dog, cat = await remember(house, "Has a dog"), await remember(house, "Has a cat")
        await merge(house, "Has a dog and a cat", dog, cat)
        await house.stores.memories.text(MINE)
        (tmp_path / "MEMORIES.txt").write_text("")
        await house.ask("/memory")
        history = await house.stores.changes.history(("fact",), MINE)
        [wanted] = [each for each in history if [c.item for c in each.changes] == [cat.id]]
        undone = await house.stores.undo.apply(wanted)
        assert (undone.merges, undone.back) == ((), ())
        assert await listed(house) == []


async def test_undoing_the_end_of_a_memory_makes_it_true_again(house: House) -> None:
    """M-074: and its successor stays."""
    lyon, rome = await remember(house, "Lives in Lyon"), await remember(house, "Lives in Rome")
    async with house.database.transaction() as tx:
        until = datetime(2026, 5, 1, tzinfo=UTC)
        await house.stores.facts.end(tx, Reason("tool", MINE), lyon.id, until, rome.id)
    assert await listed(house) == ["Lives in Rome"]
    assert await house.ask("/undo") == "- the memory is as it was before: Lives in Lyon"
    assert await house.stores.facts.get(lyon.id) == lyon
    assert await listed(house) == ["Lives in Lyon", "Lives in Rome"]


async def test_a_secret_is_refused_with_a_reason(tmp_path: Path, model: ModelServer) -> None:
    """Issue: by the tools, with what to do instead; a line by hand is the person's own."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        model.script(Calls((Use("append_memory", {"entry": "PIN: 4711"}),)), Text("sorry"))
        assert await house.ask("Remember my PIN") == "sorry"
        assert "password manager" in str(model.requests[-1].messages)
        (tmp_path / "MEMORIES.txt").write_text("The password of the router is swordfish9\n")
        assert "swordfish9" in await house.ask("/memory")
