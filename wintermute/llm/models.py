"""Asking a role's models: retries on one backend, then the next one."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from wintermute.clock import Clock
from wintermute.config.schema import Llm
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.errors import BudgetSpent, EmptyReply, ModelError, ModelRefused, ModelUnavailable
from wintermute.ids import NewId
from wintermute.llm import tokens
from wintermute.llm.attempts import Attempts, Question
from wintermute.llm.backend import UNHEARD, Endpoint, Listener
from wintermute.llm.budget import Budget
from wintermute.llm.calls import ModelCalls
from wintermute.llm.failures import Empty, Failed, Outage, TooLarge, Unreachable
from wintermute.messages import Reply, Request

LONGEST_PAUSE = 60.0
LONGEST_WISH = 30.0
"""A Retry-After above this many seconds is a reason to ask another backend."""
JITTER = 0.1
PROBE = Request(({"role": "user", "content": "Reply with: ok"},))
PROBE_SECONDS = 10.0
FRAME = frozenset({"role", "type"})
"""Words of the protocol, which stay what they are should one of them be a password."""


class Models:
    """All configured models, by the role they are asked in."""

    def __init__(
        self,
        llm: Llm,
        calls: ModelCalls,
        budget: Budget,
        clock: Clock,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._llm = llm
        self._attempts = Attempts(calls, budget, clock)
        self._clock = clock
        self._redact = redact
        self._chance = chance
        self._answered: dict[str, float] = {}  # when last, by backend
        self._endpoints = {
            name: Endpoint(name, settings, new_id, redact=redact)
            for name, settings in llm.backends.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The backends' names."""
        return tuple(self._endpoints)

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = UNHEARD,
    ) -> Reply:
        """A usable answer from the first backend of the role that gives one, or from `backend`.

        No secret goes out with the request or comes back (L-089).

        Raises: ModelRefused, ContextTooLarge, EmptyReply, ModelUnavailable, BudgetSpent.
        """
        hidden = self._hidden(request)
        began = self._clock.monotonic()
        question = Question(role, hidden, tokens.size(hidden), cast_id, began, listener)
        failures: list[Failed] = []
        spent: list[BudgetSpent] = []
        too_small = 0
        endpoints = self._of(role, backend)
        for endpoint in endpoints:
            if endpoint.settings.context_tokens <= too_small:
                continue
            try:
                return await self._persist(endpoint, question, last=endpoint is endpoints[-1])
            except TooLarge as failure:
                too_small = endpoint.settings.context_tokens
                failures.append(failure)
            except Outage as failure:
                failures.append(failure)
            except Failed as failure:
                raise failure.public(str(failure)) from None
            except BudgetSpent as problem:  # another one may cost less
                spent.append(problem)
        raise _verdict(failures, spent)

    async def answers(self, role: str, since: float) -> bool:
        """Whether a backend of the role has answered since then, by the steady clock, or does now.

        It is asked something small then, within 10 seconds (F-021).
        """
        endpoints = self._of(role, None)
        if any(self._answered.get(endpoint.name, since) > since for endpoint in endpoints):
            return True
        now = self._clock.monotonic()
        question = Question("probe", PROBE, tokens.size(PROBE), None, now, UNHEARD)
        for endpoint in endpoints:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._attempts.make(endpoint, question, 1)
            except (Failed, BudgetSpent, TimeoutError):
                continue
            self._answered[endpoint.name] = self._clock.monotonic()
            return True
        return False

    async def listens(self, role: str) -> bool:
        """Whether a backend of the role accepts connections, without asking it anything (F-036)."""
        for endpoint in self._of(role, None):
            if await endpoint.listens():
                return True
        return False

    def window(self, role: str, backend: str | None = None) -> int:
        """Tokens a request may have, so that an answer of the first backend still fits."""
        settings = self._of(role, backend)[0].settings
        whole = settings.context_tokens
        return max(whole - settings.max_output_tokens, whole // 2)

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """How many a request has for the first backend, as far as can be told by now."""
        return self._of(role, backend)[0].measure.of(tokens.size(request))

    async def aclose(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()

    def _hidden(self, request: Request) -> Request:
        messages, tools = self._redact.tree([request.messages, request.tools], FRAME)
        return replace(request, messages=tuple(messages), tools=tuple(tools))

    def _of(self, role: str, backend: str | None) -> list[Endpoint]:
        if backend is not None and backend not in self._endpoints:
            known = ", ".join(self._endpoints) or "none"
            raise ModelRefused(f"there is no model {backend}: choose one of llm.backends: {known}")
        names: tuple[str, ...] = getattr(self._llm.roles, role) or self._llm.roles.base
        if backend is not None:
            names = (backend,)
        if not names:
            raise ModelRefused(
                f"no model for {role}: name a backend of llm.backends in llm.roles.base"
            )
        return [self._endpoints[name] for name in names]

    async def _persist(self, endpoint: Endpoint, question: Question, *, last: bool) -> Reply:
        """Ask one backend until it answers or its retries are spent (L-033, L-034).

        `last`: there is no other to be asked.
        """
        number = 1
        while True:
            try:
                reply = await self._attempts.make(endpoint, question, number)
            except Outage as failure:
                unreachable = last and isinstance(failure, Unreachable)
                question.listener.failed(str(failure), unreachable=unreachable)
                wish = failure.retry_after or 0.0
                if number > self._llm.max_retries or wish > LONGEST_WISH:
                    raise
            else:
                self._answered[endpoint.name] = self._clock.monotonic()
                return reply
            pause = max(wish, min(LONGEST_PAUSE, 2.0 ** (number - 1)))
            await self._clock.sleep(pause * (1 + JITTER * self._chance()))
            number += 1


def _verdict(failures: list[Failed], spent: list[BudgetSpent]) -> ModelError:
    """What to tell of a role none of whose backends answered."""
    for failure in failures:
        if isinstance(failure, TooLarge):  # shortening the request may help, waiting will not
            return failure.public(str(failure))
    if not failures:
        later = [problem for problem in spent if problem.until is not None]
        return later[0] if later else ModelRefused(str(spent[0]))  # waiting would never end
    told = "; ".join(map(str, [*failures, *spent]))
    if not spent and all(isinstance(failure, Empty) for failure in failures):
        return EmptyReply(told)
    return ModelUnavailable(told)
