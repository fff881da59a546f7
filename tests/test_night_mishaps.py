"""Nights in which something fails, or takes long: it is said, found again, and nothing is half done."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.asking import paid
from tests.world.clock import FakeClock
from tests.world.consolidated import POND, Scribe, consolidate_chat
from tests.world.forgetting import forget_all, learn
from tests.world.model import ModelServer
from tests.world.nights import OWNER, SmallNight, drop, opened, remember
from tests.world.shelf import Shelf
from tests.world.sleeping import Sleep
from tests.world.tidied import Tidied, nights_of_chats, tally
from wintermute.changes.change_sets import Cause, Change, Reason
from wintermute.changes.decisions import Decision, text_proposal
from wintermute.changes.nights import Night, PhaseTally
from wintermute.changes.placing import FileItems, Placing, PutInPlace
from wintermute.changes.undo import Undo
from wintermute.config.schema import Llm, Roles
from wintermute.db import Transaction
from wintermute.errors import DatabaseLocked, ToolFailed
from wintermute.forgetting.executors import Executors
from wintermute.messages import Json
from wintermute.night.dedup import merge_facts
from wintermute.night.night_undo import undo_items
from wintermute.stores import Stores

TWO = {"one": "How the fax is fed.\n\nFace down.\n", "two": "How the fax is fed, again.\n\nUp.\n"}
ONE = "How the fax is fed.\n\nFace down, then up.\n"
LOCKED = "another program holds the database"


@dataclass
class TornSkills:
    """Skills on a disk that refuses to put some of the files in place, counted from 1."""

    skills: FileItems
    refuses: Sequence[int]
    tried: int = 0

    async def state(self, item: str) -> Json | None:
        return await self.skills.state(item)

    async def mend(self) -> None:
        await self.skills.mend()

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        async with AsyncExitStack() as stack:
            places = [
                await stack.enter_async_context(self.skills.prepared([each])) for each in changes
            ]

            async def put() -> None:
                for place in places:
                    self.tried += 1
                    if self.tried in self.refuses:
                        raise ToolFailed("data/skills/two.md cannot be written: no room")
                    await place()

            yield put


def torn(stores: Stores, refuses: Sequence[int]) -> Stores:
    """The stores with such a disk."""
    skills = TornSkills(stores.placing.files["skill"], refuses)
    placing = Placing(stores.database, stores.changes, {"skill": skills}, stores.data_dir)
    return replace(stores, placing=placing)


async def asked_to_merge(night: Tidied) -> Decision:
    """A night that is over and asks whether one skill may stand for two."""
    for name, text in TWO.items():
        path = night.house.stores.places.skills() / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    files = [
        {"kind": "skill", "item": "two", "was": TWO["two"], "text": None},
        {"kind": "skill", "item": "one", "was": TWO["one"], "text": ONE},
    ]
    wanted = Decision("skill", (*TWO.values(),), ONE, "alike", {"files": files}, state="open")
    nights = night.house.stores.nights
    async with night.house.database.transaction() as tx:
        begun = await nights.begin(tx, night.clock.now().date(), "command")
        assert begun is not None
        where = (begun.id, OWNER, "skills")
        [item] = await night.house.stores.decisions.number(tx, where, [wanted])
        await nights.end(tx, begun.id)
    return item


def skills(night: Tidied) -> dict[str, str]:
    folder = night.house.stores.places.skills()
    return {file.stem: file.read_text() for file in folder.glob("*.md")}


async def states(night: Tidied) -> list[str]:
    return [item.state for item in await night.items()]


class Killed(BaseException):
    """The process is gone: nothing of ours catches that."""


@dataclass
class DyingSkills(TornSkills):
    """A process that dies before it puts the first file in place."""

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        async def killed() -> None:
            raise Killed

        yield killed


def dying(stores: Stores) -> Stores:
    """The stores of such a process."""
    skills = DyingSkills(stores.placing.files["skill"], ())
    placing = Placing(stores.database, stores.changes, {"skill": skills}, stores.data_dir)
    undo = Undo(stores.database, stores.changes, {}, placing)
    return replace(stores, placing=placing, undo=undo)


async def test_what_a_kill_came_into_is_done_by_saying_it_again(night: Tidied) -> None:
    """M-079, M-065: between the record and the files; a yes, and an undo, by a process of its own."""
    item, stores = await asked_to_merge(night), night.house.stores
    with pytest.raises(Killed):
        await Executors(dying(stores), {}).apply(item, "command")
    assert skills(night) == TWO
    assert await night.yes(item)
    assert skills(night) == {"one": ONE}
    [done] = await night.items("done")
    with pytest.raises(Killed):
        await undo_items(dying(stores), [done], whole=True)
    assert (await undo_items(stores, await night.items(), whole=True)).is_nothing
    assert skills(night) == TWO


@pytest.mark.parametrize("first", [1, 2], ids=["the first file", "the second file"])
async def test_what_cannot_be_put_in_place_is_as_before_and_can_be_said_yes_to_again(
    night: Tidied, first: int
) -> None:
    """M-079, M-080: a disk that has no room for a moment; both skills, the question, and no record."""
    item, stores = await asked_to_merge(night), night.house.stores
    deeds = Executors(torn(stores, [first]), {})
    with pytest.raises(ToolFailed, match="no room"):
        await deeds.apply(item, "command")
    assert (skills(night), await states(night)) == (TWO, ["open"])
    assert await night.house.rows("SELECT 1 FROM changes") == []
    assert await deeds.apply(item, "command")
    assert (skills(night), await states(night)) == ({"one": ONE}, ["done"])
    assert len(await night.house.rows("SELECT 1 FROM changes")) == 2
    [done] = await night.items()
    await night.take_back(done)
    assert skills(night) == TWO


async def test_what_cannot_be_put_back_either_is_gone_on_with_at_the_next_start(
    night: Tidied,
) -> None:
    """M-063, M-080: a disk that stays as it is; in the end one stands for two, with a way back."""
    item, stores = await asked_to_merge(night), night.house.stores
    broken = torn(stores, range(2, 9))
    deeds = Executors(broken, {})
    with pytest.raises(ToolFailed, match="no room"):
        await deeds.apply(item, "command")
    assert (skills(night), await states(night)) == (TWO | {"one": ONE}, ["open"])
    await broken.placing.finish()
    assert await states(night) == ["open"]
    await stores.placing.finish()
    assert (skills(night), await states(night)) == ({"one": ONE}, ["done"])
    assert len(await night.house.rows("SELECT 1 FROM changes")) == 2
    [done] = await night.items()
    await night.take_back(done)
    assert skills(night) == TWO


@pytest.mark.parametrize("edited", ["two", "refused"])
async def test_what_is_half_in_place_is_put_back_where_it_is_not_wanted_any_more(
    night: Tidied, edited: str
) -> None:
    """M-079: somebody edited the other file since, or said no."""
    item, stores = await asked_to_merge(night), night.house.stores
    with pytest.raises(ToolFailed, match="no room"):
        await Executors(torn(stores, range(2, 9)), {}).apply(item)
    mine = "Mine.\n" if edited == "two" else TWO["two"]
    (stores.places.skills() / "two.md").write_text(mine)
    if edited == "refused":
        async with night.house.database.transaction() as tx:
            await night.house.stores.decisions.move(tx, item, "refused")
    await stores.placing.finish()
    assert skills(night) == TWO | {"two": mine}
    assert await states(night) == ["outdated" if edited == "two" else "refused"]
    assert await night.house.rows("SELECT 1 FROM changes") == []


@dataclass
class LockedDrop:
    """Cannot retire one of the facts the first time."""

    failed: list[str] = field(default_factory=list)

    async def __call__(self, stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
        if not self.failed and "tea" in item.plan["text"]:
            self.failed.append(item.id)
            raise DatabaseLocked(LOCKED)
        return await drop(stores, tx, item, why)


async def test_what_failed_is_said_and_found_again_the_next_night(
    tmp_path: Path, model: ModelServer
) -> None:
    """Issue 21, bad input: that phase fails, what else it wanted is done, and nothing is forgotten."""
    small = SmallNight(drop=LockedDrop())
    async with opened(tmp_path, model, FakeClock(), night=small) as house:
        await remember(house, "Likes tea", "Likes tea, again", "Has a dog", "Has a dog, again")
        night = Tidied(house, FakeClock(), small.built[0], model)
        done = await night.night()
        found = tally(done, "twice")
        assert (found.status, LOCKED in found.note) == ("failed", True)
        assert sorted(await night.texts()) == ["Has a dog", "Likes tea", "Likes tea, again"]
        assert sorted(await states(night)) == ["done", "outdated"]
        again = await night.night()
        assert tally(again, "twice").status == "ok"
        assert sorted(await night.texts()) == ["Has a dog", "Likes tea"]


class LockedDeeds(Executors):
    """Fails at the first item."""

    failed = False

    async def apply(
        self, item: Decision, cause: Cause = "night", wanted: Decision | None = None
    ) -> bool:
        if not self.failed:
            self.failed = True
            raise DatabaseLocked(LOCKED)
        return await super().apply(item, cause, wanted)


async def test_facts_that_could_not_be_merged_are_merged_the_next_night(sleep: Sleep) -> None:
    """M-056: a cluster counts as asked about only once something came of it."""
    stores = sleep.house.stores
    sleep.tidying.executors = LockedDeeds(stores, {"merged": merge_facts})
    sleep.merge = lambda texts: max(texts, key=len)
    await sleep.told("Ann drinks tea", "Ann drinks green tea", "Ann plays chess")
    first = await sleep.night("dedup")
    assert [(t.status, LOCKED in t.note) for t in first.phases] == [("failed", True)]
    assert len(await sleep.facts()) == 3
    await sleep.night()
    assert await sleep.remembered() == ["Ann drinks green tea", "Ann plays chess"]
    assert await sleep.kinds() == [("merged", "outdated"), ("merged", "done")]
    assert sleep.calls == 2


async def test_a_night_counts_its_own_pages_and_nobody_elses(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-063: somebody had pages made of a chat while it was under way."""
    Scribe(model)
    async with nights_of_chats(tmp_path, model) as night:
        Shelf.make(night.house.stores.wiki.root)
        await night.house.say("I planted 12 tulips")
        begun = await begun_night(night, "pages")
        theirs = await consolidate_chat(night.house)
        assert theirs is not None
        assert theirs.status == "applied"
        done = await night.tidying.run_night(begun)
        assert (tally(done, "pages").status, await night.items()) == ("ok", [])


async def begun_night(night: Tidied, phase: str) -> Night:
    """A day later."""
    night.clock.advance(86_400)
    async with night.house.database.transaction() as tx:
        day = night.clock.now().date()
        begun = await night.house.stores.nights.begin(tx, day, "command", "", phase)
    assert begun is not None
    return begun


async def test_pages_that_were_made_are_told_where_something_fails_after_them(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-054: a core memory that cannot be read fails the phase; the page can be taken back."""
    Scribe(model)
    async with nights_of_chats(tmp_path, model) as night:
        shelf, stores = Shelf.make(night.house.stores.wiki.root), night.house.stores
        await night.house.say("I planted 12 tulips")
        async with stores.database.transaction() as tx:
            wish = text_proposal("core", OWNER, "- Ann gardens\n", "why")
            await stores.decisions.propose(tx, OWNER, wish)
        core = stores.places.core_file(OWNER).path
        core.unlink(missing_ok=True)
        core.mkdir(parents=True)
        before = shelf.pages()
        found = tally(await night.night("pages"), "pages")
        assert (found.status, "core" in found.note) == ("failed", True)
        [item] = await night.items()
        assert (item.after, item.state) == (POND, "done")
        await night.take_back(item)
        assert shelf.pages() == before


async def test_what_a_phase_noted_is_forgotten_as_well(tmp_path: Path, model: ModelServer) -> None:
    """M-030, M-010: notes may quote what they could make nothing of; others, and others', stay."""
    fact = "The bird is a zimtkanarie"
    async with nights_of_chats(tmp_path, model) as night:
        await learn(night.house, model, "Remember something of mine", fact)
        begun = [await begun_night(night, "tasks") for _ in range(2)]
        for each, said in zip(begun, (f"no use: {fact}!", "the model is away"), strict=True):
            async with night.house.database.transaction() as tx:
                for scope in (OWNER, "person:@ben:test", ""):
                    noted = PhaseTally(scope, "tasks", "ok", note=f"{said}{scope[-9:]}")
                    await night.house.stores.nights.note(tx, each.id, noted)
                await night.house.stores.nights.end(tx, each.id)
        await forget_all(night.house)
        nights = reversed(await night.house.stores.nights.newest(2))
        assert [[tally.note for tally in each.phases] for each in nights] == [
            ["forgotten", f"no use: {fact}!@ben:test", "forgotten"],
            ["the model is away@ann:test", "the model is away@ben:test", "the model is away"],
        ]


async def test_what_was_judged_goes_after_a_year(night: Tidied) -> None:
    """M-065: the table does not grow for ever."""
    nights = night.house.stores.nights
    async with night.house.database.transaction() as tx:
        await nights.mark_asked(tx, OWNER, ["old"])
    night.clock.advance(timedelta(days=364).total_seconds())
    async with night.house.database.transaction() as tx:
        await nights.mark_asked(tx, OWNER, ["new"])
    await night.night("housekeeping")
    assert await nights.not_yet_asked(OWNER, ["old", "new"]) == {"old"}


async def test_a_night_says_what_it_cost(tmp_path: Path, model: ModelServer) -> None:
    """M-054, L-087: the sum of its calls at the price of their backend, over a restart as well."""
    llm = Llm(backends={"paid": paid(model.url)}, roles=Roles(base=("paid",)))
    small = SmallNight(asks_model=True)
    async with opened(tmp_path, model, FakeClock(), night=small, llm=llm) as house:
        await remember(house, "Likes tea", "Likes tea, again", "Has a dog", "Has a dog, again")
        night = Tidied(house, FakeClock(), small.built[0], model)
        done = await night.night()
        (spent,) = await house.rows("SELECT count(*) AS n, sum(usd) AS usd FROM model_calls")
        assert (done.calls, spent["n"]) == (2, 2)
        assert done.usd == pytest.approx(spent["usd"])
        assert done.usd > 0
        again = await night.tidying.run_night(done)
        assert again.usd == done.usd


async def test_a_question_waits_from_the_end_of_its_night_on(night: Tidied) -> None:
    """M-079: 14 days; nobody is asked while the night is under way."""
    nights = night.house.stores.nights
    begun = await begun_night(night, "skills")

    async def waiting(hours: float) -> list[str]:
        night.clock.advance(hours * 3600)
        async with night.house.database.transaction() as tx:
            await night.house.stores.decisions.outdate(tx)
        return await states(night)

    wanted = Decision("skill", ("x",), "", "why", {"files": []}, state="open")
    async with night.house.database.transaction() as tx:
        where = (begun.id, OWNER, "skills")
        await night.house.stores.decisions.number(tx, where, [wanted])
    assert await waiting(10) == ["open"]
    async with night.house.database.transaction() as tx:
        await nights.end(tx, begun.id)
    assert await waiting(14 * 24 - 1) == ["open"]
    assert await waiting(1) == ["outdated"]


async def test_what_was_said_yes_to_late_can_be_undone_as_long_as_all_else(night: Tidied) -> None:
    """M-065: 30 days from the yes on, not from the night."""
    item = await asked_to_merge(night)
    night.clock.advance(timedelta(days=13).total_seconds())
    assert await night.yes(item)
    night.clock.advance(timedelta(days=20).total_seconds())
    await night.night("housekeeping")
    [done] = await night.items()
    await night.take_back(done)
    assert skills(night) == TWO
    night.clock.advance(timedelta(days=20).total_seconds())
    await night.night("housekeeping")
    assert await night.items() == []
