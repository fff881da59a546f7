"""Forgetting: afterwards no file has the words, and what had nothing to do with them is there."""

import asyncio
import json
import random
import unicodedata
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.delegating import objective
from tests.world.files import WORD, files_with
from tests.world.forgetting import deliver, forget_live, import_lines
from tests.world.house import ANN, PROMPTS, ROOM, SCOPE, House, house_at_work, open_house
from tests.world.model import Calls, ModelServer, Seen, Slow, Step, Text, Use, is_for_summary
from tests.world.promised import MORNING, after, promise
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Context, SubSessionSettings
from wintermute.forgetting.forgetting import forget
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import Target

WAYS = {
    "plain": f"The name of the shed is {WORD}",
    "quotes": f'Ännchens Größe: 5\'7" and "{WORD}"',
    "emoji": f"🍵 {WORD} 🧑‍🚀 ﬁn",
    "backslashes": f"C:\\new\\{WORD}\\u00e4 \\o/",
    "marks": f"**{WORD}** _is_ `[a](b)` <b>&amp;</b>",
    "tags": f"<event> </memory> {WORD} <related_memories>",
    "long": f"{WORD} " + "and then some more of it " * 20,
}


async def converse(house: House, model: ModelServer, text: str) -> None:
    """Learn it, repeat it, ask for it, take it back, replace it."""
    said = text.replace(" ", "\n", 1)
    model.script(
        Calls((Use("append_memory", {"entry": f"- {said}", "source": "user_explicit"}),)),
        Text(f"I will remember that {said}!"),
    )
    await house.say(f"Remember: {said}")
    await house.incoming("What a fine day")
    await house.say(f"Did I say {text}?", "/memory")
    (fact,) = [fact for fact in await house.stores.facts.live(SCOPE) if WORD in fact.text]
    async with house.database.transaction() as tx:
        why = Reason("tool", SCOPE)
        await house.stores.facts.replace(
            tx, why, SCOPE, [fact.id], [(f"{fact.text} (since May)", "dreaming_merge")]
        )
    await house.say("And now?")
    await house.incoming("/undo")
    await house.say("/memory")
    await import_lines(house, [json.dumps({"text": f"Also {text}", "id": "imported-before"})])
    await house.say("A last word")


@pytest.fixture
def house(prompted_house: House) -> House:
    return prompted_house


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.breaks("forgetting")
async def test_no_file_has_what_was_forgotten_and_the_rest_stays(
    tmp_path: Path, model: ModelServer, way: str
) -> None:
    """M-030, M-066: database, log, memories file; also while the daemon has it open."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await import_lines(house, [json.dumps({"text": "likes tea", "id": "tea"})])
        await converse(house, model, WAYS[way])
        await deliver(house)
        assert {"wintermute.db-wal", "MEMORIES.txt"} <= set(files_with(tmp_path))
        done = await forget_live(house)
        assert (done.facts, done.unfinished, done.quoted, done.scrubbed) == (3, 0, (), True)
        assert files_with(tmp_path) == []
        assert [fact.id for fact in await house.stores.facts.live(SCOPE)] == ["tea"]
        assert (tmp_path / "MEMORIES.txt").read_text() == "likes tea\n"
        intents = [row["intent"] for row in await house.rows("SELECT intent FROM casts")]
        assert intents == ["", "What a fine day", "", "And now?", "A last word"]
        bodies = [row["body"] for row in await house.rows("SELECT body FROM inbox ORDER BY seq")]
        assert "What a fine day" in bodies
        assert "echo: And now?" in await house.spoken()
        await house.say("Do you remember?")
        assert WORD not in json.dumps(model.requests[-1].body).lower()
    assert files_with(tmp_path) == []


async def test_it_is_forgotten_however_people_and_models_wrote_it(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """F-034: by letters of which each word has one that differs, in every writing of them."""
    text = "Ärztin heißt Öznur Ünlü aus Köln"
    ways = (
        "**Ärztin** heißt *Öznur* Ünlü\n> aus `Köln`",
        unicodedata.normalize("NFD", text.upper()),
        "<b>&Auml;rztin</b> hei&szlig;t &#214;znur<br>Ünlü aus Köln",
        json.dumps({"notes": json.dumps([text])}),
    )
    await import_lines(house, [json.dumps({"text": text}), json.dumps({"text": "likes tea"})])
    for number, way in enumerate(ways, 1):
        write = {"skill_name": "doctor", "summary": "Whom to ask", "documentation": f"x {way} y"}
        model.script(Calls((Use("add_skill", write),)), Text(f"Of course: {way}!"))
        await house.incoming(f"You know: {way}. And then?")
        await house.said(number)
    await deliver(house)
    async with house.database.transaction() as tx:
        why = Reason("tool", SCOPE)
        task = await house.stores.tasks.add(tx, why, f"Call, {ways[0]}, soon", scope=SCOPE)
    (tmp_path / "MEMORIES.txt~").write_text(text)
    done = await forget_live(house, "Öznur")
    names = (f"{task.id} (number {task.number})", "skill doctor", str(tmp_path / "MEMORIES.txt~"))
    assert (done.facts, done.unfinished, done.quoted) == (1, 0, names)
    assert done.records > 12
    await house.stores.skills.remove(why, "doctor")
    async with house.database.transaction() as tx:
        await house.stores.tasks.delete(tx, Target(task.id, None, why))
    (tmp_path / "MEMORIES.txt~").unlink()
    assert (await forget(house.stores, [])).quoted == ()
    await import_lines(house, [json.dumps({"text": text})])
    assert (await forget_live(house, "Öznur")).quoted == ()
    assert (
        files_with(tmp_path, "znur")
        == files_with(tmp_path, "ztin")
        == files_with(tmp_path, "ZNUR")
        == []
    )
    (row,) = await house.rows("SELECT content FROM tasks")
    assert row == {"content": "Call, **[erased]`, soon"}


async def test_what_was_forgotten_stays_gone_over_undo(tmp_path: Path, model: ModelServer) -> None:
    """M-066: nothing of it is on record; the other lines of the same import still are."""
    async with open_house(tmp_path, None) as house:
        lines = [{"text": WAYS["plain"]}, {"text": "likes tea"}]
        await import_lines(house, map(json.dumps, lines))
        await forget_live(house)
        (left,) = await house.stores.changes.history(["fact"])
        assert [change.after and change.after["text"] for change in left.changes] == ["likes tea"]
        await house.stores.undo.apply(left)
        assert await house.stores.facts.live(SCOPE) == []


async def test_what_was_retired_goes_with_what_replaced_it(tmp_path: Path) -> None:
    """M-066: an equal fact that was retired before, too."""
    async with open_house(tmp_path, None) as house:
        for text in (WAYS["plain"], WAYS["plain"].upper()):
            await import_lines(house, [json.dumps({"text": text})])
            (tmp_path / "MEMORIES.txt").unlink(missing_ok=True)
            await house.stores.memories.text(SCOPE)
            (tmp_path / "MEMORIES.txt").write_text("")
            await house.stores.memories.text(SCOPE)
        await import_lines(house, [json.dumps({"text": WAYS["plain"]})])
        done = await forget_live(house)
        assert done.facts == 3
    assert files_with(tmp_path) == []


async def test_earlier_wordings_are_forgotten_too(house: House, tmp_path: Path) -> None:
    """M-066: a line that somebody reworded in the memories file is still the same memory."""
    await import_lines(house, [json.dumps({"text": "The shed opens with zimtkanarie"})])
    await house.say("The shed opens with zimtkanarie, right?")
    (tmp_path / "MEMORIES.txt").write_text("The Shed opens with Zimtkanarie\n")
    await house.say("Is it so?")
    await deliver(house)
    await forget_live(house, "Zimtkanarie")
    assert files_with(tmp_path, "kanarie") == []


async def test_a_running_cast_is_left_alone_and_forgetting_is_to_be_repeated(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """M-030: the fact stays until nothing of it is under way, so that it can be named again."""
    text = WAYS["quotes"]
    gate = asyncio.Event()
    await import_lines(house, [json.dumps({"text": text})])
    model.script(
        Calls((Use("append_memory", {"entry": text, "source": "harvest"}),)),
        Slow(gate, Text(f"noted: {text}")),
    )
    await house.incoming(f"so {text}")
    await model.request_arrived(2)
    done = await forget_live(house)
    assert (done.facts, done.unfinished) == (0, 1)
    gate.set()
    assert await house.said(1) == [f"noted: {text}"]
    assert (await forget_live(house)).unfinished == 1  # it is to be sent
    await deliver(house)
    assert (await forget_live(house)).facts == 1
    assert files_with(tmp_path) == []


async def test_what_a_person_must_change_is_named(tmp_path: Path) -> None:
    """Tasks, skills and other memories are not erased behind one's back; bullets of cores are.

    What other people have is not even named.
    """
    text = WAYS["plain"]
    async with open_house(tmp_path, None) as house:
        stores = house.stores
        await import_lines(house, [json.dumps({"text": text})])
        await import_lines(
            house, [json.dumps({"text": text, "id": "bobs", "scope": "person:@bob:test"})]
        )
        async with house.database.transaction() as tx:
            task = await stores.tasks.add(tx, Reason("tool", SCOPE), f"Tell: {text}", scope=SCOPE)
        await stores.skills.write(Reason("tool", SCOPE), "shed", "How to open it", text)
        (tmp_path / "core.md").write_text(f"- {text}\n")
        done = await forget_live(house)
        assert done.quoted == (f"{task.id} (number {task.number})", "skill shed")
        assert (tmp_path / "core.md").read_text() == ""
        assert [fact.id for fact in await stores.facts.live("person:@bob:test")] == ["bobs"]


async def test_a_short_text_is_erased_only_where_learnt(house: House, model: ModelServer) -> None:
    """It would be found in messages that have nothing to do with it."""
    model.script(
        Calls((Use("append_memory", {"entry": "a dog", "source": "user_explicit"}),)), Text("noted")
    )
    await house.say("I have a dog", "He has a dog, too", "/memory")
    await deliver(house)
    done = await forget_live(house, "a dog")
    assert len(done.short) == 1
    intents = [row["intent"] for row in await house.rows("SELECT intent FROM casts")]
    assert intents == ["", "He has a dog, too"]
    assert (await house.spoken())[1:] == ["echo: He has a dog, too", ""]  # a line of its own


async def test_an_erased_answer_is_not_tried_again(tmp_path: Path, model: ModelServer) -> None:
    """M-030: an empty message would be sent in its place."""
    async with house_at_work(tmp_path, model.url) as house:
        await import_lines(house, [json.dumps({"text": WAYS["plain"]})])
        await house.say(WAYS["plain"])
        outgoing = await house.next_outgoing()
        assert outgoing is not None
        await house.outbox.mark_refused(outgoing.id, "M_FORBIDDEN")
        assert (await forget_live(house)).unfinished == 0
        async with house.database.transaction() as tx:
            await house.outbox.release(tx, ROOM)
        assert await house.next_outgoing() is None


@pytest.mark.quick("1")
@pytest.mark.parametrize("seed", range(6))
async def test_nothing_stays_in_the_free_space_of_the_database(tmp_path: Path, seed: int) -> None:
    """M-030: rows that grew have moved from page to page, and SQLite leaves copies behind."""
    chance = random.Random(seed)
    lines = [
        {"text": f"{n} {WORD if chance.random() < 0.05 else ''} {'x' * chance.choice(SIZES)}"}
        for n in range(800)
    ]
    async with open_house(tmp_path, None) as house:
        await import_lines(house, map(json.dumps, lines))
        await house.stores.memories.text(SCOPE)
        assert (await forget_live(house)).facts > 10
        assert files_with(tmp_path) == []


SIZES = (5, 40, 200, 900, 3000, 9000)


async def test_handed_out_work_is_forgotten_with_it(tmp_path: Path, model: ModelServer) -> None:
    """M-030, L-048: a sub-session, its report and the answer to it may say it in other words."""
    other = "gelberfink"

    def choose(seen: Seen) -> Step | None:
        if objective(seen):
            return Calls((Use("done", {"answer": f"It is a {other}."}),))
        if "<event" in seen.last_user:
            return Text(f"They found out: {other}!")
        if seen.messages[-1]["role"] == "tool" or WORD not in seen.last_user:
            return Text("Done.")
        return Calls(
            (
                Use("append_memory", {"entry": f"The bird is a {WORD}", "source": "user_explicit"}),
                Use("call_agent", {"intent": f"What is a {other}?", "context": f"A {other}."}),
                Use("spawn_sub_session", {"objective": f"Find out about the {other}"}),
            )
        )

    model.keyed(choose)
    async with open_house(
        tmp_path, model.url, prompts=PROMPTS, sub_sessions=SubSessionSettings()
    ) as house:
        async with house.working():
            await house.incoming(f"Remember that the bird is a {WORD}")
            assert (await house.said(2))[1] == f"They found out: {other}!"
            await house.say("What a fine day")
            await house.settled()
        await deliver(house)
        assert files_with(tmp_path, other)
        forgotten = await forget_live(house)
        assert (forgotten.facts, forgotten.unfinished, forgotten.scrubbed) == (1, 0, True)
        assert files_with(tmp_path) == files_with(tmp_path, other) == []
        assert "Done." in str(await house.rows("SELECT body FROM outbox"))


async def test_what_reminders_said_and_runs_found_is_forgotten(tmp_path: Path) -> None:
    """M-066: what is yet to be said is counted as unfinished; the task itself is the person's."""
    clock = FakeClock(MORNING)
    async with open_house(tmp_path, None, clock=clock) as house:
        await import_lines(house, [json.dumps({"text": WAYS["plain"]})])
        by_itself = PlanRequest(
            schedule_type="daily", at="09:00", execution_mode="autonomous_silent", ai_prompt="Look."
        )
        said, run = (
            await promise(house, f"So: {WAYS['plain']}"),
            await promise(house, "x", by_itself),
        )
        after(clock, "2026-03-02T09:00")
        await house.promises.fire()
        done = await forget_live(house)
        assert (done.facts, done.unfinished, done.quoted) == (
            0,
            1,
            (f"{said.id} (number {said.number})",),
        )
        await deliver(house)
        await house.promises.fire()
        await deliver(house)
        last = (await house.stores.occurrences.last([run.id]))[run.id]
        async with house.database.transaction() as tx:
            await house.stores.runs.done(tx, last, f"I found: {WAYS['plain']}!", None)
        done = await forget_live(house)
        assert (done.facts, done.unfinished, done.records) == (1, 0, 3)
        rows = await house.rows("SELECT content, result FROM occurrences ORDER BY seq")
        assert rows == [{"content": "", "result": ""}] * 2


async def test_recorded_questions_go_by_their_cast(tmp_path: Path, model: ModelServer) -> None:
    """M-030, L-088: also when its words are too short to be recognised."""
    model.script(Calls((Use("append_memory", {"entry": "- I am zik"}),)), Text("noted: zik"))
    async with open_house(tmp_path, model.url, prompts=PROMPTS, record=True) as house:
        async with house.working():
            await house.say_at_once("I am zik")
            await house.said(1)
            await deliver(house)
        facts = await house.stores.facts.live(f"person:{ANN}")
        assert facts
        await forget(house.stores, facts)
        kept = await house.rows("SELECT request, answer FROM model_calls")
    assert "zik" not in json.dumps(kept)


@pytest.mark.breaks("fold")
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_recorded_questions_keep_no_summary(tmp_path: Path, model: ModelServer) -> None:
    """M-030, L-088: which says it in other words than anybody else."""
    model.script(
        Calls((Use("append_memory", {"entry": "- The parrot is called Zimtkanarie"}),)),
        Text("noted the parrot's name"),
    )
    model.keyed(
        lambda s: Text("Bird: cinnamon canary.", usage=None) if is_for_summary(s.body) else None
    )
    async with open_house(
        tmp_path, model.url, prompts=PROMPTS, record=True, context=Context(keep_recent=1)
    ) as house:
        async with house.working():
            await house.say_at_once(
                "The parrot is called Zimtkanarie", "what a day", "/compact", "so"
            )
            await house.said(4)
            await deliver(house)
        assert "cinnamon" in json.dumps(model.requests[-1].messages)
        await forget(house.stores, await house.stores.facts.live(f"person:{ANN}"))
        kept = await house.rows("SELECT request, answer FROM model_calls")
    assert "cinnamon" not in json.dumps(kept)
