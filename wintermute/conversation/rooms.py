"""Who works when: one worker per conversation, strict order inside it, all of them at once."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wintermute.clock import Clock
from wintermute.conversation import words
from wintermute.conversation.cast import Loop, Outcome
from wintermute.conversation.intent import intent
from wintermute.conversation.seeding import Seeding
from wintermute.conversation.stop import Stop
from wintermute.conversation.toolbox import Caller
from wintermute.conversation.wards import Wards
from wintermute.db import Database, Transaction
from wintermute.health.store import Health
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import OVERSIZE, Inbox, Waiting
from wintermute.mailbox.outbox import Outbox
from wintermute.prompt.events import event
from wintermute.prompt.limits import Component
from wintermute.prompt.oversize import Oversize

log = logging.getLogger(__name__)

AGAIN = timedelta(seconds=60)  # a message waits this long for a model that is away (L-034)
ANSWERED = {"text", "done", "max_turns", "max_tokens"}  # the model did its part
JOINED = Outcome("truncated", "joined", words.JOINED)
AT_ONCE = 4  # casts of one person at the same time; more wait their turn


class Speaker(Protocol):
    """The way back into a room. None of these waits for the homeserver."""

    def serves(self, room_id: str) -> bool:
        """Whether answers for this room go out here."""
        ...

    def attend(self, room_id: str, event_id: str) -> None:
        """Show that the message was read and an answer is being made."""
        ...

    def rest(self, room_id: str) -> None:
        """Show that no answer is being made any more."""
        ...

    def draft(self, room_id: str, piece: str) -> None:
        """Show what the model says; an empty piece begins an utterance, or a new attempt at it."""
        ...

    def gate(self, room_id: str, name: str) -> None:
        """Show that a tool is used."""
        ...

    def speak(self, room_id: str) -> None:
        """Something for this room is in the outbox."""
        ...


class Commands(Protocol):
    """What answers a line that starts with `/`."""

    async def prepare(self, row: Waiting) -> None:
        """What must be done before, outside of a transaction."""
        ...

    async def answer(self, tx: Transaction, row: Waiting) -> str:
        """Do it within the transaction that also stores the answer; the answer, as Markdown."""
        ...


def next_row(rows: Sequence[Waiting], now: datetime) -> tuple[Waiting | None, datetime | None]:
    """Which row is next, and if none is, until when to wait.

    Strict order, but a seed goes first, and commands and events pass a message that waits for the
    model (L-072); an event that waits is passed by all.
    """
    rows = sorted(rows, key=lambda row: not row.is_seed)
    head = next((row for row in rows if row.kind == "message"), None)
    free = [row for row in rows if row is head or row.kind != "message"]
    later = [row.not_before for row in free if row.not_before and row.not_before > now]
    due = next((row for row in free if row.not_before not in later), None)
    return due, min(later) if later and not due else None


@dataclass(frozen=True, slots=True)
class _Shown:
    """A cast's watcher in its room."""

    speaker: Speaker
    room_id: str

    def draft(self, piece: str) -> None:
        self.speaker.draft(self.room_id, piece)

    def gate(self, name: str) -> None:
        self.speaker.gate(self.room_id, name)


class Rooms:
    """Takes what the inbox holds to the loop or to the commands, and the answers to the outbox."""

    def __init__(
        self,
        database: Database,
        inbox: Inbox,
        outbox: Outbox,
        conversations: Conversations,
        casts: Casts,
        loop: Loop,
        commands: Commands,
        speaker: Speaker,
        health: Health,
        clock: Clock,
        wards: Wards,
        seeding: Seeding,
        oversize: Oversize,
    ) -> None:
        self._database = database
        self._inbox = inbox
        self._outbox = outbox
        self._conversations = conversations
        self._casts = casts
        self._loop = loop
        self._commands = commands
        self._speaker = speaker
        self._health = health
        self._clock = clock
        self._wards = wards
        self._seeding = seeding
        self._oversize = oversize
        self._woken: asyncio.Queue[str] = asyncio.Queue()
        self._bells: dict[str, asyncio.Event] = {}
        self._running: dict[str, tuple[str, Stop]] = {}  # event and switch, by conversation
        self._turnstiles: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE)
        )

    def wake(self, conversation_id: str) -> None:
        """Something new is in the inbox for this conversation."""
        self._woken.put_nowait(conversation_id)

    async def run(self) -> None:
        """Work until cancelled, beginning with what an earlier run left."""
        for conversation_id, room_id in await self._inbox.open_conversations():
            if self._speaker.serves(room_id):
                self.wake(conversation_id)
        async with asyncio.TaskGroup() as workers:
            while True:
                conversation_id = await self._woken.get()
                await self._stop_if_asked(conversation_id)
                if conversation_id in self._bells:
                    self._bells[conversation_id].set()
                else:
                    self._bells[conversation_id] = asyncio.Event()
                    workers.create_task(self._work(conversation_id))

    async def _work(self, conversation_id: str) -> None:
        bell = self._bells[conversation_id]
        while True:
            bell.clear()
            rows = await self._inbox.open_rows(conversation_id)
            row, until = next_row(rows, self._clock.now())
            if row is not None:
                await self._take(row)
            elif until is not None:
                await self._pause(bell, (until - self._clock.now()).total_seconds())
            elif not bell.is_set():
                del self._bells[conversation_id]
                return

    async def _pause(self, bell: asyncio.Event, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            nap = group.create_task(self._clock.sleep(max(seconds, 0)))
            ring = group.create_task(bell.wait())
            await asyncio.wait({nap, ring}, return_when=asyncio.FIRST_COMPLETED)
            nap.cancel()
            ring.cancel()

    async def _stop_if_asked(self, conversation_id: str) -> None:
        """Answer `/stop`. One transaction with what it ends, so a kill cannot undo it (L-023)."""
        for row in await self._inbox.stops(conversation_id):
            async with self._database.transaction() as tx:
                taken, stop = self._running.get(conversation_id, (None, None))
                given_up = await self._inbox.give_up(
                    tx,
                    conversation_id,
                    row.seq,
                    taken=taken,
                    also_new=conversation_id not in self._bells,
                )
                for event_id in given_up:
                    cast = await self._casts.running(event_id)
                    if cast is not None:
                        await self._casts.end(tx, cast.id, "truncated", "stopped", cast.last_words)
                if stop is not None and taken in given_up:
                    stop.press()  # before anybody else may write: the cast takes no further step
                await self._reply(tx, row, words.STOPPED if given_up else words.NOTHING_RUNNING)
            self._speaker.speak(row.room_id)

    async def _take(self, row: Waiting) -> None:
        try:
            if row.kind == "command":
                await self._commands.prepare(row)
                async with self._database.transaction() as tx:
                    await self._reply(tx, row, await self._commands.answer(tx, row))
            else:
                await self._cast(row)
        except Exception:  # bulkhead: a bug in one room must not end the others (L-031)
            log.exception(
                "answer failed conversation=%s event=%s", row.conversation_id, row.event_id
            )
            await self._broken(row)
        self._speaker.speak(row.room_id)

    async def _cast(self, row: Waiting) -> None:
        stop = Stop()
        self._running[row.conversation_id] = (row.event_id, stop)
        self._speaker.attend(row.room_id, row.event_id)
        try:
            async with self._turnstiles[row.sender]:
                cast = await self._opened(row)
                if cast is None:
                    return
                scope = await self._conversations.scope_of(cast.branch_id)
                caller = Caller(
                    row.conversation_id, scope, cast.id, row.origin, row.event_id, cast.started_at
                )
                outcome = JOINED
                if not await self._joined(row, scope):
                    outcome = await self._loop.run(
                        cast, caller, stop, _Shown(self._speaker, row.room_id)
                    )
            await self._close(row, cast, outcome, scope)
        finally:
            del self._running[row.conversation_id]
            self._speaker.rest(row.room_id)

    async def _opened(self, row: Waiting) -> Cast | None:
        """The cast for a row: a new one, or one that a crash interrupted.

        None: it was stopped, or a seed goes first and the row comes again after it.
        """
        if row.state == "casting":
            interrupted = await self._casts.running(row.event_id)
            if interrupted is not None:
                return interrupted
        async with self._database.transaction() as tx:
            branch = await self._conversations.current_branch(tx, row.conversation_id)
            if row.kind == "message" and await self._seeding.sow(tx, row, branch):
                return None
            if row.is_unasked and branch not in row.event_id:  # it was about another branch
                await self._inbox.mark(tx, row.event_id, "answered")
                return None
            if not await self._inbox.begin(tx, row.event_id):
                return None
            said: Sequence[Waiting] = ()
            if not row.direct:
                began = await self._conversations.began(tx, row.conversation_id)
                said = await self._inbox.context(row.conversation_id, row.seq, began)
            return await self._casts.start(
                tx, branch, row.event_id, intent(row, said), row.origin, self._wards.record()
            )

    async def _close(self, row: Waiting, cast: Cast, outcome: Outcome, scope: str) -> None:
        """The end of the cast, its answer and the answered mark: one transaction (DESIGN §3, 7)."""
        sizes = await self._sizes(row, scope)
        async with self._database.transaction() as tx:
            if not await self._casts.end(tx, cast.id, outcome.state, outcome.reason, outcome.text):
                return  # stopped, and `/stop` has answered
            if await self._joined(row, scope):
                outcome = JOINED
            away = await self._settle(tx, row, cast, outcome)
            await self._ask_for_less(tx, row, cast, scope, sizes)
        if away and row.kind == "message":
            await self._outage(row, outcome.text)
        elif outcome.reason == "model_refused":
            await self._health.note("model", "fail", outcome.text)
        elif outcome.reason in ANSWERED:
            await self._health.note("model", "ok", "answers")

    async def _settle(self, tx: Transaction, row: Waiting, cast: Cast, outcome: Outcome) -> bool:
        """Answer the row, or keep it for a model that is away: True then."""
        if row.is_unasked and outcome.reason not in ANSWERED:  # nobody waits for it (P-061)
            await self._inbox.mark(tx, row.event_id, "answered")
        elif outcome.reason == "model_unavailable":
            await self._inbox.mark(tx, row.event_id, "waiting", self._clock.now() + AGAIN)
            return True
        else:
            await self._reply(tx, row, words.spoken(outcome), cast.id)
        return False

    async def _ask_for_less(
        self, tx: Transaction, row: Waiting, cast: Cast, scope: str, sizes: Mapping[Component, int]
    ) -> None:
        """Queue an event for each part of the prompt that is too long (P-048)."""
        for n, text in enumerate(await self._oversize.notices(tx, scope, sizes)):
            event_id = f"{OVERSIZE}{cast.branch_id}_{cast.id}_{n}"
            body = event("component_oversize", event_id, text)
            await self._inbox.store_event(tx, row, event_id, body)

    async def _joined(self, row: Waiting, scope: str) -> bool:
        """Whether somebody came in since the cast began, who must not hear what it knows (M-010)."""
        now = (await self._conversations.get(row.conversation_id)).scope
        return now != scope and not scope.startswith("room:")

    async def _sizes(self, row: Waiting, scope: str) -> Mapping[Component, int]:
        """What may be told to be too long after this row: nothing after events of ours (P-051)."""
        if row.kind != "message":
            return {}
        return await self._oversize.sizes(scope)

    async def _outage(self, row: Waiting, problem: str) -> None:
        """Tell the person once per outage, when it has lasted a minute (L-034)."""
        await self._health.note("model", "fail", problem)
        outage = await self._health.part("model")
        if outage is None or self._clock.now() - outage.since < AGAIN:
            return
        async with self._database.transaction() as tx:
            await self._outbox.notice_once(
                tx,
                f"outage {row.room_id} {outage.since.isoformat()}",
                timedelta(days=3650),
                row.conversation_id,
                row.room_id,
                words.OUTAGE.format(problem=problem),
            )

    async def _reply(
        self, tx: Transaction, row: Waiting, text: str, cast_id: str | None = None
    ) -> None:
        if text.strip():
            await self._outbox.say(
                tx, row.conversation_id, row.room_id, text, cast_id=cast_id, answers=row.event_id
            )
        await self._inbox.mark(tx, row.event_id, "answered")

    async def _broken(self, row: Waiting) -> None:
        cast = await self._casts.running(row.event_id)
        async with self._database.transaction() as tx:
            if cast is not None:
                await self._casts.end(tx, cast.id, "truncated", "internal_error", "")
            if await self._inbox.begin(tx, row.event_id):  # else it has its answer
                await self._reply(tx, row, words.INTERNAL, cast.id if cast else None)
            await self._health.note_in(tx, "casts", "fail", "internal error, see the log")
