"""Forgetting for good, from a fact or from a message on: the one change without a way back.

DESIGN §5, M-030, M-066. Whatever ends it half way, it is done again from the start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from wintermute.changes.change_sets import CHANGES
from wintermute.changes.proposals import PROPOSALS
from wintermute.db import Transaction, UpgradeCopy
from wintermute.db.text_search import Kept, Sought, TextSearch, Traces
from wintermute.db.traces import Wanted
from wintermute.errors import MemoryFileUnusable
from wintermute.health.health import EDITED
from wintermute.jobs import OWED
from wintermute.llm.calls import RECORDED
from wintermute.loom import casts, conversations
from wintermute.loom.sub_sessions import SESSIONS
from wintermute.mailbox.inbox import RECEIVED, SAID
from wintermute.mailbox.outbox import ANSWERS
from wintermute.memory.core import CORE, MEMORIES, TextFile
from wintermute.memory.fact import Fact
from wintermute.memory.facts import FACTS
from wintermute.memory.origins import Origins, is_said_in
from wintermute.night.harvest import Harvests
from wintermute.stores import Stores
from wintermute.tasks.occurrences import OCCURRENCES
from wintermute.tasks.tasks import TASKS

RECOGNISABLE = 12
"""Characters from which a text is looked for in conversations; shorter ones stand in too many."""

EDITS = 3
"""Times a core is read anew where somebody saves it at the same moment."""

SPOKEN: Sequence[Kept] = (
    *(casts.INTENTS, casts.RESULTS, casts.TURNS, casts.OBSERVATIONS, casts.FOLDS),
    *(conversations.EDITS, SESSIONS, RECEIVED, ANSWERS),
    *(OWED, OCCURRENCES, CHANGES, TASKS, PROPOSALS),
)

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


@dataclass(frozen=True, slots=True)
class _Gone:
    """What goes: facts, what they and the messages said, and the events all of it came from."""

    facts: tuple[Fact, ...]
    texts: frozenset[str]
    events: tuple[str, ...]

    def traces(self) -> list[str]:
        """What is looked for wherever it may have been repeated."""
        return [text for text in sorted(self.texts) if len(text) >= RECOGNISABLE]


Note = Callable[[Sequence[str]], Awaitable[None]]
"""Keeps, until all is done, what is looked for; a run after a kill is given it as `known`."""


async def _nothing(_: Sequence[str]) -> None: ...


async def forget(
    stores: Stores, wanted: Sequence[Fact], *, scrub: bool = True, note: Note = _nothing
) -> Forgotten:
    """Erase facts, the messages they were learnt from, and every record that repeats them.

    Earlier wordings go along. The facts themselves go last: whatever ends this half way, it can be
    asked for again. Without `scrub` the file is to be rewritten when nobody waits.

    Raises: MemoryFileUnusable when a memories file cannot be rewritten.
    """
    facts = await stores.facts.lineage((fact.id for fact in wanted), RECOGNISABLE)
    texts = {fact.text for fact in facts} | await _wordings(stores, {fact.id for fact in facts})
    async with stores.database.transaction() as tx:
        events = await with_reports(stores, tx, {o for fact in facts for o in fact.origins})
    gone = _Gone(tuple(facts), frozenset(texts), tuple(events))
    async with stores.database.looking() as look:
        done = await _erase(stores, look, gone, note=note)
    short = tuple(fact.id for fact in wanted if len(fact.text) < RECOGNISABLE)
    scrubbed = await stores.database.scrub() if scrub else False
    return replace(done, short=short, scrubbed=scrubbed)


async def forget_messages(
    stores: Stores,
    harvests: Harvests,
    taken_back: Sequence[str],
    said: Sequence[str],
    known: Sequence[str] = (),
    note: Note = _nothing,
) -> Forgotten:
    """Erase messages that were taken back, what they `said`, and all that came of them only (M-030).

    What others said as well, in words of their own, is not looked for: it is theirs.
    """
    async with stores.database.looking() as look:
        async with stores.database.transaction() as tx:
            events = await with_reports(stores, tx, set(taken_back))
        facts, again = await _unlearn(stores, set(events))
        texts = {fact.text for fact in facts} | await _wordings(stores, {f.id for f in facts})
        texts = await _only_there(stores, look, events, texts.union(said))
        gone = _Gone(tuple(facts), frozenset(texts), tuple(events))
        done = await _erase(stores, look, gone, known, note)
    if again and not done.unfinished:
        async with stores.database.transaction() as tx:
            await harvests.put_back(tx, again)
    return done


async def _unlearn(stores: Stores, events: set[str]) -> tuple[list[Fact], set[str]]:
    """The facts that go with these messages, and the other messages that they are made anew from.

    A fact that all its other origins say as well stays, and was not learnt from these any more.
    What was merged into one that goes is there again, unless it came from these messages too.
    """
    origins = Origins(stores.database, stores.facts)
    found = await origins.of_events(events)
    before = await origins.replaced_by([fact.id for fact in found])
    ours = {fact.id for fact in found}
    kept, gone, again = list[Fact](), list[Fact](), set[str]()
    for fact in found:
        others = set(fact.origins) - events
        merged = [each for each in before if each.replaced_by == fact.id and each.id not in ours]
        rows = await stores.inbox.texts(sorted(others))
        told = [*rows.values(), *(each.text for each in merged)]
        elsewhere = not merged and bool(others - set(rows))  # imported, or typed at a terminal
        if elsewhere or (told and is_said_in(fact.text, told)):
            kept.append(fact)
            continue
        gone.append(fact)
        if fact.retired_at is None and not merged:
            again |= set(rows)
    names = {fact.id for fact in gone}
    back = [fact for fact in before if fact.replaced_by in names and fact.id not in ours]
    async with stores.database.transaction() as tx:
        await origins.lose(tx, [fact.id for fact in kept], events)
        await origins.revive(tx, back)
    return gone, again


async def _only_there(
    stores: Stores, look: TextSearch, events: Sequence[str], texts: set[str]
) -> set[str]:
    """Those of the texts that nobody has said in another message, but to quote it."""
    named = sorted(text for text in texts if len(text) >= RECOGNISABLE)
    others = await stores.inbox.saying(events, await look.seek([Sought([SAID], named)]))
    own = ["\n".join(x for x in body.splitlines() if not x.startswith(">")) for body in others]
    wanted = {text: Wanted([text]) for text in named}
    return {text for text in named if not any(map(wanted[text].is_in, own))}


async def _erase(
    stores: Stores, look: TextSearch, gone: _Gone, known: Sequence[str] = (), note: Note = _nothing
) -> Forgotten:
    """Erase every record of it in steps, so that no answer waits for all of them."""
    bullets = await _bullets(stores, gone)
    telling = sorted({*gone.traces(), *(fact.id for fact in gone.facts), *bullets, *known})
    # What says where to look goes soon: a run after this one, which was killed, has to know it.
    await note(telling)
    said = await stores.inbox.bodies(gone.events)
    sought = [
        Sought([RECORDED], [*telling, *(body for body in said if len(body) >= RECOGNISABLE)]),
        Sought(SPOKEN, telling),
        Sought(casts.PROMPTS, sorted({*gone.texts, *telling})),
    ]
    found = await look.seek(sought)
    records, unfinished = await _erase_found(stores, gone, found)
    await _cut_cores(stores, gone)
    purged = 0 if unfinished else await _purge(stores, gone.facts)
    for file in stores.places.files():
        await asyncio.to_thread(file.drop_parts)
    if not unfinished:  # what was written since, by a question that still knew it
        found = await look.seek(sought, since=found)
        late, unfinished = await _erase_found(stores, gone, found)
        records += late
    quoted = await _quoted(stores, look, gone.facts, telling)
    # Last: looking at a file keeps what it holds.
    edited = await look.seek([Sought([EDITED], sorted({*gone.texts, *telling}))])
    async with stores.database.transaction() as tx:
        await stores.edited.erase(tx, edited)
    return Forgotten(
        facts=purged,
        records=records,
        unfinished=unfinished,
        short=(),
        quoted=quoted,
        copies=tuple(await stores.database.copies()),
        scrubbed=False,
    )


async def _erase_found(stores: Stores, gone: _Gone, found: Traces) -> tuple[int, int]:
    """Erase what was found and what came of the messages; how many records, and how many wait."""
    transaction, events = stores.database.transaction, gone.events
    async with transaction() as tx:
        asked = await stores.casts.of_events(tx, events)
        records = await stores.model_calls.forget(tx, asked, found)
    async with transaction() as tx:
        blanked, running = await stores.casts.forget(tx, events, found)
    async with transaction() as tx:
        records += blanked + await stores.casts.forget_prompts(tx, found)
    async with transaction() as tx:
        records += await stores.edits.forget(tx, events, found)
        records += await stores.sub_sessions.forget(tx, events, found)
        received, unanswered = await stores.inbox.forget(tx, events, found)
    async with transaction() as tx:
        records += await stores.jobs.erase(tx, found)
        records += await stores.occurrences.erase(tx, found)
        records += await stores.changes.erase(tx, found)
        records += await stores.tasks.erase(tx, found)
        records += await stores.proposals.erase(tx, found)
        said_by_us, unsent = await stores.outbox.forget(tx, events, found)
    return records + received + said_by_us, max(running, unanswered) + unsent


async def _bullets(stores: Stores, gone: _Gone) -> list[str]:
    """What the bullets of cores say that are to be cut out, to be looked for as well."""
    lines = [line for _, _, _, cut in await _cores(stores, gone) for line in cut]
    return [line for line in lines if len(line) >= RECOGNISABLE]


async def _cut_cores(stores: Stores, gone: _Gone) -> None:
    """Cut out the bullets of cores that say it."""
    for _ in range(EDITS):  # somebody may save one meanwhile
        for file, seen, left, cut in await _cores(stores, gone):
            if cut:
                await asyncio.to_thread(file.replace, left, seen)


async def _cores(
    stores: Stores, gone: _Gone
) -> list[tuple[TextFile, bytes | None, str, list[str]]]:
    """Each core as it is, as it should be, and what is to be cut out of it.

    That is what says it; in the core of a fact's own scope also what says no more than the fact did.
    """
    wanted, found = Wanted(gone.traces()), []
    for file in stores.places.files():
        if file.path.name != CORE:
            continue
        facts = [f.text for f in gone.facts if stores.places.core_file(f.scope) == file]
        with suppress(MemoryFileUnusable):  # named as what a person must change
            seen = await asyncio.to_thread(file.content)
            text = file.decoded(seen) if seen else ""
            found.append((file, seen, *without_bullets(text, wanted, facts)))
    return found


def without_bullets(text: str, wanted: Wanted, facts: Sequence[str]) -> tuple[str, list[str]]:
    """A core without its bullets that say something wanted, or no more than these; and what went."""
    kept, gone = list[str](), list[str]()
    for line in text.splitlines(keepends=True):
        bullet = line.strip()
        is_bullet = bullet.startswith(("- ", "* "))
        body = bullet[2:].strip()
        says = is_bullet and (wanted.is_in(body) or any(is_said_in(body, [f]) for f in facts))
        if says:
            gone.append(body)
        else:
            kept.append(line)
    return "".join(kept), gone


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
    steps = await stores.changes.steps(stores.database, [("fact", each) for each in sorted(ids)])
    return {
        state["text"]
        for entries in steps.values()
        for entry in entries
        for state in (entry.change.before, entry.change.after)
        if state
    }


async def _purge(stores: Stores, facts: Sequence[Fact]) -> int:
    gone = 0
    for scope in sorted({fact.scope for fact in facts}):
        gone += await stores.memories.remove(scope, {f.id for f in facts if f.scope == scope})
    return gone


async def _quoted(
    stores: Stores, look: TextSearch, facts: Sequence[Fact], telling: Sequence[str]
) -> tuple[str, ...]:
    """Tasks, skills, files and other facts that say it, or took its place."""
    gone = {fact.id for fact in facts}
    heirs = {fact.replaced_by for fact in facts if fact.replaced_by}
    wanted = Wanted(telling)

    def say(*texts: str) -> bool:
        return any(map(wanted.is_in, texts))

    saying = await stores.facts.saying(await look.seek([Sought([FACTS], telling)]))
    alike = dict.fromkeys([*saying, *sorted(heirs)])
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
