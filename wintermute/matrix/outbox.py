"""Sends what the outbox holds: in order per conversation, each part until the homeserver names its event.

How fast signs may follow each other, so that what a homeserver takes is left for answers.
"""

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from wintermute.clock import LONGEST_NAP, Clock, until_set
from wintermute.conversation import words
from wintermute.db import Database, Transaction
from wintermute.errors import (
    AccountBlocked,
    AudienceChanged,
    HomeserverUnavailable,
    KeyStoreBlocked,
    SendRefused,
)
from wintermute.mailbox.growing import drop_draft, may_continue, open_event, refuse_edits
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import OutboxPart, Outgoing
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.content import EDIT_MOST, LIVE, content, edit, parts
from wintermute.matrix.copies import Copies
from wintermute.matrix.drafts import DraftRow, Drafts, GrowingAnswer
from wintermute.matrix.inbox import OUTBOX_KEY, Policy, RoomView, may_read
from wintermute.matrix.marks import Mark
from wintermute.messages import Json, mapping
from wintermute.stores import Stores

BURST = 10
PER_SECOND = 0.2
"""What Synapse takes from one user unless somebody lifts its limits (`rc_message`)."""
SPARE = 3
"""So many are always left for an answer, and for what counts as well and is not seen here: joining."""


class Pace:
    """Counts our events as a homeserver with Synapse's limits would.

    No homeserver tells its limits before they are reached. So signs go as fast as they can until it
    asks us to slow down for the first time, and from then on leave something over.
    """

    def __init__(self) -> None:
        self._limited = False
        self._counted = 0.0
        self._at = 0.0

    def sent(self, now: float) -> None:
        """An event of ours went out."""
        self._counted = self._still_counted(now) + 1

    def slowed(self, now: float) -> None:
        """The homeserver asks us to slow down: by its own count we have had all there is.

        What it took before it first did so was within its limits, however much that was.
        """
        counted = self._still_counted(now)
        self._counted = max(counted, BURST) if self._limited else BURST
        self._limited = True

    def sign(self, now: float) -> float:
        """Count a sign if it may go now, which is 0; else the seconds until it may be asked again."""
        over = self._still_counted(now) - (BURST - SPARE - 1)
        if self._limited and over > 0:
            return over / PER_SECOND
        self.sent(now)
        return 0.0

    def edit(self, now: float) -> float:
        """Seconds until more of an answer that grows may go: before signs, and after all else."""
        over = self._still_counted(now) - (BURST - SPARE)
        return over / PER_SECOND if self._limited and over > 0 else 0.0

    def _still_counted(self, now: float) -> float:
        """What a homeserver still counts at this time."""
        self._counted = max(0.0, self._counted - (now - self._at) * PER_SECOND)
        self._at = now
        return self._counted


log = logging.getLogger(__name__)

REMEMBERED = timedelta(hours=23)  # Synapse forgets transaction ids after 24 (notes/matrix §7)
SKEW = timedelta(minutes=5)  # between our clock and the homeserver's
SHORT = 1000  # characters that are rendered sooner than another thread would begin to
SHORTEST_WAIT = 0.5
LONGEST_WAIT = 5.0
TOLD_SECONDS = 60.0
IS_THERE = "M_DUPLICATE_ANNOTATION"
"""The sign is on its event already."""
IS_GONE = "M_NOT_FOUND"
"""The homeserver has no such event any more."""
NO_ROOT = "M_UNKNOWN"
"""Synapse's refusal of a message in a thread whose root it does not have, or not in this room."""
KEPT_BACK = (
    "I held an answer back, because others can now read here. The person it is for gets it in"
    " another private chat with me, or here once this chat is private again."
)
ELSEWHERE = "This belongs to another chat of ours, which is not private at the moment:\n\n"


def must_look(part: OutboxPart, device_id: str, now: datetime) -> bool:
    """Whether a part may already be in the room although sending it again would double it (X-013)."""
    if not part.attempts or part.first_attempt_at is None:
        return False
    since = now - part.first_attempt_at  # below 0 if the clock was set back: who knows how long
    return part.device_id != device_id or not timedelta() <= since <= REMEMBERED


def events_of(row: Outgoing, event_id: str | None = None) -> list[tuple[str, Json]]:
    """The events a message becomes, each with its transaction id; or the signs that a row holds.

    `event_id`: the event of ours that the first of them is an edit of.
    """
    is_split = row.continues is not None or row.grows is not None
    pieces = parts(row.body, edits=is_split) if row.reacts_to is None else row.body.split()
    if row.changes is not None:
        pieces = [row.body]
    elif row.grows is not None:
        pieces = pieces[:1]
    said = [content_of(row, piece, n) for n, piece in enumerate(pieces)]
    if said and event_id is not None:
        said[0] = edit(content(pieces[0], most=EDIT_MOST), event_id)
    return [(f"wm-{row.id}-{n}", each) for n, each in enumerate(said)]


def about(row: Outgoing, n: int = 0) -> Json:
    """The part of a message's content that says where it belongs and, in its first event, to whom."""
    reply = {"m.in_reply_to": {"event_id": row.replies_to or row.thread}}
    found: Json = {"m.relates_to": reply} if row.replies_to and n == 0 else {}
    if row.thread:  # what it replies to is for clients that know no threads
        thread = {"rel_type": "m.thread", "event_id": row.thread, "is_falling_back": True}
        found = {"m.relates_to": thread | reply}
    return found | ({"m.mentions": {"user_ids": [row.mentions]}} if row.mentions and n == 0 else {})


def content_of(row: Outgoing, piece: str, n: int) -> Json:
    """The content of the event `n`. What can be late is a reminder: it shows as it was written."""
    if row.redacts:
        return {"redacts": row.changes}
    if row.changes is not None:
        return edit(content(piece, "m.notice"), row.changes)
    if row.reacts_to is None:
        msgtype: Literal["m.text", "m.notice"] = "m.notice" if row.kind == "notice" else "m.text"
        said = content(piece, msgtype, literally=row.late is not None) | about(row, n)
        return said | (LIVE if row.grows else {})
    relation = {"rel_type": "m.annotation", "event_id": row.reacts_to, "key": piece}
    return {"m.relates_to": relation}


def content_now(row: Outgoing, part: OutboxPart, now: datetime) -> Json:
    """The content of a part if it is sent now: the last one of a late message says so (T-038).

    Only the first event of a transaction id counts, so each attempt may say another thing.
    """
    mark = row.mark(now)
    texts = parts(row.body) if mark else []
    last = part.n == len(texts) - 1
    return content_of(row, texts[-1] + mark, part.n) if last else part.content


class Sender:
    """The one task that sends messages; every path of the program ends here."""

    def __init__(
        self,
        client: MatrixClient,
        stores: Stores,
        copies: Copies,
        clock: Clock,
        policy: Policy,
        drafts: Drafts,
    ) -> None:
        self._client = client
        self._drafts = drafts
        self._shown: dict[str, GrowingAnswer] = {}  # as it is in an edit, by the draft's row
        self._unsure: dict[tuple[str, str], Outgoing] = {}  # edits that may yet be carried out
        self._copies = copies
        self._policy = policy
        self._stores = stores
        self._clock = clock
        self._bell = asyncio.Event()
        self._pace = Pace()
        self._delayed: dict[str, float] = {}  # when a reason was told
        self._busy: dict[tuple[str, str], asyncio.Event] = {}  # by conversation and room
        self._closing = self._taken = False
        self._sending = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def wake(self) -> None:
        """Something new is in the outbox."""
        self._bell.set()

    def grow(self, conversation_id: str, room_id: str) -> None:
        """More of an answer that grows is due there."""
        self._busy.get((conversation_id, room_id), self._bell).set()

    async def drain(self, seconds: float) -> None:
        """Begin no more sends, and let those in progress end (L-023)."""
        self._closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            log.warning("send in progress given up after=%ss", seconds)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as conversations:
            while True:
                self._bell.clear()
                waiting = await self._stores.outbox.conversations_waiting()
                for where in dict.fromkeys([*waiting, *self._drafts.growing()]):
                    if where in self._busy:
                        self._busy[where].set()
                    else:
                        self._busy[where] = asyncio.Event()
                        conversations.create_task(self._say(where))
                if await self._stores.notices.end_waits():
                    continue
                await self._news()

    async def _news(self) -> None:
        """Wait for something to say; what waited for the end of the quiet hours is that too."""
        until = self._stores.outbox.quiet_until()
        if until is None:
            await self._bell.wait()
        else:
            left = (until - self._clock.now()).total_seconds()
            await until_set(self._bell, self._clock, min(left, LONGEST_NAP))

    async def _say(self, where: tuple[str, str]) -> None:
        """Say all that a conversation has to say in a room, as long as something grows there."""
        wait, held = SHORTEST_WAIT, False
        try:
            # Read anew for each attempt: what there is to say, and how, may have changed meanwhile.
            while not self._closing and (row := await self._next(where)):
                held = self._client.is_held(row.room_id) and not row.apart
                if held:
                    return
                if pause := self._pause(row):
                    await self._rest(where, pause, row)
                    continue
                try:
                    await self._deliver(row)
                    wait = SHORTEST_WAIT
                    await self._note_account("")
                except AudienceChanged:
                    continue
                except HomeserverUnavailable as error:
                    wait = error.retry_after or min(wait * 2, LONGEST_WAIT)
                    await self._failed(where, row, error, wait)
        finally:
            del self._busy[where]
            if not self._closing and not held:
                self._bell.set()  # what came in since `next` found nothing

    async def _next(self, where: tuple[str, str]) -> Outgoing | None:
        """Find what is to be said next; more of an answer that grows when nothing else waits but signs.

        None: nothing is, nor will more be said of an answer.
        """
        while True:
            self._busy[where].clear()
            if event_id := self._drafts.take_retracted(where):
                async with self._stores.database.transaction() as tx:
                    await self._stores.retractions.take_drafts(tx, [event_id])
            if where in self._unsure:  # before all else: one that came late would undo an answer
                return self._unsure[where]
            row = await self._stores.outbox.next(*where)
            growth = self._drafts.at(where)
            is_sign = row is not None and row.reacts_to is not None and row.edits_of is None
            if growth is None or (row is not None and not is_sign):
                return row
            due = self._drafts.due_in(where)
            if due == 0:
                if grown := await self._grown(where, growth):
                    return grown
            elif row is not None or self._closing:
                return row
            else:
                await until_set(
                    self._busy[where], self._clock, LONGEST_WAIT if due is None else due
                )

    async def _grown(self, where: tuple[str, str], growth: GrowingAnswer) -> Outgoing | None:
        """The edit that shows more of an answer; None: its draft goes out first, or nothing does."""
        stores, conversation_id = self._stores, where[0]
        draft = growth.draft
        if draft is None:
            await self._begin(where, growth)
            return None
        runs, in_scope = await stores.casts.goes_on(draft.cast_id)
        event_id = await open_event(stores.database, draft.id, where[1])
        if not (runs and in_scope and event_id):
            self._drafts.finish(conversation_id)
            return None
        text = await asyncio.to_thread(self._drafts.text, growth)
        self._shown[draft.id] = growth
        txn_id = f"wm-{draft.id}-e{int(self._clock.now().timestamp() * 1_000_000)}"
        row = Outgoing(0, draft.id, where[1], "event", text, meant_for=draft.scope, live=txn_id)
        return replace(row, changes=event_id, conversation_id=conversation_id)

    async def _begin(self, where: tuple[str, str], growth: GrowingAnswer) -> None:
        """Store the draft of an answer while its cast runs, or find what it goes on in.

        It begins with words alone: they stay when it is stopped after a restart (X-062).
        """
        stores, growth = self._stores, replace(growth, doing="")
        text = await asyncio.to_thread(self._drafts.text, growth)
        async with stores.database.transaction() as tx:
            cast = await stores.casts.running(growth.row.event_id)
            if cast is None:
                self._drafts.finish(where[0])
                return
            scope = await stores.conversations.scope_of(cast.branch_id)
            outbox_id, is_new = await stores.outbox.begin_draft(
                tx, where, growth.row.event_id, text, scope
            )
        self._drafts.show_in(where[0], DraftRow(outbox_id, cast.id, scope))
        if is_new:
            self._drafts.went_out(where[0], growth)

    def _pause(self, row: Outgoing) -> float:
        """Seconds that it waits for what is said before it; a sign that waits no longer is counted."""
        if row.reacts_to is not None:
            return self._pace.sign(self._now())
        waits = row.live or (row.grows and self._is_growing(row))
        return self._pace.edit(self._now()) if waits else 0.0

    def _is_growing(self, row: Outgoing) -> bool:
        """Decide if nothing waits yet for what began with this row: its answer goes before all else."""
        return self._drafts.at((row.conversation_id, row.room_id)) is not None

    async def _failed(
        self, where: tuple[str, str], row: Outgoing, error: HomeserverUnavailable, wait: float
    ) -> None:
        """Wait until the next attempt, and until it is known who has come in meanwhile (F-002)."""
        if not isinstance(error, KeyStoreBlocked) and self._is_news(str(error)):
            log.warning("send delayed room=%s seconds=%s reason=%s", row.room_id, wait, error)
        if isinstance(error, AccountBlocked):
            await self._note_account(str(error))
        elif error.retry_after:
            self._pace.slowed(self._now())
        failed_in = self._client.poll.begun
        if row.reacts_to or (row.live and where not in self._unsure):
            await self._rest(where, wait, row)
        else:
            await self._clock.sleep(wait)
        await self._client.poll.heard_since(failed_in)

    async def _note_account(self, problem: str) -> None:
        """Keep why the homeserver takes nothing of our account; it may take all else (F-046)."""
        health = self._stores.health
        if problem:
            await health.note("account", "fail", problem)
        elif not self._taken and await health.part("account") is not None:
            await health.note("account", "ok", "the homeserver takes what is sent")
        self._taken = not problem

    def _is_news(self, reason: str) -> bool:
        """Whether it was not told for a minute: all rooms have the same trouble at once."""
        last, now = self._delayed.get(reason), self._now()
        if last is not None and now - last < TOLD_SECONDS:
            return False
        self._delayed = {reason: now}
        return True

    async def _rest(self, where: tuple[str, str], seconds: float, row: Outgoing) -> None:
        """Wait with a sign or a draft, but not with what is to be said there meanwhile.

        Each sync rings, so also the one for which a failed sign has just asked.
        """
        news, until = self._busy[where], self._now() + seconds
        while (left := until - self._now()) > 0:
            news.clear()
            first = await self._stores.outbox.next(*where)
            if (first is None and not row.live) or (row.grows and not self._is_growing(row)):
                return
            if first is not None and first.reacts_to is None and first.id != row.id:
                return
            await until_set(news, self._clock, left)

    def _now(self) -> float:
        return self._clock.monotonic()

    async def _deliver(self, row: Outgoing) -> None:
        if row.edits_of is not None:
            await self._withdraw(row, row.edits_of)
            return
        self._unsure.pop((row.conversation_id, row.room_id), None)
        if row.live or row.grows is not None:
            if not await self._may_grow(row):
                return
        elif (home := self._home(row)) != row.room_id:
            await self._follow(row, home)
            return
        elif not self._may_read(row, self._client.room(row.room_id)):
            await self._keep_back(row)
            return
        if row.live:
            await self._edit(row)
            return
        found = (row.is_split and await self._stores.outbox.parts(row.id)) or await self._split(row)
        for part in found:
            if not part.sent and (self._closing or not await self._send(row, part)):
                return
            if not part.sent and row.reacts_to is not None:
                return  # what came in meanwhile goes before the next sign

    async def _withdraw(self, row: Outgoing, of: str) -> None:
        """Take the edits of an event of ours away; the row is over when there are none left (X-054).

        Of a draft it must be known first which event it is, if it has become one. While we may not,
        as after a kick, the row waits until we are let in again; `status` names it.
        """
        store, event_id = self._stores.retractions, None
        try:
            if not of.startswith("$"):
                parts = await self._stores.outbox.parts(of)
                event_id = await store.event_of(of) or await self._find(row.room_id, parts[0])
            elif not await self._take_edits(row, of):
                return
        except SendRefused as error:
            log.warning("edits not taken away room=%s reason=%s", row.room_id, error.code)
            if error.code != IS_GONE:
                await self._stores.outbox.stuck(row.id, str(error))
                return
        await store.done(row.id, event_id)

    async def _take_edits(self, row: Outgoing, of: str) -> bool:
        """Take away what is no answer of ours; False when other things go before the rest."""
        news, may_go = self._busy[row.conversation_id, row.room_id], True
        async for event_id in self._client.edits(row.room_id, of):
            if await self._stores.retractions.stays(event_id):
                continue
            if not may_go:
                return False
            name = hashlib.sha256(event_id.encode()).hexdigest()[:16]
            await self._client.redact(row.room_id, event_id, f"wm-{row.id}-{name}")
            may_go = not (self._closing or news.is_set() or self._pace.sign(self._now()))
        return True

    async def _split(self, row: Outgoing) -> list[OutboxPart]:
        """Store the parts of a message; none when it can say nothing, or is another by now."""
        stores, owner = self._stores, row.continues

        async def continued(source: Transaction | Database) -> str | None:
            return owner and await may_continue(source, owner, row.room_id, self._clock.now())

        event_id = await continued(stores.database)

        async def still(tx: Transaction) -> bool:
            if await continued(tx) != event_id:
                return False
            if event_id is None:
                await self._close(tx, row, words.BELOW)
            return True

        if len(row.body) <= SHORT:
            events = events_of(row, event_id)
        else:  # long Markdown takes its time
            events = await asyncio.to_thread(events_of, row, event_id)
        if not events:
            await stores.outbox.stuck(row.id, "nothing in it can be shown")
        device_id = self._client.account.device_id
        return await stores.outbox.store_parts(row.id, events, device_id, still)

    async def _close(self, tx: Transaction, row: Outgoing, body: str) -> None:
        """The draft of an answer says no more than this, for the answer is a message of its own."""
        if row.continues is not None:
            await self._stores.outbox.close_draft(tx, row.continues, body)

    async def _may_grow(self, row: Outgoing) -> bool:
        """Decide if more of an answer may be seen here. A draft is said here and now, or not at all."""
        moved = self._client.moves.home(row.room_id) != row.room_id
        if not moved and self._may_read(row, self._client.room(row.room_id)):
            return True
        self._drafts.finish(row.conversation_id)
        found = list[bool]()
        with suppress(SendRefused):  # nobody lets us look
            found = [] if row.live else await self._find_parts(row)
        if not (row.live or any(found)):
            async with self._stores.database.transaction() as tx:
                await drop_draft(tx, row.id)
        return False

    async def _edit(self, row: Outgoing) -> None:
        """Show more of an answer. An edit that is refused is the last one.

        One whose request failed is dropped, but for one that the homeserver may have taken: that
        goes again, by the same transaction id, until an answer to it comes.
        """
        new = await asyncio.to_thread(content, row.body, most=EDIT_MOST)
        said = edit(new, str(row.changes), live=True)
        part = OutboxPart(row.id, 0, 1, row.live, said, False, 0, None, None)
        try:
            await self._once(row, part)
        except HomeserverUnavailable as error:
            if error.status == 0 or error.status >= 500:
                self._unsure[row.conversation_id, row.room_id] = row
            raise
        except SendRefused as error:
            log.warning(
                "grows no more room=%s outbox=%s reason=%s", row.room_id, row.id, error.code
            )
            self._drafts.finish(row.conversation_id)
            async with self._stores.database.transaction() as tx:
                await refuse_edits(tx, row.id)
        else:
            self._drafts.went_out(row.conversation_id, self._shown.pop(row.id))

    def _home(self, row: Outgoing) -> str:
        """Where it belongs by now; a sign stays with what it is on."""
        return row.room_id if row.reacts_to or row.changes else self._client.moves.home(row.room_id)

    async def _follow(self, row: Outgoing, home: str) -> None:
        """Say it in the room that follows, but what is in the old one already (F-013)."""
        try:
            await self._find_parts(row)
        except SendRefused as error:  # nobody lets us look: saying it again might double it
            await self._stores.outbox.stuck(row.id, str(error))
            return
        there = replace(row, room_id=home, thread=None, replies_to=None)
        events = await asyncio.to_thread(events_of, there)
        async with self._stores.database.transaction() as tx:
            await self._stores.outbox.follow(tx, row.id, home, events)
            await self._close(tx, row, words.ELSEWHERE)
        log.info("follows room=%s to=%s outbox=%s", row.room_id, home, row.id)
        self.wake()

    def _may_read(self, row: Outgoing, view: RoomView) -> bool:
        """Whether nobody else than whom it was made for can read it in its room now (F-002)."""
        account, policy = self._client.account, self._policy
        return not row.meant_for or may_read(view, row.meant_for, account, policy)

    async def _find_parts(self, row: Outgoing) -> list[bool]:
        """Which parts of it are in its room already, also where nobody told us."""
        for part in await self._stores.outbox.parts(row.id):
            if part.attempts and not part.sent:
                event_id = await self._find(row.room_id, part)
                if event_id is not None:
                    await self._stores.outbox.sent(part, event_id)
        return [part.sent for part in await self._stores.outbox.parts(row.id)]

    async def _keep_back(self, row: Outgoing) -> None:
        """Say it where it may be said, or keep it until it may; its room hears that, once.

        What has begun goes on in its own room only, and nothing that was to be encrypted goes
        where it would not be. A reminder looks for a room by itself.
        """
        try:
            sent = await self._find_parts(row)
        except SendRefused:  # we are out of the room, and nobody lets us look: it may be there
            sent = [True, False]
        if sent and all(sent):
            return
        scope, encrypted = row.meant_for, row.room_id in await self._stores.known.encrypted()
        async with self._stores.database.transaction() as tx:
            if self._may_read(row, self._client.room(row.room_id)):
                return  # whoever was not to read it has gone, and what releases it was stored before
            log.warning("kept back room=%s outbox=%s reason=readers", row.room_id, row.id)
            other = None
            if row.late is None and not any(sent):  # best where its person has talked last
                homes = [each.room_id for each in await self._stores.conversations.homes(tx, scope)]
                other = self._client.room_for(scope, self._policy, encrypted, homes)
            if other is None:
                await self._stores.outbox.keep_back(tx, row.id)
            else:
                home = await self._stores.conversations.in_room(tx, other, scope)
                await self._stores.outbox.move(tx, row.id, home, ELSEWHERE)
            await self._close(tx, row, words.WITHHELD)
            await self._tell_kept_back(tx, row.room_id)
        self.wake()

    async def _tell_kept_back(self, tx: Transaction, room_id: str) -> None:
        """Once for each change of who can read there, unless only strangers are left."""
        view = self._client.room(room_id)
        held = await self._stores.conversations.of_room(tx, room_id)
        if held is None or not may_read(view, view.scope, self._client.account, self._policy):
            return
        key = f"kept back {await self._stores.conversations.current_branch(tx, held.id)}"
        await self._stores.notices.notice_once(tx, key, EVER, held.id, KEPT_BACK)

    async def _send(self, row: Outgoing, part: OutboxPart) -> bool:
        """Send one part; False when the rest must not follow. Raises: HomeserverUnavailable."""
        if not part.attempts:
            part = await self._stores.outbox.attempt(part, self._client.account.device_id)
        try:
            await self._once(row, part)
        except SendRefused as error:
            if error.code != IS_THERE:
                log.warning(
                    "send refused room=%s outbox=%s reason=%s", row.room_id, row.id, error.code
                )
            if row.thread and error.code == NO_ROOT:
                async with self._stores.database.transaction() as tx:
                    await self._stores.threads.close(tx, row.room_id, row.thread)
                await self._follow(row, row.room_id)
                return False
            if row.continues is not None and "m.new_content" in part.content:
                async with self._stores.database.transaction() as tx:
                    await refuse_edits(tx, row.continues, row.id)
                return False
            is_over = error.code == IS_GONE if row.redacts else row.changes is not None
            if row.reacts_to is None and not is_over and row.grows is None:
                if not await self._stores.outbox.stuck(
                    row.id, str(error), lambda: self._home(row) == row.room_id
                ):
                    raise AudienceChanged(row.room_id) from error  # its room moved meanwhile
                return False
            await self._stores.outbox.sent(part, None)
        return True

    async def _once(self, row: Outgoing, part: OutboxPart) -> None:
        self._sending += 1
        self._quiet.clear()
        try:
            now = self._clock.now()
            # What is taken away twice is gone all the same.
            look = not row.redacts and must_look(part, self._client.account.device_id, now)
            event_id = await self._find(row.room_id, part) if look else None
            if event_id is None:
                encrypted = row.room_id in await self._stores.known.encrypted()
                sealed = encrypted or self._client.room(row.room_id).encrypted
                await self._copies.before_sending(encrypted=sealed)
                content = part.content
                if row.late is not None:
                    content = await asyncio.to_thread(content_now, row, part, now)
                view = self._client.room(row.room_id)
                if not self._may_read(row, view) or self._home(row) != row.room_id:
                    raise AudienceChanged(row.room_id)
                event_id = await self._put(row, part, content, view, encrypted=encrypted)
            if not row.live:
                await self._stores.outbox.sent(part, event_id)
            if row.reacts_to is None:
                self._pace.sent(self._now())
            log.debug("sent room=%s part=%s event=%s", row.room_id, part.txn_id, event_id)
        finally:
            self._sending -= 1
            if not self._sending:
                self._quiet.set()

    async def _put(
        self, row: Outgoing, part: OutboxPart, content: Json, view: RoomView, *, encrypted: bool
    ) -> str:
        """Hand one event over; its id."""
        if row.changes is not None and row.redacts:
            return await self._client.redact(row.room_id, row.changes, part.txn_id)
        return await self._client.send(
            row.room_id,
            self._marked(row, part, content),
            part.txn_id,
            encrypted=encrypted,
            event_type="m.room.message" if row.reacts_to is None else "m.reaction",
            apart=row.apart,
            seen=view,
        )

    def _marked(self, row: Outgoing, part: OutboxPart, said: Json) -> Json:
        """What is said, with the mark by which we know it again; a sign has none."""
        if row.reacts_to is not None:
            return said
        marks = self._client.marks
        is_final = row.grows is None and not row.live
        tag = marks.tag(row.room_id, *row.made_for)
        mark = Mark(part.txn_id, tag, part.n, part.of, is_final)
        return said | {OUTBOX_KEY: marks.make(row.room_id, mark)}

    async def _find(self, room_id: str, part: OutboxPart) -> str | None:
        """The event of a part that was sent before, looked for among our own since then."""
        since = (part.first_attempt_at or self._clock.now()) - SKEW
        async for event in self._client.newest(room_id):
            if event["origin_server_ts"] < since.timestamp() * 1000:
                return None
            if event["sender"] != self._client.account.user_id:
                continue
            if self._is_of(room_id, event, part):
                return str(event["event_id"])
        return None

    def _is_of(self, room_id: str, event: Json, part: OutboxPart) -> bool:
        """Whether an event of ours is this part. A sign is what it stands under, once each.

        Before there were marks the transaction id stood in their place, inside the ciphertext.
        """
        relation = mapping(part.content.get("m.relates_to"))
        if relation.get("rel_type") == "m.annotation":
            return bool(event["content"].get("m.relates_to") == relation)
        mark = self._client.marks.read(room_id, event)
        said = mark.txn_id if mark else event["content"].get(OUTBOX_KEY)
        return bool(said == part.txn_id)
