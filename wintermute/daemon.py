"""The composition root: what is opened, in what order, and one TaskGroup; closed in reverse.

What answers stands in `answering.py`, which the terminal and the tests share.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

from wintermute.answering import Answering, Part, Windows, answering, fixed_part, folder_answers
from wintermute.clock import CheckedClock, Clock, SystemClock, until_set
from wintermute.commands.chat import NAMES
from wintermute.config.lock import has_room, hold
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction, secret_values
from wintermute.config.wiki import WikiSettings, daemon_wiki, with_model
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.speakers import Speakers
from wintermute.conversation.state import Speaker
from wintermute.db import Database, Patience, open_database
from wintermute.errors import (
    DeviceSpent,
    HomeserverUnavailable,
    KeyStoreBlocked,
    PromptUnreadable,
    StorageBlocked,
    WebUnavailable,
    WintermuteError,
    ungrouped,
)
from wintermute.health.health import ClockMarks, EditedFiles, Health
from wintermute.ids import NewId, new_id
from wintermute.jobs import FORGET
from wintermute.llm.embeddings import open_embedder
from wintermute.llm.models import Models
from wintermute.matrix.client import open_client
from wintermute.matrix.copies import Copies
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Policy
from wintermute.matrix.kept_login import Session
from wintermute.matrix.login import logged_in, successor
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import People, PeopleStore
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync import Door, open_door
from wintermute.matrix.verifications import Verifications
from wintermute.night.expiry import Expiry
from wintermute.prompt.edited import FOLDER
from wintermute.prompt.gather import Texts, read_texts
from wintermute.signals import Orders, Supervisor, WatchedClock
from wintermute.stores import Stores, closing, prepare
from wintermute.terminal.screen import Chat, Page, Screen, TerminalSpeaker
from wintermute.web.door import WebDoor
from wintermute.web.parts import WebParts
from wintermute.web.sessions import door_token
from wintermute.web.speaker import WebSpeaker
from wintermute.work.data_folder import DataFolder

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0  # of the 20 a stop may take (L-023)
LOGIN_PAUSE = 2.0
ROOM_PAUSE = 2.0
NO_DAEMON = "No daemon is running. Reminders, tasks and nights wait until you start wintermute run."


@dataclass(frozen=True, slots=True)
class Externals:
    """All that is neither ours nor on the network: what tests replace."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: NewId = new_id
    supervisor: Supervisor = field(default_factory=lambda: Supervisor(environment(), SystemClock()))
    logs: Redaction = field(default_factory=lambda: Redaction(()))
    """What hides secrets from the logs, which are set up before there is a login."""
    take_over: bool = False
    """Whoever started us wants any other installation on the account to end."""


@dataclass(frozen=True, slots=True)
class Wintermute:
    """The running parts."""

    door: Door
    answering: Answering
    windows: Part
    expiry: Part
    web: WebSpeaker
    pages: WebDoor
    session: Session
    config: Config

    async def run(self, leaving: asyncio.Event, ready: Callable[[], None]) -> None:
        """Work until `leaving` is set; a send in progress may end."""
        async with asyncio.TaskGroup() as group:
            works = [*self.door.parts(), self.expiry.run(), self.windows.run()]
            works += [self.web.run()]
            works += [self._send(ready), self._answer(), self._keep()]
            works += [self._serve()] if self.config.web.enabled else []
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
        if not await self.door.sync.rooms():
            log.info("in no room yet: invite the bot in your client user=%s", self.session.user_id)
        await self.door.send(self.session, self.config.data_dir / "matrix")

    async def _keep(self) -> None:
        """What is due may be private: it is said when it is known who is in the rooms."""
        await self.door.sync.ready.wait()
        await self.answering.keep_promises()

    async def _serve(self) -> None:
        """The framework loads when we are ready, or ready would be later (V-001)."""
        await self.door.sync.ready.wait()
        await self.pages.serve()


async def run_daemon(config: Config, reread: Callable[[], Config], externals: Externals) -> None:
    """Run until SIGTERM or SIGINT. After SIGHUP go on with what `reread` gives, if it is right.

    Raises: WintermuteError with what to do, when it cannot start or go on.
    """
    orders = Orders(config, reread, _usable, externals.supervisor)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.stop)
    loop.add_signal_handler(signal.SIGHUP, orders.reload)
    problem: Exception | None = None
    with hold(config.data_dir):
        while problem is None and (now := orders.next_config()) is not None:
            problem = await _served(now, orders, externals)
            if isinstance(problem, StorageBlocked | KeyStoreBlocked):
                orders.blocked(problem)
                problem = None
                await _writable(now, orders, externals)
            else:
                problem = orders.outcome(problem)
    if problem is not None:
        raise problem


def _usable(config: Config) -> None:
    with suppress(PromptUnreadable):  # the text it last held is at hand, or the start says so
        read_texts(config.data_dir / "prompts", config.opening, wiki=config.wiki)


async def _writable(config: Config, orders: Orders, externals: Externals) -> None:
    """Wait until there is room, or something is ordered. What was not stored did not happen, as
    after a kill: so we begin again where the last commit was.
    """
    while not orders.leaving.is_set():
        await until_set(orders.leaving, externals.clock, ROOM_PAUSE)
        externals.supervisor.pulse()
        if await asyncio.to_thread(has_room, config.data_dir):
            return


async def _served(config: Config, orders: Orders, externals: Externals) -> Exception | None:
    """Work until told to leave; what ended it otherwise. A device may have to give way to another."""
    problem = await _worked(config, orders, externals)
    while isinstance(problem, DeviceSpent) and not orders.leaving.is_set():
        try:
            await successor(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:  # which is waited for as at any start
            log.warning("another device waits reason=%s", error)
        except WintermuteError as error:
            return error
        problem = await _worked(config, orders, externals)
    return problem


async def _worked(config: Config, orders: Orders, externals: Externals) -> Exception | None:
    """Build everything and work until told to leave; what ended it otherwise."""
    path, pulse = config.data_dir / "wintermute.db", externals.supervisor.pulse
    patience = Patience(WatchedClock(externals.clock, pulse), orders.leaving)
    try:
        with ungrouped():
            async with open_database(path, patience=patience) as database:
                texts = await _texts(config, database)
                health = Health(database, externals.clock)
                session = await _session(config, health, externals, orders.leaving)
                if session is None:
                    return None
                externals.supervisor.status("waits for the first sync")
                async with open_wintermute(
                    config, database, session, texts, externals
                ) as wintermute:
                    await wintermute.run(orders.leaving, orders.ready)
    except WintermuteError as error:
        return error
    return None


async def _session(
    config: Config, health: Health, externals: Externals, leaving: asyncio.Event
) -> Session | None:
    """The login, however long the homeserver is away; None when asked to leave meanwhile."""
    async with asyncio.TaskGroup() as group:
        login = group.create_task(_login(config, health, externals))
        stop = group.create_task(leaving.wait())
        await asyncio.wait({login, stop}, return_when=asyncio.FIRST_COMPLETED)
        login.cancel()
        stop.cancel()
    return None if login.cancelled() else login.result()


async def _login(config: Config, health: Health, externals: Externals) -> Session:
    trouble = ""
    while True:
        try:
            return await logged_in(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:
            if trouble != str(error):  # once for each, not for each attempt
                log.warning("login waits reason=%s", error)
                await health.note("homeserver", "fail", str(error))
            trouble = str(error)
            externals.supervisor.status(f"waits for the homeserver: {error}")
            pause = error.retry_after or LOGIN_PAUSE
        externals.supervisor.pulse()
        await externals.clock.sleep(pause)


@asynccontextmanager
async def open_wintermute(
    config: Config, database: Database, session: Session, texts: Texts, externals: Externals
) -> AsyncIterator[Wintermute]:
    """Build everything on an open database; close it in reverse."""
    matrix, folder, ids = config.matrix, config.data_dir / "matrix", externals.new_id
    policy, pulse = _policy(config), externals.supervisor.pulse
    people = People(policy.allowed)
    clock = CheckedClock(externals.clock, await ClockMarks(database).last(), asks=True)
    redact = Redaction(secret_values(config))

    def hide(*secrets: str) -> None:
        redact.hide(*secrets)
        externals.logs.hide(*secrets)

    hide(session.access_token, session.pickle_key)
    async with (
        aclosing(_models(config, database, clock, ids, redact)) as models,
        closing(_stores(config, database, models, clock, ids, redact)) as stores,
        open_client(matrix, session, folder, ids, clock, people, clock, hide) as client,
    ):
        await models.recall()
        await prepare(stores)
        client.follow(await stores.known.moves())
        known = PeopleStore(database, clock)
        people.restore(await known.people(), await known.signed())
        hide(*client.secrets)
        await stores.health.note("casts", "ok", "no internal error since the start")
        copies = Copies(client, database, clock, ids, take_over=externals.take_over)
        drafts = Drafts(clock, shows=matrix.streaming)
        sender = Sender(client, stores, copies, clock, policy, drafts)
        speaker = MatrixSpeaker(client, stores, sender, policy, matrix, clock, drafts)
        web = WebSpeaker(stores.outbox, clock)
        speakers = Speakers(speaker, web)
        verifications = Verifications(client, stores, policy, clock)
        opened = DataFolder(config, stores, models, texts, clock, redact, ids)
        answers = answering(opened, speakers, verifications)
        windows = Windows(config, stores, await fixed_part(opened, answers.toolbox))
        await windows.prove()
        if outdated := texts.outdated(config.context.layout, config.llm.sizes):
            log.warning("prompt outdated reason=%s", outdated)
        door = open_door(
            matrix,
            policy,
            client,
            stores,
            speaker,
            sender,
            verifications,
            copies,
            answers.rooms,
            pulse,
            (clock, WatchedClock(clock, pulse)),
        )
        pages = _door(opened, web, answers.rooms, daemon_wiki(config))
        await pages.prepare()
        if config.web.enabled:
            with suppress(WebUnavailable):  # which the door tells of when it would open
                hide(door_token(config))
        yield Wintermute(door, answers, windows, Expiry(stores, clock), web, pages, session, config)


async def _answering(
    own: DataFolder, speaker: Speaker, warn: Callable[[str], None]
) -> tuple[Answering, Windows]:
    """Build what answers; `warn` is told what is wrong, by lines. Raises: ConfigurationError."""
    answers, config = answering(own, speaker), own.config
    windows = Windows(config, own.stores, await fixed_part(own, answers.toolbox))
    outdated = own.texts.outdated(config.context.layout, config.llm.sizes)
    for line in (*await windows.prove(), outdated):
        if line:
            warn(line)
    return answers, windows


def _door(
    own: DataFolder, speaker: WebSpeaker, rooms: Rooms | None, wiki: WikiSettings, notice: str = ""
) -> WebDoor:
    """Build the web door; `rooms` None: of the wiki alone."""
    parts = WebParts(
        *(own.config, own.stores, own.clock, own.new_id, own.redact, speaker, rooms),
        *(folder_answers(own, wiki), notice),
    )
    return WebDoor(parts)


@asynccontextmanager
async def _open_alone(config: Config) -> AsyncIterator[DataFolder]:
    """Open the data folder, which is ours until the block is left; without Matrix.

    Raises: ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    redact = Redaction(secret_values(config))
    with hold(config.data_dir):
        async with open_database(config.data_dir / "wintermute.db") as database:
            texts = await _texts(config, database)
            clock = CheckedClock(SystemClock(), await ClockMarks(database).last())
            models = _models(config, database, clock, new_id, redact)
            stores = _stores(config, database, models, clock, new_id, redact)
            async with aclosing(models), closing(stores):
                await models.recall()
                await prepare(stores)
                yield DataFolder(config, stores, models, texts, clock, redact)


@asynccontextmanager
async def open_chat(
    config: Config,
    screen: Screen,
    warn: Callable[[str], None],
    *,
    attended: bool,
    page: Page | None,
) -> AsyncIterator[Chat]:
    """The same in the terminal, at work until the block is left (L-083).

    `attended`: somebody sits there; else what is due waits, or it would be said to a pipe.
    `page`: what draws answers there; else they are text. `warn` is told what is wrong, by lines.

    Raises: ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    async with _open_alone(config) as alone:
        stores, clock, speaker = alone.stores, alone.clock, TerminalSpeaker(screen, page)
        answers, windows = await _answering(alone, speaker, warn)
        chat = Chat(stores, answers.rooms, speaker, clock, new_id)
        async with asyncio.TaskGroup() as group:
            parts = [chat.run(), answers.run(), speaker.count(clock), windows.run()]
            parts += [answers.keep_promises()] if attended else []
            work = [group.create_task(part) for part in parts]
            yield chat
            if not attended:
                await answers.runner.finish(FORGET, answers.rooms.wake)
            for part in work:
                part.cancel()


async def serve_alone(
    config: Config,
    listener: socket.socket,
    warn: Callable[[str], None],
    invite: Callable[[str], None],
    leaving: asyncio.Event,
) -> None:
    """Serve all pages, and answer in their chats, until `leaving` is set; no daemon runs (V-002).

    Forgetting goes on here; what else is due waits for the daemon. `invite` is told the key of a login address.

    Raises: WebUnavailable; ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    async with _open_alone(config) as opened:
        speaker = WebSpeaker(opened.stores.outbox, opened.clock)
        answers, windows = await _answering(opened, speaker, warn)
        door = _door(opened, speaker, answers.rooms, daemon_wiki(config), NO_DAEMON)
        async with asyncio.TaskGroup() as group:
            works = [answers.run(), speaker.run(), windows.run(), answers.finish_forgetting()]
            tasks = [group.create_task(work) for work in works]
            async with door.announced():  # so that a second `wintermute web` logs in here
                await door.serve_until(leaving, listener, invite)
            for task in tasks:
                task.cancel()


async def serve_store(
    config: Config,
    settings: WikiSettings,
    opened: tuple[Stores, Models],
    listener: socket.socket,
    invite: Callable[[str], None],
    leaving: asyncio.Event,
) -> None:
    """Serve the pages and conversations of one wiki store, beside a daemon or without (W-050).

    Raises: WebUnavailable; ConfigurationError.
    """
    redact, clock = Redaction(secret_values(config)), CheckedClock(SystemClock())
    texts = read_texts(config.data_dir / "prompts", config.opening, wiki=config.wiki)
    store = DataFolder(config, *opened, texts, clock, redact)
    door = _door(store, WebSpeaker(store.stores.outbox, clock), None, settings)
    await door.serve_until(leaving, listener, invite)


def _models(
    config: Config, database: Database, clock: Clock, ids: NewId, redact: Redaction
) -> Models:
    llm = with_model(config.llm, config.wiki.model)
    return Models(llm, database, clock, ids, config.timezone, redact)


def _stores(
    config: Config,
    database: Database,
    models: Models,
    clock: Clock,
    new_id: NewId,
    redact: Redaction,
) -> Stores:
    return Stores.of(
        *(database, config.data_dir, config.owner, clock, new_id, redact),
        timezone=config.timezone,
        memory=config.memory,
        embedder=open_embedder(config.memory, models, clock),
        wiki=config.wiki_store,
        quiet=config.quiet,
    )


async def _texts(config: Config, database: Database) -> Texts:
    """The prompts, or what they last held where one is no text now (F-031)."""
    kept = await EditedFiles(database).texts(FOLDER)
    return read_texts(config.data_dir / "prompts", config.opening, kept, config.wiki)


def _policy(config: Config) -> Policy:
    matrix = config.matrix
    return Policy(
        owner=config.owner,
        allowed=matrix.people,
        rooms=frozenset(matrix.allowed_rooms),
        mention_in_groups=matrix.mention_in_groups,
        commands=frozenset(NAMES),
    )
