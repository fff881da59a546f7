"""People at their clients, bots and rooms on one homeserver: what a test of the Matrix door begins with.

    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)

The fixtures of these names are the methods of one Scene, which closes what it opened; and all three at once:

    ann, daemon, chat = await scene.direct(encrypted=True)

`scene.model` is the model server of the test; `scene.proxy` a way to the homeserver that can be watched and spoilt.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import pytest

from tests.world.bot import Bot, Json, meet, write_settings
from tests.world.current import CurrentClient, what_is_missing
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.proxy import Proxy
from tests.world.schema import lay_schema
from tests.world.user import MatrixUser
from tests.world.warm import Interpreter

P = TypeVar("P", bound=Person)
NewName = Callable[[str], str]
NewScene = Callable[[Path, str], "Scene"]

NIO, JS = "nio", "js"
"""The clients that `anybody` may sit at: the one of `person`, and a strict one of `current`."""


class NewPerson(Protocol):
    """`person`: a new user at a client that syncs until the test ends."""

    async def __call__(self, name: str, *, via: str = "") -> MatrixUser: ...


class NewAnybody(Protocol):
    """`anybody`: a new user, at one client and in another run of the test at the other."""

    async def __call__(self, name: str, *, via: str = "") -> Person: ...


class HasAccount(Protocol):
    """A person or a bot."""

    @property
    def user_id(self) -> str: ...


class NewCurrent(Protocol):
    """`current`: a new user at a current client, or one more device of somebody."""

    async def __call__(
        self,
        who: str | HasAccount,
        *,
        via: str = "",
        identity: bool = True,
        strict: bool = False,
    ) -> CurrentClient: ...


class NewBot(Protocol):
    """`bot`: a daemon with a new account and folder, killed when the test ends."""

    async def __call__(
        self, owner: HasAccount, *, via: str = "", start: bool = True, **changes: Json
    ) -> Bot: ...


class NewRoom(Protocol):
    """`room`: a new room of a person with the bot, and guests, once all are in it."""

    async def __call__(
        self,
        host: Person,
        daemon: HasAccount,
        *guests: Person,
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
        model: ModelServer | None = None,
    ) -> None:
        self._homeserver = homeserver
        self._python = python
        self._fresh = fresh
        self._folder = folder
        self._model_url = model_url
        self._model = model
        self.proxy = Proxy(homeserver.url)
        self._stack = AsyncExitStack()
        self._strict: list[CurrentClient] = []
        self._bots: list[Bot] = []

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.proxy)
        return self

    @property
    def model(self) -> ModelServer:
        """The model server of the test whose scene this is."""
        assert self._model is not None
        return self._model

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._assert_believed()
        finally:
            await self._stack.aclose()

    def _assert_believed(self) -> None:
        """Who refuses unsigned devices read all that a bot said, and without a shield."""
        for client in self._strict:
            for bot in self._bots:
                doubted = client.doubted(bot.user_id)
                assert not doubted, doubted

    async def person(self, name: str, *, via: str = "") -> MatrixUser:
        """A new user at a client that syncs; `via` is another way to the homeserver."""
        login = self._homeserver.user(self._fresh(name))
        client = MatrixUser(via or self._homeserver.url, login, self._folder / login.device_id)
        return await self._stack.enter_async_context(client)

    async def strict(self, name: str, *, via: str = "") -> CurrentClient:
        """A new user at a current client that refuses unsigned devices, and must believe our bots."""
        client = await self.current(name, via=via, strict=True)
        self._strict.append(client)
        return client

    def at(self, client: str) -> NewAnybody:
        """What makes new users at this client."""
        return self.strict if client == JS else self.person

    async def current(
        self,
        who: str | HasAccount,
        *,
        via: str = "",
        identity: bool = True,
        strict: bool = False,
    ) -> CurrentClient:
        """A new user at a current client, or a further device of a person's or a bot's account.

        `identity`: it is signed, by the identity of the client given as `who` or one of its own.
        """
        if missing := what_is_missing():
            pytest.skip(missing)
        if isinstance(who, str):
            login = self._homeserver.user(self._fresh(who))
        else:
            login = self._homeserver.login(who.user_id[1:].partition(":")[0])
        client = CurrentClient(
            via or self._homeserver.url, login, self._folder / login.device_id, strict=strict
        )
        await self._stack.enter_async_context(client)
        if isinstance(who, CurrentClient):
            if identity:
                await who.share_identity(client)
            await who.until_so(lambda: who.knows(client.user_id, client.device_id, signed=identity))
        elif identity:
            await client.make_identity()
        return client

    async def bot(
        self, owner: HasAccount, *, via: str = "", start: bool = True, **changes: Json
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
        lay_schema(daemon.data / "wintermute.db")
        daemon.set_clocks()
        self._bots.append(daemon)
        self._stack.push_async_exit(daemon)
        if start:
            await daemon.start()
        return daemon

    async def room(
        self,
        host: Person,
        daemon: HasAccount,
        *guests: Person,
        encrypted: bool = False,
        name: str = "",
    ) -> str:
        """A new room, once all are in it; a direct chat without guests."""
        return await meet(host, daemon.user_id, *guests, encrypted=encrypted, name=name)

    async def met(
        self, host: P, *, encrypted: bool = False, name: str = "", via: str = "", **changes: Json
    ) -> tuple[P, Bot, str]:
        """Open a bot of somebody's, and the direct chat they are in."""
        daemon = await self.bot(host, via=via, start=True, **changes)
        return host, daemon, await self.room(host, daemon, encrypted=encrypted, name=name)

    async def direct(
        self, *, encrypted: bool = False, name: str = "", via: str = "", **changes: Json
    ) -> tuple[MatrixUser, Bot, str]:
        """Open a new user, a bot of hers, and the direct chat they are in."""
        ann = await self.person("ann")
        return await self.met(ann, encrypted=encrypted, name=name, via=via, **changes)

    async def shared(self, *, via: str = "") -> tuple[MatrixUser, MatrixUser, Bot]:
        """Open two new users, and a bot of the first that the second may use too."""
        ann, ben = await self.person("ann"), await self.person("ben")
        allowed = {"allowed_users": [ben.user_id]}
        return ann, ben, await self.bot(ann, via=via, matrix=allowed)
