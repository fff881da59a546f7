"""Tools for memories and skills, and the memories as a file."""

import hashlib
from dataclasses import replace
from datetime import date, datetime, time, tzinfo

from wintermute.changes.change_sets import Reason
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.jobs import Jobs
from wintermute.loom.casts import Casts
from wintermute.memory.backend import MemoryBackend
from wintermute.memory.core import Places
from wintermute.memory.fact import (
    BESIDE,
    EXPLICIT,
    MOST,
    SOURCES,
    Fact,
    NewFact,
    cleaned,
    storable_parts,
)
from wintermute.memory.facts import SPLIT, Facts
from wintermute.memory.ranking import Query
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.secret_shapes import refuse_secret, secret_kind
from wintermute.skills.skills import Skills, skill_path
from wintermute.tools.definition import ASK_FIRST, OwnTool, reason

LONGEST_TEXT = 50_000
"""Characters of a text that is split into memories."""
HIDDEN_IN_SKILL = "it looks like it holds {kind}. Models read skills, so they see [secret] instead. Say where it is kept"
MOST_FOUND = 50
"""Facts in one result of `search_memory`."""


class AppendMemory(OwnTool):
    """Tool `append_memory(entry, source)`: one fact of the scope in which it is called (M-004)."""

    name = "append_memory"
    doing = "remembering"

    def __init__(self, facts: Facts, casts: Casts, jobs: Jobs) -> None:
        self._facts = facts
        self._casts = casts
        self._jobs = jobs

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """Return the stored fact; `known` if it already was (M-007)."""
        source = args.get("source", EXPLICIT)
        if source not in SOURCES:
            raise ToolFailed(f"unknown source: {source}. The sources are {', '.join(SOURCES)}")
        origins = (caller.event_id,) if caller.event_id else ()
        taint = await self._casts.is_tainted(tx, caller.cast_id)
        if MOST < len(cleaned(args["entry"])) <= LONGEST_TEXT:
            whole = NewFact(caller.scope, args["entry"], source, origins=origins, taint=taint)
            return await self._split_later(tx, caller, whole)
        fact, outcome = await self._facts.add(
            *(tx, reason(caller), args["entry"], source),
            scope=caller.scope,
            origins=origins,
            taint=taint,
        )
        return {"id": fact.id, "text": fact.text, "source": fact.source, "stored": outcome}

    async def _split_later(self, tx: Transaction, caller: Caller, whole: NewFact) -> Json:
        """Store a long text as it is and enqueue a job that splits it into memories; a search finds it meanwhile."""
        text = whole.text
        refuse_secret(text)
        parts = [replace(whole, text=part) for part in storable_parts(text)]
        kept = await self._facts.supersede(tx, reason(caller), parts, {})
        digest = hashlib.blake2b(f"{caller.cast_id}\0{text}".encode(), digest_size=16).hexdigest()
        args = {"text": text, "facts": [fact.id for fact in kept.facts], "set": kept.set_id}
        await self._jobs.enqueue(tx, SPLIT, digest, caller.scope, args)
        return {"stored": "kept; it is split into single memories in the background"}


class SearchMemory(OwnTool):
    """Tool `search_memory(query, n, when)`: facts of the scope in which it is called (M-009)."""

    name = "search_memory"
    doing = "searching my memory"
    durable = True

    def __init__(self, memories: MemoryBackend, facts: Facts, zone: tzinfo, top_k: int) -> None:
        self._memories = memories
        self._facts = facts
        self._zone = zone
        self._top_k = top_k

    async def run(self, caller: Caller, args: Json) -> object:
        """Return the best facts first, or the newest without a query."""
        most, asked = min(args.get("n", self._top_k), MOST_FOUND), args.get("query", "").strip()
        when = self._day(args["when"]) if "when" in args else None
        if most <= 0:
            return []
        if asked:
            hits = await self._memories.search(caller.scope, Query(asked), most, when)
            return [self._line(hit.fact) | ({"note": BESIDE} if hit.beside else {}) for hit in hits]
        return [self._line(fact) for fact in await self._facts.latest(caller.scope, 1, most, when)]

    def _day(self, text: str) -> datetime:
        """Return the end of a day, so that facts which began or ended on it count as they then were."""
        try:
            day = date.fromisoformat(text)
        except ValueError as error:
            raise ToolFailed("`when` is a day such as 2026-05-04") from error
        return datetime.combine(day, time.max, self._zone)

    def _line(self, fact: Fact) -> Json:
        shown: Json = {
            "id": fact.id,
            "text": fact.text,
            "source": fact.source,
            "date": self._date(fact.created_at),
        }
        return shown | {"until": self._date(fact.valid_to)} if fact.valid_to else shown

    def _date(self, at: datetime) -> str:
        return at.astimezone(self._zone).date().isoformat()


class MemoriesView:
    """Memories of a scope as the one file outside the allowed folders (P-049)."""

    def __init__(self, memories: MemoryBackend, places: Places) -> None:
        self._memories = memories
        self._places = places

    def shown_path(self, scope: str) -> str:
        """Return the file's name in prompt and tools."""
        return self._places.shown_memories(scope)

    async def text(self, scope: str) -> str:
        """Return the file's content, one fact per line."""
        return await self._memories.text(scope)

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Json:
        """Replace the content and count new and retired facts; facts newer than `begun` stay."""
        done = await self._memories.replace(scope, text, why, begun)
        return {
            "path": self.shown_path(scope),
            "memories": len((await self._memories.text(scope)).splitlines()),
            "new": done.outcomes.count("stored"),
            "retired": len(done.retired),
        }


class AddSkill(OwnTool):
    """Tool `add_skill(skill_name, summary, documentation)`: a new skill, or its new text (P-037)."""

    name = "add_skill"
    doing = "keeping a skill"
    durable = True

    def __init__(self, skills: Skills, owner: Owner) -> None:
        self._skills = skills
        self._owner = owner

    async def run(self, caller: Caller, args: Json) -> object:
        """Write the skill and return its path. Every room sees it, so only the owner may."""
        if not self._owner.may(caller.origin, caller.scope):
            raise ToolFailed("only the owner may have skills written: every room would see them")
        name = args["skill_name"]
        if caller.only_adds and any(skill.name == name for skill in await self._skills.listed()):
            raise ToolFailed(ASK_FIRST)
        created = await self._skills.write(
            reason(caller), name, args["summary"], args["documentation"]
        )
        kind = secret_kind(f"{args['summary']}\n{args['documentation']}")
        note = {"note": HIDDEN_IN_SKILL.format(kind=kind)} if kind else {}
        return {"path": skill_path(name), "created": created} | note
