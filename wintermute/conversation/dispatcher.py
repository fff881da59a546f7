"""Turns inbox rows into casts, and the ends of casts into answers.

A row becomes the intent of a cast: the message as the model sees it, with the message that it
replies to (F-026), and with the results of tasks that the room got since its last message. These
were written without a model, so they are put before the next message and have no turns of their
own: an hourly reminder does not fill the window. A branch opens with a seed, once. An edited
message is asked again at its first place; its effects so far remain (L-054).
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, in_words
from wintermute.conversation import replies
from wintermute.conversation.cast import JOINED, Loop, Outcome
from wintermute.conversation.model_failures import ANSWERED, UNFIT, ModelFailures
from wintermute.conversation.state import CastSettings, ConversationWatch, Speaker, Stop
from wintermute.conversation.toolbox import Caller
from wintermute.conversation.view import is_shown
from wintermute.db import Transaction
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import OVERSIZE, SEED, InboxRow
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import ANYBODY
from wintermute.mailbox.streaming import open_draft
from wintermute.messages import PERSON, REFUSED, Quote
from wintermute.prompt.context_builder import Oversize, event, text_of
from wintermute.prompt.tool_names import LOOKING
from wintermute.stores import Stores
from wintermute.tasks.occurrences import Occurrence
from wintermute.templates import Template
from wintermute.text import shortened, span, untagged

MOST = 5
RESULT_CHARACTERS = 8_000
REMINDED = {
    "claimed": "the reminder is being sent",
    "done": "the reminder was delivered",
    "missed": "the reminder could not be sent",
}
MOST_CHARACTERS = 300  # of one call in the notice
MOST_CONTEXT_CHARACTERS = 1000
DELETED = "[deleted]"
SHOW_TIME_AFTER = timedelta(minutes=2)
"""The age from which a message is shown with its time, as "now" in it is no longer now (F-029)."""
NO_ADDRESS = str.maketrans("", "", "@:()<>")
MOST_QUOTED = 1000
US = "you"
UNREADABLE = "[it could not be read]"
PRIVATE = "[said to other people than those who are here now: not shown]"
AGAIN = timedelta(seconds=60)  # pause before the next cast while the model is away (L-034)
WAITS = {"model_unavailable", "budget"}  # reasons that pass by themselves
AT_ONCE = 4  # casts of one person at the same time; more wait their turn


@runtime_checkable
class SpawnedWork(Protocol):
    """The sub-sessions that outlive the cast which spawned them."""

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End the sub-sessions that a conversation's turns after this place spawned (L-062); return their ids.

        `only`: just the one with this id.
        """
        ...

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End the sub-sessions started for retracted events, without a report (F-027)."""
        ...


def due_event(each: Occurrence, zone: ZoneInfo) -> str:
    """Return a task's message to a room as an event, followed by a blank line (T-052)."""
    failed = each.state == "failed"
    result = REMINDED[each.state] if each.mode == "reminder" else each.result
    result = shortened(result, RESULT_CHARACTERS)
    text = (
        f"Task #{each.task_id}: {each.content}\nDue: {in_words(each.due_at, zone)}\n"
        f"{'Error' if failed else 'Result, as the person was shown it'}: {result}"
    )
    return event("task_error" if failed else "scheduled_task", each.task_id, text) + "\n\n"


class Branching:
    """Finds the branch in which a message is answered, and opens new ones, each with its seed."""

    def __init__(self, stores: Stores, seed: Template | None, sub_sessions: SpawnedWork) -> None:
        """Take the stores. `seed` None: new branches get no seed."""
        self._inbox = stores.inbox
        self._conversations = stores.conversations
        self._threads = stores.threads
        self._casts = stores.casts
        self._seed = seed
        self._sub_sessions = sub_sessions

    async def begin_anew(self, tx: Transaction, row: InboxRow) -> None:
        """Begin an empty branch in a conversation, and end its sub-sessions."""
        branch = await self._conversations.branch(tx, row.conversation_id, "new", row.received_at)
        await self._sub_sessions.end(tx, row.conversation_id)
        await self.sow(tx, row, branch)

    async def sow(self, tx: Transaction, cause: InboxRow, branch_id: str) -> bool:
        """Store the seed of a branch in which nobody spoke yet; False if there is nothing to store.

        `cause` is the message or command that opens the branch (P-055, P-056, P-060). A seed row's
        id contains the branch's id, so there is only one. Threads continue a conversation, and get
        no seed.
        """
        if self._seed is None or await self._casts.addressed(tx, branch_id):
            return False
        if await self._threads.is_thread(tx, cause.conversation_id):
            return False
        seed_id = f"{SEED}{branch_id}"
        # Always the same text, so that the server's prompt cache serves other rooms (P-067).
        body = event("conversation_seed", "seed", self._seed.text())
        return await self._inbox.store_event(tx, cause, seed_id, body)

    async def fork(self, tx: Transaction, row: InboxRow, branch: str) -> tuple[str, str]:
        """Return the branch for a row, and a notice about the effects of its earlier wording.

        `branch` is the current one. An edited message gets a new branch, which has in view what
        came before the message, and nothing of its first answer.
        """
        if row.edits is None:
            return branch, ""
        events = await self._inbox.versions(row.edits)
        abandoned = await self._casts.since(tx, branch, events)
        begun = any((c.branch_id, c.event_id) == (branch, row.event_id) for c in abandoned)
        if begun:  # the cast is repeated after an outage
            return branch, _effects_notice([cast for cast in abandoned if cast.branch_id != branch])
        if not abandoned:  # the old text was never answered here
            return branch, ""
        parent = await self._casts.turn_before(tx, branch, abandoned[0])
        parent_id, place = parent or (None, 0)
        await self._sub_sessions.end(tx, row.conversation_id, after=place)
        fork = await self._conversations.branch(
            tx, row.conversation_id, "edit", row.received_at, parent_id
        )
        return fork, _effects_notice(abandoned)


def _effects_notice(casts: Iterable[Cast]) -> str:
    effects = [
        f"{observation.gate} {json.dumps(observation.args, ensure_ascii=False)}"
        for cast in casts
        for turn in cast.turns
        for observation in turn.observations
        if observation.gate not in LOOKING and not (observation.completed and observation.is_error)
    ]
    listed = "; ".join(untagged(shortened(each, MOST_CHARACTERS)) for each in effects)
    return replies.EDITED.format(effects=listed) if effects else ""


def intent(row: InboxRow, context: Sequence[InboxRow], age: str = "", replied: str = "") -> str:
    """Return a direct message unchanged; in a group, or after other lines, with its sender and these.

    Our own events keep their tags; nobody else's text can look like one (L-070, L-071). `age`: a
    line with the time of writing, if that was a while ago. `replied`: the block of the message it
    replies to.
    """
    if row.kind == "event":
        return row.body
    before = [part for part in (replied, age) if part]
    if (row.direct and not context) or not row.body.strip():
        return "\n".join([*before, untagged(row.body)])
    context_lines = [_context_line(each) for each in context]
    lines = ["<room_context>", *context_lines, "</room_context>"] if context_lines else []
    return "\n".join([*lines, *before, line(row.sender_name, row.sender, row.body)])


def without(intent: str, removed: InboxRow) -> str | None:
    """Return an intent without a context line of this message; None if it has no such line.

    If the text of the line is no longer stored, all lines of its sender are removed.
    """
    head, opened, rest = intent.partition("<room_context>\n")
    block, closed, tail = rest.partition("</room_context>")
    sender = re.escape(removed.sender)
    anything = rf"(?:[^\n(]* \({sender}\)|{sender}): .*(?:\n  .*)*"
    shown = re.escape(_context_line(removed)) if removed.body else anything
    block_left, count = re.subn(rf"(?m)^{shown}\n(?!  )", "", block, count=int(bool(removed.body)))
    return f"{head}{opened}{block_left}{closed}{tail}" if count else None


def without_quote(text: str) -> str:
    """Return an intent without the text that its message replies to."""
    head, opened, rest = text.partition("<replied_to>\n")
    _, closed, tail = rest.partition("</replied_to>")
    return f"{head}{opened}{DELETED}\n{closed}{tail}" if closed else text


def written(row: InboxRow, now: datetime) -> datetime | None:
    """Return the time that a message's relative times refer to; None for now (F-029)."""
    is_said = row.kind in ("message", "command")
    return row.sent_at if is_said and now - row.sent_at > SHOW_TIME_AFTER else None


def age(row: InboxRow, now: datetime, zone: ZoneInfo) -> str:
    """Return the line with the time of writing; "" if it was just now."""
    since = written(row, now)
    if since is None:
        return ""
    local = since.astimezone(zone)
    day = "" if local.date() == now.astimezone(zone).date() else f"{local:%Y-%m-%d} "
    return f"[written {day}{local:%H:%M}, {span(now - since)} ago]"


def _context_line(row: InboxRow) -> str:
    return line(row.sender_name, row.sender, row.body[:MOST_CONTEXT_CHARACTERS])


def line(sender_name: str, sender: str, body: str) -> str:
    """Return a person's message under their name and id; its further lines are indented."""
    # No name or line of text can look like the beginning of another person's line.
    name = " ".join(sender_name.translate(NO_ADDRESS).split())
    who = f"{name} ({sender})" if name else sender
    return untagged("\n  ".join(f"{who}: {body}".splitlines()))


@dataclass(frozen=True, slots=True)
class Record:
    """Our record of an earlier message; `quote` is None if it could never be read.

    `scope`: the scope it belongs to, if fewer people could read it than are in its room by now.
    """

    quote: Quote | None
    scope: str = ANYBODY


class Replies:
    """Finds the text that a message replies to: in our records, or else from the homeserver."""

    def __init__(self, stores: Stores, speaker: Speaker) -> None:
        self._database = stores.database
        self._inbox = stores.inbox
        self._outbox = stores.outbox
        self._notices = stores.notices
        self._conversations = stores.conversations
        self._casts = stores.casts
        self._speaker = speaker

    async def fetched(self, row: InboxRow) -> Quote | None:
        """Fetch the replied-to message from the homeserver, outside a transaction; None: not needed, or not found."""
        if row.replies_to is None:
            return None
        async with self._database.transaction() as tx:
            record = await self._record(tx, row.room_id, row.replies_to)
        return await self._speaker.quote(row) if record is None else None

    async def shown(self, tx: Transaction, row: InboxRow, scope: str, fetched: Quote | None) -> str:
        """Return the block for the model; "" if the message is no reply.

        Private messages are not shown to others, nor does the homeserver's copy count if it is
        older than the conversation's present `scope`.
        """
        if row.replies_to is None:
            return ""
        record = await self._record(tx, row.room_id, row.replies_to) or Record(fetched)
        quote, since = record.quote, await self._conversations.scoped_since(tx, row.conversation_id)
        is_private = record.scope.startswith(PERSON) and record.scope != scope
        is_older = quote and quote.sent_at and since is not None and quote.sent_at < since
        return block(quote, withheld=is_private or bool(is_older))

    async def _record(self, tx: Transaction, room_id: str, event_id: str) -> Record | None:
        """Return our record of an event; None if the homeserver must be asked."""
        ours = await self._outbox.sent_event(tx, room_id, event_id)
        if ours is not None:
            return Record(Quote("", "", ours.body), ours.meant_for)
        stored = await self._inbox.newest_version(tx, event_id)
        if stored is None or stored.room_id != room_id or stored.kind == "event":
            return None
        if stored.state == "ignored" and not stored.body + stored.sender_name:
            return None  # stored for its id only: not for us, or its text expired (F-030)
        ended = await self._casts.reasons(tx, [stored.event_id])
        refused = stored.state == "ignored" and stored.kind != "context" and stored.body
        if refused or {*REFUSED}.intersection(ended) or stored.state in ("locked", "untrusted"):
            return Record(None)
        quote = Quote(stored.sender, stored.sender_name, stored.body)
        return Record(quote, f"{PERSON}{stored.sender}" if stored.direct else ANYBODY)


def block(quote: Quote | None, *, withheld: bool = False) -> str:
    """Return the replied-to message in the form that the model sees, under its sender's name."""
    if quote is None or withheld:
        text = PRIVATE if withheld else UNREADABLE
    else:
        body = shortened(quote.body, MOST_QUOTED) if quote.body.strip() else DELETED
        text = line(quote.sender_name, quote.sender or US, body)
    return f"<replied_to>\n{text}\n</replied_to>"


def quotes_others(replied: str, row: InboxRow) -> bool:
    """Return True if a reply block has words of somebody other than us and the replier."""
    quoted = replied.removeprefix("<replied_to>\n")
    own = (line("", US, ""), line(row.sender_name, row.sender, ""), DELETED, PRIVATE, UNREADABLE)
    return bool(quoted) and not quoted.startswith(own)


def outdated(row: InboxRow, scope: str) -> str:
    """Return the text to send instead of an answer if the scope has changed; "" if it has not.

    A private message is not answered before others (F-003), and a message from a group does not
    change anybody's own memory.
    """
    if row.kind == "event" or scope == f"{PERSON}{row.sender}":
        return ""
    if row.direct:
        return replies.JOINED
    return replies.LEFT if scope.startswith(PERSON) else ""


class Dispatcher:
    """Runs casts for inbox rows."""

    def __init__(
        self,
        stores: Stores,
        loop: Loop,
        settings: CastSettings,
        branching: Branching,
        oversize: Oversize,
        speaker: Speaker,
        trouble: ModelFailures,
        clock: Clock,
    ) -> None:
        self._database = stores.database
        self._inbox = stores.inbox
        self._outbox = stores.outbox
        self._notices = stores.notices
        self._conversations = stores.conversations
        self._casts = stores.casts
        self._occurrences = stores.occurrences
        self._zone = stores.tasks.zone
        self._loop = loop
        self._settings = settings
        self._branching = branching
        self._oversize = oversize
        self._speaker = speaker
        self._trouble = trouble
        self._clock = clock
        self._replies = Replies(stores, speaker)
        self._turnstiles: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE)
        )

    async def cast(self, row: InboxRow, stop: Stop) -> None:
        """Answer a message or an event, or leave it for later when the model is away."""
        self._speaker.attend(row)
        try:
            if given_up := self._trouble.given_up(row):
                # With one more cast, so that the record has the end of the message.
                if cast := await self._opened(row, None):
                    scope = await self._conversations.scope_of(cast.branch_id)
                    await self._close(row, cast, given_up, scope)
                return
            turnstile = self._turnstiles[row.sender]
            if turnstile.locked():
                self._trouble.silent(row)
            async with turnstile:
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
                shown = ConversationWatch(self._speaker, row.conversation_id)
                watch = self._trouble.watched(row, stop, shown)
                toolbox = await self._settings.toolbox.within(scope)
                chosen = await self._trouble.chosen(row)
                settings = replace(self._settings, toolbox=toolbox, backend=chosen)
                outcome = await self._loop.run(cast, caller, settings, stop, watch)
                outcome = await self._trouble.ended(row, outcome, chosen)
            await self._close(row, cast, outcome, scope)
        finally:
            self._trouble.works(row)
            self._speaker.rest(row)

    async def reply(
        self,
        tx: Transaction,
        row: InboxRow,
        text: str,
        cast_id: str | None = None,
        *,
        meant_for: str = ANYBODY,
        in_place: bool = False,
    ) -> None:
        """Answer a row, in the transaction of its outcome.

        `meant_for`: the scope whose memory the answer may contain. `in_place`: it may replace the
        answer to an earlier wording.
        """
        if text.strip():
            await self._outbox.enqueue(
                tx,
                row.conversation_id,
                text,
                cast_id=cast_id,
                answers=row.event_id,
                meant_for=meant_for,
                in_place=in_place,
            )
        await self._inbox.set_state(tx, row.event_id, "answered")

    async def visible_draft(
        self, tx: Transaction, row: InboxRow, cast: Cast | None
    ) -> tuple[str, str] | None:
        """Return the text of a growing answer that people have seen, and its scope.

        None: there is none. After a restart only the beginning of the text is known.
        """
        shown, draft = self._speaker.shown(row), await open_draft(tx, row.event_id)
        if draft is not None:
            return (draft[0] if shown is None else shown), draft[1]
        if not shown:
            return None
        if cast is not None:  # it replaces an earlier answer
            return shown, await self._conversations.scope_of(cast.branch_id)
        return shown, await self.scope(row)

    @property
    def seconds(self) -> float:
        """The time limit for model requests of commands (F-017)."""
        return self._settings.wards.max_seconds

    async def scope(self, row: InboxRow) -> str:
        """Return the scope that the room of a row has now."""
        return (await self._conversations.get(row.conversation_id)).scope

    async def _opened(self, row: InboxRow, fetched: Quote | None) -> Cast | None:
        """Return the cast for a row: a new one, or one that a crash interrupted.

        None: it was stopped, is about another branch, or a seed goes first and the row comes again.
        """
        if row.state == "casting":
            interrupted = await self._casts.running(row.event_id)
            if interrupted is not None:
                return interrupted
        async with self._database.transaction(late=True) as tx:
            branch = await self._conversations.current_branch(tx, row.conversation_id)
            scope = await self.scope(row)
            refusal = outdated(row, scope)
            if refusal or not await self._in_view(tx, row):
                if await self._inbox.is_waiting(tx, row.event_id):  # otherwise it is ignored
                    await self._out_of_view(tx, row, scope, refusal)
                return None
            opens = row.kind == "message" and not row.edits
            if opens and await self._branching.sow(tx, row, branch):
                return None
            if not await self._inbox.begin(tx, row.event_id):
                return None
            branch, effects = await self._branching.fork(tx, row, branch)
            began = await self._conversations.began(tx, row.conversation_id)
            lines = await self._context_rows(tx, row, began)
            replied = await self._replies.shown(tx, row, scope, fetched)
            text = effects + await self._news_before(tx, row, scope, began)
            text += intent(row, lines, age(row, self._clock.now(), self._zone), replied)
            wards = self._settings.wards.record()
            cast = await self._casts.start(
                *(tx, branch, row.event_id, text, row.origin, wards),
                taint=bool(lines) or quotes_others(replied, row),
                bare=self._trouble.is_last(row),
            )
            if row.turn_id is not None:
                await self._casts.inherit_taint(tx, cast.id, row.turn_id)
            return cast

    async def _in_view(self, tx: Transaction, row: InboxRow) -> bool:
        """Return True unless the row is an event about something out of view (L-062, L-074)."""
        if row.turn_id is not None:
            return await self._conversations.in_view(tx, row.conversation_id, row.turn_id)
        if row.is_unasked:
            branch = await self._conversations.current_branch(tx, row.conversation_id)
            return branch in row.event_id
        return True

    async def _out_of_view(self, tx: Transaction, row: InboxRow, now: str, answer: str) -> None:
        """Answer with a result for the people who asked for it; after `/new` without text."""
        scope, turn = ANYBODY if answer else now, row.turn_id
        if not answer and turn is not None and not await self._conversations.is_over(tx, turn):
            scope = await self._conversations.scope_of_turn(turn)
            answer = replies.RESULT.format(result=text_of(row.body))
        await self.reply(tx, row, answer, meant_for=scope)

    async def _news_before(
        self, tx: Transaction, row: InboxRow, scope: str, began: datetime
    ) -> str:
        """Return the task messages (T-052) and the memory changes (M-078) since the last message."""
        if row.kind != "message":
            return ""
        background = self._settings.background_news
        changes = await background.events_before(tx, row, scope) if background else ""
        last = await self._inbox.last_before(tx, row.conversation_id, row.seq)
        since = max(began, last.received_at if last else began)
        due = await self._occurrences.delivered_in(tx, row.conversation_id, since, MOST)
        asked_at = await self._casts.last_begun(tx, last.event_id) if last and due else None
        if asked_at is not None and asked_at > since:  # that cast brought the results before it
            due = await self._occurrences.delivered_in(tx, row.conversation_id, asked_at, MOST)
        return "".join(due_event(each, self._zone) for each in due) + changes

    async def _context_rows(
        self, tx: Transaction, row: InboxRow, began: datetime
    ) -> Sequence[InboxRow]:
        first = await self._inbox.find(tx, row.edits) if row.edits else None
        return await self._inbox.context(row.conversation_id, (first or row).seq, began)

    async def _close(self, row: InboxRow, cast: Cast, outcome: Outcome, scope: str) -> None:
        """Store the end of the cast, its answer and the answered mark in one transaction (DESIGN §3, 7)."""
        # Our own events are not followed by size notices (P-051).
        sizes = await self._oversize.sizes(scope) if row.kind == "message" else {}
        if sizes and outcome.left_out is not None:
            await self._oversize.note(scope, outcome.left_out if "memories" in sizes else 0)
        async with self._database.transaction(late=True) as tx:
            if not await self._casts.in_scope(tx, cast.branch_id):
                outcome = JOINED
            if not await self._casts.end(tx, cast.id, outcome.state, outcome.reason, outcome.text):
                return  # stopped or edited: answered already
            await self._settle(tx, row, cast, outcome, scope)
            # One event for each oversize part of the prompt (P-048).
            for n, text in enumerate(await self._oversize.notices(tx, scope, sizes)):
                event_id = f"{OVERSIZE}{cast.branch_id}_{cast.id}_{n}"
                body = event("component_oversize", event_id, text)
                await self._inbox.store_event(tx, row, event_id, body)

    async def _settle(
        self, tx: Transaction, row: InboxRow, cast: Cast, outcome: Outcome, scope: str
    ) -> None:
        """Answer the row, or keep it until the model is back, or for the present members of the room."""
        if outcome is JOINED and not row.is_unasked:
            await self._inbox.set_state(tx, row.event_id, "waiting")
            if not row.direct:  # the others, for whom it is tried again, must not see it
                self._speaker.retract(row.conversation_id)
        elif row.is_unasked and outcome.reason not in ANSWERED:  # no person waits for it (P-061)
            await self._inbox.set_state(tx, row.event_id, "answered")
        elif outcome.reason in WAITS:
            until = outcome.retry_at or self._clock.now() + AGAIN
            seconds = (until - self._clock.now()).total_seconds()
            await self._inbox.set_state(
                tx, row.event_id, "waiting", self._clock.monotonic() + seconds
            )
            if outcome.reason == "budget":
                chosen = await self._conversations.backend(row.conversation_id)
                answer = replies.reply_text(outcome, chosen=chosen)
                await self.tell_once(tx, row, f"budget {until.isoformat()}", answer)
        else:
            when = "" if row.kind == "event" else in_words(row.sent_at, self._zone)
            is_over = outcome.reason in (*REFUSED, *UNFIT)
            casts = await self._casts.of_branch(cast.branch_id) if is_over else ()
            turns = [turn for each in casts if each.key == cast.key for turn in each.turns]
            turns = [*filter(is_shown, turns)]
            seen = await self.visible_draft(tx, row, cast)
            shown = seen[0] if seen and seen[1] == scope else ""  # not a text for other readers
            is_whole = outcome.state == "terminated"
            chosen = None if is_whole else await self._conversations.backend(row.conversation_id)
            answer = replies.reply_text(outcome, when, turns, shown, chosen)
            if not turns and not seen and (key := self._trouble.once(row, outcome, chosen)):
                await self._notices.notice_once(tx, key, EVER, row.conversation_id, answer)
                answer = ""
            by_model = (is_whole and bool(outcome.text.strip())) or bool(shown)
            in_place = by_model and row.edits is not None
            await self.reply(tx, row, answer, cast.id, meant_for=scope, in_place=in_place)

    async def tell_once(self, tx: Transaction, row: InboxRow, key: str, text: str) -> None:
        """Send a notice about a row to its room, and never again under the same key."""
        where = row.conversation_id
        await self._notices.notice_once(tx, f"{key} {where}", EVER, where, text)
