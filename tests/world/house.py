"""The loop with its stores and rooms in one process: a scripted model, a silent room, no Matrix.

    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("hello")
        assert await house.said(1) == ["echo: hello"]

Nothing here waits for time: whoever waits is woken by what the rooms do.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.world.clock import FakeClock
from wintermute.clock import Clock, SystemClock
from wintermute.commands.chat import ChatCommands
from wintermute.commands.stores import Stores
from wintermute.config.schema import Backend, ComponentSizeLimits, Context, Llm, Roles
from wintermute.config.schema import Budget as Ceilings
from wintermute.config.schema import SubSessions as Limits
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.conversation.asking import Asking
from wintermute.conversation.cast import Loop
from wintermute.conversation.casting import Casting
from wintermute.conversation.folding import Folding
from wintermute.conversation.forking import Forking
from wintermute.conversation.gates import Gates
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.seeding import Seeding
from wintermute.conversation.terms import Prompt, Terms
from wintermute.conversation.toolbox import AnyTool, Caller, Toolbox
from wintermute.conversation.wards import Wards
from wintermute.db import Database, open_database
from wintermute.delegation.delegation import Delegation
from wintermute.delegation.ending import Ending
from wintermute.delegation.means import Bounds
from wintermute.delegation.telling import Words
from wintermute.health.store import Health
from wintermute.ids import new_id
from wintermute.llm.budget import Budget
from wintermute.llm.calls import ModelCalls
from wintermute.llm.models import Models
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Inbox, State
from wintermute.mailbox.outbox import Outbox
from wintermute.messages import Incoming, Json, Kind, Origin
from wintermute.prompt.gather import Gather
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.oversize import Oversize
from wintermute.prompt.seeds import seed_template
from wintermute.templates import Template
from wintermute.tools.delegate import CallAgent, CallAgentBatch, SpawnSubSession
from wintermute.tools.done import Done
from wintermute.tools.files import ReadFile, WriteFile
from wintermute.tools.memory import AppendMemory, MemoriesView
from wintermute.tools.roots import Roots
from wintermute.tools.skill import AddSkill
from wintermute.tools.task import TaskTool

ROOM = "!room:test"
ANN = "@ann:test"
WARDS = Wards(max_turns=30, max_seconds=60, max_tokens=1_000_000, require_done=False)
WITHIN = 10.0
SYSTEM = "Be kind."
LIMITS = ComponentSizeLimits()
CONTEXT = Context()
UNLIMITED = Ceilings()
PROMPTS = Path(__file__).parent.parent.parent / "data" / "prompts"
SEQUENCE = itertools.count(1)


class HeldClock(FakeClock):
    """A clock that stands still until a test moves it; sleepers wait for that."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = asyncio.Condition()
        self._asleep = 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.monotonic() + seconds
        async with self._moved:
            self._asleep += 1
            self._moved.notify_all()
            try:
                await self._moved.wait_for(lambda: self.monotonic() >= until)
            finally:
                self._asleep -= 1

    async def move(self, seconds: float) -> None:
        """Let time pass and wake whose time has come."""
        async with self._moved:
            self.advance(seconds)
            self._moved.notify_all()

    async def asleep(self) -> None:
        """Wait until somebody sleeps."""
        async with asyncio.timeout(WITHIN), self._moved:
            await self._moved.wait_for(lambda: self._asleep > 0)


async def _echo(_caller: Caller, args: Json) -> object:
    return args.get("say", "")


@dataclass(frozen=True)
class Gate:
    """A tool for tests. `taken` has the arguments of every run."""

    name: str = "echo"
    act: Callable[[Caller, Json], Awaitable[object]] = _echo
    durable: bool = True
    parameters: Json = field(
        default_factory=lambda: {"type": "object", "properties": {"say": {"type": "string"}}}
    )
    description: str = "Says it again."
    taken: list[Json] = field(default_factory=list)

    async def run(self, caller: Caller, args: Json) -> object:
        self.taken.append(args)
        return await self.act(caller, args)


class SilentSpeaker:
    """The way back into rooms where nobody listens; `stirred` is set by all that happens.

    With `rests_badly` it is where a bug sits.
    """

    def __init__(self) -> None:
        self.rests_badly = False
        self.stirred = asyncio.Event()
        self.shown: list[tuple[str, str]] = []
        self.drafts: list[str] = []

    def serves(self, room_id: str) -> bool:
        return True

    def attend(self, room_id: str, event_id: str) -> None:
        self._note("attend", room_id)

    def rest(self, room_id: str) -> None:
        self._note("rest", room_id)
        if self.rests_badly:
            raise KeyError(room_id)

    def draft(self, room_id: str, piece: str) -> None:
        self.drafts.append(piece)

    def gate(self, room_id: str, name: str) -> None:
        self._note(f"gate {name}", room_id)

    def speak(self, room_id: str) -> None:
        self._note("speak", room_id)

    def _note(self, what: str, room_id: str) -> None:
        self.shown.append((what, room_id))
        self.stirred.set()


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
        kind: Kind | None = None,
        scope: str | None = None,
        direct: bool = True,
        event_id: str | None = None,
    ) -> str:
        """Store a message as a door does and wake its room; the event's id."""
        incoming = Incoming(
            event_id=event_id or f"$event{next(SEQUENCE)}",
            room_id=room,
            sender=sender,
            sender_name=name,
            origin=origin,
            kind=kind or ("command" if text.startswith("/") else "message"),
            body=text,
            sent_at=self.clock.now(),
            direct=direct,
        )
        state: State = "ignored" if kind == "context" else "waiting"
        async with self.database.transaction() as tx:
            conversation = await self.conversations.in_room(tx, room, scope or f"person:{sender}")
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
            yield
            rooms.cancel()
            others.cancel()

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something became true; looked at whenever a room did something."""
        async with asyncio.timeout(WITHIN):
            while True:
                self.speaker.stirred.clear()
                if await true():
                    return
                await self.speaker.stirred.wait()

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
    clock: Clock | None = None,
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
    """Build it all on the database in `folder`, as the daemon does.

    With `prompts`, a folder of prompt files, there are the real prompt and the tools of memory,
    tasks and skills; with a `language` the seeds, with `sub_sessions` the tools to hand out work.
    """
    clock, files = clock or SystemClock(), prompts or PROMPTS
    llm = llm or _llm(model, backend, max_retries=retries, budget=budget, record=record)
    async with open_database(folder / "wintermute.db") as database:
        stores = Stores(database, folder, owner, clock, new_id, redact)
        stores.inbox = inbox_type(database, clock, redact)
        gather = _gather(stores, files, clock)
        async with _models(models_type, llm, database, clock, redact) as models:
            folding = _folding(stores, models, files, context, ephemeral)
            loop = _loop(stores, folding, Asking(models, folding, ephemeral), redact, clock)
            bounds = _bounds(sub_sessions or Limits(), llm)
            others = _delegation(stores, loop, gather, files, bounds, clock)
            tools = [*gates, *([Done()] if done else []), *_delegating(others, sub_sessions)]
            tools += _tools(stores, folder, roots) if prompts else []
            terms = _terms(tools, gather if prompts else _spoken(prompt), bounds)
            oversize = Oversize(gather, limits, files, stores.places, clock)
            seeding = Seeding(_seed(prompts, language), stores.inbox, stores.casts)
            parts = (folding, loop, others, terms, wards, seeding, oversize, clock)
            rooms, speaker = _rooms(stores, *parts)
            yield House(stores, clock, loop, rooms, speaker, gather, models, others, terms.toolbox)


def _bounds(limits: Limits, llm: Llm) -> Bounds:
    return Bounds(limits, 200_000, tuple(llm.backends), bool(llm.roles.sub_sessions))


def _terms(tools: Sequence[AnyTool], prompt: Prompt, bounds: Bounds) -> Terms:
    return Terms(Toolbox(tools), prompt, depth=bounds.limits.max_depth)


def _spoken(prompt: Callable[[], str] | Prompt) -> Prompt:
    return Fixed(prompt) if callable(prompt) else prompt


def _loop(
    stores: Stores, folding: Folding, asking: Asking, redact: Redaction, clock: Clock
) -> Loop:
    gates = Gates(stores.database, stores.casts, redact.tree)
    return Loop(stores.database, stores.casts, asking, gates, folding, clock)


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
    return Folding(stores.database, stores.casts, stores.folds, models, template, context, hidden)


def _rooms(
    stores: Stores,
    folding: Folding,
    loop: Loop,
    sub_sessions: Delegation,
    terms: Terms,
    wards: Wards,
    seeding: Seeding,
    oversize: Oversize,
    clock: Clock,
) -> tuple[Rooms, SilentSpeaker]:
    """The rooms and all that they need."""
    speaker = SilentSpeaker()
    casting = Casting(
        stores.database,
        stores.inbox,
        stores.outbox,
        stores.conversations,
        stores.casts,
        loop,
        terms,
        wards,
        speaker,
        stores.health,
        clock,
        seeding,
        Forking(stores.inbox, stores.conversations, stores.casts, sub_sessions),
        oversize,
    )
    rooms = Rooms(
        stores.database,
        stores.inbox,
        stores.casts,
        casting,
        ChatCommands(stores, seeding, folding, sub_sessions, clock, "UTC"),
        sub_sessions,
        speaker,
        stores.health,
        clock,
    )
    return rooms, speaker


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
        Words(gather, Instructions(files), Template(files, "WORKER_MINIMAL.txt")),
        bounds,
        clock,
    )


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


def _gather(stores: Stores, prompts: Path, clock: Clock) -> Gather:
    return Gather(
        Instructions(prompts),
        stores.core,
        stores.memories.text,
        None,
        stores.tasks,
        stores.skills,
        stores.health,
        clock,
        "Europe/Berlin",
    )


def _tools(stores: Stores, folder: Path, allowed: Sequence[Path]) -> list[AnyTool]:
    roots = Roots(folder, allowed, stores.owner_scope)
    view = MemoriesView(stores.memories, stores.places)
    return [
        ReadFile(roots, view),
        WriteFile(roots, view),
        AppendMemory(stores.facts),
        TaskTool(stores.tasks),
        AddSkill(stores.skills, stores.owner_scope),
    ]
