"""One question to the model: what a cast has in view, folded and cut until it fits."""

import asyncio
import logging
from collections.abc import Collection
from itertools import takewhile

from wintermute.conversation.folding import FoldCause, Folding, ModelClient, marked
from wintermute.conversation.state import CastState, Summing
from wintermute.conversation.view import (
    fitted,
    lightened,
    messages,
    prompt_of,
    query,
    smaller,
    too_large,
)
from wintermute.errors import ContextTooLarge, PromptTooLarge
from wintermute.messages import Json, Reply, Request
from wintermute.text import untagged

log = logging.getLogger(__name__)


class Asking:
    """Builds requests from the record, and never asks with one that did not fit before (L-036).

    Results of the gates named in `hidden` stay in the record (L-055).
    """

    def __init__(self, models: ModelClient, folding: Folding, hidden: Collection[str] = ()) -> None:
        self._models = models
        self._folding = folding
        self._hidden = frozenset(hidden)

    async def reply(self, running: CastState) -> Reply:
        """The model's answer to what is in view. Raises: ModelError, ConfigurationError."""
        view = await self._view(running)
        if self._folding.due(running.past, self._tokens(running, view), self._window(running)):
            view = await self._folded(running, "size") or view
        while not self._fits(running, view) and (less := await self._folded(running, "full")):
            view = less
        view = fitted(view, _kept(running), lambda less: self._fits(running, less))
        while True:
            running.prompt = prompt_of(view)
            try:
                return await self._models.ask(
                    running.terms.role,
                    self._request(running, view),
                    backend=running.terms.backend,
                    cast_id=running.cast.id,
                    listener=running,
                )
            except ContextTooLarge:
                less = await self._less(running, view)
                if less is None:
                    if part := too_large(view):
                        raise PromptTooLarge(part) from None
                    raise
                log.info("request shrunk cast=%s messages=%d", running.cast.id, len(less))
                view = less

    async def _view(self, running: CastState) -> tuple[Json, ...]:
        past, terms = running.past, running.terms
        summary = marked(past.fold)
        prompt = await terms.prompt.system(
            running.caller.scope,
            terms.toolbox.names,
            query(running.cast, past.casts[:-1]),
            summary,
        )
        view = messages(
            prompt,
            past.casts,
            summary=f"# Conversation Summary\n{untagged(summary)}" if summary else "",
            hidden=self._hidden,
        )
        return lightened(view, lambda less: self._fits(running, less))

    async def _folded(self, running: CastState, cause: FoldCause) -> tuple[Json, ...] | None:
        """The view after folding; None when that changes nothing."""
        if running.folds_in_vain or not self._folding.old(running.past, cause):
            return None
        cast, past = running.cast, None
        try:
            async with asyncio.timeout(running.seconds_left / 2):  # the rest is for the answer
                past = await self._folding.fold(
                    running.past, cast.branch_id, cast.id, cause, Summing(running)
                )
        except TimeoutError:
            running.went_on()
            log.warning("fold took too long cast=%s", cast.id)
        running.folded(past)
        return None if past is None else await self._view(running)

    async def _less(self, running: CastState, view: tuple[Json, ...]) -> tuple[Json, ...] | None:
        """A strictly smaller view than one that did not fit; None when nothing can shrink."""
        less = await self._folded(running, "overflow") or smaller(view, _kept(running))
        while less is not None and self._tokens(running, less) >= self._tokens(running, view):
            less = smaller(less, _kept(running))
        return less

    def _request(self, running: CastState, view: tuple[Json, ...]) -> Request:
        must_call = bool(running.cast.wards["require_done"])
        return Request(view, running.terms.toolbox.definitions(), must_call)

    def _tokens(self, running: CastState, view: tuple[Json, ...]) -> int:
        terms = running.terms
        return self._models.tokens(terms.role, self._request(running, view), terms.backend)

    def _window(self, running: CastState) -> int:
        return self._models.window(running.terms.role, running.terms.backend)

    def _fits(self, running: CastState, view: tuple[Json, ...]) -> bool:
        return self._tokens(running, view) <= self._window(running)


def _kept(running: CastState) -> int:
    """How many messages may be cut, but not left out: those from the current intent on."""
    cast, *earlier = reversed(running.past.casts)
    same = takewhile(lambda c: c.event_id is not None and c.event_id == cast.event_id, earlier)
    return len(messages(None, [*reversed(list(same)), cast]))
