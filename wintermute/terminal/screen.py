"""The terminal: what a person types goes into the inbox, and what is said is shown.

Answers are shown as they are written, tools in one dim line each. Lines come from a keyboard or
through a pipe: `echo hi | wintermute chat`.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TextIO

from wintermute.clock import Clock, until_set
from wintermute.conversation.rooms import Rooms, next_row, passes_by
from wintermute.conversation.trouble import ANSWERED, SILENT
from wintermute.conversation.words import MODEL, MOST_WORDS, waiting_for
from wintermute.ids import NewId
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import TERMINAL
from wintermute.messages import Incoming, Quote
from wintermute.stores import Stores
from wintermute.text import clean, display_name, harmless


class Pipe:
    """Each line of a stream is a message, as if it were typed."""

    patient = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def leave(self) -> None:
        """Nothing: no line is typed here."""

    async def next(self, *, waits: bool) -> str | None:
        """The next line; None at the end of the stream."""
        line = await asyncio.to_thread(self._stream.readline)
        return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


DIM, PLAIN = "\x1b[2m", "\x1b[0m"
VOID = "ignore the text above; here it is again"
"""What takes the place of what was said in vain, where it can no more be taken from the screen."""
SECOND = 1.0


class Screen(Protocol):
    """Where text goes, and whether somebody watches it being written."""

    live: bool
    """Whether somebody watches; else only whole answers are worth writing."""

    def write(self, text: str) -> None:
        """Show text as it is."""
        ...


class Output:
    """The standard output as a screen."""

    def __init__(self, stream: Callable[[], TextIO | None]) -> None:
        """`stream` is asked each time: a prompt may stand in for it meanwhile."""
        self._stream = stream
        first = stream()
        self.live = first is not None and first.isatty()

    def write(self, text: str) -> None:
        stream = self._stream()
        if stream is not None:  # closed by whoever started us
            stream.write(text)
            stream.flush()


class Page(Protocol):
    """Where an answer is drawn as it grows."""

    def begin(self, *, loose: bool) -> None:
        """Something new is said. `loose`: it may have to be taken back, however long it becomes."""
        ...

    def add(self, text: str) -> None:
        """One more piece."""
        ...

    def end(self, rest: str = "") -> None:
        """The last piece; what comes next begins a line."""
        ...

    def take_back(self) -> bool:
        """Forget what was begun, and take it from the screen; False: some of it stays there."""
        ...

    def beside(self, text: str) -> None:
        """Show something else, after which what was begun goes on."""
        ...

    def wait(self, text: str) -> None:
        """Show what is waited for until something else comes; "" for nothing."""
        ...


class PlainPage:
    """Text as it is: for pipes, and terminals that can do no more."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._held: list[str] | None = None
        self._written = False
        self._begun = False

    def begin(self, *, loose: bool) -> None:
        self._held = [] if loose else None  # what is written stays written
        self._written = False

    def add(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
        elif text:
            # No control characters: a model's answer must not steer the terminal.
            self._screen.write(harmless(text))
            self._begun, self._written = not text.endswith("\n"), True

    def end(self, rest: str = "") -> None:
        held, self._held = self._held or [], None
        self.add("".join([*held, rest]))
        self._end_line()
        self._written = False

    def take_back(self) -> bool:
        self._held = None
        self._end_line()
        return not self._written

    def beside(self, text: str) -> None:
        held, written, self._held = self._held, self._written, None
        self._end_line()
        self.end(text)
        self._held, self._written = held, written

    def wait(self, text: str) -> None:
        """Nothing: it could not be taken away again."""

    def _end_line(self) -> None:
        if self._begun:
            self._screen.write("\n")
            self._begun = False


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """That something is waited for, anew each time it is."""

    name: str


class TerminalSpeaker:
    """The way back to the terminal. `changed` is set by all that happens.

    `typed`: the events of what was typed here, by this chat.
    """

    waiting = ""
    """What is waited for, and for how long."""

    def __init__(self, screen: Screen, page: Page | None = None) -> None:
        self._screen = screen
        self._page = page or PlainPage(screen)
        self._drafted = ""
        self._waits: _Waits | None = None
        self._wait: Wait | None = None  # as the model's server tells, before its first token
        self._is_known = False
        self._named: set[str] = set()
        self.typed: list[str] = []
        self.changed = asyncio.Event()
        self.spoke = asyncio.Event()

    async def count(self, clock: Clock) -> None:
        """Say what is waited for, and for how long, from the second second on (F-037)."""
        seen, since = None, 0.0
        while True:
            await clock.sleep(SECOND)
            if self._waits is not seen:
                seen, since = self._waits, clock.monotonic()
                self._page.wait("")  # what came may still have to be drawn
            elif seen:
                seconds = 1 + round(clock.monotonic() - since)
                self.waiting = waiting_for(seen.name, seconds, self._wait)
                self._page.wait(self.waiting)

    def serves(self, room_id: str) -> bool:
        """Only what was typed here: the rest is the daemon's."""
        return room_id == TERMINAL

    def fits(self, conversation: Conversation) -> bool:
        """Only the owner sits here."""
        return self.serves(conversation.room_id)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """The terminal has its conversation from the first word on."""
        return None

    def attend(self, row: Waiting) -> None:
        """An answer begins with the model."""
        self.name(row)
        self._wait_for(MODEL)

    def name(self, row: Waiting) -> None:
        """Say what is answered, once, where an earlier chat left it and nobody sees it here."""
        known = row.event_id in self._named or row.event_id in self.typed
        if known or row.kind not in ("message", "command") or row.is_unasked:
            return
        self._named.add(row.event_id)
        if self._screen.live:
            words = display_name(row.body, MOST_WORDS)
            self._screen.write(f"{DIM}· answering: {words}{PLAIN}\n")

    def rest(self, row: Waiting) -> None:
        """Somebody may look whether all is answered."""
        self._wait_for("")
        self.changed.set()

    def draft(self, conversation_id: str, piece: str) -> None:
        """Write the piece at once; with a new attempt the one before is taken back.

        That is also how reasoning goes that was not known to be some (F-020). The model does not
        surprise us so twice: what comes after its first utterance need not be kept loose.
        """
        if not self._screen.live:
            return
        self._wait_for(MODEL)
        if piece:
            self._page.add(piece)
            self._drafted += piece
            self.spoke.set()
            return
        self._take_back()
        self._page.begin(loose=not self._is_known)

    def retract(self, conversation_id: str) -> None:
        """Take back what it said so far."""
        self.draft(conversation_id, "")

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Say more of what is waited for, with the next second."""
        self._wait = wait

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """One dim line for a tool."""
        if self._screen.live:
            self._page.end()
            self._screen.write(f"{DIM}· {display_name(name)}{PLAIN}\n")
            self._is_known = self._is_known or bool(self._drafted)
            self._drafted = ""
            self.spoke.set()
            self._wait_for(display_name(name))

    def shown(self, row: Waiting) -> str:
        """Nothing that an answer would take the place of."""
        return ""

    def speak(self, conversation_id: str) -> None:
        """Something is in the outbox."""
        self.changed.set()

    async def quote(self, row: Waiting) -> Quote | None:
        """Nothing: here nobody replies to one message among many."""
        return None

    def say(self, text: str, *, aside: bool = False) -> None:
        """Write an answer, or what of it was not written while it was made.

        `aside`: it is a notice or a reminder, and the answer goes on after it.
        """
        if aside:
            self._page.beside(text)
            return
        self.spoke.set()
        if self._drafted and text.startswith(self._drafted):
            self._is_known = True
            self._page.end(text[len(self._drafted) :])
        else:
            self._page.end()
            self._page.end(text if text != self._drafted else "")
        self._drafted = ""

    def go_on(self) -> None:
        """Nobody types now: show what has come meanwhile."""
        self._page.wait("")

    def pause(self) -> None:
        """Nothing is being said: what was begun broke off, and somebody may type until more comes."""
        self._page.wait("")
        self._take_back()
        self.spoke.clear()

    def _take_back(self) -> None:
        if self._drafted and not self._page.take_back():
            self._screen.write(f"{DIM}· {VOID}{PLAIN}\n")
        self._drafted = ""

    def _wait_for(self, name: str) -> None:
        self.waiting, self._wait = "", None
        self._page.wait("")
        self._waits = _Waits(name) if name else None


LOOKS = 1.0
"""Seconds between looks whether the model has fallen silent, which rings no bell."""
NEWS = ("outage ", "budget ")
"""Notices of a wait that an earlier chat was told of, but whoever opens this one was not."""


class Chat:
    """The owner's own chat at this machine, beside the ones in Matrix."""

    def __init__(
        self, stores: Stores, rooms: Rooms, speaker: TerminalSpeaker, clock: Clock, new_id: NewId
    ) -> None:
        self._stores = stores
        self._rooms = rooms
        self._speaker = speaker
        self._clock = clock
        self._new_id = new_id
        self._shown = asyncio.Event()

    async def run(self) -> None:
        """Show the answers, until cancelled."""
        await self._hear_again()
        conversation = await self._conversation()
        while True:
            self._speaker.changed.clear()
            while row := await self._stores.outbox.next(conversation, TERMINAL):
                # While the answer is waited for, what else is said is none, and ends nothing of it.
                aside = row.answers is None or self._rooms.waits(conversation) == 0
                await self._name(row.answers)
                self._speaker.say(row.text(self._clock.now()), aside=aside)
                await self._stores.outbox.shown(row.id)
            self._shown.set()
            await self._speaker.changed.wait()

    async def say(self, text: str) -> None:
        """Take a message or a command of the owner."""
        owner = self._stores.owner
        incoming = Incoming(
            event_id=self._new_id("typed"),
            room_id=TERMINAL,
            sender=owner.user_id,
            sender_name="",
            origin=owner.origin_of(owner.user_id),
            kind="command" if text.lstrip().startswith("/") else "message",
            body=clean(text).strip(),
            sent_at=self._clock.now(),
            direct=True,
        )
        conversation = await self._conversation()
        self._speaker.typed.append(incoming.event_id)
        async with self._stores.database.transaction() as tx:
            await self._stores.inbox.store(tx, conversation, incoming, "waiting")
        self._rooms.wake(conversation)

    async def answered(self, *, attended: bool) -> bool:
        """Wait until all is answered and shown; False: the rest waits for a model that is away.

        `attended`: somebody sits there who may type meanwhile, so that it is also False while a
        model at work is silent (F-035).
        """
        self._speaker.go_on()
        conversation = await self._conversation()
        while True:
            self._shown.clear()
            rows = await self._rooms.open_rows(conversation)
            stops = await self._stores.inbox.stops(conversation)
            is_shown = not stops and await self._all_shown(conversation)
            if is_shown and not rows:
                return True
            if is_shown and await self._waits(rows, attended=attended):
                return False
            if attended:
                await until_set(self._shown, self._clock, LOOKS)
            else:
                await self._shown.wait()

    async def in_vain(self) -> bool:
        """Whether something that was typed here was told why it has no answer."""
        async with self._stores.database.transaction() as tx:
            reasons = await self._stores.casts.reasons(tx, self._speaker.typed)
        return any(reason not in ANSWERED for reason in reasons)

    async def goes_on(self) -> None:
        """Wait until something is said in answer, after a wait for the model."""
        await self._speaker.spoke.wait()

    @property
    def waiting(self) -> str:
        """What is waited for, and for how long; "" for nothing."""
        return self._speaker.waiting

    async def _name(self, event_id: str | None) -> None:
        """Say what an answer answers that an earlier chat could not show."""
        if event_id is not None and event_id not in self._speaker.typed:
            async with self._stores.database.transaction() as tx:
                asked = await self._stores.inbox.find(tx, event_id)
            if asked is not None:
                self._speaker.name(asked)

    async def _all_shown(self, conversation: str) -> bool:
        return await self._stores.outbox.next(conversation, TERMINAL) is None

    async def _waits(self, rows: Sequence[Waiting], *, attended: bool) -> bool:
        """Whether nothing can be done now, and whoever is here was told why."""
        due, until = next_row(rows, self._clock.monotonic())
        is_away = due is None and until is not None
        if is_away or (attended and self._is_silent(rows)):
            self._speaker.pause()
            if is_away:
                await self._rooms.tell_now(rows[0])
            return await self._all_shown(rows[0].conversation_id)
        return False

    def _is_silent(self, rows: Sequence[Waiting]) -> bool:
        """Whether all there is waits for a model at work, and has for longer than a moment."""
        waited = (self._clock.now() - rows[0].sent_at).total_seconds()
        is_silent = self._rooms.waits(rows[0].conversation_id) == 0 and waited >= SILENT
        return is_silent and not any(passes_by(row, rows) for row in rows)

    async def _hear_again(self) -> None:
        """Let this chat be told of what is still waited for."""
        async with self._stores.database.transaction() as tx:
            held = await self._stores.conversations.of_room(tx, TERMINAL)
            for news in NEWS if held else ():
                for key in await self._stores.notices.noticed(tx, news):
                    if held and key.endswith(f" {held.id}"):
                        await self._stores.notices.notice_again(tx, key)

    async def typed(self) -> list[str]:
        """What was typed here before, oldest first."""
        return await self._stores.inbox.said_in(await self._conversation(), 200)

    async def _conversation(self) -> str:
        async with self._stores.database.transaction() as tx:
            return await self._stores.conversations.in_room(
                tx, TERMINAL, self._stores.owner.scope, "terminal"
            )


class LineSource(Protocol):
    """Where lines come from."""

    patient: bool
    """Whether somebody is there who can wait for a model that is away."""

    async def next(self, *, waits: bool) -> str | None:
        """The next line; None: there are no more. `waits`: for an answer, which may be given up."""
        ...

    def leave(self) -> None:
        """Ask for no line now, if none was begun: it is blank then."""
        ...


async def talk(chat: Chat, lines: LineSource) -> bool:
    """Take lines until there are no more; False when one of them got no answer.

    Ctrl-C while an answer is made stops that answer.
    """
    answered = await _answered(chat, lines)  # what an earlier chat left
    while (line := await _next(chat, lines, waits=not answered)) is not None:
        if line.strip():
            await chat.say(line)
        elif not lines.patient:
            continue
        answered = await _answered(chat, lines)
        if not answered and not lines.patient:
            await chat.say("/stop")  # nobody would see an answer later on
            await chat.answered(attended=False)
            return False
    return lines.patient or (answered and not await chat.in_vain())


async def _next(chat: Chat, lines: LineSource, *, waits: bool) -> str | None:
    """The next line. The answer that is waited for takes the screen back when it comes (F-035)."""
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(_leave(chat, lines)) if waits else None
        line = await lines.next(waits=waits)
        if leaving is not None:
            leaving.cancel()
    return line


async def _leave(chat: Chat, lines: LineSource) -> None:
    await chat.goes_on()
    lines.leave()


async def _answered(chat: Chat, lines: LineSource) -> bool:
    async with asyncio.TaskGroup() as group:
        with _interrupts(asyncio.Event()) as pressed:
            stopping = group.create_task(_stop(chat, pressed))
            answered = await chat.answered(attended=lines.patient)
        stopping.cancel()
    return answered


async def _stop(chat: Chat, pressed: asyncio.Event) -> None:
    while True:
        await pressed.wait()
        pressed.clear()
        await chat.say("/stop")


@contextmanager
def _interrupts(pressed: asyncio.Event) -> Iterator[asyncio.Event]:
    """Ctrl-C sets the event instead of ending the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, pressed.set)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
