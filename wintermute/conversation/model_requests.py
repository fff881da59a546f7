"""Requests to the model: the conversation so far, folded and cut until it fits the window.

    Conversation Summary ◀── oldest turns of the branch │ later turns unchanged ─▶ newest message

Folding replaces old turns by a summary, in the model's view only; the turns stay in the loom. The
choice of turns is pure; `Folding` asks for the summary and stores it. `ModelClient` is the
interface that the loop needs of models, so small that a test can implement it (L-088).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from wintermute.config.schema import Context
from wintermute.conversation.context_updates import ContextUpdates
from wintermute.conversation.state import CastState, SummaryListener
from wintermute.conversation.view import (
    ERASED,
    ViewSettings,
    is_shown,
    is_since,
    memories_left_out,
    messages,
    named_parts,
    part_read,
    prompt_of,
    smaller,
    summary_text,
    too_large,
    turn_messages,
    unseen,
    without_extras,
    without_memories,
    without_refused_results,
)
from wintermute.errors import (
    ContentRefused,
    ContextRefused,
    ContextTooLarge,
    ModelError,
    PromptTooLarge,
)
from wintermute.llm.backend import SILENT_LISTENER, Listener
from wintermute.llm.provider_fields import PROVIDER_FIELDS
from wintermute.loom.records import BranchView, Cast, Fold, Turn
from wintermute.messages import Json, Reply, Request, Size
from wintermute.stores import Stores
from wintermute.templates import Template, fill
from wintermute.text import counted, shortened, untagged

log = logging.getLogger(__name__)

ROLE = "compaction"
RESULT_CHARACTERS = 4000  # of one tool result, as the summariser reads it
LEAST = 0.05  # share of the window below which folding does not pay
GAIN = 0.75  # share of the folded tokens that a summary saves
CHUNK = 0.8  # share of the summariser's window for the history
FEWEST_LETTERS = 12
HARMLESS = "Reply with: ok"
REST_SECONDS = 10.0  # time limit for asking with the rest of the view; a person waits
IN_VIEW = "The provider refuses what I have in view, whatever I am asked: {parts}"
FoldCause = Literal["size", "full", "overflow", "asked"]
"""The reason: over `fold_at`, over the window by our count or by the server's, or a person's wish."""


class ModelClient(Protocol):
    """Answers requests. Implemented by `llm.models.Models`."""

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = SILENT_LISTENER,
    ) -> Reply:
        """Return the model's answer. Raises: ModelError."""
        ...

    def window(self, role: str, backend: str | None = None) -> int:
        """Return the most tokens that a request may have, so that an answer still fits."""
        ...

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """Estimate the tokens of a request."""
        ...

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """Return the model sizes that a request must be built for, the first backend's first."""
        ...

    def size_of(self, backend: str) -> Size:
        """Return the size of one backend's model."""
        ...


@dataclass(frozen=True, slots=True)
class FoldedTurn:
    """One turn of the branch, with the messages before it, as text for the summariser.

    `text` has tool results shortened, `whole` has them in full. `messages` counts the messages in
    view.
    """

    turn: Turn
    text: str
    whole: str
    messages: int


def foldable(
    casts: Sequence[Cast], keep: int, hidden: Collection[str] = ()
) -> tuple[FoldedTurn, ...]:
    """Return the turns that may be folded: all but the newest `keep` messages or more (L-041).

    An intent goes with the first turn of its cast, so each cut is before a message of a person or
    of the model, never between calls and their results.
    """
    steps = list(_steps(casts, hidden))
    messages_left = keep - sum(not cast.turns for cast in casts[-1:])
    while steps and messages_left > 0:
        messages_left -= steps.pop().messages
    return tuple(steps)


def _steps(casts: Sequence[Cast], hidden: Collection[str]) -> Iterator[FoldedTurn]:
    texts: list[str] = []
    count, previous = 0, None
    hidden_ids = unseen(casts)
    for cast in without_refused_results(casts):
        if cast.id in hidden_ids:
            yield from (FoldedTurn(turn, "", "", 0) for turn in cast.turns)
            continue
        if cast.event_id is None or cast.event_id != previous:  # otherwise it is shown already
            texts.append(f"[message]\n{cast.intent or ERASED}")
            count += 1
        previous = cast.event_id
        for turn in cast.turns:
            seen = tuple(turn_messages(turn, cast, hidden)) if is_shown(turn) else ()
            text = "\n\n".join([*texts, *map(_line, seen)])
            whole = "\n\n".join([*texts, *(_line(each, None) for each in seen)])
            yield FoldedTurn(turn, untagged(text), whole, count + len(seen))
            texts, count = [], 0


def _line(message: Json, most: int | None = RESULT_CHARACTERS) -> str:
    if message["role"] != "assistant":
        content = message["content"]
        return f"[result]\n{content if most is None else shortened(content, most)}"
    calls = [
        f"[call] {call['function']['name']} {call['function']['arguments'][:most]}"
        for call in message.get("tool_calls", ())
    ]
    parts = [f"[assistant]\n{message['content']}"] if message["content"] else []
    parts += [message[PROVIDER_FIELDS][-1]] if most is None and PROVIDER_FIELDS in message else []
    return "\n".join([*parts, *calls])


def chunk(
    steps: Sequence[FoldedTurn], tokens: int, count: Callable[[str], int]
) -> tuple[FoldedTurn, ...]:
    """Return the first steps that fit into `tokens`: at least one, shortened if necessary (L-043)."""
    fitting: list[FoldedTurn] = []
    for step in steps:
        tokens -= count(step.text)
        if tokens < 0:
            break
        fitting.append(step)
    return tuple(fitting) or (_cut(steps[0], tokens + count(steps[0].text), count),)


def _cut(step: FoldedTurn, tokens: int, count: Callable[[str], int]) -> FoldedTurn:
    text = step.text
    while count(text) > tokens and len(text) > 200:
        text = shortened(text, len(text) // 2)
    return replace(step, text=text)


def useless(reply: Reply, replaced: str) -> str | None:
    """Return the reason why a summary cannot replace the text; None if it can (L-042)."""
    letters = sum(mark.isalnum() for mark in reply.text)
    if letters < min(FEWEST_LETTERS, sum(mark.isalnum() for mark in replaced) // 4 + 1):
        return "it is empty"
    if not reply.is_whole:
        return "it was cut short"
    if len(reply.text) >= len(replaced):
        return "it is not shorter"
    return None


def refused(past: BranchView) -> int:
    """Return how many turns the newest unusable summary was asked for; 0 if there was none."""
    made_at = past.fold.made_at if past.fold else 0
    tried = (each.fold_refused for each in reversed(past.casts) if is_since(each, made_at))
    return next(filter(None, tried), 0)


class Folding:
    """Makes and stores summaries, without the results of the gates in `hidden` (L-055)."""

    def __init__(
        self,
        stores: Stores,
        models: ModelClient,
        template: Template,
        context: Context,
        hidden: Collection[str] = (),
        night: str = "",
    ) -> None:
        """Take the parts. `night`: the id of the night that folds idle conversations, or ""."""
        self._stores = stores
        self._models = models
        self._template = template
        self._context = context
        self._hidden = frozenset(hidden)
        self._night = night

    async def past(self, branch_id: str) -> BranchView:
        """Return the turns and the fold that a branch has in view."""
        return await self._stores.casts.past(branch_id, await self._stores.folds.newest(branch_id))

    def has_old(self, past: BranchView) -> bool:
        """Return True if there is more than the newest messages, which are never folded."""
        return bool(foldable(past.casts, self._context.keep_recent, self._hidden))

    def measured(self, past: BranchView) -> str:
        """Describe the size of the view without the instructions: tokens and messages."""
        view = messages(None, past, ViewSettings(hidden=self._hidden))
        tokens = self._models.tokens("base", Request(view))
        return f"{tokens:,} tokens in {counted(len(view), 'message')}"

    def is_long(self, past: BranchView, share: float) -> bool:
        """Return True if the view has more than this share of the tokens that start a fold."""
        tokens = self._models.tokens(
            "base", Request(messages(None, past, ViewSettings(hidden=self._hidden)))
        )
        return tokens > share * self._context.fold_at * self._models.window("base")

    @property
    def most(self) -> float:
        """The share of the window above which old turns are folded."""
        return self._context.fold_at

    def due(self, past: BranchView, tokens: int, window: int) -> bool:
        """Return True if old turns must be folded before a request of `tokens` is sent (L-038)."""
        return tokens > self._context.fold_at * window or self._has_many_turns(past)

    def _has_many_turns(self, past: BranchView) -> bool:
        most = self._context.trigger_after_turns
        turns = sum(is_shown(turn) for cast in past.casts for turn in cast.turns)
        return most is not None and turns >= most

    async def fold(
        self,
        past: BranchView,
        branch_id: str,
        cast_id: str | None,
        cause: FoldCause,
        excess: int = 0,
        listener: Listener = SILENT_LISTENER,
    ) -> BranchView | None:
        """Return the view after folding old turns; None if nothing can be folded, or it failed.

        The newest messages stay unchanged, unless they alone do not fit (L-041). `excess`: tokens
        over the limit.
        """
        fold, steps = past.fold, self.old(past, cause, excess)
        room, refused = int(self._models.window(ROLE) * CHUNK), ""
        while steps:
            taken, history = self._next(fold, steps, room)
            question = fill(self._template.text(), {"history": history})
            if question == refused:
                break
            try:
                reply = await self._summary(question, cast_id, listener)
            except (
                ContextTooLarge
            ) as refusal:  # by a backend with a smaller window, or than configured
                room, refused = self._count(question) // 2, question
                if refusal.refused_by:
                    room = min(room, int(self._models.window(ROLE, refusal.refused_by) * CHUNK))
                continue
            if reply is None:
                break
            if problem := useless(reply, history):
                await self._refuse(cast_id, problem, len(steps))
                break
            done = steps[: len(taken)]
            stored = await self._store(branch_id, fold, done, history, reply.text.strip())
            if stored is None:
                break
            fold, steps = stored, steps[len(taken) :]
        return None if fold is past.fold else await self._stores.casts.past(branch_id, fold)

    def old(self, past: BranchView, cause: FoldCause, excess: int = 0) -> tuple[FoldedTurn, ...]:
        """Return the turns to fold for this cause; none if folding them would not save enough.

        Otherwise every message would be preceded by a new summary. After an unusable summary, twice
        as many turns are needed, or one more where the request does not fit, unless a person asks
        for it.
        """
        steps, before = self._enough_steps(past, cause, excess), refused(past)
        least = {"asked": 0, "size": 2 * before}.get(cause, before + 1 if before else 0)
        return steps if len(steps) >= least else ()

    def _enough_steps(
        self, past: BranchView, cause: FoldCause, excess: int
    ) -> tuple[FoldedTurn, ...]:
        keep = self._context.keep_recent
        steps = self._savings(past, keep, cause, excess)
        while cause in ("full", "overflow") and not steps and keep > 1:
            keep //= 2
            steps = self._savings(past, keep, cause, excess)
        return steps

    def _savings(
        self, past: BranchView, keep: int, cause: FoldCause, excess: int
    ) -> tuple[FoldedTurn, ...]:
        steps = foldable(past.casts, keep, self._hidden)
        if cause == "asked" or (cause == "size" and self._has_many_turns(past)):
            return steps
        gain = GAIN * self._count("".join(step.whole for step in steps))
        if cause == "overflow":  # only the server knows the excess
            excess = 0
        return steps if gain >= max(excess, LEAST * self._models.window("base")) else ()

    def _next(
        self, fold: Fold | None, steps: Sequence[FoldedTurn], room: int
    ) -> tuple[tuple[FoldedTurn, ...], str]:
        """Return the steps that the summariser takes in one request, and its text."""
        earlier = f"[earlier summary]\n{untagged(fold.summary)}\n\n" if fold else ""
        remaining = room - self._count(self._template.text() + earlier)
        taken = chunk(steps, max(remaining, 500), self._count)
        return taken, earlier + "\n\n".join(step.text for step in taken if step.text)

    async def _store(
        self,
        branch_id: str,
        fold: Fold | None,
        steps: Sequence[FoldedTurn],
        history: str,
        summary: str,
    ) -> Fold | None:
        """Store the new fold; None if one of its messages was forgotten meanwhile."""
        async with self._stores.database.transaction() as tx:
            now = await self.past(branch_id)
            texts = {step.turn.id: step.text for step in _steps(now.casts, self._hidden)}
            if now.fold != fold or any(
                not texts.get(step.turn.id, "").endswith(step.text) for step in steps
            ):
                return None
            turns = await self._stores.folds.add(
                tx,
                branch_id,
                steps[-1].turn.id,
                summary,
                after=fold,
                tokens_before=self._count(history),
                tokens_after=self._count(summary),
                night=self._night,
            )
        log.info("folded branch=%s turns=%d", branch_id, turns)
        return await self._stores.folds.newest(branch_id)

    async def _refuse(self, cast_id: str | None, problem: str, turns: int) -> None:
        values = (cast_id, problem, 2 * turns)
        log.warning("fold refused cast=%s reason=%s next_try_at_turns=%d", *values)
        if cast_id is not None:
            async with self._stores.database.transaction() as tx:
                await self._stores.casts.refuse_fold(tx, cast_id, turns)

    async def _summary(self, prompt: str, cast_id: str | None, listener: Listener) -> Reply | None:
        """Ask the model for the summary; None if it failed. Raises: ContextTooLarge."""
        request = Request(({"role": "user", "content": prompt},))
        try:
            return await self._models.ask(ROLE, request, cast_id=cast_id, listener=listener)
        except ContextTooLarge:
            raise
        except ModelError as error:
            log.warning("fold failed cast=%s reason=%s", cast_id, error)
            return None

    def _count(self, text: str) -> int:
        return self._models.tokens(ROLE, Request(({"role": "user", "content": text},)))


@dataclass(frozen=True, slots=True)
class RequestView:
    """The messages of a request for models of a size.

    `both`: small models may be asked as well, with `small` as their system message if it is given.
    `tokens`: the count, made once because counting is slow.
    """

    messages: tuple[Json, ...]
    size: Size
    small: str | None = None
    both: bool = False
    tokens: int = 0

    @property
    def last(self) -> str:
        """The text of the last message."""
        return str(self.messages[-1]["content"])


class RequestBuilder:
    """Builds requests from the record, and never repeats one that did not fit (L-036).

    Results of the gates named in `hidden` stay in the record but are not sent (L-055).
    """

    def __init__(
        self,
        models: ModelClient,
        folding: Folding,
        telling: ContextUpdates,
        hidden: Collection[str] = (),
    ) -> None:
        self._models = models
        self._folding = folding
        self._telling = telling
        self._hidden = frozenset(hidden)

    async def reply(self, running: CastState) -> Reply:
        """Return the model's answer; if its content filter refuses the view, retry with less.

        Only the parts between the last answer and the message are left out, and only the backend
        that refused is asked again (F-038). Raises: ModelError, ConfigurationError.
        """
        settings, refusal = running.settings, None
        try:
            while True:
                try:
                    return await self._answer_that_fits(running)
                except ContentRefused as error:
                    refusal, by = error, error.refused_by or settings.backend
                    running.resume_time()
                    running.settings = replace(settings, backend=by)
                    if not await self._telling.strip(running):
                        await self._require_rest(running)
                        raise
                except ModelError as error:
                    raise refusal or error from None
        finally:
            running.settings = settings

    async def _require_rest(self, running: CastState) -> None:
        """Ask about all but the newest message. Raises: ContextRefused if that is refused, too."""
        cast, settings, past = running.cast, running.settings, running.past
        rest = (each for each in past.casts if each.key != cast.key)
        harmless = replace(cast, intent=HARMLESS, context_block="", turns=())
        looks = ViewSettings(settings.prompt.layout, self._hidden)
        shown = messages(running.prompt, replace(past, casts=(*rest, harmless)), looks)
        request = self._request(running, RequestView(shown, running.size))
        try:
            async with asyncio.timeout(min(REST_SECONDS, running.seconds_left / 2)):
                await self._models.ask(settings.role, request, backend=settings.backend)
        except ContentRefused:
            raise ContextRefused(IN_VIEW.format(parts=named_parts(shown))) from None
        except (ModelError, TimeoutError) as error:
            log.info("cause of refusal not found cast=%s reason=%s", cast.id, error)

    async def _answer_that_fits(self, running: CastState) -> Reply:
        view = await self._view(running)
        window = self._window(running)
        if self._folding.due(running.past, view.tokens, window):
            view = await self._folded(running, view, "size") or view
        while not self._fits(running, view) and (less := await self._folded(running, view, "full")):
            view = less
        view = self._fitted(running, view)
        while True:
            try:
                return await self._send(running, view)
            except ContextTooLarge as refusal:
                less = await self._shrunk(running, view, refusal.refused_by)
                if less is None:
                    if part := too_large(view.messages):
                        wrong = f" And {refusal.wrong}." if refusal.wrong else ""
                        raise PromptTooLarge(part + wrong) from None
                    raise
                log.info("request shrunk cast=%s messages=%d", running.cast.id, len(less.messages))
                view = less

    async def _send(self, running: CastState, view: RequestView) -> Reply:
        settings, kept = running.settings, _uncuttable_count(running)
        running.prompt = prompt_of(view.messages)
        reply = await self._models.ask(
            settings.role,
            self._request(running, view),
            backend=settings.backend,
            cast_id=running.cast.id,
            listener=running,
        )
        running.part_read = part_read(view.messages, without_extras(running.cast).intent, kept)
        running.left_out = memories_left_out(view.messages)
        if view.small and self._models.size_of(reply.backend) == "small":
            running.prompt = view.small
        return reply

    async def _view(self, running: CastState, *, anew: bool = False) -> RequestView:
        """Build the view with its context block. `anew`: nothing of the block was sent before."""
        systems = await self._systems(running)
        running.size = next(iter(systems))
        window = self._window(running)
        if news := await self._telling.news(running, window, anew=anew):
            running.set_block(news)
        shown = self._shown(running, systems)
        view = self._lightened(running, shown)
        if not news:
            return view
        before = len(shown.last) - len(news)
        kept = await self._telling.store(running, view.last[before:])
        if kept == view.last[before:]:
            return view
        last = {**view.messages[-1], "content": view.last[:before] + kept}
        return self._resized(running, view, (*view.messages[:-1], last))

    async def _systems(self, running: CastState) -> dict[Size, str | None]:
        settings, past = running.settings, running.past
        memory_query = None
        if settings.prompt.layout == "system":
            memory_query = await self._telling.recall(running, self._window(running))
        return {
            size: await settings.prompt.system(
                running.caller.scope,
                settings.toolbox.offered(size),
                memory_query,
                summary_text(past.fold),
                size,
            )
            for size in self._models.sizes(settings.role, settings.backend)
        }

    def _shown(self, running: CastState, systems: Mapping[Size, str | None]) -> RequestView:
        small = systems.get("small")
        looks = ViewSettings(running.settings.prompt.layout, self._hidden)
        if "full" not in systems:
            shown = messages(small, running.past, looks)
            return self._resized(running, RequestView((), "small"), shown)
        shown = messages(systems["full"], running.past, looks)
        return self._resized(
            running, RequestView((), "full", small, both="small" in systems), shown
        )

    def _lightened(self, running: CastState, view: RequestView) -> RequestView:
        """Leave out memories while they make the view too large (F-023)."""
        while not self._fits(running, view) and (
            less := without_memories(view.messages, share=0.5)
        ):
            view = self._resized(running, view, less)
        return view

    async def _folded(
        self, running: CastState, view: RequestView, cause: FoldCause
    ) -> RequestView | None:
        """Return the view after folding; None if that changes nothing or saves too little."""
        excess = view.tokens - int(self._folding.most * self._window(running))
        if running.folds_in_vain or not self._folding.old(running.past, cause, excess):
            return None
        cast, past = running.cast, None
        try:
            async with asyncio.timeout(running.seconds_left / 2):  # the rest is for the answer
                past = await self._folding.fold(
                    running.past, cast.branch_id, cast.id, cause, excess, SummaryListener(running)
                )
        except TimeoutError:
            running.resume_time()
            log.warning("fold took too long cast=%s", cast.id)
        running.set_folded_view(past)
        return None if past is None else await self._view(running, anew=True)

    async def _shrunk(
        self, running: CastState, view: RequestView, refused_by: str
    ) -> RequestView | None:
        """Return a strictly smaller view than one that did not fit; None if nothing can shrink.

        `refused_by`: the backend that refused, perhaps not the first. The view is cut until it fits
        that one by our count: otherwise the unreachable backends before it are asked at each
        attempt.
        """
        less = await self._folded(running, view, "overflow") or self._smaller(running, view)
        most = self._resized(
            running, view, view.messages
        ).tokens  # counted again: the summary's usage may have corrected the estimate
        while less is not None and less.tokens >= most:
            less = self._smaller(running, less)
        while (
            less is not None
            and not self._fits_into(running, less, refused_by)
            and (smaller_still := self._smaller(running, less))
        ):
            less = smaller_still
        return less

    def _fits_into(self, running: CastState, view: RequestView, backend: str) -> bool:
        role, request = running.settings.role, self._request(running, view)
        return self._models.tokens(role, request, backend) <= self._models.window(role, backend)

    def _smaller(self, running: CastState, view: RequestView) -> RequestView | None:
        less = smaller(view.messages, _uncuttable_count(running))
        return None if less is None else self._resized(running, view, less)

    def _fitted(self, running: CastState, view: RequestView) -> RequestView:
        """Return the view made smaller until it fits, or as small as possible."""
        while not self._fits(running, view) and (less := self._smaller(running, view)):
            view = less
        return view

    def _request(self, running: CastState, view: RequestView) -> Request:
        must_call = bool(running.cast.wards["require_done"])
        tools = partial(running.settings.toolbox.definitions, done=must_call)
        request = Request(view.messages, tools(view.size), must_call, tainted=running.cast.taint)
        if view.size == "small" or not view.both:
            return request
        shown = view.messages
        if view.small is not None:
            shown = ({**shown[0], "content": view.small}, *shown[1:])
        small = replace(request, messages=shown, tools=tools("small"))
        return replace(request, small=small)

    def _resized(
        self, running: CastState, view: RequestView, shown: tuple[Json, ...]
    ) -> RequestView:
        """Return the view with these messages, counted again."""
        settings, changed = running.settings, replace(view, messages=shown)
        request = self._request(running, changed)
        tokens = self._models.tokens(settings.role, request, settings.backend)
        return replace(changed, tokens=tokens)

    def _window(self, running: CastState) -> int:
        return self._models.window(running.settings.role, running.settings.backend)

    def _fits(self, running: CastState, view: RequestView) -> bool:
        return view.tokens <= self._window(running)


def _uncuttable_count(running: CastState) -> int:
    """Count the messages from the current intent on: they may be cut, but not left out."""
    mine = tuple(each for each in running.past.casts if each.key == running.cast.key)
    return len(messages(None, BranchView(None, mine), ViewSettings(running.settings.prompt.layout)))
