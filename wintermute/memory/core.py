"""The core memory: a small file per scope that is in every prompt."""

import asyncio
import logging

from wintermute.errors import MemoryFileUnusable
from wintermute.health.edited import EditedFiles
from wintermute.memory.places import Places
from wintermute.memory.said import SaidOnce

log = logging.getLogger(__name__)


class Core:
    """Reads `core.md` anew each time, so that an edit by hand is in the next prompt (M-053)."""

    def __init__(self, places: Places, edited: EditedFiles) -> None:
        self._places = places
        self._edited = edited
        self._kept: dict[str, str] = {}
        self._said = SaidOnce(log)

    async def text(self, scope: str) -> str:
        """The file of this scope, or what it last held where it cannot be read (F-031)."""
        file = self._places.core_file(scope)
        try:
            text = await asyncio.to_thread(file.text) or ""
        except MemoryFileUnusable as problem:
            self._said.warn("core memory not read, last text stays in use", scope, problem)
            return await self._edited.text(file.name) or ""
        self._said.over(scope)
        known = self._kept.get(scope)
        if known is None:
            known = await self._edited.text(file.name) or ""
        if text != known:
            await self._edited.keep([(file.name, text)])
        self._kept[scope] = text
        return text
