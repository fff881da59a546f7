"""Who works when: one worker per conversation, strict order inside it, all of them at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from wintermute.clock import Clock, until_set
from wintermute.conversation import words
from wintermute.conversation.casting import Casting, HandedOutWork, outdated
from wintermute.conversation.state import Speaker, Stop
from wintermute.conversation.trouble import Trouble
from wintermute.db import Transaction
from wintermute.errors import StorageBlocked, WintermuteError
from wintermute.jobs import FORGET
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import LAST, SEED, Waiting
from wintermute.mailbox.outbox import ANYBODY
from wintermute.stores import Stores
from wintermute.text import counted

KEEP_PLACE = frozenset({"/new", "/compact", "/undo"})
"""Commands that change what a message before them is about."""
REDONE = frozenset({"/remind", "/tasks"})
"""Commands whose edit is carried out in the place of what they did, which can be undone (F-049)."""
READ = frozenset({"/help", "/status", "/sessions", "/memory", "/usage"})
LISTING = frozenset({"/tasks", "/model"})
"""Commands that only read where nothing follows them."""

log = logging.getLogger(__name__)


class Commands(Protocol):
    """What answers a line that starts with `/`."""

    async def prepare(self, row: Waiting) -> str | None:
        """What must be done before, outside of a transaction; the answer, if that was all."""
        ...

    async def answer(self, tx: Transaction, row: Waiting) -> str:
        """Do it within the transaction that also stores the answer; the answer, as Markdown."""
        ...


class OwedWork(HandedOutWork, Protocol):
    """Work that was handed out, and work that is owed to people."""

    async def finish(self, name: str, wake: Callable[[str], None]) -> None:
        """Do what is ready of a kind of work, and wait for what is at work."""
        ...


def next_row(rows: Sequence[Waiting], now: float) -> tuple[Waiting | None, float | None]:
    """Which row is next, and if none is, until when to wait; by the steady clock (F-015).

    Strict order, but a seed goes first, and events and what passes by go past a message that waits
    for the model (L-072, F-035); an event that waits is passed by all.
    """
    rows = sorted(rows, key=lambda row: not row.is_seed)
    kept = next((row for row in rows if keeps_place(row)), None)
    free = [row for row in rows if row is kept or row.kind == "event" or passes_by(row, rows)]
    later = [row.not_before for row in free if row.not_before is not None and row.not_before > now]
    due = next((row for row in free if row.not_before not in later), None)
    return due, min(later) if later and not due else None


def in_order(rows: Sequence[Waiting], aside: Collection[str]) -> list[Waiting]:
    """The rows: those that fail alone behind all up to a command that keeps its place (F-060)."""
    fences = [row.seq for row in rows if row.kind == "command" and keeps_place(row)]

    def place(row: Waiting) -> tuple[float, float]:
        if row.event_id not in aside:
            return row.seq, 0.0
        return next((n for n in fences if n > row.seq), LAST) - 0.5, row.not_before or 0.0

    return sorted(rows, key=place)


def keeps_place(row: Waiting) -> bool:
    """Whether a row is only taken once all before it that keep their place are done."""
    return row.kind == "message" or (row.kind == "command" and row.word in KEEP_PLACE)


def passes_by(row: Waiting, rows: Sequence[Waiting]) -> bool:
    """Whether a command is answered while messages before it wait (F-035).

    What changes something does not pass `/undo`, which is not about it.
    """
    if row.kind != "command" or keeps_place(row):
        return False
    reads = row.word in READ or (row.word in LISTING and len(row.body.split()) == 1)
    return reads or not any(each.seq < row.seq and each.word == "/undo" for each in rows)


def is_blocked(error: Exception) -> bool:
    """Whether nothing could be written: no bug, and all rooms wait for it together."""
    if isinstance(error, ExceptionGroup):
        return error.subgroup(StorageBlocked) is not None
    return isinstance(error, StorageBlocked)


class Rooms:
    """Takes what the inbox holds to the loop or to the commands, and the answers to the outbox."""

    def __init__(
        self,
        stores: Stores,
        casting: Casting,
        commands: Commands,
        sub_sessions: OwedWork,
        speaker: Speaker,
        trouble: Trouble,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._casting = casting
        self._commands = commands
        self._sub_sessions = sub_sessions
        self._speaker = speaker
        self._trouble = trouble
        self._clock = clock
        self._woken: asyncio.Queue[str] = asyncio.Queue()
        self._bells: dict[str, asyncio.Event] = {}
        self._running: dict[str, tuple[str, Stop]] = {}  # event and switch, by conversation
        self._outdated: set[str] = set()  # conversations with less in view than was asked with

    def wake(self, conversation_id: str) -> None:
        """Something new is in the inbox for this conversation."""
        self._woken.put_nowait(conversation_id)

    async def take_back(self, tx: Transaction, conversation_id: str, events: Sequence[str]) -> None:
        """End all that was begun for events that were taken back, without a word (F-027)."""
        await self._end(tx, conversation_id, events, "redacted")
        await self._sub_sessions.take_back(tx, conversation_id, events)

    def shows(self, row: Waiting) -> bool:
        """People see some of the answer to a message that is being made."""
        return bool(self._speaker.shown(row))

    def ask_anew(self, conversation_id: str) -> None:
        """Less is in view in a conversation when it is woken: the model is asked without that (F-027)."""
        self._outdated.add(conversation_id)

    def waits(self, conversation_id: str) -> float | None:
        """Seconds until what is at work is taken to wait for its model, 0: it does (F-035).

        None: the model is at it, or nothing is at work there.
        """
        taken, _ = self._running.get(conversation_id, (None, None))
        return self._trouble.waits_in(taken, conversation_id)

    async def open_rows(self, conversation_id: str) -> list[Waiting]:
        """The messages that could be next in a conversation, in order."""
        aside = self._trouble.aside(conversation_id)
        return in_order(await self._stores.inbox.open_rows(conversation_id, aside), aside)

    async def tell_now(self, row: Waiting) -> None:
        """Say at once of a message that waits for a model that is away, that it does."""
        await self._trouble.tell_now(row)

    async def run(self) -> None:
        """Work until cancelled, beginning with what an earlier run left."""
        await self._stores.inbox.hurry()
        for conversation_id, room_id in await self._stores.inbox.open_conversations():
            if self._speaker.serves(room_id):
                self.wake(conversation_id)
        async with asyncio.TaskGroup() as workers:
            workers.create_task(self._trouble.run(self.wake))
            while True:
                conversation_id = await self._woken.get()
                if await self._stores.inbox.interrupts(conversation_id):
                    await self._stop_if_asked(conversation_id)
                    await self._stop_if_edited(conversation_id)
                await self._stop_if_joined(conversation_id)
                self._ask_anew_if_outdated(conversation_id)
                await self._pass_by(conversation_id)
                if conversation_id in self._bells:
                    self._bells[conversation_id].set()
                else:
                    self._bells[conversation_id] = asyncio.Event()
                    workers.create_task(self._work(conversation_id))

    async def _work(self, conversation_id: str) -> None:
        bell = self._bells[conversation_id]
        try:
            while True:
                bell.clear()
                seconds = await self._trouble.attend(conversation_id)
                rows = await self.open_rows(conversation_id)
                row, until = next_row(rows, self._clock.monotonic())
                if row is not None:
                    await self._take(row)
                elif until is not None:
                    await self._tell_kept(rows)
                    left = until - self._clock.monotonic()
                    await until_set(bell, self._clock, min(left, seconds))
                elif not bell.is_set():
                    return
        finally:
            del self._bells[conversation_id]

    async def _tell_kept(self, rows: Sequence[Waiting]) -> None:
        """Say of a command that keeps its place behind a message that waits, that it does."""
        for row in rows:
            if row.kind != "command" or not keeps_place(row):
                continue
            async with self._stores.database.transaction() as tx:
                said = words.KEPT.format(word=row.word)
                await self._casting.tell_once(tx, row, f"kept {row.event_id}", said)
            self._speaker.speak(row.conversation_id)

    async def _stop_if_asked(self, conversation_id: str) -> None:
        """Answer `/stop`. One transaction with what it ends, so a kill cannot undo it (L-023)."""
        for row in await self._stores.inbox.stops(conversation_id):
            async with self._stores.database.transaction() as tx:
                said = await self._stop_one(tx, row) or await self._stop_all(tx, row)
                await self._casting.reply(tx, row, said)
            self._speaker.speak(row.conversation_id)

    async def _stop_one(self, tx: Transaction, row: Waiting) -> str | None:
        """`/stop ID` ends one sub-session; any other words are no reason to end nothing."""
        wanted = " ".join(row.body.split()[1:]).strip("`")
        if not wanted:
            return None
        if await self._sub_sessions.end(tx, row.conversation_id, only=wanted):
            return words.STOPPED
        missing = wanted.startswith("sub_")
        return words.NO_SUCH_SUB_SESSION.format(id=wanted[:40]) if missing else None

    async def _stop_all(self, tx: Transaction, row: Waiting) -> str:
        conversation_id = row.conversation_id
        taken, _ = self._running.get(conversation_id, (None, None))
        given_up = await self._stores.inbox.give_up(
            tx, conversation_id, row.seq, taken=taken, also_new=conversation_id not in self._bells
        )
        said = await self._end(tx, conversation_id, given_up, "stopped")
        ended = await self._sub_sessions.end(tx, conversation_id)
        asked = [each for each in given_up if not each.startswith(SEED)]
        many = counted(len(asked) - bool(said), "message")
        left = words.UNANSWERED.format(many) if asked[1:] else ""
        if said:
            return left
        return f"{words.STOPPED} {left}".strip() if given_up or ended else words.NOTHING_RUNNING

    async def _stop_if_edited(self, conversation_id: str) -> None:
        """End the work on a message of which a newer version is here (L-054)."""
        for row in await self._stores.inbox.edits_waiting(conversation_id):
            if row.kind == "command":
                continue  # it takes its turn, and back what is done by then
            async with self._stores.database.transaction() as tx:
                given_up = await self._stores.inbox.give_up_versions(tx, str(row.edits), row.seq)
                await self._end(tx, conversation_id, given_up, "edited")

    async def _stop_if_joined(self, conversation_id: str) -> None:
        """Take no more time for what those who can read here now must not hear (F-004)."""
        taken, stop = self._running.get(conversation_id, (None, None))
        cast = await self._stores.casts.running(taken) if taken else None
        stores = self._stores
        if stop and cast and not await stores.casts.in_scope(stores.database, cast.branch_id):
            stop.press()

    def _ask_anew_if_outdated(self, conversation_id: str) -> None:
        """Ask with nothing that was taken back, also not once more after a failure (F-027)."""
        _, stop = self._running.get(conversation_id, (None, None))
        if stop is not None and conversation_id in self._outdated:
            stop.ask_anew()
        self._outdated.discard(conversation_id)

    async def _pass_by(self, conversation_id: str) -> None:
        """Answer what passes by a message that is at work and waits for its model (F-035)."""
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
                await self._guarded(row, self._command(row, Stop()))
        first = next((row.event_id for row in rows if keeps_place(row)), taken)
        if self.waits(conversation_id) != 0:
            return
        if stop and first != taken and taken in self._trouble.aside(conversation_id):
            stop.press()
        else:
            await self._tell_kept(behind)

    async def _end(
        self, tx: Transaction, conversation_id: str, events: Sequence[str], reason: str
    ) -> str:
        """End the casts of these events, with that at work among them.

        Returns what was said of a stopped one whose answer people saw growing; "": it is still to
        be said.
        """
        self._trouble.drop(events)
        said = ""
        for event_id in events:
            cast = await self._stores.casts.running(event_id)
            told = await self._stopped(tx, event_id, cast) if reason == "stopped" else ""
            if cast is not None:
                result = told or cast.last_words
                await self._stores.casts.end(tx, cast.id, "truncated", reason, result)
            said = said or told
        taken, stop = self._running.get(conversation_id, (None, None))
        if stop is not None and taken in events:
            stop.press()  # before anybody else may write: the cast takes no further step
        return said

    async def _stopped(self, tx: Transaction, event_id: str, cast: Cast | None) -> str:
        """End an answer that people see growing; what they read then, "" where none is to be seen."""
        row = await self._stores.inbox.find(tx, event_id)
        seen = await self._casting.seen(tx, row, cast) if row else None
        if row is None or seen is None:
            return ""
        shown, scope = seen
        said, of = words.below(shown, words.STOPPED_HERE), cast.id if cast else None
        await self._casting.reply(tx, row, said, of, meant_for=scope, in_place=bool(shown))
        return said

    async def _take(self, row: Waiting) -> None:
        stop = Stop()
        self._running[row.conversation_id] = (row.event_id, stop)
        try:
            await self._guarded(row, self._answer(row, stop))
        finally:
            del self._running[row.conversation_id]

    async def _guarded(self, row: Waiting, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # bulkhead: a bug in one room must not end the others (L-031)
            if is_blocked(error):
                raise
            ids = (row.conversation_id, row.event_id)
            log.exception("answer failed conversation=%s event=%s", *ids)
            await self._broken(row)
        self._speaker.speak(row.conversation_id)

    async def _answer(self, row: Waiting, stop: Stop) -> None:
        await self._forget_first(row)
        await (self._command if row.kind == "command" else self._casting.cast)(row, stop)
        if row.word == "/forget":
            await self._forget_first(row)

    async def _forget_first(self, row: Waiting) -> None:
        """Carry out what people of a scope want forgotten, before anything is shown there (U-015)."""
        stores = self._stores
        if not await stores.jobs.is_forgetting(stores.database):
            return
        scope = await self._casting.scope(row)
        if not await stores.jobs.is_forgetting(stores.database, scope):
            return
        await self._sub_sessions.finish(FORGET, self.wake)
        # Casts of other chats are asked anew, with nothing of it (F-027).
        others = {**self._running} if row.word == "/forget" else {}
        for conversation_id, (event_id, stop) in others.items():
            held = await stores.conversations.get(conversation_id)
            if held.scope == scope and event_id != row.event_id:
                stop.ask_anew()

    async def _command(self, row: Waiting, stop: Stop) -> None:
        before = await self._casting.scope(row)
        said = None if outdated(row, before) else await self._prepared(row, stop)
        async with self._stores.database.transaction() as tx:
            if not await self._stores.inbox.begin(tx, row.event_id):
                return  # `/stop` has answered
            now = await self._casting.scope(row)
            if refusal := outdated(row, now):
                await self._casting.reply(tx, row, refusal)
            elif said is not None:  # made for those who could read here when it was
                await self._casting.reply(tx, row, said, meant_for=before)
            else:
                answer = await self._commands.answer(tx, row)
                await self._casting.reply(tx, row, answer, meant_for=now)

    async def _prepared(self, row: Waiting, stop: Stop) -> str | None:
        """What a command does outside of a transaction; the answer, if that was all."""
        try:
            async with stop.within(self._casting.seconds) as limit:
                return await self._commands.prepare(row)
        except TimeoutError:
            if not limit.expired():
                raise
            return words.STOPPED
        except StorageBlocked:
            raise
        except WintermuteError as problem:
            return str(problem)

    async def _broken(self, row: Waiting) -> None:
        cast = await self._stores.casts.running(row.event_id)
        async with self._stores.database.transaction() as tx:
            shown, scope = await self._casting.seen(tx, row, cast) or ("", ANYBODY)
            said, of = words.below(shown, words.INTERNAL), cast.id if cast else None
            if cast is not None:
                result = said if shown else ""
                await self._stores.casts.end(tx, cast.id, "truncated", "internal_error", result)
            if await self._stores.inbox.begin(tx, row.event_id):  # else it has its answer
                await self._casting.reply(tx, row, said, of, meant_for=scope, in_place=bool(shown))
            await self._stores.health.note_in(tx, "casts", "fail", "internal error, see the log")
