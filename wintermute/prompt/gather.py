"""Reads the parts of the system prompt as they are at this moment; `assemble` then joins them."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from wintermute.clock import Clock
from wintermute.errors import ConfigurationError, MemoryUnavailable
from wintermute.health.store import Health
from wintermute.memory.core import Core
from wintermute.prompt.assemble import Parts, assemble, current_time
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.limits import Component
from wintermute.prompt.parts import (
    core_text,
    flat_lines,
    inert,
    ranked_lines,
    skill_lines,
    task_lines,
)
from wintermute.prompt.sections import chosen
from wintermute.skills.store import Skills
from wintermute.tasks.store import Tasks

log = logging.getLogger(__name__)


class Ranking(Protocol):
    """A memory that can be asked."""

    async def search(self, scope: str, query: str) -> Sequence[str]:
        """The facts that fit, best first, no more than are wanted. Raises: MemoryUnavailable."""
        ...


class Gather:
    """All that a system prompt is made of. Every part is read anew each time (P-001, P-005).

    `memories` gives the whole list of a scope: the memories file, or with a `ranking` the working
    set, for work without a query (P-010, P-013).
    """

    def __init__(
        self,
        instructions: Instructions,
        core: Core,
        memories: Callable[[str], Awaitable[str]],
        ranking: Ranking | None,
        tasks: Tasks,
        skills: Skills,
        health: Health,
        clock: Clock,
        timezone: str,
    ) -> None:
        self._instructions = instructions
        self._core = core
        self._memories = memories
        self._ranking = ranking
        self._tasks = tasks
        self._skills = skills
        self._health = health
        self._clock = clock
        self._timezone = timezone

    async def system(
        self, scope: str, tools: Collection[str], query: str | None, summary: str = ""
    ) -> str:
        """The system prompt for one scope and one set of tools."""
        parts = await self.gather(scope, tools, query)
        return assemble(replace(parts, summary=inert(summary)))

    async def gather(self, scope: str, tools: Collection[str], query: str | None = None) -> Parts:
        """The parts, none of another scope."""
        ranked = self._ranking is not None and query is not None
        instructions = chosen(self._instructions.sections(), tools)
        if not instructions:
            raise ConfigurationError(
                "BASE_PROMPT.txt has no section for these tools: let one of them require always"
            )
        return Parts(
            instructions=instructions,
            now=current_time(self._clock.now(), self._timezone),
            core=core_text(await self._core.text(scope)),
            memories=await self._remembered(scope, query),
            ranked=ranked,
            tasks=await self._active(scope),
            skills=await self._listed(),
        )

    async def sizes(self, scope: str) -> dict[Component, int]:
        """The characters of each part that has a limit (P-048) and can be shortened in this scope.

        A ranked memory has none (P-052); skills and global tasks are the owner's.
        """
        tasks = await self._tasks.active(scope)
        found: dict[Component, int] = {}
        if self._ranking is None:
            found["memories"] = len(flat_lines(await self._memories(scope)))
        if scope == self._tasks.owner_scope:
            found["skills"] = len(await self._listed())
        else:
            tasks = tuple(task for task in tasks if task.scope == scope)
        return {**found, "tasks": len(task_lines(tasks))}

    async def _remembered(self, scope: str, query: str | None) -> str:
        if self._ranking is None or query is None:
            return flat_lines(await self._memories(scope))
        try:
            return ranked_lines(await self._ranking.search(scope, query))
        except MemoryUnavailable as error:  # nothing rather than something else (P-014)
            log.warning("memory search failed scope=%s reason=%s", scope, error)
            await self._health.failed("memory search")
            return ""

    async def _active(self, scope: str) -> str:
        return task_lines(await self._tasks.active(scope))

    async def _listed(self) -> str:
        return skill_lines(await self._skills.listed())
