"""The loop: ask the model, store its turn, run its gates strictly in order, until it is done.

    intent ─▶ model ─▶ turn stored ─▶ gate 1 ─▶ gate 2 … ─┐
               ▲                                          │
               └──────────── observations ◀───────────────┘      text, `done` or a ward ends it

The loop keeps everything in the loom, and stores each step before the next begins. So a cast that a
crash interrupted continues when it is run again: `_finish` reads the last stored turn and does only
the steps that have no stored result yet.

`model_requests.py` builds the requests, `gates.py` runs one call, `state.py` has the state of a running
cast and the settings in which casts of rooms, sub-sessions and nights differ.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from wintermute.clock import Clock
from wintermute.conversation.gates import Gates
from wintermute.conversation.model_requests import Folding, RequestBuilder
from wintermute.conversation.state import CastSettings, CastState, Stop, Watch
from wintermute.conversation.tool_summary import done_so_far
from wintermute.conversation.toolbox import DONE, Caller
from wintermute.conversation.view import as_text, recalls_in_vain
from wintermute.errors import (
    BudgetSpent,
    ConfigurationError,
    ContentRefused,
    ContextRefused,
    ContextTooLarge,
    EmptyReply,
    ModelError,
    ModelRefused,
    ModelSilent,
    ModelUnavailable,
    PromptTooLarge,
)
from wintermute.loom.records import Cast, Turn
from wintermute.messages import BROKEN_OFF, SILENT, Reply, Usage
from wintermute.prompt.assemble import pieces
from wintermute.stores import Stores

log = logging.getLogger(__name__)

REASONS: tuple[tuple[type[ModelError], str], ...] = (
    (ModelUnavailable, "model_unavailable"),
    (ContextRefused, "context_refused"),
    (ContentRefused, "content_refused"),
    (ModelRefused, "model_refused"),
    (PromptTooLarge, "prompt_too_large"),
    (ContextTooLarge, "context_too_large"),
    (EmptyReply, "empty_reply"),
    (BudgetSpent, "budget"),
)
OUT_OF_TIME = "max_seconds"
UNFINISHED = (*BROKEN_OFF, SILENT, OUT_OF_TIME)
"""Finish reasons of a turn that is not a whole answer, but will not be continued."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a cast. `text` is the answer, the text so far, or the reason for the failure.

    `retry_at`: the time after which the same cast may succeed. `part_read`: the characters of the
    message that were shown, and its length, if it did not fit (L-043).
    """

    state: Literal["terminated", "truncated"]
    reason: str
    text: str
    retry_at: datetime | None = None
    part_read: tuple[int, int] | None = None
    left_out: int | None = None
    """Number of memories that did not fit into the list; None if no model was asked."""


JOINED = Outcome("truncated", "joined", "")
"""The outcome when people joined or left, so that the readers are not those of the cast's start (F-004)."""
BROKEN = Outcome("truncated", "internal_error", "")
"""The outcome of a cast that met a bug; the log has the traceback."""


class Loop:
    """Runs casts: of rooms, due tasks, sub-sessions and nights alike (DESIGN A-1)."""

    def __init__(
        self, stores: Stores, asking: RequestBuilder, gates: Gates, folding: Folding, clock: Clock
    ) -> None:
        self._database = stores.database
        self._casts = stores.casts
        self._asking = asking
        self._gates = gates
        self._folding = folding
        self._clock = clock

    async def run(
        self, cast: Cast, caller: Caller, settings: CastSettings, stop: Stop, watch: Watch
    ) -> Outcome:
        """Run a cast to its end: a new one, or one that a crash interrupted."""
        refusal = _refusal(cast, settings)
        if refusal:
            return Outcome("truncated", "refused", refusal)
        running = CastState(cast, caller, settings, watch, stop, self._clock)
        try:
            async with stop.within(running.seconds_left) as scope:
                outcome = await self._steps(running, stop)
                return replace(outcome, part_read=running.part_read, left_out=running.left_out)
        except TimeoutError:
            if not scope.expired():
                raise
            if not stop.pressed and running.so_far.strip():
                await self._store(running, _recorded(running.so_far, OUT_OF_TIME))
            return _truncated(running, "stopped" if stop.pressed else OUT_OF_TIME)

    async def _steps(self, running: CastState, stop: Stop) -> Outcome:
        while (outcome := await self._complete_newest(running)) is None:
            try:
                reply = await self._reply(running, stop)
            except ConfigurationError as error:  # no instructions (L-005)
                return Outcome("truncated", "refused", str(error))
            except ModelError as error:
                return await self._failed(running, error)
            if reply is not None:
                await self._store(running, reply)
        return outcome

    async def _complete_newest(self, running: CastState) -> Outcome | None:
        """Complete the newest turn; return an outcome if the cast ends with it or before it."""
        turns = running.cast.turns
        outcome = await self._finish(running, turns[-1]) if turns else None
        if outcome is None and (outcome := await self._ended(running)) is None and running.breached:
            return _truncated(running, running.breached)
        return outcome

    async def _ended(self, running: CastState) -> Outcome | None:
        """Return the outcome if the cast was ended from outside: its stop may be pressed only later."""
        runs, in_scope = await self._casts.running_and_in_scope(running.cast.id)
        if not runs:
            return _truncated(running, "stopped")
        return None if in_scope else JOINED

    async def _reply(self, running: CastState, stop: Stop) -> Reply | None:
        """Ask the model; None if part of the request was retracted while it was asked."""
        running.set_view(await self._folding.past(running.cast.branch_id))
        try:
            async with stop.asking() as question:
                return await self._asking.reply(running)
        except TimeoutError:
            if not question.expired():
                raise
            running.resume_time()
            return None

    async def _store(self, running: CastState, reply: Reply, error: str | None = None) -> None:
        cast = running.cast
        async with self._database.transaction(late=True) as tx:
            runs, parent = await self._casts.last_turn(tx, cast.id)
            if not runs:  # the cast was ended meanwhile
                return
            prompt = None
            if running.prompt is not None:
                prompt = await self._casts.record_prompt(tx, cast.id, pieces(running.prompt))
            reply = replace(reply, waited_ms=min(reply.ms, running.waited_ms()))
            running.add_model_turn(
                await self._casts.add_turn(tx, cast, parent, reply, error, prompt)
            )

    async def _failed(self, running: CastState, error: ModelError) -> Outcome:
        reason = next(name for error_type, name in REASONS if isinstance(error, error_type))
        log.warning("no answer cast=%s reason=%s detail=%s", running.cast.id, reason, error)
        if reason == "empty_reply" and (done := done_so_far(running.cast.turns)):
            # Later requests show it as the answer: after a call without a text, models answer
            # with nothing again.
            await self._store(running, _recorded(done, "stop"))
            return Outcome("terminated", "text", done)
        if isinstance(error, ModelSilent) and _is_awaited(running):
            await self._store(running, _recorded(running.fell_silent, SILENT))
            return Outcome("truncated", SILENT, running.fell_silent)
        await self._store(running, _recorded("", reason), str(error))
        until = error.until if isinstance(error, BudgetSpent) else None
        return Outcome("truncated", reason, str(error), until)

    async def _finish(self, running: CastState, turn: Turn) -> Outcome | None:
        """Run the turn's calls that have no stored result; return an outcome if it ends the cast."""
        if turn.error is not None:
            return None
        if not turn.calls:
            return _ended_by_text(running, turn, is_small=self._gates.is_by_small_model(turn))
        if turn.finish_reason in BROKEN_OFF:  # none of its calls is run (F-071)
            return _ended_by_cuts(running)
        for n, call in enumerate(turn.calls):
            if (ended := await self._ended(running)) is not None:
                return ended
            running.watch.gate(call.name, running.settings.toolbox.doing(call.name))
            observation = await self._gates.observe(
                running.settings.toolbox, running.at(turn, n), turn, n
            )
            if call.name == DONE and not observation.is_error:
                return Outcome("terminated", "done", as_text(observation.result))
            running.add_observation(observation)
        return _ended_by_recalls(running)


def _refusal(cast: Cast, settings: CastSettings) -> str | None:
    if not cast.intent.strip():
        return "There is nothing to answer: the message is empty."
    if cast.wards["require_done"] and DONE not in settings.toolbox.names:
        return "This cast must end with the tool `done`, but its tools do not include it."
    return None


def _ended_by_text(running: CastState, turn: Turn, *, is_small: bool) -> Outcome | None:
    if turn.finish_reason in UNFINISHED:  # asking for the rest is not worth its cost (F-019)
        return Outcome("truncated", turn.finish_reason, turn.utterance)
    if not running.cast.wards["require_done"]:
        return Outcome("terminated", "text", turn.utterance)
    if running.on_last_turn:  # partial work is not lost (L-012)
        return Outcome("truncated", "max_turns", turn.utterance)
    if is_small and any(not before.calls for before in running.cast.turns[-2:-1]):
        # It was told to call `done`, and cannot answer in another way.
        return Outcome("terminated", "text", turn.utterance)
    return None


def _ended_by_cuts(running: CastState) -> Outcome | None:
    """End a cast whose answer was cut off again after the model was told of it."""
    newest = [turn for turn in running.cast.turns if turn.error is None][-2:]
    if len(newest) < 2 or not all(turn.finish_reason in BROKEN_OFF for turn in newest):
        return None
    return _truncated(running, newest[-1].finish_reason)


def _ended_by_recalls(running: CastState) -> Outcome | None:
    """End a cast that asked only for pages again after it was refused more (W-032)."""
    newest = [turn for turn in running.cast.turns if turn.error is None][-2:]
    if len(newest) < 2 or not all(map(recalls_in_vain, newest)):
        return None
    return Outcome("terminated", "text", running.cast.last_words)


def _is_awaited(running: CastState) -> bool:
    """Return True if a person reads a partial answer: other work is repeated instead (F-063)."""
    return running.cast.origin not in ("timer", "system") and bool(running.fell_silent.strip())


def _recorded(text: str, reason: str) -> Reply:
    """Make a turn that no model has finished; its cost is recorded with its attempts."""
    return Reply(text, (), reason, Usage(), "", "", 0)


def _truncated(running: CastState, reason: str) -> Outcome:
    return Outcome("truncated", reason, running.cast.last_words)
