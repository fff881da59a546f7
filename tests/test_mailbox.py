"""What comes in is stored once, what goes out is said once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest

from tests.world.clock import NOON, FakeClock
from tests.world.schema import open_migrated
from wintermute.db import Database, IntegrityError, Transaction
from wintermute.ids import new_id
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Inbox, InboxState
from wintermute.mailbox.notices import Notices
from wintermute.mailbox.outbox import NEXT, LateNote, Outbox, Outgoing, SentMessage
from wintermute.mailbox.rooms import KnownRooms
from wintermute.messages import InboxKind, Incoming

P = ParamSpec("P")
T = TypeVar("T")
ROOM = "!room:test"
HOUR = timedelta(hours=1)
SOON = 3600.0
EVER = NOON - HOUR
MESSAGE = Incoming(
    "$1", ROOM, "@ann:test", "Ann", "owner", "message", "hello", NOON, direct=False, raw={"a": 1}
)


@dataclass
class Mailbox:
    database: Database
    clock: FakeClock
    inbox: Inbox
    outbox: Outbox
    rooms: KnownRooms
    conversation: str
    count: int = 0

    async def store(
        self, kind: InboxKind = "message", *, state: InboxState = "waiting", by_bot: bool = False
    ) -> int:
        """A new event of a kind; its place."""
        self.count += 1
        body = "/stop" if kind == "command" else f"line {self.count}"
        incoming = replace(MESSAGE, event_id=f"$e{self.count}", kind=kind, body=body, by_bot=by_bot)
        async with self.database.transaction() as tx:
            assert await self.inbox.store(tx, self.conversation, incoming, state)
        row = await self.database.row("SELECT max(seq) AS seq FROM inbox")
        assert row is not None
        return int(row["seq"])

    async def of(self, tx: Transaction, room: str) -> str:
        """The conversation that is held in a room."""
        return await Conversations(self.database, self.clock, new_id).in_room(tx, room, "room")

    async def say(self, body: str, room: str = ROOM) -> str:
        async with self.database.transaction() as tx:
            return await self.outbox.enqueue(tx, await self.of(tx, room), body, meant_for="")

    async def write(
        self,
        step: Callable[Concatenate[Transaction, P], Awaitable[T]],
        *args: P.args,
        **more: P.kwargs,
    ) -> T:
        """Take one step in a transaction of its own."""
        async with self.database.transaction() as tx:
            return await step(tx, *args, **more)

    async def next(self, room: str = ROOM) -> Outgoing:
        """Find what is to be said next in a room."""
        out = await self.outbox.next(self.conversation, room)
        assert out is not None
        return out


@pytest.fixture
async def mailbox(tmp_path: Path) -> AsyncIterator[Mailbox]:
    clock = FakeClock()
    async with open_migrated(tmp_path / "test.db") as database:
        async with database.transaction() as tx:
            conversation = await Conversations(database, clock, new_id).in_room(tx, ROOM, "room")
        inbox, outbox = Inbox(database, clock), Outbox(database, clock, new_id)
        rooms = KnownRooms(database, clock)
        yield Mailbox(database, clock, inbox, outbox, rooms, conversation)


async def test_an_event_delivered_twice_is_stored_once(mailbox: Mailbox) -> None:
    """L-073: the first one counts, whatever the second says."""
    second = replace(MESSAGE, body="other")
    async with mailbox.database.transaction() as tx:
        assert await mailbox.inbox.store(tx, mailbox.conversation, MESSAGE, "waiting")
        assert not await mailbox.inbox.store(tx, mailbox.conversation, second, "waiting")
        await mailbox.inbox.set_state(tx, "$1", "answered")
        assert not await mailbox.inbox.store(tx, mailbox.conversation, second, "waiting")
    rows = await mailbox.database.rows("SELECT body, state FROM inbox")
    assert [tuple(row) for row in rows] == [("hello", "answered")]  # type: ignore[arg-type]  # a row is a sequence too


async def test_open_rows_come_in_order_and_whole(mailbox: Mailbox) -> None:
    """L-072: stops apart, which do not wait."""
    for kind in ("message", "command", "event"):
        await mailbox.store(kind)
    await mailbox.store("context", state="ignored")
    rows = await mailbox.inbox.open_rows(mailbox.conversation)
    assert [row.event_id for row in rows] == ["$e1", "$e3"]
    first = rows[0]
    assert (first.sender, first.sender_name, first.origin) == ("@ann:test", "Ann", "owner")
    assert (first.direct, first.state, first.not_before) == (False, "waiting", None)
    assert [row.event_id for row in await mailbox.inbox.stops(mailbox.conversation)] == ["$e2"]
    assert await mailbox.inbox.open_conversations() == [(mailbox.conversation, ROOM)]


async def test_a_row_moves_on_and_may_be_delayed(mailbox: Mailbox) -> None:
    """L-034."""
    await mailbox.store()
    await mailbox.write(mailbox.inbox.set_state, "$e1", "waiting", SOON)
    (row,) = await mailbox.inbox.open_rows(mailbox.conversation)
    assert row.not_before == SOON
    async with mailbox.database.transaction() as tx:
        assert await mailbox.inbox.begin(tx, "$e1")
        assert not await mailbox.inbox.begin(tx, "another")
    (row,) = await mailbox.inbox.open_rows(mailbox.conversation)
    assert (row.state, row.not_before) == ("casting", None)


async def test_giving_up_concerns_what_waits_for_the_model(mailbox: Mailbox) -> None:
    """L-034: and was said before the stop."""
    for _ in range(4):
        await mailbox.store()
    async with mailbox.database.transaction() as tx:
        for n in (1, 2, 4):
            await mailbox.inbox.set_state(tx, f"$e{n}", "waiting", SOON)
        for expected in (["$e1", "$e2"], []):
            given_up = await mailbox.inbox.give_up(
                tx, mailbox.conversation, 4, taken="$e4", also_new=False
            )
            assert given_up == expected
        assert await mailbox.inbox.give_up(tx, "another", 9, taken=None, also_new=True) == []
    rows = await mailbox.database.rows("SELECT event_id FROM inbox WHERE state = 'waiting'")
    assert [row["event_id"] for row in rows] == ["$e3", "$e4"]


async def test_giving_up_concerns_what_is_at_work(mailbox: Mailbox) -> None:
    """L-023: begun or taken, a message or an event; what is behind it only if nobody works."""
    for kind in ("message", "event", "event", "message", "command"):
        await mailbox.store(kind)
    async with mailbox.database.transaction() as tx:
        await mailbox.inbox.set_state(tx, "$e2", "casting")
        for taken, also_new, expected in (
            ("$e3", False, ["$e2", "$e3"]),
            (None, False, []),
            (None, True, ["$e1", "$e4"]),
        ):
            given_up = await mailbox.inbox.give_up(
                tx, mailbox.conversation, 9, taken=taken, also_new=also_new
            )
            assert given_up == expected
            assert not any([await mailbox.inbox.begin(tx, name) for name in expected])


async def store_edit(
    mailbox: Mailbox, event_id: str, edits: str, state: InboxState = "waiting"
) -> int:
    """An edit of a message reached us; its place."""
    incoming = replace(MESSAGE, event_id=event_id, edits=edits, body="new")
    async with mailbox.database.transaction() as tx:
        assert await mailbox.inbox.store(tx, mailbox.conversation, incoming, state)
        row = await mailbox.inbox.find(tx, event_id)
    assert row is not None
    assert (row.edits, row.body, row.state) == (edits, "new", state)
    return row.seq


async def test_a_message_and_its_edits_are_versions_of_one_thing(mailbox: Mailbox) -> None:
    """L-054: what came before the last of them and still wants an answer is dropped."""
    await mailbox.store()
    await mailbox.store()
    await store_edit(mailbox, "$a", "$e1", "answered")
    await store_edit(mailbox, "$b", "$e1")
    await store_edit(mailbox, "$c", "$e2")
    last = await store_edit(mailbox, "$d", "$e1")
    assert await mailbox.inbox.versions("$e1") == ["$e1", "$a", "$b", "$d"]
    assert await mailbox.inbox.versions("$unknown") == []
    waiting = await mailbox.inbox.edits_waiting(mailbox.conversation)
    edits = [(row.event_id, row.edits) for row in waiting]
    assert edits == [("$b", "$e1"), ("$c", "$e2"), ("$d", "$e1")]
    assert await mailbox.inbox.edits_waiting("another") == []
    async with mailbox.database.transaction() as tx:
        await mailbox.inbox.set_state(tx, "$e1", "casting")
        for expected in (["$e1", "$b"], []):
            assert await mailbox.inbox.give_up_versions(tx, "$e1", last) == expected
        assert await mailbox.inbox.is_open(tx, ROOM, "$e1")
        assert not await mailbox.inbox.is_open(tx, "!other:test", "$e1")
        await mailbox.inbox.set_state(tx, "$d", "answered")
        assert not await mailbox.inbox.is_open(tx, ROOM, "$e1")
    rows = await mailbox.database.rows("SELECT event_id FROM inbox WHERE state = 'waiting'")
    assert [row["event_id"] for row in rows] == ["$e2", "$c"]


async def test_the_newest_message_is_what_was_last_said_to_us(mailbox: Mailbox) -> None:
    """L-054: a command, background, or what was refused is not."""

    async def newest() -> str | None:
        row = await mailbox.write(mailbox.inbox.newest_message, mailbox.conversation)
        return row.event_id if row else None

    assert await newest() is None
    await mailbox.store(state="answered")
    await mailbox.store("command")
    await mailbox.store("context", state="ignored")
    await mailbox.store("event")
    await mailbox.store(state="ignored")
    assert await newest() == "$e1"
    await store_edit(mailbox, "$edit", "$e1")
    assert await newest() == "$edit"


async def test_what_is_next_is_found_behind_any_number_of_others(mailbox: Mailbox) -> None:
    """L-072: the first message, and what may pass it: untried before tried."""
    for _ in range(205):
        await mailbox.store("event")
    for _ in range(205):
        await mailbox.store()
    last = await mailbox.store("event")
    async with mailbox.database.transaction() as tx:
        for n in range(1, 206):
            await mailbox.inbox.set_state(tx, f"$e{n}", "waiting", SOON)
    rows = await mailbox.inbox.open_rows(mailbox.conversation)
    assert len(rows) <= 200
    assert [row.seq for row in rows if row.kind == "message"] == [206]
    assert last in [row.seq for row in rows]
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)


async def test_context_is_what_was_said_since_we_were_addressed(mailbox: Mailbox) -> None:
    """X-002: at most the last 20 lines."""
    await mailbox.store("context", state="ignored")
    await mailbox.store()
    for _ in range(25):
        await mailbox.store("context", state="ignored")
    here = await mailbox.store()
    await mailbox.store("context", state="ignored")
    lines = await mailbox.inbox.context(mailbox.conversation, here, EVER)
    assert [line.body for line in lines] == [f"line {n}" for n in range(8, 28)]
    assert await mailbox.inbox.context(mailbox.conversation, 2, EVER) != []
    assert await mailbox.inbox.context(mailbox.conversation, 3, EVER) == []
    assert await mailbox.inbox.context("another", here, EVER) == []
    assert await mailbox.inbox.context(mailbox.conversation, here, NOON) == []


async def test_bots_are_counted_until_a_person_speaks(mailbox: Mailbox) -> None:
    """X-004: whatever they say, command or message; what was ignored does not count."""
    assert await mailbox.write(mailbox.inbox.bot_streak, mailbox.conversation) == 0
    await mailbox.store(by_bot=True)
    await mailbox.store("command", by_bot=True)
    await mailbox.store("context", state="ignored", by_bot=True)
    await mailbox.store(state="ignored", by_bot=True)
    assert await mailbox.write(mailbox.inbox.bot_streak, mailbox.conversation) == 2
    await mailbox.store("context", state="ignored")
    assert await mailbox.write(mailbox.inbox.bot_streak, mailbox.conversation) == 0
    await mailbox.store(by_bot=True)
    assert await mailbox.write(mailbox.inbox.bot_streak, mailbox.conversation) == 1


async def test_a_locked_event_is_kept_and_unlocked_once(mailbox: Mailbox) -> None:
    """X-021: it keeps its place."""
    async with mailbox.database.transaction() as tx:
        for n in (1, 2):
            await mailbox.inbox.store_locked(tx, mailbox.conversation, ROOM, f"${n}", {"n": n})
        await mailbox.inbox.store_locked(tx, mailbox.conversation, ROOM, "$1", {"n": 3})
    await mailbox.store()
    first, second = await mailbox.inbox.locked()
    assert (first.raw, second.raw, first.received_at) == ({"n": 1}, {"n": 2}, NOON)
    assert [row.raw for row in await mailbox.inbox.locked(limit=1)] == [{"n": 2}]
    async with mailbox.database.transaction() as tx:
        await mailbox.inbox.unlock(tx, first.seq, replace(MESSAGE, edits="$0"), "waiting")
        await mailbox.inbox.unlock(tx, first.seq, replace(MESSAGE, body="other"), "waiting")
        await mailbox.inbox.discard_locked(tx, first.seq)
        await mailbox.inbox.discard_locked(tx, second.seq)
    rows = await mailbox.inbox.open_rows(mailbox.conversation)
    assert [(row.body, row.edits) for row in rows] == [("hello", "$0")]
    assert await mailbox.inbox.locked() == []


async def test_the_sync_token_belongs_to_an_account(mailbox: Mailbox) -> None:
    """X-005: another account begins afresh."""
    assert await mailbox.inbox.token("@bot:test") is None
    for token in ("s1", "s2"):
        await mailbox.write(mailbox.inbox.store_token, "@bot:test", token)
        assert await mailbox.inbox.token("@bot:test") == token
    assert await mailbox.inbox.token("@new:test") is None


async def test_rows_and_token_are_stored_together(mailbox: Mailbox) -> None:
    """X-011: neither without the other."""

    async def killed() -> None:
        async with mailbox.database.transaction() as tx:
            await mailbox.inbox.store(tx, mailbox.conversation, MESSAGE, "waiting")
            await mailbox.inbox.store_token(tx, "@bot:test", "s1")
            raise KeyError

    with pytest.raises(KeyError):
        await killed()
    assert await mailbox.inbox.token("@bot:test") is None
    assert await mailbox.inbox.open_conversations() == []


async def test_things_are_said_in_order_for_each_room(mailbox: Mailbox) -> None:
    """L-073."""
    first = await mailbox.say("one")
    await mailbox.say("two")
    await mailbox.say("three", "!other:test")
    waiting = await mailbox.outbox.conversations_waiting()
    assert sorted(room for _, room in waiting) == ["!other:test", ROOM]
    out = await mailbox.next()
    assert (out.id, out.body, out.kind) == (first, "one", "reply")
    assert await mailbox.outbox.next(mailbox.conversation, "!nowhere:test") is None


async def test_signs_come_after_everything_that_waits(mailbox: Mailbox) -> None:
    """T-063: found by an index, however much waits elsewhere."""
    signs = await mailbox.write(mailbox.outbox.react, mailbox.conversation, ROOM, "$1", ["+", "-"])
    later = await mailbox.say("later")
    await mailbox.say("elsewhere", "!other:test")
    for expected in ((later, "later", None), (signs, "+ -", "$1")):
        out = await mailbox.next()
        assert (out.id, out.body, out.reacts_to) == expected
        [part] = await mailbox.outbox.store_parts(out.id, [(out.id, {})], "DEVICE")
        await mailbox.outbox.mark_sent(part, None if out.reacts_to else "$e")
    assert await mailbox.outbox.next(mailbox.conversation, ROOM) is None
    asked = {"room": ROOM, "conversation": mailbox.conversation, "quiet": True}
    plan = await mailbox.database.rows(f"EXPLAIN QUERY PLAN {NEXT}", asked)
    assert plan[0]["detail"] == "SEARCH outbox USING INDEX outbox_next (room_id=?)"
    assert not any("TEMP" in row["detail"] or "SCAN" in row["detail"] for row in plan)


async def test_what_is_late_says_so(mailbox: Mailbox) -> None:
    """T-038: not at the moment itself."""
    async with mailbox.database.transaction() as tx:
        late = LateNote(NOON + HOUR, " (late)")
        await mailbox.outbox.enqueue(tx, mailbox.conversation, "tea", late=late, meant_for="")
    out = await mailbox.next()
    assert out.late == late
    assert out.text(NOON + HOUR) == "tea"
    assert out.text(NOON + HOUR + timedelta(microseconds=1)) == "tea (late)"
    assert replace(out, late=None).text(NOON + 2 * HOUR) == "tea"


async def test_parts_are_fixed_once_and_sent_one_by_one(mailbox: Mailbox) -> None:
    """X-011: the row is said with its last part."""
    outbox_id = await mailbox.say("long")
    assert await mailbox.outbox.parts(outbox_id) == []
    contents = [(f"txn{n}", {"body": f"part {n}"}) for n in range(2)]
    parts = await mailbox.outbox.store_parts(outbox_id, contents, "FIRST")
    assert parts == await mailbox.outbox.parts(outbox_id)
    assert [(part.n, (part.txn_id, part.content)) for part in parts] == [*enumerate(contents)]
    with pytest.raises(IntegrityError):
        await mailbox.outbox.store_parts(outbox_id, [("txn9", {})], "FIRST")
    assert (parts[0].attempts, parts[0].device_id, parts[0].first_attempt_at) == (1, "FIRST", NOON)
    assert (parts[1].attempts, parts[1].device_id, parts[1].first_attempt_at) == (0, None, None)
    mailbox.clock.advance(60)
    tried = await mailbox.outbox.attempt(parts[1], "SECOND")
    assert await mailbox.outbox.parts(outbox_id) == [parts[0], tried]
    assert (tried.attempts, tried.device_id, tried.sent) == (1, "SECOND", False)
    await mailbox.outbox.mark_sent(parts[0], "$a")
    async with mailbox.database.transaction() as tx:
        spoken = SentMessage(outbox_id, None, "part 0", meant_for="")
        assert await mailbox.outbox.sent_event(tx, ROOM, "$a") == spoken
        assert await mailbox.outbox.sent_event(tx, "!other:test", "$a") is None
        assert await mailbox.outbox.sent_event(tx, ROOM, "$b") is None
    assert await mailbox.outbox.next(mailbox.conversation, ROOM) is not None
    await mailbox.outbox.mark_sent(parts[1], "$b")
    assert await mailbox.outbox.next(mailbox.conversation, ROOM) is None
    assert all(part.sent for part in await mailbox.outbox.parts(outbox_id))


async def test_what_is_refused_is_kept_until_we_are_let_in_again(mailbox: Mailbox) -> None:
    """X-030."""
    outbox_id = await mailbox.say("hello")
    await mailbox.outbox.mark_refused(outbox_id, "M_FORBIDDEN")
    assert await mailbox.outbox.conversations_waiting() == []
    async with mailbox.database.transaction() as tx:
        await mailbox.outbox.release(tx, "!other:test")
        assert await mailbox.outbox.conversations_waiting() == []
        await mailbox.outbox.release(tx, ROOM)
    assert await mailbox.outbox.conversations_waiting() == [(mailbox.conversation, ROOM)]


async def test_what_is_kept_back_for_a_scope_is_found_by_its_new_name(mailbox: Mailbox) -> None:
    """F-013, F-002: the room of its scope moved; what was said keeps the name it was said under."""
    rooms, outbox = ("!said", "!kept"), mailbox.outbox
    ids = [await mailbox.say("hello", room) for room in rooms]
    async with mailbox.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET meant_for = 'room:!new'")
        await tx.execute("UPDATE outbox SET state = 'sent' WHERE id = ?", (ids[0],))
        await outbox.keep_back(tx, ids[1])
        await outbox.rename(tx, "room:!new", "room:!old")
        await outbox.release_for(tx, "room:!old")
    rows = await mailbox.database.rows("SELECT meant_for, state FROM outbox ORDER BY seq")
    kept = [(row["meant_for"], row["state"]) for row in rows]
    assert kept == [("room:!new", "sent"), ("room:!old", "waiting")]


async def test_what_finds_another_room_twice_says_once_where_it_belongs(mailbox: Mailbox) -> None:
    """F-002: two moves, one heading."""
    outbox_id = await mailbox.say("hello")
    async with mailbox.database.transaction() as tx:
        for room in ("!one", "!two", "!three"):
            heading = "Of another chat:\n\n" if room != "!three" else ""
            conversation = await mailbox.of(tx, room)
            await mailbox.outbox.move(tx, outbox_id, conversation, heading)
    row = await mailbox.outbox.next(conversation, "!three")
    assert row is not None
    assert row.body == "Of another chat:\n\nhello"


async def test_a_notice_is_said_once_in_its_time(mailbox: Mailbox) -> None:
    """X-021, L-034."""

    async def notice(key: str = "k") -> bool:
        notices = Notices(mailbox.outbox, mailbox.database, mailbox.clock)
        said = (mailbox.conversation, f"notice {key}")
        return await mailbox.write(notices.notice_once, key, HOUR, *said)

    assert await notice()
    mailbox.clock.advance(3599)
    assert not await notice()
    assert await notice("other")
    mailbox.clock.advance(1)
    assert await notice()
    assert not await notice()
    rows = await mailbox.database.rows("SELECT body, kind FROM outbox ORDER BY seq")
    assert [row["body"] for row in rows] == ["notice k", "notice other", "notice k"]
    assert {row["kind"] for row in rows} == {"notice"}


async def test_an_invitation_is_kept_until_its_room_was_seen(mailbox: Mailbox) -> None:
    """X-001: a kill between storing and joining does not lose it."""
    await mailbox.write(mailbox.rooms.store_invitation, ROOM, "@eve:test", welcome=False)
    (old,) = await mailbox.rooms.invitations()
    mailbox.clock.advance(1)
    await mailbox.write(mailbox.rooms.store_invitation, ROOM, "@ann:test", welcome=True)
    await mailbox.rooms.delete_declined(old)  # it took a while, and Ann has asked us meanwhile
    (new,) = await mailbox.rooms.invitations()
    found = (new.room_id, new.inviter, new.welcome, new.state)
    assert found == (ROOM, "@ann:test", True, "pending")
    await mailbox.rooms.mark_accepted(new)
    assert [found.state for found in await mailbox.rooms.invitations()] == ["joined"]
    await mailbox.write(mailbox.rooms.delete_invitation, ROOM)
    assert await mailbox.rooms.invitations() == []


async def test_a_room_once_encrypted_stays_so(mailbox: Mailbox) -> None:
    """X-015."""
    for encrypted in (False, True, False):
        async with mailbox.database.transaction() as tx:
            await mailbox.rooms.store_room(tx, ROOM, encrypted)
            await mailbox.rooms.mark_left(tx, ROOM)
            await mailbox.rooms.store_room(tx, "!plain:test", encrypted=False)
    assert await mailbox.rooms.encrypted() == {ROOM}
