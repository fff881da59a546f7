"""Requests to the models of a role: retries on one backend, then the next one.

The cost of each attempt is reserved before it, and the actual cost is recorded after it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wintermute.clock import Clock
from wintermute.config.schema import Embeddings, Llm
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Transaction
from wintermute.errors import (
    BudgetSpent,
    ConfigurationError,
    ContentRefused,
    EmptyReply,
    ModelError,
    ModelRefused,
    ModelSilent,
    ModelUnavailable,
    QuestionWithdrawn,
)
from wintermute.errors import ContextTooLarge as RequestTooLarge
from wintermute.ids import NewId
from wintermute.llm import tokens
from wintermute.llm.backend import SILENT_LISTENER, Endpoint, Listener, SilentListener, Wait
from wintermute.llm.calls import (
    NO_ROOM,
    WITHDRAWN,
    Amount,
    Attempt,
    Budget,
    ModelCalls,
    QuestionSources,
    Reservation,
    amount,
)
from wintermute.llm.context_windows import has_one_slot, room, too_small
from wintermute.llm.embedding_backend import BackendEmbedder, RecordedEmbeddings
from wintermute.llm.failures import (
    LONGEST_RETRY_AFTER,
    NOTHING,
    Disallowed,
    Empty,
    Failed,
    Outage,
    QuotaSpent,
    Refused,
    TooLarge,
    Unreachable,
    pause_before,
)
from wintermute.llm.provider_fields import PROVIDER_FIELDS
from wintermute.llm.text_tool_calls import ModelQuirk
from wintermute.llm.tokens import (
    BYTES_PER_TOKEN,
    Counted,
    TokenCounts,
    answer_size,
    plausible_usage,
)
from wintermute.llm.wire import Answer
from wintermute.messages import Reply, Request, Size, Usage

log = logging.getLogger(__name__)

PROBE = Request(({"role": "user", "content": "Reply with: ok"},))
PROBE_SECONDS = 10.0
ANSWER_SECONDS = 1.0
"""Seconds that a probe waits for the rest of an answer that has begun."""
ONCE_EMPTY = "[Your answer was empty. {wish}]"
OFTEN_EMPTY = "[Your last {n} answers were empty. {wish}]"
"""The last line of a request after empty answers: a different line each time."""
ANSWER = "Answer now."
ANSWER_OR_CALL = "Answer now, or call a tool if one is needed."
CALL = "Answer with a call now."
"""The wish in that line: `ANSWER` without tools, `ANSWER_OR_CALL` with tools, `CALL` where only a call counts."""
LONGEST_TRY = 8.0
"""Seconds of failures after which the next backend of the role is asked.

Fast failures have had their retries by then. Slow ones would hold the message until others go
first, and each of these would start at the failing backend again (F-060).
"""
FRAME = frozenset({"role", "type", PROVIDER_FIELDS})
"""Words of the protocol that stay unchanged even if one of them is a password."""
EMPTY = "empty"
"""The outcome of an attempt whose answer had neither text nor calls."""
PERHAPS_BILLED = frozenset({"timeout", "cancelled", EMPTY})
"""Outcomes without an answer for which the server may charge the prompt."""


UNTRIED = Wait("")


@dataclass(frozen=True, slots=True)
class Question:
    """A request with its context, for all its attempts."""

    role: str
    request: Request
    tokens: int
    """Our estimate of the request's tokens."""
    cast_id: str | None
    began: float
    listener: Listener
    wait: Wait = UNTRIED
    """The number of the attempt, and the error of the one before."""
    sources: QuestionSources | None = None
    """The sources of a background request; None: it is sent even if they change."""


class _Trial:
    """One attempt in progress."""

    def __init__(self, endpoint: Endpoint, question: Question, number: int, began: float) -> None:
        self.endpoint = endpoint
        self.question = question
        self.number = number
        self.began = began
        self.sent = False
        self.outcome = "cancelled"
        self.detail = ""
        self.reply: Reply | None = None
        self.counted: Counted | None = None
        self._usage = NOTHING
        self._heard = 0

    def asked(self) -> None:
        """Pass on the begin of an attempt."""
        self.question.listener.asked()

    def awaits(self, wait: Wait) -> None:
        """Pass on the wait, with the number of the attempt, which the backend does not know."""
        known = self.question.wait
        numbered = replace(
            wait, attempt=self.number, of=max(known.of, self.number), problem=known.problem
        )
        self.question.listener.awaits(numbered)

    def begun(self) -> None:
        """Pass on the first token."""
        self.question.listener.begun()

    def said(self, piece: str) -> None:
        """Pass on the text, and count it: text before a failure is billed."""
        self._heard += len(piece.encode("utf-8", "replace"))
        self.question.listener.said(piece)

    def was_reasoning(self) -> None:
        """Pass on that the text was reasoning; it is billed all the same."""
        self.question.listener.was_reasoning()

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Do nothing: `Models` reports failures."""

    def ended_by(self, problem: Failed | BudgetSpent) -> None:
        self.detail = str(problem)
        if isinstance(problem, Failed):
            self.outcome, self._usage = problem.outcome, problem.usage
        else:
            self.outcome = NO_ROOM

    def withdrawn(self) -> None:
        self.outcome = WITHDRAWN

    def answered(self, answer: Answer, ms: int) -> Reply:
        endpoint, estimated = self.endpoint, self.question.tokens
        ours, window = endpoint.measure.corrected(estimated), endpoint.settings.context_tokens
        self._usage = plausible_usage(answer.usage, Usage(ours, answer_size(answer)), window)
        if answer.usage and self._usage.tokens_in == answer.usage.tokens_in:
            endpoint.measure.learn(estimated, answer.usage)
            if endpoint.measure.is_sure:
                self.counted = endpoint.measure.counted
        self.outcome = "ok"
        self.reply = Reply(
            text=answer.text,
            calls=answer.calls,
            finish_reason=answer.finish_reason,
            usage=self._usage,
            backend=endpoint.name,
            model=answer.model or endpoint.settings.model,
            ms=ms,
            sender=endpoint.sender,
            kept=answer.kept,
        )
        return self.reply

    @property
    def usage(self) -> Usage:
        """The reported usage, or an estimate: a failure costs the work done by then."""
        perhaps = self.outcome in PERHAPS_BILLED or self._heard > 0
        if self._usage == NOTHING and self.sent and perhaps:
            heard = -(-self._heard // BYTES_PER_TOKEN)
            return Usage(self.endpoint.measure.corrected(self.question.tokens), heard)
        return self._usage


class Attempts:
    """Makes attempts within the budget, and records them."""

    def __init__(
        self, calls: ModelCalls, budget: Budget, counts: TokenCounts, clock: Clock
    ) -> None:
        self._calls = calls
        self._budget = budget
        self._counts = counts
        self._clock = clock

    async def make(self, endpoint: Endpoint, question: Question, number: int) -> Reply:
        """Ask once.

        Raises: Failed; BudgetSpent and QuestionWithdrawn before anything is sent.
        """
        trial = _Trial(endpoint, question, number, self._clock.monotonic())
        planned = self._budget.planned(question.role, endpoint.name, _worst(endpoint, question))
        try:
            await self._budget.reserve(planned)
            if question.sources is not None:
                await self._calls.require(question.sources)
            trial.sent = True
            answer = await endpoint.ask(question.request, listener=trial)
            return trial.answered(answer, self._ms_since(question.began))
        except QuestionWithdrawn:
            trial.withdrawn()
            raise
        except (Failed, BudgetSpent) as problem:
            trial.ended_by(problem)
            values = (endpoint.name, trial.outcome, number, question.cast_id)
            log.warning("model call failed backend=%s outcome=%s attempt=%d cast=%s", *values)
            raise
        finally:
            await self._record(trial, planned)

    async def _record(self, trial: _Trial, planned: Reservation) -> None:
        question, endpoint, usage = trial.question, trial.endpoint, trial.usage
        spent = amount(usage, endpoint.settings.price)
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
            sources=question.sources,
        )

        async def settle(tx: Transaction, call_id: str) -> None:
            await self._budget.settle(planned, spent, tx, call_id)
            if trial.counted is not None:
                known = endpoint.settings
                await self._counts.found(tx, known.model, known.base_url, trial.counted)

        await self._calls.record(attempt, settle)

    def _ms_since(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)


def _worst(endpoint: Endpoint, question: Question) -> Amount:
    """Return the highest cost: the whole prompt uncached, and the longest answer."""
    settings = endpoint.settings
    worst = Usage(endpoint.measure.worst(question.tokens), settings.longest_answer)
    return amount(worst, settings.price)


class Models:
    """All configured models, by role."""

    def __init__(
        self,
        llm: Llm,
        database: Database,
        clock: Clock,
        new_id: NewId,
        timezone: str,
        redact: Redaction = UNHIDDEN,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._llm = llm
        self._calls = ModelCalls(database, clock, new_id, llm.record)
        self._budget = Budget(database, clock, new_id, llm.budget, timezone)
        self._counts = TokenCounts(database)
        self._attempts = Attempts(self._calls, self._budget, self._counts, clock)
        self._clock = clock
        self._redact = redact
        self._chance = chance
        self.standings: dict[str, tuple[str, str]] = {}
        """The reason why a backend refuses, in a word and in full; or "", and its changes to requests."""
        self.news = asyncio.Event()  # set when `standings` change
        self._answered: dict[str, float] = {}  # time of the last answer, by backend
        self._waited_for = 0  # requests that a person waits for
        self._no_chat_waits = asyncio.Event()
        self._no_chat_waits.set()
        self._background = asyncio.Lock()
        habit = partial(ModelQuirk, database, clock)
        self._endpoints = {
            name: Endpoint(
                name,
                settings,
                new_id,
                redact,
                habit("text_tool_calls", settings.model, settings.base_url),
                habit("thinks_aloud", settings.model, settings.base_url),
            )
            for name, settings in llm.backends.items()
        }

    async def load_counts(self) -> None:
        """Load the stored token counts of the servers."""
        for each in self._endpoints.values():
            known = await self._counts.known(each.settings.model, each.settings.base_url)
            each.measure.resume(known)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the backends."""
        return tuple(self._endpoints)

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = SILENT_LISTENER,
    ) -> Reply:
        """Return a usable answer from `backend`, or from the first backend of the role that gives one.

        No secret goes out with the request or comes back (L-089).

        Raises: ModelRefused, ContextTooLarge, EmptyReply, ModelUnavailable, BudgetSpent.
        """
        self._waited_for += 1
        self._no_chat_waits.clear()
        try:
            return await self._ask(role, request, backend, cast_id, listener)
        finally:
            self._waited_for -= 1
            if not self._waited_for:
                self._no_chat_waits.set()

    async def ask_in_background(
        self,
        role: str,
        request: Request,
        sources: QuestionSources | None = None,
        *,
        backend: str | None = None,
    ) -> Reply:
        """Ask for background work: one request at a time, and none while a chat waits.

        A chat waits for at most one of them (M-064). Nothing is sent, the first time or again, once
        its `sources` have changed (F-027).

        Raises: QuestionWithdrawn, and the errors of `ask`.
        """
        async with self._background:
            await self._no_chat_waits.wait()
            return await self._ask(role, request, backend, None, SILENT_LISTENER, sources)

    def cost(self, reply: Reply) -> Amount:
        """Return the cost of an answer."""
        return amount(reply.usage, self._endpoints[reply.backend].settings.price)

    async def refused(self, role: str, reason: str) -> None:
        """Count an unusable answer; the reason has none of its words."""
        await self._calls.refused(role, reason)

    async def _ask(
        self,
        role: str,
        request: Request,
        backend: str | None,
        cast_id: str | None,
        listener: Listener,
        sources: QuestionSources | None = None,
    ) -> Reply:
        hidden, began = self._redacted(request), self._clock.monotonic()
        failures: list[Failed] = []
        refusals: list[RequestTooLarge] = []
        spent: list[BudgetSpent] = []
        refused: dict[str, tuple[str, str]] = {}
        too_large = 0
        endpoints = self._chain(role, backend)
        for n, endpoint in enumerate(endpoints, 1):
            if endpoint.settings.context_tokens <= too_large:
                continue
            sized = replace(hidden.of(endpoint.settings.size), small=None)
            size = tokens.size(endpoint.with_own_fields(sized))
            question = Question(role, sized, size, cast_id, began, listener, sources=sources)
            try:
                reply = await self._ask_with_retries(endpoint, question, endpoints[n:])
            except TooLarge as failure:
                too_large = endpoint.settings.context_tokens
                failures.append(failure)
                refusals.append(_too_large(endpoint, failure))
            except Disallowed as failure:  # no other backend may see it either (F-038)
                self.standings |= refused
                self.news.set()
                refusal = ContentRefused(str(failure))
                refusal.refused_by = endpoint.name
                raise refusal from None
            except Failed as failure:
                failures.append(failure)
                if isinstance(failure, Refused):
                    refused[endpoint.name] = (failure.outcome, str(failure))
            except BudgetSpent as problem:  # another backend may cost less
                spent.append(problem)
            else:
                self.standings |= refused | {endpoint.name: ("", endpoint.request_changes)}
                self.news.set()
                return reply
        error = refusals[0] if refusals else _error_of(failures, spent)
        if not isinstance(error, ModelRefused):  # its text names all refusals
            self.standings |= refused
            self.news.set()
        raise error

    async def can_answer(self, role: str, since: float, backend: str | None = None) -> bool:
        """Return True if a backend of the role has answered since then, or does now.

        `since`: a time of the monotonic clock. `backend`: ask only this one. If none has answered,
        all get a short question, within 10 seconds (F-021, F-060).
        """
        endpoints = self._chain(role, backend)
        if any(self._answered.get(endpoint.name, since) > since for endpoint in endpoints):
            return True
        return any(await asyncio.gather(*map(self._probed, endpoints)))

    async def _probed(self, endpoint: Endpoint) -> bool:
        limit, now = _Limit(), self._clock.monotonic()
        question = Question("probe", PROBE, tokens.size(PROBE), None, now, limit)
        try:
            async with limit.scope:
                await self._attempts.make(endpoint, question, 1)
        except Empty:
            pass  # the model's reasoning may have used up its tokens
        except (Failed, BudgetSpent):
            return False
        except TimeoutError:
            if not limit.has_begun:
                return False
        self._answered[endpoint.name] = self._clock.monotonic()
        return True

    async def accepts_connections(self, role: str, backend: str | None = None) -> bool:
        """Return True if a backend of the role accepts connections, without a request (F-036)."""
        return await _listens(self._chain(role, backend))

    def window(self, role: str, backend: str | None = None) -> int:
        """Return the most tokens of a request, so that an answer of the first backend still fits."""
        return room(self._chain(role, backend)[0].settings)

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """Estimate the tokens of a request for the first backend."""
        first = self._chain(role, backend)[0]
        whole = first.with_own_fields(request.of(first.settings.size))
        return first.measure.corrected(tokens.size(whole))

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """Return the model sizes that a request must be built for, the first backend's first."""
        return tuple(dict.fromkeys(each.settings.size for each in self._chain(role, backend)))

    def size_of(self, backend: str) -> Size:
        """Return the size of one backend's model."""
        return self._endpoints[backend].settings.size

    async def evicts_chat_cache(self, role: str) -> bool:
        """Return True if a request of this role evicts a chat from its server's prompt cache.

        This is so if both use the same server and it has a single slot.
        """
        mine, chat = (
            self._chain(role, None)[0].settings,
            self._chain("base", None)[0].settings,
        )
        if mine.base_url != chat.base_url or mine.extra.get("id_slot") != chat.extra.get("id_slot"):
            return False
        return await has_one_slot(mine)

    def embedder(self, settings: Embeddings) -> BackendEmbedder:
        """Return the embedder for the configured backend; `aclose` closes it, too.

        Raises: ConfigurationError if no backend is named (M-021).
        """
        endpoint = self._endpoints.get(settings.backend or "")
        if endpoint is None:
            raise ConfigurationError(
                "memory.embeddings.backend: name the backend of llm.backends that computes"
                f" embeddings: {', '.join(self._endpoints) or 'there is none'}"
            )
        recorded = RecordedEmbeddings(endpoint, self._calls, self._budget, self._clock)
        return BackendEmbedder(
            recorded, settings, self._llm.max_retries, self._redact, self._clock, self._chance
        )

    async def aclose(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()

    def _redacted(self, request: Request) -> Request:
        messages, tools = self._redact.tree([request.messages, request.tools], FRAME)
        small = self._redacted(request.small) if request.small else None
        return replace(request, messages=tuple(messages), tools=tuple(tools), small=small)

    def _chain(self, role: str, backend: str | None) -> list[Endpoint]:
        if backend is not None and backend not in self._endpoints:
            known = ", ".join(self._endpoints) or "none"
            raise ModelRefused(f"there is no model {backend}: choose one of llm.backends: {known}")
        if backend is not None:
            return [self._endpoints[backend]]
        names: tuple[str, ...] = getattr(self._llm.roles, role) or self._llm.roles.base
        if not names:
            raise ModelRefused(
                f"no model for {role}: name a backend of llm.backends in llm.roles.base"
            )
        return [self._endpoints[name] for name in names]

    async def _ask_with_retries(
        self, endpoint: Endpoint, question: Question, others: Sequence[Endpoint]
    ) -> Reply:
        """Ask one backend until it answers or its retries are used up (L-033, L-034).

        `others`: the backends to ask next; if none accepts connections, the listener is told
        (F-036).
        """
        number, of = 1, self._llm.max_retries + 1
        since = self._clock.monotonic()
        outcomes: list[str] = []
        plain = question = replace(question, wait=Wait(endpoint.name, 1, of))
        while True:
            try:
                reply = await self._attempts.make(endpoint, question, number)
            except Outage as failure:
                unreachable = isinstance(failure, Unreachable) and not await _listens(others)
                question.listener.failed(str(failure), unreachable=unreachable)
                wish = failure.retry_after or 0.0
                is_slow = bool(others) and self._clock.monotonic() - since >= LONGEST_TRY
                if number > self._llm.max_retries or wish > LONGEST_RETRY_AFTER or is_slow:
                    if isinstance(failure, QuotaSpent) and failure.retry_after is None:
                        raise Refused("quota", str(failure)) from None
                    raise
                outcomes.append(failure.outcome)
                request = with_empty_answer_hint(plain.request, outcomes)
                wait = Wait(endpoint.name, number + 1, of, str(failure))
                question = replace(plain, request=request, wait=wait)
                question.listener.awaits(wait)
            else:
                self._answered[endpoint.name] = self._clock.monotonic()
                return reply
            await self._clock.sleep(pause_before(number, wish, self._chance()))
            number += 1


def with_empty_answer_hint(request: Request, outcomes: Sequence[str]) -> Request:
    """Return the request after failed attempts: with one more line after an empty answer.

    The line is for that attempt only. Without it, a small model repeats its empty answer.
    """
    *before, last = request.messages
    if outcomes[-1:] != [EMPTY] or not isinstance(last.get("content"), str):
        return request
    n = outcomes.count(EMPTY)
    wish = CALL if request.must_call else ANSWER_OR_CALL if request.tools else ANSWER
    line = (ONCE_EMPTY if n == 1 else OFTEN_EMPTY).format(n=n, wish=wish)
    return replace(request, messages=(*before, {**last, "content": f"{last['content']}\n\n{line}"}))


async def _listens(endpoints: Sequence[Endpoint]) -> bool:
    for endpoint in endpoints:
        if await endpoint.accepts_connections():
            return True
    return False


class _Limit(SilentListener):
    """The time limit of a probe: once an answer begins, it is short or endless."""

    def __init__(self) -> None:
        self.scope = asyncio.timeout(PROBE_SECONDS)
        self.has_begun = False

    def begun(self) -> None:
        if not (self.has_begun or self.scope.expired()):
            self.has_begun = True
            self.scope.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)


def _too_large(endpoint: Endpoint, failure: TooLarge) -> RequestTooLarge:
    """Return the error with the wrong number, or with advice: shortening may help, waiting will not."""
    settings, window = endpoint.settings, failure.window
    advice = too_small(endpoint.name, settings, window)
    is_wrong = window is not None and window < settings.context_tokens
    return RequestTooLarge(f"{failure}; {advice}", advice if is_wrong else None, endpoint.name)


def _error_of(failures: list[Failed], spent: list[BudgetSpent]) -> ModelError:
    """Return the error for a role with no backend that answered."""
    reasons = "; ".join(map(str, [*failures, *spent]))
    if all(isinstance(failure, Refused) for failure in failures):  # waiting would not help
        later = [problem.until for problem in spent if problem.until is not None]
        return BudgetSpent(reasons, min(later)) if later else ModelRefused(reasons)
    if not spent and all(isinstance(failure, Empty) for failure in failures):
        return EmptyReply(reasons)
    return ModelSilent(reasons) if failures[-1].outcome == "timeout" else ModelUnavailable(reasons)
