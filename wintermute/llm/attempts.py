"""One attempt at a question: room for it is reserved, it is asked, and what it cost is recorded."""

import logging
from dataclasses import dataclass
from functools import partial

from wintermute.clock import Clock
from wintermute.errors import BudgetSpent
from wintermute.llm.backend import Endpoint, Listener
from wintermute.llm.calls import NO_ROOM, Amount, Attempt, Budget, ModelCalls, Reservation, cost
from wintermute.llm.failures import NOTHING, Failed
from wintermute.llm.tokens import BYTES_PER_TOKEN, said
from wintermute.llm.wire import Answer
from wintermute.messages import Reply, Request, Usage

log = logging.getLogger(__name__)

PERHAPS_BILLED = frozenset({"timeout", "cancelled", "empty"})
"""Outcomes without an answer after which the server may have worked on the prompt."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, as often as it takes."""

    role: str
    request: Request
    size: int
    """Our estimate of the request's tokens."""
    cast_id: str | None
    began: float
    listener: Listener


class _Trial:
    """One attempt while it is being made."""

    def __init__(self, endpoint: Endpoint, question: Question, number: int, began: float) -> None:
        self.endpoint = endpoint
        self.question = question
        self.number = number
        self.began = began
        self.sent = False
        self.outcome = "cancelled"
        self.detail = ""
        self.reply: Reply | None = None
        self._usage = NOTHING
        self._heard = 0

    def asked(self) -> None:
        """An attempt begins."""
        self.question.listener.asked()

    def begun(self) -> None:
        """Its first token is here."""
        self.question.listener.begun()

    def said(self, piece: str) -> None:
        """Pass it on, and count it: what was said before a failure has been paid."""
        self._heard += len(piece.encode("utf-8", "replace"))
        self.question.listener.said(piece)

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Whoever tries again tells that."""

    def ended_by(self, problem: Failed | BudgetSpent) -> None:
        self.detail = str(problem)
        if isinstance(problem, Failed):
            self.outcome, self._usage = problem.outcome, problem.usage
        else:
            self.outcome = NO_ROOM

    def answered(self, answer: Answer, ms: int) -> Reply:
        endpoint, size = self.endpoint, self.question.size
        if answer.usage:
            self._usage = answer.usage
            endpoint.measure.learn(size, answer.usage)
        else:
            self._usage = Usage(endpoint.measure.of(size), said(answer))
        self.outcome = "ok"
        self.reply = Reply(
            text=answer.text,
            calls=answer.calls,
            finish_reason=answer.finish_reason,
            usage=self._usage,
            backend=endpoint.name,
            model=answer.model or endpoint.settings.model,
            ms=ms,
        )
        return self.reply

    @property
    def usage(self) -> Usage:
        """As reported, else estimated: a failure costs what the server may have done by then."""
        perhaps = self.outcome in PERHAPS_BILLED or self._heard > 0
        if self._usage == NOTHING and self.sent and perhaps:
            heard = -(-self._heard // BYTES_PER_TOKEN)
            return Usage(self.endpoint.measure.of(self.question.size), heard)
        return self._usage


class Attempts:
    """Makes attempts, each within the budget and on record."""

    def __init__(self, calls: ModelCalls, budget: Budget, clock: Clock) -> None:
        self._calls = calls
        self._budget = budget
        self._clock = clock

    async def make(self, endpoint: Endpoint, question: Question, number: int) -> Reply:
        """Ask once.

        Raises: Failed; BudgetSpent before anything is sent.
        """
        trial = _Trial(endpoint, question, number, self._clock.monotonic())
        planned = self._budget.planned(question.role, endpoint.name, _worst(endpoint, question))
        try:
            await self._budget.reserve(planned)
            trial.sent = True
            answer = await endpoint.ask(question.request, listener=trial)
            return trial.answered(answer, self._ms_since(question.began))
        except (Failed, BudgetSpent) as problem:
            trial.ended_by(problem)
            log.warning(
                "model call failed backend=%s outcome=%s attempt=%d cast=%s",
                endpoint.name,
                trial.outcome,
                number,
                question.cast_id,
            )
            raise
        finally:
            await self._record(trial, planned)

    async def _record(self, trial: _Trial, planned: Reservation) -> None:
        question, endpoint, usage = trial.question, trial.endpoint, trial.usage
        spent = Amount(usage.tokens_in + usage.tokens_out, cost(usage, endpoint.settings.price))
        attempt = Attempt(
            role=question.role,
            cast_id=question.cast_id,
            backend=endpoint.name,
            model=trial.reply.model if trial.reply else endpoint.settings.model,
            number=trial.number,
            outcome=trial.outcome,
            detail=trial.detail,
            usage=usage,
            usd=spent.usd,
            ms=self._ms_since(trial.began),
            request=question.request,
            reply=trial.reply,
        )
        await self._calls.record(attempt, partial(self._budget.settle, planned, spent))

    def _ms_since(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)


def _worst(endpoint: Endpoint, question: Question) -> Amount:
    """The whole prompt at the price of an uncached one, and the longest answer."""
    settings = endpoint.settings
    worst = Usage(endpoint.measure.worst(question.size), settings.max_output_tokens)
    return Amount(worst.tokens_in + worst.tokens_out, cost(worst, settings.price))
