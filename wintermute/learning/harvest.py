"""Harvest: facts that people tell the assistant are picked from conversations in the background.

    inbox ─ messages since the cursor ──────▶ chunk of one scope ─ model ─▶ texts ─┐
      ▲                                                                            │
      └──────────────── the cursor and the facts move in one transaction ◀─────────┘

A chunk has messages that people wrote *to* the assistant, in their last versions, with its answers as
context. It never has events, commands, other lines of a group, quotes, files or results of tools
(M-029). A message sent in private belongs to its sender's memory; any other belongs to its room's, if
it was answered as the room's (M-010).

A fact from several messages of which one is deleted is derived again from the others: they are read
again, alone, and the cursor stays (M-030).
"""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from wintermute.changes.change_sets import Reason
from wintermute.clock import Clock, stamp
from wintermute.config.schema import MemoryHarvest
from wintermute.db import Database, Transaction, put_single, single
from wintermute.db.values import reader
from wintermute.errors import MemoryUnavailable, QuestionWithdrawn, ToolFailed
from wintermute.health.health import DROPPED
from wintermute.jobs import AGAIN, Job
from wintermute.learning.edited_messages import edited_messages, retire_retracted
from wintermute.llm.background import BackgroundModels
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import require_keys, text_list
from wintermute.llm.tokens import estimate
from wintermute.memory.fact import NewFact, entry
from wintermute.memory.grounding import Grounding, GroundingResult, Line, confirmed
from wintermute.memory.lexical_overlap import main_words
from wintermute.memory.origins import gist, retracted_facts
from wintermute.messages import PERSON, REFUSED, ROOM, Json
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import display_name, shortened
from wintermute.work.jobs import JobDone, JobPutOff

NAME = "harvest"
PICKED = "picked"
"""Name of the counter of memories in a job's progress."""
MOST_CHARACTERS = 2_000
"""Characters of one message; of a longer one head and tail are shown (M-027)."""
MOST_TOKENS = 6_000
SHARE = 0.5
"""A chunk has at most `MOST_TOKENS`, and this share of the window."""
MOST_PICKED = 60
"""Texts of one answer; more than any chunk yields."""

AT_ONCE = datetime.min.replace(tzinfo=UTC)

LEFT_OUT = "[quoted text left out]"
QUOTE = re.compile(r" {0,3}>(?!:)")
FENCE_OPENS = re.compile(r" {0,3}(?:(?=(`))`{3,}|(?=(~))~{3,})")
FENCE_CLOSES = re.compile(r" {0,3}(?:`{3,}|~{3,})[ \t]*")
PAGE_BEGINS = re.compile(
    r"<(?:!doctype|html|head|body|article|script|style|table|div|p)\b[^<>]*>", re.IGNORECASE
)
PAGE_ENDS = re.compile(r"</[a-z]+>", re.IGNORECASE)

log = logging.getLogger(__name__)

NO_ADDRESS = str.maketrans("", "", "@:()<>[]")

# Nothing is read past a message that is still to be answered.
BLOCKED = """(SELECT min(w.seq) FROM inbox w WHERE w.conversation_id = i.conversation_id
    AND w.kind = 'message' AND w.state IN ('waiting', 'casting'))"""
BACKLOGS = f"""
SELECT c.id AS conversation_id, c.scope, coalesce(h.upto, 0) AS upto, count(*) AS messages,
       max(i.received_at) AS newest, 0 AS again
FROM conversations c LEFT JOIN harvests h ON h.conversation_id = c.id
CROSS JOIN inbox i ON i.conversation_id = c.id AND i.seq > coalesce(h.upto, 0)
WHERE c.room_id > '' AND i.kind = 'message' AND i.state = 'answered' AND i.body <> '' AND NOT i.by_bot
AND i.seq < coalesce({BLOCKED}, 9223372036854775807)
GROUP BY c.id
UNION ALL SELECT conversation_id, c.scope, 0, 0, NULL, max(a.seq) FROM harvest_repeats a
JOIN conversations c ON c.id = conversation_id GROUP BY conversation_id
"""
# A message decrypted or trusted late keeps its row; if the cursor had passed it, its cast shows
# that. An edited message is placed at its last version; a deleted one is blank. The answer to an
# older version that was read before is not shown.
EDITED = """(SELECT max(n.seq) FROM edits n WHERE n.edited = coalesce(i.edits, i.event_id)
    AND n.seq > :edits AND n.text <> '')"""
READ = """
SELECT i.seq, i.event_id, i.sender, i.sender_name, i.direct, i.by_bot, i.sent_at, i.edits,
       iif(i.state = 'ignored' OR k.reason IN {refused}, '',
           coalesce(e.text, i.body)) AS body, e.event_id AS worded,
       coalesce(b.scope, (SELECT n.scope FROM branches n WHERE n.created_at <= i.received_at
                AND n.conversation_id = i.conversation_id ORDER BY n.seq DESC LIMIT 1)) AS scope,
       coalesce(k.taint, 0) AS taint, {late} AS late, {again} AS again, {reworded} AS reworded,
       (SELECT o.body FROM outbox o WHERE o.answers = i.event_id AND o.kind = 'reply'
        AND o.body <> '' AND NOT {reworded} AND coalesce(k.reason, '') NOT IN {refused} ORDER BY o.seq DESC LIMIT 1) AS answer
FROM inbox i
LEFT JOIN edits e ON e.seq = (SELECT max(seq) FROM edits WHERE edited = coalesce(i.edits, i.event_id)
    AND text <> '' AND created_at >= i.received_at AND i.body <> '')
LEFT JOIN casts k ON k.seq = (SELECT max(seq) FROM casts WHERE event_id = i.event_id)
LEFT JOIN branches b ON b.id = k.branch_id
WHERE {which} AND i.state IN ('answered', 'ignored')
AND NOT EXISTS (SELECT 1 FROM inbox l WHERE l.conversation_id = i.conversation_id
    AND l.kind = 'message' AND l.seq > i.seq AND l.edits = coalesce(i.edits, i.event_id)
    AND l.state = 'answered' AND l.body <> '')
ORDER BY late = 0, late, reworded = 0, reworded, i.seq LIMIT :most
"""
IS_OLD = "i.seq <= :upto AND coalesce(k.seq, 0) <= :casts"
SAID = READ.format(
    refused=REFUSED,
    late="iif(i.seq > :upto OR coalesce(k.seq, 0) <= :casts, 0, k.seq)",
    again="0",
    reworded=f"iif({IS_OLD}, {EDITED}, 0)",
    which=f"""i.seq IN (
    SELECT seq FROM inbox WHERE conversation_id = :conversation AND kind = 'message' AND seq > :upto
    UNION SELECT m.seq FROM casts c JOIN inbox m ON m.event_id = c.event_id
    WHERE c.seq > :casts AND m.conversation_id = :conversation AND m.kind = 'message'
    UNION SELECT m.seq FROM edits d JOIN inbox m ON m.event_id = d.edited OR m.edits = d.edited
    WHERE d.conversation_id = :conversation AND d.seq > :edits AND d.text <> '' AND m.kind = 'message')
    AND i.seq < coalesce({BLOCKED}, 9223372036854775807)""",
)
NAMED = "(SELECT event_id FROM harvest_repeats WHERE conversation_id = :conversation)"
SAID_AGAIN = READ.format(
    refused=REFUSED,
    late="0",
    again="1",
    reworded="0",
    which=f"i.kind = 'message' AND (i.event_id IN {NAMED} OR i.edits IN {NAMED})",
)
MOST_ROWS = 400
NEWEST = "(SELECT coalesce(max(seq), 0) FROM casts), (SELECT coalesce(max(seq), 0) FROM edits)"
"""The newest cast and edit, up to which everything is read."""

OFF = "harvest off since"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread messages of a conversation, or those to be read again.

    `upto`: the last row read. `again`: the last message to be read again; 0: none.
    """

    conversation_id: str
    scope: str
    upto: int
    messages: int
    newest: datetime | None
    again: int

    @property
    def args(self) -> Json:
        """Return the arguments of the job that reads it."""
        part = {"again": self.again} if self.again else {"upto": self.upto}
        return {"conversation": self.conversation_id, **part}

    @property
    def key(self) -> str:
        """Return the key under which the job is enqueued once."""
        part = f"again:{self.again}" if self.again else str(self.upto)
        return f"{self.conversation_id}:{part}"

    def due(self, settings: MemoryHarvest) -> datetime | None:
        """Return when it is to be read; None: not before there are more messages (M-025)."""
        if self.newest is None:  # messages to be read again need not wait
            return AT_ONCE
        if self.messages >= settings.message_threshold:
            return self.newest
        if self.messages >= settings.min_messages:
            return self.newest + timedelta(minutes=settings.inactivity_minutes)
        return None


@dataclass(frozen=True, slots=True)
class MessageVersion:
    """One message of a person, in its stored version. `scope`: that of its cast; None: it has none.

    `edits`: the message whose text it replaces. `taint`: its cast saw text from outside. `late`: the number of its
    cast if that ended after the cursor had passed the message; else 0.
    """

    seq: int
    event_id: str
    sender: str
    sender_name: str
    body: str
    direct: bool
    by_bot: bool
    sent_at: datetime
    edits: str | None
    scope: str | None
    taint: bool
    answer: str | None
    late: int = 0
    worded: str | None = None
    """The edit with its last version, if that was not answered, as for an older message."""
    again: bool = False
    """True if it is read again."""
    reworded: int = 0
    """The number of its last edit, if another version was read before; else 0 (M-089)."""

    @property
    def place(self) -> tuple[int, int]:
        """Return its position in the reading order."""
        if self.late:
            return 0, self.late
        return (1, self.reworded) if self.reworded else (2, self.seq)

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the events whose redaction retracts this message."""
        return (self.event_id, self.worded) if self.worded else (self.event_id,)

    @property
    def message(self) -> str:
        """Return the message that it is a version of."""
        return self.edits or self.event_id

    @property
    def whose(self) -> str | None:
        """Return the scope whose memory it belongs to; None: no memory."""
        if self.by_bot:
            return None
        if self.direct:
            return f"{PERSON}{self.sender}"
        return self.scope if self.scope and self.scope.startswith(ROOM) else None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position up to which a conversation was read: the last row, and the newest cast then.

    `again`: the last message to be read again, before anything else; 0: none. `edits`: the newest edit at that time.
    """

    upto: int
    casts: int
    again: int = 0
    edits: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The messages of one scope that are read together. Without a scope there is nothing to learn.

    `upto`: the last row. `place`: position of the last message; late or reworded ones do not move `upto`. `again`:
    the messages among them that are read again.
    """

    upto: int
    scope: str | None
    messages: tuple[MessageVersion, ...]
    place: tuple[int, int]
    again: tuple[str, ...] = ()

    @property
    def taint(self) -> bool:
        """True if something in it may come from outside."""
        return any(each.taint for each in self.messages)

    @property
    def events(self) -> tuple[str, ...]:
        """Return the messages shown, and the messages that they are edits of."""
        named = [name for each in self.messages for name in (each.event_id, each.edits) if name]
        return tuple(dict.fromkeys(named))


def chunk(rows: Sequence[MessageVersion], room: int) -> Chunk:
    """Return the first rows that belong to one scope and fit into `room` tokens; at least one."""
    scope, taken = rows[0].whose, list[MessageVersion]()
    for row in rows:
        cost = estimate(_line(row, row.body)) + estimate(row.answer or "")
        differs = row.whose != scope or row.place[0] != rows[0].place[0]
        if differs or (taken and cost > room):
            break
        room -= cost
        taken.append(row)
    with_text = tuple(row for row in taken if row.body.strip())
    upto = max(row.seq for row in taken)
    again = tuple(row.message for row in taken if row.again)
    return Chunk(upto, scope if with_text else None, with_text, taken[-1].place, again)


def transcript(messages: Sequence[MessageVersion], zone: ZoneInfo) -> str:
    """Return the messages with their days, and the answers to them.

    An answer is left out if it may repeat untrusted or deleted text.
    """
    lines, day = list[str](), ""
    for row in messages:
        if (today := f"{row.sent_at.astimezone(zone):%A, %Y-%m-%d}") != day:
            lines.append(f"[{today}]")
            day = today
        own = own_words(row.body)
        lines.append(_line(row, own))
        if answer := _shown_answer(row):
            lines.append(f"assistant: {_indented(answer)}")
    return "\n".join(lines)


def own_words(text: str) -> str:
    """Return the text without quoted text, code blocks and HTML pages (M-029).

    An unclosed quote or block counts as the person's own text.
    """
    lines, own, fence = text.split("\n"), list[str](), ""
    ends = {line.strip()[0]: n for n, line in enumerate(lines) if FENCE_CLOSES.fullmatch(line)}
    for n, line in enumerate(lines):
        handed_on = bool(fence or QUOTE.match(line))
        if fence:
            closes = FENCE_CLOSES.fullmatch(line) and line.strip()[0] == fence
            fence = "" if closes else fence
        elif (opens := FENCE_OPENS.match(line)) and ends.get(mark := opens[1] or opens[2], -1) > n:
            fence, handed_on = mark, True
        if not handed_on:
            own.append(line)
        elif own[-1:] != [LEFT_OUT]:
            own.append(LEFT_OUT)
    return _without_page("\n".join(own))


def _without_page(text: str) -> str:
    begins = PAGE_BEGINS.search(text)
    ends = list(PAGE_ENDS.finditer(text, begins.end())) if begins else []
    if not begins or not ends:
        return text
    return f"{text[: begins.start()]}{LEFT_OUT}{text[ends[-1].end() :]}"


def _line(row: MessageVersion, text: str) -> str:
    name = display_name(row.sender_name.translate(NO_ADDRESS)) or row.sender
    return f"{name} ({row.sender}): {_indented(text)}"


def _indented(text: str) -> str:
    """Indent continuation lines, so that no line can pass for another person's message."""
    return "\n  ".join(shortened(text.strip(), MOST_CHARACTERS).splitlines())


def picked(found: Json) -> tuple[str, ...]:
    """Return the texts that an answer picked (M-072). Raises: Unfit."""
    require_keys(found, "contents")
    return text_list(found, "contents")[:MOST_PICKED]


def lines_of(messages: Sequence[MessageVersion], zone: ZoneInfo) -> list[Line]:
    """Return each message as a line about its person, in their own words (M-085).

    A yes stands in for the assistant's question right before, if that was a single question.
    """
    found = list[Line]()
    for n, row in enumerate(messages):
        own, before = own_words(row.body), messages[n - 1] if n else None
        asked = _shown_answer(before) if before and before.sender == row.sender else ""
        text = confirmed(asked, own) or _indented(own)
        name = display_name(row.sender_name) or row.sender
        found.append(Line(text, row.sent_at.astimezone(zone).date(), name, row.sender))
    return found


def _shown_answer(row: MessageVersion) -> str:
    """Return the answer, or "" where it may repeat untrusted or deleted text."""
    shown = row.answer and not (row.taint or row.again) and own_words(row.body) == row.body
    return row.answer or "" if shown else ""


def learnt_facts(chunk: Chunk, contents: Sequence[GroundingResult]) -> list[NewFact]:
    """Return the facts of an answer, without unusable ones.

    The origins of a fact are the messages that ground it, and all that share a main word with it, apart from
    speakers' names. So redacting one of them takes the fact along, which is then derived again from the others
    (M-030).
    """
    words = [main_words(row.body) for row in chunk.messages]
    names = frozenset[str]().union(*(main_words(row.sender_name) for row in chunk.messages))
    facts = []
    for judged in contents:
        try:
            line = entry(judged.text)
        except ToolFailed as problem:
            log.info("nothing learnt reason=%s", problem)
            continue
        words_of_fact = main_words(line) - names
        rows = [
            row
            for n, (row, each) in enumerate(zip(chunk.messages, words, strict=True))
            if n in judged.lines or words_of_fact & each
        ]
        speakers = {row.sender_name or row.sender for row in rows}
        facts.append(
            NewFact(
                chunk.scope or "",
                line,
                "harvest",
                speakers.pop() if len(speakers) == 1 else None,
                tuple(name for row in rows for name in row.origins),
                at=max(row.sent_at for row in rows),
                taint=chunk.taint,
                queued=True,
            )
        )
    return facts


_backlog = reader(Backlog)
_wording = reader(MessageVersion)
_cursor = reader(Cursor)


class Harvests:
    """The store of reading positions."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def backlogs(self, tx: Transaction) -> list[Backlog]:
        """Return the conversations with unread messages, then those with messages to be read again."""
        return [_backlog(row) for row in await tx.rows(BACKLOGS)]

    async def cursor(self, source: Transaction | Database, conversation_id: str) -> Cursor:
        """Return the reading position of a conversation."""
        found = await source.rows(
            "SELECT coalesce(h.upto, 0) AS upto, coalesce(h.casts, 0) AS casts,"
            " coalesce(h.edits, 0) AS edits, (SELECT"
            "  coalesce(max(seq), 0) FROM harvest_repeats WHERE conversation_id = :id) AS again"
            " FROM (SELECT 1) LEFT JOIN harvests h ON h.conversation_id = :id",
            {"id": conversation_id},
        )
        return _cursor(found[0])

    async def said(
        self, source: Transaction | Database, conversation_id: str, cursor: Cursor
    ) -> list[MessageVersion]:
        """Return the messages after the cursor, up to the first that is still to be answered.

        Messages to be read again come first, and alone.
        """
        asked = {"conversation": conversation_id, "most": MOST_ROWS}
        if cursor.again:
            return [_wording(row) for row in await source.rows(SAID_AGAIN, asked)]
        asked |= {"upto": cursor.upto, "casts": cursor.casts, "edits": cursor.edits}
        return [_wording(row) for row in await source.rows(SAID, asked)]

    async def read(self, tx: Transaction, conversation_id: str, part: Chunk) -> None:
        """Store the new reading position."""
        if part.again:
            await tx.execute(
                "DELETE FROM harvest_repeats WHERE conversation_id = ?"
                " AND event_id IN (SELECT value FROM json_each(?))",
                (conversation_id, json.dumps(part.again)),
            )
            return
        kind, place = part.place
        if kind < 2:
            column = "edits" if kind else "casts"
            await tx.execute(
                f"UPDATE harvests SET {column} = ? WHERE conversation_id = ?",
                (place, conversation_id),
            )
            return
        await tx.execute(
            "INSERT INTO harvests (conversation_id, upto, casts, edits, at)"
            f" VALUES (?, ?, {NEWEST}, ?)"
            " ON CONFLICT (conversation_id) DO UPDATE SET upto = excluded.upto,"
            " casts = excluded.casts, edits = excluded.edits, at = excluded.at",
            (conversation_id, part.upto, stamp(self._clock.now())),
        )

    async def read_again(
        self, tx: Transaction, events: Collection[str], but: Collection[str]
    ) -> None:
        """Queue these messages to be read again, except for facts with one of these gists (M-030).

        Unread messages are read once, in their turn.
        """
        await tx.execute(
            "INSERT INTO harvest_repeats (conversation_id, event_id, excluded)"
            # By the original message, as they are read: an edit's id would never be removed.
            " SELECT i.conversation_id, coalesce(i.edits, i.event_id) AS message, ? FROM inbox i"
            " JOIN harvests h ON h.conversation_id = i.conversation_id AND h.upto >= i.seq"
            " WHERE i.kind = 'message' AND i.body <> '' AND NOT i.by_bot"
            " AND i.event_id IN (SELECT value FROM json_each(?)) GROUP BY message ORDER BY min(i.seq)",
            (json.dumps(sorted(but)), json.dumps(sorted(events))),
        )

    async def turned_off(self, tx: Transaction) -> None:
        """Stop reading from now on."""
        if not await single(tx, OFF):
            await put_single(tx, OFF, stamp(self._clock.now()))
            await tx.execute("DELETE FROM harvest_repeats")

    async def turned_on(self, tx: Transaction, since: datetime) -> None:
        """Skip the messages that were sent while the harvest was off, until `since`."""
        if off := await single(tx, OFF):
            await tx.execute(
                "INSERT INTO harvests (conversation_id, upto, casts, edits, at)"
                f" SELECT conversation_id, max(seq), {NEWEST}, :now FROM inbox"
                " WHERE received_at < :since GROUP BY 1 HAVING max(received_at) >= :off"
                " ON CONFLICT (conversation_id) DO UPDATE SET upto = excluded.upto,"
                " casts = excluded.casts, edits = excluded.edits, at = excluded.at",
                {"now": stamp(self._clock.now()), "since": stamp(since), "off": off},
            )
            await put_single(tx, OFF, None)

    async def left_out(self, tx: Transaction, part: Chunk, events: Collection[str]) -> set[str]:
        """Return the gists that must not be learnt again from these messages, as people retracted them."""
        kept = await tx.scalars(
            "SELECT DISTINCT value FROM harvest_repeats, json_each(excluded)"
            " WHERE event_id IN (SELECT value FROM json_each(?))",
            (json.dumps(part.again),),
        )
        events = {*part.again, *(row.event_id for row in part.messages), *events}
        return {*kept, *(gist(fact) for fact in await retracted_facts(tx, events))}


class Harvest:
    """Runs the jobs of this name."""

    def __init__(
        self,
        stores: Stores,
        models: BackgroundModels,
        template: Template,
        settings: MemoryHarvest,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._models = models
        self._template = template
        self._settings = settings
        self._clock = clock
        self._since = clock.now()
        self._harvests = Harvests(stores.database, clock)

    async def enqueue_due(self, tx: Transaction) -> datetime | None:
        """Enqueue due conversations; return when the next one will be due without further messages."""
        await self._harvests.turned_on(tx, self._since)
        now, later = self._clock.now(), list[datetime]()
        for backlog in await self._harvests.backlogs(tx):
            at = backlog.due(self._settings)
            if at is not None and at > now:
                later.append(at)
            elif at is not None:
                job = NAME, backlog.key, backlog.scope, backlog.args
                await self._stores.jobs.enqueue(tx, *job)
        return min(later, default=None)

    async def harvest(self, job: Job) -> JobDone | JobPutOff:
        """Read a conversation, or only its messages to be read again. Raises: ModelError."""
        only_again = "again" in job.args
        upto = await self.catch_up(job.args["conversation"], job.id, only_again=only_again)
        if upto == job.args.get("upto"):  # another message must be answered first
            return JobPutOff(self._clock.now() + AGAIN, "something is to be answered first")
        return JobDone()

    async def catch_up(
        self, conversation: str, job_id: str = "", *, only_again: bool = False
    ) -> int:
        """Read a conversation from its cursor to the end; return the new position.

        Raises: ModelError.
        """
        while True:
            await self._models.require_idle(NAME)
            cursor = await self._harvests.cursor(self._stores.database, conversation)
            rows = await self._harvests.said(self._stores.database, conversation, cursor)
            if not rows or (only_again and not cursor.again):
                return cursor.upto
            with suppress(QuestionWithdrawn):  # the present messages are read
                await self._read(job_id, conversation, cursor, chunk(rows, self._room()))

    def _room(self) -> int:
        return min(MOST_TOKENS, int(SHARE * self._models.window(NAME)))

    async def _read(self, job_id: str, conversation: str, cursor: Cursor, part: Chunk) -> None:
        """Ask about a chunk and store the facts, unless the chunk changed meanwhile."""
        judged: Sequence[GroundingResult] = ()
        if part.scope is not None:
            shown = {"transcript": transcript(part.messages, self._stores.tasks.zone)}
            sources = QuestionSources(
                part.events, partial(self._is_unchanged, conversation, cursor, part)
            )
            contents = await self._models.answer_in_json(
                *(NAME, self._template.text(), shown, picked), sources=sources
            )
            judged = await self._judged(part.messages, contents)
        async with self._stores.database.transaction() as tx:
            if not await self._is_unchanged(conversation, cursor, part, tx):
                return  # the present messages are read
            picked_up = await self._keep(
                tx, part, learnt_facts(part, [j for j in judged if j.is_grounded])
            )
            month = self._clock.now().astimezone(self._stores.tasks.zone)
            for reason, times in Counter(j.reason for j in judged if j.reason).items():
                await self._stores.health.count_in(tx, f"{DROPPED} {month:%Y-%m} {reason}", times)
            await self._harvests.read(tx, conversation, part)
            await self._stores.jobs.add_to(tx, job_id, PICKED, picked_up)

    async def _judged(
        self, messages: Sequence[MessageVersion], contents: Sequence[str]
    ) -> Sequence[GroundingResult]:
        """Check each text against the people's own lines, with the reason if it fails (M-086)."""
        lines = lines_of(messages, self._stores.tasks.zone)
        judged = await asyncio.to_thread(lambda: list(map(Grounding(lines).ground, contents)))
        worded = [text for each in judged if each.is_undecided for text in (each.fact, *each.said)]
        like = None
        if worded and self._stores.meaning:
            try:
                like = await self._stores.meaning.comparison(worded)
            except MemoryUnavailable as problem:
                log.warning("compared by words alone reason=%s", problem)
        places = {text: n for n, text in enumerate(worded)}
        return [each.with_similarity(places, like) for each in judged]

    async def _is_unchanged(
        self, conversation: str, cursor: Cursor, part: Chunk, tx: Transaction
    ) -> bool:
        """Check whether nobody else read the chunk, and nothing in it was edited or redacted."""
        if await self._harvests.cursor(tx, conversation) != cursor:
            return False
        rows = await self._harvests.said(tx, conversation, cursor)
        same = [row for row in rows if row.place <= part.place]  # newer messages are read next
        return bool(same) and chunk(same, self._room()) == part

    async def _keep(self, tx: Transaction, part: Chunk, facts: Sequence[NewFact]) -> int:
        """Store facts and count them; facts of earlier versions are retired in the same change set."""
        edited = {row.message for row in part.messages if row.reworded or row.edits}
        found = await edited_messages(tx, edited, self._stores.tasks.zone)
        events = {event for each in found for event in each.events}
        if (part.again or found) and facts:
            but = await self._harvests.left_out(tx, part, events)
            facts = [fact for fact in facts if gist(fact) not in but]
        taken = await self._stores.facts.take(tx, facts) if facts else []
        changes = [done.change for done in taken if done.change]
        picked_up = len(changes)
        # Messages read again retire nothing: two messages of one memory would requeue each other for ever.
        if found and part.scope and not part.again:
            known = {done.fact.id for done in taken}
            gone, over = await retire_retracted(self._stores, tx, part.scope, found, known)
            others = {name for fact in gone for name in fact.origins} - events
            await self._harvests.read_again(tx, others, ())
            changes += over
        if changes and part.scope:
            evidence = tuple(each.event_id for each in part.messages)
            why = Reason("harvest", part.scope, evidence=evidence)
            await self._stores.changes.record(tx, why, changes)
        return picked_up
