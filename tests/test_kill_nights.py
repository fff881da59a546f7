"""A night and the morning after it are killed at their steps: nothing is lost, told twice, or left half."""

import json
import signal

import pytest

from tests.world.bot import Bot
from tests.world.duties import signs
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.person import Person
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import Message
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.memory.fact import NewFact
from wintermute.night.nights import Nights, Planned
from wintermute.owner import Owner
from wintermute.stores import Stores

BEFORE, AFTER = "executing", "operation"
YES, NO = "\N{WHITE HEAVY CHECK MARK}", "\N{CROSS MARK}"
SOON = {"enabled": False, "hour": 0, "minute": 0, "report_at": "00:01"}
OLD = "How the fax is fed.\n\nFace down.\n"
ALIKE = ("Anna's boat is the red one by the lake", "Anna's boat is the red one by the old lake")
BOTH = "Anna's boat is the red one by the old lake"


def is_morning(said: Message) -> bool:
    return "The question: Remove this skill? “How the fax is fed." in said.body


async def ended_night(daemon: Bot, owner: Person) -> None:
    """A night that is over and asks whether a skill may go."""
    (daemon.data / "skills").mkdir(exist_ok=True)
    (daemon.data / "skills" / "old.md").write_text(OLD)
    files = [{"kind": "skill", "item": "old", "was": OLD, "text": None}]
    wanted = Planned("skill", (OLD,), "", "not read for 90 days", {"files": files}, question=True)
    async with open_database(daemon.data / "wintermute.db") as database:
        nights = Nights(database, SystemClock())
        async with database.transaction() as tx:
            night = await nights.begin(tx, SystemClock().now().date(), "schedule")
            assert night is not None
            await nights.plan(tx, night.id, f"person:{owner.user_id}", "skills", wanted, "open")
            await nights.end(tx, night.id)


@pytest.mark.parametrize(
    "steps",
    [
        [(BEFORE, "INSERT INTO night_told")],
        [(BEFORE, "UPDATE nights SET told_at"), (BEFORE, "COMMIT")],
        [(BEFORE, "UPDATE nights SET told_at"), (AFTER, "COMMIT")],
        [(BEFORE, "INSERT INTO outbox_parts"), (AFTER, "COMMIT")],
        [(BEFORE, "UPDATE outbox_parts SET state"), (BEFORE, "COMMIT")],
    ],
    ids=[
        "before it is stored",
        "before its commit",
        "after it",
        "when it is sent",
        "when it is said",
    ],
)
async def test_the_morning_is_told_once_and_its_sign_answers(
    person: NewPerson,
    bot: NewBot,
    room: NewRoom,
    model: ModelServer,
    steps: list[tuple[str, str]],
) -> None:
    """M-078, M-079: the message exactly once over a kill, ✅ under it does what it asks."""
    ann = await person("ann")
    daemon = await bot(ann, dreaming=SOON)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await daemon.said_all()
    assert await daemon.stop() == 0
    await ended_night(daemon, ann)
    await daemon.start({"logger": "aiosqlite", "steps": steps}, ready=False)
    assert await daemon.ended() == -signal.SIGKILL
    await daemon.start()
    said = await ann.wait_for(chat, is_morning)
    await daemon.said_all()
    assert sum(map(is_morning, ann.messages(chat, daemon.user_id))) == 1
    await ann.until(lambda: sum(signs(ann, chat).get(said.event_id, {}).values()) >= 2)
    assert signs(ann, chat) == {said.event_id: {YES: 1, NO: 1}}
    await ann.react(chat, said.event_id, YES)
    await ann.wait_for(chat, lambda each: "done: skill" in each.body)
    assert not (daemon.data / "skills" / "old.md").exists()
    await ann.react(chat, said.event_id, NO)
    await ann.send(chat, "well?")
    await ann.wait_for(chat, lambda each: "well?" in each.body and each.sender == daemon.user_id)
    assert daemon.rows("SELECT state FROM night_items") == [{"state": "done"}]


async def remembered(daemon: Bot, owner: Person) -> None:
    """Two that are alike, and were brought together with all others before."""
    scope, clock = f"person:{owner.user_id}", SystemClock()
    async with open_database(daemon.data / "wintermute.db") as database:
        shared = (database, daemon.data, Owner(owner.user_id), clock, new_id)
        stores = Stores.of(*shared, timezone="UTC", memory=Memory(backend="fts5"))
        async with database.transaction() as tx:
            await stores.facts.take(tx, [NewFact(scope, text, "harvest") for text in ALIKE])


def merges(seen: Seen) -> Step | None:
    """What a good model says to two that are alike."""
    asked = json.dumps(seen.body["messages"], ensure_ascii=False)
    return Text(json.dumps({"text": BOTH})) if "<entries>" in asked else None


@pytest.mark.parametrize(
    "steps",
    [
        [(AFTER, "INSERT INTO nights"), (AFTER, "COMMIT")],
        [(AFTER, "INSERT INTO night_items"), (AFTER, "COMMIT")],
        [(BEFORE, "UPDATE night_items"), (BEFORE, "COMMIT")],
        [(AFTER, "UPDATE night_items"), (AFTER, "COMMIT")],
        [(BEFORE, "UPDATE nights SET state")],
    ],
    ids=["begun", "planned", "before it is done", "done", "before its end"],
)
async def test_a_night_that_was_killed_is_ended_by_the_next_and_nothing_is_doubled(
    person: NewPerson, bot: NewBot, model: ModelServer, steps: list[tuple[str, str]]
) -> None:
    """M-063: one merge, one change set, asked once; the way back leads to both."""
    ann = await person("ann")
    daemon = await bot(ann, start=False, memory={"backend": "fts5"}, dreaming={"enabled": False})
    model.keyed(merges)
    await remembered(daemon, ann)
    code, _ = await daemon.command(
        *("night", "run", "--phase", "dedup"), trigger={"logger": "aiosqlite", "steps": steps}
    )
    assert code == -signal.SIGKILL
    code, said = await daemon.command("night", "run", "--phase", "dedup")
    assert code == 0, said
    live = daemon.rows("SELECT text FROM facts WHERE retired_at IS NULL")
    assert live == [{"text": BOTH}]
    assert daemon.rows("SELECT state, count(*) AS n FROM nights GROUP BY state") == [
        {"state": "done", "n": 2}
    ]
    assert daemon.rows("SELECT state FROM night_items") == [{"state": "done"}]
    assert len(daemon.rows("SELECT 1 FROM change_sets WHERE cause = 'night'")) == 1
    assert sum(merges(seen) is not None for seen in model.requests) == 1
    (item,) = daemon.rows("SELECT night || '#' || n AS id FROM night_items")
    code, said = await daemon.command("night", "undo", str(item["id"]))
    assert code == 0, said
    live = daemon.rows("SELECT text FROM facts WHERE retired_at IS NULL ORDER BY seq")
    assert [each["text"] for each in live] == [*ALIKE]
