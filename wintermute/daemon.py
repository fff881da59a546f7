"""The composition root: the only place that knows every class. One TaskGroup, closed in reverse."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from wintermute.clock import Clock, SystemClock
from wintermute.commands.chat import NAMES, ChatCommands
from wintermute.config.lock import hold
from wintermute.config.schema import Config
from wintermute.conversation.cast import Loop
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.toolbox import Toolbox
from wintermute.conversation.wards import Wards
from wintermute.db import Database, open_database
from wintermute.errors import HomeserverUnavailable, WintermuteError
from wintermute.health.store import Health
from wintermute.ids import NewId, new_id
from wintermute.llm.calls import ModelCalls
from wintermute.llm.models import Models
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Inbox
from wintermute.mailbox.outbox import Outbox
from wintermute.mailbox.rooms import KnownRooms
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.inbox import Policy
from wintermute.matrix.intake import Intake
from wintermute.matrix.login import logged_in
from wintermute.matrix.outbox import Sender
from wintermute.matrix.session import Session, save
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync import Sync
from wintermute.prompt.plain import system_prompt
from wintermute.tools.done import Done
from wintermute.tools.files import ReadFile, WriteFile
from wintermute.tools.roots import Roots

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0  # of the 20 a stop may take (L-023)
LOGIN_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Outside:
    """All that is neither ours nor on the network: what tests replace."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: NewId = new_id


@dataclass(frozen=True, slots=True)
class Wintermute:
    """The running parts."""

    sync: Sync
    rooms: Rooms
    sender: Sender
    speaker: MatrixSpeaker
    intake: Intake
    session: Session
    config: Config

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set; a send in progress may end."""
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(self.sync.run()),
                group.create_task(self.rooms.run()),
                group.create_task(self.speaker.run()),
                group.create_task(self._send()),
            ]
            await stopping.wait()
            log.info("stopping")
            await self.sender.drain(DRAIN_SECONDS)
            for part in parts:
                part.cancel()

    async def _send(self) -> None:
        """Nothing is sent before it is known who is in the rooms and which are encrypted."""
        await self.sync.ready.wait()
        log.info("ready device=%s", self.session.device_id)
        if self.session.keys_lost:
            await self.intake.tell_keys_lost()
            save(self.config.data_dir / "matrix", replace(self.session, keys_lost=False))
        await self.sender.run()


async def run_daemon(config: Config, outside: Outside | None = None) -> None:
    """Run until SIGTERM or SIGINT.

    Raises: WintermuteError with what to do, when it cannot start or go on.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    outside = outside or Outside()
    problems: list[Exception] = []
    with hold(config.data_dir):
        try:
            session = await _session(config, outside.clock, stopping)
            if session is not None:
                async with open_wintermute(config, session, outside) as wintermute:
                    await wintermute.run(stopping)
        except* WintermuteError as group:
            problems += group.exceptions
    if problems:
        raise _first(problems[0])


def _first(problem: Exception) -> Exception:
    """One failure is enough to tell, however many tasks it reached."""
    return _first(problem.exceptions[0]) if isinstance(problem, ExceptionGroup) else problem


async def _session(config: Config, clock: Clock, stopping: asyncio.Event) -> Session | None:
    """The login, however long the homeserver is away; None when asked to stop meanwhile."""
    async with asyncio.TaskGroup() as group:
        login = group.create_task(_login(config, clock))
        stop = group.create_task(stopping.wait())
        await asyncio.wait({login, stop}, return_when=asyncio.FIRST_COMPLETED)
        login.cancel()
        stop.cancel()
    return None if login.cancelled() else login.result()


async def _login(config: Config, clock: Clock) -> Session:
    while True:
        try:
            return await logged_in(config.matrix, config.data_dir / "matrix")
        except HomeserverUnavailable as error:
            log.warning("login waits reason=%s", error)
        await clock.sleep(LOGIN_PAUSE)


@asynccontextmanager
async def open_wintermute(
    config: Config, session: Session, outside: Outside
) -> AsyncIterator[Wintermute]:
    """Build everything; close it in reverse."""
    clock, ids = outside.clock, outside.new_id
    system = partial(_prompt, config, clock)
    system()  # a missing prompt file is told now, not at the first message
    async with (
        open_database(config.data_dir / "wintermute.db") as database,
        open_client(
            config.matrix.homeserver,
            session,
            config.data_dir / "matrix",
            ids,
            encryption=config.matrix.encryption != "off",
        ) as client,
    ):
        models = Models(config.llm, ModelCalls(database, clock, ids), clock, ids)
        try:
            yield await _built(config, session, outside, database, client, models)
        finally:
            await models.aclose()


def _prompt(config: Config, clock: Clock) -> str:
    return system_prompt(config.data_dir / "prompts", clock.now(), config.timezone)


async def _built(
    config: Config,
    session: Session,
    outside: Outside,
    database: Database,
    client: MatrixClient,
    models: Models,
) -> Wintermute:
    clock, ids = outside.clock, outside.new_id
    health = Health(database, clock)
    await health.note("casts", "ok", "no internal error since the start")
    inbox, outbox = Inbox(database, clock), Outbox(database, clock, ids)
    known = KnownRooms(database, clock)
    conversations = Conversations(database, clock, ids)
    casts = Casts(database, clock, ids)
    roots = Roots(config.data_dir, config.tools.files.roots)
    toolbox = Toolbox([Done(), ReadFile(roots), WriteFile(roots)])
    loop = Loop(database, casts, models, toolbox, partial(_prompt, config, clock), clock)
    sender = Sender(client, outbox, known, clock)
    speaker = MatrixSpeaker(client, sender)
    commands = ChatCommands(database, conversations, clock, config.timezone)
    rooms = Rooms(
        database,
        inbox,
        outbox,
        conversations,
        casts,
        loop,
        commands,
        speaker,
        health,
        clock,
        Wards.of(config.loop),
    )
    matrix = config.matrix
    intake = Intake(
        database,
        client,
        inbox,
        outbox,
        known,
        conversations,
        health,
        _policy(config),
        matrix.encryption,
        clock,
    )
    sync = Sync(client, inbox, known, intake, health, rooms.wake, sender.wake, clock)
    return Wintermute(sync, rooms, sender, speaker, intake, session, config)


def _policy(config: Config) -> Policy:
    matrix = config.matrix
    return Policy(
        owner=matrix.owner,
        allowed=frozenset({matrix.owner, *matrix.allowed_users}),
        rooms=frozenset(matrix.allowed_rooms),
        mention_in_groups=matrix.mention_in_groups,
        commands=frozenset(NAMES),
    )
