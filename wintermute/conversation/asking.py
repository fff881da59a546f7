"""One question to the model: what a cast has in view, folded and cut until it fits.

    Conversation Summary ◀── first turns of the path │ the rest as it is ─▶ the newest message

Folding: what was said long ago gives way to a summary of it, in the model's view only. What to fold
is decided without waiting; `Folding` asks for the summary and stores it. `ModelClient` is what the
loop needs of models: so little that a record can stand in for them (L-088).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from wintermute.config.schema import Context
from wintermute.conversation.state import CastState, Summing
from wintermute.conversation.telling import Telling
from wintermute.conversation.view import (
    ERASED,
    Looks,
    answered,
    bared,
    is_shown,
    is_since,
    marked,
    memories_left_out,
    messages,
    named,
    part_read,
    prompt_of,
    smaller,
    too_large,
    turn_messages,
    unseen,
    without_memories,
)
from wintermute.errors import (
    ContentRefused,
    ContextRefused,
    ContextTooLarge,
    ModelError,
    PromptTooLarge,
)
from wintermute.llm.backend import UNHEARD, Listener
from wintermute.llm.kept import KEPT
from wintermute.loom.records import BranchView, Cast, Fold, Turn
from wintermute.messages import Json, Reply, Request, Size
from wintermute.stores import Stores
from wintermute.templates import Template, fill
from wintermute.text import counted, shortened, untagged


class ModelClient(Protocol):
    """Whoever answers requests. See `llm.models.Models`."""

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = UNHEARD,
    ) -> Reply:
        """An answer. Raises: ModelError."""
        ...

    def window(self, role: str, backend: str | None = None) -> int:
        """Tokens a request may have, so that an answer still fits."""
        ...

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """How many a request has."""
        ...

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """For which sizes of models a request is needed, that of the first backend first."""
        ...

    def size_of(self, backend: str) -> Size:
        """That of one backend."""
        ...


log = logging.getLogger(__name__)

ROLE = "compaction"
RESULT_CHARACTERS = 4000  # of one tool result, as the summariser reads it
LEAST = 0.05  # share of the window below which folding does not pay
GAIN = 0.75  # share of what is folded that a summary saves
CHUNK = 0.8  # share of the summariser's window for what it reads
FEWEST_LETTERS = 12
HARMLESS = "Reply with: ok"
REST_SECONDS = 10.0  # until it is known whether what else is in view is refused; a person waits
IN_VIEW = "The provider refuses what I have in view, whatever I am asked: {parts}"
FoldCause = Literal["size", "full", "overflow", "asked"]
"""It is much, more than fits by our own count, or by the server's; or somebody wants it."""


@dataclass(frozen=True, slots=True)
class FoldedTurn:
    """One turn of the path with what stands before it, as text, and as messages in view.

    `whole`: the text with all that is in view of results, of which the summariser reads less.
    """

    turn: Turn
    text: str
    whole: str
    messages: int


def foldable(
    casts: Sequence[Cast], keep: int, hidden: Collection[str] = ()
) -> tuple[FoldedTurn, ...]:
    """The turns that may be folded: all but the last that make up at least `keep` messages (L-041).

    An intent goes with the first turn of its cast, so each cut is before a message of a person or
    of the model, never between calls and their results.
    """
    steps = list(_steps(casts, hidden))
    left = keep - sum(not cast.turns for cast in casts[-1:])
    while steps and left > 0:
        left -= steps.pop().messages
    return tuple(steps)


def _steps(casts: Sequence[Cast], hidden: Collection[str]) -> Iterator[FoldedTurn]:
    said: list[str] = []
    count, previous = 0, None
    gone = unseen(casts)
    for cast in answered(casts):
        if cast.id in gone:
            yield from (FoldedTurn(turn, "", "", 0) for turn in cast.turns)
            continue
        if cast.event_id is None or cast.event_id != previous:  # else it is shown already
            said.append(f"[message]\n{cast.intent or ERASED}")
            count += 1
        previous = cast.event_id
        for turn in cast.turns:
            seen = tuple(turn_messages(turn, cast, hidden)) if is_shown(turn) else ()
            text = "\n\n".join([*said, *map(_line, seen)])
            whole = "\n\n".join([*said, *(_line(each, None) for each in seen)])
            yield FoldedTurn(turn, untagged(text), whole, count + len(seen))
            said, count = [], 0


def _line(message: Json, most: int | None = RESULT_CHARACTERS) -> str:
    if message["role"] != "assistant":
        told = message["content"]
        return f"[result]\n{told if most is None else shortened(told, most)}"
    calls = [
        f"[call] {call['function']['name']} {call['function']['arguments'][:most]}"
        for call in message.get("tool_calls", ())
    ]
    said = [f"[assistant]\n{message['content']}"] if message["content"] else []
    said += [message[KEPT][-1]] if most is None and KEPT in message else []
    return "\n".join([*said, *calls])


def chunk(
    steps: Sequence[FoldedTurn], tokens: int, count: Callable[[str], int]
) -> tuple[FoldedTurn, ...]:
    """The first steps that fit into so many tokens; one at least, shortened if it must be (L-043)."""
    taken: list[FoldedTurn] = []
    for step in steps:
        tokens -= count(step.text)
        if tokens < 0:
            break
        taken.append(step)
    return tuple(taken) or (_cut(steps[0], tokens + count(steps[0].text), count),)


def _cut(step: FoldedTurn, tokens: int, count: Callable[[str], int]) -> FoldedTurn:
    text = step.text
    while count(text) > tokens and len(text) > 200:
        text = shortened(text, len(text) // 2)
    return replace(step, text=text)


def useless(reply: Reply, replaced: str) -> str | None:
    """Why a summary cannot stand for what it would replace; None: it can (L-042)."""
    letters = sum(mark.isalnum() for mark in reply.text)
    if letters < min(FEWEST_LETTERS, sum(mark.isalnum() for mark in replaced) // 4 + 1):
        return "it is empty"
    if not reply.is_whole:
        return "it was cut short"
    if len(reply.text) >= len(replaced):
        return "it is not shorter"
    return None


def refused(past: BranchView) -> int:
    """Of how many turns in view a summary was asked for last that was of no use; 0: of none."""
    made_at = past.fold.made_at if past.fold else 0
    tried = (each.fold_refused for each in reversed(past.casts) if is_since(each, made_at))
    return next(filter(None, tried), 0)


class Folding:
    """Makes summaries and keeps them. Results of the gates in `hidden` are in none (L-055)."""

    def __init__(
        self,
        stores: Stores,
        models: ModelClient,
        template: Template,
        context: Context,
        hidden: Collection[str] = (),
        night: str = "",
    ) -> None:
        """`night`: the one that sums up what nobody speaks in."""
        self._stores = stores
        self._models = models
        self._template = template
        self._context = context
        self._hidden = frozenset(hidden)
        self._night = night

    async def past(self, branch_id: str) -> BranchView:
        """What a branch has in view."""
        return await self._stores.casts.past(branch_id, await self._stores.folds.newest(branch_id))

    def has_old(self, past: BranchView) -> bool:
        """Whether there is more than the newest messages, which always stay."""
        return bool(foldable(past.casts, self._context.keep_recent, self._hidden))

    def measured(self, past: BranchView) -> str:
        """How much is in view, without the instructions: tokens and messages."""
        view = messages(None, past, Looks(hidden=self._hidden))
        tokens = self._models.tokens("base", Request(view))
        return f"{tokens:,} tokens in {counted(len(view), 'message')}"

    def is_long(self, past: BranchView, share: float) -> bool:
        """Whether more than this share of what is folded at is in view."""
        tokens = self._models.tokens(
            "base", Request(messages(None, past, Looks(hidden=self._hidden)))
        )
        return tokens > share * self._context.fold_at * self._models.window("base")

    @property
    def most(self) -> float:
        """The share of the window above which is folded."""
        return self._context.fold_at

    def due(self, past: BranchView, tokens: int, window: int) -> bool:
        """Whether a request of so many tokens is to be folded first (L-038)."""
        return tokens > self._context.fold_at * window or self._many(past)

    def _many(self, past: BranchView) -> bool:
        most = self._context.trigger_after_turns
        shown = sum(is_shown(turn) for cast in past.casts for turn in cast.turns)
        return most is not None and shown >= most

    async def fold(
        self,
        past: BranchView,
        branch_id: str,
        cast_id: str | None,
        cause: FoldCause,
        excess: int = 0,
        listener: Listener = UNHEARD,
    ) -> BranchView | None:
        """The view after folding what is old; None when nothing can be folded, or it failed.

        The newest messages stay as they are, unless they alone do not fit (L-041). `excess`: so many
        tokens too many are in view.
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
            except ContextTooLarge as refusal:  # by one with a smaller window, or than we were told
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
        """The turns that would be folded for this cause; none where that would not be enough.

        Else each message would be preceded by a summary of the one before it. Where a summary was
        of no use, there must be as much again to sum up, or something new where it does not fit,
        unless somebody asks for it.
        """
        steps, before = self._worth(past, cause, excess), refused(past)
        least = {"asked": 0, "size": 2 * before}.get(cause, before + 1 if before else 0)
        return steps if len(steps) >= least else ()

    def _worth(self, past: BranchView, cause: FoldCause, excess: int) -> tuple[FoldedTurn, ...]:
        keep = self._context.keep_recent
        steps = self._paying(past, keep, cause, excess)
        while cause in ("full", "overflow") and not steps and keep > 1:
            keep //= 2
            steps = self._paying(past, keep, cause, excess)
        return steps

    def _paying(
        self, past: BranchView, keep: int, cause: FoldCause, excess: int
    ) -> tuple[FoldedTurn, ...]:
        steps = foldable(past.casts, keep, self._hidden)
        if cause == "asked" or (cause == "size" and self._many(past)):
            return steps
        gain = GAIN * self._count("".join(step.whole for step in steps))
        if cause == "overflow":  # by how much it is too large, only the server knows
            excess = 0
        return steps if gain >= max(excess, LEAST * self._models.window("base")) else ()

    def _next(
        self, fold: Fold | None, steps: Sequence[FoldedTurn], room: int
    ) -> tuple[tuple[FoldedTurn, ...], str]:
        """As many steps as the summariser takes at once, and what it is to read."""
        earlier = f"[earlier summary]\n{untagged(fold.summary)}\n\n" if fold else ""
        left = room - self._count(self._template.text() + earlier)
        taken = chunk(steps, max(left, 500), self._count)
        return taken, earlier + "\n\n".join(step.text for step in taken if step.text)

    async def _store(
        self,
        branch_id: str,
        fold: Fold | None,
        steps: Sequence[FoldedTurn],
        history: str,
        summary: str,
    ) -> Fold | None:
        """The new fold; None when what it sums up was forgotten meanwhile."""
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
        told = (cast_id, problem, 2 * turns)
        log.warning("fold refused cast=%s reason=%s next_try_at_turns=%d", *told)
        if cast_id is not None:
            async with self._stores.database.transaction() as tx:
                await self._stores.casts.refuse_fold(tx, cast_id, turns)

    async def _summary(self, prompt: str, cast_id: str | None, listener: Listener) -> Reply | None:
        """What the model sums up; None: nothing. Raises: ContextTooLarge."""
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
    """What a request shows to models of a size.

    `both`: small ones may be asked as well; `small` is the system message for them, if there is one.
    `tokens`: how many it has, counted once, for that takes longer than all else here.
    """

    messages: tuple[Json, ...]
    size: Size
    small: str | None = None
    both: bool = False
    tokens: int = 0

    @property
    def last(self) -> str:
        """The text that stands at its end."""
        return str(self.messages[-1]["content"])


class Asking:
    """Builds requests from the record, and never asks with one that did not fit before (L-036).

    Results of the gates named in `hidden` stay in the record (L-055).
    """

    def __init__(
        self,
        models: ModelClient,
        folding: Folding,
        telling: Telling,
        hidden: Collection[str] = (),
    ) -> None:
        self._models = models
        self._folding = folding
        self._telling = telling
        self._hidden = frozenset(hidden)

    async def reply(self, running: CastState) -> Reply:
        """The model's answer to what is in view; where that is refused for its content, to less.

        Nothing older is ever left out, and nobody but who refused it is asked with what may be
        meant (F-038). Raises: ModelError, ConfigurationError.
        """
        settings, refusal = running.settings, None
        try:
            while True:
                try:
                    return await self._answered(running)
                except ContentRefused as error:
                    refusal, by = error, error.refused_by or settings.backend
                    running.went_on()
                    running.settings = replace(settings, backend=by)
                    if not await self._telling.strip(running):
                        await self._require_rest(running)
                        raise
                except ModelError as error:
                    raise refusal or error from None
        finally:
            running.settings = settings

    async def _require_rest(self, running: CastState) -> None:
        """Ask with what is in view but for the newest message. Raises: ContextRefused."""
        cast, settings, past = running.cast, running.settings, running.past
        rest = (each for each in past.casts if each.key != cast.key)
        harmless = replace(cast, intent=HARMLESS, context_block="", turns=())
        looks = Looks(settings.prompt.layout, self._hidden)
        shown = messages(running.prompt, replace(past, casts=(*rest, harmless)), looks)
        request = self._request(running, RequestView(shown, running.size))
        try:
            async with asyncio.timeout(min(REST_SECONDS, running.seconds_left / 2)):
                await self._models.ask(settings.role, request, backend=settings.backend)
        except ContentRefused:
            raise ContextRefused(IN_VIEW.format(parts=named(shown))) from None
        except (ModelError, TimeoutError) as error:
            log.info("not known what is refused cast=%s reason=%s", cast.id, error)

    async def _answered(self, running: CastState) -> Reply:
        view = await self._view(running)
        window = self._window(running)
        if self._folding.due(running.past, view.tokens, window):
            view = await self._folded(running, view, "size") or view
        while not self._fits(running, view) and (less := await self._folded(running, view, "full")):
            view = less
        view = self._fitted(running, view)
        while True:
            try:
                return await self._asked(running, view)
            except ContextTooLarge as refusal:
                less = await self._less(running, view, refusal.refused_by)
                if less is None:
                    if part := too_large(view.messages):
                        wrong = f" And {refusal.wrong}." if refusal.wrong else ""
                        raise PromptTooLarge(part + wrong) from None
                    raise
                log.info("request shrunk cast=%s messages=%d", running.cast.id, len(less.messages))
                view = less

    async def _asked(self, running: CastState, view: RequestView) -> Reply:
        settings, kept = running.settings, _kept(running)
        running.prompt = prompt_of(view.messages)
        reply = await self._models.ask(
            settings.role,
            self._request(running, view),
            backend=settings.backend,
            cast_id=running.cast.id,
            listener=running,
        )
        running.part_read = part_read(view.messages, bared(running.cast).intent, kept)
        running.left_out = memories_left_out(view.messages)
        if view.small and self._models.size_of(reply.backend) == "small":
            running.prompt = view.small
        return reply

    async def _view(self, running: CastState, *, anew: bool = False) -> RequestView:
        """What is in view now, with what is to be told. `anew`: of that nothing was told before."""
        systems = await self._systems(running)
        running.size = next(iter(systems))
        window = self._window(running)
        if news := await self._telling.news(running, window, anew=anew):
            running.told(news)
        shown = self._shown(running, systems)
        view = self._lightened(running, shown)
        if not news:
            return view
        before = len(shown.last) - len(news)
        kept = await self._telling.store(running, view.last[before:])
        if kept == view.last[before:]:
            return view
        last = {**view.messages[-1], "content": view.last[:before] + kept}
        return self._with(running, view, (*view.messages[:-1], last))

    async def _systems(self, running: CastState) -> dict[Size, str | None]:
        settings, past = running.settings, running.past
        asked = None
        if settings.prompt.layout == "system":
            asked = await self._telling.recall(running, self._window(running))
        return {
            size: await settings.prompt.system(
                running.caller.scope,
                settings.toolbox.offered(size),
                asked,
                marked(past.fold),
                size,
            )
            for size in self._models.sizes(settings.role, settings.backend)
        }

    def _shown(self, running: CastState, systems: Mapping[Size, str | None]) -> RequestView:
        small = systems.get("small")
        looks = Looks(running.settings.prompt.layout, self._hidden)
        if "full" not in systems:
            shown = messages(small, running.past, looks)
            return self._with(running, RequestView((), "small"), shown)
        shown = messages(systems["full"], running.past, looks)
        return self._with(running, RequestView((), "full", small, both="small" in systems), shown)

    def _lightened(self, running: CastState, view: RequestView) -> RequestView:
        """The view with fewer memories, while these are what makes it too large (F-023)."""
        while not self._fits(running, view) and (
            less := without_memories(view.messages, share=0.5)
        ):
            view = self._with(running, view, less)
        return view

    async def _folded(
        self, running: CastState, view: RequestView, cause: FoldCause
    ) -> RequestView | None:
        """The view after folding; None when that changes nothing, or would not be enough."""
        excess = view.tokens - int(self._folding.most * self._window(running))
        if running.folds_in_vain or not self._folding.old(running.past, cause, excess):
            return None
        cast, past = running.cast, None
        try:
            async with asyncio.timeout(running.seconds_left / 2):  # the rest is for the answer
                past = await self._folding.fold(
                    running.past, cast.branch_id, cast.id, cause, excess, Summing(running)
                )
        except TimeoutError:
            running.went_on()
            log.warning("fold took too long cast=%s", cast.id)
        running.folded(past)
        return None if past is None else await self._view(running, anew=True)

    async def _less(
        self, running: CastState, view: RequestView, refused_by: str
    ) -> RequestView | None:
        """A strictly smaller view than one that did not fit; None when nothing can shrink.

        `refused_by`: a backend that may be another than the first. It is small enough for that one
        at once, as far as can be told: else those before it, which are away, are asked each time.
        """
        less = await self._folded(running, view, "overflow") or self._smaller(running, view)
        most = self._with(running, view, view.messages).tokens  # a summary may have taught to count
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
        less = smaller(view.messages, _kept(running))
        return None if less is None else self._with(running, view, less)

    def _fitted(self, running: CastState, view: RequestView) -> RequestView:
        """The view made smaller until it fits, or as small as it gets."""
        while not self._fits(running, view) and (less := self._smaller(running, view)):
            view = less
        return view

    def _request(self, running: CastState, view: RequestView) -> Request:
        must_call = bool(running.cast.wards["require_done"])
        tools = partial(running.settings.toolbox.definitions, done=must_call)
        request = Request(view.messages, tools(view.size), must_call, tainted=running.cast.taint)
        if view.size == "small" or not view.both:
            return request
        said = view.messages
        if view.small is not None:
            said = ({**said[0], "content": view.small}, *said[1:])
        small = replace(request, messages=said, tools=tools("small"))
        return replace(request, small=small)

    def _with(self, running: CastState, view: RequestView, shown: tuple[Json, ...]) -> RequestView:
        """The view with these messages."""
        settings, changed = running.settings, replace(view, messages=shown)
        request = self._request(running, changed)
        tokens = self._models.tokens(settings.role, request, settings.backend)
        return replace(changed, tokens=tokens)

    def _window(self, running: CastState) -> int:
        return self._models.window(running.settings.role, running.settings.backend)

    def _fits(self, running: CastState, view: RequestView) -> bool:
        return view.tokens <= self._window(running)


def _kept(running: CastState) -> int:
    """How many messages may be cut, but not left out: those from the current intent on."""
    mine = tuple(each for each in running.past.casts if each.key == running.cast.key)
    return len(messages(None, BranchView(None, mine), Looks(running.settings.prompt.layout)))
