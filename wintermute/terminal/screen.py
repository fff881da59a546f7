"""What a person at the terminal sees: answers as they are written, tools in one dim line each."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TextIO

from wintermute.mailbox.outbox import TERMINAL
from wintermute.messages import Quote
from wintermute.text import display_name, harmless

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


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


class TerminalSpeaker:
    """The way back to the terminal. `stirred` is set by all that happens."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._drafted = ""
        self._begun = False
        self.stirred = asyncio.Event()

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
        """Nothing: the person sees that nothing is asked of them."""

    def rest(self, room_id: str) -> None:
        """Somebody may look whether all is answered."""
        self.stirred.set()

    def draft(self, room_id: str, piece: str) -> None:
        """Write the piece at once; a new attempt begins a new line."""
        if not self._screen.live:
            return
        if not piece:
            self._end_line()
            if self._drafted:  # it broke off
                self._screen.write(f"{DIM}· again{PLAIN}\n")
            self._drafted = ""
            return
        self._write(piece)
        self._drafted += piece

    def gate(self, room_id: str, name: str) -> None:
        """One dim line for a tool."""
        if self._screen.live:
            self._end_line()
            self._screen.write(f"{DIM}· {display_name(name)}{PLAIN}\n")
            self._drafted = ""

    def speak(self, room_id: str) -> None:
        """Something is in the outbox."""
        self.stirred.set()

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        """Nothing: here nobody replies to one message among many."""
        return None

    def say(self, text: str) -> None:
        """Write an answer, or what of it was not written while it was made."""
        if self._drafted and text.startswith(self._drafted):
            self._write(text[len(self._drafted) :])
        elif text != self._drafted:
            self._end_line()
            self._write(text)
        self._end_line()
        self._drafted = ""

    def _write(self, text: str) -> None:
        # No control characters: a model's answer must not steer the terminal.
        if text:
            self._screen.write(harmless(text))
            self._begun = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._begun:
            self._screen.write("\n")
            self._begun = False
