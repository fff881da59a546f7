"""Messages that are taken back leave no trace: nothing that was made of them only (M-030, L-048)."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.world.clock import HeldClock, until_so
from tests.world.core_pages import at_work, batch, keep, quarter, waits, wish
from tests.world.files import files_with
from tests.world.forgetting import deliver, forgotten, import_lines, learn, wrote
from tests.world.harvested import Picker, harvested, is_harvest, talking
from tests.world.house import PROMPTS, SCOPE, House, house_at_work, open_house
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from tests.world.redacted import take_back
from tests.world.request_rules import is_for_core, is_for_reconstruction
from wintermute.changes.change_sets import Reason
from wintermute.clock import stamp
from wintermute.commands.forgetting import FORGETTING, UNVOUCHED
from wintermute.forgetting.forget_jobs import enqueue_forgetting, forget_at_once
from wintermute.memory.fact import Source

WORD = "zimtkanarie"
SAID = f"My bird is a {WORD} called Hugo"


@pytest.fixture
def house(prompted_house: House) -> House:
    return prompted_house


@pytest.mark.breaks("forgetting")
async def test_an_old_answered_message_leaves_no_trace(tmp_path: Path, model: ModelServer) -> None:
    """M-030, L-048: facts, answers, prompts, core, recordings; what has nothing to do with it stays."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS, record=True) as house:
        page = f"# USER\n- Has a {WORD} bird\n- The bird is a {WORD}\n- Likes tea\n"
        await wrote(house, page, f"Has a {WORD} bird")
        gone = await learn(house, model, SAID, f"The bird is a {WORD}")
        await house.say("What a fine day", "/memory")
        await deliver(house)
        await house.say("Tell me of the bird")
        await deliver(house)
        assert {"wintermute.db-wal", "MEMORIES.txt"} <= set(files_with(tmp_path))
        await take_back(house, gone)
        await forgotten(house)
        assert (tmp_path / "core.md").read_text() == "# USER\n- Likes tea\n"
        assert await house.database.scrub()
        assert files_with(tmp_path) == []
        assert await house.stores.facts.live(SCOPE) == []
        bodies = [row["body"] for row in await house.rows("SELECT body FROM inbox ORDER BY seq")]
        assert bodies == ["", "What a fine day", "/memory", "Tell me of the bird"]
        await house.say("Do you remember?")
        assert WORD not in json.dumps(model.requests[-1].body).lower()


async def test_what_another_message_says_as_well_stays(house: House, model: ModelServer) -> None:
    """M-030: it has other evidence, and is not known from the deleted message any more."""
    fact = f"The bird is a {WORD}"
    gone = await learn(house, model, SAID, fact)
    other = await learn(house, model, f"As I said, the bird is a {WORD}", fact)
    assert [f.origins for f in await house.stores.facts.live(SCOPE)] == [(gone, other)]
    await take_back(house, gone)
    await forgotten(house)
    assert [f.origins for f in await house.stores.facts.live(SCOPE)] == [(other,)]
    rows = await house.rows("SELECT body FROM inbox ORDER BY seq")
    assert [row["body"] for row in rows] == ["", f"As I said, the bird is a {WORD}"]


async def test_a_merged_memory_is_remade(house: House, tmp_path: Path, model: ModelServer) -> None:
    """M-030: what was merged with it is there again, and queued."""
    gone = await learn(house, model, SAID, f"The bird is a {WORD}")
    await learn(house, model, "The bird sings at night", "The bird sings at night")
    old = await house.stores.facts.live(SCOPE)
    async with house.database.transaction() as tx:
        both = f"The bird is a {WORD} and sings at night"
        await house.stores.facts.replace(
            tx, Reason("tool", SCOPE), SCOPE, [f.id for f in old], [(both, "dreaming_merge")]
        )
    await take_back(house, gone)
    await forgotten(house)
    rows = await house.rows("SELECT text, queued FROM facts")
    assert rows == [{"text": "The bird sings at night", "queued": 1}]
    assert await house.database.scrub()
    assert files_with(tmp_path) == []


async def test_who_forgets_two_things_in_a_hurry_forgets_both(picker: Picker) -> None:
    """M-030: neither the work of the first nor what is read meanwhile makes the second ask again."""
    async with picker.talking() as house:
        await import_lines(house, [json.dumps({"text": f"Ann's bird is a {WORD}"})])
        await import_lines(house, [json.dumps({"text": "Ann's boat is called Saltwind"})])
        await house.say("/forget bird")
        await deliver(house)
        await house.say("/forget yes", *(f"n{n}" for n in range(6)), "/forget boat")
        await deliver(house)
        picker.picks("Ann likes tea")
        await picker.clock.move(16 * 60)
        await harvested(house)
        await house.say("/forget yes")
        assert (await house.spoken())[-1].startswith("I forget it for good")


async def test_no_answer_tells_what_is_being_forgotten(picker: Picker) -> None:
    """M-030, U-015: from the yes on, also where words were said under another name of a room."""
    async with picker.talking() as house:
        await import_lines(house, [json.dumps({"text": f"Ann's bird is a {WORD}"})])
        scope = SCOPE
        async with house.database.transaction() as tx:
            facts = [fact.id for fact in await house.stores.facts.live(scope, tx)]
            await enqueue_forgetting(house.stores, tx, (), (), facts, scope="room:renamed")
            assert await house.stores.jobs.is_forgetting(tx, "room:renamed")
            assert await house.stores.jobs.is_forgetting(tx, scope)
        assert await house.stores.facts.live(scope) == []
        assert WORD not in await house.stores.memories.text(scope)


async def test_what_was_learnt_since_it_was_asked_goes_with_its_message(picker: Picker) -> None:
    """M-030, U-015: between the question and its yes a quarter of an hour passes."""
    picker.picks(f"Ann's boss is a {WORD}")
    async with picker.talking() as house:
        await import_lines(house, [json.dumps({"text": f"Ann's bird is a {WORD}"})])
        await house.say(f"My boss is a {WORD}", *(f"n{n}" for n in range(5)), f"/forget {WORD}")
        assert "- 1 message of yours" in (await house.spoken())[-1]
        await picker.clock.move(16 * 60)
        await harvested(house)
        assert len(await house.stores.facts.live(SCOPE)) == 2
        await deliver(house)
        await house.say("/forget yes", "/forget yes")
        first, second = (await house.spoken())[-2:]
        assert first == FORGETTING
        assert second.startswith((FORGETTING, "There is nothing to confirm: I forgot"))
        await forgotten(house)
        assert await house.rows("SELECT * FROM facts") == []


@pytest.mark.breaks("forgetting", perhaps=True)
async def test_what_is_not_read_yet_is_forgotten_by_words(picker: Picker, tmp_path: Path) -> None:
    """M-030: else it would be learnt again from the message that comes next."""
    picker.picks(f"Ann's boss is a {WORD}")
    async with picker.talking() as house:
        await house.say("hello", f"My boss is a {WORD}", f"/forget {WORD}")
        assert "- 1 message of yours" in (await house.spoken())[-1]
        await deliver(house)
        await house.say("/forget yes")
        await forgotten(house)
        await house.say(*(f"n{n}" for n in range(20)))
        await harvested(house)
        assert await house.stores.facts.live(SCOPE) == []
        assert await house.database.scrub()
        assert files_with(tmp_path) == []


async def test_an_unvouched_session_has_nothing_forgotten(house: House, model: ModelServer) -> None:
    """X-034: neither by an id nor by confirming what the owner was shown."""
    await learn(house, model, SAID, f"The bird is a {WORD}")
    [fact] = await house.stores.facts.live(SCOPE)
    await house.incoming(f"/forget {WORD}")
    for said in (fact.id, WORD, "yes"):
        await house.incoming(f"/forget {said}", origin="other")
    assert (await house.said(5))[2:] == [UNVOUCHED] * 3
    await house.say(f"/forget {fact.id}")
    await deliver(house)
    await forgotten(house)
    assert await house.stores.facts.live(SCOPE) == []


@pytest.mark.slow
async def test_deleting_a_blank_message_takes_what_else_came_of_it(picker: Picker) -> None:
    """M-030: `/forget` of one memory has blanked the message that two came from."""
    picker.picks("Ann keeps bees.", "Ann owns a boat.")
    async with picker.talking() as house:
        both, *_ = await house.say("I keep bees and own a boat", *map(str, range(19)))
        await harvested(house)
        await deliver(house)
        bees, _ = await house.stores.facts.live(SCOPE)
        await house.say(f"/forget {bees.id}")
        await deliver(house)
        await forgotten(house)
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == ["Ann owns a boat."]
        await take_back(house, both)
        await forgotten(house)
        assert await house.stores.facts.live(SCOPE) == []


@pytest.mark.slow
async def test_what_cannot_be_erased_is_tried_ever_less(tmp_path: Path, model: ModelServer) -> None:
    """M-030: from two seconds up to five minutes; and at once when it is asked for again."""
    clock = HeldClock()

    async def pause(house: House) -> float:
        """Seconds until it looks again."""

        async def put_off() -> bool:
            house.runner.wake("forget")
            (job,) = await house.rows("SELECT not_before, state FROM jobs WHERE name = 'forget'")
            return job["state"] == "waiting" and (job["not_before"] or "") > stamp(clock.now())

        await until_so(put_off)
        row = await house.one("SELECT not_before FROM jobs WHERE name = 'forget'")
        return (datetime.fromisoformat(row["not_before"]) - clock.now()).total_seconds()

    async with house_at_work(tmp_path, model.url, prompts=PROMPTS, clock=clock) as house:
        await learn(house, model, SAID, f"The bird is a {WORD}")
        [fact] = await house.stores.facts.live(SCOPE)
        await house.say("/memory", f"/forget {fact.id}")  # both answers are not sent yet
        for seconds in (2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
            assert await pause(house) == seconds
            await clock.move(seconds)
        assert await pause(house) == 300
        await house.say(f"/forget {fact.id}")
        assert await pause(house) == 2
        await deliver(house)
        await clock.move(2)
        await forgotten(house)
        assert await house.stores.facts.live(SCOPE) == []


async def test_what_is_owed_for_several_memories_goes_on_without_the_one_that_is_forgotten(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-049: the core hears of the others; of a batch of nothing else it hears nothing."""
    async with at_work(tmp_path, model, *[Fail(503)] * 8) as house:
        (alone,) = await keep(house, f"Ann has a {WORD}")
        await quarter(house)
        await waits(house, 1)
        gone, stays = await keep(house, f"Ann feeds the {WORD}", "Never call Ann before ten")
        await quarter(house)
        await waits(house, 2)
        await deliver(house)
        await house.say(f"/forget {alone}", f"/forget {gone}")
        await deliver(house)
        await forgotten(house)
        rows = await house.rows("SELECT args, state FROM jobs WHERE name = 'core'")
        args = json.dumps({"facts": [stays]}, separators=(",", ":"))
        assert rows == [{"args": args, "state": "waiting"}]


@pytest.mark.breaks("forgetting")
async def test_a_canary_is_in_no_file_in_any_form(tmp_path: Path, model: ModelServer) -> None:
    """M-030: picked up, merged with something else, put on core.md so, and answered with later."""
    nurse, merged = "Ann is a nurse at the hospital", f"Ann is a nurse and keeps a {WORD}."
    pages = [merged, "Ann is a nurse."]
    later = f"You have told me that Hugo, the bird of yours, is a {WORD}."
    model.reconstructs = model.updates_core = True

    def choose(seen: Seen) -> Step | None:
        if is_harvest(seen):
            return Text(json.dumps({"contents": [f"Ann's bird is a {WORD}.", f"{nurse}."]}))
        if is_for_reconstruction(seen.body):
            kept = f"{nurse}, and Ann's bird is a {WORD}." if len(pages) == 2 else f"{nurse}."
            return Text(json.dumps({"memories": [kept], "coverage": "complete"}))
        if is_for_core(seen.body):
            return wish(f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- {pages.pop(0)}\n")
        return Text(later) if seen.last_user.endswith("What do I keep?") else None

    model.keyed(choose)
    core, clock = tmp_path / "core.md", HeldClock()
    async with talking(tmp_path, model, clock, record=True) as house:

        async def has(text: str) -> bool:
            for name in ("harvest", "reconstruct", "core"):
                house.runner.wake(name)
            await house.rows("SELECT 1")
            return core.exists() and text in core.read_text()

        told = f"Hugo is my {WORD}, the bird I always wanted"
        gone, *_ = await house.say(told, f"I must say: {nurse}", *(f"n{n}" for n in range(18)))
        await harvested(house)
        await clock.move(16 * 60)
        await until_so(lambda: has(merged))
        await house.say("What do I keep?", "/memory", "Thanks for that")
        await deliver(house)
        (fact,) = await house.stores.facts.live(SCOPE)
        assert WORD in fact.text
        await take_back(house, gone)
        await forgotten(house)
        await clock.move(16 * 60)  # it is there again by itself, and is brought together anew
        await until_so(lambda: has("- Ann is a nurse."))
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == [f"{nurse}."]
        assert await house.database.scrub()
        assert files_with(tmp_path) == []
        said = [row["body"] for row in await house.rows("SELECT body FROM inbox ORDER BY seq")]
        assert said[:2] == ["", f"I must say: {nurse}"]
        assert said[-3:] == ["What do I keep?", "/memory", "Thanks for that"]
        assert (await house.spoken())[-1] == "echo: Thanks for that"
        await house.say("And now?")
        assert WORD not in json.dumps(model.requests[-1].body).lower()


@pytest.mark.parametrize("source", ["harvest", "user_explicit"])
async def test_a_line_of_core_that_says_more_is_made_anew_without_it(
    tmp_path: Path, model: ModelServer, source: Source
) -> None:
    """M-030, M-052: what we made of two memories, in words of ours; what a person typed stays.

    Also where the words of a person protect the line from updates.
    """
    typed = "Keeps a diary"
    (tmp_path / "core.md").write_text(f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- {typed}\n")

    def page(*bullets: str) -> Text:
        users = "".join(f"- {bullet}\n" for bullet in (typed, *bullets))
        return wish(f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n{users}")

    first, second = page("Ann is a nurse."), page(f"Ann is a nurse and keeps a {WORD}.")
    async with at_work(tmp_path, model, first, second, first) as house:
        for text in ("Ann is a nurse at the hospital", f"Ann keeps a {WORD}"):
            await batch(house, text, source=source)
        assert WORD in (tmp_path / "core.md").read_text()
        [fact] = [f for f in await house.stores.facts.live(SCOPE) if WORD in f.text]
        await deliver(house)
        await house.say(f"/forget {fact.id}")
        await forgotten(house)

        async def is_there_again() -> bool:
            house.runner.wake("core")
            await house.settled()
            return "nurse" in (tmp_path / "core.md").read_text()

        await until_so(is_there_again)
        assert (tmp_path / "core.md").read_text() == json.loads(first.text)["core_markdown"]
        asked = model.requests[-1].system
        assert "- Ann is a nurse at the hospital\n" in asked
        assert WORD not in asked
        assert await house.database.scrub()
        assert files_with(tmp_path) == []


async def test_a_page_kept_back_by_a_kill_is_made_anew(tmp_path: Path, model: ModelServer) -> None:
    """M-030, M-051: what is on record is put in place only while all it was made of is known."""
    core, old = tmp_path / "core.md", "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n"
    core.write_text(old)
    nurse = f"{old}- Ann is a nurse.\n"
    both = wish(f"{old}- Ann is a nurse and keeps a {WORD}.\n")
    async with at_work(tmp_path, model, both) as house:
        await batch(house, "Ann is a nurse at the hospital", f"Ann keeps a {WORD}")
        await deliver(house)
        async with house.database.transaction() as tx:  # as if it had not come to its end
            await tx.execute("UPDATE jobs SET state = 'running' WHERE name = 'core'")
            await tx.execute("UPDATE changes SET placed = 0 WHERE kind = 'core'")
    core.write_text(old)
    async with open_house(tmp_path, model.url, prompts=PROMPTS, clock=HeldClock()) as house:
        gone = [f for f in await house.stores.facts.live(SCOPE) if WORD in f.text]
        await forget_at_once(house.stores, gone, house.clock)
    async with at_work(tmp_path, model, wish(nurse)) as house:

        async def is_over() -> bool:
            query = "SELECT 1 FROM jobs WHERE name = 'core' AND state <> 'done'"
            return not await house.rows(query)

        await until_so(is_over)
        assert core.read_text() == nurse
        assert await house.database.scrub()
        assert files_with(tmp_path) == []


async def test_what_shares_only_common_words_stays(house: House, model: ModelServer) -> None:
    """M-030: a word counts that people said there in no other message, and that no other memory has."""
    model.script(Text("The garden is lovely."))
    await house.say("Tell me something")
    gone = await learn(house, model, f"My {WORD} sits in the garden", f"Ann has a {WORD}")
    model.script(Text("The garden is lovely, Ann."), Text(f"Ask the {WORD} then."))
    await house.say("How is the garden?", "And else?")
    await deliver(house)
    await take_back(house, gone)
    await forgotten(house)
    spoken = await house.spoken()
    assert spoken == ["The garden is lovely.", "", "The garden is lovely, Ann.", ""]
    bodies = [row["body"] for row in await house.rows("SELECT body FROM inbox ORDER BY seq")]
    assert bodies == ["Tell me something", "", "How is the garden?", "And else?"]
    model.allow("forgetting", perhaps=True)
