"""Autonomous runs: casts that a due task begins (T-047 to T-053)."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, in_words
from wintermute.config.schema import SubSessionSettings
from wintermute.conversation.cast import BROKEN, Loop, Outcome
from wintermute.conversation.dispatcher import AGAIN, WAITS
from wintermute.conversation.state import CastSettings, Speaker, Stop, Unwatched
from wintermute.conversation.toolbox import DONE, Caller, Toolbox
from wintermute.db import Transaction
from wintermute.loom.records import Cast, Wards
from wintermute.loom.sub_sessions import SPAWN
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import TERMINAL
from wintermute.prompt.modes import START, tools_for
from wintermute.stores import Stores
from wintermute.tasks.occurrences import MOST_FAILURES, NO_ACTION, Occurrence, cause, late_note
from wintermute.tasks.tasks import EVERYWHERE, Task
from wintermute.templates import Template, fill
from wintermute.text import shortened
from wintermute.wiki.recall import RECALL
from wintermute.work.delegation import ROLE, WorkerInstructions, WorkerTexts, last_step
from wintermute.work.routing import TargetRooms
from wintermute.work.runner import MOST_CRASHES, PollResult

log = logging.getLogger(__name__)

FAILED = "The run of `{id}` ({content}) failed: {why}."
RUNS_AGAIN = " It runs again on {when}."
PAUSED = (
    " That was the third time in a row, so I paused it: `/tasks resume {id}` lets it run again."
)
NEVER_AGAIN = (
    " It was due only once, so I paused it. To try again, give it a new time and resume it."
)
PUT_OFF = "`{id}` ({content}) is due, but has to wait: {why}. I'll try again on {when}."
CONTENT_CHARACTERS = 120
WHY_CHARACTERS = 600
RESULT_CHARACTERS = 1_500  # of the last result, for the next run (T-049)
NO_ANSWER = {
    "max_turns": "it took more steps than `sub_sessions.max_turns` allows",
    "max_seconds": "it took longer than `sub_sessions.timeout_s` allows",
    "max_tokens": "it used more tokens than `loop.max_tokens` allows",
    "internal_error": "something went wrong inside me; the log has the details",
    "restarted": "it was interrupted three times",
    "empty_reply": "the model gave an empty answer several times",
    "context_too_large": "it is too long for the model",
    "stopped": "it was stopped",
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Limits of runs. `depth`: levels of sub-sessions below a run."""

    wards: Wards
    role: str
    depth: int
    at_once: int

    @classmethod
    def of(
        cls, limits: SubSessionSettings, levels: int, max_tokens: int, *, own_models: bool
    ) -> "RunSettings":
        """Return the settings that a sub-session of a room would have (T-047)."""
        wards = Wards(limits.max_turns, limits.timeout_s, max_tokens, require_done=True)
        role = ROLE if own_models else "base"
        return cls(wards, role, levels - 1, limits.max_parallel)


class Run(NamedTuple):
    """Run with its cast."""

    occurrence: Occurrence
    task: Task
    cast: Cast
    scope: str

    @property
    def id(self) -> str:
        """Id in the log and among all runs."""
        return f"{self.task.id}/{self.occurrence.seq}"


class Runs:
    """Due autonomous tasks, as a job type."""

    name = "runs"
    is_background = True

    def __init__(
        self,
        stores: Stores,
        loop: Loop,
        texts: WorkerTexts,
        instruction: Template,
        settings: RunSettings,
        speaker: Speaker,
        clock: Clock,
    ) -> None:
        """`instruction`: TASK_RUN.txt."""
        self._stores = stores
        self._loop = loop
        self._texts = texts
        self._instruction = instruction
        self._settings = settings
        self._speaker = speaker
        self._clock = clock
        self.max_parallel = settings.at_once
        self.wakeup = asyncio.Event()
        self.running_jobs: dict[str, Stop] = {}

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End the running ones of a conversation (L-023) and return their tasks. No turn spawns a run."""
        if only is not None or after:
            return []
        runs = [
            run
            for occurrence in await self._stores.runs.open_in(tx, conversation_id)
            if (run := await self._load_run(occurrence)) and run.id in self.running_jobs
        ]
        for run in runs:
            await self._stores.casts.end(tx, run.cast.id, "truncated", "stopped", "")
            await self._stores.runs.cancel_run(tx, run.occurrence.seq, NO_ANSWER["stopped"])
            self.running_jobs[run.id].press()
        return [run.task.id for run in runs]

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """Do nothing: no event begins a run."""

    async def _served_rooms(self, tx: Transaction) -> list[str]:
        conversations, rooms = self._stores.conversations, await self._stores.runs.rooms(tx)
        rooms_held = [await conversations.get(conversation_id) for conversation_id in rooms]
        return [each.id for each in rooms_held if self._speaker.serves(each.room_id)]

    async def _load_run(self, occurrence: Occurrence) -> Run | None:
        """Return the run of an occurrence; None if it has not begun."""
        if occurrence.cast_id is None:
            return None
        task = await self._stores.tasks.get(occurrence.task_id, None)
        cast = await self._stores.casts.get(occurrence.cast_id)
        scope = await self._stores.conversations.scope_of(cast.branch_id)
        return Run(occurrence, task, cast, scope)

    async def resume(self, tx: Transaction) -> PollResult[Run]:
        """Resume interrupted runs, and fail those with too many crashes (T-037)."""
        going: list[Run] = []
        await self._leave_terminal(tx)
        rooms = await self._served_rooms(tx)
        await self._stores.runs.retry_now(tx)
        for occurrence, crashes in await self._stores.runs.interrupted(tx, rooms):
            run = await self._load_run(occurrence)
            if run is not None and crashes < MOST_CRASHES:
                going.append(run)
            elif run is not None:
                await self._stores.casts.end(
                    tx, run.cast.id, "truncated", "restarted", run.cast.last_words
                )
                await self._store_failed(tx, run, "restarted", "")
        return PollResult(going, rooms)

    async def suspended(self, tx: Transaction, runs: Sequence[Run]) -> None:
        """Record an orderly stop, so that the next start is no interruption."""
        await self._stores.runs.suspended(tx, [run.occurrence.seq for run in runs])

    async def _leave_terminal(self, tx: Transaction) -> None:
        """Move runs left by a chat at the terminal to a room, once the terminal is closed (T-037)."""
        if self._speaker.serves(TERMINAL):
            return
        target_rooms = await TargetRooms.current(tx, self._stores, self._speaker)
        for conversation_id in await self._stores.runs.rooms(tx):
            if (await self._stores.conversations.get(conversation_id)).room_id != TERMINAL:
                continue
            for run in await self._stores.runs.open_in(tx, conversation_id):
                task = await self._stores.tasks.get(run.task_id, None)
                room = await target_rooms.target_room(tx, task.scope, None)
                if room is not None:
                    await self._stores.occurrences.move(tx, run.seq, room.id)

    async def poll(self, tx: Transaction, free: int) -> PollResult[Run]:
        """Begin due runs; a run whose task is no longer active is dropped."""
        until = await self._stores.runs.next_try(tx)  # before `poll`, since time goes on
        left = None if until is None else timedelta(seconds=until - self._clock.monotonic())
        again = None if left is None else self._clock.now() + left
        ready = await self._stores.runs.ready(tx, await self._served_rooms(tx), free)
        begun = [await self._begin(tx, occurrence) for occurrence in ready]
        return PollResult([run for run in begun if run is not None], next_poll=again)

    async def _begin(self, tx: Transaction, occurrence: Occurrence) -> Run | None:
        task = await self._stores.tasks.get(occurrence.task_id, None)
        if task.status != "active":
            why = f"the task was {task.status} by then"
            await self._stores.runs.cancel_run(tx, occurrence.seq, why)
            return None
        branch, scope = await self._branch(tx, occurrence, task)
        # All attempts share one event id, so that a retry is no new message.
        event, wards = f"run_{occurrence.seq}", self._settings.wards.record()
        cast = await self._stores.casts.start(tx, branch, event, START, "timer", wards)
        await self._stores.runs.begin(tx, occurrence.seq, cast.id)
        log.info("run starts task=%s cast=%s", task.id, cast.id)
        return Run(occurrence, task, cast, scope)

    async def _branch(self, tx: Transaction, occurrence: Occurrence, task: Task) -> tuple[str, str]:
        """Return branch and scope of a run; a task of all rooms has the scope of its room.

        A second attempt keeps the branch and scope of the first, with its history in view.
        """
        if occurrence.cast_id is not None:
            branch = (await self._stores.casts.get(occurrence.cast_id)).branch_id
            return branch, await self._stores.conversations.scope_of(branch)
        scope = task.scope
        if scope == EVERYWHERE:
            scope = (await self._stores.conversations.get(occurrence.conversation_id)).scope
        return await self._stores.conversations.open_run(tx, scope, self._settings.depth), scope

    async def execute(self, run: Run, stop: Stop, toolbox: Toolbox) -> Outcome:
        """Run the cast."""
        cast, given = run.cast, self._settings
        room = run.occurrence.conversation_id
        caller = Caller(room, run.scope, cast.id, "timer", None, cast.started_at)
        instructions = WorkerInstructions(self._texts, "full", await self._objective(run), "")
        # A sub-session reports by an event, and nobody would read it after the run. Pages are for
        # chats (M-013).
        wanted = {*tools_for("full", given.depth, None, toolbox.names), DONE} - {SPAWN, RECALL}
        settings = CastSettings(toolbox.only(wanted), instructions, given.role, None, given.depth)
        return await self._loop.run(cast, caller, settings, stop, Unwatched())

    async def _objective(self, run: Run) -> str:
        """Return the instruction, with facts about the run itself (T-045, T-049)."""
        task, occurrence, zone = run.task, run.occurrence, self._stores.tasks.zone
        async with self._stores.database.transaction() as tx:
            before, last = await self._stores.runs.before(tx, occurrence)
        late = late_note(occurrence.due_at, occurrence.missed, zone) if occurrence.missed else ""
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

    async def store_end(self, run: Run, result: Outcome | None) -> Collection[str]:
        """Store the end of the cast and the message to its room in one transaction."""
        outcome = result or BROKEN
        async with self._stores.database.transaction() as tx:
            ended = await self._stores.casts.end(
                tx, run.cast.id, outcome.state, outcome.reason, outcome.text
            )
            if not ended:
                return ()
            if outcome.state == "terminated":
                await self._store_done(tx, run, outcome.text.strip())
            elif outcome.reason in WAITS:
                await self._put_off(tx, run, outcome)
            else:
                last_words = outcome.text or last_step(run.cast)
                await self._store_failed(tx, run, outcome.reason, last_words)
        return [run.occurrence.conversation_id]

    async def _store_done(self, tx: Transaction, run: Run, answer: str) -> None:
        occurrence, outbox_id = run.occurrence, None
        notify = occurrence.mode == "autonomous_notify" and answer not in ("", NO_ACTION)
        if notify and (await self._stores.tasks.get(run.task.id, None)).status != "deleted":
            outbox_id = await self._send(tx, run, answer)
        await self._stores.runs.done(tx, occurrence, answer, outbox_id)

    async def _put_off(self, tx: Transaction, run: Run, outcome: Outcome) -> None:
        """Put the run off, which is no failure of the task, and notify its room once."""
        until = outcome.retry_at or self._clock.now() + AGAIN
        occurrence, zone = run.occurrence, self._stores.tasks.zone
        left = (until - self._clock.now()).total_seconds()
        await self._stores.runs.postpone(tx, occurrence.seq, self._clock.monotonic() + left)
        key = f"run {occurrence.seq} {outcome.reason} {outcome.retry_at}"
        text = put_off_message(run.task, outcome.text, until, zone)
        await self._stores.notices.notice_once(
            tx, key, EVER, occurrence.conversation_id, text, meant_for=run.scope
        )

    async def _store_failed(
        self, tx: Transaction, run: Run, reason: str, last_step_text: str
    ) -> None:
        """Store the error and report it, even for a silent task (T-048, T-050)."""
        why = NO_ANSWER.get(reason, last_step_text or reason)
        task, outbox_id = await self._stores.tasks.get(run.task.id, None), None
        ends = task.failures + 1 >= MOST_FAILURES or task.next_due is None
        pauses = ends and task.status == "active"
        if task.status != "deleted":
            text = failed_message(task, why, self._stores.tasks.zone, paused=pauses)
            outbox_id = await self._send(tx, run, text)
        await self._stores.runs.failed(tx, run.occurrence, why, outbox_id, pauses=pauses)

    async def _send(self, tx: Transaction, run: Run, text: str) -> str:
        """Send a message to the room; if others can read there by now, it waits for a private one (F-002)."""
        return await self._stores.outbox.enqueue(
            tx,
            run.occurrence.conversation_id,
            text,
            kind="event",
            cast_id=run.cast.id,
            meant_for=run.scope,
            cause=cause(run.task.id, run.occurrence.due_at),
        )


def failed_message(task: Task, why: str, zone: ZoneInfo, *, paused: bool) -> str:
    """Return the message about a failed run; `paused`: it does not run again by itself (T-050)."""
    content = shortened(task.content, CONTENT_CHARACTERS)
    why = shortened(why, WHY_CHARACTERS).rstrip(".")
    text = FAILED.format(id=task.id, content=content, why=why)
    if paused:
        often = task.failures + 1 >= MOST_FAILURES
        return text + (PAUSED if often else NEVER_AGAIN).format(id=task.id)
    return text + RUNS_AGAIN.format(when=in_words(task.next_due, zone)) if task.next_due else text


def put_off_message(task: Task, why: str, until: datetime, zone: ZoneInfo) -> str:
    """Return the message about a run that waits for a temporary problem: the budget, or a model."""
    content, when = shortened(task.content, CONTENT_CHARACTERS), in_words(until, zone)
    return PUT_OFF.format(id=task.id, content=content, why=why.rstrip("."), when=when)
