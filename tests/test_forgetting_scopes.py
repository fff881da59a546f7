"""Forgetting takes nothing that is other people's, and of one's own no more than what says it (M-030)."""

from pathlib import Path
from typing import Any

import pytest

from tests.world.forgetting import IN_CLUB, deliver, forget_all, forgotten, learn, said_by
from tests.world.harvested import Picker, harvested
from tests.world.house import ANN, ROOM, SCOPE, House
from tests.world.model import ModelServer, Text
from tests.world.redacted import take_back
from wintermute.changes.change_sets import Reason
from wintermute.commands.forgetting import FORGETTING
from wintermute.matrix.relations import Relations

WORD = "zimtkanarie"
FACT = f"The bird is a {WORD}"
BEN, HIS = "@ben:test", "!ben:test"
BENS: dict[str, Any] = {"room": HIS, "sender": BEN, "name": "Ben", "origin": "other"}


async def unsay(house: House) -> None:
    """Our last answer in Ann's room is taken back, as a sync brings it."""
    sent = await house.rows(
        "SELECT p.event_id FROM outbox_parts p JOIN outbox o ON o.id = p.outbox_id"
        " WHERE o.room_id = ? ORDER BY o.seq",
        ROOM,
    )
    async with house.database.transaction() as tx:
        await Relations(house.stores, house.rooms).erase_answers(tx, ROOM, [sent[-1]["event_id"]])


@pytest.fixture
def house(prompted_house: House) -> House:
    return prompted_house


async def test_the_same_words_of_another_are_theirs(house: House, model: ModelServer) -> None:
    """M-010, M-030: message, answer, record and memory; it cannot be used to erase what others have."""
    await house.incoming(FACT, **BENS)
    await house.said(1, HIS)
    await house.deliver(HIS)
    await learn(house, model, "Remember something of mine", FACT)
    assert await forget_all(house) == FORGETTING
    assert await said_by(house, BEN) == [FACT]
    assert await house.spoken(HIS) == [f"echo: {FACT}"]
    casts = await house.rows("SELECT intent, result FROM casts ORDER BY seq")
    assert [cast["intent"] for cast in casts] == [FACT, ""]
    turns = await house.rows("SELECT utterance FROM turns ORDER BY seq")
    assert [turn["utterance"] for turn in turns] == [f"echo: {FACT}", "", ""]


async def test_an_answer_taken_back_was_given_once(house: House, model: ModelServer) -> None:
    """M-030: what we said to another, or at another time, in the same words is another answer."""
    night = "Good night, sleep well!"
    model.script(*[Text(night)] * 3)
    await house.incoming("night", **BENS)
    await house.said(1, HIS)
    for number in (1, 2):
        await house.incoming("bye")
        await house.said(number)
        await deliver(house)
    await house.deliver(HIS)
    await unsay(house)
    await forgotten(house)
    assert await house.spoken(HIS) == [night]
    assert await house.spoken() == [night, ""]
    turns = await house.rows("SELECT utterance FROM turns ORDER BY seq")
    assert [turn["utterance"] for turn in turns] == [night, night, ""]


async def test_commands_and_rules_of_others_outlive_a_deleted_message(house: House) -> None:
    """M-030, T-008: what is said by a command is said, also by the same person."""
    text = "Water the old plants"
    command = f"/remind tomorrow 09:00 {text}"
    his = house.stores.places.core(f"person:{BEN}")
    his.parent.mkdir(parents=True)
    his.write_text(f"# RULE\n- {text} every day\n")
    await house.incoming(command, **BENS)
    await house.said(1, HIS)
    await house.deliver(HIS)
    mine = await house.incoming(text)
    await house.say(command)
    await deliver(house)
    await take_back(house, mine)
    await forgotten(house)
    assert await said_by(house, BEN) == [command]
    assert await said_by(house, ANN) == ["", command]
    assert text in (await house.spoken(HIS))[0]
    assert his.read_text() == f"# RULE\n- {text} every day\n"


async def test_of_what_a_memory_came_from_the_rest_keeps_its_text(picker: Picker) -> None:
    """M-030: a message that shares words with it was not what told it."""
    told, other = "I likes tea", "my boss likes the new tea-room contract, the number is 4711"
    picker.picks("Ann likes tea.")
    async with picker.talking() as house:
        await house.say(told, other, *(f"n{n}" for n in range(18)))
        await harvested(house)
        await deliver(house)
        (fact,) = await house.stores.facts.live(SCOPE)
        assert len(fact.origins) == 2
        await forget_all(house)
        assert (await said_by(house, ANN))[:3] == ["", other, "n0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "entry", "left"),
    [
        pytest.param(
            [f"I have a {WORD}", "Its name is Hugo", "n1"],
            f"Ann has a {WORD} named Hugo.",
            ["", "", "n1"],
            id="over two messages",
        ),
        pytest.param(
            ["Mein Vogel Hugo singt", "Ich war heute im Garten", "n1"],
            "Anns Vogel heißt Hugo.",
            ["", "Ich war heute im Garten", "n1"],
            id="in other words",
        ),
    ],
)
async def test_what_was_told_otherwise_than_it_is_kept_is_found(
    picker: Picker, told: list[str], entry: str, left: list[str]
) -> None:
    """M-030: over several messages, or in other words."""
    picker.picks(entry)
    async with picker.talking() as house:
        await house.say(*told, *(f"more {n}" for n in range(17)))
        await harvested(house)
        await deliver(house)
        await forget_all(house)
        assert (await said_by(house, ANN))[:3] == left


async def test_who_asked_is_told_what_still_says_it_and_what_to_do(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """M-030: task, skill, file and copy by their names, once, and not a word of what is gone."""
    await learn(house, model, "Remember the bird", FACT)
    await house.say(f"/remind tomorrow 09:00 {FACT}")
    why = Reason("tool", SCOPE)
    await house.stores.skills.write(why, "birds", "How to feed", f"{FACT}: feed it")
    (tmp_path / "notes.txt").write_text(FACT)
    (tmp_path / "wintermute.db.before-0001").write_bytes(b"")
    await forget_all(house)
    (task,) = await house.stores.tasks.listed(None)
    told = (await house.spoken())[-1]
    assert told.startswith(
        f"The text that I forgot is still in the task {task.number}"
        f" (`/tasks cancel {task.number}`), the skill `birds` (ask me to change it), the file"
        " `notes.txt` (edit it). Please change it there yourself. `wintermute.db.before-0001`, from before an upgrade, may hold it"
    )
    assert WORD not in told
    await house.say(f"/tasks cancel {task.number}")
    await deliver(house)
    before = await house.spoken()
    other = await house.incoming("Something else")
    await house.said(len(before) + 1)
    await deliver(house)
    await take_back(house, other)
    await forgotten(house)
    last = (await house.spoken())[len(before) :]
    assert [said[:35] for said in last] == ["", "`wintermute.db.before-0001`, from be"[:35]]


async def test_what_still_says_a_deleted_message_is_told_to_one_alone(house: House) -> None:
    """M-010, M-030: the others in a room are not told who deleted what."""
    in_club = {"room": ROOM, "scope": IN_CLUB["scope"]}
    for about in (in_club, {}):
        why = Reason("tool", SCOPE)
        await house.stores.skills.write(why, "birds", "How to feed", f"{FACT}: feed it")
        before = len(await house.spoken())
        gone = await house.incoming(FACT, **about)
        await house.said(before + 1)
        await deliver(house)
        await take_back(house, gone)
        await forgotten(house)
    said = await house.spoken()
    assert said[:2] == ["", ""]
    assert len(said) == 3
    assert "`birds`" in said[2]
