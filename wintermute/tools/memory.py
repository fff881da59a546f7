"""The tools that remember and that teach a skill, and the memories as a file."""

from datetime import datetime

from wintermute.changes.change_sets import Reason
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.memory.backend import MemoryBackend
from wintermute.memory.core import Places
from wintermute.memory.fact import EXPLICIT, SOURCES
from wintermute.memory.facts import Facts
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.skills.skills import Skills, shown
from wintermute.tools.definition import ASK_FIRST, brief, definition, reason


class AppendMemory:
    """`append_memory(entry, source)`: one fact of the scope in which it is called (M-004)."""

    name = "append_memory"

    def __init__(self, facts: Facts) -> None:
        self.description, self.parameters = definition(self.name)
        self.brief = brief(self.name)
        self._facts = facts

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """The fact as it is stored; `known` if it already was (M-007)."""
        source = args.get("source", EXPLICIT)
        if source not in SOURCES:
            raise ToolFailed(f"unknown source: {source}. The sources are {', '.join(SOURCES)}")
        origins = (caller.event_id,) if caller.event_id else ()
        fact, outcome = await self._facts.add(
            tx, reason(caller), args["entry"], source, scope=caller.scope, origins=origins
        )
        return {"id": fact.id, "text": fact.text, "source": fact.source, "stored": outcome}


class MemoriesView:
    """The memories of a scope as a file, for the file tools (P-049)."""

    def __init__(self, memories: MemoryBackend, places: Places) -> None:
        self._memories = memories
        self._places = places

    def shown(self, scope: str) -> str:
        """What prompt and tools call the file."""
        return self._places.shown_memories(scope)

    async def text(self, scope: str) -> str:
        """One fact per line."""
        return await self._memories.text(scope)

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Json:
        """What became of the lines, once it is stored."""
        done = await self._memories.replace(scope, text, why, begun)
        return {
            "path": self.shown(scope),
            "memories": len((await self._memories.text(scope)).splitlines()),
            "new": done.outcomes.count("stored"),
            "retired": len(done.retired),
        }


class AddSkill:
    """`add_skill(skill_name, summary, documentation)`: a new skill, or its new text (P-037)."""

    name = "add_skill"
    durable = True

    def __init__(self, skills: Skills, owner: Owner) -> None:
        self.description, self.parameters = definition(self.name)
        self.brief = brief(self.name)
        self._skills = skills
        self._owner = owner

    async def run(self, caller: Caller, args: Json) -> object:
        """Where the skill stands now. Every room sees it, so only the owner teaches."""
        if not self._owner.may(caller.origin, caller.scope):
            raise ToolFailed("only the owner may have skills written: every room would see them")
        name = args["skill_name"]
        if caller.only_adds and any(skill.name == name for skill in await self._skills.listed()):
            raise ToolFailed(ASK_FIRST)
        created = await self._skills.write(
            reason(caller), name, args["summary"], args["documentation"]
        )
        return {"path": shown(name), "created": created}
