"""The core memory: a small file per scope that is in every prompt."""

import logging

from wintermute.errors import MemoryFileUnusable
from wintermute.memory.files import read_text
from wintermute.memory.places import Places

log = logging.getLogger(__name__)


class Core:
    """Reads `core.md` anew each time, so that an edit by hand is in the next prompt (M-053)."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def text(self, scope: str) -> str:
        """The file of this scope; empty when there is none or it cannot be read."""
        try:
            return read_text(self._places.core(scope)) or ""
        except MemoryFileUnusable as problem:
            log.warning("core memory left out scope=%s reason=%s", scope, problem)
            return ""
