"""Background requests to models: in quiet hours, within a budget, with checked answers.

    template ─▶ filled with untagged values ─▶ budget of a night ─▶ model ─▶ read ─▶ value
                                                  ▲                │ cut off, no JSON, wrong shape, a
                                                  ╰───── once ─────╯ copy: model told, then refused

No value can close a block of the template (M-048, M-072).
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TypeVar

from wintermute.errors import (
    AnswerUnusable,
    BudgetSpent,
    ContextTooLarge,
    EmptyReply,
    ModelError,
    NotQuiet,
)
from wintermute.llm.backend import SILENT_LISTENER, Listener
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, json_of
from wintermute.llm.models import Models
from wintermute.messages import Json, Reply, Request, Size
from wintermute.templates import fill
from wintermute.text import shortened, untagged

ATTEMPTS = 2
"""The request, and once more with the problem of its answer (M-072)."""
SHOWN = 1_000
"""The most characters of an unusable answer to show the model again."""
AGAIN = "That cannot be used: {error}. Answer once more, with the JSON alone, in the shape that was named."
USED_UP = "the tokens of this night are used up"
WHERE = f"{USED_UP} (dreaming.budget_tokens)"
TOO_SMALL = "one question alone may take {size} tokens: raise dreaming.budget_tokens"

T = TypeVar("T")
IdleFrom = Callable[[str], Awaitable[datetime | None]]
"""Returns the time from which a role may be asked; None for now."""


class BackgroundModels:
    """The models for background work: one request at a time, counted, with an optional token budget."""

    def __init__(
        self,
        models: Models,
        quiet: IdleFrom | None = None,
        *,
        most: int | None = None,
        spent: tuple[int, int, float] = (0, 0, 0.0),
    ) -> None:
        """Take the models. `most`: tokens of a night. `spent`: its calls, tokens and USD so far."""
        self._models = models
        self._quiet_from = quiet
        self._most = most
        self._limit = most or 0
        self.calls, self.used, self.usd = spent
        self._calls_before = self.calls
        self.spent = False
        """True if a request was refused because of the budget."""
        self.away = ""
        """The error of the last request; "" if it was answered, or too large."""

    def allow(self, share: float) -> None:
        """Restrict the coming requests to this share of the remaining tokens.

        One request is always allowed, so that the oldest work gets its turn, however small the
        share is.
        """
        self._calls_before, self.spent, self.away = self.calls, False, ""
        if self._most is not None:
            self._limit = self.used + int(max(0, self._most - self.used) * share)

    async def require_idle(self, role: str) -> None:
        """Raise NotQuiet if work of this role has to wait (M-064)."""
        if self._quiet_from is not None and (until := await self._quiet_from(role)) is not None:
            raise NotQuiet(until)

    async def ask_in_background(
        self,
        role: str,
        request: Request,
        sources: QuestionSources | None = None,
        *,
        backend: str | None = None,
    ) -> Reply:
        """Ask within the budget. Raises: BudgetSpent at its end; ModelError; QuestionWithdrawn."""
        if self._most is not None:
            size = self.tokens(role, request, backend)
            if self.used + size > (self._most if self.calls == self._calls_before else self._limit):
                self.spent, self.away = True, USED_UP
                alone = size > self._most
                raise BudgetSpent(TOO_SMALL.format(size=size) if alone else WHERE, None)
        try:
            reply = await self._models.ask_in_background(role, request, sources, backend=backend)
        except BudgetSpent as problem:
            self.spent, self.away = True, str(problem)
            raise
        except ModelError as problem:
            self.away = "" if isinstance(problem, ContextTooLarge) else str(problem)
            raise
        self.away = ""
        self.calls += 1
        cost = self._models.cost(reply)
        self.used += cost.tokens
        self.usd += cost.usd
        return reply

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = SILENT_LISTENER,
    ) -> Reply:
        """Implement `conversation.asking.ModelClient`, to fold conversations in the background."""
        return await self.ask_in_background(role, request, backend=backend)

    async def answer_in_json(
        self,
        role: str,
        template: str,
        values: Mapping[str, str],
        read: Callable[[Json], T],
        *,
        attempts: int = ATTEMPTS,
        sources: QuestionSources | None = None,
        backend: str | None = None,
    ) -> T:
        """Return the result of `read` for the JSON object of an answer, after at most `attempts`.

        `sources`: the sources of the values. The caller must check in its own transaction that they
        are unchanged, as they may have been retracted while the model answered.

        Raises: AnswerUnusable; QuestionWithdrawn; ModelError if no answer came.
        """
        question = fill(template, {name: untagged(value) for name, value in values.items()})
        return await self.checked_answer(
            *(role, question, lambda reply: json_of(reply, template, read), AGAIN),
            attempts=attempts,
            sources=sources,
            backend=backend,
        )

    async def checked_answer(
        self,
        role: str,
        question: str,
        read: Callable[[Reply], T],
        again: str,
        *,
        attempts: int = ATTEMPTS,
        sources: QuestionSources | None = None,
        backend: str | None = None,
    ) -> T:
        """Return the result of `read` for an answer; after Unfit, ask again with `again`.

        Raises: as `answer_in_json`.
        """
        messages: tuple[Json, ...] = ({"role": "user", "content": question},)
        plain = ""
        for _ in range(attempts):
            try:
                reply = await self.ask_in_background(
                    role, Request(messages), sources, backend=backend
                )
            except EmptyReply as problem:
                await self._models.refused(role, "it is empty")
                raise AnswerUnusable(f"the model answers with nothing: {problem}") from problem
            try:
                return read(reply)
            except InvalidAnswer as problem:
                error, plain = str(problem), problem.plain
            messages += (
                {"role": "assistant", "content": shortened(reply.text, SHOWN) or "{}"},
                {"role": "user", "content": again.format(error=error)},
            )
        await self._models.refused(role, plain)
        raise AnswerUnusable(f"the model's answer cannot be used: {plain}")

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """Estimate the tokens of a request."""
        return self._models.tokens(role, request, backend)

    def window(self, role: str, backend: str | None = None) -> int:
        """Return the most tokens of a request."""
        return self._models.window(role, backend)

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """Return the model sizes that a request must be built for."""
        return self._models.sizes(role, backend)

    def size_of(self, backend: str) -> Size:
        """Return the size of one backend's model."""
        return self._models.size_of(backend)
