"""Sub-sessions: a cast either waits for them within its call, or they run in a task of their own.

    spawn ─▶ waiting ─▶ running ─▶ (collecting) ─▶ done, failed, timed_out or ended
                ▲ all its dependencies are done, and its start time has come

Each step is one transaction that reads its state from the tables, so a kill between two steps loses nothing;
the end of a sub-session is stored together with its effects. A sub-session gets its mode's instructions, its
context and its objective, and may use no more than its parent.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from wintermute.clock import Clock, wait_for_event
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.conversation.cast import BROKEN, Loop, Outcome
from wintermute.conversation.state import CastSettings, Speaker, Stop, Unwatched
from wintermute.conversation.toolbox import DONE, Caller, CallSite, Toolbox
from wintermute.conversation.view import as_text
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.loom.records import Cast, PromptMode, Wards
from wintermute.loom.sub_sessions import (
    RESTARTED,
    STOPPED,
    Spawner,
    SubSession,
    SubSessionOrder,
    SubSessions,
    WorkSettings,
    joined,
    reparent,
    resolved,
    state_of,
)
from wintermute.mailbox.inbox import RESULT, Inbox
from wintermute.messages import Origin, Size
from wintermute.prompt.context_block import ChangingParts, Layout
from wintermute.prompt.context_builder import ContextBuilder, EventKind, MemoryQuery, event
from wintermute.prompt.modes import first_user, tools_for, worker_prompt
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import one_line, shortened
from wintermute.work.runner import MOST_CRASHES, PollResult

ROLE = "sub_sessions"

MOST_CHARACTERS = 40_000  # of all results in one text
FEWEST_CHARACTERS = 80  # of each result, at least
MANY = 200  # characters of each below which only beginnings are shown
OBJECTIVE_CHARACTERS = 200
STEP_CHARACTERS = 500
EVENT_KINDS: dict[str, EventKind] = {
    "done": "sub_session_result",
    "timed_out": "sub_session_timeout",
}
STATUS = {"timed_out": "timed out", "ended": "stopped"}
log = logging.getLogger(__name__)
SOON = timedelta(seconds=0.2)  # poll again: no wakeup comes when a turn has run its last call


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the configuration. `own_models`: sub-sessions have models of their own."""

    limits: Limits
    max_tokens: int
    models: Collection[str]
    own_models: bool

    def settings(self, order: SubSessionOrder, place: CallSite, *, blocking: bool) -> WorkSettings:
        """Return the settings for an order from this place.

        Raises: ToolFailed for an unknown tool or model, or if the parent has used up a limit.
        """
        self._check(order, place)
        if blocking and (used_up := place.left.breached(0, 0, 0)):
            raise ToolFailed(f"nothing was started: {used_up} leaves nothing for a sub-session")
        levels = (place.depth, self.limits.max_depth, order.max_depth)
        depth = min(each for each in levels if each is not None) - 1  # levels below it (L-060)
        tools = tools_for(order.mode, depth, order.tools, place.toolbox.names)
        wards = Wards(
            self.limits.max_turns,
            min(self.limits.timeout_s, order.timeout_s or self.limits.timeout_s),
            self.max_tokens,
            require_done=True,
        )
        inherits = order.model is None and not self.own_models
        return WorkSettings(
            tools=tuple(sorted({*tools, DONE})),
            role=ROLE if self.own_models else place.role,
            backend=place.backend if inherits else order.model,
            depth=depth,
            wards=wards.within(place.left if blocking else place.wards),
        )

    def _check(self, order: SubSessionOrder, place: CallSite) -> None:
        available = place.toolbox.names
        unknown = [name for name in order.tools or () if name not in available]
        if unknown:
            raise ToolFailed(
                f"unknown tool: {', '.join(unknown)}; nothing was started."
                f" A sub-session may have: {', '.join(available)}"
            )
        if order.model is not None and order.model not in self.models:
            raise ToolFailed(
                f"unknown model: {order.model}; nothing was started."
                f" Known are: {', '.join(self.models)}"
            )
        if not order.objective.strip():
            raise ToolFailed("the objective is empty; nothing was started")


def report(members: Sequence[SubSession]) -> tuple[EventKind, str]:
    """Return kind and text of the event for a finished workflow or a single sub-session (L-067)."""
    if len(members) > 1:
        return "workflow_complete", results_text(members)
    (only,) = members
    return EVENT_KINDS.get(only.state, "sub_session_failed"), results_text(members)


def characters_each(members: Sequence[SubSession]) -> int:
    """Return the characters that each result may have in a text of all results."""
    return max(MOST_CHARACTERS // max(len(members), 1), FEWEST_CHARACTERS)


def results_text(members: Sequence[SubSession]) -> str:
    """List sub-sessions with status and result."""
    return "\n\n".join(_entry(each, characters_each(members)) for each in members)


def _entry(node: SubSession, most: int) -> str:
    head = f"## {node.label}: {status(node)}"
    if most < MANY:
        return f"{head}\n{one_line(node.result)[:most]}"
    objective = one_line(node.objective)[:OBJECTIVE_CHARACTERS]
    return f"{head}\nObjective: {objective}\n{shortened(node.result, most)}"


def status(node: SubSession) -> str:
    """Return how a sub-session ended, with the reason if it failed."""
    state = STATUS.get(node.state, node.state)
    return f"failed ({node.reason})" if node.state == "failed" else state


def failure(node: SubSession) -> str:
    """Return the text for a waiting parent whose sub-session gave no answer (L-061)."""
    last = f" Its last step: {shortened(node.result, MOST_CHARACTERS)}" if node.result else ""
    return f"sub-session {node.label} {status(node)}.{last}"


def last_step(cast: Cast) -> str:
    """Return what a cast without an answer said or did last."""
    if cast.last_words or not cast.turns:
        return cast.last_words
    calls = [f"{call.name} {call.arguments}" for call in cast.turns[-1].calls]
    return shortened("; ".join(calls) or as_text(cast.turns[-1].error or ""), STEP_CHARACTERS)


def call_site(caller: Caller) -> CallSite:
    """Return the place of a call. Raises: ValueError outside of a turn."""
    if caller.place is None:
        raise ValueError("only a call of a turn can hand out work")
    return caller.place


def spawner(caller: Caller) -> Spawner:
    """Return the identity of the current call."""
    place = call_site(caller)
    return Spawner(
        caller.conversation_id,
        caller.cast_id,
        place.turn_id,
        place.n,
        caller.event_id,
        caller.scope,
        caller.origin,
    )


class Ending:
    """Closes sub-sessions: dependent ones start or fail, and whoever asked is notified once."""

    def __init__(self, store: SubSessions, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox

    async def end_own_work(self, tx: Transaction, sub_id: str, reason: str, result: str) -> bool:
        """End a sub-session's own work; it is closed when all that it spawned has ended too (L-067).

        Returns, as `close`, True if its room has a new event.
        """
        if await self._store.has_open_below(tx, sub_id):
            await self._store.collect(tx, sub_id, reason, result)
            return False
        return await self.close(tx, sub_id, reason, result)

    async def close(self, tx: Transaction, sub_id: str, reason: str, result: str) -> bool:
        """Close a sub-session whose spawned ones have all ended; True if its room has a new event."""
        spawned = await self._store.spawned_by(tx, sub_id)
        if spawned and state_of(reason) != "ended":
            result = "\n\n".join(filter(None, [result, results_text(spawned)]))
        node = await self._store.close(tx, sub_id, reason, result)
        log.info("sub-session over id=%s state=%s reason=%s", node.id, node.state, node.reason)
        if node.state == "done":
            await self._store.release(tx, sub_id)
        else:
            await self._store.fail_dependents(tx, node)
        return await self._notify(tx, node)

    async def gather_lifted(self, tx: Transaction, rooms: Collection[str]) -> set[str]:
        """Close sub-sessions again that were moved up from a lost parent; return rooms with new events."""
        notified = set()
        for node in await self._store.collected(tx, rooms):
            await self._store.close(tx, node.id, str(node.reason), node.result)
            if await self._notify(tx, node):
                notified.add(node.room)
        return notified

    async def _notify(self, tx: Transaction, node: SubSession) -> bool:
        if node.parent is not None:
            return await self._close_collecting(tx, node.parent)
        return not node.blocking and await self.notify(tx, node.workflow)

    async def _close_collecting(self, tx: Transaction, parent_id: str) -> bool:
        """Close a parent whose own work is over, if the last one that it spawned has ended."""
        parent = await self._store.get(tx, parent_id)
        if parent.state == "collecting" and not await self._store.has_open_below(tx, parent_id):
            return await self.close(tx, parent_id, str(parent.reason), parent.result)
        return False

    async def out_of_time(self, tx: Transaction, sub_id: str) -> None:
        """Time a sub-session out: its caller stops waiting, and its children move up a level (L-061)."""
        node = await self._store.get(tx, sub_id)
        if node.is_open:
            await self._store.close(tx, sub_id, "max_seconds", node.result)
            await reparent(tx, [sub_id])

    async def notify(self, tx: Transaction, workflow: str) -> bool:
        """Store one event for a workflow once all of its sub-sessions have ended.

        It has the id of the newest one, so a second event is stored only if there is more to report.
        """
        if await self._store.workflow_is_open(tx, workflow):
            return False
        members = await self._store.of_workflow(tx, workflow)
        if not members or [each.reason for each in members] == [STOPPED]:
            return False
        newest = members[-1]
        cause = await self._inbox.find(tx, newest.root_event) if newest.root_event else None
        if cause is None:
            return False
        kind, text = report(members)
        body = event(kind, newest.id, text)
        # A request from an unverified device must not become trusted by its result.
        origin: Origin = "other" if cause.origin == "other" else "system"
        event_id = f"{RESULT}{newest.room_turn}/{newest.id}"
        return await self._inbox.store_event(tx, cause, event_id, body, origin)


@dataclass(frozen=True, slots=True)
class WorkerTexts:
    """Sources of sub-sessions' instructions. `minimal` is WORKER_MINIMAL.txt."""

    gather: ContextBuilder
    minimal: Template
    small: Template
    """Light instructions for small models."""


@dataclass(frozen=True, slots=True)
class WorkerInstructions:
    """Prompt of a sub-session, built anew for every question (P-041..P-045)."""

    texts: WorkerTexts
    mode: PromptMode
    objective: str
    context: str

    @property
    def layout(self) -> Layout:
        """Layout of the prompt, as for chats."""
        return self.texts.gather.layout

    async def system(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None,
        summary: str,
        size: Size,
    ) -> str | None:
        """Build the system message, as `conversation.state.Prompt`; memories are not ranked by the objective."""
        full = self.mode == "full"
        return worker_prompt(
            self.mode,
            minimal=(self.texts.small if size == "small" else self.texts.minimal).text(),
            instructions=await self.texts.gather.instructions(tools, size),
            parts=await self.texts.gather.shown(scope, tools, None, size) if full else None,
            objective=self.objective,
            context=self.context,
            summary=summary if self.layout == "system" else "",
        ).system

    async def changing_parts(
        self, scope: str, query: MemoryQuery | None, size: Size, *, anew: bool
    ) -> ChangingParts | None:
        """Build the changing part, as `conversation.state.Prompt`; light instructions have none (P-041)."""
        if self.mode != "full":
            return None
        return await self.texts.gather.changing_parts(scope, None, size, anew=anew)


class Delegation:
    """Sub-sessions of all conversations, as a job type; a cast waits for some of them."""

    name = "sub-sessions"
    is_background = False

    def __init__(
        self,
        stores: Stores,
        loop: Loop,
        texts: WorkerTexts,
        bounds: Bounds,
        speaker: Speaker,
        clock: Clock,
    ) -> None:
        self._database = stores.database
        self._store = stores.sub_sessions
        self._conversations = stores.conversations
        self._casts = stores.casts
        self._ending = Ending(stores.sub_sessions, stores.inbox)
        self._loop = loop
        self._texts = texts
        self._bounds = bounds
        self._speaker = speaker
        self._clock = clock
        self.wakeup = asyncio.Event()
        self.running_jobs: dict[str, Stop] = {}
        self._idle = 0  # calls that wait for their sub-session's children
        self._polls_soon = False  # poll again soon: some turn or cast has not ended yet
        self._awaited: dict[str, asyncio.Event] = {}
        self._orphaned = set[str]()  # sub-sessions of cancelled calls, until the caller has ended

    @property
    def max_parallel(self) -> int:
        """Number that may run: as configured, plus one for each call that waits for its children."""
        return self._bounds.limits.max_parallel + self._idle

    async def spawn(self, tx: Transaction, caller: Caller, order: SubSessionOrder) -> SubSession:
        """Create a sub-session that nobody waits for; it starts when its dependencies are done (L-058).

        Raises: ToolFailed, and then nothing starts.
        """
        await self._store.check_name(tx, caller.cast_id, order.name)
        node = await self._create(tx, caller, order, blocking=False)
        place = call_site(caller)
        if not (self._polls_soon and await self._store.more_to_come(tx, place.turn_id, place.n)):
            self.wakeup.set()  # the runner waits for the end of this transaction
        return node

    async def call(self, caller: Caller, order: SubSessionOrder, item: int = 0) -> SubSession:
        """Run a sub-session and wait for its end; return its final state (L-057).

        After a crash the repeated call continues it (L-051). A cancelled call leaves it open: it ends with the
        caller's cast, but not with the program.

        Raises: ToolFailed, and then nothing starts.
        """
        place = call_site(caller)
        begun = self._clock.monotonic()
        async with self._database.transaction() as tx:
            node = await self._store.of_call(tx, place.turn_id, place.n, item)
            if node is None:
                node = await self._create(tx, caller, order, blocking=True, item=item)
                node = await self._start(tx, node)
            stop = self.running_jobs[node.id] = Stop()
        try:
            if node.state == "running":
                await self.store_end(node, await self.execute(node, stop, place.toolbox))
            return await self._wait_closed(node, begun + node.settings.wards.max_seconds)
        except asyncio.CancelledError:
            self._orphaned.add(node.id)
            self.wakeup.set()
            raise
        finally:
            self.running_jobs.pop(node.id, None)

    def check(self, caller: Caller, order: SubSessionOrder) -> None:
        """Check that a call of this order could start. Raises: ToolFailed."""
        self._bounds.settings(order, call_site(caller), blocking=True)

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End what turns of a conversation after this place have spawned, for good (L-062).

        `only`: end the one with this id or name and its children; sub-sessions that depend on it fail.
        """
        nodes = await self._store.open_in(tx, conversation_id, after)
        if only is None:
            await self._abandon(tx, nodes)
            if after and nodes:  # earlier workflows may have waited only for these
                await self._store.split_workflows(tx, conversation_id, after)
                await self._report_all(tx, nodes)
            return [node.id for node in nodes]
        named = [node for node in reversed(nodes) if only in (node.id, node.name)]
        if not named:
            return []
        below = await self._store.open_below(tx, named[0].id)
        await self._abandon(tx, below)
        await self._end_cast(tx, named[0], STOPPED)
        await self._ending.close(tx, named[0].id, STOPPED, "")
        self._wake_all()
        return [named[0].id, *(node.id for node in below)]

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End the sub-sessions that these events have led to, without an event (F-027).

        Those that depend on them fail, and are reported with their workflow.
        """
        nodes = await self._store.open_in(tx, conversation_id)
        found = [node for node in nodes if node.root_event in events]
        await self._abandon(tx, found)
        for node in found:
            await self._store.fail_dependents(tx, replace(node, name=None))
        await self._report_all(tx, found)

    async def _report_all(self, tx: Transaction, nodes: Sequence[SubSession]) -> None:
        for workflow in dict.fromkeys(node.workflow for node in nodes):
            await self._ending.notify(tx, workflow)

    async def resume(self, tx: Transaction) -> PollResult[SubSession]:
        """Resume interrupted sub-sessions, and end those with too many crashes (L-068)."""
        rooms = await self._served_rooms(tx)
        interrupted = await self._store.interrupted(tx, rooms)
        for node, crashes in interrupted:
            if crashes >= MOST_CRASHES:
                await self._end_cast(tx, node, RESTARTED)
                await self._ending.end_own_work(tx, node.id, RESTARTED, "")
        return PollResult([node for node, crashes in interrupted if crashes < MOST_CRASHES], rooms)

    async def suspended(self, tx: Transaction, nodes: Sequence[SubSession]) -> None:
        """Record an orderly stop, so that the next start is no interruption."""
        await self._store.suspended(tx, [node.id for node in nodes])

    async def poll(self, tx: Transaction, free: int) -> PollResult[SubSession]:
        """Start sub-sessions whose dependencies are done (L-063, L-066), and report orphaned results."""
        rooms = await self._served_rooms(tx)
        lost = set(self._orphaned)
        # Only these: others may be added meanwhile.
        self._orphaned -= lost - await self._store.still_open(tx, lost)
        news = await self._ending.gather_lifted(tx, rooms)
        held = not await self._store.release_held(tx, rooms)
        self._polls_soon = held or bool(self._orphaned)
        again = await self._store.next_due(tx, rooms)  # before `poll`, since time goes on
        ready = await self._store.ready(tx, rooms, free)
        started = [await self._start(tx, node) for node in ready]
        return PollResult(started, news, self._clock.now() + SOON if self._polls_soon else again)

    async def execute(self, node: SubSession, stop: Stop, toolbox: Toolbox) -> Outcome:
        """Run the cast of a sub-session."""
        cast = await self._cast_of(node)
        caller = Caller(
            node.room,
            node.scope,
            cast.id,
            node.origin,
            node.root_event,
            cast.started_at,
            only_adds=True,
        )
        given = node.settings
        settings = CastSettings(
            toolbox.only(given.tools),
            WorkerInstructions(self._texts, node.mode, node.objective, node.context),
            given.role,
            given.backend,
            given.depth,
            patient=False,
        )
        return await self._loop.run(cast, caller, settings, stop, Unwatched())

    async def store_end(self, node: SubSession, result: Outcome | None) -> Collection[str]:
        """Store the end of a sub-session's cast with its effects, unless it was ended from outside."""
        notified, outcome = False, result or BROKEN
        result_text = outcome.text or last_step(await self._cast_of(node))
        async with self._database.transaction() as tx:
            cast_id, reason = str(node.cast_id), outcome.reason
            if await self._casts.end(tx, cast_id, outcome.state, reason, outcome.text):
                notified = await self._ending.end_own_work(tx, node.id, reason, result_text)
        self._wake_all()
        return [node.room] if notified else []

    async def _served_rooms(self, tx: Transaction) -> list[str]:
        rooms = await self._store.open_rooms(tx)
        return [conversation for conversation, room_id in rooms if self._speaker.serves(room_id)]

    async def _create(
        self,
        tx: Transaction,
        caller: Caller,
        order: SubSessionOrder,
        *,
        blocking: bool,
        item: int = 0,
    ) -> SubSession:
        place = call_site(caller)
        settings = self._bounds.settings(order, place, blocking=blocking)
        parent = await self._store.of_cast(tx, caller.cast_id)
        known = await self._store.known(tx, spawner(caller), parent, order.depends_on)
        dependencies = resolved(order.depends_on, order.name, known)
        sub_id = await self._store.fresh_id(tx)
        workflow, others = joined(sub_id, dependencies)
        conversation = await self._conversations.open_below(
            tx, caller.cast_id, place.turn_id, caller.scope, settings.depth, outlives=not blocking
        )
        node = await self._store.add(
            tx,
            sub_id,
            spawner(caller),
            order,
            settings,
            blocking=blocking,
            item=item,
            conversation=conversation,
            parent=parent,
            workflow=workflow,
            dependencies=dependencies,
        )
        await self._store.merge(tx, workflow, others)
        return node

    async def _start(self, tx: Transaction, node: SubSession) -> SubSession:
        """Start the cast of a sub-session, with labelled results of its dependencies (L-063)."""
        needed = await self._store.needs(tx, node.id)
        results = [
            f"## Result of {each.label}\n{shortened(each.result, characters_each(needed))}"
            for each in needed
        ]
        context = "\n\n".join(filter(None, [node.context, *results]))
        intent = first_user(node.mode, node.objective, context)
        wards = node.settings.wards.record()
        cast = await self._casts.start(tx, node.branch_id, None, intent, node.origin, wards)
        log.info("sub-session starts id=%s cast=%s", node.id, cast.id)
        return await self._store.start(tx, node.id, cast.id, context)

    async def _cast_of(self, node: SubSession) -> Cast:
        (cast,) = await self._casts.of_branch(node.branch_id)
        return cast

    async def _wait_closed(self, node: SubSession, until: float) -> SubSession:
        """Wait until a sub-session and its children have ended, or its time is up."""
        finished = self._awaited[node.id] = asyncio.Event()
        try:
            while True:
                finished.clear()
                left = until - self._clock.monotonic()
                async with self._database.transaction() as tx:  # after the waking transaction
                    if left <= 0:
                        await self._ending.out_of_time(tx, node.id)
                    node = await self._store.get(tx, node.id)
                if not node.is_open:
                    return node
                # Its children get a place, even if all others are taken.
                self._idle += 1
                self.wakeup.set()
                try:
                    await wait_for_event(finished, self._clock, left)
                finally:
                    self._idle -= 1
        finally:
            del self._awaited[node.id]

    async def _abandon(self, tx: Transaction, nodes: Sequence[SubSession]) -> None:
        for node in nodes:
            await self._end_cast(tx, node, "parent_terminated")
        await self._store.end_all(tx, [node.id for node in nodes])
        self._wake_all()

    async def _end_cast(self, tx: Transaction, node: SubSession, reason: str) -> None:
        if node.cast_id is None:
            return
        cast = await self._cast_of(node)
        await self._casts.end(tx, node.cast_id, "truncated", reason, cast.last_words)
        if stop := self.running_jobs.get(node.id):
            stop.press()  # within this transaction, so that it takes no further step

    def _wake_all(self) -> None:
        """Wake the runner and waiting calls after a sub-session has ended."""
        self.wakeup.set()
        for finished in self._awaited.values():
            finished.set()
