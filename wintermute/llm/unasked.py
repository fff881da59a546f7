"""The one way to ask models for work that nobody waits for: in quiet hours, within a limit, with proof.

    template ─▶ filled with untagged values ─▶ limit of a night ─▶ model ─▶ read ─▶ value
                                                  ▲                │ cut off, no JSON, wrong shape, an
                                                  ╰───── once ─────╯ example: told, then refused

Nothing that is shown can close a block of the template (M-048, M-072).
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
from wintermute.llm.backend import UNHEARD, Listener
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import Unfit, json_of
from wintermute.llm.models import Models
from wintermute.messages import Json, Reply, Request, Size
from wintermute.templates import fill
from wintermute.text import shortened, untagged

ATTEMPTS = 2
"""The question, and once more with what is wrong with its answer (M-072)."""
SHOWN = 1_000
"""Of an answer that was of no use."""
AGAIN = "That cannot be used: {error}. Answer once more, with the JSON alone, in the shape that was named."
USED_UP = "the tokens of this night are used up"
WHERE = f"{USED_UP} (dreaming.budget_tokens)"
TOO_SMALL = "one question alone may take {size} tokens: raise dreaming.budget_tokens"

T = TypeVar("T")
QuietFrom = Callable[[str], Awaitable[datetime | None]]
"""When a role may be asked; None: now."""


class UnaskedModels:
    """The models, asked one question at a time; counted, and up to a limit of tokens if there is one."""

    def __init__(
        self,
        models: Models,
        quiet: QuietFrom | None = None,
        *,
        most: int | None = None,
        spent: tuple[int, int, float] = (0, 0, 0.0),
    ) -> None:
        """`most`: tokens of a night. `spent`: what it has cost already, in calls, tokens and USD."""
        self._models = models
        self._quiet = quiet
        self._most = most
        self._upto = most or 0
        self.calls, self.used, self.usd = spent
        self._first = self.calls
        self.spent = False
        """Whether something was left out for that."""
        self.away = ""
        """Why the last question got no answer; "": it got one, or was too large."""

    def allow(self, share: float) -> None:
        """Let no more than this part of what is left be used from now on.

        But for one question: so whoever waits longest is asked about, however small the part is.
        """
        self._first, self.spent, self.away = self.calls, False, ""
        if self._most is not None:
            self._upto = self.used + int(max(0, self._most - self.used) * share)

    async def require_quiet(self, role: str) -> None:
        """Raises: NotQuiet where work of this role has to wait (M-064)."""
        if self._quiet is not None and (until := await self._quiet(role)) is not None:
            raise NotQuiet(until)

    async def ask_unasked(
        self,
        role: str,
        request: Request,
        sources: QuestionSources | None = None,
        *,
        backend: str | None = None,
    ) -> Reply:
        """Raises: BudgetSpent where the limit is reached; ModelError; QuestionWithdrawn."""
        if self._most is not None:
            size = self.tokens(role, request, backend)
            if self.used + size > (self._most if self.calls == self._first else self._upto):
                self.spent, self.away = True, USED_UP
                alone = size > self._most
                raise BudgetSpent(TOO_SMALL.format(size=size) if alone else WHERE, None)
        try:
            reply = await self._models.ask_unasked(role, request, sources, backend=backend)
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
        listener: Listener = UNHEARD,
    ) -> Reply:
        """As `conversation.asking.ModelClient`: a conversation that is folded now waits for nobody."""
        return await self.ask_unasked(role, request, backend=backend)

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
        """What `read` makes of the object that a model answers with; it is asked at most so often.

        `sources`: what the values are made of. Whoever uses what comes of it asks in its transaction
        whether they stand, for they may have been taken back while the model answered.

        Raises: AnswerUnusable; QuestionWithdrawn; ModelError where no answer came.
        """
        question = fill(template, {name: untagged(value) for name, value in values.items()})
        return await self.proved_answer(
            *(role, question, lambda reply: json_of(reply, template, read), AGAIN),
            attempts=attempts,
            sources=sources,
            backend=backend,
        )

    async def proved_answer(
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
        """What `read` makes of an answer; where it is Unfit, the model is told so by `again`.

        Raises: as `answer_in_json`.
        """
        messages: tuple[Json, ...] = ({"role": "user", "content": question},)
        plain = ""
        for _ in range(attempts):
            try:
                reply = await self.ask_unasked(role, Request(messages), sources, backend=backend)
            except EmptyReply as problem:
                await self._models.refused(role, "it is empty")
                raise AnswerUnusable(f"the model answers with nothing: {problem}") from problem
            try:
                return read(reply)
            except Unfit as problem:
                error, plain = str(problem), problem.plain
            messages += (
                {"role": "assistant", "content": shortened(reply.text, SHOWN) or "{}"},
                {"role": "user", "content": again.format(error=error)},
            )
        await self._models.refused(role, plain)
        raise AnswerUnusable(f"the model's answer cannot be used: {plain}")

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """How many a request has."""
        return self._models.tokens(role, request, backend)

    def window(self, role: str, backend: str | None = None) -> int:
        """Tokens that a request may have."""
        return self._models.window(role, backend)

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """For which sizes of models a request is needed."""
        return self._models.sizes(role, backend)

    def size_of(self, backend: str) -> Size:
        """That of one backend."""
        return self._models.size_of(backend)
