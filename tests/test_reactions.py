"""Reactions: thumbs on an answer are rewards, a stop sign ends what is at work (X-026).

Signs on a reminder say what becomes of it (T-063).
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.world.chats import echoed_each
from tests.world.clock import NOON, FakeClock
from tests.world.model import Hang, ModelServer, Text
from tests.world.parts import Idle
from tests.world.reading import (
    ANN,
    BOB,
    BOT,
    DIRECT,
    EVE,
    GROUP,
    POLICY,
    REMINDER_ROWS,
    read_sign,
    room_of,
    sign_event,
)
from tests.world.scene import JS, NIO, NewAnybody, Scene
from tests.world.schema import open_migrated
from wintermute.db import Transaction
from wintermute.ids import new_id
from wintermute.matrix.inbox import Policy, RoomView
from wintermute.matrix.relations import Reaction, ReactionMeaning, Relations, meaning
from wintermute.messages import Incoming
from wintermute.owner import Owner
from wintermute.stores import Stores

Json = dict[str, Any]
UP, DOWN, STOP = "\N{THUMBS UP SIGN}", "\N{THUMBS DOWN SIGN}", "\N{OCTAGONAL SIGN}"
ROOM = "!room"
MESSAGE = Incoming("$", ROOM, ANN, "Ann", "owner", "message", "text", NOON, direct=True)
LONG = "\n\n".join(f"Paragraph {n}. " + "Words go on and on. " * 30 for n in range(40))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("\U0001f44d", "good"),
        ("\U0001f44d\ufe0f", "good"),
        ("\U0001f44d\U0001f3fe", "good"),
        ("\U0001f44e\U0001f3fb", "bad"),
        ("\U0001f6d1", "stop"),
        ("\U0001f6d1\ufe0e", "stop"),
        ("\u2705", "done"),
        ("\u2705\ufe0f", "done"),
        ("\U0001f4a4", "snooze"),
        ("\u23f0", "tomorrow"),
        ("\u23f0\ufe0f", "tomorrow"),
        ("\u274c", "cancel"),
        ("\u274c\ufe0e", "cancel"),
        ("\u2714\ufe0f", None),
        ("\u2705\u274c", None),
        ("\u2764\ufe0f", None),
        ("\ufe0f", None),
        ("\U0001f44d\U0001f44d", None),
        ("stop", None),
        ("", None),
    ],
)
def test_a_sign_means_the_same_in_every_presentation(key: str, expected: str | None) -> None:
    """X-026."""
    assert meaning(key) == expected
    found = read_sign(sign_event(key))
    assert (found and found.meaning) == expected


@pytest.mark.parametrize("room", [DIRECT, GROUP])
def test_a_reaction_carries_the_command_it_may_be(room: RoomView) -> None:
    """X-026: a command of its own, by the reaction's id, in a group without our name too."""
    found = read_sign(sign_event("\U0001f6d1", BOB), room_of(BOB) if room is DIRECT else room)
    assert found is not None
    assert found.target == "$old"
    command = found.command
    assert (command.event_id, command.sender, command.origin) == ("$sign", BOB, "other")
    assert (command.kind, command.body, command.direct) == ("command", "/stop", room is DIRECT)
    assert command.raw == sign_event("\U0001f6d1", BOB)


@pytest.mark.parametrize(
    "event",
    [
        sign_event("\U0001f44d", EVE),
        sign_event("\U0001f44d", BOT),
        sign_event("\U0001f44d", rel_type="m.reference"),
        sign_event("\U0001f44d", event_id="$sign"),
        sign_event("\U0001f44d", event_id=""),
        sign_event("\U0001f44d", event_id="x" * 256),
        sign_event("\U0001f44d", event_id=["$old"]),
        sign_event(["\U0001f44d"]),
        sign_event(None),
        sign_event("\U0001f44d") | {"type": "m.room.message"},
        sign_event("\U0001f44d") | {"content": {}},
        sign_event("\U0001f44d") | {"content": {"m.relates_to": "$old"}},
        sign_event("\U0001f44d") | {"state_key": ""},
        sign_event("\U0001f44d") | {"unsigned": {"redacted_because": {}}},
        sign_event("\U0001f44d") | {"event_id": None},
    ],
)
def test_other_reactions_mean_nothing(event: Json) -> None:
    """X-003, X-026: of strangers, taken back, about themselves, malformed."""
    assert read_sign(event) is None
    elsewhere = Policy(Owner(ANN), POLICY.allowed, frozenset({"!other"}), True, POLICY.commands)
    assert read_sign(sign_event("\U0001f44d"), DIRECT, elsewhere) is None


def reaction(
    mark: ReactionMeaning, target: str, event_id: str = "$sign", room: str = ROOM
) -> Reaction:
    command = replace(MESSAGE, event_id=event_id, room_id=room, kind="command", body="/stop")
    return Reaction(target, mark, command)


@dataclass
class Desk:
    stores: Stores
    follow: Relations

    async def body(self, tx: Transaction, seen: Reaction) -> str | None:
        """The command that a reaction is taken as."""
        found = await self.follow.command(tx, seen)
        return found.body if found else None


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = FakeClock()
    async with open_migrated(tmp_path / "test.db") as database:
        stores = Stores.of(database, tmp_path, Owner(ANN), clock, new_id, timezone="Europe/Berlin")
        yield Desk(stores, Relations(stores, Idle()))


async def answered(stores: Stores, turns: int) -> list[str]:
    """Ann asked, and was told in two parts what a cast of so many turns found: `$a0` and `$a1`."""
    async with stores.database.transaction() as tx:
        conversation = await stores.conversations.in_room(tx, ROOM, f"person:{ANN}")
        await stores.inbox.store(tx, conversation, replace(MESSAGE, event_id="$q"), "answered")
        branch = await stores.conversations.current_branch(tx, conversation)
        cast = await stores.casts.start(tx, branch, "$q", "text", "owner", {})
        ids = [f"turn{n}" for n in range(turns)]
        for name in ids:
            await tx.execute(
                "INSERT INTO turns (id, cast_id, entity_id, utterance, calls, finish_reason,"
                " backend, model, tokens_in, tokens_out, tokens_cached, ms, created_at)"
                " VALUES (?, ?, 'e', '', '[]', 'stop', '', '', 0, 0, 0, 0, '')",
                (name, cast.id),
            )
        said = await stores.outbox.enqueue(
            tx, conversation, "an answer", cast_id=cast.id, meant_for=""
        )
        notice = await stores.outbox.enqueue(
            tx, conversation, "a notice", kind="notice", meant_for=""
        )
    for outbox_id, names in ((said, ("$a0", "$a1")), (notice, ("$n",))):
        contents: list[tuple[str, Json]] = [(f"txn{name}", {}) for name in names]
        parts = await stores.outbox.store_parts(outbox_id, contents, "DEVICE")
        for part, name in zip(parts, names, strict=True):
            await stores.outbox.mark_sent(part, name)
    return ids


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_thumb_rewards_the_last_turn_of_the_answer(desk: Desk, turns: int) -> None:
    """X-026, L-073: on any of its parts, once for each event; never a command."""
    await answered(desk.stores, turns)
    async with desk.stores.database.transaction() as tx:
        for seen in (
            reaction("good", "$a0", "$1"),
            reaction("bad", "$a1", "$2"),
            reaction("good", "$a0", "$1"),
            reaction("good", "$n", "$3"),
            reaction("good", "$q", "$4"),
            reaction("good", "$unknown", "$5"),
            reaction("good", "$a0", "$6", "!another"),
        ):
            assert await desk.body(tx, seen) is None
    rows = await desk.stores.database.rows("SELECT * FROM rewards ORDER BY event_id")
    found = [(r["event_id"], r["turn_id"], r["value"], r["sender"]) for r in rows]
    last = f"turn{turns - 1}"
    assert found == ([("$1", last, 1, ANN), ("$2", last, -1, ANN)] if turns else [])


async def test_a_stop_sign_counts_on_our_words_and_on_what_is_at_work(desk: Desk) -> None:
    """X-026: in its room; on an edited message while its new text is at work."""
    stores = desk.stores
    await answered(stores, 1)
    async with stores.database.transaction() as tx:
        conversation = await stores.conversations.in_room(tx, ROOM, f"person:{ANN}")
        for event_id, state, edits in (
            ("$waiting", "waiting", None),
            ("$ignored", "ignored", None),
            ("$edit", "waiting", "$q"),
        ):
            row = replace(MESSAGE, event_id=event_id, edits=edits)
            assert await desk.body(tx, reaction("stop", event_id)) is None
            await stores.inbox.store(tx, conversation, row, state)  # type: ignore[arg-type]  # the literals
        counted = ["$a0", "$a1", "$n", "$waiting", "$edit", "$q"]
        for target in (*counted, "$ignored", "$unknown"):
            expected = "/stop" if target in counted else None
            assert await desk.body(tx, reaction("stop", target)) == expected
            assert await desk.body(tx, reaction("stop", target, room="!another")) is None
        await stores.inbox.set_state(tx, "$edit", "casting")
        assert await desk.body(tx, reaction("stop", "$q")) == "/stop"
        await stores.inbox.set_state(tx, "$edit", "answered")
        assert await desk.body(tx, reaction("stop", "$q")) is None
    assert not await stores.database.rows("SELECT * FROM rewards")


async def test_a_sign_on_a_reminder_counts_once(desk: Desk) -> None:
    """T-063: each of them, on any part of it, whoever was first; in its room, on nothing else."""
    await answered(desk.stores, 1)
    async with desk.stores.database.transaction() as tx:
        signs: tuple[ReactionMeaning, ...] = ("done", "snooze", "tomorrow", "cancel")
        for mark in signs:
            assert await desk.body(tx, reaction(mark, "$a0")) is None
        for sql in REMINDER_ROWS:
            await tx.execute(sql)
        for n, mark in enumerate(signs):
            for target in ("$n", "$q", "$unknown"):
                assert await desk.body(tx, reaction(mark, target)) is None
            assert await desk.body(tx, reaction(mark, "$a0", room="!another")) is None
            taken = await desk.follow.command(tx, reaction(mark, f"$a{n % 2}", f"${mark}"))
            body = f"/tasks {mark} task_1"
            assert taken == replace(MESSAGE, event_id=f"${mark}", kind="command", body=body)
            assert await desk.body(tx, reaction(mark, "$a0", f"${mark}")) is None
            assert await desk.body(tx, reaction(mark, "$a1", "$of-another")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encryption", "anybody"),
    [("preferred", NIO), ("required", NIO), pytest.param("required", JS, marks=pytest.mark.slow)],
    indirect=["anybody"],
)
async def test_thumbs_in_an_encrypted_room_are_kept(
    scene: Scene, encryption: str, anybody: NewAnybody, model: ModelServer
) -> None:
    """X-026: reactions are never encrypted; taking one back undoes nothing; strangers have none."""
    ann, eve = await anybody("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, matrix={"encryption": encryption})
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    model.script(Text(LONG))
    asked = await ann.send(chat, f"{daemon.user_id}: tell")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM outbox")))
    await daemon.said_all()
    rows = daemon.rows("SELECT event_id FROM outbox_parts ORDER BY n")
    parts = [row["event_id"] for row in rows]
    assert len(parts) > 2
    up = await ann.react(chat, parts[0], UP + "\ufe0f")
    down = await ann.react(chat, parts[-1], DOWN)
    await eve.react(chat, parts[0], DOWN)
    await ann.react(chat, asked, UP)
    await ann.react(chat, parts[1], "\N{HEAVY BLACK HEART}")
    await daemon.restart()
    await ann.redact(chat, up)  # only now, for one not yet read would come without its sign
    await ann.send(chat, f"{daemon.user_id}: end")
    await ann.wait_for(chat, lambda m: m.body.endswith("): end") and m.sender == daemon.user_id)
    [turn] = daemon.rows("SELECT id FROM turns ORDER BY seq LIMIT 1")
    assert daemon.rows("SELECT turn_id, value, sender, event_id FROM rewards") == [
        {"turn_id": turn["id"], "value": value, "sender": ann.user_id, "event_id": event}
        for value, event in ((1, up), (-1, down))
    ]
    assert len(ann.messages(chat, daemon.user_id)) == len(parts) + 1
    assert len(model.requests) == 2


@pytest.mark.quick("required")
@pytest.mark.alone
@pytest.mark.parametrize("encryption", ["preferred", "required"])
async def test_a_stop_sign_ends_the_answer_at_once(scene: Scene, encryption: str) -> None:
    """X-026, L-023: on the question or on anything we said, within a second, told once."""
    ann, daemon, chat = await scene.direct(encrypted=True, matrix={"encryption": encryption})
    scene.model.script(Hang(), Hang())
    first = await ann.send(chat, "one")
    await scene.model.request_arrived(1)
    signs = [await ann.react(chat, first, STOP)]
    [told] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert told.body == "Stopped."
    await daemon.said_all()

    await ann.send(chat, "two")
    await scene.model.request_arrived(2)
    await ann.react(chat, first, STOP + "\ufe0f")  # answered: no longer at work
    signs.append(await ann.react(chat, told.event_id, STOP))
    await ann.wait_for_count(chat, daemon.user_id, 2)
    await echoed_each(ann, chat, "three")

    bodies = [m.body for m in ann.messages(chat, daemon.user_id)]
    assert bodies == ["Stopped.", "Stopped.", "echo: three"]
    stops = daemon.rows("SELECT * FROM inbox WHERE kind = 'command' ORDER BY seq")
    assert [(row["event_id"], row["body"]) for row in stops] == [
        (event_id, "/stop") for event_id in signs
    ]
    ended = daemon.rows("SELECT ended_at FROM casts WHERE reason = 'stopped' ORDER BY seq")
    for cast, row in zip(ended, stops, strict=True):
        took = moment(cast["ended_at"]) - moment(row["received_at"])
        assert 0 <= took.total_seconds() < 1


def moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
