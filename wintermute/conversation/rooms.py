"""The workers of rooms: one per conversation, strict order inside it, all of them at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from wintermute.clock import Clock, wait_for_event
from wintermute.conversation import replies
from wintermute.conversation.dispatcher import Dispatcher, SpawnedWork, outdated
from wintermute.conversation.model_failures import ModelFailures
from wintermute.conversation.state import Speaker, Stop
from wintermute.db import Transaction
from wintermute.errors import StorageBlocked, WintermuteError
from wintermute.jobs import FORGET
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import LAST, SEED, InboxRow
from wintermute.mailbox.outbox import ANYBODY
from wintermute.stores import Stores
from wintermute.text import counted

KEEP_PLACE = frozenset({"/new", "/compact", "/undo"})
"""Commands that change the context of the messages before them, so they wait for these."""
REDONE = frozenset({"/remind", "/tasks"})
"""Commands whose edit undoes the first version and runs the new one in its place (F-049)."""
READ = frozenset({"/help", "/status", "/sessions", "/memory", "/usage"})
LISTING = frozenset({"/tasks", "/model"})
"""Commands that only read when they have no argument."""

log = logging.getLogger(__name__)


class Commands(Protocol):
    """Answers lines that start with `/`."""

    async def prepare(self, row: InboxRow) -> str | None:
        """Do the part of a command that must be outside a transaction; return the answer if that is all."""
        ...

    async def answer(self, tx: Transaction, row: InboxRow) -> str:
        """Run the command in the transaction that also stores the answer; return Markdown."""
        ...


class PendingWork(SpawnedWork, Protocol):
    """Sub-sessions, and jobs that are due."""

    async def finish(self, name: str, wake: Callable[[str], None]) -> None:
        """Run the jobs of a type that are ready, and wait for those that are running."""
        ...


def next_row(rows: Sequence[InboxRow], now: float) -> tuple[InboxRow | None, float | None]:
    """Return the next row, or the time to wait for, by the monotonic clock (F-015).

    Strict order, but a seed goes first. Events and some commands pass a message that waits for the
    model (L-072, F-035); every row passes an event that waits.
    """
    rows = sorted(rows, key=lambda row: not row.is_seed)
    first = next((row for row in rows if keeps_place(row)), None)
    free = [row for row in rows if row is first or row.kind == "event" or passes_by(row, rows)]
    later = [row.not_before for row in free if row.not_before is not None and row.not_before > now]
    due = next((row for row in free if row.not_before not in later), None)
    return due, min(later) if later and not due else None


def in_order(rows: Sequence[InboxRow], aside: Collection[str]) -> list[InboxRow]:
    """Sort the rows.

    Messages that fail alone go behind the others, up to the next command that keeps its place
    (F-060).
    """
    fences = [row.seq for row in rows if row.kind == "command" and keeps_place(row)]

    def place(row: InboxRow) -> tuple[float, float]:
        if row.event_id not in aside:
            return row.seq, 0.0
        return next((n for n in fences if n > row.seq), LAST) - 0.5, row.not_before or 0.0

    return sorted(rows, key=place)


def keeps_place(row: InboxRow) -> bool:
    """Return True if a row waits until all rows before it that keep their place are done."""
    return row.kind == "message" or (row.kind == "command" and row.first_word in KEEP_PLACE)


def passes_by(row: InboxRow, rows: Sequence[InboxRow]) -> bool:
    """Return True if a command is answered while messages before it wait (F-035).

    A command that changes something does not pass an earlier `/undo`, which is about older changes.
    """
    if row.kind != "command" or keeps_place(row):
        return False
    reads = row.first_word in READ or (row.first_word in LISTING and len(row.body.split()) == 1)
    return reads or not any(each.seq < row.seq and each.first_word == "/undo" for each in rows)


def is_blocked(error: Exception) -> bool:
    """Return True if nothing could be written: no bug, and all rooms wait until it can."""
    if isinstance(error, ExceptionGroup):
        return error.subgroup(StorageBlocked) is not None
    return isinstance(error, StorageBlocked)


class Rooms:
    """Hands inbox rows to the loop or to the commands, and their answers to the outbox."""

    def __init__(
        self,
        stores: Stores,
        casting: Dispatcher,
        commands: Commands,
        sub_sessions: PendingWork,
        speaker: Speaker,
        trouble: ModelFailures,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._casting = casting
        self._commands = commands
        self._sub_sessions = sub_sessions
        self._speaker = speaker
        self._trouble = trouble
        self._clock = clock
        self._to_wake: asyncio.Queue[str] = asyncio.Queue()
        self._wakeups: dict[str, asyncio.Event] = {}
        self._running: dict[str, tuple[str, Stop]] = {}  # event and switch, by conversation
        self._outdated: set[str] = set()  # conversations with text retracted since their request

    def wake(self, conversation_id: str) -> None:
        """Wake the worker of a conversation: its inbox has something new."""
        self._to_wake.put_nowait(conversation_id)

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Sequence[str]
    ) -> None:
        """End all casts and sub-sessions of retracted events, without a message (F-027)."""
        await self._end(tx, conversation_id, events, "redacted")
        await self._sub_sessions.retract_events(tx, conversation_id, events)

    def shows(self, row: InboxRow) -> bool:
        """Return True if people see part of the growing answer to a message."""
        return bool(self._speaker.shown(row))

    def ask_anew(self, conversation_id: str) -> None:
        """Repeat the model request at the next wake: part of the view was retracted (F-027)."""
        self._outdated.add(conversation_id)

    def waits(self, conversation_id: str) -> float | None:
        """Return the seconds until the running message counts as waiting for its model.

        0: it waits already (F-035). None: the model is answering, or nothing is running there.
        """
        event_id, _ = self._running.get(conversation_id, (None, None))
        return self._trouble.waits_in(event_id, conversation_id)

    async def open_rows(self, conversation_id: str) -> list[InboxRow]:
        """Return the rows that could be next in a conversation, in order."""
        aside = self._trouble.aside(conversation_id)
        return in_order(await self._stores.inbox.open_rows(conversation_id, aside), aside)

    async def tell_now(self, row: InboxRow) -> None:
        """Tell the person at once that a message waits for an unavailable model."""
        await self._trouble.tell_now(row)

    async def run(self) -> None:
        """Work until cancelled, beginning with the rows that an earlier run left open."""
        await self._stores.inbox.retry_now()
        for conversation_id, room_id in await self._stores.inbox.open_conversations():
            if self._speaker.serves(room_id):
                self.wake(conversation_id)
        async with asyncio.TaskGroup() as workers:
            workers.create_task(self._trouble.run(self.wake))
            while True:
                conversation_id = await self._to_wake.get()
                if await self._stores.inbox.interrupts(conversation_id):
                    await self._stop_if_asked(conversation_id)
                    await self._stop_if_edited(conversation_id)
                await self._stop_if_joined(conversation_id)
                self._ask_anew_if_outdated(conversation_id)
                await self._pass_by(conversation_id)
                if conversation_id in self._wakeups:
                    self._wakeups[conversation_id].set()
                else:
                    self._wakeups[conversation_id] = asyncio.Event()
                    workers.create_task(self._run_worker(conversation_id))

    async def _run_worker(self, conversation_id: str) -> None:
        wakeup = self._wakeups[conversation_id]
        try:
            while True:
                wakeup.clear()
                seconds = await self._trouble.attend(conversation_id)
                rows = await self.open_rows(conversation_id)
                row, until = next_row(rows, self._clock.monotonic())
                if row is not None:
                    await self._take(row)
                elif until is not None:
                    await self._tell_waiting_commands(rows)
                    seconds_left = until - self._clock.monotonic()
                    await wait_for_event(wakeup, self._clock, min(seconds_left, seconds))
                elif not wakeup.is_set():
                    return
        finally:
            del self._wakeups[conversation_id]

    async def _tell_waiting_commands(self, rows: Sequence[InboxRow]) -> None:
        """Tell the person that a command waits behind a message that waits."""
        for row in rows:
            if row.kind != "command" or not keeps_place(row):
                continue
            async with self._stores.database.transaction() as tx:
                notice = replies.KEPT.format(word=row.first_word)
                await self._casting.tell_once(tx, row, f"kept {row.event_id}", notice)
            self._speaker.speak(row.conversation_id)

    async def _stop_if_asked(self, conversation_id: str) -> None:
        """Answer `/stop`, in one transaction with the casts it ends, so a kill cannot undo it (L-023)."""
        for row in await self._stores.inbox.stops(conversation_id):
            async with self._stores.database.transaction() as tx:
                answer = await self._stop_one(tx, row) or await self._stop_all(tx, row)
                await self._casting.reply(tx, row, answer)
            self._speaker.speak(row.conversation_id)

    async def _stop_one(self, tx: Transaction, row: InboxRow) -> str | None:
        """End one sub-session for `/stop ID`; after other words, `/stop` ends everything."""
        sub_id = " ".join(row.body.split()[1:]).strip("`")
        if not sub_id:
            return None
        if await self._sub_sessions.end(tx, row.conversation_id, only=sub_id):
            return replies.STOPPED
        missing = sub_id.startswith("sub_")
        return replies.NO_SUCH_SUB_SESSION.format(id=sub_id[:40]) if missing else None

    async def _stop_all(self, tx: Transaction, row: InboxRow) -> str:
        conversation_id = row.conversation_id
        taken, _ = self._running.get(conversation_id, (None, None))
        given_up = await self._stores.inbox.give_up(
            tx, conversation_id, row.seq, taken=taken, also_new=conversation_id not in self._wakeups
        )
        shown = await self._end(tx, conversation_id, given_up, "stopped")
        ended = await self._sub_sessions.end(tx, conversation_id)
        messages = [each for each in given_up if not each.startswith(SEED)]
        many = counted(len(messages) - bool(shown), "message")
        rest = replies.UNANSWERED.format(many) if messages[1:] else ""
        if shown:
            return rest
        return f"{replies.STOPPED} {rest}".strip() if given_up or ended else replies.NOTHING_RUNNING

    async def _stop_if_edited(self, conversation_id: str) -> None:
        """End the cast of a message when a newer version of it has arrived (L-054)."""
        for row in await self._stores.inbox.edits_waiting(conversation_id):
            if row.kind == "command":
                continue  # an edited command waits for its turn, then reverts the first one
            async with self._stores.database.transaction() as tx:
                given_up = await self._stores.inbox.give_up_versions(tx, str(row.edits), row.seq)
                await self._end(tx, conversation_id, given_up, "edited")

    async def _stop_if_joined(self, conversation_id: str) -> None:
        """Stop a cast when the people who can read here now must not see its answer (F-004)."""
        event_id, stop = self._running.get(conversation_id, (None, None))
        cast = await self._stores.casts.running(event_id) if event_id else None
        stores = self._stores
        if stop and cast and not await stores.casts.in_scope(stores.database, cast.branch_id):
            stop.press()

    def _ask_anew_if_outdated(self, conversation_id: str) -> None:
        """Repeat the request without retracted text, also when it failed meanwhile (F-027)."""
        _, stop = self._running.get(conversation_id, (None, None))
        if stop is not None and conversation_id in self._outdated:
            stop.ask_anew()
        self._outdated.discard(conversation_id)

    async def _pass_by(self, conversation_id: str) -> None:
        """Answer commands that may pass a running message while it waits for its model (F-035)."""
        wait = self.waits(conversation_id)
        if wait is None:
            return
        taken, stop = self._running.get(conversation_id, (None, None))
        rows = await self.open_rows(conversation_id)
        behind = [row for row in rows if row.kind == "command" and row.event_id != taken]
        if behind and wait > 0:
            self._trouble.remind(conversation_id, wait)
        if wait > 0:
            return
        for row in behind:
            if passes_by(row, rows):
                await self._catching_bugs(row, self._command(row, Stop()))
        first = next((row.event_id for row in rows if keeps_place(row)), taken)
        if self.waits(conversation_id) != 0:
            return
        if stop and first != taken and taken in self._trouble.aside(conversation_id):
            stop.press()
        else:
            await self._tell_waiting_commands(behind)

    async def _end(
        self, tx: Transaction, conversation_id: str, events: Sequence[str], reason: str
    ) -> str:
        """End the casts of these events, also the running one.

        Returns the text of a stopped answer that people saw growing; "" if the caller must still
        answer.
        """
        self._trouble.drop(events)
        shown = ""
        for event_id in events:
            cast = await self._stores.casts.running(event_id)
            stopped = await self._stopped(tx, event_id, cast) if reason == "stopped" else ""
            if cast is not None:
                result = stopped or cast.last_words
                await self._stores.casts.end(tx, cast.id, "truncated", reason, result)
            shown = shown or stopped
        taken, stop = self._running.get(conversation_id, (None, None))
        if stop is not None and taken in events:
            stop.press()  # within the transaction: the cast takes no further step
        return shown

    async def _stopped(self, tx: Transaction, event_id: str, cast: Cast | None) -> str:
        """End an answer that people see growing; return its last text, "" if none is visible."""
        row = await self._stores.inbox.find(tx, event_id)
        seen = await self._casting.visible_draft(tx, row, cast) if row else None
        if row is None or seen is None:
            return ""
        shown, scope = seen
        text, cast_id = replies.below(shown, replies.STOPPED_HERE), cast.id if cast else None
        await self._casting.reply(tx, row, text, cast_id, meant_for=scope, in_place=bool(shown))
        return text

    async def _take(self, row: InboxRow) -> None:
        stop = Stop()
        self._running[row.conversation_id] = (row.event_id, stop)
        try:
            await self._catching_bugs(row, self._answer(row, stop))
        finally:
            del self._running[row.conversation_id]

    async def _catching_bugs(self, row: InboxRow, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # bulkhead: a bug in one room must not end the others (L-031)
            if is_blocked(error):
                raise
            ids = (row.conversation_id, row.event_id)
            log.exception("answer failed conversation=%s event=%s", *ids)
            await self._answer_after_bug(row)
        self._speaker.speak(row.conversation_id)

    async def _answer(self, row: InboxRow, stop: Stop) -> None:
        await self._forget_first(row)
        await (self._command if row.kind == "command" else self._casting.cast)(row, stop)
        if row.first_word == "/forget":
            await self._forget_first(row)

    async def _forget_first(self, row: InboxRow) -> None:
        """Run pending `/forget` jobs of a scope before anything is shown there (U-015)."""
        stores = self._stores
        if not await stores.jobs.is_forgetting(stores.database):
            return
        scope = await self._casting.scope(row)
        if not await stores.jobs.is_forgetting(stores.database, scope):
            return
        await self._sub_sessions.finish(FORGET, self.wake)
        # Casts of other chats repeat their requests without it (F-027).
        others = {**self._running} if row.first_word == "/forget" else {}
        for conversation_id, (event_id, stop) in others.items():
            conversation = await stores.conversations.get(conversation_id)
            if conversation.scope == scope and event_id != row.event_id:
                stop.ask_anew()

    async def _command(self, row: InboxRow, stop: Stop) -> None:
        before = await self._casting.scope(row)
        prepared = None if outdated(row, before) else await self._prepared(row, stop)
        async with self._stores.database.transaction() as tx:
            if not await self._stores.inbox.begin(tx, row.event_id):
                return  # `/stop` has answered
            now = await self._casting.scope(row)
            if refusal := outdated(row, now):
                await self._casting.reply(tx, row, refusal)
            elif prepared is not None:  # for the people who could read here before
                await self._casting.reply(tx, row, prepared, meant_for=before)
            else:
                answer = await self._commands.answer(tx, row)
                await self._casting.reply(tx, row, answer, meant_for=now)

    async def _prepared(self, row: InboxRow, stop: Stop) -> str | None:
        """Run the part of a command outside a transaction; return the answer if that is all."""
        try:
            async with stop.within(self._casting.seconds) as limit:
                return await self._commands.prepare(row)
        except TimeoutError:
            if not limit.expired():
                raise
            return replies.STOPPED
        except StorageBlocked:
            raise
        except WintermuteError as problem:
            return str(problem)

    async def _answer_after_bug(self, row: InboxRow) -> None:
        cast = await self._stores.casts.running(row.event_id)
        async with self._stores.database.transaction() as tx:
            shown, scope = await self._casting.visible_draft(tx, row, cast) or ("", ANYBODY)
            text, cast_id = replies.below(shown, replies.INTERNAL), cast.id if cast else None
            if cast is not None:
                result = text if shown else ""
                await self._stores.casts.end(tx, cast.id, "truncated", "internal_error", result)
            # Otherwise it has an answer already.
            if await self._stores.inbox.begin(tx, row.event_id):
                await self._casting.reply(
                    tx, row, text, cast_id, meant_for=scope, in_place=bool(shown)
                )
            await self._stores.health.note_in(tx, "casts", "fail", "internal error, see the log")
