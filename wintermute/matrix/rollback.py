"""Detection of a restored backup, or of a second running copy of this data folder.

Every message of ours carries a tag that only we can make. It names what the message answers. So
after a restore nothing is sent twice, and people get a list of the messages that are lost (F-009).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, in_words, stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import reader
from wintermute.errors import AnotherCopyRuns, KeyStoreBlocked, SendRefused
from wintermute.health.health import Health
from wintermute.ids import NewId
from wintermute.mailbox.inbox import RESULT, Inbox, OpenRow
from wintermute.mailbox.outbox import ANYBODY, Purpose
from wintermute.mailbox.streaming import drop_draft, editable_row
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, RoomView, is_direct, scope_of
from wintermute.matrix.instances import Installation, Installations
from wintermute.matrix.key_store import MOST_EPOCHS, classify_epoch
from wintermute.matrix.message_tags import MessageTag, MessageTags, OpenRequest, answered_requests
from wintermute.matrix.relations import edited_by, is_gone, redactor
from wintermute.matrix.sync_response import SyncBatch
from wintermute.messages import PERSON, Incoming, Json
from wintermute.stores import Stores
from wintermute.tasks.occurrences import Claim, Due, cause, claim
from wintermute.tasks.tasks import complete
from wintermute.text import counted, plain
from wintermute.work.runner import catch_bugs

log = logging.getLogger(__name__)

ACTIVE_SECONDS = 600.0
"""Longest use of one epoch; what happened within it is recognised by the messages in the rooms."""
AT_ONCE_SECONDS = 3600.0
"""Two unknown epochs within this time mean a second running copy, not a restored backup."""
RUNS_BESIDE = (
    "another copy of this data folder is at work with the same login, and the two damage each"
    " other's encryption: stop one of them, then start this one again. A second bot needs an"
    " account and a "
    "folder of its own (`wintermute init DIR`)"
)
COPY_SEEN = "another copy of this data folder was running -> make sure that only one runs"
TRANSACTION = "wm-"
MOST_TASKS = 10_000
"""Overdue tasks that are compared; further ones would be sent again."""
MOST_QUOTED = 20
MOST_CHARACTERS = 120
RESTORED = (
    "I was restored from a backup and have lost everything said between {time}. Please repeat any"
    " reminder or fact from that time."
)
QUOTED = "I had answered these:"
PASSED = "I had not answered these. Please send them again if they still matter:"
UNREADABLE = "I had also answered {count} that I can no longer decrypt."
NEW_SESSION = (
    "If I say that I can't decrypt your new messages, start a new session in your app (in Element:"
    " `/discardsession`)."
)


@dataclass(frozen=True, slots=True)
class Rollback:
    """The detection of a restored backup. `since`: the last use of its data, if known."""

    seq: int
    since: datetime | None
    noticed_at: datetime


_rollback = reader(Rollback)


class RollbackStore:
    """The store of our epochs at the homeserver, and of detected backups."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def values(self, device_id: str) -> frozenset[str]:
        """Return the remembered epochs of a device."""
        rows = await self._database.rows(
            "SELECT value FROM epochs WHERE device_id = ?", (device_id,)
        )
        return frozenset(row["value"] for row in rows)

    async def add(self, device_id: str, value: str) -> None:
        """Remember an epoch before the homeserver has it."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO epochs (device_id, value) VALUES (?, ?)", (device_id, value)
            )
            await tx.execute(
                "DELETE FROM epochs WHERE device_id = :device AND seq <= (SELECT seq FROM epochs"
                " WHERE device_id = :device ORDER BY seq DESC LIMIT 1 OFFSET :most)",
                {"device": device_id, "most": MOST_EPOCHS},
            )

    async def notice(
        self, tx: Transaction, sign: str, since: datetime | None, *, settled: bool
    ) -> None:
        """Store the evidence of a backup or second copy, once."""
        await tx.execute(
            "INSERT INTO rollbacks (evidence, since, noticed_at, settled) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (evidence) DO NOTHING",
            (sign, stamp(since) if since else None, stamp(self._clock.now()), settled),
        )

    async def unsettled(self, tx: Transaction) -> Rollback | None:
        """Return the oldest detected backup whose lost time is not handled yet."""
        row = await tx.row("SELECT * FROM rollbacks WHERE NOT settled ORDER BY seq LIMIT 1")
        return _rollback(row) if row else None

    async def settle(self, tx: Transaction) -> None:
        """Mark all detected backups as handled."""
        await tx.execute("UPDATE rollbacks SET settled = 1 WHERE NOT settled")


class RollbackDetection:
    """Renews our epoch at the homeserver, and checks if it was replaced."""

    def __init__(
        self,
        client: MatrixClient,
        database: Database,
        clock: Clock,
        new_id: NewId,
        *,
        take_over: bool = False,
    ) -> None:
        """`take_over`: other installations on our account stop in favour of this one (F-047)."""
        self._client = client
        self._health = Health(database, clock)
        ours = Installation(
            client.tags.installation, client.account.device_id, takes_over=take_over
        )
        self._installations = Installations(client.epochs, self._health, clock, ours)
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._replacing = asyncio.Lock()
        self._pending = ""
        self._is_checked = False
        self._replaced_at: float | None = None
        self._foreign: dict[str, float] = {}  # when each unknown epoch was seen
        self._overheard_at = -AT_ONCE_SECONDS
        self._store = RollbackStore(database, clock)
        self._inbox = Inbox(database, clock)

    async def check_at_start(self) -> None:
        """Check the epoch at the start, before the first sync, and store a new one.

        While the key store is blocked the new one can wait: nothing is encrypted before, and
        unencrypted messages are recognised in the rooms.

        Raises: AnotherCopyRuns; KeyStoreBlocked while the epoch cannot be checked or stored.
        """
        await self._installations.register()
        if self._replaced_at is not None or (self._is_checked and self._client.keys.store.trouble):
            return
        try:
            served = await self._client.epochs.fetch()
        except SendRefused as error:
            await self._note_refusal(error)
            return
        if await self._is_foreign(served):
            since = await self._inbox.last_sync(self._client.account.user_id)
            await self._record_foreign(served, since)
        elif await self._health.part("copies") is not None:
            await self._health.note("copies", "ok", "no other copy of this data folder is running")
        self._is_checked = True
        with suppress(KeyStoreBlocked):
            await self.renew_epoch()

    async def check_epoch(self, batch: SyncBatch, *, first: bool) -> None:
        """Check an epoch that came with a sync. Raises: AnotherCopyRuns.

        The first sync may bring the one that was found and replaced at the start.
        """
        await self._installations.check(batch.installation)
        value = batch.epoch
        if first and value in self._foreign:
            return
        if value and await self._is_foreign(value):
            await self._record_foreign(value, None)
            await self._health.note("copies", "warn", COPY_SEEN)
            await self.renew_epoch()

    async def note_foreign_message(self, event_id: str) -> None:
        """Record an unknown message with our tag, at most once an hour; epochs are better evidence."""
        now = self._clock.monotonic()
        seen_at = [*self._foreign.values(), self._overheard_at]
        if event_id and not any(now - at < AT_ONCE_SECONDS for at in seen_at):
            self._overheard_at = now
            await self._store_evidence(event_id, None)
            await self._health.note("copies", "warn", COPY_SEEN)

    async def before_sending(self, *, encrypted: bool) -> None:
        """Store a new epoch if the last one is old.

        An unencrypted message does not wait for a blocked key store. Raises: KeyStoreBlocked.
        """
        since = self._replaced_at
        if since is not None and self._clock.monotonic() - since < ACTIVE_SECONDS:
            return
        if self._client.keys.store.trouble and not encrypted:
            return
        async with self._replacing:
            if self._replaced_at == since:
                try:
                    await self.renew_epoch()
                except KeyStoreBlocked:
                    if encrypted:
                        raise

    async def renew_epoch(self) -> None:
        """Store a new epoch at the homeserver, after it is stored here in both places."""
        if not self._pending:
            value = self._new_id("epoch")
            self._client.epochs.store_beside_keys(value)
            await self._store.add(self._client.account.device_id, value)
            self._pending = value
        try:
            await self._client.epochs.upload(self._pending)
        except SendRefused as error:
            await self._note_refusal(error)
        else:
            self._replaced_at = self._clock.monotonic()
        self._pending = ""

    async def _is_foreign(self, served: str) -> bool:
        known = await self._store.values(self._client.account.device_id)
        return classify_epoch(served, known, self._client.epochs.beside_keys) == "foreign"

    async def _store_evidence(self, sign: str, since: datetime | None) -> None:
        """Store the evidence. The renewal of keys is requested first: an unneeded one does no harm."""
        self._client.rotate_keys()
        async with self._database.transaction() as tx:
            await self._store.notice(tx, sign, since, settled=since is None)
        log.warning(
            "restore or second copy detected since=%s",
            since.isoformat() if since else "another runs",
        )

    async def _record_foreign(self, value: str, since: datetime | None) -> None:
        await self._store_evidence(value, since)
        now = self._clock.monotonic()
        lately = {epoch: at for epoch, at in self._foreign.items() if now - at < AT_ONCE_SECONDS}
        self._foreign = {**lately, value: now}
        if len(self._foreign) > 1:
            raise AnotherCopyRuns(RUNS_BESIDE)

    async def _note_refusal(self, error: SendRefused) -> None:
        """Go on without epochs if the homeserver refuses them: then only messages show a restore."""
        self._replaced_at = self._clock.monotonic()
        log.warning("account data refused reason=%s", error)
        text = f"the homeserver keeps no account data for us: {error} -> ask its admin"
        await self._health.note("copies", "warn", text)


@dataclass(frozen=True, slots=True)
class OwnEvent:
    """An event of ours with its tag. `edits`: the event that it edits."""

    room_id: str
    event_id: str
    tag: MessageTag
    edits: str | None = None

    @property
    def outbox_id(self) -> str:
        """The id of the message that it is a part of."""
        return self.tag.txn_id.removeprefix(TRANSACTION).rpartition("-")[0]

    @property
    def is_part(self) -> bool:
        """True if it is a part of that message, not one of the edits that streamed a draft."""
        return self.tag.txn_id == f"{TRANSACTION}{self.outbox_id}-{self.tag.n}"


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of our messages in the rooms: what was answered or sent before the restore."""

    hasher: MessageTags
    by_room: Mapping[str, Collection[str]]
    """The tags of each room."""

    def has(self, purpose: Purpose, of: str) -> bool:
        """Check if an event was answered, or a task's message sent, in any room."""
        return any(
            self.hasher.cause_hash(room, purpose, of) in tags for room, tags in self.by_room.items()
        )


def own_events(marks: MessageTags, room_id: str, events: Iterable[Json]) -> list[OwnEvent]:
    """Return our own tagged events among the events of a room."""
    return [
        OwnEvent(room_id, str(event["event_id"]), mark, edited_by(event))
        for event in events
        if (mark := marks.read(room_id, event)) is not None and mark.txn_id.startswith(TRANSACTION)
    ]


def unfinished_drafts(said: Sequence[OwnEvent]) -> list[OwnEvent]:
    """Return the drafts without a final edit, and edits of finished messages that did not end (X-055)."""
    ended = {each.edits: n for n, each in enumerate(said) if each.tag.final and each.edits}
    left = [each for n, each in enumerate(said) if ended.get(each.edits or each.event_id, -1) < n]
    growing = [each for each in left if not each.tag.final]
    drafts = {each.event_id for each in growing if each.edits is None} - ended.keys()
    return [
        each for each in growing if each.event_id in drafts or each.edits not in {None, *drafts}
    ]


def answered_rows(
    rows: Sequence[OpenRow], tags: Tags, rooms: Mapping[str, Sequence[Json]], us: str
) -> list[OpenRow]:
    """Return the rows that need no answer any more.

    Messages of a conversation are answered in order. So a message before an answered one is done,
    too: it was given up, or its answer is lost.
    """
    done = {row.event_id for row in rows if tags.has("answer", row.event_id)}
    for room_id, events in rooms.items():
        done |= _redacted_answers(rows, tags, room_id, events, us)
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


def _redacted_answers(
    rows: Sequence[OpenRow], tags: Tags, room_id: str, events: Sequence[Json], us: str
) -> set[str]:
    """Return the messages whose answer of ours was redacted by somebody else."""
    place = {str(event["event_id"]): n for n, event in enumerate(events)}
    here = [row for row in rows if row.room_id == room_id and row.kind in ("message", "command")]
    by_tag = {tags.hasher.cause_hash(room_id, "answer", row.event_id): row for row in here}
    owed = [OpenRequest(place.get(row.event_id, -1), tag) for tag, row in by_tag.items()]
    ours = [(n, event) for n, event in enumerate(events) if event.get("sender") == us]
    said = [(n, tags.hasher.read(room_id, event), is_taken(event, us)) for n, event in ours]
    told = [(n, mark) for n, mark, taken in said if mark or taken]
    return {by_tag[tag].event_id for tag in answered_requests(owed, told)}


def is_taken(event: Json, us: str) -> bool:
    """Check if an event is a message that somebody else redacted; our own redactions do not count."""
    is_message = event.get("type") in ("m.room.message", "m.room.encrypted")
    return is_message and is_gone(event) and redactor(event) != us


class Reconciliation:
    """Updates restored data by the events in the rooms, in the transaction of the first sync."""

    def __init__(self, client: MatrixClient, stores: Stores, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._copies = RollbackStore(stores.database, clock)

    async def settle(self, tx: Transaction, rooms: Mapping[str, Sequence[Json]]) -> None:
        """Find out what was sent before the restore, if these data are a backup or prove to be one now."""
        marks, said = self._client.tags, self._own_events(rooms)
        promised = await self._stores.outbox.enqueued(tx, [each.outbox_id for each in said])
        rollback = await self._copies.unsettled(tx)
        if rollback is None:
            unknown = [each for each in said if each.outbox_id not in promised]
            if not unknown:
                return
            rollback = await self._record_backup(tx, unknown[0])
        final = [each for each in said if each.tag.final]
        tags = Tags(
            marks, {room: {s.tag.tag for s in final if s.room_id == room} for room in rooms}
        )
        await self._mark_sent(tx, [s for s in said if s.outbox_id in promised and s.is_part])
        await self._redact_unfinished(
            tx, [s for s in unfinished_drafts(said) if s.outbox_id not in promised]
        )
        await self._finish_occurrences(tx, tags)
        await self._finish_results(tx, tags)
        rows = answered_rows(
            await self._stores.inbox.all_open(tx), tags, rooms, self._client.account.user_id
        )
        for row in rows:
            cast = await self._stores.casts.running(row.event_id)
            await self._end(tx, cast.id if cast else None)
            if row.edits is not None:
                await self._stores.inbox.give_up_versions(tx, row.edits, row.seq)
            if (draft := await editable_row(tx, row.event_id, None)) is not None:
                await drop_draft(tx, draft.id)
        await self._stores.inbox.close(tx, rows)
        if rollback is not None and rollback.since is not None:
            passed = {row.event_id for row in rows if not tags.has("answer", row.event_id)}
            spoken_in = {room for room, events in rooms.items() if events}
            await self._notify_rooms(tx, rollback, rollback.since, rows, passed, spoken_in)
        await self._copies.settle(tx)

    async def unknown(self, rooms: Mapping[str, Sequence[Json]]) -> str:
        """Return an event of ours that this copy never enqueued: another copy runs; "" if there is none."""
        said = self._own_events(rooms)
        if not said:
            return ""
        ids = [each.outbox_id for each in said]
        known = await self._stores.outbox.enqueued(self._stores.database, ids)
        return next((each.event_id for each in said if each.outbox_id not in known), "")

    def _own_events(self, rooms: Mapping[str, Sequence[Json]]) -> list[OwnEvent]:
        marks = self._client.tags
        return [each for room, events in rooms.items() for each in own_events(marks, room, events)]

    async def _record_backup(self, tx: Transaction, said: OwnEvent) -> Rollback | None:
        """Store that these data are a backup: a message with our tag was never enqueued here."""
        since = await self._stores.inbox.last_sync(self._client.account.user_id)
        known = since.isoformat() if since else "never"
        log.warning("restore or second copy detected since=%s event=%s", known, said.event_id)
        self._client.rotate_keys()
        await self._copies.notice(tx, said.tag.txn_id, since, settled=False)
        return await self._copies.unsettled(tx)

    async def _mark_sent(self, tx: Transaction, said: Sequence[OwnEvent]) -> None:
        """Mark waiting messages as sent whose events are in their rooms."""
        for outbox_id in {each.outbox_id for each in said}:
            parts = [each for each in said if each.outbox_id == outbox_id]
            numbered = {each.tag.n: (each.tag.txn_id, each.event_id) for each in parts}
            room_id, of = parts[0].room_id, parts[0].tag.of
            await self._stores.outbox.mark_parts_sent(tx, outbox_id, room_id, numbered, of)

    async def _redact_unfinished(self, tx: Transaction, begun: Sequence[OwnEvent]) -> None:
        """Redact unfinished streamed answers: their messages are answered anew (X-055)."""
        for each in begun:
            scope = scope_of(self._client.room(each.room_id), self._client.account, self._policy)
            home = await self._stores.conversations.in_room(tx, each.room_id, scope)
            await self._stores.retractions.redact_event(tx, home, each.room_id, each.event_id)

    async def _finish_occurrences(self, tx: Transaction, tags: Tags) -> None:
        """Mark due tasks and their runs as done if their messages were sent."""
        stores, now = self._stores, self._clock.now()
        for conversation_id in await stores.runs.rooms(tx):
            for run in await stores.runs.open_in(tx, conversation_id):
                if tags.has("occurrence", cause(run.task_id, run.due_at)):
                    await self._end(tx, run.cast_id)
                    await stores.runs.done(tx, run, "", None)
        await stores.occurrences.release(tx)  # a task held here may have sent its message
        found = await stores.occurrences.due(tx, MOST_TASKS)
        claims = [
            each for due in found if (each := await catch_bugs(self._claim_of(due), due.task.id))
        ]
        times = [(each, cause(each.due.task.id, each.due_at)) for each in claims]
        said = [each for each, name in times if tags.has("occurrence", name)]
        known = await stores.occurrences.claimed(tx, said)
        for each in said:
            home = await self._record_conversation(tx, each.due.made_in)
            if home is not None and each.due.task.id not in known:
                await stores.occurrences.take(tx, [(each, "done", home, None)])
        await stores.occurrences.advance(tx, said)
        await complete(tx, [each.due.task.id for each in said], now)

    async def _claim_of(self, due: Due) -> Claim:
        now = self._clock.now()
        return claim(due, now, now, self._stores.tasks.zone)

    async def _record_conversation(self, tx: Transaction, made_in: str | None) -> str | None:
        """Return a conversation for the record of a task's message."""
        if made_in is not None:
            return made_in
        homes = await self._stores.conversations.target_conversations(tx, self._stores.owner.scope)
        return homes[0].id if homes else None

    async def _finish_results(self, tx: Transaction, tags: Tags) -> None:
        """Mark sub-sessions as reported if their results were."""
        subs, inbox = self._stores.sub_sessions, self._stores.inbox
        for room, room_id in await subs.open_rooms(tx):
            for each in await subs.open_in(tx, room):
                event_id = f"{RESULT}{each.room_turn}/{each.id}"
                if not each.is_open or not tags.has("answer", event_id):
                    continue
                now = self._clock.now()
                told = Incoming(event_id, room_id, "", "", "system", "event", "", now, direct=False)
                await inbox.store(tx, room, told, "answered")
                for member in await subs.of_workflow(tx, each.workflow):
                    if member.is_open:
                        await self._end(tx, member.cast_id)
                        await subs.close(tx, member.id, "stopped", "")

    async def _end(self, tx: Transaction, cast_id: str | None) -> None:
        if cast_id is not None:
            await self._stores.casts.end(tx, cast_id, "truncated", "restored", "")

    async def _notify_rooms(
        self,
        tx: Transaction,
        rollback: Rollback,
        since: datetime,
        rows: Sequence[OpenRow],
        passed: Collection[str],
        spoken_in: Collection[str],
    ) -> None:
        """Notify rooms with new events about the lost time and messages; `status` shows the rest."""
        zone = self._stores.tasks.zone
        still = [row for row in await self._stores.inbox.all_open(tx) if row.is_locked]
        lost = len(still) + sum(row.is_locked for row in rows)
        time = _between(since, rollback.noticed_at, self._clock.now(), zone)
        named = f"; {counted(lost, 'message')} of it cannot be decrypted any more" if lost else ""
        text = f"from a backup: everything said between {time} is lost{named}"
        await self._stores.health.note_in(tx, "restored", "warn" if lost else "ok", text)
        home = self._client.moves.current_room  # the current room of a replaced one
        for room_id in sorted({home(each) for each in self._client.rooms if each in spoken_in}):
            view = self._client.room(room_id)
            if not self._policy.allowed.isdisjoint(view.members):
                there = [row for row in rows if home(row.room_id) == room_id]
                await self._notify_room(tx, view, time, there, passed)

    async def _notify_room(
        self,
        tx: Transaction,
        view: RoomView,
        time: str,
        rows: Sequence[OpenRow],
        passed: Collection[str],
    ) -> None:
        account = self._client.account
        direct = is_direct(view, account, self._policy)
        person = next(user for user in view.members if user != account.user_id)
        encrypted = view.encrypted or await self._stores.known.is_encrypted(tx, view.room_id)
        # Messages of a direct chat are not quoted where others can read now.
        asked = [row for row in rows if row.direct == direct or row.is_locked]
        scope = scope_of(view, account, self._policy)
        await self._stores.outbox.enqueue(
            tx,
            await self._stores.conversations.in_room(tx, view.room_id, scope),
            restore_notice(time, asked, passed, self._stores.tasks.zone, encrypted=encrypted),
            kind="notice",
            meant_for=f"{PERSON}{person}" if direct else ANYBODY,
        )


def _between(since: datetime, until: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Format the lost time, in short if it is all today."""
    begun, ended, today = (moment.astimezone(zone) for moment in (since, until, now))
    if begun.date() == ended.date() == today.date():
        return f"{begun:%H:%M} and {ended:%H:%M} today"
    return f"{in_words(since, zone)} and {in_words(until, zone)}"


def restore_notice(
    time: str, asked: Sequence[OpenRow], passed: Collection[str], zone: ZoneInfo, *, encrypted: bool
) -> str:
    """Return the notice for a room: the lost time, and the messages that were sent to us in it.

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
    """List the newest of these rows under a title; "" if there are none."""
    lines = [
        f"- {row.sent_at.astimezone(zone):%Y-%m-%d %H:%M} {row.sender_name}: {quoted(row.body)}"
        for row in rows[-MOST_QUOTED:]
    ]
    if len(rows) > MOST_QUOTED:
        lines.insert(0, f"- (and {len(rows) - MOST_QUOTED} before these)")
    return "\n".join([title, "", *lines]) if lines else ""


def quoted(body: str) -> str:
    """Return the beginning of a message on one line."""
    line = " ".join(body.split())
    cut = line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"
    return plain(cut)
