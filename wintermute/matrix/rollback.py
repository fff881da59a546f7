"""Detection of a rollback: this data folder is older than what our messages in the rooms show.

A rollback is a restored backup. A second running copy of the folder leaves the same evidence:

- An epoch is a random value in our account data that is replaced while we run. A value that we did
  not write means an old database or a second copy.
- Every message of ours carries a tag that only we can make. It names what the message answers.

So after a rollback nothing is sent twice, and people get a list of the messages that they wrote
and that we no longer know (F-009).
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
"""An epoch is replaced before a message if it is older. Newer losses are found by message tags."""
SECOND_COPY_SECONDS = 3600.0
"""Two unknown epochs within this time mean a second running copy, not a rollback."""
RUNS_BESIDE = (
    "Another copy of this data folder is running with the same login. This breaks encryption."
    " Stop one copy, then start this one again. A second bot needs an account and a folder of its"
    " own (`wintermute init DIR`)."
)
COPY_SEEN = "another copy of this data folder was running -> make sure that only one runs"
TXN_ID_PREFIX = "wm-"
MOST_TASKS = 10_000
"""Overdue tasks that are compared; further ones would be sent again."""
MOST_LISTED = 20
"""Messages in each list of a notice; older ones are only counted."""
MOST_QUOTED_CHARACTERS = 120
RESTORED = (
    "I was restored from a backup and have lost everything said between {time}. Please repeat any"
    " reminder or fact from that time."
)
ANSWERED = "I had already answered these messages:"
PASSED = "I had not answered these. Please send them again if they still matter:"
UNREADABLE = "I also received {count} that I can no longer decrypt."
NEW_SESSION = (
    "If I say that I can't decrypt your new messages, start a new session in your app (in Element:"
    " `/discardsession`)."
)


@dataclass(frozen=True, slots=True)
class Rollback:
    """A detected rollback. `since`: when the data were last used before it, if known."""

    seq: int
    since: datetime | None
    noticed_at: datetime


_rollback = reader(Rollback)


class RollbackStore:
    """The store of our epochs, and of detected rollbacks."""

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
        self, tx: Transaction, evidence: str, since: datetime | None, *, settled: bool
    ) -> None:
        """Store the evidence of a rollback or second copy, once."""
        await tx.execute(
            "INSERT INTO rollbacks (evidence, since, noticed_at, settled) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (evidence) DO NOTHING",
            (evidence, stamp(since) if since else None, stamp(self._clock.now()), settled),
        )

    async def unsettled(self, tx: Transaction) -> Rollback | None:
        """Return the oldest detected rollback whose lost time is not handled yet."""
        row = await tx.row("SELECT * FROM rollbacks WHERE NOT settled ORDER BY seq LIMIT 1")
        return _rollback(row) if row else None

    async def settle(self, tx: Transaction) -> None:
        """Mark all detected rollbacks as handled."""
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
        self._renewal_lock = asyncio.Lock()
        self._pending = ""
        self._is_checked = False
        self._renewed_at: float | None = None  # also set if the homeserver refuses epochs
        self._unknown_epochs: dict[str, float] = {}  # when each unknown epoch was seen
        self._foreign_message_at = -SECOND_COPY_SECONDS
        self._store = RollbackStore(database, clock)
        self._inbox = Inbox(database, clock)

    async def check_at_start(self) -> None:
        """Check the epoch at the start, before the first sync, and store a new one.

        If the key store is blocked, the new epoch waits: nothing can be encrypted then anyway, and
        unencrypted messages are recognised by their tags.

        Raises: AnotherCopyRuns; KeyStoreBlocked while the epoch cannot be checked or stored.
        """
        await self._installations.register()
        if self._renewed_at is not None or (self._is_checked and self._client.keys.store.trouble):
            return
        try:
            epoch_at_homeserver = await self._client.epochs.fetch()
        except SendRefused as error:
            await self._note_refusal(error)
            return
        if await self._is_foreign(epoch_at_homeserver):
            since = await self._inbox.last_sync(self._client.account.user_id)
            await self._record_foreign(epoch_at_homeserver, since)
        elif await self._health.part("copies") is not None:
            await self._health.note("copies", "ok", "no other copy of this data folder is running")
        self._is_checked = True
        with suppress(KeyStoreBlocked):
            await self.renew_epoch()

    async def check_epoch(self, batch: SyncBatch, *, first: bool) -> None:
        """Check an epoch that came with a sync. Raises: AnotherCopyRuns.

        The first sync may bring the foreign epoch that `check_at_start` already replaced.
        """
        await self._installations.check(batch.installation)
        value = batch.epoch
        if first and value in self._unknown_epochs:
            return
        if value and await self._is_foreign(value):
            await self._record_foreign(value, None)
            await self._health.note("copies", "warn", COPY_SEEN)
            await self.renew_epoch()

    async def note_foreign_message(self, event_id: str) -> None:
        """Record an unknown message with our tag, at most once an hour; epochs are better evidence."""
        now = self._clock.monotonic()
        seen_at = [*self._unknown_epochs.values(), self._foreign_message_at]
        if event_id and not any(now - at < SECOND_COPY_SECONDS for at in seen_at):
            self._foreign_message_at = now
            await self._store_evidence(event_id, None)
            await self._health.note("copies", "warn", COPY_SEEN)

    async def before_sending(self, *, encrypted: bool) -> None:
        """Store a new epoch if the last one is old.

        An unencrypted message does not wait for a blocked key store. Raises: KeyStoreBlocked.
        """
        since = self._renewed_at
        if since is not None and self._clock.monotonic() - since < ACTIVE_SECONDS:
            return
        if self._client.keys.store.trouble and not encrypted:
            return
        async with self._renewal_lock:
            if self._renewed_at == since:
                try:
                    await self.renew_epoch()
                except KeyStoreBlocked:
                    if encrypted:
                        raise

    async def renew_epoch(self) -> None:
        """Upload a new epoch, after storing it in our database and beside the key store."""
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
            self._renewed_at = self._clock.monotonic()
        self._pending = ""

    async def _is_foreign(self, epoch_at_homeserver: str) -> bool:
        known = await self._store.values(self._client.account.device_id)
        return (
            classify_epoch(epoch_at_homeserver, known, self._client.epochs.beside_keys) == "foreign"
        )

    async def _store_evidence(self, evidence: str, since: datetime | None) -> None:
        """Store the evidence.

        Requests new Megolm sessions first; an unneeded rotation does no harm.
        """
        self._client.rotate_keys()
        async with self._database.transaction() as tx:
            # Without `since` there is no lost time that people would have to know.
            await self._store.notice(tx, evidence, since, settled=since is None)
        known = since.isoformat() if since else "unknown"
        log.warning("restore or second copy detected since=%s", known)

    async def _record_foreign(self, value: str, since: datetime | None) -> None:
        await self._store_evidence(value, since)
        now = self._clock.monotonic()
        recent = {
            epoch: at
            for epoch, at in self._unknown_epochs.items()
            if now - at < SECOND_COPY_SECONDS
        }
        self._unknown_epochs = {**recent, value: now}
        if len(self._unknown_epochs) > 1:
            raise AnotherCopyRuns(RUNS_BESIDE)

    async def _note_refusal(self, error: SendRefused) -> None:
        """Go on without epochs if the homeserver refuses them: then only message tags show a rollback."""
        self._renewed_at = self._clock.monotonic()
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
        return self.tag.txn_id.removeprefix(TXN_ID_PREFIX).rpartition("-")[0]

    @property
    def is_part(self) -> bool:
        """True if it is a part of that message, not one of the edits that streamed a draft."""
        return self.tag.txn_id == f"{TXN_ID_PREFIX}{self.outbox_id}-{self.tag.n}"


@dataclass(frozen=True, slots=True)
class Tags:
    """The cause hashes of our messages in the rooms: what they answered before the rollback."""

    hasher: MessageTags
    by_room: Mapping[str, Collection[str]]
    """The cause hashes of each room."""

    def has(self, purpose: Purpose, of: str) -> bool:
        """Check if an event was answered, or a task's message sent, in any room."""
        return any(
            self.hasher.cause_hash(room, purpose, of) in hashes
            for room, hashes in self.by_room.items()
        )


def own_events(tags: MessageTags, room_id: str, events: Iterable[Json]) -> list[OwnEvent]:
    """Return our own tagged events among the events of a room."""
    return [
        OwnEvent(room_id, str(event["event_id"]), tag, edited_by(event))
        for event in events
        if (tag := tags.read(room_id, event)) is not None and tag.txn_id.startswith(TXN_ID_PREFIX)
    ]


def unfinished_drafts(events: Sequence[OwnEvent]) -> list[OwnEvent]:
    """Return drafts that never got their final edit, and later edits of finished messages that
    were cut off (X-055).
    """
    ended = {event.edits: n for n, event in enumerate(events) if event.tag.final and event.edits}
    open_ = [
        event
        for n, event in enumerate(events)
        if not event.tag.final and ended.get(event.edits or event.event_id, -1) < n
    ]
    drafts = {event.event_id for event in open_ if event.edits is None} - ended.keys()
    return [
        event for event in open_ if event.event_id in drafts or event.edits not in {None, *drafts}
    ]


def answered_rows(
    rows: Sequence[OpenRow],
    tags: Tags,
    events_by_room: Mapping[str, Sequence[Json]],
    us: str,
) -> list[OpenRow]:
    """Return the rows that need no answer any more.

    Messages of a conversation are answered in order. So a message before an answered one is done,
    too: it was skipped, or its answer is lost.
    """
    done = {row.event_id for row in rows if tags.has("answer", row.event_id)}
    for room_id, events in events_by_room.items():
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
    positions = {str(event["event_id"]): n for n, event in enumerate(events)}
    here = [row for row in rows if row.room_id == room_id and row.kind in ("message", "command")]
    by_hash = {tags.hasher.cause_hash(room_id, "answer", row.event_id): row for row in here}
    requests = [OpenRequest(positions.get(row.event_id, -1), it) for it, row in by_hash.items()]
    ours = [(n, event) for n, event in enumerate(events) if event.get("sender") == us]
    tagged = [(n, tags.hasher.read(room_id, event), is_taken(event, us)) for n, event in ours]
    sent = [(n, tag) for n, tag, is_redacted in tagged if tag or is_redacted]
    return {by_hash[it].event_id for it in answered_requests(requests, sent)}


def is_taken(event: Json, us: str) -> bool:
    """Check if an event is a message that somebody else redacted; our own redactions do not count."""
    is_message = event.get("type") in ("m.room.message", "m.room.encrypted")
    return is_message and is_gone(event) and redactor(event) != us


class Reconciliation:
    """Updates the data after a rollback by the events in the rooms, with the first sync."""

    def __init__(self, client: MatrixClient, stores: Stores, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._rollbacks = RollbackStore(stores.database, clock)

    async def settle(self, tx: Transaction, events_by_room: Mapping[str, Sequence[Json]]) -> None:
        """Find out what we sent before a rollback, if there was one or these events show one."""
        ours = self._own_events(events_by_room)
        enqueued = await self._stores.outbox.enqueued(tx, [event.outbox_id for event in ours])
        rollback = await self._rollbacks.unsettled(tx)
        if rollback is None:
            unknown = [event for event in ours if event.outbox_id not in enqueued]
            if not unknown:
                return
            rollback = await self._record_rollback(tx, unknown[0])
        final = [event for event in ours if event.tag.final]
        tags = Tags(
            self._client.tags,
            {room: {e.tag.tag for e in final if e.room_id == room} for room in events_by_room},
        )
        await self._mark_sent(tx, [e for e in ours if e.outbox_id in enqueued and e.is_part])
        await self._redact_unfinished(
            tx, [event for event in unfinished_drafts(ours) if event.outbox_id not in enqueued]
        )
        await self._finish_occurrences(tx, tags)
        await self._finish_results(tx, tags)
        rows = answered_rows(
            await self._stores.inbox.all_open(tx),
            tags,
            events_by_room,
            self._client.account.user_id,
        )
        for row in rows:
            cast = await self._stores.casts.running(row.event_id)
            await self._end_cast(tx, cast.id if cast else None)
            if row.edits is not None:
                await self._stores.inbox.give_up_versions(tx, row.edits, row.seq)
            if (draft := await editable_row(tx, row.event_id, None)) is not None:
                await drop_draft(tx, draft.id)
        await self._stores.inbox.close(tx, rows)
        if rollback is not None and rollback.since is not None:
            unanswered = {row.event_id for row in rows if not tags.has("answer", row.event_id)}
            active_rooms = {room for room, events in events_by_room.items() if events}
            await self._notify_rooms(tx, rollback, rollback.since, rows, unanswered, active_rooms)
        await self._rollbacks.settle(tx)

    async def unknown(self, events_by_room: Mapping[str, Sequence[Json]]) -> str:
        """Return an event of ours that this copy never enqueued: another copy runs; "" if there is none."""
        ours = self._own_events(events_by_room)
        if not ours:
            return ""
        ids = [event.outbox_id for event in ours]
        enqueued = await self._stores.outbox.enqueued(self._stores.database, ids)
        return next((event.event_id for event in ours if event.outbox_id not in enqueued), "")

    def _own_events(self, events_by_room: Mapping[str, Sequence[Json]]) -> list[OwnEvent]:
        tags = self._client.tags
        return [
            event
            for room_id, events in events_by_room.items()
            for event in own_events(tags, room_id, events)
        ]

    async def _record_rollback(self, tx: Transaction, unknown: OwnEvent) -> Rollback | None:
        """Store a rollback: a message with our tag was never enqueued here."""
        since = await self._stores.inbox.last_sync(self._client.account.user_id)
        known = since.isoformat() if since else "never"
        log.warning("restore or second copy detected since=%s event=%s", known, unknown.event_id)
        self._client.rotate_keys()
        await self._rollbacks.notice(tx, unknown.tag.txn_id, since, settled=False)
        return await self._rollbacks.unsettled(tx)

    async def _mark_sent(self, tx: Transaction, sent: Sequence[OwnEvent]) -> None:
        """Mark waiting messages as sent whose events are in their rooms."""
        for outbox_id in {event.outbox_id for event in sent}:
            parts = [event for event in sent if event.outbox_id == outbox_id]
            numbered = {part.tag.n: (part.tag.txn_id, part.event_id) for part in parts}
            room_id, of = parts[0].room_id, parts[0].tag.of
            await self._stores.outbox.mark_parts_sent(tx, outbox_id, room_id, numbered, of)

    async def _redact_unfinished(self, tx: Transaction, unfinished: Sequence[OwnEvent]) -> None:
        """Redact unfinished streamed answers: their messages are answered anew (X-055)."""
        for event in unfinished:
            room = self._client.room(event.room_id)
            scope = scope_of(room, self._client.account, self._policy)
            conversation = await self._stores.conversations.in_room(tx, event.room_id, scope)
            await self._stores.retractions.redact_event(
                tx, conversation, event.room_id, event.event_id
            )

    async def _finish_occurrences(self, tx: Transaction, tags: Tags) -> None:
        """Mark due tasks and their runs as done if their messages were sent."""
        stores, now = self._stores, self._clock.now()
        for conversation_id in await stores.runs.rooms(tx):
            for run in await stores.runs.open_in(tx, conversation_id):
                if tags.has("occurrence", cause(run.task_id, run.due_at)):
                    await self._end_cast(tx, run.cast_id)
                    await stores.runs.done(tx, run, "", None)
        await stores.occurrences.release(tx)  # a task held here may have sent its message
        due_tasks = await stores.occurrences.due(tx, MOST_TASKS)
        claims = [
            it for due in due_tasks if (it := await catch_bugs(self._claim_of(due), due.task.id))
        ]
        causes = [(it, cause(it.due.task.id, it.due_at)) for it in claims]
        sent = [it for it, name in causes if tags.has("occurrence", name)]
        recorded = await stores.occurrences.claimed(tx, sent)
        for it in sent:
            conversation = await self._conversation_for(tx, it.due.made_in)
            if conversation is not None and it.due.task.id not in recorded:
                await stores.occurrences.take(tx, [(it, "done", conversation, None)])
        await stores.occurrences.advance(tx, sent)
        await complete(tx, [it.due.task.id for it in sent], now)

    async def _claim_of(self, due: Due) -> Claim:
        now = self._clock.now()
        return claim(due, now, now, self._stores.tasks.zone)

    async def _conversation_for(self, tx: Transaction, made_in: str | None) -> str | None:
        """Return the conversation in which a task's message is recorded."""
        if made_in is not None:
            return made_in
        targets = await self._stores.conversations.target_conversations(
            tx, self._stores.owner.scope
        )
        return targets[0].id if targets else None

    async def _finish_results(self, tx: Transaction, tags: Tags) -> None:
        """Mark sub-sessions as reported if their results were."""
        subs, inbox = self._stores.sub_sessions, self._stores.inbox
        for conversation, room_id in await subs.open_rooms(tx):
            for sub in await subs.open_in(tx, conversation):
                event_id = f"{RESULT}{sub.room_turn}/{sub.id}"
                if not sub.is_open or not tags.has("answer", event_id):
                    continue
                result = Incoming(
                    event_id,
                    room_id,
                    sender="",
                    sender_name="",
                    origin="system",
                    kind="event",
                    body="",
                    sent_at=self._clock.now(),
                    direct=False,
                )
                await inbox.store(tx, conversation, result, "answered")
                for member in await subs.of_workflow(tx, sub.workflow):
                    if member.is_open:
                        await self._end_cast(tx, member.cast_id)
                        await subs.close(tx, member.id, "stopped", "")

    async def _end_cast(self, tx: Transaction, cast_id: str | None) -> None:
        if cast_id is not None:
            await self._stores.casts.end(tx, cast_id, "truncated", "restored", "")

    async def _notify_rooms(
        self,
        tx: Transaction,
        rollback: Rollback,
        since: datetime,
        rows: Sequence[OpenRow],
        unanswered: Collection[str],
        active_rooms: Collection[str],
    ) -> None:
        """Notify rooms with new events about the lost time and messages; `status` shows the rest."""
        zone = self._stores.tasks.zone
        still_locked = [row for row in await self._stores.inbox.all_open(tx) if row.is_locked]
        lost = len(still_locked) + sum(row.is_locked for row in rows)
        time = _between(since, rollback.noticed_at, self._clock.now(), zone)
        named = f"; {counted(lost, 'message')} of it cannot be decrypted any more" if lost else ""
        text = f"from a backup: everything said between {time} is lost{named}"
        await self._stores.health.note_in(tx, "restored", "warn" if lost else "ok", text)
        current_room = self._client.moves.current_room  # follows a replaced room to its successor
        for room_id in sorted(
            {current_room(room_id) for room_id in self._client.rooms if room_id in active_rooms}
        ):
            room = self._client.room(room_id)
            if not self._policy.allowed.isdisjoint(room.members):
                rows_here = [row for row in rows if current_room(row.room_id) == room_id]
                await self._notify_room(tx, room, time, rows_here, unanswered)

    async def _notify_room(
        self,
        tx: Transaction,
        room: RoomView,
        time: str,
        rows: Sequence[OpenRow],
        unanswered: Collection[str],
    ) -> None:
        account = self._client.account
        direct = is_direct(room, account, self._policy)
        person = next(user for user in room.members if user != account.user_id)
        encrypted = room.encrypted or await self._stores.known.is_encrypted(tx, room.room_id)
        # Messages of a direct chat are not quoted where others can read now.
        listed = [row for row in rows if row.direct == direct or row.is_locked]
        scope = scope_of(room, account, self._policy)
        await self._stores.outbox.enqueue(
            tx,
            await self._stores.conversations.in_room(tx, room.room_id, scope),
            restore_notice(time, listed, unanswered, self._stores.tasks.zone, encrypted=encrypted),
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
    time: str,
    rows: Sequence[OpenRow],
    unanswered: Collection[str],
    zone: ZoneInfo,
    *,
    encrypted: bool,
) -> str:
    """Return the notice for a room: the lost time, and the messages that were sent to us in it.

    `unanswered`: the events among them that got no answer.
    """
    readable = [row for row in rows if not row.is_locked and row.body]
    undecryptable = sum(row.is_locked for row in rows)
    blocks = [
        RESTORED.format(time=time),
        _listed(ANSWERED, [row for row in readable if row.event_id not in unanswered], zone),
        _listed(PASSED, [row for row in readable if row.event_id in unanswered], zone),
        UNREADABLE.format(count=counted(undecryptable, "message")) if undecryptable else "",
        NEW_SESSION if encrypted else "",
    ]
    return "\n\n".join(filter(None, blocks))


def _listed(title: str, rows: Sequence[OpenRow], zone: ZoneInfo) -> str:
    """List the newest of these rows under a title; "" if there are none."""
    lines = [
        f"- {row.sent_at.astimezone(zone):%Y-%m-%d %H:%M} {row.sender_name}: {quoted(row.body)}"
        for row in rows[-MOST_LISTED:]
    ]
    if len(rows) > MOST_LISTED:
        lines.insert(0, f"- (and {len(rows) - MOST_LISTED} before these)")
    return "\n".join([title, "", *lines]) if lines else ""


def quoted(body: str) -> str:
    """Return the beginning of a message on one line."""
    line = " ".join(body.split())
    cut = line if len(line) <= MOST_QUOTED_CHARACTERS else f"{line[:MOST_QUOTED_CHARACTERS]}…"
    return plain(cut)
