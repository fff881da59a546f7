"""Nights: chats in which nobody speaks any more become pages, and what was left incomplete is made anew."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.world.consolidated import PAGE_CALL, POND, Chats, Scribe
from tests.world.forgetting import forget_all, learn
from tests.world.harvested import CLUB
from tests.world.house import ANN
from tests.world.model import Fail, Seen, Step, Text
from tests.world.shelf import page
from tests.world.tidied import DAY, OWNER, tally
from wintermute.changes.change_sets import ItemKind
from wintermute.changes.decisions import text_proposal
from wintermute.config.schema import Context
from wintermute.forgetting.forget_pages import CONSOLIDATE_AGAIN

pytestmark = pytest.mark.breaks("edited wiki", "redaction", "forgetting", perhaps=True)


class Meddled(Scribe):
    """Somebody is at the store while a page is written."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _choose(self, seen: Seen) -> Step | None:
        if PAGE_CALL.search(seen.system):
            self.meanwhile()
        return super()._choose(seen)


RAW = "episodic-raw/20260504/birds"


async def test_an_idle_chat_of_the_owner_becomes_pages_once(chats: Chats) -> None:
    """W-058, M-055: six quiet hours, no chat of others, each message once; the page can be undone."""
    async with chats.nights() as (night, shelf):
        await night.house.say("I planted 12 tulips")
        await night.house.say(
            "our club meets on Mondays", room="!club:test", scope=CLUB, direct=False
        )
        before = shelf.pages()
        done = await night.night("pages")
        assert (tally(done, "pages").status, tally(done, "pages").note) == ("ok", "")
        assert (tally(done, "pages").before, tally(done, "pages").after) == (2, 3)
        [item] = await night.items()
        assert (item.kind, item.state, item.after) == ("page", "done", POND)
        assert "12 tulips" in "".join(chats.pages.shown)
        assert "Mondays" not in "".join(chats.pages.shown)
        assert done.calls == 2
        again = await night.night("pages")
        assert (again.calls, len(await night.items())) == (0, 1)
        found = await night.house.stores.changes.get(item.change_set or "")
        assert found is not None
        await night.house.stores.undo.apply(found)
        assert shelf.pages() == before


async def test_a_chat_in_which_somebody_spoke_lately_waits(chats: Chats) -> None:
    """W-058."""
    async with chats.nights() as (night, _):
        night.clock.advance(86_400.0 - 3_600.0)
        await night.house.say("I planted 12 tulips")
        night.clock.advance(3_600.0 - 86_400.0)
        await night.night("pages")
        assert chats.pages.shown == []


async def test_what_was_rejected_is_tried_the_next_night(chats: Chats) -> None:
    """W-066: a page that a person changed in the middle; the phase says so, and others go on."""
    pages = Meddled(chats.model)
    async with chats.nights() as (night, shelf):
        await night.house.say("I planted 12 tulips")
        pages.meanwhile = lambda: shelf.write("semantic/Mine.md", page("# Mine\n\n[[Garden]]"))
        first = tally(await night.night("pages"), "pages")
        assert (first.status, "store changed meanwhile" in first.note) == ("left", True)
        assert await night.items() == []
        pages.meanwhile = lambda: None
        assert tally(await night.night("pages"), "pages").status == "ok"
        assert [item.after for item in await night.items()] == [POND]


async def test_pages_that_may_not_be_are_reported_and_not_asked_for_again_unchanged(
    chats: Chats,
) -> None:
    """W-065: until more is said; a model that is away is no answer, and is asked the next night."""
    async with chats.nights() as (night, _):
        await night.house.say("I planted 12 tulips")
        chats.pages.step = Fail(500)
        assert tally(await night.night("pages"), "pages").status == "failed"
        chats.pages.step = Text("no page at all")
        refused = await night.night("pages")
        assert tally(refused, "pages").status == "ok"
        assert "rejected" in tally(refused, "pages").note
        assert refused.calls > 0
        assert (await night.night("pages")).calls == 0
        chats.pages.step = None
        await night.house.say("And 3 roses")
        await night.night("pages")
        assert [item.after for item in await night.items("done")] == [POND]


async def test_pages_are_named_also_by_a_night_that_was_killed_after_them(chats: Chats) -> None:
    """M-063: what was put in place before is an item of the night that goes on."""
    async with chats.nights() as (night, _):
        await night.house.say("I planted 12 tulips")
        done = await night.night("pages")
        async with night.house.database.transaction() as tx:
            await tx.execute("DELETE FROM decisions")
            await tx.execute("DELETE FROM night_phases")
            await tx.execute("UPDATE nights SET state = 'running'")
        again = await night.tidying.run_night(replace(done, state="running", phases=()))
        assert [item.after for item in await night.items("done")] == [POND]
        assert again.calls == done.calls


async def test_a_wiki_that_cannot_be_read_fails_alone(chats: Chats) -> None:
    """M-055: the phase is reported, and the next still runs."""
    async with chats.nights() as (night, shelf):
        await night.house.say("I planted 12 tulips")
        shelf.write("sleep/applying", "nothing")
        done = await night.night()
        assert tally(done, "pages").status == "failed"
        assert "has no usable changes.json" in tally(done, "pages").note
        assert tally(done, "folds").status == "ok"
        assert tally(done, "housekeeping", "").status == "ok"


async def test_what_lost_its_source_is_asked_and_what_lost_a_part_is_made_anew(
    chats: Chats,
) -> None:
    """M-079, W-064: each once; a yes removes the page, from where an undo brings it back."""
    fact = "The bird is a zimtkanarie"
    async with chats.nights() as (night, shelf):
        shelf.write(f"{RAW}/0001-user.md", fact)
        shelf.write("episodic-raw/20260504/pond/0001-user.md", "carp")
        source = f"Source: [[{RAW}/0001-user]]"
        shelf.write("semantic/Bird.md", page(f"# Bird\n\n[[Garden]] {fact}.\n\n{source}"))
        both = f"{source}\nSource: [[episodic-raw/20260504/pond/0001-user]]"
        shelf.write(POND, page(f"# Pond\n\n- {fact}\n- [[Bird]]\n\n{both}"))
        await learn(night.house, chats.model, "Remember something of mine", fact)
        await forget_all(night.house)
        await night.night("pages")
        asked = await night.items("open")
        assert [(item.kind, item.before, item.reason) for item in asked] == [
            ("page removed", ("semantic/Bird.md",), "all its sources were erased")
        ]
        assert "carp" in "".join(chats.pages.shown)
        rows = await night.house.rows("SELECT state FROM jobs WHERE name = ?", CONSOLIDATE_AGAIN)
        assert [row["state"] for row in rows] == ["done"]
        shown = len(chats.pages.shown)
        await night.night("pages")
        assert (len(await night.items("open")), len(chats.pages.shown)) == (1, shown)
        assert await night.yes(asked[0])
        assert "semantic/Bird.md" not in shelf.pages()
        assert await night.house.stores.decisions.waiting(f"person:{ANN}", "page") == []
        [item] = [each for each in await night.items("done") if each.kind == "page removed"]
        await night.take_back(item)
        assert "semantic/Bird.md" in shelf.pages()


async def test_a_question_about_a_page_that_is_another_by_now_is_none(chats: Chats) -> None:
    """M-079: checked again against what is there."""
    async with chats.nights() as (night, shelf):
        stores = night.house.stores
        shelf.write(POND, page("# Pond\n\n[[Garden]]"))
        async with stores.database.transaction() as tx:
            wish = text_proposal("page", POND, page("# Pond\n\nNew."), "why")
            await stores.decisions.propose(tx, OWNER, wish)
        await night.night("pages")
        [item] = await night.items("open")
        shelf.write(POND, page("# Pond\n\nMine."))
        assert not await night.yes(item)
        assert "Mine." in shelf.read(POND)
        assert [each.state for each in await night.items()] == ["outdated"]
        assert await stores.decisions.waiting(OWNER, "page") == []


async def test_what_waits_already_is_told_in_the_order_of_its_numbers(chats: Chats) -> None:
    """M-079: a number is that of the newest night, however long what it names had waited before."""
    async with chats.nights() as (night, shelf):
        stores = night.house.stores

        async def proposed(kind: ItemKind, item: str, text: str) -> None:
            async with stores.database.transaction() as tx:
                await stores.decisions.propose(tx, OWNER, text_proposal(kind, item, text, "why"))

        await proposed("core", OWNER, "# USER\n- Swims\n")
        await proposed("page", POND, page("# Pond\n\nNew."))
        shelf.write(POND, page("# Pond\n\n[[Garden]]"))
        await night.night("pages")
        assert [item.n for item in await night.items()] == [1, 2]
        shown = await night.house.ask("/night")
        assert shown.index("- `1`") < shown.index("- `2`")


async def test_what_was_decided_elsewhere_is_no_question_of_a_night_any_more(chats: Chats) -> None:
    """M-079: a newer proposal in its place, one that has expired, and one that was answered here."""
    async with chats.nights() as (night, _):
        stores = night.house.stores

        async def proposed(text: str) -> None:
            async with stores.database.transaction() as tx:
                await stores.decisions.outdate_text(tx, OWNER, "core", OWNER, but=text)
                wish = text_proposal("core", OWNER, text, "a bullet would go")
                await stores.decisions.propose(tx, OWNER, wish)
            await night.night("pages")

        await proposed("# USER\n- Swims\n")
        await proposed("# USER\n- Runs\n")
        assert [item.state for item in await night.items()] == ["outdated", "open"]
        first, second = await night.items()
        shown = await night.house.ask("/night")
        assert "Swims" not in shown
        assert "decided elsewhere" in await night.house.ask(f"/night yes {first.id}")
        assert "stays as it is" in await night.house.ask(f"/night no {second.id}")
        assert await stores.decisions.waiting(OWNER, "core") == []
        await proposed("# USER\n- Sings\n")
        night.clock.advance(15 * DAY)
        await night.night("housekeeping")
        assert [item.state for item in await night.items()] == ["outdated", "refused", "outdated"]
        assert "1 question" not in await night.house.ask("/status all")


def summed_up(step: Step) -> Callable[[Seen], Step | None]:
    """A model that answers so when it is asked for a summary."""
    return lambda seen: step if "\n<history>\n" in seen.system else None


async def test_a_long_idle_conversation_is_folded_once(chats: Chats) -> None:
    """M-055: over half of what makes an answer fold it first; then no call."""
    summary = "They spoke of tulips, at length, and of nothing else that would matter to anybody."
    chats.model.keyed(summed_up(Text(summary)))
    context = Context(keep_recent=2)
    async with chats.nights(context=context, context_tokens=30_000) as (night, _):
        await night.house.say(*(f"{n} " + "tulips " * 300 for n in range(10)))
        done = tally(await night.night("folds"), "folds")
        assert (done.status, done.before, done.after) == ("ok", 1, 0)
        folds = await night.house.rows("SELECT summary FROM folds")
        assert [row["summary"] for row in folds] == [summary]
        [item] = await night.items()
        assert (item.kind, item.state) == ("fold", "done")
        again = await night.night("folds")
        assert (again.calls, tally(again, "folds").before) == (0, 0)


@pytest.mark.parametrize(("step", "status", "calls"), [("", "ok", 0), (Fail(500), "failed", 1)])
async def test_a_summary_of_no_use_is_not_asked_for_again(
    chats: Chats, step: Step | str, status: str, calls: int
) -> None:
    """L-042, M-055: unless it was the model that was away."""
    given = Text("Tulips.", finish="length") if isinstance(step, str) else step
    chats.model.keyed(summed_up(given))
    context = Context(keep_recent=2)
    async with chats.nights(context=context, context_tokens=30_000) as (night, _):
        await night.house.say(*(f"{n} " + "tulips " * 300 for n in range(10)))
        assert tally(await night.night("folds"), "folds").status == status
        spoke = "They spoke of tulips, at length, and of nothing else."
        chats.model.keyed(summed_up(Text(spoke)))
        assert (await night.night("folds")).calls == calls
