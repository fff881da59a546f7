"""A night and the morning after it are killed at their steps: nothing is lost, told twice, or left half."""

import json
import signal

import pytest

from tests.tiers import tiered
from tests.world.bot import Bot, Json
from tests.world.consolidated import POND, Scribe
from tests.world.copied import copied, put_back
from tests.world.duties import signs
from tests.world.killing import LOOKS
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.nights import NO, SOON, YES, ended_night, is_morning
from tests.world.person import Person
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.shelf import Shelf
from wintermute.changes.decisions import Decision, Decisions
from wintermute.changes.nights import Nights
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.memory.fact import NewFact
from wintermute.owner import Owner
from wintermute.stores import Stores

BEFORE, AFTER = "executing", "operation"
ALIKE = ("Anna's boat is the red one by the lake", "Anna's boat is the red one by the old lake")
BOTH = "Anna's boat is the red one by the old lake"


@pytest.mark.quick("when it is sent")
@pytest.mark.breaks("tools", perhaps=True)  # after a night there is one tool more
@pytest.mark.parametrize(
    "steps",
    [
        [(BEFORE, "INSERT INTO night_reports_sent")],
        [(BEFORE, "UPDATE nights SET reported_at"), (BEFORE, "COMMIT")],
        [(BEFORE, "UPDATE nights SET reported_at"), (AFTER, "COMMIT")],
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
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, steps: list[tuple[str, str]]
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
    assert daemon.rows("SELECT state FROM answered_decisions") == [{"state": "done"}]


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


@pytest.mark.quick("before it is done", "planned")
@pytest.mark.parametrize(
    "steps",
    [
        [(AFTER, "INSERT INTO nights"), (AFTER, "COMMIT")],
        [(AFTER, "INSERT INTO decisions"), (AFTER, "COMMIT")],
        [(BEFORE, "UPDATE decisions"), (BEFORE, "COMMIT")],
        [(AFTER, "UPDATE decisions"), (AFTER, "COMMIT")],
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
    assert daemon.rows("SELECT state FROM answered_decisions") == [{"state": "done"}]
    assert len(daemon.rows("SELECT 1 FROM change_sets WHERE cause = 'night'")) == 1
    assert sum(merges(seen) is not None for seen in model.requests) == 1
    (item,) = daemon.rows("SELECT night || '#' || n AS id FROM answered_decisions")
    code, said = await daemon.command("night", "undo", str(item["id"]))
    assert code == 0, said
    live = daemon.rows("SELECT text FROM facts WHERE retired_at IS NULL ORDER BY seq")
    assert [each["text"] for each in live] == [*ALIKE]


TWO = {"one": "How the fax is fed.\n\nFace down.\n", "two": "How the fax is fed, again.\n\nUp.\n"}
ONE = "How the fax is fed.\n\nFace down, then up.\n"
AT_FILES = ("open", "os.rename", "fsync", "os.remove")


async def asked_to_merge(daemon: Bot, owner: Person) -> str:
    """A night that is over and asks whether one skill may stand for two; what it is called."""
    (daemon.data / "skills").mkdir(exist_ok=True)
    for name, text in TWO.items():
        (daemon.data / "skills" / f"{name}.md").write_text(text)
    files = [
        {"kind": "skill", "item": "two", "was": TWO["two"], "text": None},
        {"kind": "skill", "item": "one", "was": TWO["one"], "text": ONE},
    ]
    wanted = Decision("skill", (*TWO.values(),), ONE, "alike", {"files": files}, state="open")
    async with open_database(daemon.data / "wintermute.db") as database:
        nights = Nights(database, SystemClock())
        async with database.transaction() as tx:
            night = await nights.begin(tx, SystemClock().now().date(), "schedule")
            assert night is not None
            where = (night.id, f"person:{owner.user_id}", "skills")
            decisions = Decisions(database, SystemClock())
            [item] = await decisions.number(tx, where, [wanted])
            await nights.end(tx, night.id)
    return item.id


def skills(daemon: Bot) -> dict[str, str]:
    """Their texts by name."""
    return {file.stem: file.read_text() for file in (daemon.data / "skills").glob("*.md")}


@pytest.mark.slow
async def test_two_skills_become_one_or_stay_two_wherever_the_yes_is_killed(
    person: NewPerson, bot: NewBot, model: ModelServer
) -> None:
    """M-063, M-080: killed at each step at database or file, the next start goes on with it."""
    ann = await person("ann")
    daemon = await bot(ann, start=False, dreaming={"enabled": False})
    item = await asked_to_merge(daemon, ann)
    begin, tape = copied(daemon, "begin"), daemon.config.with_name("tape")

    def trigger(at: int) -> Json:
        paths = {"tape": str(tape), "folder": str(daemon.data)}
        return {
            **paths,
            "first": "SELECT * FROM answered_decisions WHERE night",
            "step": "",
            "at": at,
        }

    code, said = await daemon.command("night", "apply", item, trigger=trigger(0))
    assert (code, skills(daemon)) == (0, {"one": ONE}), said
    steps = tape.read_text().splitlines()
    changes = [n for n, step in enumerate(steps, 1) if not step.startswith(LOOKS)]
    at_files = [n for n in changes if steps[n - 1].startswith(AT_FILES)]
    last = next(n for n in reversed(changes) if steps[n - 1].startswith("UPDATE decisions"))
    assert {steps[n - 1].split()[0] for n in at_files} >= {"os.rename", "os.remove"}
    halves = 0
    for at in [n for n in changes if n <= last + 1]:
        put_back(daemon, begin)
        code, _ = await daemon.command("night", "apply", item, trigger=trigger(at))
        if code == 0:  # threads do not always take the same steps
            continue
        assert code == -signal.SIGKILL
        halves += skills(daemon) not in (TWO, {"one": ONE})
        code, said = await daemon.command("night", "run", "--phase", "export")
        assert code == 0, said
        (row,) = daemon.rows("SELECT state FROM answered_decisions")
        whole = {"open": TWO, "done": {"one": ONE}}
        assert skills(daemon) == whole[str(row["state"])], steps[at - 1]
        if row["state"] == "open":
            code, said = await daemon.command("night", "apply", item)
            assert (code, skills(daemon)) == (0, {"one": ONE}), said
        assert len(daemon.rows("SELECT 1 FROM changes WHERE kind = 'skill'")) == 2
        code, said = await daemon.command("night", "undo", item)
        assert (code, skills(daemon)) == (0, TWO), said
    assert halves > 0


async def test_what_was_killed_half_in_place_is_whole_when_its_words_are_forgotten(
    person: NewPerson, bot: NewBot, model: ModelServer
) -> None:
    """M-063, M-030: nobody knows afterwards what was to become of the other file."""
    ann = await person("ann")
    daemon = await bot(ann, start=False, dreaming={"enabled": False})
    item = await asked_to_merge(daemon, ann)
    assert (await daemon.command("memory", "add", "How the fax is fed"))[0] == 0
    killed: Json = {"tape": str(daemon.config.with_name("tape")), "folder": str(daemon.data)}
    killed |= {
        "first": "SELECT * FROM answered_decisions WHERE night",
        "step": "os.remove two.md",
        "at": 1,
    }
    code, _ = await daemon.command("night", "apply", item, trigger=killed)
    assert (code, skills(daemon)) == (-signal.SIGKILL, TWO | {"one": ONE})
    (fact,) = daemon.rows("SELECT id FROM facts")
    code, said = await daemon.command("memory", "forget", str(fact["id"]))
    assert code == 0, said
    assert skills(daemon) == {"one": ONE}
    assert daemon.rows("SELECT state, plan, after FROM answered_decisions") == [
        {"state": "done", "plan": "{}", "after": ""}
    ]


@pytest.mark.slow
async def test_a_daemon_goes_on_at_its_start_with_what_commands_were_killed_at(
    person: NewPerson, bot: NewBot, model: ModelServer
) -> None:
    """M-063: files that were half in place, and a night; also where no night comes by itself."""
    ann = await person("ann")
    daemon = await bot(ann, start=False, memory={"backend": "fts5"}, dreaming={"enabled": False})
    model.keyed(merges)
    await remembered(daemon, ann)
    item = await asked_to_merge(daemon, ann)
    at_files = [(BEFORE, "INSERT INTO changes"), (AFTER, "COMMIT"), (BEFORE, "UPDATE decisions")]
    killed = {"logger": "aiosqlite", "steps": at_files}
    code, _ = await daemon.command("night", "apply", item, trigger=killed)
    assert code == -signal.SIGKILL
    killed = {"logger": "aiosqlite", "steps": [(AFTER, "INSERT INTO nights"), (AFTER, "COMMIT")]}
    code, _ = await daemon.command("night", "run", "--phase", "dedup", trigger=killed)
    assert code == -signal.SIGKILL
    await daemon.start()

    def is_over() -> bool:
        states = daemon.rows("SELECT state FROM nights")
        return all(row["state"] == "done" for row in states)

    await daemon.until(is_over)
    assert skills(daemon) == {"one": ONE}
    live = daemon.rows("SELECT text FROM facts WHERE retired_at IS NULL")
    assert live == [{"text": BOTH}]
    assert daemon.rows("SELECT DISTINCT state FROM answered_decisions") == [{"state": "done"}]
    assert await daemon.stop() == 0


PAGES_KILLED = {
    "before they are kept": [(AFTER, "INSERT INTO decisions"), (BEFORE, "COMMIT")],
    "after it": [(AFTER, "INSERT INTO decisions"), (AFTER, "COMMIT")],
    "before the next step": [
        *((AFTER, "INSERT INTO decisions"), (AFTER, "COMMIT"), (BEFORE, "UPDATE nights"))
    ],
    "before it is settled": [(BEFORE, "UPDATE consolidations SET settled")],
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", tiered(PAGES_KILLED, ("before the next step",)))
async def test_pages_of_a_night_that_was_killed_are_items_once(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, steps: list[tuple[str, str]]
) -> None:
    """M-063, W-058: what was put in place before the kill, and nothing twice."""
    ann = await person("ann")
    daemon = await bot(ann, dreaming={"enabled": False})
    Shelf.make(daemon.data / "wiki")
    chat = await room(ann, daemon)
    Scribe(model)
    await ann.send(chat, "I planted 12 tulips")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await daemon.said_all()
    assert await daemon.stop() == 0
    daemon.change(LONG_AGO)
    words = ("night", "run", "--phase", "pages")
    code, _ = await daemon.command(*words, trigger={"logger": "aiosqlite", "steps": steps})
    assert code == -signal.SIGKILL
    code, said = await daemon.command(*words)
    assert code == 0, said
    assert daemon.rows("SELECT kind, state, after FROM answered_decisions") == [
        {"kind": "page", "state": "done", "after": POND}
    ]


LONG_AGO = "UPDATE inbox SET received_at = '2026-01-01T00:00:00.000000+00:00'"
SUMMARY = "They spoke of tulips, at length, and of nothing else that would matter to anybody."


@pytest.mark.slow
async def test_what_was_summed_up_before_a_kill_is_listed(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-063: it is not found too long again, and was done by that night."""
    ann = await person("ann")
    daemon = await bot(ann, dreaming={"enabled": False}, context={"keep_recent": 2})
    model.keyed(lambda seen: Text(SUMMARY) if "<history>" in str(seen.body) else None)
    chat = await room(ann, daemon)
    for n in range(7):
        await ann.send(chat, f"{n} " + "tulips " * 400)
        await ann.wait_for_count(chat, daemon.user_id, n + 1)
    await daemon.said_all()
    assert await daemon.stop() == 0
    daemon.change(LONG_AGO)
    words, steps = ("night", "run", "--phase", "folds"), [(AFTER, "INTO folds"), (AFTER, "COMMIT")]
    code, _ = await daemon.command(*words, trigger={"logger": "aiosqlite", "steps": steps})
    assert code == -signal.SIGKILL
    assert daemon.rows("SELECT state FROM answered_decisions") == []
    code, said = await daemon.command(*words)
    assert code == 0, said
    assert daemon.rows("SELECT summary FROM folds") == [{"summary": SUMMARY}]
    (first, _) = daemon.rows("SELECT id FROM nights ORDER BY seq")
    assert daemon.rows("SELECT night, kind, state FROM answered_decisions") == [
        {"night": first["id"], "kind": "fold", "state": "done"}
    ]
