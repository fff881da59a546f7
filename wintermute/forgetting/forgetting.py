"""Forgetting for good, starting from facts or messages: the only change that cannot be undone.

DESIGN §5, M-030, M-066. After an interruption it starts again from the beginning.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from wintermute.changes.change_sets import CHANGES, SUMMARIES
from wintermute.changes.decisions import DECISIONS
from wintermute.changes.nights import NOTES, REPORTED_AGAIN
from wintermute.clock import stamp
from wintermute.db import Transaction, UpgradeCopy
from wintermute.db.eraser import DerivedFrom, Erased, erase
from wintermute.db.text_match import AllWordsMatcher, TextMatcher
from wintermute.db.text_search import SearchableText, TextMatches, TextQuery, TextSearch
from wintermute.errors import MemoryFileUnusable
from wintermute.files import TextFile
from wintermute.forgetting.forget_pages import (
    GIT,
    CutPages,
    ErasedTexts,
    forget_in_pages,
    lines_in_pages,
)
from wintermute.health.health import EDITED
from wintermute.jobs import ERASED_JOBS, JOB_TEXTS
from wintermute.learning.core_update import NAME as CORE_UPDATE
from wintermute.learning.harvest import Harvests
from wintermute.llm.calls import RECORDED
from wintermute.loom import casts, conversations
from wintermute.loom.sub_sessions import SESSIONS
from wintermute.mailbox.inbox import RECEIVED, SAID
from wintermute.mailbox.outbox import ANSWERS, MEANT_FOR_THEM
from wintermute.memory.core import MEMORIES, SCOPES, bullets, is_forgotten_with
from wintermute.memory.fact import Fact, cleaned, key
from wintermute.memory.facts import FACTS
from wintermute.memory.lexical_overlap import beginnings, main_words
from wintermute.memory.origins import (
    CurrentVersion,
    Origins,
    OriginText,
    gist,
    plan_retraction,
    retracted_facts,
    source_messages,
)
from wintermute.pages.page_lines import NOTHING_LOST, LostLines, drop_lines, lost_lines
from wintermute.pages.sources import raw_files
from wintermute.stores import Stores
from wintermute.tasks.occurrences import OCCURRENCES
from wintermute.tasks.tasks import TASKS
from wintermute.templates import shipped_prompts

RECOGNISABLE = 12
"""Least characters of a text that is searched in conversations; shorter ones match too often."""

DISTINCTIVE = 5
"""Letters of a word that is distinctive enough on its own."""
PAGE_LINE = "- "
"""Prefix of page lines among the searched texts; their Markdown is ignored, as a model wrote them."""
MOST_CANDIDATES = 60
MOST_WORDS = 20
"""Distinctive words that are searched; `MOST_CANDIDATES` candidates are checked."""

STILL_CONTAINED = "The text that I forgot is still in {}. Please change it there yourself."
SHORT = "It is too short for me to search other messages for it."
MOST_NAMED = 10

EDITS = 3
"""Times a core memory is read again because somebody saved it meanwhile."""

SPOKEN: Sequence[SearchableText] = (
    *(*casts.LOOM, conversations.EDITS, SESSIONS, RECEIVED, ANSWERS),
    *(JOB_TEXTS, OCCURRENCES, CHANGES, SUMMARIES, TASKS, DECISIONS, NOTES),
)

REPEATED: Sequence[SearchableText] = [
    kept
    for kept in SPOKEN
    if kept not in (casts.INTENTS, casts.RESULTS, casts.TURNS, conversations.EDITS)
    and kept not in (RECEIVED, ANSWERS)
]
"""Tables that may repeat one of our answers, other than messages to people."""

DRAFTS = (DECISIONS,)
"""Tables with drafts of pages, in which short lines are searched too."""
STEPS: Sequence[Sequence[SearchableText]] = (
    (RECORDED,),
    casts.LOOM,
    casts.PROMPTS,
    (conversations.EDITS, SESSIONS, RECEIVED),
    (
        *(*ERASED_JOBS, OCCURRENCES, CHANGES, SUMMARIES, TASKS, DECISIONS, NOTES),
        replace(ANSWERS, dependents=(*ANSWERS.dependents, *REPORTED_AGAIN)),
    ),
)
"""Tables in the order in which they are emptied, in steps, so that answers need not wait for all."""
VIEWED = (casts.OBSERVATIONS, casts.FOLDS, *casts.PROMPTS)
"""Tables with pages that a model was shown and will be shown again."""
BY_WORDS: Sequence[SearchableText] = (
    *(casts.RESULTS, casts.TURNS, casts.OBSERVATIONS, casts.FOLDS, *casts.BLOCKS, SESSIONS),
    *(MEANT_FOR_THEM, DECISIONS),
)
"""Tables that a search by words covers: our words and notes. People's messages go by event."""

SKIPPED_FOLDERS = {"matrix", "skills"}
"""Folders of the data folder that hold keys, or are checked separately."""

Note = Callable[[Sequence[str]], Awaitable[None]]
"""Stores the searched texts until all is done; a run after a crash gets them as `known`."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The result: counts of erased things, and what a person should know about the rest."""

    facts: int
    """Number of memories; 0 while something is `unfinished`."""
    records: int
    """Number of messages, answers, prompts and reminders."""
    unfinished: int
    """Messages about it that are still to be answered or sent; forgetting must be repeated after that."""
    short: tuple[str, ...]
    """Memories too short to be recognised in conversations they were not learnt from."""
    quoted: tuple[str, ...]
    """Names of things that still contain it and that a person must change."""
    copies: tuple[UpgradeCopy, ...]
    """Copies of the database from before upgrades, which may still contain it."""
    scrubbed: bool
    """True if no trace is left in the free space of the database either."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """The things to erase: facts, the texts of facts and messages, and the events they came from."""

    facts: tuple[Fact, ...]
    texts: frozenset[str]
    events: tuple[str, ...]
    scopes: tuple[str, ...]
    """Scopes they belonged to: the same words in other scopes stay."""
    said: frozenset[str] = frozenset()
    """Texts of the messages, however short: recordings may contain them, and can be spared."""
    words: str = ""
    """Words: everything readable only in these scopes that has all of them goes too (M-084)."""
    lines: frozenset[str] = frozenset()
    """Digests of page lines that go as well, after a person said yes."""
    asks: bool = False
    """True if page lines are only asked about."""

    def traces(self) -> list[str]:
        """Return the texts to search for wherever they may have been repeated."""
        return list(filter(_is_recognisable, sorted(self.texts)))


def _is_recognisable(text: str) -> bool:
    return len(text) >= RECOGNISABLE


async def _nothing(_: Sequence[str]) -> None: ...


async def forget(
    stores: Stores,
    wanted: Sequence[Fact],
    *,
    by: str | None = None,
    scrub: bool = True,
    known: Sequence[str] = (),
    note: Note = _nothing,
) -> Forgotten:
    """Erase facts, the messages they came from, and every record of their scopes that repeats them.

    Earlier versions go along. The facts themselves go last, so that an interrupted run can be repeated. `by`: only
    this person's messages go, and text that others said as well is not searched for. Without `scrub` the file is
    rewritten later, when nobody waits.

    Raises: MemoryFileUnusable when a memories file cannot be rewritten.
    """
    async with stores.database.text_search() as search:
        facts = await _related_versions(stores, search, wanted)
        texts = {fact.text for fact in facts} | await _wordings(stores, {fact.id for fact in facts})
        async with stores.database.transaction() as tx:
            events = await with_reports(stores, tx, await _messages_of(stores, tx, facts, by))
            scopes = await stores.conversations.scopes_of(tx, (), {fact.scope for fact in facts})
        if by is not None:
            texts = await _only_there(stores, search, events, scopes, texts, but=by)
        gone = _Gone(tuple(facts), frozenset(texts), tuple(events), tuple(scopes))
        done = await _erase(stores, search, gone, known, note)
    short = tuple(fact.id for fact in wanted if len(fact.text) < RECOGNISABLE)
    scrubbed = await stores.database.scrub() if scrub else False
    return replace(done, short=short, scrubbed=scrubbed)


async def forget_messages(
    stores: Stores,
    harvests: Harvests | None,
    events: Sequence[str],
    said: Sequence[str],
    whose: Collection[str] = (),
    known: Sequence[str] = (),
    note: Note = _nothing,
    words: str = "",
    lines: Collection[str] = (),
    *,
    asks: bool = False,
) -> Forgotten:
    """Erase redacted messages, their texts (`said`), and everything derived only from them (M-030).

    `lines`: digests of page lines that go with them. `asks`: page lines are only asked about (M-082). `whose`: more
    scopes to search for what is `known`. Text that others said as well, in their own words, is not searched for.
    With `harvests`, other messages of lost memories are read again. `words`: our texts with all of them go too (M-084).
    """
    async with stores.database.text_search() as search:
        async with stores.database.transaction() as tx:
            events = await with_reports(stores, tx, set(events))
        facts = await _delete_derived(stores, harvests, set(events))
        texts = {fact.text for fact in facts} | await _wordings(stores, {f.id for f in facts})
        whose = {*whose, *(fact.scope for fact in facts)}
        scopes = await stores.conversations.scopes_of(stores.database, events, whose)
        texts = await _only_there(stores, search, events, scopes, texts.union(said))
        gone = _Gone(
            *(tuple(facts), frozenset(texts), tuple(events), tuple(scopes)),
            *(frozenset(said), words, frozenset(lines), asks),
        )
        return await _erase(stores, search, gone, known, note)


async def forget_answers(
    stores: Stores,
    scope: str,
    texts: Sequence[str],
    known: Sequence[str] = (),
    note: Note = _nothing,
) -> Forgotten:
    """Erase whatever repeats retracted answers to a scope.

    The answers themselves are gone already; the same words in another answer stay.
    """
    async with stores.database.text_search() as search:
        whose = await stores.conversations.scopes_of(stores.database, (), [scope])
        only = await _only_there(stores, search, (), whose, set(texts))
        gone = _Gone((), frozenset(only), (), tuple(whose))
        return await _erase(stores, search, gone, known, note, REPEATED)


async def _related_versions(
    stores: Stores, search: TextSearch, wanted: Sequence[Fact]
) -> list[Fact]:
    """Return these facts, their versions and duplicates, and retired facts of the scope that contain them."""
    facts, known = await stores.facts.related_versions(fact.id for fact in wanted), 0
    while len(facts) > known:
        known, ids = len(facts), [fact.id for fact in facts]
        for scope in sorted({fact.scope for fact in facts}):
            texts = [fact.text for fact in facts if fact.scope == scope]
            named = sorted(filter(_is_recognisable, texts))
            said = await search.seek([TextQuery([FACTS], named, [scope])])
            ids += [fact.id for fact in await stores.facts.saying(said) if fact.retired_at]
        facts = await stores.facts.related_versions(ids)
    return facts


async def _messages_of(
    stores: Stores, tx: Transaction, facts: Sequence[Fact], by: str | None
) -> set[str]:
    """Return the messages that go with these facts; `by`: of one person. Other messages keep their text."""
    events, origins = set[str](), {origin for fact in facts for origin in fact.origins}
    texts = await stores.inbox.current_texts(tx, origins)
    edits = await stores.edits.wordings(tx, origins)
    for fact in facts:
        bodies = dict[str, OriginText]()
        for origin in set(fact.origins) - edits.keys():  # those go with their messages
            row = await stores.inbox.find(tx, origin)
            if by is not None and row and row.sender != by:
                continue
            if row and (body := texts[origin][1]):
                bodies[origin] = OriginText(body, row.sender_name)
            else:
                events.add(origin)  # it is blank by now, or was no message
        events |= source_messages(fact.text, bodies)
    return events


async def _delete_derived(
    stores: Stores, harvests: Harvests | None, events: set[str]
) -> Sequence[Fact]:
    """Remove facts that came only from these messages, and queue their other messages for the harvest.

    A fact that its other origins cover stays. Facts merged into a lost one are restored, unless from these too.
    """
    origins = Origins(stores.facts)
    async with stores.database.transaction() as tx:
        found = await origins.of_events(tx, events)
        before = await origins.replaced_by(tx, [fact.id for fact in found])
        others = {name for fact in found for name in fact.origins} - events
        rows = await stores.edits.wordings(tx, others) | await stores.inbox.current_texts(
            tx, others
        )
        kept = {name: CurrentVersion(*row) for name, row in rows.items()}
        done = await asyncio.to_thread(plan_retraction, found, before, events, kept)
        but = {gist(fact) for fact in await retracted_facts(tx, events)}
        await origins.apply_retraction(tx, done, events)
        if harvests is not None:
            await harvests.read_again(tx, done.again, but)
    return done.gone


async def _only_there(
    stores: Stores,
    search: TextSearch,
    events: Sequence[str],
    scopes: Sequence[str],
    texts: set[str],
    but: str | None = None,
) -> set[str]:
    """Return those texts that nobody said there in another message, quotes aside."""
    named = sorted(filter(_is_recognisable, texts))
    said = await search.seek([TextQuery([SAID], named, scopes)])
    others = await stores.inbox.find_containing(events, said, but)
    bodies = [row["body"].splitlines() for row in others]
    own = ["\n".join(line for line in lines if not line.startswith(">")) for lines in bodies]
    return await asyncio.to_thread(
        lambda: {text for text in named if not any(map(TextMatcher([text]).is_in, own))}
    )


async def _erase(
    stores: Stores,
    search: TextSearch,
    gone: _Gone,
    known: Sequence[str] = (),
    note: Note = _nothing,
    places: Sequence[SearchableText] = SPOKEN,
) -> Forgotten:
    """Erase every record of it in steps, so that answers need not wait for all of them."""
    is_owners = stores.owner.scope in gone.scopes
    worded = await lines_in_pages(stores, words=gone.words if is_owners else "")
    ours = await lines_in_pages(stores, [fact.text for fact in gone.facts] if is_owners else [])
    made = await _made_before(stores, gone)
    cut = [line for _, _, _, cut in await _cores(stores, gone, made) for line in cut]
    lines = [*made, *cut, *ours, *worded]
    lost = await _lost_lines(stores, gone)
    own = await _only_there(stores, search, gone.events, gone.scopes, {*lost.texts})
    texts = {*filter(_is_recognisable, lines), *known, *(PAGE_LINE + o for o in own)}
    searched = sorted(texts.union(gone.traces(), (fact.id for fact in gone.facts)))
    known = [text for text in known if not text.startswith(PAGE_LINE)]
    # Stored first: the sources of these texts are erased soon, and a run after a crash needs them.
    await note(searched)
    said = list(filter(_is_recognisable, await stores.inbox.bodies(gone.events)))
    words = await _own_words(stores, gone, known) if places is SPOKEN else []
    by_us, prompts = (words, await _since(stores, gone)), [*gone.texts, *searched]
    wanted = dict.fromkeys(places, searched) | dict.fromkeys(casts.PROMPTS, prompts)
    wanted[RECORDED] = [*searched, *gone.said, *said]
    queries = [
        TextQuery([kept], sorted({*texts, *_also(kept, lost)}), gone.scopes, *by_us)
        for kept, texts in wanted.items()
    ]
    queries.append(TextQuery(BY_WORDS, (), gone.scopes, every=gone.words))
    found = await search.seek(queries)
    # First: pages may repeat messages, whose text is unknown once they are erased.
    pages = await _cut_pages(stores, gone, [*searched, *worded, *said], lost)
    erased = await _erase_found(stores, gone, found)
    await _cut_cores(stores, gone, [*lines, *known])
    purged = 0 if (waiting := erased.waiting) else await _purge(stores, gone.facts)
    for file in stores.places.files():
        await asyncio.to_thread(file.drop_parts)
    if not waiting:  # written meanwhile, by a model call that still had it in view
        late = await _erase_found(stores, gone, await search.seek(queries, since=found))
        erased, waiting = erased | late, late.waiting
    quoted = (*await _quoted(stores, search, gone, searched), *pages.named)
    # Last: reading a file stores its text again.
    edited = await search.seek([TextQuery([EDITED], sorted({*gone.texts, *searched}))])
    async with stores.database.transaction() as tx:
        await erase(tx, [EDITED], edited)
        await drop_lines(tx, lost.known)
    return Forgotten(
        facts=purged,
        records=len(erased.rows) + len(pages.edits),
        unfinished=len(waiting),
        short=(),
        quoted=quoted,
        copies=tuple(await stores.database.copies()),
        scrubbed=False,
    )


async def _own_words(stores: Stores, gone: _Gone, known: Sequence[str]) -> list[str]:
    """Return distinctive words of the erased texts: whoever uses one refers to them.

    Words of other messages, other memories and our prompts do not count. The longest ones are returned.
    """
    texts = [*gone.texts, *(text for text in known if not text.startswith("fact_"))]
    words = {word for text in texts for word in main_words(text) if len(word) >= DISTINCTIVE}
    words -= await asyncio.to_thread(_prompt_words)
    longest = sorted(words, key=lambda word: (-len(word), word))[:MOST_CANDIDATES]
    origins, ids = Origins(stores.facts), [fact.id for fact in gone.facts]
    held = await origins.words_in(stores.database, longest, gone.scopes, ids)
    rest = [word for word in longest if word not in held]
    held = await stores.inbox.words_in_other_messages(rest, gone.events, gone.scopes)
    return [word for word in rest if word not in held][:MOST_WORDS]


def _prompt_words() -> set[str]:
    return {word for text in shipped_prompts().values() for word in main_words(text)}


async def _since(stores: Stores, gone: _Gone) -> str:
    """Return the time from which something may repeat it."""
    at = await stores.inbox.since(gone.events)
    return at or min((stamp(fact.created_at) for fact in gone.facts), default="")


async def _erase_found(stores: Stores, gone: _Gone, found: TextMatches) -> Erased:
    """Erase the matches, and everything derived from the messages."""
    short = [text for text in gone.texts if text and not _is_recognisable(text)]
    found = found.also(ANSWERS, await stores.retractions.lists(short, gone.scopes))
    known = [*gone.events, *found.texts]  # ids of facts are searched too
    since, done = await _since(stores, gone), Erased()
    for step in STEPS:
        async with stores.database.transaction() as tx:
            asked = await stores.casts.of_events(tx, gone.events)
            came = DerivedFrom(gone.events, asked, known, gone.scopes, since)
            done |= await erase(tx, step, found, came)
    return done


async def _lost_lines(stores: Stores, gone: _Gone) -> LostLines:
    """Return the lines of the owner's pages that were derived from it."""
    if stores.owner.scope not in gone.scopes:
        return NOTHING_LOST
    files = await raw_files(stores.database, gone.events)
    raws = sorted({path.rpartition("/")[0] for path in files})
    said = sorted({*gone.texts, *gone.said, *await stores.inbox.bodies(gone.events)} - {""})
    return await lost_lines(stores, gone.events, raws, said, gone.lines, asks=gone.asks)


def _also(kept: SearchableText, lost: LostLines) -> list[str]:
    """Return the page lines to search in this table: none that people may have said as well."""
    texts = lost.texts if kept in (*REPEATED, *casts.PROMPTS, RECORDED) else ()
    more = lost.asked.values() if kept in VIEWED else ()
    return [text for text in (*texts, *more) if kept in DRAFTS or _is_recognisable(text)]


async def _cut_pages(
    stores: Stores, gone: _Gone, searched: Sequence[str], lost: LostLines
) -> CutPages:
    """Erase it from the wiki, if it belongs to the owner."""
    if stores.owner.scope not in gone.scopes:
        return CutPages()
    if lost.known or lost.anywhere:
        # The recorded pages are cut too, so that an undo still fits.
        async with stores.database.transaction() as tx:
            await stores.changes.reword(tx, "page", lost.cut)
    searched = [text for text in searched if not text.startswith(PAGE_LINE)]
    at = hashlib.sha256("\n".join([*gone.events, *searched]).encode()).hexdigest()[:16]
    facts = [fact.text for fact in gone.facts]
    files = await raw_files(stores.database, gone.events)
    return await forget_in_pages(stores, ErasedTexts(searched, facts, files, lost), at=at)


async def _cut_cores(stores: Stores, gone: _Gone, lines: Sequence[str]) -> None:
    """Cut the bullets that repeat it from core memories; bullets made from other facts too are made anew.

    `lines`: bullets found earlier, while the record still told which ones a model wrote.
    """
    for _ in range(EDITS):  # somebody may save one meanwhile
        for scope, seen, left, cut in await _cores(stores, gone, lines):
            if cut:
                await _enqueue_core_update(stores, gone, scope, cut)
                file = stores.places.core_file(scope)
                await asyncio.to_thread(file.replace, left, seen)


async def _cores(
    stores: Stores, gone: _Gone, lines: Sequence[str]
) -> list[tuple[str, bytes | None, str, list[str]]]:
    """Return for each core memory its scope, content, new text, and the bullets cut from it.

    Cut are bullets that contain it, that a model wrote from it or that one of the facts covers, and these `lines`.
    """
    wanted, words, found = TextMatcher(gone.traces()), AllWordsMatcher(gone.words), []
    named = {key(cleaned(line)) for line in lines}
    for scope in gone.scopes:
        file = stores.places.core_file(scope)
        facts = [fact.text for fact in gone.facts if fact.scope == scope]
        # An unfinished write from before must not appear later.
        await asyncio.to_thread(file.drop_parts)
        with suppress(MemoryFileUnusable):  # reported as a file that a person must change
            seen = await asyncio.to_thread(file.content)
            text = file.decoded(seen) if seen else ""
            ours = await stores.core_pages.unowned(scope, text) if text else set()
            own = await _own_stems(stores, gone, scope) if ours else set()
            made = named | {
                name
                for bullet in bullets(text)
                for name in [key(bullet)]
                if words.are_in(bullet) or (name in ours and own & beginnings(bullet))
            }
            found.append((scope, seen, *without_bullets(text, wanted, facts, ours, made)))
    return found


async def _made_before(stores: Stores, gone: _Gone) -> list[str]:
    """Return bullets written by updates that have a word of the erased facts only, still present or not."""
    found = list[str]()
    for scope in gone.scopes:
        own = await _own_stems(stores, gone, scope)
        ours = (await _written(stores, scope)).values() if own else ()
        found += [bullet for bullet in ours if own & beginnings(bullet)]
    return found


async def _own_stems(stores: Stores, gone: _Gone, scope: str) -> set[str]:
    """Return the word beginnings that no other memory of a scope has."""
    stems = {stem for each in gone.texts for stem in beginnings(each)}
    origins, ids = Origins(stores.facts), [fact.id for fact in gone.facts]
    return stems - await origins.words_in(stores.database, stems, [scope], ids)


async def _written(stores: Stores, scope: str) -> dict[str, str]:
    """Return the bullets that updates wrote into a core memory, by their keys."""
    written = dict[str, str]()
    for change in await stores.core_pages.updates(scope):
        before, after = (state["text"] if state else "" for state in (change.before, change.after))
        old = set(map(key, bullets(before)))
        written |= {name: each for each in bullets(after) if (name := key(each)) not in old}
    return written


async def _enqueue_core_update(stores: Stores, gone: _Gone, scope: str, cut: Sequence[str]) -> None:
    """Enqueue a core update with the remembered facts behind the bullets that were cut."""
    named = [name for each in await stores.core_pages.updates(scope) for name in each.evidence]
    facts = [await stores.facts.get(name, scope) for name in sorted(set(named))]
    successors = {
        fact.replaced_by for fact in facts if fact and fact.retired_at and fact.replaced_by
    }
    facts += [await stores.facts.get(name, scope) for name in sorted(successors)]
    stems, ids = beginnings(" ".join(cut)), {fact.id for fact in gone.facts}
    left = [
        fact.id
        for fact in facts
        if fact and not fact.retired_at and fact.id not in ids and stems & beginnings(fact.text)
    ]
    if left:
        name = hashlib.sha256("\n".join([*left, "", *cut]).encode()).hexdigest()
        async with stores.database.transaction() as tx:
            await stores.jobs.enqueue(tx, CORE_UPDATE, name, scope, {"facts": left})


def leftover(done: Sequence[Forgotten], zone: ZoneInfo) -> str:
    """Return what still contains it and how to change each, without a word of it; "" if nothing does."""
    named = list(dict.fromkeys(name for each in done for name in each.quoted))
    parts = [how_to_change(name) for name in named[:MOST_NAMED]]
    if len(named) > MOST_NAMED:
        parts.append(f"and {len(named) - MOST_NAMED} more")
    sentences = [STILL_CONTAINED.format(", ".join(parts))] if parts else []
    sentences += [SHORT] if any(each.short for each in done) else []
    copies = {copy.path: copy for each in done for copy in each.copies}.values()
    return " ".join([*sentences, *(copy_notice(copy, zone) for copy in copies)])


def copy_notice(copy: UpgradeCopy, zone: ZoneInfo) -> str:
    """Return the notice that a copy from before an upgrade may contain it."""
    until = copy.until.astimezone(zone)
    return f"`{copy.path.name}`, from before an upgrade, may hold it until {until:%Y-%m-%d}, or until you delete it."


def how_to_change(name: str) -> str:
    """Return the name of such a thing with the way to change it."""
    if name.startswith("task_"):
        return "the task {0} (`/tasks cancel {0}`)".format(name.split()[-1][:-1])
    if name.startswith("skill "):
        return f"the skill `{name.removeprefix('skill ')}` (ask me to change it)"
    if name.endswith(f"/{GIT}"):
        return f"`{name}`, which you keep yourself (it has all earlier texts of pages)"
    if "/" in name:
        return f"the file `{Path(name).name}` (edit it)"
    return f"the memory `{name}` (`/forget {name}`)"


def without_bullets(
    text: str,
    wanted: TextMatcher,
    facts: Sequence[str],
    ours: Collection[str],
    made: Collection[str] = (),
) -> tuple[str, list[str]]:
    """Return a core memory without the bullets that match, or repeat one of these facts; and the bullets cut.

    `ours`: keys of bullets that no person typed. `made`: keys of further bullets to cut.
    """
    kept, gone = list[str](), list[str]()
    for line in text.splitlines(keepends=True):
        bullet = line.strip()
        is_bullet = bullet.startswith(("- ", "* "))
        body = bullet[2:].strip()
        name = key(cleaned(body))
        if is_bullet and (
            name in made or wanted.is_in(body) or is_forgotten_with(body, facts, ours=name in ours)
        ):
            gone.append(body)
        else:
            kept.append(line)
    return "".join(kept), gone


async def with_reports(stores: Stores, tx: Transaction, events: set[str]) -> list[str]:
    """Return these events, and the sub-session reports that came from them."""
    newest = events
    while newest:
        turns = await stores.casts.turns_of(tx, sorted(newest))
        newest = set(await stores.inbox.result_events(turns)) - events
        events = events | newest
    return sorted(events)


async def _wordings(stores: Stores, ids: set[str]) -> set[str]:
    """Return earlier texts of the facts, as far as they are on record."""
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
    stores: Stores, search: TextSearch, gone: _Gone, searched: Sequence[str]
) -> tuple[str, ...]:
    """Return tasks, skills, files and other facts of these scopes that contain it, or replaced it."""
    ids = {fact.id for fact in gone.facts}
    successors = {fact.replaced_by for fact in gone.facts if fact.replaced_by}
    wanted, words = TextMatcher(searched), AllWordsMatcher(gone.words)

    def contains(text: str) -> bool:
        return wanted.is_in(text) or words.are_in(text)

    said = await search.seek([TextQuery([FACTS], searched, gone.scopes)])
    alike = [fact.id for fact in await stores.facts.saying(said)]
    alike = [*dict.fromkeys([*alike, *sorted(successors)])]
    return (
        *[fact for fact in alike if fact not in ids and await stores.facts.get(fact)],
        *await tasks_and_skills(stores, gone.scopes, contains),
        *await asyncio.to_thread(_files, stores, gone.scopes, wanted),
    )


async def tasks_and_skills(
    stores: Stores, scopes: Sequence[str], contains: Callable[[str], bool]
) -> list[str]:
    """Return the tasks of these scopes, and the skills, that contain it, as `how_to_change` names them."""
    seen = [await stores.tasks.listed(scope, "all") for scope in scopes]
    tasks = {task.id: task for each in seen for task in each}.values()
    names = [skill.name for skill in await stores.skills.listed()]
    skills = [f"skill {name}" for name in names if contains(await stores.skills.read(name))]
    said = {f"{t.id} (number {t.number})": (t.content, t.reason, t.plan.ai_prompt) for t in tasks}
    return [
        *(task for task, texts in said.items() if contains("\n".join(map(str, texts)))),
        *skills,
    ]


def _files(stores: Stores, scopes: Sequence[str], wanted: TextMatcher) -> list[str]:
    """Return files of the data folder that contain it, except stores' files and those of other scopes."""
    folder, found = stores.data_dir, []
    own = {stores.places.core(scope).parent for scope in scopes}
    for path in sorted(folder.rglob("*")):
        first = path.relative_to(folder).parts[0]
        if folder not in own and not own.intersection(path.parents):
            continue
        if first == SCOPES and not own.intersection(set(path.parents) - {folder}):
            continue
        if first in SKIPPED_FOLDERS or first.startswith("wintermute.db") or path.name == MEMORIES:
            continue
        if path.is_relative_to(stores.wiki.root):  # searched separately
            continue
        with suppress(MemoryFileUnusable):
            if path.is_file() and wanted.said_in(TextFile(path, str(path)).content() or b""):
                found.append(str(path))
    return found
