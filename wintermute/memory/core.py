"""The core memory: a small file per scope that is in every prompt."""

import logging

from wintermute.errors import MemoryFileUnusable
from wintermute.memory.places import Places
from wintermute.memory.said import SaidOnce

log = logging.getLogger(__name__)


class Core:
    """Reads `core.md` anew each time, so that an edit by hand is in the next prompt (M-053)."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._said = SaidOnce(log)

    def text(self, scope: str) -> str:
        """The file of this scope; empty when there is none or it cannot be read."""
        try:
            text = self._places.core_file(scope).text()
        except MemoryFileUnusable as problem:
            self._said.warn("core memory left out", scope, problem)
            return ""
        self._said.over(scope)
        return text or ""
