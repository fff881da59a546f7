"""Messages that are edited after they were read: what was learnt from their former wording alone goes."""

import json
from datetime import date
from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.harvested import (
    EARLY,
    Picker,
    harvested,
    harvested_by,
    harvested_facts,
    is_echo,
    is_harvest,
    learnt_by,
    talking,
    transcript,
)
from tests.world.house import ANN, SCOPE, House
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.tidied import Programmed
from wintermute.changes.change_sets import Reason
from wintermute.memory.grounding import Line
from wintermute.memory.origins import EditedMessage, changes_meaning
from wintermute.night.pipeline import night_lock
from wintermute.pages.sources import Consolidations


@pytest.mark.parametrize(
    ("former", "last", "is_edit"),
    [
        ("I live in Lyon", "I live in Rome", True),
        ("I live in Lyon", "I live  in **Lyon**!", False),
        ("I live in Lyon", "…", False),
        ("2.5 mg", "25 mg", True),
        ("/help", "help!", True),
        ("at 10:30", "at 1030", True),
        ("it costs 5 €", "it costs 5 $", True),
        ("minus: 5", "minus: -5", True),
        ("कि", "का", True),
        ("我住在巴黎", "我住在巴黎。", False),
        ("我住在巴黎", "我住在里昂", True),
    ],
)
def test_blanks_and_marks_are_no_edit(former: str, last: str, *, is_edit: bool) -> None:
    """M-089: but for those that belong to a number."""
    assert changes_meaning(former, last) == is_edit


@pytest.mark.parametrize(
    ("fact", "former", "last", "others", "is_over"),
    [
        ("Ann lives in Lyon", "I live in Lyon", "I live in Rome", (), True),
        ("Ann lives in Lyon", "I liv in Lyon", "I live in Lyon, by the river", (), False),
        ("Ann lives in Lyon", "I live in Lyon", "I do not live in Lyon", (), True),
        ("Ann takes 5 mg", "I take 5 mg", "I take 10 mg", (), True),
        ("Ann keeps bees", "I keep bees. My car is red", "I keep bees. It is blue", (), False),
        ("Ann lives in Lyon", "I live in Lyon", "I live in Rome", ("Lyon is nice",), True),
        ("lives in Lyon", "I live in Lyon", "I live in Rome", ("we live near Lyon",), False),
        ("Ann has 2 cats", "I have two cats", "I have three cats", (), True),
        ("Ann has 2 cats", "I have two cats", "I've got two cats", (), False),
        ("Ann has 2 cats", "I have two cats", "I have three", ("two cats!",), False),
        ("Ann's exam is on May 5, 2026", "My exam is tomorrow", "My exam is on Friday", (), True),
        ("Ann's exam is on May 5, 2026", "My exam is tomorow", "My exam is tomorrow", (), False),
        ("Ann drinks coffee", "I drink coffee", "I used to drink coffee", (), True),
        ("Ann lives in Rome", "yes", "no", (), True),
        ("安住在巴黎", "我住在巴黎", "我住在里昂", (), True),
        ("Ann keeps bees", "ich halte Bienen", "ich halte Hühner", (), True),
        ("Ann keeps bees", "ich halte Bienen", "ich halte Hühner", ("guten Tag",), False),
    ],
)
def test_what_was_learnt_only_from_the_former_wording(
    fact: str, former: str, last: str, others: tuple[str, ...], *, is_over: bool
) -> None:
    """M-089: what another message says, or what the edit left as it was, stays."""
    was, now = (Line(each, date(2026, 5, 4), "Ann") for each in (former, last))
    edited = EditedMessage("$m", frozenset({"$m"}), (was,), now)
    assert edited.retracts(fact, others) == is_over


def picks(seen: Seen) -> Step | None:
    if not is_harvest(seen):
        return None
    homes = [home for home in ("Lyon", "Rome") if f"I live in {home}" in transcript(seen)]
    return Text(json.dumps({"contents": [f"The user lives in {home}" for home in homes]}))


async def test_the_next_harvest_reads_what_a_message_says_by_now(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-089: several edits count as the last; nobody answers them, and the history stays as said."""
    ann = await person("ann")
    daemon = await bot(ann, memory_harvest=EARLY)
    model.keyed(picks)
    chat = await room(ann, daemon, encrypted=True)
    sent = {}
    for text in ("I live in Lyon", "hello", "bye"):
        sent[text] = await ann.send(chat, text)
        await ann.wait_for(chat, is_echo(text))
    await harvested_by(daemon)
    assert [fact["text"] for fact in learnt_by(daemon)] == ["The user lives in Lyon"]
    for text in ("I live in Paris", "I live in Rome"):
        await ann.edit(chat, sent["I live in Lyon"], text)
    await ann.edit(chat, sent["hello"], "**hello!**")
    for text in ("one", "two", "three"):
        await ann.send(chat, text)
        await ann.wait_for(chat, is_echo(text))
    await harvested_by(daemon, 2)
    _, shown, *others = (transcript(seen) for seen in model.requests if is_harvest(seen))
    assert "I live in Rome" in shown
    assert not any(word in shown for word in ("Lyon", "Paris", "hello"))
    assert len(others) == 1  # what is new
    assert [fact["text"] for fact in learnt_by(daemon)] == ["The user lives in Rome"]
    gone = daemon.rows("SELECT text, retired_by FROM facts WHERE retired_at IS NOT NULL")
    assert gone == [{"text": "The user lives in Lyon", "retired_by": "harvest"}]
    assert len([said for said in ann.events(chat) if said.body.startswith("echo: ")]) == 6
    assert daemon.rows("SELECT body FROM inbox WHERE body LIKE 'I live%'") == [
        {"body": "I live in Lyon"}
    ]


async def note_edit(house: House, event_id: str, text: str) -> None:
    (row,) = await house.rows("SELECT * FROM inbox WHERE event_id = ?", event_id)
    async with house.database.transaction() as tx:
        values = (f"{event_id}-{text}", event_id, row["conversation_id"], ANN, text)
        await house.stores.edits.note(tx, *values)


async def live_texts(house: House) -> list[str]:
    return [each.text for each in await house.stores.facts.live(SCOPE)]


@pytest.mark.breaks("edit", perhaps=True)
async def test_what_was_merged_is_split_and_what_was_asked_for_named(picker: Picker) -> None:
    """M-089: one change set, undone as one; an explicit fact and a task stay, and the night says so."""
    nights = Programmed()
    keep = Use("append_memory", {"entry": "Ann's dentist is in Lyon"})
    plan = Use("task", {"action": "add", "content": "call the dentist in Lyon"})
    noted = {"my dentist is in Lyon, note it": Calls((keep, plan))}
    picker.model.keyed(lambda seen: noted.pop(seen.last_user, None) or picker.choose(seen))
    async with picker.talking(night=nights) as house:
        said = await house.say("I live in Lyon", "I keep bees", "my dentist is in Lyon, note it")
        *_, cat = await house.say(*map(str, range(16)), "I have a cat")
        picker.picks("Ann lives in Lyon", "Ann keeps bees", "Ann has a cat")
        await harvested(house)
        why, ids = (await house.stores.changes.history(("fact",)))[0], await harvested_facts(house)
        assert len(ids) == 3
        async with house.database.transaction() as tx:
            merged = [("Ann lives in Lyon and keeps bees", "dreaming_merge")]
            old = [change.item for change in why.changes[:2]]

            night = Reason("night", SCOPE, evidence=tuple(said[:2]))
            await house.stores.facts.replace(tx, night, SCOPE, old, merged)  # type: ignore[arg-type]
        await note_edit(house, said[0], "I live in Rome")
        await note_edit(house, said[2], "my dentist is in Rome, note it")
        picker.picks("Ann lives in Rome")
        picker.picks("Ann has a dog")
        await house.say("I have a dog", edits=cat)  # the newest: it is answered (L-054)
        await house.say(*(str(n) for n in range(20)))
        await harvested(house, 2)
        kept = ["Ann has a dog", "Ann's dentist is in Lyon"]
        assert sorted(await live_texts(house)) == sorted(
            [*kept, "Ann keeps bees", "Ann lives in Rome"]
        )
        _, done = (await house.stores.changes.history(("fact",), SCOPE))[:2]
        await house.stores.undo.apply(done)
        merged_again = "Ann lives in Lyon and keeps bees"
        assert sorted(await live_texts(house)) == sorted([*kept, merged_again])
        (tidying,) = nights.built
        async with night_lock(house.stores.data_dir):
            async with house.database.transaction() as tx:
                begun = await house.stores.nights.begin(
                    tx, picker.clock.now().date(), "command", "", "learn"
                )
            assert begun is not None
            await tidying.run_night(begun)
        named = await house.stores.decisions.listed(house.database, begun.id, SCOPE)
        assert sorted(text for item in named for text in item.before) == [
            "Ann's dentist is in Lyon",
            "call the dentist in Lyon",
        ]


async def test_an_edited_message_becomes_pages_again(tmp_path: Path, model: ModelServer) -> None:
    """M-089: the next job of pages is shown its last wording, once, without the answer to the former."""
    Picker(model)
    async with talking(tmp_path, model, clock := HeldClock()) as house:
        (first, *_) = await house.say("I live in Lyon", "hello")
        kept = Consolidations(house.stores, clock)
        name = (await house.rows("SELECT conversation_id FROM inbox"))[0]["conversation_id"]
        assert len((await kept.unread(name)).rows) == 2
        async with house.database.transaction() as tx:
            await tx.execute(
                "INSERT INTO consolidations (job, conversation_id, raw, upto, casts, settled, at)"
                " VALUES ('job', ?, '', 9, 9, 1, '')",
                (name,),
            )
        assert (await kept.unread(name)).rows == ()
        await note_edit(house, first, "I live in Rome")
        [row] = (await kept.unread(name)).rows
        assert (row.body, row.answer) == ("I live in Rome", None)
