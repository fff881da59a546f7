"""The terminal: typed lines go into the inbox, and messages of the outbox are shown.

Answers are shown while they are streamed, tools in one dim line each. Lines come from a keyboard
or through a pipe: `echo hi | wintermute chat`.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TextIO

from wintermute.clock import Clock, wait_for_event
from wintermute.conversation.model_failures import ANSWERED, SILENT
from wintermute.conversation.replies import MODEL, MOST_WORDS, waiting_for
from wintermute.conversation.rooms import Rooms, next_row, passes_by
from wintermute.ids import NewId
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import TERMINAL
from wintermute.messages import Incoming, Quote
from wintermute.stores import Stores
from wintermute.text import clean, display_name, harmless

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
VOID = "ignore the text above; here it is again"
"""The line to write when an abandoned answer cannot be removed from the screen any more."""
SECOND = 1.0
LOOKS = 1.0
"""Seconds between checks if the model has fallen silent, which sets no event."""
NEWS = ("outage ", "budget ")
"""Key prefixes of notices about waits: they are shown again to the person who opens a new chat."""


class Pipe:
    """A stream whose lines are messages, as if they were typed."""

    interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def end_prompt(self) -> None:
        """Do nothing: no line is being typed here."""

    async def next(self, *, waits: bool) -> str | None:
        """Return the next line; None at the end of the stream."""
        line = await asyncio.to_thread(self._stream.readline)
        return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


class Screen(Protocol):
    """An output for text."""

    live: bool
    """True if a person watches the text being written; otherwise only complete answers are written."""

    def write(self, text: str) -> None:
        """Write text unchanged."""
        ...


class Output:
    """The standard output as a screen."""

    def __init__(self, stream: Callable[[], TextIO | None]) -> None:
        """`stream` is called for every write: a prompt may replace the stream for a time."""
        self._stream = stream
        first = stream()
        self.live = first is not None and first.isatty()

    def write(self, text: str) -> None:
        stream = self._stream()
        if stream is not None:  # the parent process may have closed it
            stream.write(text)
            stream.flush()


class Page(Protocol):
    """A view of an answer that is being streamed."""

    def begin(self, *, loose: bool) -> None:
        """Start an answer. `loose`: it must stay removable, however long it becomes."""
        ...

    def add(self, text: str) -> None:
        """Add a piece of the answer."""
        ...

    def end(self, rest: str = "") -> None:
        """Add the last piece, and end the line."""
        ...

    def discard(self) -> bool:
        """Discard the unfinished answer; False if some of it stays on the screen."""
        ...

    def show_aside(self, text: str) -> None:
        """Show another text, after which the unfinished answer goes on."""
        ...

    def wait(self, text: str) -> None:
        """Show a text about a wait until something else comes; "" for nothing."""
        ...


class PlainPage:
    """Plain text, for pipes and terminals without a movable cursor."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._held: list[str] | None = None
        self._written = False
        self._begun = False

    def begin(self, *, loose: bool) -> None:
        self._held = [] if loose else None  # written text cannot be removed
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

    def discard(self) -> bool:
        self._held = None
        self._end_line()
        return not self._written

    def show_aside(self, text: str) -> None:
        held, written, self._held = self._held, self._written, None
        self._end_line()
        self.end(text)
        self._held, self._written = held, written

    def wait(self, text: str) -> None:
        """Show nothing: the text could not be removed again."""

    def _end_line(self) -> None:
        if self._begun:
            self._screen.write("\n")
            self._begun = False


@dataclass(frozen=True, slots=True, eq=False)
class _AwaitedName:
    """One wait for something; two waits with the same name are not equal."""

    name: str


class TerminalSpeaker:
    """The speaker that writes to the terminal. `changed` is set after every event.

    `typed`: the ids of the messages typed in this chat.
    """

    waiting = ""
    """The text about the current wait, with its seconds; "" for none."""

    def __init__(self, screen: Screen, page: Page | None = None) -> None:
        self._screen = screen
        self._page = page or PlainPage(screen)
        self._drafted = ""
        self._awaited: _AwaitedName | None = None
        self._wait: Wait | None = None  # as reported by the model server before its first token
        self._is_known = False
        self._named_events: set[str] = set()
        self.typed: list[str] = []
        self.changed = asyncio.Event()
        self.spoke = asyncio.Event()

    async def count(self, clock: Clock) -> None:
        """Show what is awaited and for how long, from the second second on (F-037)."""
        seen, since = None, 0.0
        while True:
            await clock.sleep(SECOND)
            if self._awaited is not seen:
                seen, since = self._awaited, clock.monotonic()
                self._page.wait("")  # draws pieces that are still pending
            elif seen:
                seconds = 1 + round(clock.monotonic() - since)
                self.waiting = waiting_for(seen.name, seconds, self._wait)
                self._page.wait(self.waiting)

    def serves(self, room_id: str) -> bool:
        """Return True only for the terminal: the daemon serves the rooms."""
        return room_id == TERMINAL

    def fits(self, conversation: Conversation) -> bool:
        """Return True only for the terminal, which only the owner reads."""
        return self.serves(conversation.room_id)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """Return None: the terminal has its conversation from the first message on."""
        return None

    def attend(self, row: InboxRow) -> None:
        """Show that the model is working on an answer."""
        self.name(row)
        self._wait_for(MODEL)

    def name(self, row: InboxRow) -> None:
        """Name the message that is being answered, once, if it was typed in an earlier chat."""
        known = row.event_id in self._named_events or row.event_id in self.typed
        if known or row.kind not in ("message", "command") or row.is_unasked:
            return
        self._named_events.add(row.event_id)
        if self._screen.live:
            words = display_name(row.body, MOST_WORDS)
            self._screen.write(f"{DIM}· answering: {words}{PLAIN}\n")

    def rest(self, row: InboxRow) -> None:
        """Wake up `Chat`, which checks if all is answered."""
        self._wait_for("")
        self.changed.set()

    def draft(self, conversation_id: str, piece: str) -> None:
        """Write a piece of the answer; an empty piece begins a new attempt and discards the last one.

        This also removes text that turned out to be reasoning (F-020). A model does that only in
        its first utterance, so that later ones need not stay removable.
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
        """Discard the unfinished answer."""
        self.draft(conversation_id, "")

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Use these details of the wait for the model from the next second on."""
        self._wait = wait

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Write one dim line for a tool."""
        if self._screen.live:
            self._page.end()
            self._screen.write(f"{DIM}· {display_name(name)}{PLAIN}\n")
            self._is_known = self._is_known or bool(self._drafted)
            self._drafted = ""
            self.spoke.set()
            self._wait_for(display_name(name))

    def shown(self, row: InboxRow) -> str:
        """Return "": no event here could be edited into the answer."""
        return ""

    def speak(self, conversation_id: str) -> None:
        """Wake up `Chat`: there is a new message in the outbox."""
        self.changed.set()

    async def quote(self, row: InboxRow) -> Quote | None:
        """Return None: there are no replies to single messages here."""
        return None

    def say(self, text: str, *, aside: bool = False) -> None:
        """Write an answer, or the rest of it that was not streamed yet.

        `aside`: it is a notice or a reminder, and the unfinished answer goes on after it.
        """
        if aside:
            self._page.show_aside(text)
            return
        self.spoke.set()
        if self._drafted and text.startswith(self._drafted):
            self._is_known = True
            self._page.end(text[len(self._drafted) :])
        else:
            self._page.end()
            self._page.end(text if text != self._drafted else "")
        self._drafted = ""

    def draw_pending(self) -> None:
        """Draw pending pieces, as no line is being typed now."""
        self._page.wait("")

    def pause(self) -> None:
        """Discard the unfinished answer and reset `spoke`; a line may be typed until more comes."""
        self._page.wait("")
        self._take_back()
        self.spoke.clear()

    def _take_back(self) -> None:
        if self._drafted and not self._page.discard():
            self._screen.write(f"{DIM}· {VOID}{PLAIN}\n")
        self._drafted = ""

    def _wait_for(self, name: str) -> None:
        self.waiting, self._wait = "", None
        self._page.wait("")
        self._awaited = _AwaitedName(name) if name else None


class Chat:
    """The owner's own chat at this machine, besides those in Matrix."""

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
        """Show messages of the outbox, until cancelled."""
        await self._repeat_wait_notices()
        conversation = await self._conversation()
        while True:
            self._speaker.changed.clear()
            while row := await self._stores.outbox.next(conversation, TERMINAL):
                # While an answer is awaited, any other message is shown beside it.
                aside = row.answers is None or self._rooms.waits(conversation) == 0
                await self._name(row.answers)
                self._speaker.say(row.text(self._clock.now()), aside=aside)
                await self._stores.outbox.mark_shown(row.id)
            self._shown.set()
            await self._speaker.changed.wait()

    async def say(self, text: str) -> None:
        """Store a typed message or command in the inbox."""
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

    async def wait_answered(self, *, attended: bool) -> bool:
        """Wait until all is answered and shown; False if the rest waits for an unreachable model.

        `attended`: a person is there who may type meanwhile. Then it is also False while a busy
        model is silent (F-035).
        """
        self._speaker.draw_pending()
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
                await wait_for_event(self._shown, self._clock, LOOKS)
            else:
                await self._shown.wait()

    async def has_unanswered(self) -> bool:
        """Check if a message typed here ended without an answer."""
        async with self._stores.database.transaction() as tx:
            reasons = await self._stores.casts.reasons(tx, self._speaker.typed)
        return any(reason not in ANSWERED for reason in reasons)

    async def wait_for_answer(self) -> None:
        """Wait until the model answers again, after a wait for it."""
        await self._speaker.spoke.wait()

    @property
    def waiting(self) -> str:
        """The text about the current wait; "" for none."""
        return self._speaker.waiting

    async def _name(self, event_id: str | None) -> None:
        """Name the message that an answer belongs to, if it was typed in an earlier chat."""
        if event_id is not None and event_id not in self._speaker.typed:
            async with self._stores.database.transaction() as tx:
                asked = await self._stores.inbox.find(tx, event_id)
            if asked is not None:
                self._speaker.name(asked)

    async def _all_shown(self, conversation: str) -> bool:
        return await self._stores.outbox.next(conversation, TERMINAL) is None

    async def _waits(self, rows: Sequence[InboxRow], *, attended: bool) -> bool:
        """Check if nothing can be done now, and the reason is shown."""
        due, until = next_row(rows, self._clock.monotonic())
        is_away = due is None and until is not None
        if is_away or (attended and self._is_silent(rows)):
            self._speaker.pause()
            if is_away:
                await self._rooms.tell_now(rows[0])
            return await self._all_shown(rows[0].conversation_id)
        return False

    def _is_silent(self, rows: Sequence[InboxRow]) -> bool:
        """Check if all open messages wait for a busy model that has been silent for `SILENT` seconds."""
        waited = (self._clock.now() - rows[0].sent_at).total_seconds()
        is_silent = self._rooms.waits(rows[0].conversation_id) == 0 and waited >= SILENT
        return is_silent and not any(passes_by(row, rows) for row in rows)

    async def _repeat_wait_notices(self) -> None:
        """Let notices about current waits be shown again in this chat."""
        async with self._stores.database.transaction() as tx:
            held = await self._stores.conversations.of_room(tx, TERMINAL)
            for news in NEWS if held else ():
                for key in await self._stores.notices.noticed(tx, news):
                    if held and key.endswith(f" {held.id}"):
                        await self._stores.notices.notice_again(tx, key)

    async def typed(self) -> list[str]:
        """Return the lines typed here before, oldest first."""
        return await self._stores.inbox.said_in(await self._conversation(), 200)

    async def _conversation(self) -> str:
        async with self._stores.database.transaction() as tx:
            return await self._stores.conversations.in_room(
                tx, TERMINAL, self._stores.owner.scope, "terminal"
            )


class LineSource(Protocol):
    """A source of input lines."""

    interactive: bool
    """True if a person can wait for a model that is unreachable."""

    async def next(self, *, waits: bool) -> str | None:
        """Return the next line; None at the end. `waits`: an answer is awaited, which Ctrl-C may stop."""
        ...

    def end_prompt(self) -> None:
        """End the prompt with a blank line if nothing is typed yet."""
        ...


async def run_chat(chat: Chat, lines: LineSource) -> bool:
    """Send lines until there are no more; False if one of them got no answer.

    Ctrl-C during an answer stops that answer.
    """
    answered = await _answered(chat, lines)  # what an earlier chat left
    while (line := await _next(chat, lines, waits=not answered)) is not None:
        if line.strip():
            await chat.say(line)
        elif not lines.interactive:
            continue
        answered = await _answered(chat, lines)
        if not answered and not lines.interactive:
            await chat.say("/stop")  # nobody would see an answer later on
            await chat.wait_answered(attended=False)
            return False
    return lines.interactive or (answered and not await chat.has_unanswered())


async def _next(chat: Chat, lines: LineSource, *, waits: bool) -> str | None:
    """Return the next line; the prompt ends when the awaited answer comes (F-035)."""
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(_leave(chat, lines)) if waits else None
        line = await lines.next(waits=waits)
        if leaving is not None:
            leaving.cancel()
    return line


async def _leave(chat: Chat, lines: LineSource) -> None:
    await chat.wait_for_answer()
    lines.end_prompt()


async def _answered(chat: Chat, lines: LineSource) -> bool:
    async with asyncio.TaskGroup() as group:
        with _interrupts(asyncio.Event()) as pressed:
            stopping = group.create_task(_stop(chat, pressed))
            answered = await chat.wait_answered(attended=lines.interactive)
        stopping.cancel()
    return answered


async def _stop(chat: Chat, pressed: asyncio.Event) -> None:
    while True:
        await pressed.wait()
        pressed.clear()
        await chat.say("/stop")


@contextmanager
def _interrupts(pressed: asyncio.Event) -> Iterator[asyncio.Event]:
    """Set the event on Ctrl-C instead of ending the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, pressed.set)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
