"""People at their clients, bots and rooms on one homeserver: what a test of the Matrix door begins with.

    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)

The fixtures of these names are the methods of one Scene, which closes what it opened.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.world.bot import Bot, Json, meet, write_settings
from tests.world.homeserver import Homeserver
from tests.world.user import MatrixUser
from tests.world.warm import Interpreter

NewName = Callable[[str], str]
NewScene = Callable[[Path, str], "Scene"]


class NewPerson(Protocol):
    """`person`: a new user at a client that syncs until the test ends."""

    async def __call__(self, name: str, *, via: str = "") -> MatrixUser: ...


class NewBot(Protocol):
    """`bot`: a daemon with a new account and folder, killed when the test ends."""

    async def __call__(
        self, owner: MatrixUser, *, via: str = "", start: bool = True, **changes: Json
    ) -> Bot: ...


class NewRoom(Protocol):
    """`room`: a new room of a person with the bot, and guests, once all are in it."""

    async def __call__(
        self,
        host: MatrixUser,
        daemon: Bot,
        *guests: MatrixUser,
        encrypted: bool = False,
        name: str = "",
    ) -> str: ...


class Scene:
    """Opens people, bots and rooms; leaving the block ends them, the newest first."""

    def __init__(
        self,
        homeserver: Homeserver,
        python: Interpreter,
        fresh: NewName,
        folder: Path,
        model_url: str,
    ) -> None:
        self._homeserver = homeserver
        self._python = python
        self._fresh = fresh
        self._folder = folder
        self._model_url = model_url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def person(self, name: str, *, via: str = "") -> MatrixUser:
        """A new user at a client that syncs; `via` is another way to the homeserver."""
        login = self._homeserver.user(self._fresh(name))
        client = MatrixUser(via or self._homeserver.url, login, self._folder / login.device_id)
        return await self._stack.enter_async_context(client)

    async def bot(
        self, owner: MatrixUser, *, via: str = "", start: bool = True, **changes: Json
    ) -> Bot:
        """A daemon with a new account and folder; `via` is another way to the homeserver.

        `changes` are merged into the sections of its configuration.
        """
        name = self._fresh("bot")
        config = write_settings(
            self._folder / name,
            via or self._homeserver.url,
            self._homeserver.user(name),
            self._model_url,
            owner.user_id,
            **changes,
        )
        daemon = Bot(config, self._python)
        self._stack.push_async_exit(daemon)
        if start:
            await daemon.start()
        return daemon

    async def room(
        self,
        host: MatrixUser,
        daemon: Bot,
        *guests: MatrixUser,
        encrypted: bool = False,
        name: str = "",
    ) -> str:
        """A new room, once all are in it; a direct chat without guests."""
        return await meet(host, daemon.user_id, *guests, encrypted=encrypted, name=name)
