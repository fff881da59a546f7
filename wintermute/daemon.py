"""The composition root: the only place that knows every class. One TaskGroup, closed in reverse."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from wintermute.clock import CheckedClock, Clock, SystemClock, until_set
from wintermute.commands.chat import NAMES, ChatCommands, Verifier
from wintermute.config.lock import has_room, hold
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction, secret_values
from wintermute.conversation.asking import Asking
from wintermute.conversation.cast import Loop
from wintermute.conversation.casting import Branching, Casting
from wintermute.conversation.folding import Folding
from wintermute.conversation.gates import Gates
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.speaker import Speaker
from wintermute.conversation.state import CastSettings
from wintermute.conversation.toolbox import AnyTool, Toolbox
from wintermute.conversation.trouble import Trouble
from wintermute.db import Database, Patience, open_database
from wintermute.delegation.delegation import Bounds, Delegation, Ending, WorkerTexts
from wintermute.errors import (
    DeviceSpent,
    HomeserverUnavailable,
    KeyStoreBlocked,
    PromptUnreadable,
    StorageBlocked,
    WintermuteError,
)
from wintermute.health.health import ClockMarks, EditedFiles, Health
from wintermute.ids import NewId, new_id
from wintermute.llm.calls import Budget, ModelCalls
from wintermute.llm.models import Models
from wintermute.loom.records import Wards
from wintermute.mailbox.rooms import KnownRooms
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.copies import Copies
from wintermute.matrix.inbox import Policy
from wintermute.matrix.login import Session, logged_in, successor
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import People, PeopleStore
from wintermute.matrix.speaker import MatrixSpeaker, RoomHistory
from wintermute.matrix.sync import Door, open_door
from wintermute.matrix.verifications import Verifications
from wintermute.night.expiry import Expiry
from wintermute.prompt.edited import FOLDER, EditedLook
from wintermute.prompt.gather import Gather, Oversize, Texts, read_texts
from wintermute.schedule.firing import Firing
from wintermute.schedule.homes import EditedNotices
from wintermute.schedule.promises import AtWork, Promises
from wintermute.schedule.runs import Runs, RunSettings
from wintermute.signals import Orders, Supervisor, WatchedClock
from wintermute.stores import Stores
from wintermute.terminal.screen import Chat, Page, Screen, TerminalSpeaker
from wintermute.tools.definition import Done
from wintermute.tools.delegate import delegating
from wintermute.tools.files import ReadFile, Roots, WriteFile
from wintermute.tools.memory import AddSkill, AppendMemory, MemoriesView
from wintermute.tools.task import TaskTool

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0  # of the 20 a stop may take (L-023)
LOGIN_PAUSE = 2.0
ROOM_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Externals:
    """All that is neither ours nor on the network: what tests replace."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: NewId = new_id
    supervisor: Supervisor = field(default_factory=lambda: Supervisor(environment(), SystemClock()))
    logs: Redaction = field(default_factory=lambda: Redaction(()))
    """What hides secrets from the logs, which are set up before there is a login."""


@dataclass(frozen=True, slots=True)
class Answering:
    """What answers, the same behind every door: the rooms, and the work that they hand out."""

    rooms: Rooms
    delegation: Delegation
    promises: Promises
    edited: EditedNotices
    toolbox: Toolbox
    speaker: Speaker

    async def run(self) -> None:
        """Work until cancelled."""
        wake, serves = self.rooms.wake, self.speaker.serves
        async with asyncio.TaskGroup() as group:
            group.create_task(self.rooms.run())
            group.create_task(self.delegation.run(self.toolbox, wake, serves))

    async def keep(self) -> None:
        """Do what nobody asks for at this moment, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.promises.run())
            group.create_task(self.edited.run())


@dataclass(frozen=True, slots=True)
class Wintermute:
    """The running parts."""

    door: Door
    answering: Answering
    expiry: Expiry
    session: Session
    config: Config

    async def run(self, leaving: asyncio.Event, ready: Callable[[], None]) -> None:
        """Work until `leaving` is set; a send in progress may end."""
        async with asyncio.TaskGroup() as group:
            works = [*self.door.parts(), self.expiry.run()]
            works += [self._send(ready), self._answer(), self._keep()]
            parts = [group.create_task(work) for work in works]
            await leaving.wait()
            log.info("leaving")
            await self.door.sender.drain(DRAIN_SECONDS)
            for part in parts:
                part.cancel()

    async def _answer(self) -> None:
        """What a cast may know depends on who is in its room now (F-004), and what waits may have
        been answered by a run that our data know nothing of (F-009).
        """
        await self.door.sync.caught_up.wait()
        await self.answering.run()

    async def _send(self, ready: Callable[[], None]) -> None:
        """Nothing is sent before it is known who is in the rooms and which are encrypted."""
        await self.door.sync.ready.wait()
        ready()
        log.info("ready device=%s", self.session.device_id)
        await self.door.send(self.session, self.config.data_dir / "matrix")

    async def _keep(self) -> None:
        """What is due may be private: it is said when it is known who is in the rooms."""
        await self.door.sync.ready.wait()
        await self.answering.keep()


async def run_daemon(
    config: Config, reread: Callable[[], Config], outside: Externals | None = None
) -> None:
    """Run until SIGTERM or SIGINT. After SIGHUP go on with what `reread` gives, if it is right.

    Raises: WintermuteError with what to do, when it cannot start or go on.
    """
    outside = outside or Externals()
    orders = Orders(config, reread, _usable, outside.supervisor)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.stop)
    loop.add_signal_handler(signal.SIGHUP, orders.reload)
    problem: Exception | None = None
    with hold(config.data_dir):
        while problem is None and (now := orders.next_config()) is not None:
            problem = await _served(now, orders, outside)
            if isinstance(problem, StorageBlocked | KeyStoreBlocked):
                orders.blocked(problem)
                problem = None
                await _writable(now, orders, outside)
            else:
                problem = orders.outcome(problem)
    if problem is not None:
        raise problem


def _usable(config: Config) -> None:
    with suppress(PromptUnreadable):  # the text it last held is at hand, or the start says so
        read_texts(config)


async def _writable(config: Config, orders: Orders, outside: Externals) -> None:
    """Wait until there is room, or something is ordered. What was not stored did not happen, as
    after a kill: so we begin again where the last commit was.
    """
    while not orders.leaving.is_set():
        await until_set(orders.leaving, outside.clock, ROOM_PAUSE)
        outside.supervisor.pulse()
        if await asyncio.to_thread(has_room, config.data_dir):
            return


async def _served(config: Config, orders: Orders, outside: Externals) -> Exception | None:
    """Work until told to leave; what ended it otherwise. A device may have to give way to another."""
    problem = await _worked(config, orders, outside)
    while isinstance(problem, DeviceSpent) and not orders.leaving.is_set():
        try:
            await successor(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:  # which is waited for as at any start
            log.warning("another device waits reason=%s", error)
        except WintermuteError as error:
            return error
        problem = await _worked(config, orders, outside)
    return problem


async def _worked(config: Config, orders: Orders, outside: Externals) -> Exception | None:
    """Build everything and work until told to leave; what ended it otherwise."""
    problems: list[Exception] = []
    waits = WatchedClock(outside.clock, outside.supervisor.pulse)
    try:
        patience = Patience(waits, orders.leaving)
        async with open_database(config.data_dir / "wintermute.db", patience=patience) as database:
            texts = read_texts(config, await EditedFiles(database).texts(FOLDER))
            health = Health(database, outside.clock)
            session = await _session(config, health, outside, orders.leaving)
            if session is not None:
                outside.supervisor.status("waits for the first sync")
                async with open_wintermute(config, database, session, texts, outside) as wintermute:
                    await wintermute.run(orders.leaving, orders.ready)
    except* WintermuteError as group:
        problems += group.exceptions
    return _first(problems[0]) if problems else None


def _first(problem: Exception) -> Exception:
    """One failure is enough to tell, however many tasks it reached."""
    return _first(problem.exceptions[0]) if isinstance(problem, ExceptionGroup) else problem


async def _session(
    config: Config, health: Health, outside: Externals, leaving: asyncio.Event
) -> Session | None:
    """The login, however long the homeserver is away; None when asked to leave meanwhile."""
    async with asyncio.TaskGroup() as group:
        login = group.create_task(_login(config, health, outside))
        stop = group.create_task(leaving.wait())
        await asyncio.wait({login, stop}, return_when=asyncio.FIRST_COMPLETED)
        login.cancel()
        stop.cancel()
    return None if login.cancelled() else login.result()


async def _login(config: Config, health: Health, outside: Externals) -> Session:
    trouble = ""
    while True:
        try:
            return await logged_in(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:
            if trouble != str(error):  # once for each, not for each attempt
                log.warning("login waits reason=%s", error)
                await health.note("homeserver", "fail", str(error))
            trouble = str(error)
            outside.supervisor.status(f"waits for the homeserver: {error}")
        outside.supervisor.pulse()
        await outside.clock.sleep(LOGIN_PAUSE)


@asynccontextmanager
async def open_wintermute(
    config: Config, database: Database, session: Session, texts: Texts, outside: Externals
) -> AsyncIterator[Wintermute]:
    """Build everything on an open database; close it in reverse."""
    folder, ids = config.data_dir / "matrix", outside.new_id
    people = People(_policy(config).allowed)
    clock = CheckedClock(outside.clock, await ClockMarks(database).last(), asks=True)
    outside = replace(outside, clock=clock)
    redact = Redaction(secret_values(config))

    def hide(*secrets: str) -> None:
        redact.add(*secrets)
        outside.logs.add(*secrets)

    hide(session.access_token, session.pickle_key)
    async with open_client(
        config.matrix, session, folder, ids, clock, people, clock, hide
    ) as client:
        client.follow(await KnownRooms(database, clock).moves())
        store = PeopleStore(database, clock)
        people.restore(await store.people(), await store.signed())
        hide(*client.secrets)
        models = _models(config, database, redact, outside)
        try:
            stores = _stores(config, database, outside, redact)
            yield await _built(
                config, session, outside, clock, stores, client, models, texts, redact
            )
        finally:
            await models.aclose()


async def _built(
    config: Config,
    session: Session,
    outside: Externals,
    clock: CheckedClock,
    stores: Stores,
    client: MatrixClient,
    models: Models,
    texts: Texts,
    redact: Redaction,
) -> Wintermute:
    pulse = outside.supervisor.pulse
    await stores.health.note("casts", "ok", "no internal error since the start")
    policy = _policy(config)
    copies = Copies(client, stores.database, clock, outside.new_id)
    sender = Sender(client, stores, copies, clock, policy)
    past = RoomHistory(client, stores, config.matrix, clock)
    speaker = MatrixSpeaker(client, sender, policy, past)
    verifications = Verifications(client, stores, policy, clock)
    answering = _answering(config, clock, stores, models, speaker, texts, redact, verifications)
    door = open_door(
        config.matrix,
        policy,
        client,
        stores,
        speaker,
        sender,
        verifications,
        copies,
        answering.rooms,
        pulse,
        (clock, WatchedClock(clock, pulse)),
    )
    return Wintermute(door, answering, Expiry(stores, clock), session, config)


@asynccontextmanager
async def open_chat(
    config: Config,
    screen: Screen,
    outside: Externals | None = None,
    *,
    attended: bool = True,
    page: Page | None = None,
) -> AsyncIterator[Chat]:
    """The same in the terminal, at work until the block is left (L-083).

    `attended`: somebody sits there; else what is due waits, or it would be said to a pipe.
    `page`: what draws answers there; else they are text.

    Raises: ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    outside = outside or Externals()
    with hold(config.data_dir):
        async with open_database(config.data_dir / "wintermute.db") as database:
            texts = read_texts(config, await EditedFiles(database).texts(FOLDER))
            clock = CheckedClock(outside.clock, await ClockMarks(database).last())
            outside, ids = replace(outside, clock=clock), outside.new_id
            redact = Redaction(secret_values(config))
            stores = _stores(config, database, outside, redact)
            models = _models(config, database, redact, outside)
            speaker = TerminalSpeaker(screen, page)
            answering = _answering(config, clock, stores, models, speaker, texts, redact)
            chat = Chat(stores, answering.rooms, speaker, clock, ids)
            try:
                async with asyncio.TaskGroup() as group:
                    parts = [chat.run(), answering.run(), speaker.count(clock)]
                    parts += [answering.keep()] if attended else []
                    work = [group.create_task(part) for part in parts]
                    yield chat
                    for part in work:
                        part.cancel()
            finally:
                await models.aclose()


def _stores(config: Config, database: Database, outside: Externals, redact: Redaction) -> Stores:
    return Stores.of(
        database,
        config.data_dir,
        config.owner,
        outside.clock,
        outside.new_id,
        redact,
        timezone=config.timezone,
    )


def _models(config: Config, database: Database, redact: Redaction, outside: Externals) -> Models:
    clock, ids = outside.clock, outside.new_id
    calls = ModelCalls(database, clock, ids, config.llm.record)
    budget = Budget(database, clock, ids, config.llm.budget, config.timezone)
    return Models(config.llm, calls, budget, clock, ids, redact)


def _answering(
    config: Config,
    clock: CheckedClock,
    stores: Stores,
    models: Models,
    speaker: Speaker,
    texts: Texts,
    redact: Redaction,
    verifier: Verifier | None = None,
) -> Answering:
    gather = Gather(stores, texts.instructions, clock)
    hidden = config.tools.ephemeral
    folding = Folding(stores, models, texts.compaction, config.context, hidden)
    gates = Gates(stores, redact.tree)
    loop = Loop(stores, Asking(models, folding, hidden), gates, folding, clock)
    words = WorkerTexts(gather, texts.instructions, texts.worker)
    delegation = _delegation(config, clock, stores, loop, words)
    tools = toolbox(config, stores, delegating(delegation, config.sub_sessions, config.timezone))
    runs = Runs(stores, loop, words, texts.task_run, tools, _means(config), speaker, clock)
    promises = Promises(stores, Firing(stores, speaker, clock), runs, speaker, clock)
    trouble = Trouble(stores, models, speaker, clock)
    branching = Branching(stores, texts.seed, delegation)
    oversize = Oversize(stores, gather, config.context.component_size_limits, clock, texts.kept)
    settings = CastSettings(
        tools, gather, depth=config.sub_sessions.max_depth, wards=Wards.of(config.loop)
    )
    casting = Casting(stores, loop, settings, branching, oversize, speaker, trouble, clock)
    zone, ceilings = config.timezone, config.llm.budget
    commands = ChatCommands(stores, branching, folding, clock, zone, ceilings, verifier)
    at_work = AtWork(delegation, promises)
    rooms = Rooms(stores, casting, commands, at_work, speaker, trouble, clock)
    edited = EditedNotices(stores, EditedLook(stores.places, stores.prompts), speaker, clock)
    return Answering(rooms, delegation, promises, edited, tools, speaker)


def _means(config: Config) -> RunSettings:
    own_models = bool(config.llm.roles.sub_sessions)
    return RunSettings.of(config.sub_sessions, config.loop.max_tokens, own_models=own_models)


def _delegation(
    config: Config, clock: Clock, stores: Stores, loop: Loop, words: WorkerTexts
) -> Delegation:
    own_models = bool(config.llm.roles.sub_sessions)
    names = tuple(config.llm.backends)
    bounds = Bounds(config.sub_sessions, config.loop.max_tokens, names, own_models)
    return Delegation(
        stores.database,
        stores.sub_sessions,
        Ending(stores.sub_sessions, stores.inbox),
        stores.conversations,
        stores.casts,
        loop,
        stores.health,
        words,
        bounds,
        clock,
    )


def toolbox(config: Config, stores: Stores, others: Sequence[AnyTool]) -> Toolbox:
    """All tools there are; `others` are those that hand out work."""
    roots = Roots(config.data_dir, config.tools.files.roots, stores.owner)
    view = MemoriesView(stores.memories, stores.places)
    return Toolbox(
        [
            Done(),
            ReadFile(roots, view),
            WriteFile(roots, view),
            AppendMemory(stores.facts),
            TaskTool(stores.tasks),
            AddSkill(stores.skills, stores.owner),
            *others,
        ]
    )


def _policy(config: Config) -> Policy:
    matrix = config.matrix
    return Policy(
        owner=config.owner,
        allowed=matrix.people,
        rooms=frozenset(matrix.allowed_rooms),
        mention_in_groups=matrix.mention_in_groups,
        commands=frozenset(NAMES),
    )
