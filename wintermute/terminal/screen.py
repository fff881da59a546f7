"""What a person at the terminal sees: answers as they are written, tools in one dim line each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from wintermute.clock import Clock
from wintermute.mailbox.outbox import TERMINAL
from wintermute.messages import Quote
from wintermute.text import display_name, harmless

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MODEL = "waiting for the model"
SECOND = 1.0


class Screen(Protocol):
    """Where text goes, and whether somebody watches it being written."""

    def write(self, text: str) -> None:
        """Show text as it is."""
        ...

    @property
    def live(self) -> bool:
        """Whether somebody watches; else only whole answers are worth writing."""
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

    def add(self, text: str) -> None:
        """One more piece."""
        ...

    def end(self, rest: str = "") -> None:
        """The last piece; what comes next begins a line."""
        ...

    def wait(self, text: str) -> None:
        """Show what is waited for until something else comes; "" for nothing."""
        ...


class PlainPage:
    """Text as it is: for pipes, and terminals that can do no more."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._begun = False

    def add(self, text: str) -> None:
        # No control characters: a model's answer must not steer the terminal.
        if text:
            self._screen.write(harmless(text))
            self._begun = not text.endswith("\n")

    def end(self, rest: str = "") -> None:
        self.add(rest)
        if self._begun:
            self._screen.write("\n")
            self._begun = False

    def wait(self, text: str) -> None:
        """Nothing: it could not be taken away again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """That something is waited for, anew each time it is."""

    name: str


class TerminalSpeaker:
    """The way back to the terminal. `stirred` is set by all that happens."""

    def __init__(self, screen: Screen, page: Page | None = None) -> None:
        self._screen = screen
        self._page = page or PlainPage(screen)
        self._drafted = ""
        self._waits: _Waits | None = None
        self.stirred = asyncio.Event()

    async def count(self, clock: Clock) -> None:
        """Say what is waited for, and for how long, from the second second on (F-037)."""
        seen, since = None, 0.0
        while True:
            await clock.sleep(SECOND)
            if self._waits is not seen:
                seen, since = self._waits, clock.monotonic()
                self._page.wait("")  # what came may still have to be drawn
            elif seen:
                self._page.wait(f"· {seen.name}, {1 + round(clock.monotonic() - since)} s")

    def serves(self, room_id: str) -> bool:
        """Only what was typed here: the rest is the daemon's."""
        return room_id == TERMINAL

    def fits(self, room_id: str, scope: str) -> bool:
        """Only the owner sits here."""
        return self.serves(room_id)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """The terminal has its conversation from the first word on."""
        return None

    def attend(self, room_id: str, event_id: str) -> None:
        """An answer begins with the model."""
        self._wait_for(MODEL)

    def rest(self, room_id: str) -> None:
        """Somebody may look whether all is answered."""
        self._wait_for("")
        self.stirred.set()

    def draft(self, room_id: str, piece: str) -> None:
        """Write the piece at once; a new attempt begins a new line."""
        if not self._screen.live:
            return
        self._wait_for(MODEL)
        if piece:
            self._page.add(piece)
            self._drafted += piece
            return
        self._page.end()
        if self._drafted:  # it broke off
            self._screen.write(f"{DIM}· again{PLAIN}\n")
        self._drafted = ""

    def gate(self, room_id: str, name: str) -> None:
        """One dim line for a tool."""
        if self._screen.live:
            self._page.end()
            self._screen.write(f"{DIM}· {display_name(name)}{PLAIN}\n")
            self._drafted = ""
            self._wait_for(display_name(name))

    def speak(self, room_id: str) -> None:
        """Something is in the outbox."""
        self.stirred.set()

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        """Nothing: here nobody replies to one message among many."""
        return None

    def say(self, text: str, *, aside: bool = False) -> None:
        """Write an answer, or what of it was not written while it was made.

        `aside`: it is a notice or a reminder, and the answer goes on after it.
        """
        if aside:
            self._page.end()
            self._page.end(text)
            return
        if self._drafted and text.startswith(self._drafted):
            self._page.end(text[len(self._drafted) :])
        else:
            self._page.end()
            self._page.end(text if text != self._drafted else "")
        self._drafted = ""

    def _wait_for(self, name: str) -> None:
        self._page.wait("")
        self._waits = _Waits(name) if name else None
