"""The demo runner: sets up one conversation, shows the progress, and ends everything again."""

import asyncio
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from wintermute.clock import SystemClock
from wintermute.config.lock import hold
from wintermute.config.schema import Config, Matrix, Secret
from wintermute.db import open_database
from wintermute.demo.bot import (
    AT_ONCE,
    READY,
    READY_SECONDS,
    WEB_DOOR,
    Bot,
    FoundModel,
    find_model,
    one_backend,
)
from wintermute.demo.homeserver import (
    Child,
    DemoSecrets,
    Homeserver,
    private_homeserver,
    recovery_key,
    secret_storage,
)
from wintermute.demo.practice_server import SERVED_NAME, PracticeModel
from wintermute.demo.terminal_user import Dialogue, TerminalUser, present
from wintermute.errors import WintermuteError, ungrouped
from wintermute.matrix.signing import USAGES, load_seeds
from wintermute.messages import Json
from wintermute.web.door import is_installed

PRACTICE = "practice model: fixed rules, but real tools"
JOIN_SECONDS = 30.0
CARD = """
Everything is in {folder}. --folder DIR keeps it.
A graphical Matrix client on this machine can join in:
  homeserver  {url}
  user        {user}
  password    {password}
  recovery    {recovery}
The client asks for the recovery key at its first login, to verify its session.
It cannot read older messages: only this terminal has their keys.
In nheko, type a space before a command (` /help`), or nheko runs it itself.
To verify the bot, type /verify there and run this in another terminal:
  wintermute --config {config} matrix verify

/delete WORDS deletes your newest message with these words.
/pages writes this chat into wiki pages.
"""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The options of a demo.

    `practice`: only the built-in model. `lines`: messages to send instead of a person's.
    """

    folder: Path
    config: Config | None
    practice: bool
    environment: Mapping[str, str]
    lines: AsyncIterator[str] | None
    show: Callable[[str], None]
    draw: Callable[[str], str] = str
    """Renders a message for the terminal."""


async def run_demo(plan: DemoPlan) -> None:
    """Run until the conversation ends, or SIGINT, SIGTERM or SIGHUP comes; then end everything.

    Raises: WintermuteError if a part does not start, or ends too early.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    with hold(plan.folder), ungrouped():
        await _first_of(_perform(plan), stopping.wait())


async def _first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends; then cancel the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _progress(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that shows one line for each step, with the seconds since the start."""
    clock = SystemClock()
    began = clock.monotonic()
    return lambda step: show(f"{clock.monotonic() - began:5.1f} s  {step}")


async def _perform(plan: DemoPlan) -> None:
    step = _progress(plan.show)
    kept = DemoSecrets.of(plan.folder)
    kept.save(plan.folder)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            private_homeserver(plan.folder / "homeserver", kept.port, kept.secret)
        )
        step("starting a private Matrix homeserver")
        synapse = await stack.enter_async_context(server.running(plan.environment))
        found = await _model(plan, stack)
        step(f"the model is {found.description}")
        await server.until_it_answers(synapse)
        step(f"the homeserver answers at {server.url}")
        bot_id = await server.register("wintermute", "Wintermute", kept.bot_password)
        user_id = await server.register("you", "You", kept.password)
        bot = Bot(plan.folder / "bot")
        bot.furnish(server.url, bot_id, kept.bot_password, user_id, found)
        environment = {**plan.environment, **found.environment}
        daemon = await stack.enter_async_context(bot.running(environment))
        me = Matrix(
            homeserver=server.url,
            user_id=user_id,
            password=Secret(kept.password),
            device_name="wintermute demo",
            owner=user_id,
        )
        person = await stack.enter_async_context(present(me, plan.folder / "you"))
        await _keep_secrets(kept, server, person, plan.folder / "you")
        step(f"{user_id} is logged in, with keys")
        await daemon.wait_until(lambda: daemon.logged(READY), READY_SECONDS)
        step(f"{bot_id} is ready, with keys")
        cast = _Cast(server, daemon, bot, person, bot_id, environment)
        await _first_of(
            person.listen(),
            synapse.wait_for_end(),
            daemon.wait_for_end(),
            _converse(plan, kept, cast, step),
        )


@dataclass(frozen=True, slots=True)
class _Cast:
    """The parts of a running demo."""

    server: Homeserver
    daemon: Child
    bot: Bot
    person: TerminalUser
    bot_id: str
    environment: Mapping[str, str]
    """The environment of the daemon."""


async def _model(plan: DemoPlan, stack: AsyncExitStack) -> FoundModel:
    """Return the person's model, else the practice model, which runs as long as the stack."""
    found = None if plan.practice else await find_model(plan.config, plan.environment)
    if found is None:
        practice = await stack.enter_async_context(PracticeModel())
        found = one_backend(practice.url, SERVED_NAME, f"the built-in {PRACTICE}")
        return replace(found, harvest=AT_ONCE)
    return found


async def _keep_secrets(
    kept: DemoSecrets, server: Homeserver, person: TerminalUser, folder: Path
) -> None:
    """Let a graphical client take over the identity; it asks for the recovery key."""
    session = person.session
    seeds = load_seeds(folder, session.user_id)
    if seeds is None:
        return
    named = zip(USAGES, seeds.pairs, strict=True)
    secrets = {f"m.cross_signing.{usage}": pair.seed.rstrip("=") for usage, pair in named}
    stored = secret_storage(bytes.fromhex(kept.recovery), secrets)
    for kind, content in stored.items():
        target = f"/_matrix/client/v3/user/{session.user_id}/account_data/{kind}"
        await server.ask("PUT", target, content, session.access_token)


async def _converse(
    plan: DemoPlan, kept: DemoSecrets, cast: _Cast, step: Callable[[str], None]
) -> None:
    room_id = kept.room_id
    if room_id is None:
        room_id = await _meet(cast)
        replace(kept, room_id=room_id).save(plan.folder)
    try:
        await cast.person.wait_for_member(room_id, cast.bot_id, JOIN_SECONDS)
    except TimeoutError:
        raise WintermuteError(f"the bot did not join the room:\n{cast.daemon.tail()}") from None
    if is_installed():
        await cast.daemon.wait_until(lambda: cast.daemon.logged(WEB_DOOR), READY_SECONDS)
        step("you can also chat and read the wiki in your browser:")
        plan.show(await cast.bot.login(cast.environment))
    plan.show(
        CARD.format(
            folder=plan.folder,
            config=shlex.quote(f"{plan.folder}/bot/config.yaml"),
            url=cast.server.url,
            user=cast.person.session.user_id,
            password=kept.password,
            recovery=recovery_key(bytes.fromhex(kept.recovery)),
        )
    )
    step("in an encrypted room: type a message or /help; /quit or Ctrl-D ends")
    async with open_database(cast.bot.database, read_only=True) as database:
        command = partial(cast.bot.command, cast.environment)
        dialogue = Dialogue(cast.person, room_id, database, plan.show, plan.draw, command)
        if plan.lines is None:
            await dialogue.typed()
            return
        try:
            await dialogue.dictated(plan.lines)
        except WintermuteError as error:
            raise WintermuteError(
                f"{error}; the daemon's last lines:\n{cast.daemon.tail()}"
            ) from error


async def _meet(cast: _Cast) -> str:
    """Make an encrypted room that clients show as a direct chat. Return its id."""
    session = cast.person.session
    algorithm = {"algorithm": "m.megolm.v1.aes-sha2"}
    encryption = {"type": "m.room.encryption", "state_key": "", "content": algorithm}
    room: Json = {"preset": "trusted_private_chat", "is_direct": True, "invite": [cast.bot_id]}
    room["initial_state"] = [encryption]
    token = session.access_token
    client = "/_matrix/client/v3"
    answer = await cast.server.ask("POST", f"{client}/createRoom", room, token)
    room_id = str(answer["room_id"])
    direct = f"{client}/user/{session.user_id}/account_data/m.direct"
    await cast.server.ask("PUT", direct, {cast.bot_id: [room_id]}, token)
    return room_id
