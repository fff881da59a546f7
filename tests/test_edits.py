"""Edits: a new text for the newest message is answered, any other is noted, none is one more (L-054)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.bot import Bot
from tests.world.bot import said as spoken
from tests.world.clock import NOON, FakeClock
from tests.world.model import Hang, ModelServer, own_words
from tests.world.parts import Idle
from tests.world.person import Person
from tests.world.proxy import Proxy, hand_over, pass_before, withhold
from tests.world.reading import (
    ANN,
    BOT,
    DIRECT,
    EDIT,
    EVE,
    GROUP,
    message_event,
    read_change,
    read_message,
)
from tests.world.scene import JS, NIO, NewAnybody, Scene
from tests.world.schema import open_migrated
from tests.world.user import CLIENT
from wintermute.conversation.replies import FIRST_REVERTED, FIRST_STAYS, REWORDED
from wintermute.ids import new_id
from wintermute.mailbox.inbox import InboxState
from wintermute.matrix.inbox import OUTBOX_KEY, RoomView
from wintermute.matrix.relations import Relations
from wintermute.messages import InboxKind, Incoming
from wintermute.owner import Owner
from wintermute.stores import Stores

Json = dict[str, Any]
NEW: Json = {"msgtype": "m.text", "body": "new"}
EDITED: Json = {**EDIT, "m.new_content": NEW}
FORWARDED: Json = {OUTBOX_KEY: {"by": BOT}}
BY_A_BOT: Json = {OUTBOX_KEY: {"by": ANN}}
ROOM = "!room"
MESSAGE = Incoming("$", ROOM, ANN, "Ann", "owner", "message", "text", NOON, direct=True)


@pytest.mark.parametrize(
    ("body", "room", "expected"),
    [
        ("new", DIRECT, ("message", "new")),
        (" /stop ", DIRECT, ("command", "/stop")),
        ("Wintermute: new", GROUP, ("message", "new")),
        ("new", GROUP, ("context", "new")),
    ],
)
def test_an_edit_is_read_as_if_its_new_text_was_said(
    body: str, room: RoomView, expected: tuple[str, str]
) -> None:
    """L-054, F-006: and says of which event it is the new text, also of something forwarded."""
    new = {"msgtype": "m.text", "body": body, "m.relates_to": {"event_id": "$else"}}
    event = message_event("* old", **{**EDIT, "m.new_content": {**new, **FORWARDED}}, **FORWARDED)
    found = read_change(event, room)
    assert found is not None
    assert (found.kind, found.body) == expected
    assert (found.event_id, found.edits, found.raw) == ("$one", "$old", event)
    assert read_message(event, room) is None


@pytest.mark.parametrize(
    "event",
    [
        message_event("* new", EVE, **EDITED),
        message_event("* new", BOT, **EDITED),
        message_event("* new", **EDIT),
        message_event("* new", **{**EDITED, "m.new_content": "new"}),
        message_event(
            "* new", **{**EDITED, "m.new_content": {"msgtype": "m.notice", "body": "new"}}
        ),
        message_event("* new", **{**EDITED, "m.new_content": {"msgtype": "m.text", "body": " "}}),
        message_event("* new", **{**EDITED, "m.new_content": EDITED}),
        message_event("* new", **{**EDITED, "m.relates_to": {"rel_type": "m.replace"}}),
        message_event(
            "* new", **{**EDITED, "m.relates_to": {"rel_type": "m.replace", "event_id": "$one"}}
        ),
        message_event(
            "* new", **{**EDITED, "m.relates_to": {"rel_type": "m.thread", "event_id": "$old"}}
        ),
        message_event("* new", **EDITED, **BY_A_BOT),
        message_event("* new", **{**EDITED, "m.new_content": {**NEW, **BY_A_BOT}}),
        message_event("* new", **EDITED) | {"type": "m.sticker"},
        message_event("* new", **EDITED) | {"state_key": ""},
        message_event("* new", **EDITED) | {"unsigned": {"redacted_because": {}}},
        message_event("gone") | {"content": {}},
    ],
)
def test_what_is_no_edit_of_an_allowed_person_is_nothing(event: Json) -> None:
    """L-054, X-004: of strangers and bots, without a text, about itself, taken back."""
    assert read_change(event) is None


@dataclass
class Desk:
    """The stores, and what they say of an edit."""

    stores: Stores
    clock: FakeClock
    relations: Relations
    conversation: str

    async def take(
        self,
        event_id: str,
        kind: InboxKind = "message",
        state: InboxState = "answered",
        body: str = "text",
        edits: str | None = None,
    ) -> None:
        """Something reached us a second after what came before it."""
        self.clock.advance(1)
        incoming = replace(MESSAGE, event_id=event_id, kind=kind, body=body, edits=edits)
        async with self.stores.database.transaction() as tx:
            assert await self.stores.inbox.store(tx, self.conversation, incoming, state)

    async def lock(self, event_id: str) -> None:
        """A message whose key is missing."""
        raw = {"sender": ANN, "type": "m.room.encrypted"}
        async with self.stores.database.transaction() as tx:
            await self.stores.inbox.store_locked(tx, self.conversation, ROOM, event_id, raw)

    async def branch(self, reason: Any) -> None:
        """A new branch begins."""
        self.clock.advance(1)
        async with self.stores.database.transaction() as tx:
            await self.stores.conversations.branch(tx, self.conversation, reason)

    async def verdict(self, edit: Incoming, seq: int | None = None) -> str:
        """What becomes of an edit."""
        async with self.stores.database.transaction() as tx:
            original = await self.relations.original(tx, edit)
            if original is None:
                return "nothing"
            if original.state == "locked":
                return "locked"
            newest = await self.relations.is_newest(tx, edit, original, seq)
            return "answered" if newest else "noted"


def edit_of(event_id: str, kind: InboxKind = "message", **changes: Any) -> Incoming:
    return replace(MESSAGE, event_id="$edit", kind=kind, edits=event_id, **changes)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = FakeClock()
    async with open_migrated(tmp_path / "test.db") as database:
        stores = Stores.of(database, tmp_path, Owner(ANN), clock, new_id, timezone="UTC")
        async with database.transaction() as tx:
            conversation = await stores.conversations.in_room(tx, ROOM, f"person:{ANN}")
        relations = Relations(stores, Idle())
        yield Desk(stores, clock, relations, conversation)


@pytest.mark.parametrize("state", ["waiting", "casting", "answered"])
async def test_the_newest_message_may_be_edited_again_and_again(
    desk: Desk, state: InboxState
) -> None:
    """L-054: answered or not; commands, context and events of ours are no messages."""
    await desk.take("$1", state=state)
    await desk.take("$2", "command", body="/status")
    await desk.take("$3", "context", "ignored")
    await desk.take("$4", "event")
    await desk.take("$5", state="ignored")
    assert await desk.verdict(edit_of("$1")) == "answered"
    await desk.take("$6", edits="$1")
    await desk.branch("edit")
    assert await desk.verdict(edit_of("$1")) == "answered"


@pytest.mark.parametrize("edits", [None, "$2"])
async def test_an_edit_of_an_older_message_is_noted(desk: Desk, edits: str | None) -> None:
    """L-054: also when the newer one is locked no more, or was edited itself."""
    await desk.take("$1")
    await desk.take("$2", state="waiting")
    if edits:
        await desk.take("$3", edits=edits)
    assert await desk.verdict(edit_of("$1")) == "noted"
    assert await desk.verdict(edit_of("$2")) == "answered"


@pytest.mark.parametrize("reason", ["new", "scope", "fork"])
async def test_a_message_out_of_view_is_an_older_one(desk: Desk, reason: str) -> None:
    """L-054: of another branch, however often the newest one was edited before."""
    await desk.take("$1")
    await desk.branch("edit")
    assert await desk.verdict(edit_of("$1")) == "answered"
    await desk.branch(reason)
    await desk.branch("edit")
    assert await desk.verdict(edit_of("$1")) == "noted"
    await desk.take("$2")
    assert await desk.verdict(edit_of("$2")) == "answered"


@pytest.mark.parametrize(
    ("body", "state", "expected"),
    [
        ("/new", "waiting", "noted"),
        ("/NEW please", "waiting", "noted"),
        ("/new", "answered", "answered"),  # its branch says so, and there is none
        ("/newer", "waiting", "answered"),
    ],
)
async def test_a_fresh_start_that_is_asked_for_counts(
    desk: Desk, body: str, state: InboxState, expected: str
) -> None:
    """L-054: although the queue has not come to it; one before the message does not matter."""
    await desk.take("$0", "command", "waiting", "/new")
    await desk.take("$1")
    await desk.take("$2", "command", state, body)
    assert await desk.verdict(edit_of("$1")) == expected


async def test_edits_from_and_into_commands_are_noted(desk: Desk) -> None:
    """L-054; and what no longer addresses us in a group."""
    await desk.take("$1", "command", body="/status")
    await desk.take("$2")
    assert await desk.verdict(edit_of("$1")) == "noted"
    assert await desk.verdict(edit_of("$2", "command")) == "noted"
    assert await desk.verdict(edit_of("$2", "context")) == "noted"


async def test_what_is_not_ones_own_message_to_us_cannot_be_edited(desk: Desk) -> None:
    """L-054: unknown, of somebody else, of another room, background, refused, an edit itself."""
    await desk.take("$1")
    await desk.take("$2", "context", "ignored")
    await desk.take("$3", "event")
    await desk.take("$4", state="ignored")
    await desk.take("$5", edits="$1")
    for event_id in ("$3", "$4", "$5", "$6"):
        assert await desk.verdict(edit_of(event_id)) == "nothing"
    assert await desk.verdict(edit_of("$2", "context")) == "nothing"
    assert await desk.verdict(edit_of("$2", "command")) == "nothing"
    assert await desk.verdict(edit_of("$1", sender="@bob:home")) == "nothing"
    assert await desk.verdict(edit_of("$1", room_id="!other")) == "nothing"
    assert await desk.verdict(edit_of("$1")) == "answered"


async def test_an_edit_that_addresses_us_makes_a_line_of_a_group_a_message(desk: Desk) -> None:
    """F-025: once, and of this branch; later edits of it are those of a message."""
    await desk.take("$1", "context", "ignored")
    await desk.take("$2", "context", "ignored")
    await desk.take("$3")
    assert await desk.verdict(edit_of("$1")) == "answered"
    async with desk.stores.database.transaction() as tx:
        found = await desk.stores.inbox.find(tx, "$1")
        assert found is not None
        await desk.stores.inbox.mark_addressed(tx, found.seq)
    await desk.take("$4", edits="$1")
    assert await desk.verdict(edit_of("$1")) == "answered"
    await desk.take("$5")
    assert await desk.verdict(edit_of("$1")) == "noted"
    await desk.branch("new")
    assert await desk.verdict(edit_of("$2")) == "noted"


async def test_an_edit_whose_key_came_late_has_its_old_place(desk: Desk) -> None:
    """L-054, X-021: another edit was read meanwhile; and what it edits may be locked itself."""
    await desk.lock("$1")
    assert await desk.verdict(edit_of("$1")) == "locked"
    await desk.take("$2")
    await desk.lock("$late")
    assert await desk.verdict(edit_of("$2"), seq=3) == "answered"
    await desk.take("$3", edits="$2")
    assert await desk.verdict(edit_of("$2"), seq=3) == "noted"


async def test_an_edit_is_noted_once_and_kept(desk: Desk) -> None:
    """L-048: who syncs again notes nothing twice."""
    edits, database = desk.stores.edits, desk.stores.database
    async with database.transaction() as tx:
        for text, is_new in (("some words", True), ("twice", False)):
            assert await edits.note(tx, "$e", "$m", desk.conversation, ANN, text) == is_new
    rows = await database.rows("SELECT edited, text FROM edits")
    assert [(row["edited"], row["text"]) for row in rows] == [("$m", "some words")]


def rows_of(bot: Bot) -> list[tuple[Any, ...]]:
    """What was stored as something to be answered."""
    found = bot.rows("SELECT event_id, kind, body, edits, state FROM inbox ORDER BY seq")
    return [tuple(row.values()) for row in found]


def notes_of(bot: Bot) -> list[tuple[Any, ...]]:
    return [
        tuple(r.values()) for r in bot.rows("SELECT edited, sender, text FROM edits ORDER BY seq")
    ]


async def settled(person: Person, room: str, word: str) -> str:
    """Whatever was sent before has been read when this is answered; its event id."""
    sent = await person.send(room, word)
    await person.wait_for(room, lambda m: m.body == f"echo: {word}")
    return sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encrypted", "anybody"),
    [
        pytest.param(False, NIO, id="plain"),
        pytest.param(True, NIO, id="encrypted"),
        pytest.param(True, JS, id="encrypted-js", marks=pytest.mark.slow),
    ],
    indirect=["anybody"],
)
@pytest.mark.breaks("edit")
async def test_only_an_edit_of_the_newest_message_is_to_be_answered(
    scene: Scene, encrypted: bool, anybody: NewAnybody
) -> None:
    """L-054, L-073: the others are noted; over a restart, and when all of it is delivered again."""
    ann, daemon, chat = await scene.met(await anybody("ann"), encrypted=encrypted)
    one = await settled(ann, chat, "one")
    two = await settled(ann, chat, "two")
    [token] = daemon.rows("SELECT value FROM single_values WHERE name = 'sync token'")
    await ann.edit(chat, one, "one, later")
    await ann.edit(chat, two, "/stop")
    again = await ann.edit(chat, two, "two, again")
    await ann.wait_for(chat, lambda m: m.body == "echo: two, again")
    await daemon.stop()
    await ann.edit(chat, again, "an edit of an edit")
    help_ = await ann.send(chat, "/help")
    await ann.edit(chat, help_, "help!")
    await ann.edit(chat, two, "two, after all")
    await daemon.start()
    await settled(ann, chat, "again")
    await daemon.stop()
    assert (
        daemon.change(
            "UPDATE single_values SET value = ? WHERE name = 'sync token'", token["value"]
        )
        == 1
    )
    await daemon.start()
    await settled(ann, chat, "end")
    assert rows_of(daemon)[:3] == [
        (one, "message", "one", None, "answered"),
        (two, "message", "two", None, "answered"),
        (again, "message", "two, again", two, "answered"),
    ]
    assert [(*row[1:3], row[3] == two) for row in rows_of(daemon)[3:]] == [
        ("command", "/help", False),
        ("message", "two, after all", True),
        ("message", "again", False),
        ("message", "end", False),
    ]
    assert notes_of(daemon) == [
        (one, ann.user_id, "one, later"),
        (two, ann.user_id, "/stop"),
        (help_, ann.user_id, "help!"),
    ]


async def test_an_edit_of_what_is_locked_waits_for_the_same_key(
    scene: Scene, proxy: Proxy, anybody: NewAnybody
) -> None:
    """L-054, X-021: neither is one message more when the key comes."""
    ann, daemon, chat = await scene.met(await anybody("ann", via=proxy.url), encrypted=True)
    withheld = withhold(proxy)
    one = await ann.send(chat, "one")
    two = await ann.send(chat, "two")
    await ann.edit(chat, one, "one, edited")
    await ann.edit(chat, two, "two, edited")
    proxy.before = pass_before
    await hand_over(ann, withheld)
    await ann.wait_for(chat, lambda m: m.body == "echo: two, edited")
    await settled(ann, chat, "end")
    assert [(*row[1:4],) for row in rows_of(daemon)] == [
        ("message", "one", None),
        ("message", "two", None),
        ("locked", "", None),
        ("message", "two, edited", two),
        ("message", "end", None),
    ]
    assert notes_of(daemon) == [(one, ann.user_id, "one, edited")]
    assert not daemon.rows("SELECT * FROM inbox WHERE state = 'locked'")


@pytest.mark.slow
@pytest.mark.parametrize("anybody", [NIO, JS], indirect=True)
async def test_an_edit_in_clear_is_refused_where_encryption_is_required(
    scene: Scene, anybody: NewAnybody
) -> None:
    """X-015, L-054: whoever runs the homeserver could have written it; it is told in the room."""
    ann, daemon, chat = await scene.met(
        await anybody("ann"), encrypted=True, matrix={"encryption": "required"}
    )
    old = await settled(ann, chat, "old")
    one = await settled(ann, chat, "one")
    for event_id in (old, one):
        new = {"msgtype": "m.text", "body": "obey"}
        relation = {"rel_type": "m.replace", "event_id": event_id}
        path = f"{CLIENT}/rooms/{chat}/send/m.room.message/clear{event_id[1:9]}"
        content = {**new, "m.new_content": new, "m.relates_to": relation}
        assert (await ann.api("PUT", path, content))[0] == 200
    await ann.wait_for(chat, lambda m: m.content["msgtype"] == "m.notice")
    await settled(ann, chat, "end")
    assert [row[2] for row in rows_of(daemon)] == ["old", "one", "end"]
    assert notes_of(daemon) == []
    answers = await spoken(ann, chat, daemon.user_id)
    assert [answer[:2] for answer in answers] == ["ec", "ec", "I ", "ec"]


@pytest.mark.breaks("edit")
async def test_an_edited_question_is_answered_once_more_with_its_new_text(scene: Scene) -> None:
    """L-054, X-062: in the place of the old one, which is asked no longer, answered or not."""
    ann, daemon, chat = await scene.direct()
    await settled(ann, chat, "before")
    sent = await settled(ann, chat, "how tall is Ben?")
    await ann.edit(chat, sent, "how tall is Ann?")
    await ann.wait_for(chat, lambda m: m.body == "* echo: how tall is Ann?")
    scene.model.script(Hang())
    hanging = await ann.send(chat, "how old?")
    await scene.model.request_arrived(4)
    await ann.edit(chat, hanging, "how young?")
    await ann.wait_for(chat, lambda m: m.body == "echo: how young?")
    await settled(ann, chat, "end")
    assert (await spoken(ann, chat, daemon.user_id))[2:] == [
        "* echo: how tall is Ann?",
        "echo: how young?",
        "echo: end",
    ]
    assert asked_texts(scene.model) == ["before", "how tall is Ann?", "how young?", "end"]


def asked_texts(model: ModelServer) -> Sequence[str]:
    """What the last request has of the person."""
    turns = [m for m in model.requests[-1].messages if m["role"] == "user"]
    return [own_words(turn["content"]).rsplit(": ")[-1] for turn in turns]


@pytest.mark.parametrize(
    ("first", "then", "redone"),
    [
        ("/remind tomorrow 9:00 call", "/tasks done task_1", True),
        ("/remnd tomorrow 9:00 call", "/remind tomorrow 9:00 call", True),  # it did nothing
        ("/remind tomorrow 9:00 call", "/undo", False),
        ("/undo", "/tasks", False),
    ],
)
async def test_only_a_command_that_can_be_taken_back_is_done_in_its_new_wording(
    desk: Desk, first: str, then: str, redone: bool
) -> None:
    """F-049: of the newest command alone; messages since do not matter."""
    await desk.take("$0", "command", body="/remind tomorrow 9:00 sleep")
    await desk.take("$1", "command", body=first)
    await desk.take("$2")
    async with desk.stores.database.transaction() as tx:
        for event_id, expected in (("$1", redone), ("$0", False)):
            edit = edit_of(event_id, "command", body=then)
            original = await desk.relations.original(tx, edit)
            assert original is not None
            assert await desk.relations.is_redone(tx, edit, original, None) is expected


async def test_the_new_wording_of_a_command_takes_the_place_of_what_it_did(scene: Scene) -> None:
    """F-049: each told in one reply; what was used, or cannot be taken back, is told in one line."""
    ann, daemon, chat = await scene.direct()

    async def answer(n: int) -> str:
        return (await ann.wait_for_count(chat, daemon.user_id, n + 1))[-1].body

    async def task() -> str:
        [task] = daemon.rows("SELECT id, content FROM tasks WHERE status = 'active'")
        assert task["content"] == "Call Anna"
        return str(task["id"])

    text = await settled(ann, chat, "hello")
    one = await ann.send(chat, "/remind tomorrow 09:00 Call Ana")
    await answer(1)
    await ann.edit(chat, one, "/remind tomorrow 10:00 Call Anna")
    assert (await answer(2)).startswith(f"{FIRST_REVERTED}\n\nI'll remind you")
    await task()
    await ann.edit(chat, one, "/remind whenever Call Anna")
    assert (await answer(3)).startswith(f"{FIRST_STAYS}\n\nI need a time and a text")
    id_ = await task()
    two = await ann.send(chat, f"/tasks done {id_}")
    await answer(4)
    await ann.edit(chat, two, f"/tasks snooze {id_}")
    assert (await answer(5)).startswith(f"{FIRST_REVERTED}\n\nAgain at ")
    daemon.pass_time(700)  # and it is said, so that the snooze was used
    await answer(6)
    for n, (event_id, new) in enumerate(((two, "/tasks"), (two, "never mind"), (text, "/help")), 7):
        await ann.edit(chat, event_id, new)
        assert await answer(n) == REWORDED
    assert not daemon.rows("SELECT 1 FROM tasks WHERE status = 'active'")
