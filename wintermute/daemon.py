"""The composition root: opens all parts in order, runs them in one TaskGroup, closes them in reverse.

The parts that answer are wired in `answering.py`, which the terminal and the tests share.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from wintermute.answering import Answering, Part, Windows, answering, fixed_request, folder_answers
from wintermute.clock import CheckedClock, Clock, SystemClock, wait_for_event
from wintermute.commands.chat import NAMES
from wintermute.config.lock import has_room, hold
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction, secret_values
from wintermute.config.wiki import WikiSettings, daemon_wiki
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
from wintermute.health.health import EditedFiles, Health, TrustedReadings
from wintermute.ids import NewId, new_id
from wintermute.jobs import FORGET
from wintermute.llm.models import Models
from wintermute.matrix.client import open_client
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Policy
from wintermute.matrix.kept_login import Session
from wintermute.matrix.login import logged_in, successor
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import People, PeopleStore
from wintermute.matrix.rollback import RollbackDetection
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync import Door, open_door
from wintermute.matrix.verifications import Verifications
from wintermute.night.expiry import Expiry
from wintermute.prompt.context_builder import PromptTexts, read_texts
from wintermute.prompt.file_checks import FOLDER
from wintermute.signals import Orders, Supervisor, WatchedClock
from wintermute.stores import Stores, open_stores, prepare
from wintermute.terminal.screen import Chat, Page, Screen, TerminalSpeaker
from wintermute.web.door import WebDoor
from wintermute.web.parts import WebParts
from wintermute.web.sessions import door_token
from wintermute.web.speaker import WebSpeaker
from wintermute.work.data_folder import DataFolder

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0  # a stop may take 20 in all (L-023)
LOGIN_PAUSE = 2.0
ROOM_PAUSE = 2.0
NO_DAEMON = "No daemon is running. Reminders, tasks and nights wait until you start wintermute run."


@dataclass(frozen=True, slots=True)
class Externals:
    """Everything outside the program but the network; tests replace it."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: NewId = new_id
    supervisor: Supervisor = field(default_factory=lambda: Supervisor(environment(), SystemClock()))
    logs: Redaction = field(default_factory=lambda: Redaction(()))
    """The redaction of the logs, which are set up before there is a login."""
    take_over: bool = False
    """True if any other installation that uses the account is to be stopped."""


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
        """Run until `leaving` is set; a send in progress may end."""
        async with asyncio.TaskGroup() as group:
            runs = [*self.door.parts(), self.expiry.run(), self.windows.run()]
            runs += [self.web.run()]
            runs += [self._send(ready), self._answer(), self._keep()]
            runs += [self._serve()] if self.config.web.enabled else []
            parts = [group.create_task(run) for run in runs]
            await leaving.wait()
            log.info("leaving")
            await self.door.sender.drain(DRAIN_SECONDS)
            for part in parts:
                part.cancel()

    async def _answer(self) -> None:
        """Answer once the first sync has caught up: only then is it known who is in the rooms
        (F-004), and what an unknown other run has answered (F-009).
        """
        await self.door.sync.caught_up.wait()
        await self.answering.run()

    async def _send(self, ready: Callable[[], None]) -> None:
        """Send once the sync has shown who is in the rooms and which are encrypted."""
        await self.door.sync.ready.wait()
        ready()
        log.info("ready device=%s", self.session.device_id)
        if not await self.door.sync.rooms():
            log.info("in no room yet: invite the bot in your client user=%s", self.session.user_id)
        await self.door.send(self.session, self.config.data_dir / "matrix")

    async def _keep(self) -> None:
        """Run due work once it is known who is in the rooms, because it may be private."""
        await self.door.sync.ready.wait()
        await self.answering.run_due_work()

    async def _serve(self) -> None:
        """Serve the web pages. The framework is loaded only after the start, which it would delay (V-001)."""
        await self.door.sync.ready.wait()
        await self.pages.serve()


async def run_daemon(config: Config, reread: Callable[[], Config], externals: Externals) -> None:
    """Run until SIGTERM or SIGINT. After SIGHUP go on with the configuration of `reread`, if it is valid.

    Raises: WintermuteError with what to do, if it cannot start or go on.
    """
    orders = Orders(config, reread, _usable, externals.supervisor)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.stop)
    loop.add_signal_handler(signal.SIGHUP, orders.reload)
    problem: Exception | None = None
    with hold(config.data_dir):
        while problem is None and (now := orders.next_config()) is not None:
            problem = await _run_with_successors(now, orders, externals)
            if isinstance(problem, StorageBlocked | KeyStoreBlocked):
                orders.blocked(problem)
                problem = None
                await _wait_for_space(now, orders, externals)
            else:
                problem = orders.outcome(problem)
    if problem is not None:
        raise problem


def _usable(config: Config) -> None:
    with suppress(PromptUnreadable):  # its last good text may do; else the start fails
        read_texts(config.data_dir / "prompts", config.opening, wiki=config.wiki)


async def _wait_for_space(config: Config, orders: Orders, externals: Externals) -> None:
    """Wait until there is room on the disk, or an order comes. As after a kill, nothing uncommitted
    has happened: we begin again at the last commit.
    """
    while not orders.leaving.is_set():
        await wait_for_event(orders.leaving, externals.clock, ROOM_PAUSE)
        externals.supervisor.pulse()
        if await asyncio.to_thread(has_room, config.data_dir):
            return


async def _run_with_successors(
    config: Config, orders: Orders, externals: Externals
) -> Exception | None:
    """Run until told to leave. Return the error that ended it otherwise. A spent device is replaced."""
    problem = await _run_once(config, orders, externals)
    while isinstance(problem, DeviceSpent) and not orders.leaving.is_set():
        try:
            await successor(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:  # the next start waits for the homeserver
            log.warning("another device waits reason=%s", error)
        except WintermuteError as error:
            return error
        problem = await _run_once(config, orders, externals)
    return problem


async def _run_once(config: Config, orders: Orders, externals: Externals) -> Exception | None:
    """Build everything and run until told to leave. Return the error that ended it otherwise."""
    path, pulse = config.data_dir / "wintermute.db", externals.supervisor.pulse
    patience = Patience(WatchedClock(externals.clock, pulse), orders.leaving)
    try:
        with ungrouped():
            async with open_database(path, patience=patience) as database:
                texts = await _read_prompts(config, database)
                health = Health(database, externals.clock)
                session = await _wait_for_login(config, health, externals, orders.leaving)
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


async def _wait_for_login(
    config: Config, health: Health, externals: Externals, leaving: asyncio.Event
) -> Session | None:
    """Log in, however long the homeserver is away; None if told to leave meanwhile."""
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
            if trouble != str(error):  # log each error once, not each attempt
                log.warning("login waits reason=%s", error)
                await health.note("homeserver", "fail", str(error))
            trouble = str(error)
            externals.supervisor.status(f"waits for the homeserver: {error}")
            pause = error.retry_after or LOGIN_PAUSE
        externals.supervisor.pulse()
        await externals.clock.sleep(pause)


@asynccontextmanager
async def open_wintermute(
    config: Config, database: Database, session: Session, texts: PromptTexts, externals: Externals
) -> AsyncIterator[Wintermute]:
    """Build everything on an open database; close it in reverse."""
    matrix, folder, ids = config.matrix, config.data_dir / "matrix", externals.new_id
    policy, pulse = _policy(config), externals.supervisor.pulse
    people = People(policy.allowed)
    clock = CheckedClock(externals.clock, await TrustedReadings(database).last(), asks=True)
    redact, wiki = Redaction(secret_values(config)), daemon_wiki(config)

    def hide(*secrets: str) -> None:
        redact.hide(*secrets)
        externals.logs.hide(*secrets)

    hide(session.access_token, session.pickle_key)
    async with (
        open_stores(config, wiki, database, clock, ids, redact) as (stores, models),
        open_client(matrix, session, folder, ids, clock, people, clock, hide) as client,
    ):
        await models.load_counts()
        await prepare(stores)
        client.follow(await stores.known.moves())
        known = PeopleStore(database, clock)
        people.restore(await known.people(), await known.signed())
        hide(*client.secrets)
        await stores.health.note("casts", "ok", "no internal error since the start")
        copies = RollbackDetection(client, database, clock, ids, take_over=externals.take_over)
        drafts = Drafts(clock, shows=matrix.streaming)
        sender = Sender(client, stores, copies, clock, policy, drafts)
        speaker = MatrixSpeaker(client, stores, sender, policy, matrix, clock, drafts)
        web = WebSpeaker(stores.outbox, clock)
        speakers = Speakers(speaker, web)
        verifications = Verifications(client, stores, policy, clock)
        opened = DataFolder(config, stores, models, texts, clock, redact, ids)
        answers = answering(opened, speakers, verifications)
        windows = Windows(config, stores, await fixed_request(opened, answers.toolbox))
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
        pages = _door(opened, web, answers.rooms, wiki)
        await pages.prepare()
        if config.web.enabled:
            with suppress(WebUnavailable):  # reported when the door opens
                hide(door_token(config))
        yield Wintermute(door, answers, windows, Expiry(stores, clock), web, pages, session, config)


async def _answering(
    own: DataFolder, speaker: Speaker, warn: Callable[[str], None]
) -> tuple[Answering, Windows]:
    """Build the parts that answer; `warn` gets a line for each problem. Raises: ConfigurationError."""
    answers, config = answering(own, speaker), own.config
    windows = Windows(config, own.stores, await fixed_request(own, answers.toolbox))
    outdated = own.texts.outdated(config.context.layout, config.llm.sizes)
    for line in (*await windows.prove(), outdated):
        if line:
            warn(line)
    return answers, windows


def _door(
    own: DataFolder, speaker: WebSpeaker, rooms: Rooms | None, wiki: WikiSettings, notice: str = ""
) -> WebDoor:
    """Build the web door; without `rooms` it serves the wiki only."""
    parts = WebParts(
        *(own.config, own.stores, own.clock, own.new_id, own.redact, speaker, rooms),
        *(folder_answers(own, wiki), notice),
    )
    return WebDoor(parts)


@asynccontextmanager
async def _open_alone(config: Config) -> AsyncIterator[DataFolder]:
    """Open and lock the data folder for a block, without Matrix.

    Raises: ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    redact = Redaction(secret_values(config))
    with hold(config.data_dir):
        async with open_database(config.data_dir / "wintermute.db") as database:
            texts = await _read_prompts(config, database)
            clock = CheckedClock(SystemClock(), await TrustedReadings(database).last())
            wiki, known = daemon_wiki(config), (database, clock, new_id, redact)
            async with open_stores(config, wiki, *known) as (stores, models):
                await models.load_counts()
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
    """Open the terminal chat and run it for a block (L-083).

    `attended`: a person is at the terminal; otherwise due work waits, instead of going to a pipe.
    `page` draws answers; without it they are text. `warn` gets a line for each problem.

    Raises: ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    async with _open_alone(config) as alone:
        stores, clock, speaker = alone.stores, alone.clock, TerminalSpeaker(screen, page)
        answers, windows = await _answering(alone, speaker, warn)
        chat = Chat(stores, answers.rooms, speaker, clock, new_id)
        async with asyncio.TaskGroup() as group:
            parts = [chat.run(), answers.run(), speaker.count(clock), windows.run()]
            parts += [answers.run_due_work()] if attended else []
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

    Forgetting goes on here; other due work waits for the daemon. `invite` gets the key of a login
    address.

    Raises: WebUnavailable; ConfigurationError; DataFolderInUse while a daemon uses the data folder.
    """
    async with _open_alone(config) as opened:
        speaker = WebSpeaker(opened.stores.outbox, opened.clock)
        answers, windows = await _answering(opened, speaker, warn)
        door = _door(opened, speaker, answers.rooms, daemon_wiki(config), NO_DAEMON)
        async with asyncio.TaskGroup() as group:
            runs = [answers.run(), speaker.run(), windows.run(), answers.finish_forgetting()]
            tasks = [group.create_task(run) for run in runs]
            async with door.announced():  # a second `wintermute web` finds this one
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


async def _read_prompts(config: Config, database: Database) -> PromptTexts:
    """Read the prompts; for an unreadable file its last good text is used (F-031)."""
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
