"""Somebody who listens to a model."""

from collections.abc import Callable

from wintermute.llm.backend import Wait


class Listening:
    """Writes down what comes: pieces of text, "" for each new attempt, and how attempts failed."""

    def __init__(self, notice: Callable[[str], None] | None = None) -> None:
        self.pieces: list[str] = []
        self.events: list[str] = []
        self.waits: list[Wait] = []
        self._notice = notice

    def asked(self) -> None:
        self.pieces.append("")
        self.events.append("asked")

    def awaits(self, wait: Wait) -> None:
        self.waits.append(wait)

    def begun(self) -> None:
        self.events.append("begun")

    def said(self, piece: str) -> None:
        self.pieces.append(piece)
        if self._notice:
            self._notice(piece)

    def was_reasoning(self) -> None:
        self.events.append("was reasoning")

    def failed(self, problem: str, *, unreachable: bool) -> None:
        self.events.append("unreachable" if unreachable else "failed")
