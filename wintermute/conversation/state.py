"""The state of one running cast, its settings, and the ways to end it from outside.

The settings hold all differences between casts of rooms, due tasks, sub-sessions and nights (A-1).
A person, a time limit or a retracted message can stop a cast. `Speaker` sends to its conversation,
`Watch` observes its progress.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from wintermute.clock import Clock
from wintermute.config.schema import LoopSettings
from wintermute.conversation.toolbox import Caller, CallSite, Toolbox
from wintermute.conversation.view import is_shown
from wintermute.db import Transaction
from wintermute.llm.backend import Listener, SilentListener, Wait
from wintermute.loom.conversations import Conversation
from wintermute.loom.records import BranchView, Cast, Observation, Turn, Wards
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Quote, Size
from wintermute.prompt.context_block import ChangingParts, Layout
from wintermute.prompt.context_builder import MemoryQuery

USUAL = Wards.of(LoopSettings())
"""The limits of a chat unless the configuration sets others."""


class Stop:
    """A switch that ends one cast. Pressing it cancels whatever the cast is waiting for."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._question: asyncio.Timeout | None = None
        self.pressed = False

    def press(self) -> None:
        """End the cast now; also before it has begun."""
        self.pressed = True
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def hold(self) -> None:
        """Suspend the time limit until `go_on`."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(None)

    def go_on(self, seconds: float) -> None:
        """Resume the time limit with `seconds` left."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(asyncio.get_running_loop().time() + max(seconds, 0))

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Open a block that ends with TimeoutError after `seconds` or when the stop is pressed."""
        async with asyncio.timeout(0 if self.pressed else max(seconds, 0)) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    def ask_anew(self) -> None:
        """Cancel the current request: part of its view was retracted."""
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[asyncio.Timeout]:
        """Open a block that `ask_anew` ends with TimeoutError."""
        async with asyncio.timeout(None) as question:
            self._question = question
            try:
                yield question
            finally:
                self._question = None


class Prompt(Protocol):
    """A source of instructions, read anew for every request (P-001)."""

    @property
    def layout(self) -> Layout:
        """The place of the parts that change: behind messages, or in the system message."""
        ...

    async def system(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None,
        summary: str,
        size: Size,
    ) -> str | None:
        """Return the system prompt for this scope and these tools; None for no system prompt.

        `query` ranks the memories, and `summary` is that of folded turns: both are used only in the
        layout `system`. `size` is the model's.

        Raises: ConfigurationError when there are no instructions (L-005).
        """
        ...

    async def changing_parts(
        self, scope: str, query: MemoryQuery | None, size: Size, *, anew: bool
    ) -> ChangingParts | None:
        """Return the changing parts for a context block; None if there is no block.

        `size`: that of the first model. `anew`: no earlier block is in view.
        """
        ...


class BackgroundNews(Protocol):
    """News of changes that Wintermute made on its own."""

    async def events_before(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Return the events to put before a message, each told once; "" if there are none."""
        ...


@dataclass(frozen=True, slots=True)
class CastSettings:
    """The tools, prompt, model and limits of a cast.

    `backend` names the one model to ask instead of those of the `role`. `depth`: levels of
    sub-sessions that may be below this cast (L-060). `patient`: the wait for a first token does not
    count against the time limit (F-017); False for sub-sessions, which must end in time (L-061).
    `wards`: the limits of a new cast; a resumed one has those of its record. `background_news` gives news
    for the next message.
    """

    toolbox: Toolbox
    prompt: Prompt
    role: str = "base"
    backend: str | None = None
    depth: int = 0
    patient: bool = True
    wards: Wards = USUAL
    background_news: BackgroundNews | None = None


class Watch(Listener, Protocol):
    """Observes the progress of a cast."""

    def gate(self, name: str, doing: str) -> None:
        """Show that a gate starts; `doing` is its status text for people."""
        ...


class Unwatched(SilentListener):
    """A watch that shows nothing. Implements `Watch`."""

    def gate(self, name: str, doing: str) -> None:
        pass


class CastState:
    """One running cast: its record so far, its view, and its remaining limits.

    It listens to its model, because the wait for a first token does not count as its time (F-017).
    """

    def __init__(
        self,
        cast: Cast,
        caller: Caller,
        settings: CastSettings,
        watch: Watch,
        stop: Stop,
        clock: Clock,
    ) -> None:
        self.cast = cast
        self.caller = caller
        self.settings = settings
        self.watch = watch
        self.prompt: str | None = None
        """The system prompt of the newest request."""
        self.size: Size = "full"
        """The size of the first model."""
        self.part_read: tuple[int, int] | None = None
        """Characters of the message that the newest request showed, and its length."""
        self.left_out: int | None = None
        """Memories left out of the list in its prompt; None if the prompt has no list."""
        self.so_far = ""
        """The text so far of the answer that the model is writing."""
        self.fell_silent = ""
        """The text so far when the newest attempt failed."""
        self.folds_in_vain = False
        self._wards = Wards(**cast.wards)
        self._past = BranchView(None, ())
        self._stop = stop
        self._clock = clock
        # A resumed cast has used the time of its stored turns, without the downtime.
        used = sum(turn.ms - turn.waited_ms for turn in cast.turns) / 1000
        self._begun = clock.monotonic() - used
        self._asked_at: float | None = None
        self._waited = 0.0

    def asked(self) -> None:
        """Start an attempt: an earlier one may have failed without a report."""
        self.so_far = ""
        self.watch.asked()
        self.suspend_time()

    def suspend_time(self) -> None:
        """Suspend the time limit until the first token."""
        if self.settings.patient:
            self._asked_at = self._clock.monotonic()
            self._stop.hold()

    def awaits(self, wait: Wait) -> None:
        """Report the wait for a first token."""
        self.watch.awaits(wait)

    def begun(self) -> None:
        """Note the first token of the answer."""
        self.resume_time()
        self.watch.begun()

    def resume_time(self) -> None:
        """Resume the time limit: the answer begins, or the attempt is over."""
        self.so_far = ""
        if self._asked_at is not None:
            waited = self._clock.monotonic() - self._asked_at
            self._asked_at = None
            self._waited += waited
            self._begun += waited
            self._stop.go_on(self.seconds_left)

    def said(self, piece: str) -> None:
        """Add a piece of the answer."""
        self.so_far += piece
        self.watch.said(piece)

    def was_reasoning(self) -> None:
        """Drop the text so far: it was reasoning, which nobody should read."""
        self.so_far = ""
        self.watch.was_reasoning()

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Note that the attempt failed."""
        self.fell_silent = self.so_far
        self.resume_time()
        self.watch.failed(problem, unreachable=unreachable)

    def waited_ms(self) -> int:
        """Return the milliseconds of waiting for first tokens since the last call."""
        waited, self._waited = round(self._waited * 1000), 0.0
        return waited

    @property
    def past(self) -> BranchView:
        """The turns in view, this cast last."""
        after = self._past.fold.last_turn if self._past.fold else 0
        turns = tuple(turn for turn in self.cast.turns if turn.seq > after)
        earlier = (cast for cast in self._past.casts if cast.id != self.cast.id)
        return replace(self._past, casts=(*earlier, replace(self.cast, turns=turns)))

    def set_view(self, past: BranchView) -> None:
        """Take the stored view; retracted text is then missing, also from this cast."""
        self._past = past
        mine = next((cast for cast in past.casts if cast.id == self.cast.id), self.cast)
        stored = {turn.id: turn for turn in mine.turns}
        now = [(turn, stored.get(turn.id, turn)) for turn in self.cast.turns]
        turns = (
            replace(turn, context_block=known.context_block, provider_fields=known.provider_fields)
            for turn, known in now
        )
        self.cast = replace(mine, turns=tuple(turns))

    def set_block(self, block: str) -> None:
        """Set the block at the end: behind the newest turn in view, or behind the intent."""
        newest = self.newest
        if newest is None:
            self.cast = replace(self.cast, context_block=block)
            return
        turns = (
            replace(t, context_block=block) if t.id == newest.id else t for t in self.cast.turns
        )
        self.cast = replace(self.cast, turns=tuple(turns))

    @property
    def newest(self) -> Turn | None:
        """The newest turn in view; None if there is none yet."""
        return next(filter(is_shown, reversed(self.cast.turns)), None)

    def set_folded_view(self, past: BranchView | None) -> None:
        """Take the view after folding; None: folding failed and is not tried again."""
        self._past = past or self._past
        self.folds_in_vain = past is None

    def add_model_turn(self, turn: Turn) -> None:
        """Append a turn of the model."""
        self.so_far = ""
        self.cast = replace(self.cast, turns=(*self.cast.turns, turn))

    def add_observation(self, observation: Observation) -> None:
        """Store the result of a call of the newest turn."""
        *before, turn = self.cast.turns
        seen, n = turn.observations, observation.n
        turn = replace(turn, observations=(*seen[:n], observation, *seen[n + 1 :]))
        self.cast = replace(self.cast, turns=(*before, turn))

    def at(self, turn: Turn, n: int) -> Caller:
        """Return the caller for a turn's n-th call."""
        left = self._wards.less(*self._used)
        settings = self.settings
        place = CallSite(
            turn.id,
            n,
            settings.toolbox,
            settings.role,
            settings.backend,
            settings.depth,
            self._wards,
            left,
        )
        return replace(self.caller, place=place)

    @property
    def seconds_left(self) -> float:
        """The seconds that the cast may still take."""
        return self._wards.max_seconds - self._seconds

    @property
    def breached(self) -> str | None:
        """The name of the first limit that is used up, or None."""
        return self._wards.breached(*self._used)

    @property
    def on_last_turn(self) -> bool:
        """True if the turn limit allows no further turn."""
        return len(self.cast.turns) >= self._wards.max_turns

    @property
    def _seconds(self) -> float:
        return self._clock.monotonic() - self._begun

    @property
    def _used(self) -> tuple[int, float, int]:
        """The turns, seconds and tokens used so far."""
        turns = self.cast.turns
        return len(turns), self._seconds, sum(turn.tokens for turn in turns)


class SummaryListener(SilentListener):
    """Listens to the summarising model of a cast; waiting for its first token does not count either."""

    def __init__(self, running: CastState) -> None:
        self._running = running

    def asked(self) -> None:
        self._running.suspend_time()

    def begun(self) -> None:
        self._running.resume_time()

    def failed(self, problem: str, *, unreachable: bool) -> None:
        self._running.resume_time()


class Speaker(Protocol):
    """Sends to a conversation. Only `quote` waits for the homeserver."""

    def serves(self, room_id: str) -> bool:
        """Return True if this speaker sends the answers of a room."""
        ...

    def fits(self, conversation: Conversation) -> bool:
        """Return True if the people in the room may read messages for its scope."""
        ...

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """Return a room for messages of a scope that has no known conversation.

        `encrypted`: only an encrypted room will do.
        """
        ...

    def attend(self, row: InboxRow) -> None:
        """Show that the message was read and an answer is being written."""
        ...

    def rest(self, row: InboxRow) -> None:
        """Show that no answer is being written any more."""
        ...

    def draft(self, conversation_id: str, piece: str) -> None:
        """Show a piece of the answer; an empty one begins an utterance or a new attempt at it."""
        ...

    def retract(self, conversation_id: str) -> None:
        """Remove the utterance shown so far: it was reasoning (F-020)."""
        ...

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Show the state of the wait for a first token."""
        ...

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Show that a tool is running, with its status text."""
        ...

    def shown(self, row: InboxRow) -> str | None:
        """Return the text of an answer that people see growing; "" if none is visible.

        None: unknown, because nothing of it was sent since the start.
        """
        ...

    def speak(self, conversation_id: str) -> None:
        """Send the outbox's messages for this conversation."""
        ...

    async def quote(self, row: InboxRow) -> Quote | None:
        """Return the message that a message replies to, within seconds; None if unreadable or untrusted."""
        ...


@dataclass(frozen=True, slots=True)
class ConversationWatch(SilentListener):
    """Shows a cast in its conversation. `ModelFailures` reports failures instead."""

    speaker: Speaker
    conversation_id: str

    def asked(self) -> None:
        self.speaker.draft(self.conversation_id, "")

    def awaits(self, wait: Wait) -> None:
        self.speaker.wait(self.conversation_id, wait)

    def said(self, piece: str) -> None:
        self.speaker.draft(self.conversation_id, piece)

    def was_reasoning(self) -> None:
        self.speaker.retract(self.conversation_id)

    def gate(self, name: str, doing: str) -> None:
        self.speaker.gate(self.conversation_id, name, doing)
