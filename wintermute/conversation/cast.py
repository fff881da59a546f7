"""The loop: ask the model, store its turn, run its gates strictly in order, until it is done.

    intent ─▶ model ─▶ turn stored ─▶ gate 1 ─▶ gate 2 … ─┐
               ▲                                          │
               └──────────── observations ◀───────────────┘      text, `done` or a ward ends it

Everything the loop knows is in the loom, and each step is stored before the next begins. So a cast
that a crash interrupted goes on by being run again: `_finish` looks at the last stored turn and
does only what has no stored result yet.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from wintermute.clock import Clock
from wintermute.conversation.history import CALL_DONE, INTERRUPTED, as_text, messages, query
from wintermute.conversation.shrink import fitted, smaller
from wintermute.conversation.stop import Stop
from wintermute.conversation.toolbox import (
    DONE,
    Accepted,
    Caller,
    Rejected,
    StoreTool,
    Toolbox,
)
from wintermute.conversation.wards import Wards
from wintermute.db import Database
from wintermute.errors import (
    ConfigurationError,
    ContextTooLarge,
    EmptyReply,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ToolFailed,
)
from wintermute.llm.models import Models
from wintermute.loom.casts import Casts
from wintermute.loom.records import Cast, Observation, Turn
from wintermute.messages import Json, Reply, Request, Usage

log = logging.getLogger(__name__)

REASONS: tuple[tuple[type[ModelError], str], ...] = (
    (ModelUnavailable, "model_unavailable"),
    (ModelRefused, "model_refused"),
    (ContextTooLarge, "context_too_large"),
    (EmptyReply, "empty_reply"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a cast ended. `text` is the answer, what was said so far, or why there is neither."""

    state: Literal["terminated", "truncated"]
    reason: str
    text: str


class Prompt(Protocol):
    """Where instructions come from: read anew for every question (P-001)."""

    async def system(self, scope: str, tools: Collection[str], query: str | None) -> str:
        """The system prompt for this scope and these tools; `query` is what memory may rank by.

        Raises: ConfigurationError when there are no instructions (L-005).
        """
        ...


class Watch(Protocol):
    """Somebody who sees a cast being made."""

    def draft(self, piece: str) -> None:
        """The model says more; an empty piece begins an utterance, or a new attempt at it."""
        ...

    def gate(self, name: str) -> None:
        """A gate starts."""
        ...


class Loop:
    """Runs casts. One for all: rooms, due tasks, sub-sessions and nights (DESIGN A-1)."""

    def __init__(
        self,
        database: Database,
        casts: Casts,
        models: Models,
        toolbox: Toolbox,
        prompt: Prompt,
        clock: Clock,
    ) -> None:
        self._database = database
        self._casts = casts
        self._models = models
        self._toolbox = toolbox
        self._prompt = prompt
        self._clock = clock

    async def run(self, cast: Cast, caller: Caller, stop: Stop, watch: Watch) -> Outcome:
        """Bring a cast to its end: a new one, or one that a crash interrupted."""
        wards = Wards(**cast.wards)
        refusal = self._refusal(cast, wards)
        if refusal:
            return Outcome("truncated", "refused", refusal)
        running = _Running(cast, caller, wards, self._clock.monotonic(), watch)
        try:
            async with stop.within(wards.max_seconds - running.seconds(self._clock)) as scope:
                return await self._steps(running)
        except TimeoutError:
            if not scope.expired():
                raise
            return running.truncated("stopped" if stop.pressed else "max_seconds")

    def _refusal(self, cast: Cast, wards: Wards) -> str | None:
        if not cast.intent.strip():
            return "There is nothing to answer: the message is empty."
        if wards.require_done and DONE not in self._toolbox.names:
            return "This cast must end with the tool `done`, but its tools do not include it."
        return None

    async def _steps(self, running: "_Running") -> Outcome:
        earlier = [
            cast
            for cast in await self._casts.of_branch(running.cast.branch_id)
            if cast.id != running.cast.id
        ]
        while True:
            if running.cast.turns:
                outcome = await self._finish(running, running.cast.turns[-1])
                if outcome is not None:
                    return outcome
            breached = running.breached(self._clock)
            if breached:
                return running.truncated(breached)
            try:
                prompt = await self._prompt.system(
                    running.caller.scope, self._toolbox.names, query(running.cast, earlier)
                )
            except ConfigurationError as error:  # no instructions (L-005)
                return Outcome("truncated", "refused", str(error))
            try:
                await self._next_turn(running, prompt, earlier)
            except ModelError as error:
                return await self._failed(running, prompt, error)

    async def _next_turn(self, running: "_Running", prompt: str, earlier: list[Cast]) -> None:
        view = messages(prompt, [*earlier, running.cast])
        current = max(n for n, message in enumerate(view) if message["role"] == "user")
        if running.wants_done():
            view += ({"role": "user", "content": CALL_DONE},)
        reply = await self._ask(running, view, len(view) - current)
        await self._store(running, prompt, reply)

    async def _ask(self, running: "_Running", view: tuple[Json, ...], kept: int) -> Reply:
        """The model's answer to the view; its last `kept` messages may be cut, but none left out."""
        tools = self._toolbox.definitions()
        request = fitted(view, kept, tools, self._window())
        while True:
            try:
                return await self._models.ask(
                    "base",
                    Request(request, tools),
                    cast_id=running.cast.id,
                    draft=running.watch.draft,
                )
            except ContextTooLarge:
                less = smaller(request, kept)
                if less is None:
                    raise
                log.info("request shrunk cast=%s messages=%d", running.cast.id, len(less))
                request = less

    def _window(self) -> int:
        """Tokens a request may have, so that an answer still fits."""
        whole = self._models.context_tokens("base")
        return max(whole - self._models.max_output_tokens("base"), whole // 2)

    async def _store(
        self, running: "_Running", prompt: str, reply: Reply, error: str | None = None
    ) -> None:
        cast = running.cast
        async with self._database.transaction() as tx:
            parent = await self._casts.last_turn(tx, cast.branch_id)
            await self._casts.prompted(tx, cast.id, prompt)
            turn = await self._casts.add_turn(tx, cast, parent, reply, error)
        running.cast = replace(cast, turns=(*cast.turns, turn))

    async def _failed(self, running: "_Running", prompt: str, error: ModelError) -> Outcome:
        reason = next(name for kind, name in REASONS if isinstance(error, kind))
        log.warning("no answer cast=%s reason=%s detail=%s", running.cast.id, reason, error)
        nothing = Reply("", (), reason, Usage(), "", "", 0)
        await self._store(running, prompt, nothing, str(error))
        return Outcome("truncated", reason, str(error))

    async def _finish(self, running: "_Running", turn: Turn) -> Outcome | None:
        """Do what the turn asks for and has no stored result yet; an outcome if it ends the cast."""
        if turn.error is not None:
            return None
        if not turn.calls:
            return running.ended_by_text(turn)
        for n, call in enumerate(turn.calls):
            observation = await self._gate(running, turn, n)
            if call.name == DONE and not observation.is_error:
                return Outcome("terminated", "done", as_text(observation.result))
            seen = turn.observations
            turn = replace(turn, observations=(*seen[:n], observation, *seen[n + 1 :]))
            running.cast = replace(running.cast, turns=(*running.cast.turns[:-1], turn))
        return None

    async def _gate(self, running: "_Running", turn: Turn, n: int) -> Observation:
        call = turn.calls[n]
        before = turn.observations[n] if n < len(turn.observations) else None
        if before is not None and before.completed:
            return before
        verdict = self._toolbox.accept(call)
        if any(call.id == other.id for other in turn.calls[:n]):
            verdict = Rejected("this call id was used before in the same answer; not run")
        if before is None:
            async with self._database.transaction() as tx:
                await self._casts.begin_observation(tx, turn.id, n, call, verdict.args)
        elif isinstance(verdict, Accepted) and not _repeatable(verdict):
            verdict = Rejected(INTERRUPTED, verdict.args)
        running.watch.gate(call.name)
        result, is_error = await self._effect(verdict, running.caller, turn.id, n)
        return Observation(n, call.name, verdict.args, result, is_error, call.id, completed=True)

    async def _effect(
        self, verdict: Accepted | Rejected, caller: Caller, turn_id: str, n: int
    ) -> tuple[object, bool]:
        """Run a gate and store what it gave; what changes our own stores, in one transaction."""
        result: object
        is_error = False
        try:
            if isinstance(verdict, Rejected):
                result, is_error = verdict.reason, True
            elif isinstance(verdict.tool, StoreTool):
                async with self._database.transaction() as tx:
                    result = await verdict.tool.change(tx, caller, verdict.args)
                    await self._casts.complete_observation(tx, turn_id, n, result, is_error)
                return result, is_error
            else:
                result = await verdict.tool.run(caller, verdict.args)
        except ToolFailed as error:
            result, is_error = str(error), True
        async with self._database.transaction() as tx:
            await self._casts.complete_observation(tx, turn_id, n, result, is_error)
        return result, is_error


def _repeatable(accepted: Accepted) -> bool:
    """Whether a gate that a crash interrupted may run again (L-051)."""
    return isinstance(accepted.tool, StoreTool) or accepted.tool.durable


class _Running:
    """What the loop knows of one cast while it runs."""

    def __init__(
        self, cast: Cast, caller: Caller, wards: Wards, begun: float, watch: Watch
    ) -> None:
        self.cast = cast
        self.caller = caller
        self.watch = watch
        self._wards = wards
        # A resumed cast has used the time of its stored turns, not the time we were down.
        self._begun = begun - sum(turn.ms for turn in cast.turns) / 1000

    def seconds(self, clock: Clock) -> float:
        return clock.monotonic() - self._begun

    def breached(self, clock: Clock) -> str | None:
        tokens = sum(turn.tokens for turn in self.cast.turns)
        return self._wards.breached(len(self.cast.turns), self.seconds(clock), tokens)

    def wants_done(self) -> bool:
        """The model spoke although only `done` ends this cast."""
        last = self.cast.turns[-1] if self.cast.turns else None
        return last is not None and not last.calls and last.error is None

    def ended_by_text(self, turn: Turn) -> Outcome | None:
        if not self._wards.require_done:
            return Outcome("terminated", "text", turn.utterance)
        if len(self.cast.turns) >= self._wards.max_turns:  # partial work is not lost (L-012)
            return Outcome("truncated", "max_turns", turn.utterance)
        return None

    def truncated(self, reason: str) -> Outcome:
        return Outcome("truncated", reason, self.cast.last_words)
