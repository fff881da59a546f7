"""All stores over one database in one frozen value, which is passed down as a whole."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wintermute.changes.change_sets import ChangeSets, ItemKind
from wintermute.changes.decisions import Decisions
from wintermute.changes.nights import Nights
from wintermute.changes.placing import FileItems, Placing
from wintermute.changes.undo import Undo
from wintermute.clock import Clock
from wintermute.config.schema import WIKI, Config, Memory, QuietHours
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.config.wiki import WikiSettings, with_model
from wintermute.db import Database
from wintermute.errors import StoreBusy
from wintermute.files import restore_saves
from wintermute.health.health import EditedFiles, Health, TrustedReadings
from wintermute.ids import NewId
from wintermute.jobs import Jobs
from wintermute.llm.calls import ModelCalls
from wintermute.llm.embeddings import open_embedder
from wintermute.llm.models import Models
from wintermute.llm.tokens import TokenCounts
from wintermute.llm.vector import Embedder
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations, Edits, Folds, Rewards
from wintermute.loom.sub_sessions import SubSessions
from wintermute.loom.threads import Threads
from wintermute.mailbox.inbox import Inbox
from wintermute.mailbox.notices import Notices
from wintermute.mailbox.outbox import Outbox
from wintermute.mailbox.retractions import Removals
from wintermute.mailbox.rooms import KnownRooms
from wintermute.memory.backend import FileMemory, MemoryBackend, RankedMemory
from wintermute.memory.core import Core, Places
from wintermute.memory.core_pages import CorePages, core_items
from wintermute.memory.embedding_search import EMBEDDINGS_JOB, EmbeddingSearch
from wintermute.memory.facts import Facts, OnNewTexts
from wintermute.memory.flat_file import FileVersions, FlatFile
from wintermute.memory.qdrant import QdrantVectors
from wintermute.memory.recalls import Recalls
from wintermute.memory.search import Search
from wintermute.memory.status import MemoryStatus
from wintermute.memory.vectors import LocalVectors, VectorIndex
from wintermute.owner import Owner
from wintermute.skills.skills import Skills, skill_items
from wintermute.tasks.occurrences import Occurrences, TaskRuns
from wintermute.tasks.tasks import Tasks
from wintermute.wiki.folder import StoreFolder
from wintermute.wiki.job_undo import page_items
from wintermute.wiki.store import WikiStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one data folder."""

    database: Database
    data_dir: Path
    owner: Owner
    prompts: Path
    places: Places
    health: Health
    trusted_readings: TrustedReadings
    jobs: Jobs
    edited: EditedFiles
    model_calls: ModelCalls
    token_counts: TokenCounts
    inbox: Inbox
    outbox: Outbox
    notices: Notices
    known: KnownRooms
    conversations: Conversations
    threads: Threads
    casts: Casts
    folds: Folds
    rewards: Rewards
    edits: Edits
    sub_sessions: SubSessions
    changes: ChangeSets
    decisions: Decisions
    nights: Nights
    placing: Placing
    core: Core
    core_pages: CorePages
    facts: Facts
    recalls: Recalls
    versions: FileVersions
    memories: MemoryBackend
    meaning: EmbeddingSearch | None
    memory_status: MemoryStatus
    tasks: Tasks
    occurrences: Occurrences
    runs: TaskRuns
    skills: Skills
    wiki: WikiStore
    undo: Undo

    @property
    def retractions(self) -> Removals:
        """The store of messages to be deleted, over the same outbox."""
        return Removals(self.outbox, self.database)

    @classmethod
    def of(
        cls,
        database: Database,
        data_dir: Path,
        owner: Owner,
        clock: Clock,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
        *,
        timezone: str,
        memory: Memory | None = None,
        embedder: Embedder | None = None,
        wiki: Path | None = None,
        quiet: QuietHours | None = None,
    ) -> "Stores":
        """Build all stores. `timezone` decides the owner's days; without `memory` memories are kept as a list."""
        memory, wiki = memory or Memory(), wiki or data_dir / WIKI
        places, health, jobs = Places(data_dir, owner), Health(database, clock), Jobs(clock, new_id)
        changes, decisions = ChangeSets(database, clock, new_id), Decisions(database, clock)
        placing = Placing(database, changes, _files(places, wiki), data_dir)
        facts = Facts(database, changes, clock, new_id, _enqueue_embedding(memory, jobs), health)
        meaning = _meaning(memory, database, new_id, embedder, health)
        tasks, occurrences = _task_stores(database, changes, clock, new_id, owner, timezone)
        hours = partial((quiet or QuietHours()).end_after, zone=tasks.zone)
        outbox = Outbox(database, clock, new_id, redact, occurrences.delivered, hours)
        return cls(
            database=database,
            data_dir=data_dir,
            owner=owner,
            prompts=data_dir / "prompts",
            places=places,
            health=health,
            trusted_readings=TrustedReadings(database),
            jobs=jobs,
            edited=EditedFiles(database),
            model_calls=ModelCalls(database, clock, new_id),
            token_counts=TokenCounts(database),
            inbox=Inbox(database, clock, redact),
            outbox=outbox,
            notices=Notices(outbox, database, clock, redact),
            known=KnownRooms(database, clock),
            **_loom(database, clock, new_id, redact),
            changes=changes,
            decisions=decisions,
            placing=placing,
            nights=Nights(database, clock),
            **_file_stores(places, database, changes, placing),
            facts=facts,
            recalls=Recalls(database, clock),
            versions=FileVersions(database),
            memories=_backend(*(memory, database, facts, places, changes, decisions), meaning),
            meaning=meaning,
            memory_status=MemoryStatus(memory, database, meaning, health),
            tasks=tasks,
            occurrences=occurrences,
            runs=TaskRuns(database, clock),
            wiki=WikiStore(wiki),
            undo=Undo(database, changes, {"fact": facts, "task": tasks}, placing),
        )


def _loom(database: Database, clock: Clock, new_id: NewId, redact: Redaction) -> dict[str, Any]:
    """Build the stores of conversations and casts, by their names."""
    shared = (database, clock, new_id)
    return {
        "conversations": Conversations(*shared),
        "threads": Threads(*shared),
        "casts": Casts(*shared, redact),
        "folds": Folds(*shared),
        "rewards": Rewards(*shared),
        "edits": Edits(database, clock, redact),
        "sub_sessions": SubSessions(*shared),
    }


@asynccontextmanager
async def closing(stores: Stores) -> AsyncIterator[Stores]:
    """Close the embedder at the end of the block."""
    try:
        yield stores
    finally:
        if stores.meaning is not None:
            await stores.meaning.aclose()


@asynccontextmanager
async def open_stores(
    config: Config,
    wiki: WikiSettings,
    database: Database,
    clock: Clock,
    new_id: NewId,
    redact: Redaction,
    starts: Callable[[], None] | None = None,
) -> AsyncIterator[tuple[Stores, Models]]:
    """Open the stores of a configuration, with this wiki, and its models. `starts` is called when
    an embedder starts.
    """
    llm, memory, zone = with_model(config.llm, wiki.model), config.memory, config.timezone
    models = Models(llm, database, clock, new_id, zone, redact)
    stores = Stores.of(
        *(database, config.data_dir, config.owner, clock, new_id, redact),
        timezone=zone,
        memory=memory,
        embedder=open_embedder(memory, models, clock, starts),
        wiki=wiki.store,
        quiet=config.quiet,
    )
    async with aclosing(models), closing(stores):
        yield stores, models


async def prepare(stores: Stores) -> None:
    """Bring the search indexes of memories up to date, at once or by a job.

    Facts, a model or a backend may have changed while no program ran (M-022, M-077).
    """
    places = stores.places
    for folder in {places.skills(), *(file.path.parent for file in places.files())}:
        await asyncio.to_thread(restore_saves, folder)
    with suppress(StoreBusy):  # the next program that writes files finishes after the kill
        await stores.placing.finish()
    await stores.facts.words.ensure_complete(stores.database)
    if not stores.memories.ranked:
        await stores.memories.refresh()
        return
    async with stores.database.transaction() as tx:
        await stores.jobs.enqueue_due(tx, EMBEDDINGS_JOB)


def _enqueue_embedding(memory: Memory, jobs: Jobs) -> OnNewTexts | None:
    return None if memory.backend == "flat_file" else partial(jobs.enqueue_due, name=EMBEDDINGS_JOB)


def _task_stores(
    database: Database,
    changes: ChangeSets,
    clock: Clock,
    new_id: NewId,
    owner: Owner,
    timezone: str,
) -> tuple[Tasks, Occurrences]:
    tasks = Tasks(database, changes, clock, new_id, owner, timezone)
    return tasks, Occurrences(database, clock, tasks.zone)


def _file_stores(
    places: Places, database: Database, changes: ChangeSets, placing: Placing
) -> dict[str, Any]:
    """Build the stores of files that both people and the program write, by their names."""
    shared = (database, changes, placing)
    return {
        "core": Core(places, EditedFiles(database)),
        "core_pages": CorePages(places, *shared),
        "skills": Skills(places.skills(), *shared, places.owner_scope),
    }


def _files(places: Places, wiki: Path) -> Mapping[ItemKind, FileItems]:
    """Return the kinds of files that both people and the program write, with their undo."""
    return {
        "skill": skill_items(places.skills()),
        "core": core_items(places),
        "page": page_items(StoreFolder(wiki)),
    }


def _meaning(
    memory: Memory, database: Database, new_id: NewId, embedder: Embedder | None, health: Health
) -> EmbeddingSearch | None:
    if embedder is None:
        return None
    index: VectorIndex = LocalVectors(database)
    if memory.backend == "qdrant" and memory.qdrant.url:
        index = QdrantVectors(database, new_id, memory.qdrant.url, memory.qdrant.api_key)
    return EmbeddingSearch(database, index, embedder, health)


def _backend(
    memory: Memory,
    database: Database,
    facts: Facts,
    places: Places,
    changes: ChangeSets,
    decisions: Decisions,
    meaning: EmbeddingSearch | None,
) -> MemoryBackend:
    """Return the configured backend (M-014)."""
    flat = FlatFile(database, facts, places, changes, decisions)
    search = Search(database, facts, meaning)
    if memory.backend == "flat_file":
        return FileMemory(database, flat, search)
    return RankedMemory(database, facts, places, flat, search, memory.working_set_size)
