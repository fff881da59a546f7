"""Memories for people: listing and searching them, their sources, and the memories behind an answer."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

from wintermute.commands.forgetting import NOTHING_LIKE_IT
from wintermute.commands.tasks import MOST_LINES, bounded
from wintermute.db import Transaction
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import ANYBODY, is_matrix
from wintermute.memory.archive import active_count
from wintermute.memory.core import HEADERS, ITEM, bullets
from wintermute.memory.fact import BESIDE, EXPLICIT, Fact
from wintermute.memory.ranking import Query
from wintermute.stores import Stores
from wintermute.tasks.due import MONTHS
from wintermute.text import EMPTY_LISTS, display_name, one_line, plain, shortened

AROUND = 2
"""Messages shown before and after the source of a memory."""
MOST_USES = 10
"""The latest messages for whose answers a memory was used."""
ASSISTANT = "assistant"
MOST_MESSAGES = 8
"""The most source messages of one memory that are shown."""
QUOTED = 100
CAME = {
    EXPLICIT: "on request",
    "harvest": "picked up",
    "dreaming_merge": "merged from several",
}
"""People's words for the source of a memory."""

CORE_WORD = "core"
NO_CORE = "I have nothing here that I always keep in mind."
WISHED = "I would have changed it, but did not:"
NOTHING_YET = EMPTY_LISTS["memories"]
AT_REST = "{n} set aside, because they were not used for long: `/memory WORDS` finds them."
ALL_OF_THEM = (
    "All memories of this chat are in the prompt of every message, so each answer has all of them:"
    " `/memory` lists them."
)
SOME_OF_THEM = "The newest memories of this chat are in the prompt of every message. {}."
NO_ANSWER = "I have not answered anything here yet."
NOT_MINE = (
    "I do not know that answer. Reply `/why` to one of mine, or write it alone for my last one."
)
NO_MODEL = "That answer came without a model, so I used no memory for it."
OTHERS = "Other people were here when I said that, so I do not show it."
NONE_FITTED = "I used no memories for that answer: none fitted the message."
BROUGHT = "**Found for that message**"
IN_VIEW = "**Already known in this conversation**"


def _page_line(line: str) -> str:
    """Return a line of core.md for a chat: headers and bullets become Markdown, the text is escaped."""
    if line.rstrip() in HEADERS:
        return f"**{line[2:].rstrip()}**"
    mark = ITEM.match(line)
    return f"- {plain(line[mark.end() :])}" if mark else plain(line)


def day(moment: datetime, zone: ZoneInfo) -> str:
    """Return the day of a moment in the person's time zone."""
    return f"{moment.astimezone(zone):%Y-%m-%d}"


def end_note(fact: Fact, zone: ZoneInfo) -> str:
    """Return `until May 2026` or `removed since`; "" for a memory that is remembered and true."""
    if fact.retired_at is not None:
        return "removed since"
    if fact.valid_to is None:
        return ""
    local = fact.valid_to.astimezone(zone)
    return f"until {MONTHS[local.month - 1]} {local.year}"


def picked_up_note(fact: Fact) -> str:
    """Return a note if nobody asked to remember it; "" if somebody did."""
    return "" if fact.source == EXPLICIT else "picked up"


def fact_line(fact: Fact, zone: ZoneInfo) -> str:
    """Return id, day, source and text of a memory, and a note if it is removed or no longer true."""
    line = f"{fact.id}  {day(fact.created_at, zone)}  {fact.source}  {fact.text}"
    note = end_note(fact, zone)
    return f"{line}  ({note})" if note else line


def link(row: InboxRow) -> str:
    """Return the matrix.to address of a message; "" outside Matrix."""
    if not (row.event_id.startswith("$") and is_matrix(row.room_id)):
        return ""
    names = (row.room_id, row.edits or row.event_id)  # clients show an edit in place of its message
    room, event = (quote(name, safe="!$:") for name in names)
    return f"https://matrix.to/#/{room}/{event}"


@dataclass(frozen=True, slots=True)
class QuotedMessage:
    """A message or answer. `text` is "" if it is no longer stored."""

    at: datetime
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A source of a memory: the name of the origin, and the message, if it was one."""

    origin: str
    message: QuotedMessage | None = None
    link: str = ""
    before: tuple[QuotedMessage, ...] = ()
    after: tuple[QuotedMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Provenance:
    """The sources, related versions and uses of a memory."""

    learnt: tuple[MemorySource, ...]
    replaced: tuple[Fact, ...]
    replaced_by: tuple[Fact, ...]
    brought_to: tuple[QuotedMessage, ...]


async def provenance(stores: Stores, fact: Fact) -> Provenance:
    """Return the history of a memory for the person at this machine: it quotes messages of any room."""
    async with stores.database.transaction() as tx:
        # The message of each edit is among the origins, too.
        edits = await stores.edits.wordings(tx, fact.origins)
        learnt = [await _learnt(stores, tx, each) for each in fact.origins if each not in edits]
        brought = [
            await _message_of(stores, tx, cast_id)
            for cast_id in await stores.recalls.given_to(fact.id, MOST_USES)
        ]
    replaced, replaced_by = await stores.facts.replacements(fact)
    return Provenance(
        tuple(learnt), tuple(replaced), tuple(replaced_by), tuple(filter(None, brought))
    )


async def _learnt(stores: Stores, tx: Transaction, origin: str) -> MemorySource:
    row = await stores.inbox.find(tx, origin)
    if row is None:
        return MemorySource(origin)
    before, after = await stores.inbox.around(row, AROUND)
    answers = await stores.outbox.answers_to([one.event_id for one in (*before, row, *after)])
    newest = await stores.inbox.newest_version(tx, origin) or row
    answer = tuple(_with_answers((row,), answers))[1:]
    return MemorySource(
        origin,
        _quoted(row, newest.body),
        link(row),
        tuple(_with_answers(before, answers)),
        (*answer, *_with_answers(after, answers)),
    )


def _with_answers(rows: Iterable[InboxRow], answers: dict[str, str]) -> Iterable[QuotedMessage]:
    for row in rows:
        yield _quoted(row, row.body)
        if answer := answers.get(row.event_id):
            yield QuotedMessage(row.sent_at, ASSISTANT, answer)


def _quoted(row: InboxRow, body: str) -> QuotedMessage:
    return QuotedMessage(row.sent_at, row.sender_name or row.sender, body)


async def _message_of(stores: Stores, tx: Transaction, cast_id: str) -> QuotedMessage | None:
    event_id = (await stores.casts.get(cast_id)).event_id
    row = await stores.inbox.find(tx, event_id) if event_id else None
    return _quoted(row, row.body) if row else None


class MemoryCommands:
    """Answers `/memory` and `/why`."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def listed(self, scope: str, words: str) -> str:
        """List the memories of a scope, newest first; with words, the best matches first.

        Memories that are no longer true follow the others, with their end (M-074). Raises:
        MemoryUnavailable.
        """
        if words.strip().lower() == CORE_WORD:
            return await self._core(scope)
        facts, memories = self._stores.facts, self._stores.memories
        await memories.text(scope)  # takes in edits by hand first
        if not words:
            found = await facts.latest(scope, 1, MOST_LINES)
            return await self._newest(scope, found)
        asked = Query(words)
        hits = await memories.search(scope, asked, MOST_LINES)
        hits += await memories.past(scope, asked, MOST_LINES - len(hits))
        if hits:
            beside = {hit.fact.id for hit in hits if hit.beside}
            return bounded(self._lines([hit.fact for hit in hits], beside))
        return NOTHING_LIKE_IT if await facts.count(scope) else NOTHING_YET

    async def _newest(self, scope: str, newest: Sequence[Fact]) -> str:
        """Show these memories, and the number of all others, also of archived ones (M-060)."""
        active = await active_count(self._stores.database, scope)
        archived = await self._stores.facts.count(scope) - active
        parts = [bounded(self._lines(newest), active)] if newest else []
        parts += [AT_REST.format(n=archived)] if archived else []
        return "\n\n".join(parts) or NOTHING_YET

    async def _core(self, scope: str) -> str:
        """Show the core page that is in every prompt here, and changes that wait for a person."""
        text = await self._stores.core.text(scope)
        wishes = await self._stores.decisions.waiting(scope, "core")
        page = "\n".join(map(_page_line, text.split("\n"))).strip() if bullets(text) else NO_CORE
        return "\n\n".join([page, *(f"{WISHED} {plain(wish.reason)}." for wish in wishes)])

    def _lines(self, facts: Sequence[Fact], beside: Collection[str] = ()) -> list[str]:
        lines, zone = list[str](), self._stores.tasks.zone
        for fact in facts:
            why = BESIDE if fact.id in beside else ""
            notes = [note for note in (end_note(fact, zone), picked_up_note(fact), why) if note]
            lines.append(f"- {plain(fact.text)}" + (f" ({', '.join(notes)})" if notes else ""))
        return lines

    async def why(self, row: InboxRow, scope: str) -> str:
        """Show the memories behind an answer: the one that is replied to, else the last one here.

        Only memories of this scope: everybody in the room may see them.
        """
        if not self._stores.memories.ranked:
            part = await self._stores.health.part(self._stores.places.shown_memories(scope))
            return SOME_OF_THEM.format(part.detail) if part and part.detail else ALL_OF_THEM
        async with self._stores.database.transaction() as tx:
            cast_id, problem = await self._answer_asked_about(tx, row, scope)
        if cast_id is None:
            return problem
        before = await self._stores.casts.casts_with_blocks(cast_id)
        given = await self._stores.recalls.given([cast_id, *before], scope)
        if await self._stores.jobs.is_forgetting(self._stores.database):
            given = [each for each in given if each.fact.retired_at is None]
        earlier = {each.fact.id: each.fact for each in given if each.cast_id != cast_id}
        now = {each.fact.id: each.fact for each in given if each.cast_id == cast_id}
        brought = [fact for name, fact in now.items() if name not in earlier]
        in_view = [fact for name, fact in {**now, **earlier}.items() if name in earlier]
        parts = [
            (BROUGHT, await self._sources(brought, row.sender)),
            (IN_VIEW, await self._sources(in_view, row.sender)),
        ]
        sections = [f"{heading}\n{bounded(lines)}" for heading, lines in parts if lines]
        return "\n\n".join(sections) or NONE_FITTED

    async def _answer_asked_about(
        self, tx: Transaction, row: InboxRow, scope: str
    ) -> tuple[str | None, str]:
        """Return the cast of the answer that is asked about; or a text that says why there is none."""
        outbox = self._stores.outbox
        if row.replies_to is None:
            return await outbox.last_answer(tx, row.conversation_id, scope), NO_ANSWER
        answer = await outbox.sent_event(tx, row.room_id, row.replies_to)
        if answer is None:
            return None, NOT_MINE
        if answer.meant_for not in (scope, ANYBODY):
            return None, OTHERS
        return answer.cast_id, NO_MODEL

    async def _sources(self, facts: Sequence[Fact], asker: str) -> list[str]:
        zone = self._stores.tasks.zone
        lines = []
        for fact in facts:
            said = await self._messages(fact, asker) or [day(fact.created_at, zone)]
            notes = (CAME[fact.source], *said, end_note(fact, zone))
            lines.append(f"- {plain(fact.text)} ({', '.join(filter(None, notes))})")
        return lines

    async def _messages(self, fact: Fact, asker: str) -> list[str]:
        """Return the source messages of a memory: who wrote each, when, and its address or its text.

        All of them were written in the scope of the memory, so everybody who may see the memory may
        see them.
        """
        inbox = self._stores.inbox
        async with self._stores.database.transaction() as tx:
            found = [await inbox.find(tx, origin) for origin in fact.origins]
            rows = {row.edits or row.event_id: row for row in found if row and row.body}
            texts = {
                name: (await inbox.newest_version(tx, name) or row).body
                for name, row in rows.items()
            }
        lines = [self._message(row, texts[name], asker) for name, row in rows.items()]
        more = len(lines) - MOST_MESSAGES
        return lines[:MOST_MESSAGES] + ([f"and {more} messages more"] if more > 0 else [])

    def _message(self, row: InboxRow, said: str, asker: str) -> str:
        who = "you" if row.sender == asker else plain(display_name(row.sender_name) or row.sender)
        on, address = day(row.sent_at, self._stores.tasks.zone), link(row)
        if address:
            return f"{who} on [{on}]({address})"
        return f"{who} on {on}: “{plain(shortened(one_line(said), QUOTED))}”"
