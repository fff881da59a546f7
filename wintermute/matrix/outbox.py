"""The sender: it sends the rows of the outbox, each part until the homeserver names its event.

Messages of a conversation go in order. Reactions are slowed down so that answers stay within the
homeserver's rate limit.
"""

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from wintermute.clock import LONGEST_NAP, Clock, wait_for_event
from wintermute.conversation import replies
from wintermute.db import Database, Transaction
from wintermute.errors import (
    AccountBlocked,
    AudienceChanged,
    HomeserverUnavailable,
    KeyStoreBlocked,
    SendRefused,
)
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import OutboxPart, Outgoing
from wintermute.mailbox.streaming import drop_draft, editable_event, may_continue, refuse_edits
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.content import EDIT_MOST, LIVE, content, edit, parts
from wintermute.matrix.drafts import DraftRow, Drafts, StreamedAnswer
from wintermute.matrix.inbox import OUTBOX_KEY, Policy, RoomView, may_read
from wintermute.matrix.message_tags import MessageTag
from wintermute.matrix.rollback import RollbackDetection
from wintermute.messages import Json, mapping
from wintermute.stores import Stores

BURST = 10
PER_SECOND = 0.2
"""Messages per second that Synapse accepts from a user by default (`rc_message`)."""
SPARE = 3
"""Messages kept free for answers, and for joins, which count as well but are not seen here."""
log = logging.getLogger(__name__)
REMEMBERED = timedelta(hours=23)  # Synapse forgets transaction ids after 24 hours (notes/matrix §7)
SKEW = timedelta(minutes=5)  # between our clock and the homeserver's
SHORT = 1000  # characters: rendering fewer is faster than starting a thread
SHORTEST_WAIT = 0.5
LONGEST_WAIT = 5.0
TOLD_SECONDS = 60.0
IS_THERE = "M_DUPLICATE_ANNOTATION"
"""The error code for a reaction that exists already."""
IS_GONE = "M_NOT_FOUND"
"""The error code for an event that does not exist any more."""
NO_ROOT = "M_UNKNOWN"
"""Synapse's error code for a message in a thread whose root is not in this room."""
KEPT_BACK = (
    "I held an answer back, because others can now read here. The person it is for gets it in"
    " another private chat with me, or here once this chat is private again."
)
ELSEWHERE = "This belongs to another chat of ours, which is not private at the moment:\n\n"


class RateLimiter:
    """Counts our events as a homeserver with Synapse's default rate limit does.

    No homeserver reports its limits in advance. Until it first asks us to slow down, reactions go
    as fast as they can; from then on they leave `SPARE` messages free.
    """

    def __init__(self) -> None:
        self._limited = False
        self._counted = 0.0
        self._at = 0.0

    def count(self, now: float) -> None:
        """Count an event that was sent."""
        self._counted = self._still_counted(now) + 1

    def note_limit(self, now: float) -> None:
        """Note that the homeserver asks us to slow down: its limit is used up.

        Events before the first such answer were within its limits, however many they were.
        """
        counted = self._still_counted(now)
        self._counted = max(counted, BURST) if self._limited else BURST
        self._limited = True

    def reaction_delay(self, now: float) -> float:
        """Count a reaction and return 0 if it may go now; else return the seconds to wait."""
        over = self._still_counted(now) - (BURST - SPARE - 1)
        if self._limited and over > 0:
            return over / PER_SECOND
        self.count(now)
        return 0.0

    def edit_delay(self, now: float) -> float:
        """Return the seconds until a streamed answer may be edited: before reactions, after all else."""
        over = self._still_counted(now) - (BURST - SPARE)
        return over / PER_SECOND if self._limited and over > 0 else 0.0

    def _still_counted(self, now: float) -> float:
        """Return the events that a homeserver still counts at this time."""
        self._counted = max(0.0, self._counted - (now - self._at) * PER_SECOND)
        self._at = now
        return self._counted


def may_be_in_room(part: OutboxPart, device_id: str, now: datetime) -> bool:
    """Check if a part may be in the room although its transaction id would not prevent a duplicate (X-013)."""
    if not part.attempts or part.first_attempt_at is None:
        return False
    since = now - part.first_attempt_at  # below 0 if the clock was set back
    return part.device_id != device_id or not timedelta() <= since <= REMEMBERED


def events_of(row: Outgoing, event_id: str | None = None) -> list[tuple[str, Json]]:
    """Return the events of a message, each with its transaction id; or the reactions of a row.

    `event_id`: our event that the first of them edits.
    """
    is_split = row.continues is not None or row.grows is not None
    texts = parts(row.body, edits=is_split) if row.reacts_to is None else row.body.split()
    if row.changes is not None:
        texts = [row.body]
    elif row.grows is not None:
        texts = texts[:1]
    said = [content_of(row, text, n) for n, text in enumerate(texts)]
    if said and event_id is not None:
        said[0] = edit(content(texts[0], most=EDIT_MOST), event_id)
    return [(f"wm-{row.id}-{n}", each) for n, each in enumerate(said)]


def relations_of(row: Outgoing, n: int = 0) -> Json:
    """Return the relations of event `n`: reply, thread and mention."""
    reply = {"m.in_reply_to": {"event_id": row.replies_to or row.thread}}
    found: Json = {"m.relates_to": reply} if row.replies_to and n == 0 else {}
    if row.thread:  # the reply is a fallback for clients without threads
        thread = {"rel_type": "m.thread", "event_id": row.thread, "is_falling_back": True}
        found = {"m.relates_to": thread | reply}
    return found | ({"m.mentions": {"user_ids": [row.mentions]}} if row.mentions and n == 0 else {})


def content_of(row: Outgoing, text: str, n: int) -> Json:
    """Return the content of event `n`. A reminder, which can be late, is shown literally."""
    if row.redacts:
        return {"redacts": row.changes}
    if row.changes is not None:
        return edit(content(text, "m.notice"), row.changes)
    if row.reacts_to is None:
        msgtype: Literal["m.text", "m.notice"] = "m.notice" if row.kind == "notice" else "m.text"
        said = content(text, msgtype, literally=row.late is not None) | relations_of(row, n)
        return said | (LIVE if row.grows else {})
    relation = {"rel_type": "m.annotation", "event_id": row.reacts_to, "key": text}
    return {"m.relates_to": relation}


def content_now(row: Outgoing, part: OutboxPart, now: datetime) -> Json:
    """Return the content of a part sent at `now`: the last part of a late message says so (T-038).

    Only the first event of a transaction id counts, so the content may change between attempts.
    """
    note = row.late_note(now)
    texts = parts(row.body) if note else []
    return content_of(row, texts[-1] + note, part.n) if part.n == len(texts) - 1 else part.content


class Sender:
    """The one task that sends messages, from every part of the program."""

    def __init__(
        self,
        client: MatrixClient,
        stores: Stores,
        copies: RollbackDetection,
        clock: Clock,
        policy: Policy,
        drafts: Drafts,
    ) -> None:
        self._client = client
        self._drafts = drafts
        self._shown: dict[str, StreamedAnswer] = {}  # the text of the last edit, by the draft's row
        self._unconfirmed: dict[tuple[str, str], Outgoing] = {}  # edits with an unknown outcome
        self._copies = copies
        self._policy = policy
        self._stores = stores
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._pace = RateLimiter()
        self._logged: dict[str, float] = {}  # time of the last log line, by reason
        self._busy: dict[tuple[str, str], asyncio.Event] = {}  # by conversation and room
        self._closing = self._is_accepted = False
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self) -> None:
        self._wakeup.set()

    def grow(self, conversation_id: str, room_id: str) -> None:
        """Send the next edit of a streamed answer in this conversation."""
        self._busy.get((conversation_id, room_id), self._wakeup).set()

    async def drain(self, seconds: float) -> None:
        """Start no more sends, and wait for those in progress (L-023)."""
        self._closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("send in progress given up after=%ss", seconds)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as conversations:
            while True:
                self._wakeup.clear()
                waiting = await self._stores.outbox.conversations_waiting()
                for where in dict.fromkeys([*waiting, *self._drafts.growing()]):
                    if where in self._busy:
                        self._busy[where].set()
                    else:
                        self._busy[where] = asyncio.Event()
                        conversations.create_task(self._send_all(where))
                if await self._stores.notices.end_waits():
                    continue
                await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        """Wait for a new message, or for the end of the quiet hours if messages wait for that."""
        until = self._stores.outbox.quiet_until()
        if until is None:
            await self._wakeup.wait()
        else:
            left = (until - self._clock.now()).total_seconds()
            await wait_for_event(self._wakeup, self._clock, min(left, LONGEST_NAP))

    async def _send_all(self, where: tuple[str, str]) -> None:
        """Send all messages of a conversation in a room, and the edits of a streamed answer."""
        wait, held = SHORTEST_WAIT, False
        try:
            # Read anew for each attempt: the message may have changed meanwhile.
            while not self._closing and (row := await self._next(where)):
                held = self._client.is_held(row.room_id) and not row.apart
                if held:
                    return
                if pause := self._delay(row):
                    await self._pause(where, pause, row)
                    continue
                try:
                    await self._deliver(row)
                    wait = SHORTEST_WAIT
                    await self._note_account("")
                except AudienceChanged:
                    continue
                except HomeserverUnavailable as error:
                    wait = error.retry_after or min(wait * 2, LONGEST_WAIT)
                    await self._after_failure(where, row, error, wait)
        finally:
            del self._busy[where]
            if not self._closing and not held:
                self._wakeup.set()  # a message may have come since `next` found none

    async def _next(self, where: tuple[str, str]) -> Outgoing | None:
        """Return the next message, or the next edit of a streamed answer if only reactions wait.

        None: there is no message, and no answer is being streamed.
        """
        while True:
            self._busy[where].clear()
            if event_id := self._drafts.take_retracted(where):
                async with self._stores.database.transaction() as tx:
                    await self._stores.retractions.redact_drafts(tx, [event_id])
            if where in self._unconfirmed:  # before all else: a late edit would undo an answer
                return self._unconfirmed[where]
            row = await self._stores.outbox.next(*where)
            answer = self._drafts.streamed_at(where)
            is_sign = row is not None and row.reacts_to is not None and row.edits_of is None
            if answer is None or (row is not None and not is_sign):
                return row
            due = self._drafts.due_in(where)
            if due == 0:
                if edit_row := await self._next_edit(where, answer):
                    return edit_row
            elif row is not None or self._closing:
                return row
            else:
                await wait_for_event(
                    self._busy[where], self._clock, LONGEST_WAIT if due is None else due
                )

    async def _next_edit(self, where: tuple[str, str], answer: StreamedAnswer) -> Outgoing | None:
        """Return the next edit of a streamed answer; None if its draft must be sent first or it has ended."""
        stores, conversation_id = self._stores, where[0]
        draft = answer.draft
        if draft is None:
            await self._open_draft(where, answer)
            return None
        runs, in_scope = await stores.casts.running_and_in_scope(draft.cast_id)
        event_id = await editable_event(stores.database, draft.id, where[1])
        if not (runs and in_scope and event_id):
            self._drafts.finish(conversation_id)
            return None
        text = await asyncio.to_thread(self._drafts.text, answer)
        self._shown[draft.id] = answer
        txn_id = f"wm-{draft.id}-e{int(self._clock.now().timestamp() * 1_000_000)}"
        row = Outgoing(0, draft.id, where[1], "event", text, meant_for=draft.scope, live=txn_id)
        return replace(row, changes=event_id, conversation_id=conversation_id)

    async def _open_draft(self, where: tuple[str, str], answer: StreamedAnswer) -> None:
        """Store the draft of an answer while its cast runs, or find the event that the answer edits.

        The draft's first text has no line about a running tool: it stays if the answer is stopped
        after a restart (X-062).
        """
        stores, answer = self._stores, replace(answer, doing="")
        text = await asyncio.to_thread(self._drafts.text, answer)
        async with stores.database.transaction() as tx:
            cast = await stores.casts.running(answer.row.event_id)
            if cast is None:
                self._drafts.finish(where[0])
                return
            scope = await stores.conversations.scope_of(cast.branch_id)
            outbox_id, is_new = await stores.outbox.begin_draft(
                tx, where, answer.row.event_id, text, scope
            )
        self._drafts.show_in(where[0], DraftRow(outbox_id, cast.id, scope))
        if is_new:
            self._drafts.note_sent(where[0], answer)

    def _delay(self, row: Outgoing) -> float:
        """Return the seconds that a row has to wait; a reaction that need not wait is counted as sent."""
        if row.reacts_to is not None:
            return self._pace.reaction_delay(self._now())
        waits = row.live or (row.grows and self._is_growing(row))
        return self._pace.edit_delay(self._now()) if waits else 0.0

    def _is_growing(self, row: Outgoing) -> bool:
        """Check if the answer of this draft is still being streamed; later its answer goes before all else."""
        return self._drafts.streamed_at((row.conversation_id, row.room_id)) is not None

    async def _after_failure(
        self, where: tuple[str, str], row: Outgoing, error: HomeserverUnavailable, wait: float
    ) -> None:
        """Wait until the next attempt, and until a sync has shown changes of the room's members (F-002)."""
        if not isinstance(error, KeyStoreBlocked) and self._is_unlogged(str(error)):
            log.warning("send delayed room=%s seconds=%s reason=%s", row.room_id, wait, error)
        if isinstance(error, AccountBlocked):
            await self._note_account(str(error))
        elif error.retry_after:
            self._pace.note_limit(self._now())
        failed_in = self._client.poll.begun
        if row.reacts_to or (row.live and where not in self._unconfirmed):
            await self._pause(where, wait, row)
        else:
            await self._clock.sleep(wait)
        await self._client.poll.wait_processed_since(failed_in)

    async def _note_account(self, problem: str) -> None:
        """Record in `health` why the homeserver refuses every message of our account (F-046)."""
        health = self._stores.health
        if problem:
            await health.note("account", "fail", problem)
        elif not self._is_accepted and await health.part("account") is not None:
            await health.note("account", "ok", "the homeserver takes what is sent")
        self._is_accepted = not problem

    def _is_unlogged(self, reason: str) -> bool:
        """Return True if this reason was not logged for a minute: all rooms may fail at once."""
        last, now = self._logged.get(reason), self._now()
        if last is not None and now - last < TOLD_SECONDS:
            return False
        self._logged = {reason: now}
        return True

    async def _pause(self, where: tuple[str, str], seconds: float, row: Outgoing) -> None:
        """Wait with a reaction or draft, until another message of this conversation is to be sent.

        Every sync ends the pause, too, also the one that a failed reaction has asked for.
        """
        news, until = self._busy[where], self._now() + seconds
        while (left := until - self._now()) > 0:
            news.clear()
            first = await self._stores.outbox.next(*where)
            if (first is None and not row.live) or (row.grows and not self._is_growing(row)):
                return
            if first is not None and first.reacts_to is None and first.id != row.id:
                return
            await wait_for_event(news, self._clock, left)

    def _now(self) -> float:
        return self._clock.monotonic()

    async def _deliver(self, row: Outgoing) -> None:
        if row.edits_of is not None:
            await self._redact_edits(row, row.edits_of)
            return
        self._unconfirmed.pop((row.conversation_id, row.room_id), None)
        if row.live or row.grows is not None:
            if not await self._may_grow(row):
                return
        elif (target := self._target_room(row)) != row.room_id:
            await self._follow(row, target)
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
                return  # messages that came meanwhile go before the next reaction

    async def _redact_edits(self, row: Outgoing, of: str) -> None:
        """Redact the edits of an event of ours; the row is done when there are none left (X-054).

        For a draft its event must be found first, if it has one. While we are not allowed to
        redact, as after a kick, the row waits until we are let in again; `status` names it.
        """
        store, event_id = self._stores.retractions, None
        try:
            if not of.startswith("$"):
                parts = await self._stores.outbox.parts(of)
                event_id = await store.event_of(of) or await self._find(row.room_id, parts[0])
            elif not await self._redact_interim_edits(row, of):
                return
        except SendRefused as error:
            log.warning("edits not redacted room=%s reason=%s", row.room_id, error.code)
            if error.code != IS_GONE:
                await self._stores.outbox.mark_refused(row.id, str(error))
                return
        await store.finish(row.id, event_id)

    async def _redact_interim_edits(self, row: Outgoing, of: str) -> bool:
        """Redact edits that are not final answers; return False if other messages go before the rest."""
        news, may_go = self._busy[row.conversation_id, row.room_id], True
        async for event_id in self._client.edits(row.room_id, of):
            if await self._stores.retractions.is_final(event_id):
                continue
            if not may_go:
                return False
            name = hashlib.sha256(event_id.encode()).hexdigest()[:16]
            await self._client.redact(row.room_id, event_id, f"wm-{row.id}-{name}")
            may_go = not (self._closing or news.is_set() or self._pace.reaction_delay(self._now()))
        return True

    async def _split(self, row: Outgoing) -> list[OutboxPart]:
        """Store the parts of a message; none if it has no text or is no longer waiting."""
        stores, owner = self._stores, row.continues

        async def continued(source: Transaction | Database) -> str | None:
            return owner and await may_continue(source, owner, row.room_id, self._clock.now())

        event_id = await continued(stores.database)

        async def still(tx: Transaction) -> bool:
            if await continued(tx) != event_id:
                return False
            if event_id is None:
                await self._close_draft(tx, row, replies.BELOW)
            return True

        if len(row.body) <= SHORT:
            events = events_of(row, event_id)
        else:  # rendering long Markdown is slow
            events = await asyncio.to_thread(events_of, row, event_id)
        if not events:
            await stores.outbox.mark_refused(row.id, "nothing in it can be shown")
        device_id = self._client.account.device_id
        return await stores.outbox.store_parts(row.id, events, device_id, still)

    async def _close_draft(self, tx: Transaction, row: Outgoing, body: str) -> None:
        """Replace the text of a draft by `body`: its answer is a message of its own."""
        if row.continues is not None:
            await self._stores.outbox.close_draft(tx, row.continues, body)

    async def _may_grow(self, row: Outgoing) -> bool:
        """Check if a streamed answer may be shown in its room; otherwise end the draft."""
        moved = self._client.moves.current_room(row.room_id) != row.room_id
        if not moved and self._may_read(row, self._client.room(row.room_id)):
            return True
        self._drafts.finish(row.conversation_id)
        found = list[bool]()
        with suppress(SendRefused):  # we may not read the room
            found = [] if row.live else await self._find_parts(row)
        if not (row.live or any(found)):
            async with self._stores.database.transaction() as tx:
                await drop_draft(tx, row.id)
        return False

    async def _edit(self, row: Outgoing) -> None:
        """Send an edit of a streamed answer. A refused edit is the last one.

        An edit whose request failed is dropped. If the homeserver may have accepted it, it is sent
        again by the same transaction id until there is a reply.
        """
        new = await asyncio.to_thread(content, row.body, most=EDIT_MOST)
        said = edit(new, str(row.changes), live=True)
        part = OutboxPart(row.id, 0, 1, row.live, said, False, 0, None, None)
        try:
            await self._send_once(row, part)
        except HomeserverUnavailable as error:
            if error.status == 0 or error.status >= 500:
                self._unconfirmed[row.conversation_id, row.room_id] = row
            raise
        except SendRefused as error:
            log.warning(
                "streaming stopped room=%s outbox=%s reason=%s", row.room_id, row.id, error.code
            )
            self._drafts.finish(row.conversation_id)
            async with self._stores.database.transaction() as tx:
                await refuse_edits(tx, row.id)
        else:
            self._drafts.note_sent(row.conversation_id, self._shown.pop(row.id))

    def _target_room(self, row: Outgoing) -> str:
        """Return the current room of a message; a reaction stays with its event."""
        stays = row.reacts_to or row.changes
        return row.room_id if stays else self._client.moves.current_room(row.room_id)

    async def _follow(self, row: Outgoing, target: str) -> None:
        """Send a message in the room that replaces its own, except for the parts sent already (F-013)."""
        try:
            await self._find_parts(row)
        except SendRefused as error:  # we may not read the room: sending again might double it
            await self._stores.outbox.mark_refused(row.id, str(error))
            return
        there = replace(row, room_id=target, thread=None, replies_to=None)
        events = await asyncio.to_thread(events_of, there)
        async with self._stores.database.transaction() as tx:
            await self._stores.outbox.follow(tx, row.id, target, events)
            await self._close_draft(tx, row, replies.ELSEWHERE)
        log.info("message moved room=%s to=%s outbox=%s", row.room_id, target, row.id)
        self.wake()

    def _may_read(self, row: Outgoing, view: RoomView) -> bool:
        """Check if everybody who can read the room now may read the message (F-002)."""
        account, policy = self._client.account, self._policy
        return not row.meant_for or may_read(view, row.meant_for, account, policy)

    async def _find_parts(self, row: Outgoing) -> list[bool]:
        """Look for parts that are in the room although the reply was lost; return which parts are sent."""
        for part in await self._stores.outbox.parts(row.id):
            if part.attempts and not part.sent:
                event_id = await self._find(row.room_id, part)
                if event_id is not None:
                    await self._stores.outbox.mark_sent(part, event_id)
        return [part.sent for part in await self._stores.outbox.parts(row.id)]

    async def _keep_back(self, row: Outgoing) -> None:
        """Move a message to a room where it may be read, or keep it back; its room gets one notice.

        A message that is partly sent stays in its room. An encrypted message only moves to an
        encrypted room. A reminder is moved by `Firing` instead.
        """
        try:
            sent = await self._find_parts(row)
        except SendRefused:  # we have left the room and may not read it: the message may be there
            sent = [True, False]
        if sent and all(sent):
            return
        scope, encrypted = row.meant_for, row.room_id in await self._stores.known.encrypted()
        async with self._stores.database.transaction() as tx:
            if self._may_read(row, self._client.room(row.room_id)):
                return  # the other reader has left, and the message was released before
            log.warning("kept back room=%s outbox=%s reason=readers", row.room_id, row.id)
            other = None
            if row.late is None and not any(sent):  # preferably where its person wrote last
                targets = await self._stores.conversations.target_conversations(tx, scope)
                homes = [each.room_id for each in targets]
                other = self._client.room_for(scope, self._policy, encrypted, homes)
            if other is None:
                await self._stores.outbox.keep_back(tx, row.id)
            else:
                target = await self._stores.conversations.in_room(tx, other, scope)
                await self._stores.outbox.move(tx, row.id, target, ELSEWHERE)
            await self._close_draft(tx, row, replies.WITHHELD)
            await self._notify_kept_back(tx, row.room_id)
        self.wake()

    async def _notify_kept_back(self, tx: Transaction, room_id: str) -> None:
        """Send the notice once for each change of readers, unless only strangers are left."""
        view = self._client.room(room_id)
        held = await self._stores.conversations.of_room(tx, room_id)
        if held is None or not may_read(view, view.scope, self._client.account, self._policy):
            return
        key = f"kept back {await self._stores.conversations.current_branch(tx, held.id)}"
        await self._stores.notices.notice_once(tx, key, EVER, held.id, KEPT_BACK)

    async def _send(self, row: Outgoing, part: OutboxPart) -> bool:
        """Send one part; False if the rest must not follow. Raises: HomeserverUnavailable."""
        if not part.attempts:
            part = await self._stores.outbox.attempt(part, self._client.account.device_id)
        try:
            await self._send_once(row, part)
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
                if not await self._stores.outbox.mark_refused(
                    row.id, str(error), lambda: self._target_room(row) == row.room_id
                ):
                    raise AudienceChanged(row.room_id) from error  # its room moved meanwhile
                return False
            await self._stores.outbox.mark_sent(part, None)
        return True

    async def _send_once(self, row: Outgoing, part: OutboxPart) -> None:
        self._sending += 1
        self._idle.clear()
        try:
            now = self._clock.now()
            # Redacting an event twice does no harm.
            device_id = self._client.account.device_id
            must_search = not row.redacts and may_be_in_room(part, device_id, now)
            event_id = await self._find(row.room_id, part) if must_search else None
            if event_id is None:
                encrypted = row.room_id in await self._stores.known.encrypted()
                sealed = encrypted or self._client.room(row.room_id).encrypted
                await self._copies.before_sending(encrypted=sealed)
                content = part.content
                if row.late is not None:
                    content = await asyncio.to_thread(content_now, row, part, now)
                view = self._client.room(row.room_id)
                if not self._may_read(row, view) or self._target_room(row) != row.room_id:
                    raise AudienceChanged(row.room_id)
                event_id = await self._submit(row, part, content, view, encrypted=encrypted)
            if not row.live:
                await self._stores.outbox.mark_sent(part, event_id)
            if row.reacts_to is None:
                self._pace.count(self._now())
            log.debug("sent room=%s part=%s event=%s", row.room_id, part.txn_id, event_id)
        finally:
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    async def _submit(
        self, row: Outgoing, part: OutboxPart, content: Json, view: RoomView, *, encrypted: bool
    ) -> str:
        """Submit one event to the homeserver; return its id."""
        if row.changes is not None and row.redacts:
            return await self._client.redact(row.room_id, row.changes, part.txn_id)
        return await self._client.send(
            row.room_id,
            self._with_tag(row, part, content),
            part.txn_id,
            encrypted=encrypted,
            event_type="m.room.message" if row.reacts_to is None else "m.reaction",
            apart=row.apart,
            seen=view,
        )

    def _with_tag(self, row: Outgoing, part: OutboxPart, said: Json) -> Json:
        """Return the content with our message tag; a reaction has none."""
        if row.reacts_to is not None:
            return said
        marks = self._client.tags
        is_final = row.grows is None and not row.live
        cause = marks.cause_hash(row.room_id, *row.made_for)
        mark = MessageTag(part.txn_id, cause, part.n, part.of, is_final)
        return said | {OUTBOX_KEY: marks.make(row.room_id, mark)}

    async def _find(self, room_id: str, part: OutboxPart) -> str | None:
        """Find the event of a part that was attempted before, among our own events since then."""
        since = (part.first_attempt_at or self._clock.now()) - SKEW
        async for event in self._client.newest(room_id):
            if event["origin_server_ts"] < since.timestamp() * 1000:
                return None
            if event["sender"] != self._client.account.user_id:
                continue
            if self._is_part(room_id, event, part):
                return str(event["event_id"])
        return None

    def _is_part(self, room_id: str, event: Json, part: OutboxPart) -> bool:
        """Check if an event of ours is this part; a reaction is recognised by its relation.

        Events from before message tags have the transaction id instead, inside the ciphertext.
        """
        relation = mapping(part.content.get("m.relates_to"))
        if relation.get("rel_type") == "m.annotation":
            return bool(event["content"].get("m.relates_to") == relation)
        mark = self._client.tags.read(room_id, event)
        said = mark.txn_id if mark else event["content"].get(OUTBOX_KEY)
        return bool(said == part.txn_id)
