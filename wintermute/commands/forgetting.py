"""Forgetting a fact for good: the one change without a way back (DESIGN §5, M-030, M-066)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wintermute.db import Transaction, UpgradeCopy
from wintermute.db.traces import Wanted
from wintermute.errors import MemoryFileUnusable
from wintermute.memory.core import MEMORIES, TextFile
from wintermute.memory.fact import Fact
from wintermute.stores import Stores

RECOGNISABLE = 12
"""Characters from which a text is looked for in conversations; shorter ones stand in too many."""

OURS = {"matrix", "skills"}
"""Folders of the data folder: keys and nothing that was said; and what is named otherwise."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was erased, and what a person should know about the rest."""

    facts: int
    """How many memories; none while something is `unfinished`."""
    records: int
    """How many messages, answers, prompts and reminders."""
    unfinished: int
    """Messages about it that are still to be answered or sent: to be asked again afterwards."""
    short: tuple[str, ...]
    """Memories too short to be recognised in conversations they were not learnt from."""
    quoted: tuple[str, ...]
    """What still says it, and is a person's to change."""
    copies: tuple[UpgradeCopy, ...]
    """Copies of the database from before upgrades, which may still hold it."""
    scrubbed: bool
    """Whether no trace is left in the free space of the database either."""


async def forget(stores: Stores, wanted: Sequence[Fact]) -> Forgotten:
    """Erase facts, the messages they were learnt from, and every record that repeats them.

    Earlier wordings go along. The facts themselves go last: whatever ends this half way, it can be
    asked for again.

    Raises: MemoryFileUnusable when a memories file cannot be rewritten.
    """
    facts = await stores.facts.lineage((fact.id for fact in wanted), RECOGNISABLE)
    texts = {fact.text for fact in facts} | await _wordings(stores, {fact.id for fact in facts})
    async with stores.database.transaction() as tx:
        origins = {origin for fact in facts for origin in fact.origins}
        events = await with_reports(stores, tx, origins)
    names = [*(fact.id for fact in facts), *texts]
    telling = [name for name in names if len(name) >= RECOGNISABLE]
    bodies = await stores.inbox.bodies(events)
    recorded = [*telling, *(body for body in bodies if len(body) >= RECOGNISABLE)]
    async with stores.database.transaction() as tx:
        asked = await stores.casts.of_events(tx, events)
        calls = await stores.model_calls.forget(tx, asked, recorded)
        casts, running = await stores.casts.forget(tx, events, telling)
        prompts = await stores.casts.forget_prompts(tx, sorted(texts))
        edits = await stores.edits.forget(tx, events, telling)
        handed_out = await stores.sub_sessions.forget(tx, events, telling)
        received, unanswered = await stores.inbox.forget(tx, events, telling)
        owed = await stores.jobs.erase(tx, telling)
        promised = await stores.occurrences.erase(tx, telling)
        changed = await stores.changes.erase(tx, telling)
        dropped = await stores.tasks.erase(tx, telling)
        dropped += await stores.proposals.erase(tx, telling)
        said, unsent = await stores.outbox.forget(tx, events, telling)
    unfinished = max(running, unanswered) + unsent
    gone = 0 if unfinished else await _purge(stores, facts)
    quoted = await _quoted(stores, facts, telling)
    async with stores.database.transaction() as tx:
        await stores.edited.erase(tx, sorted(texts))  # last: looking at a file keeps what it holds
    return Forgotten(
        facts=gone,
        records=casts
        + prompts
        + owed
        + edits
        + received
        + said
        + calls
        + handed_out
        + promised
        + changed
        + dropped,
        unfinished=unfinished,
        short=tuple(fact.id for fact in wanted if len(fact.text) < RECOGNISABLE),
        quoted=quoted,
        copies=tuple(await stores.database.copies()),
        scrubbed=await stores.database.scrub(),
    )


async def with_reports(stores: Stores, tx: Transaction, events: set[str]) -> list[str]:
    """These events, and those that came of what was handed out for them."""
    newest = events
    while newest:
        turns = await stores.casts.turns_of(tx, sorted(newest))
        newest = set(await stores.inbox.reports(turns)) - events
        events = events | newest
    return sorted(events)


async def _wordings(stores: Stores, ids: set[str]) -> set[str]:
    """What the facts were before somebody reworded them, as far as it is on record."""
    states = [
        state
        for found in await stores.changes.history(("fact",), limit=-1)
        for change in found.changes
        if change.kind == "fact" and change.item in ids
        for state in (change.before, change.after)
        if state
    ]
    return {state["text"] for state in states}


async def _purge(stores: Stores, facts: Sequence[Fact]) -> int:
    gone = 0
    for scope in sorted({fact.scope for fact in facts}):
        gone += await stores.memories.remove(scope, {f.id for f in facts if f.scope == scope})
    return gone


async def _quoted(stores: Stores, facts: Sequence[Fact], telling: Sequence[str]) -> tuple[str, ...]:
    """Tasks, skills, files and other facts that say it, or took its place."""
    gone = {fact.id for fact in facts}
    heirs = {fact.replaced_by for fact in facts if fact.replaced_by}
    wanted = Wanted(telling)

    def say(*texts: str) -> bool:
        return any(map(wanted.is_in, texts))

    alike = dict.fromkeys([*await stores.facts.saying(telling), *sorted(heirs)])
    tasks = await stores.tasks.listed(None, "all")
    skills = [skill.name for skill in await stores.skills.listed()]
    return (
        *[fact for fact in alike if fact not in gone and await stores.facts.get(fact)],
        *(task.id for task in tasks if say(task.content, task.reason, task.plan.ai_prompt)),
        *[f"skill {name}" for name in skills if say(await stores.skills.read(name))],
        *await asyncio.to_thread(_files, stores.data_dir, wanted),
    )


def _files(folder: Path, wanted: Wanted) -> list[str]:
    """The files of the data folder that say it, but for what is a store's."""
    found = []
    for path in sorted(folder.rglob("*")):
        first = path.relative_to(folder).parts[0]
        if first in OURS or first.startswith("wintermute.db") or path.name == MEMORIES:
            continue
        with suppress(MemoryFileUnusable):
            if path.is_file() and wanted.said_in(TextFile(path, str(path)).content() or b""):
                found.append(str(path))
    return found
