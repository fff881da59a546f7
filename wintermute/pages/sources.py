"""Sources of consolidation: a folder of messages, or new messages of the owner's own chat.

Of a chat these are the latest wordings of messages to the assistant, with its answers, as the harvest reads
them; each message is used once (W-058). The cursor moves in the transaction that records the result. It can go
back until the pages are known to be in place.
"""

import json
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import text_proposal
from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import insert, reader
from wintermute.errors import FileUnusable, QuestionWithdrawn, WintermuteError
from wintermute.files import run_uncancelled
from wintermute.learning.harvest import MOST_ROWS, Cursor, Harvests, MessageVersion, transcript
from wintermute.messages import FOLDER
from wintermute.pages.page_lines import LineOrigins, store_origins
from wintermute.stores import Stores
from wintermute.text import shortened
from wintermute.wiki.conversations import ConversationFolder, MessageFile
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.links import RAW
from wintermute.wiki.page_jobs import (
    WikiJob,
    drop_raw,
    numbered,
    raw_name,
    read_job,
    recorded,
    untrusted_paths,
)
from wintermute.wiki.verdict import ProposedPage

CHAT = "chat"
"""Name of the raw copies of chats."""
MOST_CHARACTERS = 4_000
"""Characters of one message for a model; a longer one is shown by its head and tail."""
NOT_SAID = re.compile(r"<(?:memory name=|cathedral>)")
"""Openings of messages from the program, or with the text of a page."""
NEWEST = 2**62
"""Position after all casts and edits."""
ONLY_OURS = (
    "{name} is not a direct chat of the owner: pages are made only of such chats and of folders"
)


@dataclass(frozen=True, slots=True)
class ChatPart:
    """Messages of a chat since it was last read, and the cursor before them."""

    conversation_id: str
    cursor: Cursor
    rows: tuple[MessageVersion, ...]

    @property
    def upto(self) -> int:
        """Position of the last message."""
        return max([self.cursor.upto, *(row.seq for row in self.rows)])


@dataclass(frozen=True, slots=True)
class SourceTranscript:
    """Transcript of a conversation for consolidation.

    `named`: its name in a job. `files`: files of its raw copy; `name`: name of that copy. `blocks`: messages as
    a model is shown them. `events`: pairs of event and file.
    """

    named: str
    name: str
    files: tuple[tuple[str, str], ...]
    blocks: tuple[str, ...]
    is_outside: bool = False
    part: ChatPart | None = None
    events: tuple[tuple[str, str], ...] = ()
    sources: tuple[frozenset[str], ...] = ()
    """Events of each block."""


class ConversationSource(Protocol):
    """Source of a conversation."""

    async def read(self) -> SourceTranscript | None:
        """Return the transcript; None if nothing new was said."""
        ...


class FolderSource:
    """Source: a folder of message files.

    Messages from outside the store, and copies of them, are tainted.
    """

    def __init__(
        self, store: Path, conversation: ConversationFolder, kept: "Consolidations | None" = None
    ) -> None:
        """`kept`: knows if an answer in the folder was made with an untrusted page in view."""
        self._store = store
        self._conversation = conversation
        self._records = kept
        self._room = f"{FOLDER}{conversation.path.resolve()}"

    async def read(self) -> SourceTranscript | None:
        """Return all messages. Raises: WintermuteError if this is no conversation."""
        talk = await run_uncancelled(self._read)
        if self._records is None:
            return talk
        names = [f"{talk.named}/{file}" for file, _ in talk.files]
        places = await self._records.events_of(names) if talk.named.startswith(f"{RAW}/") else []
        events = tuple((event, path.rpartition("/")[2]) for event, path in places)
        said = [each.name for each in self._conversation.messages() if _is_spoken(each)]
        sources = tuple(frozenset(e for e, file in events if file == name) for name in said)
        outside = talk.is_outside or await self._records.saw_outside(self._room)
        return replace(talk, is_outside=outside, events=events, sources=sources)

    def _read(self) -> SourceTranscript:
        path = self._conversation.path
        messages = self._conversation.messages()
        if not messages:
            raise WintermuteError(f"{path} has no messages, so no page can be made of it")
        inside = path.is_relative_to(self._store)
        files = StoreFolder(path)
        try:
            texts = tuple((each.name, files.exact_text(each.name)) for each in messages)
        except (FileUnusable, FileNotFoundError) as problem:
            raise WintermuteError(f"{path}: {problem}") from problem
        named = path.relative_to(self._store).as_posix() if inside else str(path)
        is_outside = not inside or named in untrusted_paths(StoreFolder(self._store))
        return SourceTranscript(
            named, raw_name(path.name), texts, tuple(_blocks(messages)), is_outside
        )


def _blocks(messages: Sequence[MessageFile]) -> Iterator[str]:
    """Yield each message that was said, indented so that no line of it can pass for another speaker."""
    for each in messages:
        if _is_spoken(each):
            lines = shortened(each.text.strip(), MOST_CHARACTERS).splitlines()
            yield f"{each.role}: " + "\n  ".join(lines)


def _is_spoken(message: MessageFile) -> bool:
    return message.role != "system" and not NOT_SAID.match(message.text)


@dataclass(frozen=True, slots=True)
class OpenConsolidation:
    """Job whose pages may or may not be in place."""

    job: str
    conversation_id: str | None
    raw: str
    change_set_id: str | None


_read_open = reader(OpenConsolidation)


class Consolidations:
    """Store of consolidations: the cursor of each chat, and the files with copies of messages."""

    def __init__(self, stores: Stores, clock: Clock, night: str = "") -> None:
        """`night`: the night that runs them; "": a person asked."""
        self._stores = stores
        self._harvests = Harvests(stores.database, clock)
        self._clock = clock
        self._night = night

    @property
    def scope(self) -> str:
        """Scope that the pages belong to."""
        return self._stores.owner.scope

    async def chat(self, name: str) -> str:
        """Return the conversation of a room or id, if it may become pages (W-058).

        Raises: WintermuteError if it is not a direct chat of the owner.
        """
        current = (await self._stores.known.moves()).current_room(name)
        rows = await self._stores.database.rows(
            "SELECT id, scope, kind FROM conversations WHERE id = :name OR room_id IN (:name, :home)"
            " ORDER BY id = :name DESC, thread_id = '' DESC LIMIT 1",
            {"name": name, "home": current},
        )
        if not rows:
            raise WintermuteError(
                f"no conversation {name}: name a folder of messages, or a room as"
                " `wintermute loom list` shows it"
            )
        if rows[0]["scope"] != self.scope or rows[0]["kind"] not in ("room", "terminal"):
            raise WintermuteError(ONLY_OURS.format(name=name))
        return str(rows[0]["id"])

    async def saw_outside(self, room: str) -> bool:
        """Check if an answer in a folder was made with untrusted text in view (L-037)."""
        return await self._stores.database.exists(
            "SELECT 1 FROM conversations v JOIN branches b ON b.conversation_id = v.id"
            " JOIN casts k ON k.branch_id = b.id WHERE v.room_id = ? AND k.taint",
            (room,),
        )

    async def unread(self, conversation_id: str) -> ChatPart:
        """Return the new messages of a chat."""
        database = self._stores.database
        cursor = await self._cursor(database, conversation_id)
        return ChatPart(
            conversation_id, cursor, await self._wordings(database, conversation_id, cursor)
        )

    def transcript(self, name: str, part: ChatPart) -> SourceTranscript | None:
        """Return the owner's own messages and their answers as a transcript; None if there are none."""
        rows = [row for row in part.rows if row.whose == self.scope and row.body.strip()]
        if not rows:
            return None
        said: list[tuple[str, str]] = []
        places: list[tuple[str, int]] = []
        sources: list[frozenset[str]] = []
        for row in rows:
            texts = [("user", row.body), *([("assistant", row.answer)] if row.answer else [])]
            names = {*row.origins, *filter(None, [row.edits])}
            places += [
                (event, n)
                for event in sorted(names)
                for n in range(len(said), len(said) + len(texts))
            ]
            said += texts
            sources.append(frozenset(names))
        files = tuple(numbered(said))
        return SourceTranscript(
            name,
            CHAT,
            files,
            tuple(self._blocks(rows)),
            any(row.taint for row in rows),
            part,
            tuple((event, files[n][0]) for event, n in places),
            tuple(sources),
        )

    def _blocks(self, rows: Sequence[MessageVersion]) -> Iterator[str]:
        day = ""
        for row in rows:
            head, _, said = transcript([row], self._stores.tasks.zone).partition("\n")
            yield said if head == day else f"{head}\n{said}"
            day = head

    async def _cursor(self, source: Transaction | Database, conversation_id: str) -> Cursor:
        rows = await source.rows(
            "SELECT upto, casts, edits FROM consolidations WHERE conversation_id = ? AND settled"
            " ORDER BY seq DESC LIMIT 1",
            (conversation_id,),
        )
        if not rows:
            return Cursor(0, 0)
        return Cursor(rows[0]["upto"], rows[0]["casts"], edits=rows[0]["edits"])

    async def _wordings(
        self, source: Transaction | Database, conversation_id: str, cursor: Cursor
    ) -> tuple[MessageVersion, ...]:
        wordings: list[MessageVersion] = []
        while True:
            rows = await self._harvests.said(source, conversation_id, cursor)
            wordings += rows
            if len(rows) < MOST_ROWS:
                return tuple(wordings)
            cursor = _cursor_after(cursor, rows)

    async def is_unchanged(self, part: ChatPart | None, tx: Transaction) -> bool:
        """Check that no message was edited or deleted since it was read; None: a raw copy."""
        if part is None:
            return True
        rows = await self._wordings(tx, part.conversation_id, part.cursor)
        return tuple(row for row in rows if row.seq <= part.upto) == part.rows

    async def record_begun(self, job: WikiJob, talk: SourceTranscript) -> None:
        """Record a job and the files of its messages, before they are written."""
        chat = talk.part.conversation_id if talk.part else None
        values = {"job": job.name, "raw": job.raw_copy, "conversation_id": chat}
        values |= {"at": stamp(self._clock.now()), "night": self._night}
        async with self._stores.database.transaction() as tx:
            await tx.execute(*insert("consolidations", values))
            await tx.execute(
                "INSERT INTO raw_messages (event_id, path, consolidation)"
                " SELECT value ->> 0, value ->> 1, (SELECT max(seq) FROM consolidations)"
                " FROM json_each(?) WHERE TRUE ON CONFLICT DO NOTHING",
                (json.dumps([(event, f"{job.raw_copy}/{file}") for event, file in talk.events]),),
            )

    @asynccontextmanager
    async def recording(
        self,
        job: WikiJob,
        talk: SourceTranscript,
        changes: Sequence[FileChange],
        proposed: Sequence[ProposedPage],
        lines: Mapping[str, LineOrigins],
    ) -> AsyncIterator[str | None]:
        """Open a transaction that records the result, moves the cursor and stores proposals.

        `lines`: origins of new lines of pages, as far as known. Raises: QuestionWithdrawn if messages changed
        meanwhile.
        """
        evidence = (job.raw_copy, *dict.fromkeys(event for event, _ in talk.events))
        why = Reason("consolidation", self.scope, evidence=evidence, summary=job.name)
        async with self._stores.database.transaction() as tx:
            if talk.part and not await self.is_unchanged(talk.part, tx):
                raise QuestionWithdrawn(
                    "messages were changed meanwhile; the next run reads them again"
                )
            set_id = None
            if changes:
                done = recorded(changes, evidence)
                set_id = await self._stores.changes.record(tx, why, done)
            for page in proposed:
                await self._propose(tx, page)
            wanted = [*changes, *(page.change for page in proposed)]
            await store_origins(tx, wanted, lines, job.raw_copy)
            await tx.execute(
                "UPDATE consolidations SET upto = ?, change_set_id = ?,"
                " casts = (SELECT coalesce(max(seq), 0) FROM casts),"
                " edits = (SELECT coalesce(max(seq), 0) FROM edits) WHERE job = ?",
                (talk.part.upto if talk.part else 0, set_id, job.name),
            )
            yield set_id

    async def _propose(self, tx: Transaction, page: ProposedPage) -> None:
        path, text, store = page.change.path, page.change.after or None, self._stores.decisions
        await store.outdate_text(tx, self.scope, "page", path, but=text or "")
        await store.propose(tx, self.scope, text_proposal("page", path, text, page.reason))

    @asynccontextmanager
    async def record_undo(
        self, wanted: WikiJob, changes: Sequence[FileChange]
    ) -> AsyncIterator[str | None]:
        """Open a transaction that records the undo of a job."""
        known = await self._stores.changes.get(wanted.change_set or "")
        why = Reason("undo", self.scope, evidence=(wanted.change_set or wanted.folder,))
        async with self._stores.database.transaction() as tx:
            done = recorded(changes, why.evidence)
            yield await self._stores.changes.record(tx, why, done, known.id if known else None)

    async def of_night(self) -> list[str]:
        """Return this night's jobs, oldest first, without those that had no result."""
        query = "SELECT job FROM consolidations WHERE night = ? ORDER BY seq"
        return await self._stores.database.scalars(query, (self._night,))

    async def mark_settled(self, job: str) -> None:
        """Record that a job's pages are in place."""
        async with self._stores.database.transaction() as tx:
            await tx.execute("UPDATE consolidations SET settled = 1 WHERE job = ?", (job,))

    async def drop(self, files: StoreFolder, job: str) -> None:
        """Remove a job without result: its messages can be used again, and its raw copy goes."""
        for each in await self._open_jobs("job = ?", job):
            await self._drop(files, each)

    async def settle_interrupted(self, files: StoreFolder) -> None:
        """Settle or drop jobs that were killed. The caller holds `job_lock`."""
        for each in await self._open_jobs("TRUE"):
            job = read_job(files, each.job)
            if job is not None and job.status == "applied":
                await self.mark_settled(each.job)
            else:
                await self._drop(files, each)

    async def _open_jobs(self, which: str, *values: str) -> list[OpenConsolidation]:
        query = (
            "SELECT job, conversation_id, raw, change_set_id FROM consolidations"
            f" WHERE NOT settled AND {which} ORDER BY seq"
        )
        return [_read_open(row) for row in await self._stores.database.rows(query, values)]

    async def _drop(self, files: StoreFolder, job: OpenConsolidation) -> None:
        if job.conversation_id is not None:  # a folder's copy stays: its messages are there anyway
            await run_uncancelled(partial(_drop_raw, files, job.raw))
        async with self._stores.database.transaction() as tx:
            if job.change_set_id:
                await self._stores.changes.withdraw(tx, job.change_set_id)
            await self._stores.decisions.outdate_citing(tx, self.scope, job.raw)
            await tx.execute("DELETE FROM consolidations WHERE job = ?", (job.job,))

    async def events_of(self, files: Sequence[str]) -> list[tuple[str, str]]:
        """Return the events in these files of raw copies, each with its file."""
        rows = await self._stores.database.rows(
            "SELECT event_id, path FROM raw_messages"
            " WHERE path IN (SELECT value FROM json_each(?)) ORDER BY path, event_id",
            (json.dumps(list(files)),),
        )
        return [(row["event_id"], row["path"]) for row in rows]


async def raw_files(source: Transaction | Database, events: Collection[str]) -> list[str]:
    """Return the files of raw copies with the text of these events."""
    query = (
        "SELECT DISTINCT path FROM raw_messages"
        " WHERE event_id IN (SELECT value FROM json_each(?)) ORDER BY path"
    )
    return await source.scalars(query, (json.dumps(sorted(events)),))


def _drop_raw(files: StoreFolder, raw: str) -> None:
    with files.writing():
        drop_raw(files, raw)


def _cursor_after(cursor: Cursor, rows: Sequence[MessageVersion]) -> Cursor:
    """Return the cursor after these rows: late messages first, then edited ones, then new ones."""
    kind, place = rows[-1].place
    if kind < 2:
        casts, edits = (NEWEST, place) if kind else (place, cursor.edits)
        return Cursor(cursor.upto, casts, edits=edits)
    return Cursor(place, NEWEST, edits=NEWEST)


class ChatSource:
    """Source: new messages of a chat of the owner's."""

    def __init__(self, records: Consolidations, name: str) -> None:
        self._records = records
        self._name = name

    async def read(self) -> SourceTranscript | None:
        """Return the transcript. Raises: WintermuteError if it is no such chat."""
        part = await self._records.unread(await self._records.chat(self._name))
        return self._records.transcript(self._name, part)
