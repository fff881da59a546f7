"""Asking a role's models: retries on one backend, then the next one, and a row for every attempt."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from wintermute.clock import Clock
from wintermute.config.schema import Llm
from wintermute.errors import EmptyReply, ModelError, ModelRefused, ModelUnavailable
from wintermute.ids import NewId
from wintermute.llm.backend import Draft, Endpoint, unseen
from wintermute.llm.calls import Attempt, ModelCalls, cost
from wintermute.llm.failures import NOTHING, Empty, Failed, Outage, TooLarge
from wintermute.llm.tokens import usage_of
from wintermute.messages import Reply, Request

log = logging.getLogger(__name__)

LONGEST_PAUSE = 60.0
LONGEST_WISH = 30.0
"""A Retry-After above this many seconds is a reason to ask another backend."""
JITTER = 0.1


@dataclass(frozen=True, slots=True)
class _Question:
    role: str
    request: Request
    cast_id: str | None
    began: float
    draft: Draft


class Models:
    """All configured models, by the role they are asked in."""

    def __init__(
        self,
        llm: Llm,
        calls: ModelCalls,
        clock: Clock,
        new_id: NewId,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._llm = llm
        self._calls = calls
        self._clock = clock
        self._chance = chance
        self._endpoints = {
            name: Endpoint(name, settings, new_id) for name, settings in llm.backends.items()
        }

    async def ask(
        self, role: str, request: Request, *, cast_id: str | None = None, draft: Draft = unseen
    ) -> Reply:
        """A usable answer from the first backend of the role that gives one.

        `draft` is given what is said, while it is being said.

        Raises: ModelRefused, ContextTooLarge, EmptyReply, ModelUnavailable.
        """
        question = _Question(role, request, cast_id, self._clock.monotonic(), draft)
        failures: list[Failed] = []
        too_small = 0
        for endpoint in self._of(role):
            if endpoint.settings.context_tokens <= too_small:
                continue
            try:
                return await self._persist(endpoint, question)
            except TooLarge as failure:
                too_small = endpoint.settings.context_tokens
                failures.append(failure)
            except Outage as failure:
                failures.append(failure)
            except Failed as failure:
                raise failure.public(str(failure)) from None
        raise _verdict(failures)

    def context_tokens(self, role: str) -> int:
        """The window of the role's first backend."""
        return self._of(role)[0].settings.context_tokens

    def max_output_tokens(self, role: str) -> int:
        """The longest answer that the role's first backend is asked for."""
        return self._of(role)[0].settings.max_output_tokens

    async def aclose(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()

    def _of(self, role: str) -> list[Endpoint]:
        names: tuple[str, ...] = getattr(self._llm.roles, role) or self._llm.roles.base
        if not names:
            raise ModelRefused(
                f"no model for {role}: name a backend of llm.backends in llm.roles.base"
            )
        return [self._endpoints[name] for name in names]

    async def _persist(self, endpoint: Endpoint, question: _Question) -> Reply:
        """Ask one backend until it answers or its retries are spent (L-033, L-034)."""
        number = 1
        while True:
            try:
                return await self._attempt(endpoint, question, number)
            except Outage as failure:
                wish = failure.retry_after or 0.0
                if number > self._llm.max_retries or wish > LONGEST_WISH:
                    raise
            pause = max(wish, min(LONGEST_PAUSE, 2.0 ** (number - 1)))
            await self._clock.sleep(pause * (1 + JITTER * self._chance()))
            number += 1

    async def _attempt(self, endpoint: Endpoint, question: _Question, number: int) -> Reply:
        began = self._clock.monotonic()
        outcome, detail, usage, model = "cancelled", "", NOTHING, endpoint.settings.model
        try:
            answer = await endpoint.ask(question.request, draft=question.draft)
            outcome, usage = "ok", usage_of(question.request, answer)
            model = answer.model or model
        except Failed as failure:
            outcome, detail, usage = failure.outcome, str(failure), failure.usage
            log.warning(
                "model call failed backend=%s outcome=%s attempt=%d cast=%s",
                endpoint.name,
                outcome,
                number,
                question.cast_id,
            )
            raise
        finally:
            await self._calls.record(
                Attempt(
                    role=question.role,
                    cast_id=question.cast_id,
                    backend=endpoint.name,
                    model=model,
                    number=number,
                    outcome=outcome,
                    detail=detail,
                    usage=usage,
                    usd=cost(usage, endpoint.settings.price),
                    ms=self._ms_since(began),
                )
            )
        return Reply(
            text=answer.text,
            calls=answer.calls,
            finish_reason=answer.finish_reason,
            usage=usage,
            backend=endpoint.name,
            model=model,
            ms=self._ms_since(question.began),
        )

    def _ms_since(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)


def _verdict(failures: list[Failed]) -> ModelError:
    """What to tell of a role none of whose backends answered."""
    for failure in failures:
        if isinstance(failure, TooLarge):  # shortening the request may help, waiting will not
            return failure.public(str(failure))
    told = "; ".join(str(failure) for failure in failures)
    if all(isinstance(failure, Empty) for failure in failures):
        return EmptyReply(told)
    return ModelUnavailable(told)
