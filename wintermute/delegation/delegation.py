"""Runs sub-sessions: those that a cast waits for within its call, the others in a task of their own.

    spawn ─▶ waiting ─▶ running ─▶ (collecting) ─▶ done, failed, timed_out or ended
                ▲ all it depends on is done, and it is time

Each step is a transaction that looks at the tables, so that a kill between two loses nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from wintermute.clock import LONGEST_NAP, Clock, until_rung
from wintermute.conversation.cast import Loop, Outcome
from wintermute.conversation.rooms import guarded
from wintermute.conversation.stop import Stop
from wintermute.conversation.terms import Terms
from wintermute.conversation.toolbox import Caller, Toolbox
from wintermute.db import Database, Transaction
from wintermute.delegation.ending import Ending
from wintermute.delegation.graph import joined, resolved
from wintermute.delegation.means import Bounds
from wintermute.delegation.records import RESTARTED, STOPPED, Order, SubSession, placed
from wintermute.delegation.reports import last_step, with_results
from wintermute.delegation.store import SubSessions
from wintermute.delegation.telling import Told, Words
from wintermute.health.store import Health
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Cast
from wintermute.prompt.modes import first_user

log = logging.getLogger(__name__)

MOST_INTERRUPTIONS = 3  # L-068
SOON = timedelta(seconds=0.2)  # nothing rings when a turn has run its last call
BROKEN = Outcome("truncated", "internal_error", "")


class Unwatched:
    """Nobody sees a sub-session being made."""

    def draft(self, piece: str) -> None:
        pass

    def begun(self) -> None:
        pass

    def gate(self, name: str) -> None:
        pass

    def failed(self, problem: str, *, unreachable: bool) -> None:
        pass


class Delegation:
    """The sub-sessions of all conversations. Implements `conversation.sub_sessions.SubSessions`."""

    def __init__(
        self,
        database: Database,
        store: SubSessions,
        ending: Ending,
        conversations: Conversations,
        casts: Casts,
        loop: Loop,
        health: Health,
        words: Words,
        bounds: Bounds,
        clock: Clock,
    ) -> None:
        self._database = database
        self._store = store
        self._ending = ending
        self._conversations = conversations
        self._casts = casts
        self._loop = loop
        self._health = health
        self._words = words
        self._bounds = bounds
        self._clock = clock
        self._bell = asyncio.Event()
        self._at_work = 0
        self._looks_again = False  # soon, for turns that are not over
        self._stops: dict[str, Stop] = {}
        self._awaited: dict[str, asyncio.Event] = {}

    async def spawn(self, tx: Transaction, caller: Caller, order: Order) -> SubSession:
        """A sub-session that nobody waits for; it starts when what it needs is there (L-058).

        Raises: ToolFailed, and then nothing starts.
        """
        await self._store.check_name(tx, caller.cast_id, order.name)
        node = await self._new(tx, caller, order, blocking=False)
        place = placed(caller)
        if not (self._looks_again and await self._store.more_to_come(tx, place.turn_id, place.n)):
            self._bell.set()  # whoever it wakes waits for the end of this transaction
        return node

    async def call(self, caller: Caller, order: Order, item: int = 0) -> SubSession:
        """A sub-session that is waited for, as it was when it was over (L-057).

        Called again after a crash it goes on where it was (L-051). Cancelled, it stays as it is:
        the end of the caller's cast ends it, an end of the program does not.

        Raises: ToolFailed, and then nothing starts.
        """
        place = placed(caller)
        begun = self._clock.monotonic()
        async with self._database.transaction() as tx:
            node = await self._store.of_call(tx, place.turn_id, place.n, item)
            if node is None:
                node = await self._new(tx, caller, order, blocking=True, item=item)
                node = await self._started(tx, node)
            stop = self._stops[node.id] = Stop()
        try:
            if node.state == "running":
                await self._settle(node, await self._cast(node, place.toolbox, stop))
            return await self._closed(node, begun + node.means.wards.max_seconds)
        finally:
            self._stops.pop(node.id, None)

    def check(self, caller: Caller, order: Order) -> None:
        """Raises: ToolFailed when a call of this order could not start."""
        self._bounds.means(order, placed(caller), blocking=True)

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End what turns of a conversation after this place have spawned, for good (L-062).

        `only`: the one of this id or name with what is below it; what depends on it fails.
        """
        await self._store.sweep(tx)
        found = await self._store.open_in(tx, conversation_id, after)
        if only is None:
            await self._abandon(tx, found)
            await self._tell_rest(tx, conversation_id, found, after)
            return [node.id for node in found]
        named = [node for node in reversed(found) if only in (node.id, node.name)]
        if not named:
            return []
        below = await self._store.open_below(tx, named[0].id)
        await self._abandon(tx, below)
        await self._end_cast(tx, named[0], STOPPED)
        await self._ending.close(tx, named[0].id, STOPPED, "")
        self._ring()
        return [named[0].id, *(node.id for node in below)]

    async def take_back(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End what these events have led to, for good and without a word (F-027).

        What depends on it fails, and is told with what it belongs to.
        """
        await self._store.sweep(tx)
        found = [
            node
            for node in await self._store.open_in(tx, conversation_id)
            if node.root_event in events
        ]
        await self._abandon(tx, found)
        for node in found:
            await self._store.fail_dependents(tx, replace(node, name=None))
        for workflow in dict.fromkeys(node.workflow for node in found):
            await self._ending.tell(tx, workflow)

    async def _tell_rest(
        self, tx: Transaction, conversation_id: str, ended: Sequence[SubSession], after: int
    ) -> None:
        """Tell what was begun before, if it only waited for what has ended now."""
        if after and ended:
            await self._store.part(tx, conversation_id, after)
            for workflow in dict.fromkeys(node.workflow for node in ended):
                await self._ending.tell(tx, workflow)

    async def run(
        self, toolbox: Toolbox, wake: Callable[[str], None], serves: Callable[[str], bool]
    ) -> None:
        """Run what was spawned, until cancelled; beginning with what an earlier run left (L-068).

        `toolbox` is that of rooms, `wake` is told a conversation with news in its inbox, and only
        rooms that this program `serves` are worked for.
        """
        async with asyncio.TaskGroup() as group:
            for node in await self._interrupted(wake, serves):
                self._at_work += 1
                group.create_task(self._work(node, toolbox, wake))
            while True:
                self._bell.clear()
                started, due = await self._next(serves)
                for node in started:
                    self._at_work += 1
                    group.create_task(self._work(node, toolbox, wake))
                await self._pause(due)

    async def _interrupted(
        self, wake: Callable[[str], None], serves: Callable[[str], bool]
    ) -> list[SubSession]:
        async with self._database.transaction() as tx:
            rooms = await self._served(tx, serves)
            found = await self._store.interrupted(tx, rooms)
            for node, times in found:
                if times < MOST_INTERRUPTIONS:
                    self._stops[node.id] = Stop()
                    continue
                await self._end_cast(tx, node, RESTARTED)
                await self._ending.over(tx, node.id, RESTARTED, "")
        for room in rooms:
            wake(room)
        return [node for node, times in found if times < MOST_INTERRUPTIONS]

    async def _next(
        self, serves: Callable[[str], bool]
    ) -> tuple[Sequence[SubSession], datetime | None]:
        """What starts now, and when to look again if nothing happens before."""
        async with self._database.transaction() as tx:
            rooms = await self._served(tx, serves)
            self._looks_again = not await self._store.let_go(tx, rooms)
            free = self._bounds.limits.max_parallel - self._at_work
            ready = await self._store.ready(tx, rooms, max(free, 0))
            started = [await self._started(tx, node) for node in ready]
            for node in started:  # before anybody else may write: a stop finds it
                self._stops[node.id] = Stop()
            due = await self._store.next_due(tx, rooms)
            return started, self._clock.now() + SOON if self._looks_again else due

    async def _served(self, tx: Transaction, serves: Callable[[str], bool]) -> list[str]:
        rooms = await self._store.open_rooms(tx)
        return [conversation for conversation, room_id in rooms if serves(room_id)]

    async def _pause(self, until: datetime | None) -> None:
        if until is None:
            await self._bell.wait()
            return
        left = (until - self._clock.now()).total_seconds()
        await until_rung(self._bell, self._clock, min(left, LONGEST_NAP))  # the clock may be set

    async def _new(
        self, tx: Transaction, caller: Caller, order: Order, *, blocking: bool, item: int = 0
    ) -> SubSession:
        place = placed(caller)
        means = self._bounds.means(order, place, blocking=blocking)
        parent = await self._store.of_cast(tx, caller.cast_id)
        known = await self._store.known(tx, caller, parent, order.depends_on)
        dependencies = resolved(order.depends_on, order.name, known)
        sub_id = await self._store.fresh_id(tx)
        workflow, others = joined(sub_id, dependencies)
        conversation = await self._conversations.open_below(
            tx, caller.cast_id, place.turn_id, caller.scope, means.depth, outlives=not blocking
        )
        node = await self._store.add(
            tx,
            sub_id,
            caller,
            order,
            means,
            blocking=blocking,
            item=item,
            conversation=conversation,
            parent=parent,
            workflow=workflow,
            dependencies=dependencies,
        )
        await self._store.merge(tx, workflow, others)
        return node

    async def _started(self, tx: Transaction, node: SubSession) -> SubSession:
        """Give it its cast, and what it waited for."""
        context = with_results(node.context, await self._store.needs(tx, node.id))
        intent = first_user(node.mode, node.objective, context)
        wards = node.means.wards.record()
        cast = await self._casts.start(tx, node.branch_id, None, intent, node.origin, wards)
        log.info("sub-session starts id=%s cast=%s", node.id, cast.id)
        return await self._store.start(tx, node.id, cast.id, context)

    async def _work(self, node: SubSession, toolbox: Toolbox, wake: Callable[[str], None]) -> None:
        """One spawned sub-session from its start, or its last recorded turn, to its end."""
        try:
            outcome = await guarded(self._cast(node, toolbox, self._stops[node.id]), node.id)
            told = await self._settle(node, outcome or BROKEN)
        finally:
            self._at_work -= 1
            del self._stops[node.id]
            self._bell.set()
        if told:
            wake(node.room)

    async def _cast(self, node: SubSession, toolbox: Toolbox, stop: Stop) -> Outcome:
        cast = await self._cast_of(node)
        caller = Caller(
            node.room, node.scope, cast.id, node.origin, node.root_event, cast.started_at
        )
        means = node.means
        terms = Terms(
            toolbox.only(means.tools),
            Told(self._words, node.mode, node.objective, node.context),
            means.role,
            means.backend,
            means.depth,
            patient=False,
        )
        return await self._loop.run(cast, caller, terms, stop, Unwatched())

    async def _cast_of(self, node: SubSession) -> Cast:
        (cast,) = await self._casts.of_branch(node.branch_id)
        return cast

    async def _settle(self, node: SubSession, outcome: Outcome) -> bool:
        """The end of a cast with all that follows; nothing when it was ended from outside.

        Returns whether its room has something to be told.
        """
        told = False
        said = outcome.text or last_step(await self._cast_of(node))
        async with self._database.transaction() as tx:
            if await self._casts.end(
                tx, str(node.cast_id), outcome.state, outcome.reason, outcome.text
            ):
                told = await self._ending.over(tx, node.id, outcome.reason, said)
            if outcome is BROKEN:
                await self._health.note_in(tx, "casts", "fail", "internal error, see the log")
        self._ring()
        return told

    async def _closed(self, node: SubSession, until: float) -> SubSession:
        """Wait until all of a sub-session is over, or its time is."""
        rung = self._awaited[node.id] = asyncio.Event()
        try:
            while True:
                rung.clear()
                left = until - self._clock.monotonic()
                async with self._database.transaction() as tx:  # after whoever rings has committed
                    if left <= 0:
                        await self._ending.out_of_time(tx, node.id)
                    node = await self._store.get(tx, node.id)
                if not node.is_open:
                    return node
                await self._rung(rung, left)
        finally:
            del self._awaited[node.id]

    async def _rung(self, rung: asyncio.Event, seconds: float) -> None:
        """Wait for what a child has spawned; there is a place for that, whoever else is at work."""
        self._at_work -= 1
        self._bell.set()
        try:
            await until_rung(rung, self._clock, seconds)
        finally:
            self._at_work += 1

    async def _abandon(self, tx: Transaction, nodes: Sequence[SubSession]) -> None:
        for node in nodes:
            await self._end_cast(tx, node, "parent_terminated")
        await self._store.end_all(tx, [node.id for node in nodes])
        self._ring()

    async def _end_cast(self, tx: Transaction, node: SubSession, reason: str) -> None:
        if node.cast_id is None:
            return
        cast = await self._cast_of(node)
        await self._casts.end(tx, node.cast_id, "truncated", reason, cast.last_words)
        if node.id in self._stops:
            self._stops[node.id].press()  # before anybody else may write: it takes no further step

    def _ring(self) -> None:
        """Something is over: more may start, and calls may return."""
        self._bell.set()
        for rung in self._awaited.values():
            rung.set()
