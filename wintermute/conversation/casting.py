"""From one inbox row to a cast, and from the cast's end to the answer."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta

from wintermute.clock import Clock
from wintermute.conversation import words
from wintermute.conversation.cast import JOINED, Loop, Outcome
from wintermute.conversation.due_events import DueEvents
from wintermute.conversation.forking import Forking
from wintermute.conversation.intent import age, intent, written
from wintermute.conversation.replies import Replies
from wintermute.conversation.seeding import Seeding
from wintermute.conversation.speaker import Shown, Speaker
from wintermute.conversation.stop import Stop
from wintermute.conversation.terms import Terms
from wintermute.conversation.toolbox import Caller
from wintermute.conversation.trouble import ANSWERED, Trouble
from wintermute.conversation.wards import Wards
from wintermute.db import Database, Transaction
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import OVERSIZE, Inbox, Waiting
from wintermute.mailbox.outbox import ANYBODY, EVER, Outbox
from wintermute.messages import PERSON, Quote
from wintermute.prompt.events import event, text_of
from wintermute.prompt.limits import Component
from wintermute.prompt.oversize import Oversize

AGAIN = timedelta(seconds=60)  # a message waits this long for a model that is away (L-034)
WAITS = {"model_unavailable", "budget"}  # for what passes by itself
AT_ONCE = 4  # casts of one person at the same time; more wait their turn


def outdated(row: Waiting, scope: str) -> str:
    """What to say instead of an answer: what was said is not for this scope; "" when it is.

    What was said in private is not for others (F-003), and what others said acts on nobody's own
    memory.
    """
    if row.kind == "event" or scope == f"{PERSON}{row.sender}":
        return ""
    if row.direct:
        return words.JOINED
    return words.LEFT if scope.startswith(PERSON) else ""


class Casting:
    """Casts what a room's inbox holds."""

    def __init__(
        self,
        database: Database,
        inbox: Inbox,
        outbox: Outbox,
        conversations: Conversations,
        casts: Casts,
        loop: Loop,
        terms: Terms,
        wards: Wards,
        speaker: Speaker,
        trouble: Trouble,
        clock: Clock,
        seeding: Seeding,
        forking: Forking,
        oversize: Oversize,
        due_events: DueEvents,
    ) -> None:
        self._database = database
        self._inbox = inbox
        self._outbox = outbox
        self._conversations = conversations
        self._casts = casts
        self._loop = loop
        self._terms = terms
        self._wards = wards
        self._speaker = speaker
        self._trouble = trouble
        self._clock = clock
        self._seeding = seeding
        self._forking = forking
        self._oversize = oversize
        self._due_events = due_events
        self._replies = Replies(database, inbox, outbox, conversations, speaker)
        self._turnstiles: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE)
        )

    async def cast(self, row: Waiting, stop: Stop) -> None:
        """Answer a message or an event, or leave it for later when the model is away."""
        self._speaker.attend(row.room_id, row.event_id)
        try:
            if given_up := self._trouble.given_up(row):
                await self._give_up(row, given_up)
                return
            async with self._turnstiles[row.sender]:
                cast = await self._opened(row, await self._replies.fetched(row))
                if cast is None:
                    return
                scope = await self._conversations.scope_of(cast.branch_id)
                caller = Caller(
                    row.conversation_id,
                    scope,
                    cast.id,
                    row.origin,
                    row.event_id,
                    cast.started_at,
                    written=written(row, self._clock.now()),
                )
                shown = Shown(self._speaker, row.room_id)
                outcome = await self._loop.run(
                    cast, caller, self._terms, stop, self._trouble.watched(row, stop, shown)
                )
                outcome = await self._trouble.ended(row, outcome)
            await self._close(row, cast, outcome, scope)
        finally:
            self._speaker.rest(row.room_id)

    async def _give_up(self, row: Waiting, outcome: Outcome) -> None:
        async with self._database.transaction() as tx:
            if await self._inbox.is_waiting(tx, row.event_id):
                await self.reply(tx, row, words.spoken(outcome))

    async def reply(
        self,
        tx: Transaction,
        row: Waiting,
        text: str,
        cast_id: str | None = None,
        *,
        meant_for: str = ANYBODY,
    ) -> None:
        """Answer a row, in the transaction of what led to the answer.

        `meant_for`: the scope that the answer was made of, unless it tells nothing of anybody.
        """
        if text.strip():
            await self._outbox.say(
                tx,
                row.conversation_id,
                row.room_id,
                text,
                cast_id=cast_id,
                answers=row.event_id,
                meant_for=meant_for,
            )
        await self._inbox.mark(tx, row.event_id, "answered")

    @property
    def seconds(self) -> float:
        """How long what is no cast may take for its model (F-017)."""
        return self._wards.max_seconds

    async def scope(self, row: Waiting) -> str:
        """Whose memory the room of a row has now."""
        return (await self._conversations.get(row.conversation_id)).scope

    async def _opened(self, row: Waiting, fetched: Quote | None) -> Cast | None:
        """The cast for a row: a new one, or one that a crash interrupted.

        None: it was stopped, is about another branch, or a seed goes first and the row comes again.
        """
        if row.state == "casting":
            interrupted = await self._casts.running(row.event_id)
            if interrupted is not None:
                return interrupted
        async with self._database.transaction() as tx:
            scope = await self.scope(row)
            said = outdated(row, scope)
            if said or not await self._in_view(tx, row):
                if await self._inbox.is_waiting(tx, row.event_id):  # else nothing is said of it
                    await self._out_of_view(tx, row, scope, said)
                return None
            branch = await self._conversations.current_branch(tx, row.conversation_id)
            opens = row.kind == "message" and not row.edits
            if opens and await self._seeding.sow(tx, row, branch):
                return None
            if not await self._inbox.begin(tx, row.event_id):
                return None
            branch, effects = await self._forking.at(tx, row, branch)
            lines = await self._said_before(tx, row)
            replied = await self._replies.shown(tx, row, scope, fetched)
            return await self._casts.start(
                tx,
                branch,
                row.event_id,
                effects + await self._told_before(tx, row) + self._intent(row, lines, replied),
                row.origin,
                self._wards.record(),
            )

    def _intent(self, row: Waiting, said: Sequence[Waiting], replied: str) -> str:
        return intent(row, said, age(row, self._clock.now(), self._due_events.zone), replied)

    async def _in_view(self, tx: Transaction, row: Waiting) -> bool:
        """Whether an event of ours is about what the room has in view (L-062, L-074)."""
        if row.turn_id is not None:
            return await self._conversations.in_view(tx, row.conversation_id, row.turn_id)
        if row.is_unasked:
            branch = await self._conversations.current_branch(tx, row.conversation_id)
            return branch in row.event_id
        return True

    async def _out_of_view(self, tx: Transaction, row: Waiting, now: str, said: str) -> None:
        """A result is for those who could read here when it was asked for; after `/new` for nobody."""
        scope = ANYBODY if said else now
        if (
            not said
            and row.turn_id is not None
            and not await self._conversations.is_over(tx, row.turn_id)
        ):
            scope = await self._conversations.scope_of_turn(row.turn_id)
            said = words.RESULT.format(result=text_of(row.body))
        await self.reply(tx, row, said, meant_for=scope)

    async def _told_before(self, tx: Transaction, row: Waiting) -> str:
        """What tasks have told this room since its last message was asked about (T-052)."""
        if row.kind != "message":
            return ""
        began = await self._conversations.began(tx, row.conversation_id)
        last = await self._inbox.last_before(tx, row.conversation_id, row.seq)
        since = max(began, last.received_at if last else began)
        told = await self._due_events.since(tx, row.conversation_id, since)
        asked = await self._casts.last_begun(tx, last.event_id) if last and told else None
        if asked is not None and asked > since:  # which brought what was told until then
            told = await self._due_events.since(tx, row.conversation_id, asked)
        return told

    async def _said_before(self, tx: Transaction, row: Waiting) -> Sequence[Waiting]:
        if row.direct:
            return ()
        began = await self._conversations.began(tx, row.conversation_id)
        first = await self._inbox.find(tx, row.edits) if row.edits else None
        return await self._inbox.context(row.conversation_id, (first or row).seq, began)

    async def _close(self, row: Waiting, cast: Cast, outcome: Outcome, scope: str) -> None:
        """The end of the cast, its answer and the answered mark: one transaction (DESIGN §3, 7)."""
        sizes = await self._sizes(row, scope)
        async with self._database.transaction() as tx:
            if not await self._casts.in_scope(cast.branch_id):
                outcome = JOINED
            if not await self._casts.end(tx, cast.id, outcome.state, outcome.reason, outcome.text):
                return  # stopped or edited, and that was answered
            await self._settle(tx, row, cast, outcome, scope)
            await self._ask_for_less(tx, row, cast, scope, sizes)

    async def _settle(
        self, tx: Transaction, row: Waiting, cast: Cast, outcome: Outcome, scope: str
    ) -> None:
        """Answer the row, or keep it for a model that is away, or for those who are in the room now."""
        if outcome is JOINED and not row.is_unasked:
            await self._inbox.mark(tx, row.event_id, "waiting")
        elif row.is_unasked and outcome.reason not in ANSWERED:  # nobody waits for it (P-061)
            await self._inbox.mark(tx, row.event_id, "answered")
        elif outcome.reason in WAITS:
            until = outcome.until or self._clock.now() + AGAIN
            left = (until - self._clock.now()).total_seconds()
            await self._inbox.mark(tx, row.event_id, "waiting", self._clock.monotonic() + left)
            if outcome.reason == "budget":
                await self.tell_once(tx, row, f"budget {until.isoformat()}", words.spoken(outcome))
        else:
            await self.reply(tx, row, words.spoken(outcome), cast.id, meant_for=scope)

    async def _ask_for_less(
        self, tx: Transaction, row: Waiting, cast: Cast, scope: str, sizes: Mapping[Component, int]
    ) -> None:
        """Queue an event for each part of the prompt that is too long (P-048)."""
        for n, text in enumerate(await self._oversize.notices(tx, scope, sizes)):
            event_id = f"{OVERSIZE}{cast.branch_id}_{cast.id}_{n}"
            body = event("component_oversize", event_id, text)
            await self._inbox.store_event(tx, row, event_id, body)

    async def _sizes(self, row: Waiting, scope: str) -> Mapping[Component, int]:
        """What may be told to be too long after this row: nothing after events of ours (P-051)."""
        if row.kind != "message":
            return {}
        return await self._oversize.sizes(scope)

    async def tell_once(self, tx: Transaction, row: Waiting, key: str, text: str) -> None:
        """Say something about a row in its room, and never again under the same key."""
        await self._outbox.notice_once(
            tx, f"{key} {row.room_id}", EVER, row.conversation_id, row.room_id, text
        )
