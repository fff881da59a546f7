"""What a person at the terminal sees: answers as they are written, tools in one dim line each."""

import asyncio
from typing import Protocol, TextIO

from wintermute.text import clean

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
    """A stream as a screen."""

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self.live = live

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TerminalSpeaker:
    """The way back to the terminal. `stirred` is set by all that happens."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._drafted = ""
        self._begun = False
        self.stirred = asyncio.Event()

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
            self._drafted = ""
            return
        self._write(piece)
        self._drafted += piece

    def gate(self, room_id: str, name: str) -> None:
        """One dim line for a tool."""
        if self._screen.live:
            self._end_line()
            self._screen.write(f"{DIM}· {clean(name)}{PLAIN}\n")
            self._drafted = ""

    def speak(self, room_id: str) -> None:
        """Something is in the outbox."""
        self.stirred.set()

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
            self._screen.write(clean(text).replace("\ufffd", ""))
            self._begun = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._begun:
            self._screen.write("\n")
            self._begun = False
