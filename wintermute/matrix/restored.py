"""What the rooms say of the time that an earlier copy of our data knows nothing of (F-009).

Everything we said carries a mark that only we can make, which names what was answered or said. So it
is not said again, and people hear which of their messages we know no longer.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, spoken
from wintermute.commands.listing import plain
from wintermute.commands.stores import Stores
from wintermute.conversation.rooms import guarded
from wintermute.db import Transaction
from wintermute.mailbox.elsewhere import Elsewhere, OpenRow
from wintermute.mailbox.inbox import RESULT
from wintermute.mailbox.outbox import ANYBODY
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.copies import Copy, CopyStore
from wintermute.matrix.inbox import Policy, RoomView, is_direct, mapping
from wintermute.matrix.marks import Mark, Marks, Owed, settled
from wintermute.matrix.trust import room_conversation
from wintermute.messages import PERSON, Incoming, Json
from wintermute.tasks.claiming import Claim, Due, cause, claim
from wintermute.tasks.occurrences import complete
from wintermute.text import counted

log = logging.getLogger(__name__)

TRANSACTION = "wm-"
MOST_TASKS = 10_000
"""Overdue at once; more would be said again."""
MOST_QUOTED = 20
MOST_CHARACTERS = 120
TIME = "what was said between {since} and {until}"
RESTORED = (
    "My data were restored from an earlier copy, so {time} is unknown to me. Reminders and facts asked"
    " for in that time must be said again."
)
QUOTED = "These I had answered:"
PASSED = (
    "These I had passed over, as they were stopped or I could not read them; say them again if they "
    "still count:"
)
UNREADABLE = "{count} of that time, which I had answered, I cannot decrypt any more."
NEW_SESSION = (
    "Should I say that I cannot decrypt what you write from now on, let your app begin a new session"
    " (in Element: `/discardsession`)."
)


@dataclass(frozen=True, slots=True)
class Said:
    """An event of ours in a room, by its mark."""

    room_id: str
    event_id: str
    mark: Mark

    @property
    def outbox_id(self) -> str:
        """The message that it is a part of."""
        return self.mark.txn_id.removeprefix(TRANSACTION).rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Tags:
    """What was answered and said, by the tags that are in the rooms."""

    marks: Marks
    found: Mapping[str, Collection[str]]
    """Of each room."""

    def has_answer(self, event_id: str) -> bool:
        """Whether an event was answered, wherever that was."""
        return any(
            self.marks.tag(room, "answer", event_id) in tags for room, tags in self.found.items()
        )

    def has_occurrence(self, task_id: str, due_at: datetime) -> bool:
        """Whether a task said something at its time."""
        name = cause(task_id, due_at)
        return any(
            self.marks.tag(room, "occurrence", name) in tags for room, tags in self.found.items()
        )


def said_in(marks: Marks, room_id: str, events: Iterable[Json]) -> list[Said]:
    """What we said among the events of a room."""
    return [
        Said(room_id, str(event["event_id"]), mark)
        for event in events
        if (mark := marks.read(room_id, event)) is not None and mark.txn_id.startswith(TRANSACTION)
    ]


def answered(
    rows: Sequence[OpenRow], tags: Tags, rooms: Mapping[str, Sequence[Json]], us: str
) -> list[OpenRow]:
    """Those rows that need no answer any more.

    In a conversation messages are answered in their order, so what was said before one that was
    answered is dealt with too: it was given up, or its answer is gone.
    """
    done = {row.event_id for row in rows if tags.has_answer(row.event_id)}
    for room_id, events in rooms.items():
        done |= _redacted(rows, tags, room_id, events, us)
    last: dict[str, int] = {}
    for row in rows:
        if row.event_id in done and row.kind == "message":
            last[row.conversation_id] = row.seq
    return [
        row
        for row in rows
        if row.event_id in done
        or (row.kind == "message" and row.seq < last.get(row.conversation_id, 0))
    ]


def _redacted(
    rows: Sequence[OpenRow], tags: Tags, room_id: str, events: Sequence[Json], us: str
) -> set[str]:
    """What was answered by something of ours that was taken back since."""
    place = {str(event["event_id"]): n for n, event in enumerate(events)}
    here = [row for row in rows if row.room_id == room_id and row.kind in ("message", "command")]
    by_tag = {tags.marks.tag(room_id, "answer", row.event_id): row for row in here}
    owed = [Owed(place.get(row.event_id, -1), tag) for tag, row in by_tag.items()]
    ours = [(n, event) for n, event in enumerate(events) if event.get("sender") == us]
    said = [(n, tags.marks.read(room_id, event)) for n, event in ours]
    told = [(n, mark) for (n, mark), (_, e) in zip(said, ours, strict=True) if mark or is_gone(e)]
    return {by_tag[tag].event_id for tag in settled(owed, told)}


def is_gone(event: Json) -> bool:
    """Whether an event is a message that was redacted."""
    is_message = event.get("type") in ("m.room.message", "m.room.encrypted")
    return is_message and "redacted_because" in mapping(event.get("unsigned"))


class Restored:
    """Brings a copy up to what the rooms say, in the transaction of the first sync."""

    def __init__(self, client: MatrixClient, stores: Stores, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._copies = CopyStore(stores.database, clock)
        self._elsewhere = Elsewhere(stores.database)

    async def settle(self, tx: Transaction, rooms: Mapping[str, Sequence[Json]]) -> None:
        """Know what was said meanwhile, if these data are a copy, or if that shows now."""
        marks = self._client.marks
        said = [each for room, events in rooms.items() for each in said_in(marks, room, events)]
        promised = await self._stores.outbox.promised(tx, [each.outbox_id for each in said])
        copy = await self._copies.unsettled(tx)
        if copy is None:
            unknown = [each for each in said if each.outbox_id not in promised]
            if not unknown:
                return
            copy = await self._shown(tx, unknown[0])
        tags = Tags(
            marks, {room: {s.mark.tag for s in said if s.room_id == room} for room in rooms}
        )
        await self._said(tx, [each for each in said if each.outbox_id in promised])
        await self._occurrences(tx, tags)
        await self._results(tx, tags)
        rows = answered(
            await self._elsewhere.open_rows(tx), tags, rooms, self._client.account.user_id
        )
        await self._answered(tx, rows)
        if copy is not None and copy.since is not None:
            passed = {row.event_id for row in rows if not tags.has_answer(row.event_id)}
            await self._tell(tx, copy, copy.since, rows, passed)
        await self._copies.settle(tx)

    async def unknown(self, rooms: Mapping[str, Sequence[Json]]) -> str:
        """An event of ours that was never promised here: another run said it; "" where there is none."""
        marks = self._client.marks
        said = [each for room, events in rooms.items() for each in said_in(marks, room, events)]
        if not said:
            return ""
        ids = [each.outbox_id for each in said]
        known = await self._stores.outbox.promised(self._stores.database, ids)
        return next((each.event_id for each in said if each.outbox_id not in known), "")

    async def _shown(self, tx: Transaction, said: Said) -> Copy | None:
        """Somebody with our keys said what we never promised: these data are a copy."""
        since = await self._elsewhere.last_sync(self._client.account.user_id)
        known = since.isoformat() if since else "never"
        log.warning("copy noticed since=%s event=%s", known, said.event_id)
        self._client.renew_keys()
        await self._copies.notice(tx, said.mark.txn_id, since, settled=False)
        return await self._copies.unsettled(tx)

    async def _said(self, tx: Transaction, said: Sequence[Said]) -> None:
        """What waits here may be in its room."""
        for outbox_id in {each.outbox_id for each in said}:
            parts = [each for each in said if each.outbox_id == outbox_id]
            numbered = {each.mark.n: (each.mark.txn_id, each.event_id) for each in parts}
            last = parts[0]
            await self._stores.outbox.found(tx, outbox_id, last.room_id, numbered, last.mark.of)

    async def _occurrences(self, tx: Transaction, tags: Tags) -> None:
        """What tasks said at their times, and what their runs told, is done."""
        stores, now = self._stores, self._clock.now()
        for conversation_id in await stores.runs.rooms(tx):
            for run in await stores.runs.open_in(tx, conversation_id):
                if tags.has_occurrence(run.task_id, run.due_at):
                    if run.cast_id is not None:
                        await stores.casts.end(tx, run.cast_id, "truncated", "restored", "")
                    await stores.runs.done(tx, run, "", None)
        await stores.occurrences.let_go(tx)  # what was held here may have been said there
        found = await stores.occurrences.due(tx, MOST_TASKS)
        claims = [each for due in found if (each := await guarded(self._claimed(due), due.task.id))]
        said = [each for each in claims if tags.has_occurrence(each.due.task.id, each.due_at)]
        known = await stores.occurrences.taken(tx, said)
        for each in said:
            home = await self._home(tx, each.due.made_in)
            if home is not None and each.due.task.id not in known:
                await stores.occurrences.take(tx, [(each, "done", home, None)])
        await stores.occurrences.advance(tx, said)
        await complete(tx, [each.due.task.id for each in said], now)

    async def _claimed(self, due: Due) -> Claim:
        now = self._clock.now()
        return claim(due, now, now, self._stores.tasks.zone)

    async def _home(self, tx: Transaction, made_in: str | None) -> str | None:
        """A conversation for the record of what was said somewhere."""
        if made_in is not None:
            return made_in
        homes = await self._stores.conversations.homes(tx, self._stores.owner_scope)
        return homes[0].id if homes else None

    async def _results(self, tx: Transaction, tags: Tags) -> None:
        """What sub-sessions found was told."""
        subs, inbox = self._stores.sub_sessions, self._stores.inbox
        for room, room_id in await subs.open_rooms(tx):
            for each in await subs.open_in(tx, room):
                event_id = f"{RESULT}{each.room_turn}/{each.id}"
                if not each.is_open or not tags.has_answer(event_id):
                    continue
                now = self._clock.now()
                told = Incoming(event_id, room_id, "", "", "system", "event", "", now, direct=False)
                await inbox.store(tx, room, told, "answered")
                for member in await subs.of_workflow(tx, each.workflow):
                    if member.is_open:
                        await self._end(tx, member.cast_id)
                        await subs.close(tx, member.id, "stopped", "")

    async def _answered(self, tx: Transaction, rows: Sequence[OpenRow]) -> None:
        for row in rows:
            cast = await self._stores.casts.running(row.event_id)
            await self._end(tx, cast.id if cast else None)
            if row.edits is not None:
                await self._stores.inbox.give_up_versions(tx, row.edits, row.seq)
        await self._elsewhere.answered(tx, rows)

    async def _end(self, tx: Transaction, cast_id: str | None) -> None:
        if cast_id is not None:
            await self._stores.casts.end(tx, cast_id, "truncated", "restored", "")

    async def _tell(
        self,
        tx: Transaction,
        copy: Copy,
        since: datetime,
        rows: Sequence[OpenRow],
        passed: Collection[str],
    ) -> None:
        """Tell each room from when to when, and what must be said again; status the rest."""
        zone = self._stores.tasks.zone
        still = [row for row in await self._elsewhere.open_rows(tx) if row.is_locked]
        lost = len(still) + sum(row.is_locked for row in rows)
        time = TIME.format(since=spoken(since, zone), until=spoken(copy.noticed_at, zone))
        named = f"; {counted(lost, 'message')} of it cannot be decrypted any more" if lost else ""
        text = f"from an earlier copy: {time} is unknown{named}"
        await self._stores.health.note_in(tx, "restored", "warn" if lost else "ok", text)
        home = self._client.moves.home  # what is said in a room that is over is said there
        for room_id in sorted({home(room_id) for room_id in self._client.rooms}):
            view = self._client.room(room_id)
            if not self._policy.allowed.isdisjoint(view.members):
                there = [row for row in rows if home(row.room_id) == room_id]
                await self._tell_room(tx, view, time, there, passed)

    async def _tell_room(
        self,
        tx: Transaction,
        view: RoomView,
        time: str,
        rows: Sequence[OpenRow],
        passed: Collection[str],
    ) -> None:
        account, conversations = self._client.account, self._stores.conversations
        direct = is_direct(view, account, self._policy)
        person = next(user for user in view.members if user != account.user_id)
        encrypted = view.encrypted or await self._stores.known.is_encrypted(tx, view.room_id)
        # What somebody said alone with us is not named where others are by now.
        asked = [row for row in rows if row.direct == direct or row.is_locked]
        await self._stores.outbox.say(
            tx,
            await room_conversation(tx, conversations, view, account, self._policy),
            view.room_id,
            notice(time, asked, passed, self._stores.tasks.zone, encrypted=encrypted),
            kind="notice",
            meant_for=f"{PERSON}{person}" if direct else ANYBODY,
        )


def notice(
    time: str,
    asked: Sequence[OpenRow],
    passed: Collection[str],
    zone: ZoneInfo,
    *,
    encrypted: bool,
) -> str:
    """What a room is told: the time that is lost, and what had been asked of us in it.

    `passed`: the events among them that got no answer.
    """
    readable = [row for row in asked if not row.is_locked and row.body]
    locked = sum(row.is_locked for row in asked)
    blocks = [
        RESTORED.format(time=time),
        _listed(QUOTED, [row for row in readable if row.event_id not in passed], zone),
        _listed(PASSED, [row for row in readable if row.event_id in passed], zone),
        UNREADABLE.format(count=counted(locked, "message")) if locked else "",
        NEW_SESSION if encrypted else "",
    ]
    return "\n\n".join(filter(None, blocks))


def _listed(title: str, rows: Sequence[OpenRow], zone: ZoneInfo) -> str:
    """The newest of these rows, under a title; "" where there are none."""
    lines = [
        f"- {row.sent_at.astimezone(zone):%Y-%m-%d %H:%M} {row.sender_name}: {quoted(row.body)}"
        for row in rows[-MOST_QUOTED:]
    ]
    if len(rows) > MOST_QUOTED:
        lines.insert(0, f"- (and {len(rows) - MOST_QUOTED} before these)")
    return "\n".join([title, "", *lines]) if lines else ""


def quoted(body: str) -> str:
    """The beginning of a message, on one line."""
    line = " ".join(body.split())
    cut = line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"
    return plain(cut)
