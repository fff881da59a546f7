"""The loop with its stores and rooms in one process: a scripted model, a silent room, no Matrix.

    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("hello")
        assert await house.said(1) == ["echo: hello"]

Nothing here waits for time: whoever waits is woken by what the rooms do. With `prompts`, a folder
of prompt files, there are the real prompt and the tools of memory, tasks and skills; with a
`language` the seeds, with `sub_sessions` the tools to hand out work.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.world.clock import SYSTEM as MACHINE
from tests.world.clock import WITHIN as WITHIN
from tests.world.clock import HeldClock as HeldClock
from tests.world.parts import Gate as Gate
from tests.world.parts import SilentSpeaker as SilentSpeaker
from tests.world.schema import open_migrated
from wintermute.clock import CheckedClock, Clock
from wintermute.commands.chat import ChatCommands
from wintermute.config.schema import Backend, ComponentSizeLimits, Context, Llm, Roles
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.conversation.asking import Asking
from wintermute.conversation.cast import Loop
from wintermute.conversation.casting import Branching, Casting
from wintermute.conversation.folding import Folding
from wintermute.conversation.gates import Gates
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.state import CastSettings, Prompt
from wintermute.conversation.toolbox import AnyTool, Toolbox
from wintermute.conversation.trouble import Trouble
from wintermute.db import Database
from wintermute.delegation.delegation import Bounds, Delegation, Ending, WorkerTexts
from wintermute.health.health import Health
from wintermute.ids import new_id
from wintermute.llm.calls import Budget, ModelCalls
from wintermute.llm.models import Models
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Wards
from wintermute.mailbox.inbox import Inbox, InboxState
from wintermute.mailbox.outbox import Outbox, Outgoing
from wintermute.messages import InboxKind, Incoming, Json, Origin
from wintermute.owner import Owner
from wintermute.prompt.gather import Gather, Instructions, Oversize, seed_template
from wintermute.schedule.firing import Firing
from wintermute.schedule.promises import AtWork, Promises
from wintermute.schedule.runs import Runs, RunSettings
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.tools.definition import Done
from wintermute.tools.delegate import CallAgent, CallAgentBatch, SpawnSubSession
from wintermute.tools.files import ReadFile, Roots, WriteFile
from wintermute.tools.memory import AddSkill, AppendMemory, MemoriesView
from wintermute.tools.task import TaskTool

ROOM = "!room:test"
ANN = "@ann:test"
WARDS = Wards(max_turns=30, max_seconds=60, max_tokens=1_000_000, require_done=False)
SYSTEM = "Be kind."
LIMITS = ComponentSizeLimits()
CONTEXT = Context()
UNLIMITED = Ceilings()
PROMPTS = Path(__file__).parent.parent.parent / "data" / "prompts"
ZONE = "Europe/Berlin"
SEQUENCE = itertools.count(1)


async def open_thread(database: Database, conversations: Conversations, room: str) -> str:
    """One more conversation in the room of another, as a thread will be; its id."""
    thread = new_id("conv")
    async with database.transaction() as tx:
        await tx.execute(
            "INSERT INTO conversations (id, kind, room_id, thread_id, scope, created_at) SELECT"
            " ?, kind, room_id, '$root', scope, created_at FROM conversations WHERE room_id = ?",
            (thread, room),
        )
        await conversations.branch(tx, thread, "start")
    return thread


@dataclass(frozen=True)
class House:
    """All parts between a door's inbox row and its outbox row."""

    stores: Stores
    clock: Clock
    loop: Loop
    rooms: Rooms
    speaker: SilentSpeaker
    gather: Gather
    models: Models
    delegation: Delegation
    toolbox: Toolbox
    promises: Promises
    runs: Runs
    wanted: asyncio.Event
    checked: CheckedClock

    @property
    def database(self) -> Database:
        return self.stores.database

    @property
    def inbox(self) -> Inbox:
        return self.stores.inbox

    @property
    def outbox(self) -> Outbox:
        return self.stores.outbox

    @property
    def conversations(self) -> Conversations:
        return self.stores.conversations

    @property
    def casts(self) -> Casts:
        return self.stores.casts

    @property
    def health(self) -> Health:
        return self.stores.health

    async def incoming(
        self,
        text: str,
        *,
        room: str = ROOM,
        sender: str = ANN,
        name: str = "Ann",
        origin: Origin = "owner",
        kind: InboxKind | None = None,
        scope: str | None = None,
        direct: bool | None = None,
        event_id: str | None = None,
        edits: str | None = None,
        raw: Json | None = None,
        replies_to: str | None = None,
        conversation: str | None = None,
    ) -> str:
        """Store a message as a door does and wake its room; the event's id.

        `conversation`: another one than that of the room itself.
        """
        incoming = Incoming(
            event_id=event_id or f"$event{next(SEQUENCE)}",
            room_id=room,
            sender=sender,
            sender_name=name,
            origin=origin,
            kind=kind or ("command" if text.startswith("/") else "message"),
            body=text,
            sent_at=self.clock.now(),
            direct=scope is None if direct is None else direct,
            edits=edits,
            raw=raw or {},
            replies_to=replies_to,
        )
        state: InboxState = "ignored" if kind == "context" else "waiting"
        async with self.database.transaction() as tx:
            held = await self.conversations.in_room(tx, room, scope or f"person:{sender}")
            conversation = conversation or held
            await self.inbox.store(tx, conversation, incoming, state)
        self.rooms.wake(conversation)
        return incoming.event_id

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The rooms work inside the block; leaving it is what SIGTERM does to them."""
        async with asyncio.TaskGroup() as group:
            rooms = group.create_task(self.rooms.run())
            wake, serves = self.rooms.wake, self.speaker.serves
            others = group.create_task(self.delegation.run(self.toolbox, wake, serves))
            runs = group.create_task(self.runs.run(self.wanted))
            yield
            rooms.cancel()
            others.cancel()
            runs.cancel()

    async def fire(self) -> None:
        """Look once at what is due, as the daemon does when something may be."""
        await self.promises.fire()
        self.wanted.set()

    async def next_outgoing(self, room: str = ROOM) -> Outgoing | None:
        """What is to be said next by the conversation that is held in a room."""
        async with self.database.transaction() as tx:
            held = await self.conversations.of_room(tx, room)
        return await self.outbox.next(held.id, room) if held else None

    async def deliver(self, room: str = ROOM) -> list[str]:
        """What waits to be said in a room is said, as by a homeserver that names its events.

        The signs that this brings wait for the next time.
        """
        said: dict[str, str] = {}
        while (row := await self.next_outgoing(room)) and row.reacts_to not in said:
            [part] = await self.outbox.store_parts(row.id, [(f"wm-{row.id}-0", {})], "DEVICE")
            await self.outbox.sent(part, f"$of-{row.id}")
            said[f"$of-{row.id}"] = row.text(self.checked.now())
        return [*said.values()]

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something became true; looked at whenever a room did something."""
        async with asyncio.timeout(WITHIN):
            while True:
                self.speaker.changed.clear()
                if await true():
                    return
                await self.speaker.changed.wait()

    async def said(self, n: int, room: str = ROOM) -> list[str]:
        """All that is in a room's outbox, once there are so many."""

        async def enough() -> bool:
            return len(await self.spoken(room)) >= n

        await self.until(enough)
        return await self.spoken(room)

    async def spoken(self, room: str = ROOM) -> list[str]:
        """All that is in a room's outbox now."""
        found = await self.rows("SELECT body FROM outbox WHERE room_id = ? ORDER BY seq", room)
        return [row["body"] for row in found]

    async def settled(self) -> None:
        """Wait until nothing in the inbox is open."""

        async def all_answered() -> bool:
            return not await self.inbox.open_conversations()

        await self.until(all_answered)

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """What the database has."""
        return [dict(zip(row.keys(), row, strict=True)) for row in await self._raw(sql, values)]

    async def _raw(self, sql: str, values: Sequence[object]) -> list[Any]:
        return list(await self.database.rows(sql, values))

    async def one(self, sql: str, *values: object) -> dict[str, Any]:
        """The only row of a query."""
        (row,) = await self.rows(sql, *values)
        return row


@dataclass(frozen=True)
class Fixed:
    """A prompt that is the same for all."""

    text: Callable[[], str]

    async def system(
        self, scope: str, tools: Collection[str], query: str | None, summary: str
    ) -> str:
        text = self.text()
        return f"{text}\n\n---\n\n# Conversation Summary\n{summary}" if summary else text


@asynccontextmanager
async def open_house(
    folder: Path,
    model: str | None,
    *,
    gates: Sequence[AnyTool] = (),
    done: bool = True,
    wards: Wards = WARDS,
    clock: Clock = MACHINE,
    retries: int = 0,
    prompt: Callable[[], str] | Prompt = lambda: SYSTEM,
    prompts: Path | None = None,
    language: str | None = None,
    limits: ComponentSizeLimits = LIMITS,
    roots: Sequence[Path] = (),
    inbox_type: type[Inbox] = Inbox,
    owner: str = ANN,
    context: Context = CONTEXT,
    ephemeral: Sequence[str] = (),
    redact: Redaction = UNHIDDEN,
    budget: Ceilings = UNLIMITED,
    record: bool = False,
    llm: Llm | None = None,
    models_type: type[Models] = Models,
    sub_sessions: Limits | None = None,
    **backend: Any,
) -> AsyncIterator[House]:
    """Build it all on the database in `folder`, as the daemon does."""
    checked, files = CheckedClock(clock), prompts or PROMPTS
    llm = llm or _llm(model, backend, max_retries=retries, budget=budget, record=record)
    async with open_migrated(folder / "wintermute.db") as database:
        stores = Stores.of(database, folder, Owner(owner), checked, new_id, redact, timezone=ZONE)
        stores = replace(stores, inbox=inbox_type(database, checked, redact))
        stores = replace(stores, prompts=files)
        gather = Gather(stores, Instructions(files), checked)
        async with _models(models_type, llm, database, checked, redact) as models:
            folding = _folding(stores, models, files, context, ephemeral)
            asking, bounds = Asking(models, folding, ephemeral), _bounds(sub_sessions, llm)
            loop = _loop(stores, folding, asking, redact, checked)
            others = _delegation(stores, loop, gather, files, bounds, checked)
            tools = [*gates, *([Done()] if done else []), *_delegating(others, sub_sessions)]
            tools += _tools(stores, folder, roots) if prompts else []
            terms = _terms(tools, gather if prompts else _spoken(prompt), bounds, wards)
            oversize = Oversize(stores, gather, limits, checked)
            branching = Branching(stores, _seed(prompts, language), others)
            parts = (folding, loop, terms, branching, oversize, checked)
            speaker = SilentSpeaker()
            work = (gather, files, terms.toolbox, bounds)
            runs, promises = _promises(stores, loop, speaker, *work, checked)
            rooms = _rooms(stores, models, speaker, AtWork(others, promises), *parts)
            known = (stores, clock, loop, rooms, speaker, gather, models, others, terms.toolbox)
            yield House(*known, promises, runs, asyncio.Event(), checked)


def _bounds(limits: Limits | None, llm: Llm) -> Bounds:
    return Bounds(limits or Limits(), 200_000, tuple(llm.backends), bool(llm.roles.sub_sessions))


def _terms(tools: Sequence[AnyTool], prompt: Prompt, bounds: Bounds, wards: Wards) -> CastSettings:
    return CastSettings(Toolbox(tools), prompt, depth=bounds.limits.max_depth, wards=wards)


def _spoken(prompt: Callable[[], str] | Prompt) -> Prompt:
    return Fixed(prompt) if callable(prompt) else prompt


def _loop(
    stores: Stores, folding: Folding, asking: Asking, redact: Redaction, clock: Clock
) -> Loop:
    return Loop(stores, asking, Gates(stores, redact.tree), folding, clock)


def _llm(model: str | None, backend: Json, **settings: Any) -> Llm:
    known = {"scripted": Backend(base_url=model, model="scripted", **backend)} if model else {}
    return Llm(backends=known, roles=Roles(base=tuple(known)), **settings)


@asynccontextmanager
async def _models(
    kind: type[Models], llm: Llm, database: Database, clock: Clock, redact: Redaction
) -> AsyncIterator[Models]:
    calls = ModelCalls(database, clock, new_id, llm.record)
    budget = Budget(database, clock, new_id, llm.budget, "UTC")
    models = kind(llm, calls, budget, clock, new_id, redact, lambda: 0.0)
    try:
        yield models
    finally:
        await models.aclose()


def _folding(
    stores: Stores, models: Models, files: Path, context: Context, hidden: Sequence[str]
) -> Folding:
    template = Template(files, "COMPACTION_PROMPT.txt")
    return Folding(stores, models, template, context, hidden)


def _rooms(
    stores: Stores,
    models: Models,
    speaker: SilentSpeaker,
    at_work: AtWork,
    folding: Folding,
    loop: Loop,
    terms: CastSettings,
    branching: Branching,
    oversize: Oversize,
    clock: Clock,
) -> Rooms:
    """The rooms and all that they need."""
    trouble = Trouble(stores, models, speaker, clock)
    casting = Casting(stores, loop, terms, branching, oversize, speaker, trouble, clock)
    commands = ChatCommands(stores, branching, folding, clock, "UTC")
    return Rooms(stores, casting, commands, at_work, speaker, trouble, clock)


def _delegation(
    stores: Stores, loop: Loop, gather: Gather, files: Path, bounds: Bounds, clock: Clock
) -> Delegation:
    return Delegation(
        stores.database,
        stores.sub_sessions,
        Ending(stores.sub_sessions, stores.inbox),
        stores.conversations,
        stores.casts,
        loop,
        stores.health,
        _words(gather, files),
        bounds,
        clock,
    )


def _promises(
    stores: Stores,
    loop: Loop,
    speaker: SilentSpeaker,
    gather: Gather,
    files: Path,
    toolbox: Toolbox,
    bounds: Bounds,
    clock: CheckedClock,
) -> tuple[Runs, Promises]:
    means = RunSettings.of(bounds.limits, 200_000, own_models=bounds.own_models)
    words, run = _words(gather, files), Template(files, "TASK_RUN.txt")
    runs = Runs(stores, loop, words, run, toolbox, means, speaker, clock)
    return runs, Promises(stores, Firing(stores, speaker, clock), runs, speaker, clock)


def _words(gather: Gather, files: Path) -> WorkerTexts:
    return WorkerTexts(gather, Instructions(files), Template(files, "WORKER_MINIMAL.txt"))


def _delegating(delegation: Delegation, limits: Limits | None) -> list[AnyTool]:
    if limits is None:
        return []
    return [
        SpawnSubSession(delegation, "Europe/Berlin"),
        CallAgent(delegation),
        CallAgentBatch(delegation, limits.max_parallel, limits.max_batch),
    ]


def _seed(prompts: Path | None, language: str | None) -> Template | None:
    return seed_template(prompts or PROMPTS, language) if language else None


def _tools(stores: Stores, folder: Path, allowed: Sequence[Path]) -> list[AnyTool]:
    roots = Roots(folder, allowed, stores.owner)
    view = MemoriesView(stores.memories, stores.places)
    return [
        ReadFile(roots, view),
        WriteFile(roots, view),
        AppendMemory(stores.facts),
        TaskTool(stores.tasks),
        AddSkill(stores.skills, stores.owner),
    ]
