"""The loop with its stores and rooms in one process: a scripted model, a silent room, no Matrix.

    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("hello")
        assert await house.said(1) == ["echo: hello"]

Nothing here waits for time: whoever waits is woken by what the rooms do. With `prompts`, a folder
of prompt files, there are the real prompt and the tools of memory, tasks and skills; with a
`language` the seeds, with `sub_sessions` the tools to hand out work, with `pages` that to recall them.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

from tests.world.clock import SYSTEM as MACHINE
from tests.world.clock import WITHIN as WITHIN
from tests.world.clock import FakeClock
from tests.world.clock import HeldClock as HeldClock
from tests.world.model import ModelServer
from tests.world.pages import FilePages
from tests.world.parts import Gate as Gate
from tests.world.parts import SilentSpeaker as SilentSpeaker
from tests.world.schema import open_migrated
from wintermute.answering import Answering, answering
from wintermute.clock import CheckedClock, Clock
from wintermute.config.schema import (
    Backend,
    ComponentSizeLimits,
    Config,
    Context,
    Dreaming,
    FileToolSettings,
    Llm,
    LoopSettings,
    Matrix,
    Memory,
    MemoryHarvest,
    Roles,
    Seed,
    Tools,
)
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.speakers import Speakers
from wintermute.conversation.state import Prompt, Speaker
from wintermute.conversation.toolbox import DONE, AnyTool
from wintermute.db import Database
from wintermute.health.health import Health
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.llm.vector import Embedder
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Wards
from wintermute.mailbox.inbox import Inbox, InboxState
from wintermute.mailbox.outbox import Outbox, Outgoing, is_matrix
from wintermute.messages import InboxKind, Incoming, Json, Origin, Size
from wintermute.night.phases import night_pipeline
from wintermute.night.pipeline import NightPipeline
from wintermute.prompt.context_block import ChangingParts, Layout
from wintermute.prompt.context_builder import ContextBuilder, MemoryQuery, read_texts
from wintermute.prompt.tool_names import ATTENDED, DELEGATING
from wintermute.schedule.loop import ScheduleLoop
from wintermute.stores import Stores, closing, prepare
from wintermute.web.speaker import WebSpeaker
from wintermute.wiki.recall import RECALL
from wintermute.wiki.store import WikiStore
from wintermute.work.data_folder import DataFolder
from wintermute.work.delegation import Delegation
from wintermute.work.runner import JobType, Runner
from wintermute.work.runs import Runs

ROOM = "!room:test"
ANN = "@ann:test"
WARDS = Wards(max_turns=30, max_seconds=60, max_tokens=1_000_000, require_done=False)
SYSTEM = "Be kind."
CONTEXT = Context()
UNLIMITED = Ceilings()
LISTED = Memory()
UNPICKED = MemoryHarvest(enabled=False)
AWAKE = Dreaming(enabled=False)
PROMPTS = Path(__file__).parent.parent.parent / "data" / "prompts"
ZONE = "Europe/Berlin"
P = ParamSpec("P")
SEQUENCE = itertools.count(1)
SCOPE = f"person:{ANN}"


async def open_thread(stores: Stores, room: str = ROOM, root: str = "$root") -> str:
    """The thread of a message of a room, as a door opens it; its id."""
    async with stores.database.transaction() as tx:
        held = await stores.conversations.of_room(tx, room)
        assert held is not None
        found = await stores.threads.of_root(tx, room, root)
        return found or await stores.threads.open(tx, held.id, root, answer_of=None, starter=None)


@dataclass(frozen=True)
class House:
    """All parts between a door's inbox row and its outbox row."""

    stores: Stores
    clock: Clock
    checked: CheckedClock
    speaker: SilentSpeaker
    web: WebSpeaker
    gather: ContextBuilder
    models: Models
    answers: Answering
    config: Config

    @property
    def rooms(self) -> Rooms:
        return self.answers.rooms

    @property
    def runner(self) -> Runner:
        return self.answers.runner

    @property
    def delegation(self) -> Delegation:
        return next(kind for kind in self.runner.job_types if isinstance(kind, Delegation))

    @property
    def runs(self) -> Runs:
        return next(kind for kind in self.runner.job_types if isinstance(kind, Runs))

    @property
    def promises(self) -> ScheduleLoop:
        return self.answers.promises

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
            of = scope or f"person:{sender}"
            held = await self.conversations.in_room(
                tx, room, of, "room" if is_matrix(room) else "terminal"
            )
            conversation = conversation or held
            await self.inbox.store(tx, conversation, incoming, state)
        self.rooms.wake(conversation)
        return incoming.event_id

    async def say(self, *texts: str, **about: Any) -> list[str]:
        """Say these, each answered before the next; the ids of their events."""
        said = []
        for text in texts:
            said.append(await self.incoming(text, **about))
            await self.settled()
        return said

    async def say_at_once(self, *texts: str, **about: Any) -> list[str]:
        """Say these one right after the other, and wait until all is answered; the ids of their events."""
        said = [await self.incoming(text, **about) for text in texts]
        await self.settled()
        return said

    async def ask(self, line: str, *, room: str = ROOM, **about: Any) -> str:
        """Say a line; the first thing that is said in its room after that."""
        before = len(await self.spoken(room))
        await self.incoming(line, room=room, **about)
        return (await self.said(before + 1, room))[before]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The rooms work inside the block; leaving it is what SIGTERM does to them."""
        async with asyncio.TaskGroup() as group:
            answers = group.create_task(self.answers.run())
            runs = group.create_task(self.runner.run(self.rooms.wake, unasked=True))
            pages = group.create_task(self.web.run())
            yield
            answers.cancel()
            runs.cancel()
            pages.cancel()

    async def fire(self) -> None:
        """Look once at what is due, as the daemon does when something may be."""
        await self.promises.fire()
        self.runs.wakeup.set()

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
            await self.outbox.mark_sent(part, f"$of-{row.id}")
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
        said = "SELECT body FROM outbox WHERE room_id = ? AND edits_of IS NULL ORDER BY seq"
        found = await self.rows(said, room)
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
    layout: Layout

    async def system(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None,
        summary: str,
        size: Size,
    ) -> str:
        text = self.text()
        if self.layout == "append" or not summary:
            return text
        return f"{text}\n\n---\n\n# Conversation Summary\n{summary}"

    async def changing_parts(
        self, scope: str, query: MemoryQuery | None, size: Size, *, anew: bool
    ) -> ChangingParts | None:
        return None


@asynccontextmanager
async def open_house(
    folder: Path,
    model: str | None,
    /,
    *,
    gates: Sequence[AnyTool] = (),
    done: bool = True,
    wards: Wards = WARDS,
    clock: Clock = MACHINE,
    retries: int = 0,
    prompt: Callable[[], str] | Prompt = lambda: SYSTEM,
    prompts: Path | None = None,
    language: str | None = None,
    limits: ComponentSizeLimits | None = None,
    roots: Sequence[Path] = (),
    inbox_type: type[Inbox] = Inbox,
    owner: str = ANN,
    context: Context = CONTEXT,
    ephemeral: Sequence[str] = (),
    redact: Redaction = UNHIDDEN,
    budget: Ceilings = UNLIMITED,
    record: bool = False,
    llm: Llm | None = None,
    memory: Memory = LISTED,
    harvest: MemoryHarvest = UNPICKED,
    dreaming: Dreaming = AWAKE,
    embedder: Embedder | None = None,
    models_type: type[Models] = Models,
    sub_sessions: Limits | None = None,
    pages: FilePages | None = None,
    kinds: Sequence[Callable[[Stores, Speaker, Clock], JobType[Any]]] = (),
    night: Callable[[DataFolder], NightPipeline] = night_pipeline,
    zone: str = ZONE,
    **backend: Any,
) -> AsyncIterator[House]:
    """Build it all on the database in `folder`, as the daemon does."""
    asked = llm or _llm(model, backend, max_retries=retries, budget=budget, record=record)
    config = replace(
        _config(folder, owner, asked, memory, harvest, dreaming, wards, language, zone),
        context=replace(context, component_size_limits=limits) if limits else context,
        sub_sessions=sub_sessions or Limits(max_depth=0),
        tools=Tools(files=FileToolSettings(roots=tuple(roots)), ephemeral=tuple(ephemeral)),
    )
    checked, texts = CheckedClock(clock), read_texts(files := prompts or PROMPTS, config.seed)
    async with open_migrated(folder / "wintermute.db") as database:
        shared = (database, folder, config.owner, checked, new_id, redact)
        stores = Stores.of(*shared, timezone=zone, memory=config.memory, embedder=embedder)
        stores = _read(replace(stores, inbox=inbox_type(database, checked, redact)), files, pages)
        models = models_type(config.llm, database, checked, new_id, zone, redact, lambda: 0.0)
        speakers = Speakers(speaker := SilentSpeaker(), web := WebSpeaker(stores.outbox, checked))
        async with aclosing(models), _prepared(stores):
            answers = answering(
                *(DataFolder(config, stores, models, texts, checked, redact), speakers),
                kinds=[kind(stores, speakers, checked) for kind in kinds],
                tools=partial(_tools, gates=gates, done=done, all_of=bool(prompts)),
                prompt=_prompt(prompt, prompts, context.layout),
                night=night,
            )
            gather = ContextBuilder(stores, texts.instructions, checked, context.layout)
            yield House(stores, clock, checked, speaker, web, gather, models, answers, config)


def _at_work(
    opening: Callable[P, AbstractAsyncContextManager[House]],
) -> Callable[P, AbstractAsyncContextManager[House]]:
    @asynccontextmanager
    async def opened(*args: P.args, **settings: P.kwargs) -> AsyncIterator[House]:
        async with opening(*args, **settings) as house, house.working():
            yield house

    return opened


house_at_work = _at_work(open_house)
"""Opens a house whose rooms work as long as the block lasts; takes what `open_house` takes."""


@asynccontextmanager
async def _prepared(stores: Stores) -> AsyncIterator[None]:
    async with closing(stores):
        await prepare(stores)
        yield


def _read(stores: Stores, prompts: Path, pages: FilePages | None) -> Stores:
    stores = replace(stores, prompts=prompts)
    return replace(stores, wiki=WikiStore(pages.root)) if pages else stores


def _tools(
    own: Iterable[AnyTool], gates: Sequence[AnyTool], *, done: bool, all_of: bool
) -> list[AnyTool]:
    """The gates of a test, and of our own tools those that it wants and has not replaced."""
    wanted = {DONE: done, **dict.fromkeys((RECALL, *DELEGATING, *ATTENDED), True)}
    wanted |= {gate.name: False for gate in gates}
    return [*gates, *(tool for tool in own if wanted.get(tool.name, all_of))]


def _config(
    folder: Path,
    owner: str,
    llm: Llm,
    memory: Memory,
    harvest: MemoryHarvest,
    dreaming: Dreaming,
    wards: Wards,
    language: str | None,
    zone: str,
) -> Config:
    matrix = Matrix(homeserver="http://localhost", user_id="@bot:test", owner=owner)
    home = Config(data_dir=folder, timezone=zone, matrix=matrix, llm=llm, loop=_loop(wards))
    seed = Seed(enabled=language is not None, language=language or "en")
    return replace(home, memory=memory, memory_harvest=harvest, dreaming=dreaming, seed=seed)


def _prompt(
    prompt: Callable[[], str] | Prompt, prompts: Path | None, layout: Layout
) -> Prompt | None:
    if prompts:
        return None
    return Fixed(prompt, layout) if callable(prompt) else prompt


def _llm(model: str | None, backend: Json, **settings: Any) -> Llm:
    known = {"scripted": Backend(base_url=model, model="scripted", **backend)} if model else {}
    return Llm(backends=known, roles=Roles(base=tuple(known)), **settings)


def _loop(wards: Wards) -> LoopSettings:
    return LoopSettings(
        max_turns=wards.max_turns,
        max_seconds=wards.max_seconds,
        max_tokens=wards.max_tokens,
        require_done_tool=wards.require_done,
    )


@asynccontextmanager
async def open_laid_out(folder: Path, model: str | None = None) -> AsyncIterator[House]:
    """Open a house with the shipped prompts, all of which stand in the system message."""
    shutil.copytree(PROMPTS, folder / "prompts", dirs_exist_ok=True)
    layout, prompts = Context(layout="system"), folder / "prompts"
    async with open_house(
        folder, model, prompts=prompts, clock=FakeClock(), context=layout
    ) as house:
        yield house


def grows(model: ModelServer) -> None:
    """Each request begins with all of the one before it, byte for byte."""
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.body["tools"] == before.body["tools"]
