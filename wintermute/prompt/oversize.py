"""Notices parts of the prompt that grew too long, and asks the model to shorten them (P-048)."""

from collections.abc import Mapping
from pathlib import Path

from wintermute.clock import Clock, moment, stamp
from wintermute.config.schema import ComponentSizeLimits
from wintermute.db import Transaction
from wintermute.memory.places import Places
from wintermute.prompt.gather import Gather
from wintermute.prompt.limits import Component, Told, oversize
from wintermute.templates import NOTHING_KEPT, Template, fill

FILES: Mapping[Component, str] = {
    "memories": "OVERSIZE_MEMORIES.txt",
    "tasks": "OVERSIZE_TASKS.txt",
    "skills": "OVERSIZE_SKILLS.txt",
}


class Oversize:
    """What was said about which size, so that nobody is nagged (P-051)."""

    def __init__(
        self,
        gather: Gather,
        limits: ComponentSizeLimits,
        prompts: Path,
        places: Places,
        clock: Clock,
        kept: Mapping[str, str] = NOTHING_KEPT,
    ) -> None:
        self._gather = gather
        self._limits: Mapping[Component, int] = {
            "memories": limits.memories,
            "tasks": limits.tasks,
            "skills": limits.skills_total,
        }
        self._texts = {part: Template(prompts, name, kept) for part, name in FILES.items()}
        self._places = places
        self._clock = clock

    async def sizes(self, scope: str) -> Mapping[Component, int]:
        """How long the parts of this scope are now, in characters."""
        return await self._gather.sizes(scope)

    async def notices(
        self, tx: Transaction, scope: str, sizes: Mapping[Component, int]
    ) -> list[str]:
        """The texts of the events to queue now, in order; what was said is remembered."""
        await self._forget_the_short(tx, scope, sizes)
        due = oversize(sizes, self._limits, await self._told(tx, scope), self._clock.now())
        for component in due:
            await tx.execute(
                "INSERT INTO oversize (scope, component, size, told_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (scope, component) DO UPDATE SET size = excluded.size,"
                " told_at = excluded.told_at",
                (scope, component, sizes[component], stamp(self._clock.now())),
            )
        return [self._text(component, sizes[component], scope) for component in due]

    def _text(self, component: Component, size: int, scope: str) -> str:
        values = {"size": str(size), "limit": str(self._limits[component])}
        if component == "memories":
            values["file"] = self._places.shown_memories(scope)
        return fill(self._texts[component].text(), values)

    async def _told(self, tx: Transaction, scope: str) -> dict[Component, Told]:
        rows = await tx.rows(
            "SELECT component, size, told_at FROM oversize WHERE scope = ?", (scope,)
        )
        return {row["component"]: Told(row["size"], moment(row["told_at"])) for row in rows}

    async def _forget_the_short(
        self, tx: Transaction, scope: str, sizes: Mapping[Component, int]
    ) -> None:
        """A part that is short again may be told of anew when it grows."""
        for component, size in sizes.items():
            if size <= self._limits[component]:
                await tx.execute(
                    "DELETE FROM oversize WHERE scope = ? AND component = ?", (scope, component)
                )
