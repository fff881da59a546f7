"""Changes with their way back: three states are compared, and a later edit is never lost."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import WITHIN, FakeClock, HeldClock
from tests.world.nights import asked
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import KEPT, Change, ChangeSets, Reason
from wintermute.changes.decisions import Decision, DecisionState, text_proposal
from wintermute.changes.placing import LOCK, Placing, PutInPlace
from wintermute.changes.undo import MergedState, Undo, reverted
from wintermute.clock import CheckedClock
from wintermute.commands.tasks import change_line, undo_lines
from wintermute.errors import StoreBusy, ToolFailed
from wintermute.files import LOCK_FILE, locked
from wintermute.forgetting.forget_jobs import enqueue_forgetting, run_forgetting
from wintermute.ids import new_id
from wintermute.jobs import FORGET
from wintermute.messages import Json
from wintermute.night.expiry import DAY, Expiry
from wintermute.night.night_undo import undo_items
from wintermute.night.phases import night_executors
from wintermute.night.questions import Questions
from wintermute.owner import Owner
from wintermute.stores import Stores
from wintermute.tasks.tasks import Target
from wintermute.wiki.folder import APPLYING, FileChange

ANN = "person:@ann:test"
BEN = "person:@ben:test"
WHY = Reason("tool", ANN)


@asynccontextmanager
async def _stores(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[Stores]:
    async with open_migrated(folder / "wintermute.db") as database:
        yield Stores.of(
            database, folder, Owner("@ann:test"), clock or FakeClock(), new_id, timezone="UTC"
        )


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    async with _stores(tmp_path) as stores:
        yield stores


DONE: tuple[DecisionState, ...] = ("done",)
TEXT = "one\ntwo\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    ("before", "after", "now", "merged"),
    [
        (None, {"a": 1}, {"a": 1}, MergedState(None)),
        ({"a": 1}, None, None, MergedState({"a": 1})),
        ({"a": 1}, {"a": 2}, {"a": 2}, MergedState({"a": 1})),
        ({"a": 1}, {"a": 2}, {"a": 1}, MergedState({"a": 1})),
        (None, {"a": 1}, {"a": 3}, MergedState({"a": 3}, ("all of it",))),
        (None, {"a": 1}, None, MergedState(None)),
        ({"a": 1}, None, {"a": 3}, MergedState({"a": 3}, ("all of it",))),
        ({"a": 1}, {"a": 2}, None, MergedState(None, ("all of it",))),
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 3}, MergedState({"a": 1, "b": 3})),
        (
            {"a": 1, "b": 1},
            {"a": 2, "b": 2},
            {"a": 3, "b": 2},
            MergedState({"a": 3, "b": 1}, ("a",)),
        ),
        (
            {"text": TEXT},
            {"text": TEXT.replace("two", "TWO")},
            {"text": TEXT.replace("two", "TWO").replace("five", "FIVE")},
            MergedState({"text": TEXT.replace("five", "FIVE")}),
        ),
        (
            {"text": TEXT},
            {"text": TEXT.replace("two", "TWO")},
            {"text": TEXT.replace("two", "zwei")},
            MergedState({"text": TEXT.replace("two", "zwei")}, ("text",)),
        ),
        (
            {"text": TEXT},
            {"text": f"{TEXT}six\n"},
            {"text": f"{TEXT}six\nseven\n"},
            MergedState({"text": f"{TEXT}six\nseven\n"}, ("text",)),
        ),
        (
            {"text": "one\ntwo\n"},
            {"text": "one\n"},
            {"text": "zero\none\n"},
            MergedState({"text": "zero\none\ntwo\n"}),
        ),
    ],
)
def test_a_change_is_taken_out_of_what_is_there_now(
    before: Json | None, after: Json | None, now: Json | None, merged: MergedState
) -> None:
    """M-065, issue: undo of one item is three-way."""
    assert reverted(before, after, now) == merged


lines = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(
    lambda words: "".join(f"{word}\n" for word in words)
)
states = st.one_of(st.none(), st.fixed_dictionaries({"text": lines, "priority": st.integers(1, 3)}))


@given(states, states)
def test_without_a_later_edit_an_undo_restores_all(before: Json | None, after: Json | None) -> None:
    """M-065."""
    assert reverted(before, after, after) == MergedState(before)


@given(states, states, states)
def test_a_later_edit_is_kept(before: Json | None, after: Json | None, now: Json | None) -> None:
    """The result is what was there before, or holds each value that somebody set since."""
    merged = reverted(before, after, now)
    if now in (after, before):
        return
    if merged.kept == ("all of it",):
        assert merged.state == now
        return
    assert merged.state is not None
    assert now is not None
    assert after is not None
    if now["priority"] != after["priority"]:
        assert merged.state["priority"] == now["priority"]
    added = [line for line in set(now["text"]) if line not in after["text"]]
    assert all(line in merged.state["text"] for line in added)
    for name in merged.kept:
        assert merged.state[name] == now[name]


fields = st.fixed_dictionaries({"text": lines, "priority": st.integers(1, 3)})


@given(st.lists(fields, min_size=2, max_size=6))
def test_what_a_later_change_set_again_stays(history: list[Json]) -> None:
    """Issue: undo never loses the later edit, also where it set what was undone: a, b, a, b."""
    first, second, now = history[0], history[1], history[-1]
    since = [Change("task", "t", *pair) for pair in pairwise(history[1:]) if pair[0] != pair[1]]
    merged = reverted(first, second, now, since)
    assert merged.state is not None
    touched = {
        name
        for change in since
        for name in now
        if _of(change.before, name) != _of(change.after, name)
    }
    mine = "priority" not in touched
    assert merged.state["priority"] == (first if mine else now)["priority"]
    lost = first["priority"] != second["priority"] and now["priority"] != first["priority"]
    assert ("priority" in merged.kept) == (lost and not mine)
    if "text" not in touched:
        assert merged.state["text"] == first["text"]


def _of(state: Json | None, name: str) -> object:
    return (state or {})[name]


@pytest.mark.parametrize(
    ("undone_too", "status", "reason", "kept"),
    [
        ((), "completed", "two", [("task", ("status", "reason"))]),
        ((0,), "active", "", []),
        ((0, 1), "active", "", []),
    ],
    ids=["nothing", "the last", "all since"],
)
async def test_a_task_completed_again_stays_completed(
    stores: Stores,
    undone_too: tuple[int, ...],
    status: str,
    reason: str,
    kept: list[tuple[str, tuple[str, ...]]],
) -> None:
    """Issue: undo never loses the later edit; one that was undone itself counts for nothing."""
    async with stores.database.transaction() as tx:
        task = await stores.tasks.add(tx, WHY, "tea", scope=ANN)
        await stores.tasks.complete(tx, Target(task.id, ANN, WHY), "one")
        await stores.tasks.resume(tx, Target(task.id, ANN, WHY))
        await stores.tasks.complete(tx, Target(task.id, ANN, WHY), "two")
    sets = await stores.changes.history(("task",), ANN)
    for n in undone_too:
        await stores.undo.apply(sets[n])
    undone = await stores.undo.apply(sets[2])
    now = await stores.tasks.get(task.id, ANN)
    assert (now.status, now.reason) == (status, reason)
    assert [(one.kind, one.fields) for one in undone.kept] == kept
    again = await stores.undo.apply(sets[2])
    assert again.back == ()


@dataclass
class Shelf:
    """One file that is put in place after the record, if all goes well."""

    text: Json | None
    fails: str = ""

    async def state(self, _item: str) -> Json | None:
        return self.text

    async def mend(self) -> None: ...

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        [change] = changes

        async def place() -> None:
            if self.fails == "in place":
                raise ToolFailed("cut off")
            self.text = change.after

        if self.fails == "before":
            raise ToolFailed("no space left")
        yield place


@pytest.mark.parametrize("fails", ["before", "in place"])
async def test_an_undo_of_a_file_that_failed_can_be_run_again(tmp_path: Path, fails: str) -> None:
    """P-039: on record is only what is safe on the disk; what counts is what the file says."""
    async with open_migrated(tmp_path / "db") as database:
        sets = ChangeSets(database, FakeClock(), new_id)
        old, new = {"text": "old"}, {"text": "new"}
        async with database.transaction() as tx:
            set_id = await sets.record(tx, WHY, [Change("skill", "tea", old, new)])
        wanted = await sets.get(set_id)
        assert wanted
        shelf = Shelf(new, fails)
        undo = Undo(database, sets, {}, Placing(database, sets, {"skill": shelf}, tmp_path))
        with pytest.raises(ToolFailed):
            await undo.apply(wanted)
        assert shelf.text == new
        assert len(await sets.history(("skill",))) == 1
        shelf.fails = ""
        undone = await undo.apply(wanted)
        assert (shelf.text, len(undone.back), undone.kept) == (old, 1, ())


async def test_a_process_stopped_while_it_placed_files_is_not_waited_for(tmp_path: Path) -> None:
    """M-080: whoever comes second is told, and nothing hangs for ever."""
    async with open_migrated(tmp_path / "db") as database:
        sets = ChangeSets(database, FakeClock(), new_id)
        shelf = Shelf({"text": "old"}, "")
        placing = Placing(database, sets, {"skill": shelf}, tmp_path, patience=0.05)
        change = Change("skill", "tea", {"text": "old"}, {"text": "new"})
        with (
            locked(tmp_path / LOCK, LOCK_FILE),
            pytest.raises(StoreBusy, match="end it, then try again"),
        ):
            await placing.write(WHY, [change])
        assert (shelf.text, await sets.history(("skill",))) == ({"text": "old"}, ())
        await placing.write(WHY, [change])
        assert shelf.text == {"text": "new"}


PAGES = [Change("page", f"semantic/{n}.md", {"text": "old\n"}, {"text": "new\n"}) for n in "AB"]


@asynccontextmanager
async def _pages_on_record(folder: Path, text: str) -> AsyncIterator[tuple[Stores, Path]]:
    """A store with two pages of this text, and their change as a kill leaves it."""
    async with _stores(folder) as stores:
        root = stores.wiki.root
        for path in ("meta/Index.md", *(change.item for change in PAGES)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        async with stores.database.transaction() as tx:
            await stores.changes.record(tx, Reason("edit", stores.owner.scope), PAGES, placed=False)
        yield stores, root


async def test_pages_left_half_in_place_are_finished_before_a_comparison(tmp_path: Path) -> None:
    """V-032: nothing is in place that is not on record, also where somebody edited one since."""
    async with _pages_on_record(tmp_path, "old\n") as (stores, root):
        files = stores.wiki.files
        files.stage("job", [FileChange(each.item, "old\n", "new\n") for each in PAGES])
        files.put(APPLYING, "job")
        (root / PAGES[1].item).write_text("theirs\n")
        await stores.placing.finish()
        with files.reading():
            pass
        assert [(root / each.item).read_text() for each in PAGES] == ["old\n", "theirs\n"]
        assert await stores.changes.history(("page",)) == ()


async def test_while_a_store_is_away_its_changes_stay_on_record(tmp_path: Path) -> None:
    """V-032: a page of a folder that is not there was edited by nobody."""
    async with _pages_on_record(tmp_path, "new\n") as (stores, root):
        root.rename(tmp_path / "away")
        await stores.placing.finish()
        (tmp_path / "away").rename(root)
        [found] = await stores.changes.history(("page",))
        assert len((await stores.undo.apply(found)).back) == 2
        assert [(root / each.item).read_text() for each in PAGES] == ["old\n", "old\n"]


async def test_an_undo_after_forgetting_brings_nothing_back(stores: Stores, tmp_path: Path) -> None:
    """M-030: what it undoes is as it is on record when its turn has come, not when it was asked for."""
    said, page = "The bird is a zimtkanarie", tmp_path / "wiki" / "semantic" / "Bird.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"{said}\n\nRest\n")
    states = {"text": page.read_text()}, {"text": "Rest\n"}
    change, scope = Change("page", "semantic/Bird.md", *states), stores.owner.scope
    wanted = await stores.changes.get(await stores.placing.write(Reason("edit", scope), [change]))
    assert wanted
    async with stores.database.transaction() as tx:
        await enqueue_forgetting(stores, tx, ["$bird"], [said], scope=scope)
        [job] = await stores.jobs.begin(tx, FORGET, 1)
    await run_forgetting(stores, None, FakeClock(), job)
    await stores.undo.apply(wanted)
    assert said not in page.read_text()


async def test_a_yes_said_twice_at_once_is_done_once(stores: Stores, tmp_path: Path) -> None:
    """M-079: also where the second was read before the first was done, or cut off."""
    (tmp_path / "core.md").write_text("- tea\n")
    wish = text_proposal("core", stores.owner.scope, "- tea\n- milk\n", "it is said often")
    wish.plan["files"][0]["was"] = "- tea\n"
    item = await asked(stores, wish)
    questions, done = Questions(stores), night_executors(stores)
    both = await asyncio.gather(questions.approve(item, done), questions.approve(item, done))
    assert [each.problem for each in both] == ["", ""]
    assert (tmp_path / "core.md").read_text() == "- tea\n- milk\n"
    assert len(await stores.changes.history(("core",))) == 1


async def test_an_item_that_was_put_back_by_hand_is_undone_all_the_same(stores: Stores) -> None:
    """M-079: a person said that they do not want it, so it is not asked again."""
    scope = stores.owner.scope
    item = await asked(stores, Decision("task", ("tea",), "", "done", {"task": 1}))
    async with stores.database.transaction() as tx:
        task = await stores.tasks.add(tx, Reason("tool", scope), "tea", scope=scope)
        into = await stores.changes.record(tx, Reason("night", scope), [])
        why = Reason("night", scope, decision=item.seq, into=into)
        await stores.tasks.complete(tx, Target(task.id, scope, why), "done")
        await stores.decisions.move(tx, item, "done", into)
        await stores.tasks.resume(tx, Target(task.id, scope, Reason("command", scope)))
    [done] = await stores.decisions.listed(stores.database, states=DONE)
    undone = await undo_items(stores, [done], whole=False)
    assert (undone.is_nothing, [each.seq for each in undone.items]) == (True, [item.seq])
    assert (await stores.decisions.answered(scope)).knows(item)


def test_a_change_of_what_a_memory_is_says_which_memory_and_what() -> None:
    """M-065: also where something of it is gone, and not by its id alone."""
    known = {"scope": ANN, "text": "Likes tea", "source": "harvest"}
    change = Change("fact", "fact_1", known | {"resting": True}, known)
    assert change_line(change) == "~ fact fact_1: resting: True -> None (Likes tea)"


async def test_an_item_of_which_a_part_stays_names_the_part(stores: Stores) -> None:
    """Issue: what is back and what a later change holds on to are told apart, by its id as well."""
    async with stores.database.transaction() as tx:
        task = await stores.tasks.add(tx, WHY, "tea", scope=ANN, priority=5)
    changes: tuple[dict[str, Any], ...] = (
        {"content": "hot tea", "priority": 9},
        {"content": "iced tea"},
    )
    for change in changes:
        async with stores.database.transaction() as tx:
            await stores.tasks.change(tx, Target(task.id, ANN, WHY), **change)
    sets = await stores.changes.history(("task",), ANN)
    undone = await stores.undo.apply(sets[1])
    back, kept = (
        "- the task is partly as it was before: iced tea",
        "- not undone, because I changed it",
    )
    assert undo_lines(undone) == [back, f"{kept} since: text of the task iced tea"]
    assert f" since ({sets[0].id}): text of " in undo_lines(undone, shell=True)[1]
    async with stores.database.transaction() as tx:
        await stores.tasks.delete(tx, Target(task.id, ANN, WHY))
    assert undo_lines(await stores.undo.apply(sets[0])) == [f"{kept} since: the task iced tea"]


async def test_change_sets_are_listed_newest_first_and_per_scope(tmp_path: Path) -> None:
    """M-065: with cause, time and both states; an extended set is one."""
    clock = FakeClock()
    async with open_migrated(tmp_path / "db") as database:
        sets = ChangeSets(database, clock, new_id)
        async with database.transaction() as tx:
            first = await sets.record(tx, WHY, [Change("fact", "f1", None, {"text": "ü"}, ("$1",))])
            other = await sets.record(
                tx, Reason("import", BEN), [Change("fact", "f2", None, {"text": "b"})]
            )
        clock.advance(60)
        async with database.transaction() as tx:
            await sets.extend(tx, first, [Change("task", "t1", {"a": 1}, None)])
        found = await sets.history(("fact",))
        assert [one.id for one in found] == [other, first]
        assert [one.id for one in await sets.history(("fact",), ANN)] == [first]
        assert [one.id for one in await sets.history(("task",))] == [first]
        whole = await sets.get(first)
        assert whole is not None
        assert whole.changes == (
            Change("fact", "f1", None, {"text": "ü"}, ("$1",)),
            Change("task", "t1", {"a": 1}, None),
        )
        assert (whole.cause, whole.scope, whole.undoes) == ("tool", ANN, None)


async def test_undoing_step_by_step_goes_back_and_each_can_be_undone(stores: Stores) -> None:
    """M-065: `newest` skips what is undone, and undos."""
    async with stores.database.transaction() as tx:
        task = await stores.tasks.add(tx, WHY, "first", scope=ANN)
    for words in ("second", "third"):
        async with stores.database.transaction() as tx:
            await stores.tasks.change(tx, Target(task.id, ANN, WHY), content=words)

    async def content() -> str:
        return (await stores.tasks.get(task.id, ANN)).content

    undos = []
    for words in ("second", "first"):
        newest = await stores.changes.newest(("task",), ANN)
        assert newest is not None
        undos.append((await stores.undo.apply(newest)).set_id)
        assert await content() == words
    last = await stores.changes.get(undos[-1] or "")
    assert last is not None
    assert (last.cause, last.undoes is not None) == ("undo", True)
    await stores.undo.apply(last)
    assert await content() == "second"


async def test_one_item_of_a_set_can_be_undone_alone(stores: Stores) -> None:
    """Issue, change sets: item by item; a second time there is nothing to do."""
    async with stores.database.transaction() as tx:
        done = await stores.facts.replace(
            tx, WHY, ANN, [], [("Ann likes tea", "harvest"), ("Ann likes jazz", "harvest")]
        )
    found = await stores.changes.get(done.set_id or "")
    assert found is not None
    tea, jazz = (fact.id for fact in done.facts)
    undone = await stores.undo.apply(found, {tea})
    assert [change.item for change in undone.back] == [tea]
    assert [fact.id for fact in await stores.facts.live(ANN)] == [jazz]
    again = await stores.changes.get(found.id)
    assert again is not None
    assert again.undone == {tea}
    assert (await stores.undo.apply(again, {tea})).back == ()
    newest = await stores.changes.newest(("fact",), ANN)
    assert newest is not None
    assert newest.id == found.id  # the other item is not undone yet


async def test_what_cannot_be_undone_any_more_is_purged(tmp_path: Path) -> None:
    """M-065, T-007: after 30 days retired facts and old changes go, live ones stay."""
    clock = FakeClock()
    async with _stores(tmp_path, clock) as stores:
        async with stores.database.transaction() as tx:
            gone, _ = await stores.facts.add(tx, WHY, "Ann likes tea", "harvest", scope=ANN)
            kept, _ = await stores.facts.add(tx, WHY, "Ann likes jazz", "harvest", scope=ANN)
            await stores.facts.supersede(tx, WHY, (), dict.fromkeys([gone.id]))
        await stores.memories.text(ANN)
        expiry = Expiry(stores, CheckedClock(clock))
        clock.advance((KEPT - timedelta(minutes=1)).total_seconds())
        await expiry.purge()
        assert await stores.facts.get(gone.id) is not None
        assert len(await stores.changes.history(("fact",))) == 3
        clock.advance(120)
        await expiry.purge()
        assert await stores.facts.get(gone.id) is None
        assert await stores.facts.get(kept.id) is not None
        assert await stores.changes.history(("fact",)) == ()
        rows = await stores.database.rows(
            "SELECT 1 FROM change_sets UNION ALL SELECT 1 FROM changes"
        )
        assert rows == []


async def test_nothing_is_purged_by_a_clock_that_is_not_believed(tmp_path: Path) -> None:
    """F-015, M-065: a start years ahead; what is old is looked for when the time is known."""
    machine, kept = HeldClock(), "SELECT 1 FROM change_sets"
    async with _stores(tmp_path, machine) as stores:
        async with stores.database.transaction() as tx:
            await stores.facts.add(tx, WHY, "Ann likes tea", "harvest", scope=ANN)
        machine.ahead = 12 * KEPT
        clock = CheckedClock(machine, asks=True)
        expiry = Expiry(stores, clock)
        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
            run = group.create_task(expiry.run())
            await machine.asleep()
            assert await stores.database.rows(kept)
            machine.ahead = timedelta(0)
            clock.note_server_time(machine.now())
            await machine.move(60)
            while DAY not in machine.slept:  # noqa: ASYNC110  it looks
                await asyncio.sleep(0)
            assert await stores.database.rows(kept)
            await machine.move(KEPT.total_seconds())
            while await stores.database.rows(kept):
                pass
            run.cancel()


def copies_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.before-*")}


async def test_copies_from_before_upgrades_go_when_changes_do(tmp_path: Path) -> None:
    """M-030: what is forgotten is in them; files that only look like them stay."""
    clock = FakeClock()
    ends = (".before-0002", ".before-0002-wal", ".before-0003", ".before-mine", ".before-00041")
    names = [f"wintermute.db{end}" for end in ends]
    async with _stores(tmp_path, clock) as stores:
        for name in names:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (clock.now().timestamp(),) * 2)
        clock.advance(86_400)
        os.utime(tmp_path / names[2], (clock.now().timestamp(),) * 2)
        expiry = Expiry(stores, CheckedClock(clock))
        clock.advance((KEPT - timedelta(days=1)).total_seconds())
        await expiry.purge()
        assert copies_in(tmp_path) == set(names)
        clock.advance(60)
        await expiry.purge()
        assert copies_in(tmp_path) == set(names[2:])
