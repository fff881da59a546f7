"""One runner for all owed work: what was begun is finished, over crashes and restarts.

    ready ─▶ at work ─▶ over         its end, and what it has to say, are one transaction
      ▲        │  ╰─ a crash: it goes on at its last stored step; the third one ends it
      ╰────────╯ put off until a time, for what passes by itself

A kind of work says what is ready, does one piece, and keeps how it ended: in the tables, which are
the truth. Places, the bell, bugs, and what a start finds are the same for all kinds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from wintermute.clock import LONGEST_NAP, Clock, until_set
from wintermute.conversation.casting import HandedOutWork
from wintermute.conversation.rooms import is_blocked
from wintermute.conversation.state import Speaker, Stop
from wintermute.conversation.toolbox import Toolbox
from wintermute.db import Transaction
from wintermute.errors import StorageBlocked
from wintermute.stores import Stores

MOST_CRASHES = 3
"""How often a piece may be interrupted by a crash (L-068); an ordinary end of the program is none."""

PARKING_SECONDS = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


async def guarded(work: Awaitable[T], name: str) -> T | None:
    """What the work gives; None when it met a bug, which the log then has (L-031)."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.exception("work failed, for what it waited for was cancelled id=%s", name)
        return None
    except Exception as error:  # bulkhead: a bug in one piece must not end the others
        if is_blocked(error):
            raise
        log.exception("work failed id=%s", name)
        return None


class Piece(Protocol):
    """One piece of work; its id is unique within its kind."""

    @property
    def id(self) -> str: ...


P = TypeVar("P", bound=Piece)


@dataclass(frozen=True, slots=True)
class Look(Generic[P]):
    """What a look at the tables led to: pieces that are at work from now on, conversations with
    something new in their inbox or outbox, and when to look again if the bell does not ring before.
    """

    pieces: Sequence[P] = ()
    news: Collection[str] = ()
    again: datetime | None = None


class Kind(Protocol[P]):
    """One kind of work. Its state is in the tables; transactions look there and change it.

    One that a conversation can end is `HandedOutWork` of `conversation.casting` as well.
    `bell`: rung when something may be ready. `underway`: the end switch of each piece at work,
    which is there before anybody else may write. `unasked`: nobody waits for it.
    """

    @property
    def name(self) -> str: ...

    @property
    def unasked(self) -> bool: ...

    @property
    def bell(self) -> asyncio.Event: ...

    @property
    def underway(self) -> dict[str, Stop]: ...

    @property
    def at_once(self) -> int:
        """How many pieces may be at work."""
        ...

    async def left(self, tx: Transaction) -> Look[P]:
        """What an earlier run of the program left at work; what crashed too often is ended."""
        ...

    async def parked(self, tx: Transaction, pieces: Sequence[P]) -> None:
        """The program ends in order while these are at work: no crash."""
        ...

    async def ready(self, tx: Transaction, free: int) -> Look[P]:
        """Begin at most as many pieces as there are free places."""
        ...

    async def do(self, piece: P, stop: Stop, toolbox: Toolbox) -> Any:
        """Do it, from its last stored step on. `toolbox` is that of rooms."""
        ...

    async def over(self, piece: P, result: Any) -> Collection[str]:
        """Keep how it ended; conversations with news. `result`: what `do` gave; None: a bug."""
        ...


class Runner:
    """Runs all kinds. Implements `HandedOutWork` of `conversation.casting` for all of them."""

    def __init__(
        self,
        stores: Stores,
        toolbox: Toolbox,
        speaker: Speaker,
        clock: Clock,
        kinds: Sequence[Kind[Any]],
    ) -> None:
        """`toolbox`: that of rooms."""
        self.kinds = kinds
        self._stores = stores
        self._speaker = speaker
        self._clock = clock
        self.toolbox = toolbox

    def ring(self, name: str) -> None:
        """Something of this kind may be ready."""
        next(kind for kind in self.kinds if kind.name == name).bell.set()

    async def run(
        self, wake: Callable[[str], None], *, unasked: bool = False, only: Collection[str] = ()
    ) -> None:
        """Work until cancelled, at what is asked for or at what is not; `only`: at these kinds of it."""
        async with asyncio.TaskGroup() as group:
            for kind in self.kinds:
                if kind.unasked == unasked and (not only or kind.name in only):
                    group.create_task(self._serve(kind, wake))

    async def finish(self, name: str, wake: Callable[[str], None]) -> None:
        """Do what is ready of a kind, and wait for what is at work: nobody may come back to it soon."""
        kind = next(kind for kind in self.kinds if kind.name == name)
        at_work: dict[str, Any] = {}
        try:
            while True:
                kind.bell.clear()
                look = await self._begun(kind, partial(kind.ready, free=kind.at_once), at_work)
                for piece in look.pieces:
                    await self._work(kind, piece, at_work, wake)
                if not look.pieces and not kind.underway:
                    return
                if not look.pieces:
                    await kind.bell.wait()
        except asyncio.CancelledError:
            if at_work:
                await self._park(kind, [*at_work.values()])
            raise

    async def _serve(self, kind: Kind[P], wake: Callable[[str], None]) -> None:
        at_work: dict[str, P] = {}

        async def ready(tx: Transaction) -> Look[P]:
            return await kind.ready(tx, max(kind.at_once - len(at_work), 0))

        def start(look: Look[P]) -> None:
            for piece in look.pieces:
                group.create_task(self._work(kind, piece, at_work, wake))

        try:
            async with asyncio.TaskGroup() as group:
                look = await self._begun(kind, kind.left, at_work)
                start(look)
                self._tell(look.news, wake)
                while True:
                    kind.bell.clear()
                    look = await self._begun(kind, ready, at_work)
                    start(look)
                    self._tell(look.news, wake)
                    await self._pause(kind.bell, look.again)
        except asyncio.CancelledError:
            if at_work:
                await self._park(kind, [*at_work.values()])
            raise

    async def _park(self, kind: Kind[P], pieces: Sequence[P]) -> None:
        """The program ends in order. Where that cannot be noted at once, it counts as a crash."""
        with suppress(TimeoutError, StorageBlocked):
            async with asyncio.timeout(PARKING_SECONDS), self._stores.database.transaction() as tx:
                await kind.parked(tx, pieces)

    async def _begun(
        self,
        kind: Kind[P],
        looks: Callable[[Transaction], Awaitable[Look[P]]],
        at_work: dict[str, P],
    ) -> Look[P]:
        async with self._stores.database.transaction() as tx:
            look = await looks(tx)
            for piece in look.pieces:
                kind.underway[piece.id] = Stop()
                at_work[piece.id] = piece
        return look

    async def _work(
        self, kind: Kind[P], piece: P, at_work: dict[str, P], wake: Callable[[str], None]
    ) -> None:
        try:
            result = await guarded(kind.do(piece, kind.underway[piece.id], self.toolbox), piece.id)
            news = await guarded(kind.over(piece, result), piece.id) if result is not None else None
            if news is None:
                await self._stores.health.note("casts", "fail", "internal error, see the log")
                news = await kind.over(piece, None)
            del at_work[piece.id]
        finally:
            del kind.underway[piece.id]
            kind.bell.set()
        self._tell(news, wake)

    def _tell(self, news: Collection[str], wake: Callable[[str], None]) -> None:
        for conversation_id in news:
            wake(conversation_id)
            self._speaker.speak(conversation_id)

    async def _pause(self, bell: asyncio.Event, until: datetime | None) -> None:
        if until is None:
            await bell.wait()
            return
        left = (until - self._clock.now()).total_seconds()
        await until_set(bell, self._clock, min(left, LONGEST_NAP))  # the clock may be set

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End what a conversation has under way."""
        return [
            ended
            for kind in self.kinds
            if isinstance(kind, HandedOutWork)
            for ended in await kind.end(tx, conversation_id, only=only, after=after)
        ]

    async def take_back(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End what was handed out for these events."""
        for kind in self.kinds:
            if isinstance(kind, HandedOutWork):
                await kind.take_back(tx, conversation_id, events)
