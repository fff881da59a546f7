"""A terminal's screen, read by the test as a person reads it."""

import os
import re

from wintermute.text import harmless

STEERS = re.compile(r"\x1b\[(\d*)([ACJm;\d]*?)([ACJm])")
PROMPTS = re.compile(r"\x1b\[[?>]?(\d*)([\d; ]*?)([A-Za-z])")
"""What a prompt asks for besides."""


class Glass:
    """A terminal as small as a test wants; it knows no more than what a page may ask of it."""

    live = True
    steers = STEERS

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.columns, self.height = columns, lines
        self.rows = [""]
        self.row = self.column = 0
        self.raw = ""
        self.watched = True

    @property
    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.height))

    @property
    def text(self) -> str:
        """All that was ever shown and not taken away, what scrolled off included."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")

    def write(self, text: str) -> None:
        self.raw += text
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = self.steers.match(text, at)
                assert found, f"not asked for: {text[at : at + 20]!r}"
                self._steer(found[3], int(found[1] or 1))
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    def _steer(self, what: str, number: int) -> None:
        if what == "A":
            top = max(0, len(self.rows) - self.height)
            assert self.row - number >= top, "what has scrolled off cannot be reached"
            self.row -= number
        elif what == "C":
            self.column += number
        elif what == "J":
            self.rows[self.row + 1 :] = []
            self.rows[self.row] = self.rows[self.row][: self.column]

    def _put(self, mark: str) -> None:
        if mark == "\r":
            self.column = 0
            return
        if mark == "\n" or self.column == self.columns:
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        if mark != "\n":
            assert harmless(mark) == mark, f"steers: {mark!r}"
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + mark + row[self.column + 1 :]
            self.column += 1


class PromptGlass(Glass):
    """One on which lines are typed too: what is said to it is a program's whole output."""

    steers = PROMPTS

    def _steer(self, what: str, number: int) -> None:
        if what == "B":
            self.row += number
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif what == "D":
            self.column = max(0, self.column - number)
        elif what == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        else:
            super()._steer(what, number)

    def _put(self, mark: str) -> None:
        if mark == "\b":
            self.column = max(0, self.column - 1)
        elif mark != "\a":
            super()._put(mark)
