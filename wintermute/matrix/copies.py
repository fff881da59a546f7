"""Notices that our data are an earlier copy of what was used since, or that another copy is at work.

Everything we said carries a mark that only we can make, which names what was answered or said. So it
is not said again, and people hear which of their messages we know no longer.

What the rooms say of the time that an earlier copy of our data knows nothing of (F-009).
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
from wintermute.mailbox.growing import drop_draft, former_row
from wintermute.mailbox.inbox import RESULT, Inbox, OpenRow
from wintermute.mailbox.outbox import ANYBODY, Purpose
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, RoomView, is_direct, scope_of
from wintermute.matrix.instances import Installation, Installations
from wintermute.matrix.key_store import MOST_EPOCHS, standing
from wintermute.matrix.marks import Mark, Marks, Owed, settled
from wintermute.matrix.relations import edited_by, is_gone, redactor
from wintermute.matrix.sieve import SyncBatch
from wintermute.messages import PERSON, Incoming, Json
from wintermute.stores import Stores
from wintermute.tasks.occurrences import Claim, Due, cause, claim
from wintermute.tasks.tasks import complete
from wintermute.text import counted, plain
from wintermute.work.runner import guarded

log = logging.getLogger(__name__)

ACTIVE_SECONDS = 600.0
"""How long a value stands while we are active: what a copy from within does not know shows in the rooms."""
AT_ONCE_SECONDS = 3600.0
"""Two foreign values within this are no copy put back, but one that runs beside us."""
RUNS_BESIDE = (
    "another copy of this data folder is at work with the same login, and the two damage each"
    " other's encryption: stop one of them, then start this one again. A second bot needs an"
    " account and a "
    "folder of its own (`wintermute init DIR`)"
)
MET = "another copy of this data folder was running -> make sure that only one runs"


@dataclass(frozen=True, slots=True)
class Rollback:
    """That our data went back. `since`: when they were last in use, if they ever were."""

    seq: int
    since: datetime | None
    noticed_at: datetime


_rollback = reader(Rollback)


class CopyStore:
    """The values we have had the homeserver keep, and the copies that were noticed."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def values(self, device_id: str) -> frozenset[str]:
        """Those of a device that are remembered."""
        rows = await self._database.rows(
            "SELECT value FROM epochs WHERE device_id = ?", (device_id,)
        )
        return frozenset(row["value"] for row in rows)

    async def add(self, device_id: str, value: str) -> None:
        """Remember one more, before the homeserver has it."""
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
        """Keep a sign of a copy, once."""
        await tx.execute(
            "INSERT INTO rollbacks (evidence, since, noticed_at, settled) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (evidence) DO NOTHING",
            (sign, stamp(since) if since else None, stamp(self._clock.now()), settled),
        )

    async def unsettled(self, tx: Transaction) -> Rollback | None:
        """The copy of whose time it is not known yet what was said; the oldest."""
        row = await tx.row("SELECT * FROM rollbacks WHERE NOT settled ORDER BY seq LIMIT 1")
        return _rollback(row) if row else None

    async def settle(self, tx: Transaction) -> None:
        """All of it is known, and told."""
        await tx.execute("UPDATE rollbacks SET settled = 1 WHERE NOT settled")


class Copies:
    """Keeps the value at the homeserver new, and looks whose it is."""

    def __init__(
        self,
        client: MatrixClient,
        database: Database,
        clock: Clock,
        new_id: NewId,
        *,
        take_over: bool = False,
    ) -> None:
        """`take_over`: other installations on our account give way to this one (F-047)."""
        self._client = client
        self._health = Health(database, clock)
        ours = Installation(
            client.marks.installation, client.account.device_id, takes_over=take_over
        )
        self._beside = Installations(client.epochs, self._health, clock, ours)
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._replacing = asyncio.Lock()
        self._pending = ""
        self._looked = False
        self._replaced_at: float | None = None
        self._foreign: dict[str, float] = {}  # when each foreign value was met
        self._overheard_at = -AT_ONCE_SECONDS
        self._store = CopyStore(database, clock)
        self._inbox = Inbox(database, clock)

    async def arrive(self) -> None:
        """At the start, before anything is heard: whose is the value, and put one of ours there.

        A value of ours can be put there later, while the key store is blocked: nothing is encrypted
        before that, and what is said in clear shows in the rooms.

        Raises: AnotherCopyRuns; KeyStoreBlocked while nobody can know or keep whose it is.
        """
        await self._beside.arrive()
        if self._replaced_at is not None or (self._looked and self._client.keys.store.trouble):
            return
        try:
            served = await self._client.epochs.served()
        except SendRefused as error:
            await self._refused(error)
            return
        if await self._is_foreign(served):
            since = await self._inbox.last_sync(self._client.account.user_id)
            await self._meet(served, since)
        elif await self._health.part("copies") is not None:
            await self._health.note("copies", "ok", "no other copy of this data folder is running")
        self._looked = True
        with suppress(KeyStoreBlocked):
            await self.replace()

    async def heard(self, batch: SyncBatch, *, first: bool) -> None:
        """A sync brought a value: whose is it? Raises: AnotherCopyRuns.

        What the first one brings may be what was met and replaced as we arrived.
        """
        await self._beside.look_at(batch.installation)
        value = batch.epoch
        if first and value in self._foreign:
            return
        if value and await self._is_foreign(value):
            await self._meet(value, None)
            await self._health.note("copies", "warn", MET)
            await self.replace()

    async def overheard(self, event_id: str) -> None:
        """Somebody else speaks with our mark: told once an hour, for values tell more of it."""
        now = self._clock.monotonic()
        met = [*self._foreign.values(), self._overheard_at]
        if event_id and not any(now - at < AT_ONCE_SECONDS for at in met):
            self._overheard_at = now
            await self._notice(event_id, None)
            await self._health.note("copies", "warn", MET)

    async def before_sending(self, *, encrypted: bool) -> None:
        """Put a new value there if the last one has stood for long.

        What goes out in clear does not wait for a key store that is blocked. Raises: KeyStoreBlocked.
        """
        since = self._replaced_at
        if since is not None and self._clock.monotonic() - since < ACTIVE_SECONDS:
            return
        if self._client.keys.store.trouble and not encrypted:
            return
        async with self._replacing:
            if self._replaced_at == since:
                try:
                    await self.replace()
                except KeyStoreBlocked:
                    if encrypted:
                        raise

    async def replace(self) -> None:
        """Put a new value at the homeserver; first it is kept here, in both places."""
        if not self._pending:
            value = self._new_id("epoch")
            self._client.epochs.keep(value)
            await self._store.add(self._client.account.device_id, value)
            self._pending = value
        try:
            await self._client.epochs.serve(self._pending)
        except SendRefused as error:
            await self._refused(error)
        else:
            self._replaced_at = self._clock.monotonic()
        self._pending = ""

    async def _is_foreign(self, served: str) -> bool:
        known = await self._store.values(self._client.account.device_id)
        return standing(served, known, self._client.epochs.beside_keys) == "foreign"

    async def _notice(self, sign: str, since: datetime | None) -> None:
        """That keys are renewed is kept first: to do that without need does no harm."""
        self._client.renew_keys()
        async with self._database.transaction() as tx:
            await self._store.notice(tx, sign, since, settled=since is None)
        log.warning("copy noticed since=%s", since.isoformat() if since else "another runs")

    async def _meet(self, value: str, since: datetime | None) -> None:
        await self._notice(value, since)
        now = self._clock.monotonic()
        lately = {met: at for met, at in self._foreign.items() if now - at < AT_ONCE_SECONDS}
        self._foreign = {**lately, value: now}
        if len(self._foreign) > 1:
            raise AnotherCopyRuns(RUNS_BESIDE)

    async def _refused(self, error: SendRefused) -> None:
        """Then only what was said tells of a copy."""
        self._replaced_at = self._clock.monotonic()
        log.warning("account data refused reason=%s", error)
        text = f"the homeserver keeps no account data for us: {error} -> ask its admin"
        await self._health.note("copies", "warn", text)


TRANSACTION = "wm-"
MOST_TASKS = 10_000
"""Overdue at once; more would be said again."""
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
class OwnEvent:
    """An event of ours in a room, by its mark. `edits`: the one that has its text from then on."""

    room_id: str
    event_id: str
    mark: Mark
    edits: str | None = None

    @property
    def outbox_id(self) -> str:
        """The message that it is a part of."""
        return self.mark.txn_id.removeprefix(TRANSACTION).rpartition("-")[0]

    @property
    def is_part(self) -> bool:
        """Decide if it is a part of that message, and not one of the edits by which a draft grows."""
        return self.mark.txn_id == f"{TRANSACTION}{self.outbox_id}-{self.mark.n}"


@dataclass(frozen=True, slots=True)
class Tags:
    """What was answered and said, by the tags that are in the rooms."""

    marks: Marks
    found: Mapping[str, Collection[str]]
    """Of each room."""

    def has(self, purpose: Purpose, of: str) -> bool:
        """Whether an event was answered, or a task said something at its time, wherever that was."""
        return any(self.marks.tag(room, purpose, of) in tags for room, tags in self.found.items())


def said_in(marks: Marks, room_id: str, events: Iterable[Json]) -> list[OwnEvent]:
    """What we said among the events of a room."""
    return [
        OwnEvent(room_id, str(event["event_id"]), mark, edited_by(event))
        for event in events
        if (mark := marks.read(room_id, event)) is not None and mark.txn_id.startswith(TRANSACTION)
    ]


def unended(said: Sequence[OwnEvent]) -> list[OwnEvent]:
    """Drafts of which no answer is an edit, and edits that grew what was said before they ended (X-055)."""
    ended = {each.edits: n for n, each in enumerate(said) if each.mark.final and each.edits}
    left = [each for n, each in enumerate(said) if ended.get(each.edits or each.event_id, -1) < n]
    growing = [each for each in left if not each.mark.final]
    drafts = {each.event_id for each in growing if each.edits is None} - ended.keys()
    return [
        each for each in growing if each.event_id in drafts or each.edits not in {None, *drafts}
    ]


def answered(
    rows: Sequence[OpenRow], tags: Tags, rooms: Mapping[str, Sequence[Json]], us: str
) -> list[OpenRow]:
    """Those rows that need no answer any more.

    In a conversation messages are answered in their order, so what was said before one that was
    answered is dealt with too: it was given up, or its answer is gone.
    """
    done = {row.event_id for row in rows if tags.has("answer", row.event_id)}
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
    """What was answered by something of ours that somebody else took back since."""
    place = {str(event["event_id"]): n for n, event in enumerate(events)}
    here = [row for row in rows if row.room_id == room_id and row.kind in ("message", "command")]
    by_tag = {tags.marks.tag(room_id, "answer", row.event_id): row for row in here}
    owed = [Owed(place.get(row.event_id, -1), tag) for tag, row in by_tag.items()]
    ours = [(n, event) for n, event in enumerate(events) if event.get("sender") == us]
    said = [(n, tags.marks.read(room_id, event), is_taken(event, us)) for n, event in ours]
    told = [(n, mark) for n, mark, taken in said if mark or taken]
    return {by_tag[tag].event_id for tag in settled(owed, told)}


def is_taken(event: Json, us: str) -> bool:
    """Decide if an event is a message that somebody else redacted: what we did stands for no answer."""
    is_message = event.get("type") in ("m.room.message", "m.room.encrypted")
    return is_message and is_gone(event) and redactor(event) != us


class Restored:
    """Brings a copy up to what the rooms say, in the transaction of the first sync."""

    def __init__(self, client: MatrixClient, stores: Stores, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._copies = CopyStore(stores.database, clock)

    async def settle(self, tx: Transaction, rooms: Mapping[str, Sequence[Json]]) -> None:
        """Know what was said meanwhile, if these data are a copy, or if that shows now."""
        marks, said = self._client.marks, self._said_in(rooms)
        promised = await self._stores.outbox.promised(tx, [each.outbox_id for each in said])
        copy = await self._copies.unsettled(tx)
        if copy is None:
            unknown = [each for each in said if each.outbox_id not in promised]
            if not unknown:
                return
            copy = await self._shown(tx, unknown[0])
        final = [each for each in said if each.mark.final]
        tags = Tags(
            marks, {room: {s.mark.tag for s in final if s.room_id == room} for room in rooms}
        )
        await self._said(tx, [s for s in said if s.outbox_id in promised and s.is_part])
        await self._take_away(tx, [s for s in unended(said) if s.outbox_id not in promised])
        await self._occurrences(tx, tags)
        await self._results(tx, tags)
        rows = answered(
            await self._stores.inbox.all_open(tx), tags, rooms, self._client.account.user_id
        )
        for row in rows:
            cast = await self._stores.casts.running(row.event_id)
            await self._end(tx, cast.id if cast else None)
            if row.edits is not None:
                await self._stores.inbox.give_up_versions(tx, row.edits, row.seq)
            if (draft := await former_row(tx, row.event_id, None)) is not None:
                await drop_draft(tx, draft.id)
        await self._stores.inbox.close(tx, rows)
        if copy is not None and copy.since is not None:
            passed = {row.event_id for row in rows if not tags.has("answer", row.event_id)}
            spoken_in = {room for room, events in rooms.items() if events}
            await self._tell(tx, copy, copy.since, rows, passed, spoken_in)
        await self._copies.settle(tx)

    async def unknown(self, rooms: Mapping[str, Sequence[Json]]) -> str:
        """An event of ours that was never promised here: another run said it; "" where there is none."""
        said = self._said_in(rooms)
        if not said:
            return ""
        ids = [each.outbox_id for each in said]
        known = await self._stores.outbox.promised(self._stores.database, ids)
        return next((each.event_id for each in said if each.outbox_id not in known), "")

    def _said_in(self, rooms: Mapping[str, Sequence[Json]]) -> list[OwnEvent]:
        marks = self._client.marks
        return [each for room, events in rooms.items() for each in said_in(marks, room, events)]

    async def _shown(self, tx: Transaction, said: OwnEvent) -> Rollback | None:
        """Somebody with our keys said what we never promised: these data are a copy."""
        since = await self._stores.inbox.last_sync(self._client.account.user_id)
        known = since.isoformat() if since else "never"
        log.warning("copy noticed since=%s event=%s", known, said.event_id)
        self._client.renew_keys()
        await self._copies.notice(tx, said.mark.txn_id, since, settled=False)
        return await self._copies.unsettled(tx)

    async def _said(self, tx: Transaction, said: Sequence[OwnEvent]) -> None:
        """What waits here may be in its room."""
        for outbox_id in {each.outbox_id for each in said}:
            parts = [each for each in said if each.outbox_id == outbox_id]
            numbered = {each.mark.n: (each.mark.txn_id, each.event_id) for each in parts}
            room_id, of = parts[0].room_id, parts[0].mark.of
            await self._stores.outbox.found(tx, outbox_id, room_id, numbered, of)

    async def _take_away(self, tx: Transaction, begun: Sequence[OwnEvent]) -> None:
        """Take away what grew in a room and will have no end: its message is answered anew (X-055)."""
        for each in begun:
            scope = scope_of(self._client.room(each.room_id), self._client.account, self._policy)
            home = await self._stores.conversations.in_room(tx, each.room_id, scope)
            await self._stores.retractions.take_away(tx, home, each.room_id, each.event_id)

    async def _occurrences(self, tx: Transaction, tags: Tags) -> None:
        """What tasks said at their times, and what their runs told, is done."""
        stores, now = self._stores, self._clock.now()
        for conversation_id in await stores.runs.rooms(tx):
            for run in await stores.runs.open_in(tx, conversation_id):
                if tags.has("occurrence", cause(run.task_id, run.due_at)):
                    await self._end(tx, run.cast_id)
                    await stores.runs.done(tx, run, "", None)
        await stores.occurrences.release(tx)  # what was held here may have been said there
        found = await stores.occurrences.due(tx, MOST_TASKS)
        claims = [each for due in found if (each := await guarded(self._claimed(due), due.task.id))]
        times = [(each, cause(each.due.task.id, each.due_at)) for each in claims]
        said = [each for each, name in times if tags.has("occurrence", name)]
        known = await stores.occurrences.claimed(tx, said)
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
        homes = await self._stores.conversations.homes(tx, self._stores.owner.scope)
        return homes[0].id if homes else None

    async def _results(self, tx: Transaction, tags: Tags) -> None:
        """What sub-sessions found was told."""
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

    async def _tell(
        self,
        tx: Transaction,
        copy: Rollback,
        since: datetime,
        rows: Sequence[OpenRow],
        passed: Collection[str],
        spoken_in: Collection[str],
    ) -> None:
        """Tell rooms with new events from when to when, and what must be said again; status the rest."""
        zone = self._stores.tasks.zone
        still = [row for row in await self._stores.inbox.all_open(tx) if row.is_locked]
        lost = len(still) + sum(row.is_locked for row in rows)
        time = _between(since, copy.noticed_at, self._clock.now(), zone)
        named = f"; {counted(lost, 'message')} of it cannot be decrypted any more" if lost else ""
        text = f"from a backup: everything said between {time} is lost{named}"
        await self._stores.health.note_in(tx, "restored", "warn" if lost else "ok", text)
        home = self._client.moves.home  # what is said in a room that is over is said there
        for room_id in sorted({home(each) for each in self._client.rooms if each in spoken_in}):
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
        account = self._client.account
        direct = is_direct(view, account, self._policy)
        person = next(user for user in view.members if user != account.user_id)
        encrypted = view.encrypted or await self._stores.known.is_encrypted(tx, view.room_id)
        # What somebody said alone with us is not named where others are by now.
        asked = [row for row in rows if row.direct == direct or row.is_locked]
        scope = scope_of(view, account, self._policy)
        await self._stores.outbox.enqueue(
            tx,
            await self._stores.conversations.in_room(tx, view.room_id, scope),
            notice(time, asked, passed, self._stores.tasks.zone, encrypted=encrypted),
            kind="notice",
            meant_for=f"{PERSON}{person}" if direct else ANYBODY,
        )


def _between(since: datetime, until: datetime, now: datetime, zone: ZoneInfo) -> str:
    """The lost time in words, short where all of it is today."""
    begun, ended, today = (moment.astimezone(zone) for moment in (since, until, now))
    if begun.date() == ended.date() == today.date():
        return f"{begun:%H:%M} and {ended:%H:%M} today"
    return f"{in_words(since, zone)} and {in_words(until, zone)}"


def notice(
    time: str, asked: Sequence[OpenRow], passed: Collection[str], zone: ZoneInfo, *, encrypted: bool
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
