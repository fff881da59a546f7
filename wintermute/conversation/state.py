"""What the loop knows of one cast while it runs, and how it is ended from outside.

The settings of a cast are all in which rooms, due tasks, sub-sessions and nights differ (A-1). Its
person, its time, or less in view than it was asked with can stop it. `Speaker` is the way back into
its conversation, `Watch` whoever sees it being made.
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
from wintermute.llm.backend import Listener, Unheard, Wait
from wintermute.loom.conversations import Conversation
from wintermute.loom.records import BranchView, Cast, Observation, Turn, Wards
from wintermute.mailbox.inbox import Waiting
from wintermute.messages import Quote, Size
from wintermute.prompt.block import Changing, Layout
from wintermute.prompt.gather import Recall


class Stop:
    """One cast's end switch. Pressing it cancels whatever the cast is waiting for."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._question: asyncio.Timeout | None = None
        self.pressed = False

    def press(self) -> None:
        """End the cast now; also when it has not begun yet."""
        self.pressed = True
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def hold(self) -> None:
        """Let no time count until it goes on."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(None)

    def go_on(self, seconds: float) -> None:
        """Time counts again; so much is left."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(asyncio.get_running_loop().time() + max(seconds, 0))

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """A block that a press, or the end of `seconds`, leaves with TimeoutError."""
        async with asyncio.timeout(0 if self.pressed else max(seconds, 0)) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    def ask_anew(self) -> None:
        """Something that is in view was taken back: a question with it goes out no more."""
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[asyncio.Timeout]:
        """A block that `ask_anew` leaves with TimeoutError."""
        async with asyncio.timeout(None) as question:
            self._question = question
            try:
                yield question
            finally:
                self._question = None


class Prompt(Protocol):
    """Where instructions come from: read anew for every question (P-001)."""

    @property
    def layout(self) -> Layout:
        """Where what changes stands."""
        ...

    async def system(
        self, scope: str, tools: Collection[str], query: Recall | None, summary: str, size: Size
    ) -> str | None:
        """The system prompt for this scope and these tools; None: there is to be none.

        `query` is what memory may rank by, `summary` stands for what was folded: of use where all
        is in the system message. `size` is that of the model.

        Raises: ConfigurationError when there are no instructions (L-005).
        """
        ...

    async def changing(
        self, scope: str, query: Recall | None, size: Size, *, anew: bool
    ) -> Changing | None:
        """What changes, for a block; None: nothing of that is to be told.

        `size`: that of the model that is asked first. `anew`: nothing was told in what is in view.
        """
        ...


class UnaskedNews(Protocol):
    """What was done while nobody asked for it."""

    async def told_with(self, tx: Transaction, row: Waiting, scope: str) -> str:
        """The events to stand before a message, each told once, with blank lines; "": nothing."""
        ...


USUAL = Wards.of(LoopSettings())
"""Those of a chat for which nothing else is configured."""


@dataclass(frozen=True, slots=True)
class CastSettings:
    """What a cast may use, and what it is told.

    `backend` names one model that is asked instead of those of the `role`. `depth` is how many
    levels of sub-sessions may be below this cast (L-060). `patient`: the time until a first token
    is not its own (F-017); whoever waits for a sub-session was promised an end (L-061). `wards` are
    those it begins with; one that goes on has what its record says. `unasked` tells of what was done.
    """

    toolbox: Toolbox
    prompt: Prompt
    role: str = "base"
    backend: str | None = None
    depth: int = 0
    patient: bool = True
    wards: Wards = USUAL
    unasked: UnaskedNews | None = None


class Watch(Listener, Protocol):
    """Somebody who sees a cast being made."""

    def gate(self, name: str, doing: str) -> None:
        """A gate starts; `doing`: what it does, in words for people."""
        ...


class Unwatched(Unheard):
    """Nobody sees the cast being made. Implements `Watch`."""

    def gate(self, name: str, doing: str) -> None:
        pass


class CastState:
    """One cast at work: its record so far, what it has in view, and how much it may still use.

    It listens to its model: the time until a first token is not the cast's (F-017).
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
        """That of the model that is asked first."""
        self.part_read: tuple[int, int] | None = None
        """How many characters of the message the newest answer was made of, and of how many."""
        self.left_out: int | None = None
        """Memories that the list in its prompt left out; None: the prompt has no list."""
        self.so_far = ""
        """The text so far of the answer that the model is giving."""
        self.fell_silent = ""
        """The text that it had said when its newest attempt failed."""
        self.folds_in_vain = False
        self._wards = Wards(**cast.wards)
        self._past = BranchView(None, ())
        self._stop = stop
        self._clock = clock
        # A resumed cast has used the time of its stored turns, not the time we were down.
        used = sum(turn.ms - turn.waited_ms for turn in cast.turns) / 1000
        self._begun = clock.monotonic() - used
        self._asked_at: float | None = None
        self._waited = 0.0

    def asked(self) -> None:
        """The model is asked: an earlier attempt may have failed without a word of that."""
        self.so_far = ""
        self.watch.asked()
        self.held()

    def held(self) -> None:
        """No time runs until the first token is there."""
        if self.settings.patient:
            self._asked_at = self._clock.monotonic()
            self._stop.hold()

    def awaits(self, wait: Wait) -> None:
        """Nothing has come yet, as is known of it."""
        self.watch.awaits(wait)

    def begun(self) -> None:
        """It begins to answer."""
        self.went_on()
        self.watch.begun()

    def went_on(self) -> None:
        """It begins to answer, or will not: time runs again."""
        self.so_far = ""
        if self._asked_at is not None:
            waited = self._clock.monotonic() - self._asked_at
            self._asked_at = None
            self._waited += waited
            self._begun += waited
            self._stop.go_on(self.seconds_left)

    def said(self, piece: str) -> None:
        """It says more."""
        self.so_far += piece
        self.watch.said(piece)

    def was_reasoning(self) -> None:
        """What it said so far is not to be read by anybody."""
        self.so_far = ""
        self.watch.was_reasoning()

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """It will not answer this time."""
        self.fell_silent = self.so_far
        self.went_on()
        self.watch.failed(problem, unreachable=unreachable)

    def waited_ms(self) -> int:
        """How long first tokens were waited for since this was asked last, in milliseconds."""
        waited, self._waited = round(self._waited * 1000), 0.0
        return waited

    @property
    def past(self) -> BranchView:
        """What is in view, this cast last."""
        after = self._past.fold.last_turn if self._past.fold else 0
        turns = tuple(turn for turn in self.cast.turns if turn.seq > after)
        earlier = (cast for cast in self._past.casts if cast.id != self.cast.id)
        return replace(self._past, casts=(*earlier, replace(self.cast, turns=turns)))

    def sees(self, past: BranchView) -> None:
        """Take what is in view now: what was taken back is not, also of what was said before."""
        self._past = past
        mine = next((cast for cast in past.casts if cast.id == self.cast.id), self.cast)
        stored = {turn.id: turn for turn in mine.turns}
        now = [(turn, stored.get(turn.id, turn)) for turn in self.cast.turns]
        turns = (
            replace(turn, context_block=known.context_block, provider_fields=known.provider_fields)
            for turn, known in now
        )
        self.cast = replace(mine, turns=tuple(turns))

    def told(self, block: str) -> None:
        """A block stands at the end now: behind the newest turn in view, or behind the intent."""
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
        """The newest turn that is in view; None: there is none yet."""
        return next(filter(is_shown, reversed(self.cast.turns)), None)

    def folded(self, past: BranchView | None) -> None:
        """Less is in view from now on; None: folding was tried and is of no use now."""
        self._past = past or self._past
        self.folds_in_vain = past is None

    def took(self, turn: Turn) -> None:
        """The model said something more."""
        self.so_far = ""
        self.cast = replace(self.cast, turns=(*self.cast.turns, turn))

    def observed(self, observation: Observation) -> None:
        """A call of the newest turn has its result."""
        *before, turn = self.cast.turns
        seen, n = turn.observations, observation.n
        turn = replace(turn, observations=(*seen[:n], observation, *seen[n + 1 :]))
        self.cast = replace(self.cast, turns=(*before, turn))

    def at(self, turn: Turn, n: int) -> Caller:
        """The caller of a turn's n-th call."""
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
        """How long the cast may go on, in seconds."""
        return self._wards.max_seconds - self._seconds

    @property
    def breached(self) -> str | None:
        """The first limit that is used up, by its name."""
        return self._wards.breached(*self._used)

    @property
    def on_last_turn(self) -> bool:
        """Whether there is no turn left after this one."""
        return len(self.cast.turns) >= self._wards.max_turns

    @property
    def _seconds(self) -> float:
        return self._clock.monotonic() - self._begun

    @property
    def _used(self) -> tuple[int, float, int]:
        """Turns, seconds and tokens."""
        turns = self.cast.turns
        return len(turns), self._seconds, sum(turn.tokens for turn in turns)


class Summing(Unheard):
    """Listens to the model that sums up for a cast, whose first token is waited for as well."""

    def __init__(self, running: CastState) -> None:
        self._running = running

    def asked(self) -> None:
        self._running.held()

    def begun(self) -> None:
        self._running.went_on()

    def failed(self, problem: str, *, unreachable: bool) -> None:
        self._running.went_on()


class Speaker(Protocol):
    """The way back into a conversation. None of these but `quote` waits for the homeserver."""

    def serves(self, room_id: str) -> bool:
        """Whether answers for this room go out here."""
        ...

    def fits(self, conversation: Conversation) -> bool:
        """Whether what is meant for its scope may be said there now, by who is in its room."""
        ...

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """A room in which something of a scope may be said, when no conversation is known.

        `encrypted`: only such a one will do.
        """
        ...

    def attend(self, row: Waiting) -> None:
        """Show that the message was read and an answer is being made."""
        ...

    def rest(self, row: Waiting) -> None:
        """Show that no answer to it is being made any more."""
        ...

    def draft(self, conversation_id: str, piece: str) -> None:
        """Show what the model says; an empty piece begins an utterance, or a new attempt at it."""
        ...

    def retract(self, conversation_id: str) -> None:
        """Take away what was shown of an utterance: it was reasoning (F-020)."""
        ...

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Show what is waited for before the model says anything."""
        ...

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Show that a tool is used, and what for."""
        ...

    def shown(self, row: Waiting) -> str | None:
        """The text so far of an answer that people see growing; "": none is to be seen.

        None: that is not known, as nothing of it went out since the start.
        """
        ...

    def speak(self, conversation_id: str) -> None:
        """Something for this conversation is in the outbox."""
        ...

    async def quote(self, row: Waiting) -> Quote | None:
        """What a message replies to, within seconds; None: it cannot be read or not be believed."""
        ...


@dataclass(frozen=True, slots=True)
class Shown(Unheard):
    """A cast's watcher in its conversation. What is to be said of a failure, `Trouble` says."""

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
