"""Autonomous runs: casts of their own that a due task begins (T-047 to T-053)."""

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

from wintermute.clock import Clock, in_words
from wintermute.config.schema import SubSessionSettings
from wintermute.conversation.cast import Loop, Outcome
from wintermute.conversation.casting import AGAIN, WAITS
from wintermute.conversation.rooms import guarded
from wintermute.conversation.speaker import Speaker
from wintermute.conversation.state import CastSettings, Stop
from wintermute.conversation.toolbox import DONE, Caller, Toolbox
from wintermute.db import Transaction
from wintermute.delegation.delegation import (
    BROKEN,
    MOST_INTERRUPTIONS,
    ROLE,
    Unwatched,
    WorkerInstructions,
    WorkerTexts,
    last_step,
)
from wintermute.loom.records import Cast, Wards
from wintermute.loom.sub_sessions import SPAWN
from wintermute.mailbox.outbox import EVER, TERMINAL
from wintermute.prompt.modes import START, tools_for
from wintermute.schedule.firing import failed, put_off
from wintermute.schedule.homes import Deliveries
from wintermute.stores import Stores
from wintermute.tasks.occurrences import MOST_FAILURES, NO_ACTION, Occurrence, cause, mark
from wintermute.tasks.tasks import EVERYWHERE, Task
from wintermute.templates import Template, fill
from wintermute.text import shortened

log = logging.getLogger(__name__)

RESULT_CHARACTERS = 1_500  # of the last result, for the next run (T-049)
NO_ANSWER = {
    "max_turns": "it took more steps than `sub_sessions.max_turns` allows",
    "max_seconds": "it took longer than `sub_sessions.timeout_s` allows",
    "max_tokens": "it used more tokens than `loop.max_tokens` allows",
    "internal_error": "something went wrong inside me; the log has the details",
    "restarted": "it was interrupted three times",
    "empty_reply": "the model gave an empty answer several times",
    "context_too_large": "it does not fit into the model's window",
    "stopped": "it was stopped",
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What runs may use. `depth` is how many levels of sub-sessions may be below one."""

    wards: Wards
    role: str
    depth: int
    at_once: int

    @classmethod
    def of(cls, limits: SubSessionSettings, max_tokens: int, *, own_models: bool) -> "RunSettings":
        """As of a sub-session of a room (T-047)."""
        wards = Wards(limits.max_turns, limits.timeout_s, max_tokens, require_done=True)
        role = ROLE if own_models else "base"
        return cls(wards, role, limits.max_depth - 1, limits.max_parallel)


class Run(NamedTuple):
    """A run that has its cast."""

    occurrence: Occurrence
    task: Task
    cast: Cast
    scope: str


class Runs:
    """Works on the autonomous tasks that are due."""

    def __init__(
        self,
        stores: Stores,
        loop: Loop,
        words: WorkerTexts,
        instruction: Template,
        toolbox: Toolbox,
        means: RunSettings,
        speaker: Speaker,
        clock: Clock,
    ) -> None:
        """`instruction`: TASK_RUN.txt; `toolbox`: that of rooms."""
        self._stores = stores
        self._database = stores.database
        self._tasks = stores.tasks
        self._runs = stores.runs
        self._outbox = stores.outbox
        self._conversations = stores.conversations
        self._casts = stores.casts
        self._health = stores.health
        self._loop = loop
        self._words = words
        self._instruction = instruction
        self._means = means
        self._speaker = speaker
        self._clock = clock
        wanted = tools_for("full", means.depth, None, toolbox.names)
        # What is spawned reports by an event, and nobody is there for it when the run is over.
        self._toolbox = toolbox.only({*wanted, DONE} - {SPAWN})
        self._at_work: dict[int, tuple[Run, Stop]] = {}  # by occurrence

    async def run(self, wanted: asyncio.Event) -> None:
        """Work until cancelled; `wanted` is set when there may be something to do."""
        async with asyncio.TaskGroup() as group:
            for run in await self._interrupted():
                group.create_task(self._work(run, wanted))
            while True:
                wanted.clear()
                for run in await self._started():
                    group.create_task(self._work(run, wanted))
                await wanted.wait()

    async def end(self, tx: Transaction, conversation_id: str) -> list[str]:
        """End what is at work for a conversation (L-023); the tasks."""
        found = [
            (run, stop) for run, stop in self._at_work.values() if _is_in(run, conversation_id)
        ]
        for run, stop in found:
            await self._casts.end(tx, run.cast.id, "truncated", "stopped", "")
            await self._runs.dropped(tx, run.occurrence.seq, NO_ANSWER["stopped"])
            stop.press()
        return [run.task.id for run, _ in found]

    async def _served(self, tx: Transaction) -> list[str]:
        rooms = await self._runs.rooms(tx)
        return [
            conversation_id
            for conversation_id in rooms
            if self._speaker.serves((await self._conversations.get(conversation_id)).room_id)
        ]

    async def _interrupted(self) -> list[Run]:
        """What an earlier run of the program left, at its last stored step (T-037)."""
        going: list[Run] = []
        async with self._database.transaction() as tx:
            await self._take_over(tx)
            rooms = await self._served(tx)
            await self._runs.hurry(tx)
            for occurrence, times in await self._runs.interrupted(tx, rooms):
                task = await self._tasks.get(occurrence.task_id, None)
                cast = await self._casts.get(str(occurrence.cast_id))
                scope = await self._conversations.scope_of(cast.branch_id)
                run = Run(occurrence, task, cast, scope)
                if times < MOST_INTERRUPTIONS:
                    going.append(self._kept(run))
                else:
                    await self._casts.end(tx, cast.id, "truncated", "restarted", cast.last_words)
                    await self._failed(tx, run, "restarted", "")
        for conversation_id in rooms:
            self._speaker.speak(conversation_id)
        return going

    async def _take_over(self, tx: Transaction) -> None:
        """What a chat at the terminal has left, once nobody sits there, is for a room (T-037)."""
        if self._speaker.serves(TERMINAL):
            return
        homes = await Deliveries.now(tx, self._stores, self._speaker)
        for conversation_id in await self._runs.rooms(tx):
            if (await self._conversations.get(conversation_id)).room_id != TERMINAL:
                continue
            for run in await self._runs.open_in(tx, conversation_id):
                task = await self._tasks.get(run.task_id, None)
                home = await homes.of(tx, task.scope, None)
                if home is not None:
                    await self._stores.occurrences.move(tx, run.seq, home.id)

    async def _started(self) -> list[Run]:
        async with self._database.transaction() as tx:
            free = self._means.at_once - len(self._at_work)
            ready = await self._runs.ready(tx, await self._served(tx), max(free, 0))
            found = [await self._begun(tx, occurrence) for occurrence in ready]
            return [self._kept(run) for run in found if run is not None]

    def _kept(self, run: Run) -> Run:
        self._at_work[run.occurrence.seq] = (run, Stop())
        return run

    async def _begun(self, tx: Transaction, occurrence: Occurrence) -> Run | None:
        task = await self._tasks.get(occurrence.task_id, None)
        if task.status != "active":
            await self._runs.dropped(tx, occurrence.seq, f"the task was {task.status} by then")
            return None
        branch, scope = await self._branch(tx, occurrence, task)
        # One event: that it was tried before is no message of its own.
        event, wards = f"run_{occurrence.seq}", self._means.wards.record()
        cast = await self._casts.start(tx, branch, event, START, "timer", wards)
        await self._runs.begin(tx, occurrence.seq, cast.id)
        log.info("run starts task=%s cast=%s", task.id, cast.id)
        return Run(occurrence, task, cast, scope)

    async def _branch(self, tx: Transaction, occurrence: Occurrence, task: Task) -> tuple[str, str]:
        """Its own, and whose memory it may touch: a task of all rooms has that of its room.

        That of an earlier attempt has in view what was done then, and stays whose it was.
        """
        if occurrence.cast_id is not None:
            branch = (await self._casts.get(occurrence.cast_id)).branch_id
            return branch, await self._conversations.scope_of(branch)
        scope = task.scope
        if scope == EVERYWHERE:
            scope = (await self._conversations.get(occurrence.conversation_id)).scope
        return await self._conversations.open_run(tx, scope, self._means.depth), scope

    async def _work(self, run: Run, wanted: asyncio.Event) -> None:
        seq = run.occurrence.seq
        try:
            outcome = await guarded(self._cast(run, self._at_work[seq][1]), run.task.id)
            await self._close(run, outcome or BROKEN)
        finally:
            del self._at_work[seq]
            wanted.set()

    async def _cast(self, run: Run, stop: Stop) -> Outcome:
        cast, occurrence = run.cast, run.occurrence
        caller = Caller(
            occurrence.conversation_id, run.scope, cast.id, "timer", None, cast.started_at
        )
        told = WorkerInstructions(self._words, "full", await self._objective(run), "")
        means = self._means
        terms = CastSettings(self._toolbox, told, means.role, None, means.depth)
        return await self._loop.run(cast, caller, terms, stop, Unwatched())

    async def _objective(self, run: Run) -> str:
        """What is to be done, and what the run should know about itself (T-045, T-049)."""
        task, occurrence, zone = run.task, run.occurrence, self._tasks.zone
        async with self._database.transaction() as tx:
            before, last = await self._runs.before(tx, occurrence)
        late = mark(occurrence.due_at, occurrence.missed, zone) if occurrence.missed else ""
        values = {
            "instruction": task.plan.ai_prompt or task.content,
            "task": task.id,
            "content": task.content,
            "due": in_words(occurrence.due_at, zone),
            "late": f"; it is late now{late}" if late else "",
            "number": str(before + 1),
            "last": f"- Last result: {shortened(last, RESULT_CHARACTERS)}"
            if last
            else "- There is no earlier result.",
        }
        return fill(self._instruction.text(), values)

    async def _close(self, run: Run, outcome: Outcome) -> None:
        """The end of the cast with what its room is told of it, in one transaction."""
        async with self._database.transaction() as tx:
            ended = await self._casts.end(
                tx, run.cast.id, outcome.state, outcome.reason, outcome.text
            )
            if not ended:
                return
            if outcome.state == "terminated":
                await self._done(tx, run, outcome.text.strip())
            elif outcome.reason in WAITS:
                await self._put_off(tx, run, outcome)
            else:
                said = outcome.text or last_step(run.cast)
                await self._failed(tx, run, outcome.reason, said)
            if outcome is BROKEN:
                await self._health.note_in(tx, "casts", "fail", "internal error, see the log")
        self._speaker.speak(run.occurrence.conversation_id)

    async def _done(self, tx: Transaction, run: Run, result: str) -> None:
        occurrence, outbox_id = run.occurrence, None
        notify = occurrence.mode == "autonomous_notify" and result not in ("", NO_ACTION)
        if notify and (await self._tasks.get(run.task.id, None)).status != "deleted":
            outbox_id = await self._say(tx, run, result)
        await self._runs.done(tx, occurrence, result, outbox_id)

    async def _put_off(self, tx: Transaction, run: Run, outcome: Outcome) -> None:
        """Not a failure of the task: it waits, and its room is told so once."""
        until = outcome.until or self._clock.now() + AGAIN
        occurrence, zone = run.occurrence, self._tasks.zone
        left = (until - self._clock.now()).total_seconds()
        await self._runs.put_off(tx, occurrence.seq, self._clock.monotonic() + left)
        key = f"run {occurrence.seq} {outcome.reason} {outcome.until}"
        text = put_off(run.task, outcome.text, until, zone)
        await self._outbox.notice_once(
            tx, key, EVER, occurrence.conversation_id, text, meant_for=run.scope
        )

    async def _failed(self, tx: Transaction, run: Run, reason: str, said: str) -> None:
        """The error is kept and told, also of a silent task (T-048, T-050)."""
        why = NO_ANSWER.get(reason, said or reason)
        task, outbox_id = await self._tasks.get(run.task.id, None), None
        ends = task.failures + 1 >= MOST_FAILURES or task.next_due is None
        pauses = ends and task.status == "active"
        if task.status != "deleted":
            text = failed(task, why, self._tasks.zone, paused=pauses, most=MOST_FAILURES)
            outbox_id = await self._say(tx, run, text)
        await self._runs.failed(tx, run.occurrence, why, outbox_id, pauses=pauses)

    async def _say(self, tx: Transaction, run: Run, text: str) -> str:
        """Tell the room; if others can read there by then, it waits for where they cannot (F-002)."""
        return await self._outbox.enqueue(
            tx,
            run.occurrence.conversation_id,
            text,
            kind="event",
            cast_id=run.cast.id,
            meant_for=run.scope,
            cause=cause(run.task.id, run.occurrence.due_at),
        )


def _is_in(run: Run, conversation_id: str) -> bool:
    return run.occurrence.conversation_id == conversation_id
