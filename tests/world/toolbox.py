"""The tools on stores in one folder, called from several scopes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.world.clock import NOON, FakeClock
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import ChangeSets
from wintermute.changes.placing import Placing
from wintermute.clock import SystemClock
from wintermute.conversation.toolbox import Caller
from wintermute.db import Database
from wintermute.ids import new_id
from wintermute.jobs import Jobs
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.memory.facts import Facts
from wintermute.messages import Json, Origin
from wintermute.owner import Owner
from wintermute.skills.skills import Skills, skill_items
from wintermute.tasks.tasks import Tasks
from wintermute.tools.memory import AppendMemory
from wintermute.tools.task import TaskTool

OWNER = Owner("@ann:test")
ANN, BEN, ROOM = OWNER.scope, "person:@ben:test", "room:!kitchen:test"
SKILL = {"skill_name": "tea", "summary": "Making tea", "documentation": "Boil water."}


@dataclass(frozen=True)
class Desk:
    """All stores in one folder; @ann:test is the owner. Each scope has its conversation."""

    database: Database
    folder: Path
    tasks: Tasks
    skills: Skills
    facts: Facts
    casts: Casts
    changes: ChangeSets
    callers: dict[str, Caller]

    def caller(self, scope: str, origin: Origin | None = None) -> Caller:
        usual: Origin = "owner" if scope == ANN else "other"
        return replace(self.callers[scope], origin=origin or usual)

    async def task(self, action: str, scope: str = ANN, **args: Any) -> Any:
        """The result of a call from that scope, by the person who talks there."""
        return await self.call(self.caller(scope), {"action": action, **args})

    async def call(self, caller: Caller, args: Json) -> Any:
        async with self.database.transaction() as tx:
            return await TaskTool(self.tasks).change(tx, caller, args)

    async def remember(self, scope: str, **args: Any) -> Any:
        async with self.database.transaction() as tx:
            jobs = Jobs(SystemClock(), new_id)
            return await AppendMemory(self.facts, self.casts, jobs).change(
                tx, self.caller(scope), args
            )


@asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    """Open all stores, and begin a conversation in each scope."""
    async with open_migrated(folder / "w.db") as database:
        clock = FakeClock()
        conversations = Conversations(database, clock, new_id)
        casts = Casts(database, clock, new_id)
        callers = {}
        for scope in (ANN, BEN, ROOM):
            async with database.transaction() as tx:
                conversation = await conversations.in_room(tx, f"!{scope}", scope)
                branch = await conversations.current_branch(tx, conversation)
                cast = await casts.start(tx, branch, f"${scope}", "hello", "other", {})
            callers[scope] = Caller(conversation, scope, cast.id, "other", f"${scope}", NOON)
        changes = ChangeSets(database, clock, new_id)
        tasks = Tasks(database, changes, clock, new_id, OWNER, "Europe/Berlin")
        kept = folder / "skills"
        placing = Placing(database, changes, {"skill": skill_items(kept)}, folder)
        skills = Skills(kept, database, changes, placing, ANN)
        facts = Facts(database, changes, clock, new_id)
        yield Desk(database, folder, tasks, skills, facts, casts, changes, callers)
