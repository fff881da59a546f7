"""The pages of a house, served on loopback by the real server, and a client that asks for them."""

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.world.clock import WITHIN
from tests.world.house import PROMPTS, House, open_house
from tests.world.model import ModelServer
from tests.world.warm import Interpreter
from wintermute.answering import folder_answers
from wintermute.config.schema import Web
from wintermute.config.secrets import Redaction
from wintermute.config.wiki import daemon_wiki
from wintermute.ids import new_id
from wintermute.prompt.context_builder import read_texts
from wintermute.templates import RUNTIME
from wintermute.web.door import WebDoor
from wintermute.web.parts import WebParts
from wintermute.web.sessions import TOKEN, DoorStore
from wintermute.work.data_folder import DataFolder

CHAT = "chat_0123456789abcdef"
FIELD = re.compile(r'data-before="(\w*)".*<textarea[^>]*>\n(.*?)</textarea>', re.DOTALL)


@dataclass(frozen=True)
class Served:
    """A door at work: its house and address, and a program that has its token."""

    house: House
    base: str
    token: str
    client: httpx2.AsyncClient
    parts: WebParts

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        """A page, as the owner."""
        return await self.client.get(self.base + path, **more)

    async def post(self, path: str, value: object) -> httpx2.Response:
        """A change, as the owner."""
        return await self.client.post(self.base + path, json=value)

    async def login_address(self) -> str:
        """An address that logs one browser in, as `wintermute web` prints it."""
        key = await DoorStore(self.parts.stores.database, self.parts.clock).invite()
        return f"{self.base}/login/{key}"


NewDoor = Callable[..., Awaitable[Served]]


@pytest.fixture
async def door(tmp_path: Path, model: ModelServer) -> AsyncIterator[NewDoor]:
    """`web = await door(clock=clock)`: the pages of a house at work; `is_idle`: nobody answers there."""
    async with AsyncExitStack() as stack:

        async def new(*, is_idle: bool = False, **house: Any) -> Served:
            made = await stack.enter_async_context(open_house(tmp_path, model.url, **house))
            if not is_idle:
                await stack.enter_async_context(made.working())
            return await stack.enter_async_context(web_served(made))

        yield new


@asynccontextmanager
async def web_served(house: House, *, is_store: bool = False, **web: Any) -> AsyncIterator[Served]:
    """Serve the pages of a house, or of its store alone, while the block lasts; with these keys below `web`."""
    config = replace(house.config, web=Web(**web))
    wiki = replace(daemon_wiki(config), runtime_prompt=PROMPTS / RUNTIME)
    texts = read_texts(PROMPTS, config.seed)
    redact = Redaction(())
    opened = DataFolder(config, house.stores, house.models, texts, house.checked, redact)
    folders = folder_answers(opened, wiki)
    rooms = None if is_store else house.rooms
    parts = WebParts(
        *(config, house.stores, house.checked, new_id, redact, house.web, rooms), folders
    )
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(WebDoor(parts).listen(listener))
        async with httpx2.AsyncClient(timeout=WITHIN) as client:
            await until_open(client, base)
            given = config.web.token
            token = given.reveal() if given else (config.data_dir / TOKEN).read_text().strip()
            client.headers["Authorization"] = f"Bearer {token}"
            yield Served(house, base, token, client, parts)
        serving.cancel()


async def until_open(client: httpx2.AsyncClient, base: str) -> None:
    """Wait until a door answers."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                await client.get(base + "/healthz")
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return


@asynccontextmanager
async def stranger(web: Served) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody with a jar of cookies, and no token."""
    async with httpx2.AsyncClient(base_url=web.base, timeout=WITHIN) as client:
        yield client


async def changed(
    client: httpx2.AsyncClient, path: str, value: object, **headers: str
) -> httpx2.Response:
    """A change, as a page of ours sends it."""
    origin = {"Origin": str(client.base_url).rstrip("/")}
    return await client.post(path, json=value, headers=origin | headers)


async def post_message(
    web: Served, text: str, key: str = "k1", chat: str = CHAT
) -> httpx2.Response:
    """Send a message as the page does; the answer of the door."""
    return await web.post(f"/api/chats/{chat}/messages", {"key": key, "text": text})


async def chat_texts(web: Served, chat: str = CHAT, before: str = "") -> list[str]:
    """The messages of a conversation as words, oldest first."""
    found = (await web.get(f"/api/chats/{chat}/messages?before={before}")).json()
    return [text_words(row["html"]) for row in found["messages"]]


def text_words(html: str) -> str:
    """The text of a message, without who said it when, nor its badges."""
    found = re.search(r'<div class="text"[^>]*>(.*?)</div>', html, re.DOTALL)
    return re.sub(r"<[^>]*>", "", found[1] if found else "").strip()


def drop(words: asyncio.Semaphore, count: int) -> None:
    """Let so many words of a `Drip` come."""
    for _ in range(count):
        words.release()


@asynccontextmanager
async def serving_daemon(
    python: Interpreter, config: Path, *words: str
) -> AsyncIterator[list[str]]:
    """Run a command that serves while the block lasts; what it said when it did, and ends well."""
    process = await python.start("--config", str(config), *words)
    assert process.stderr is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(WITHIN):
            while not any("/login/" in line for line in said):
                line = (await process.stderr.readline()).decode()
                assert line, said
                said.append(line.strip())
        yield said
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN):
            assert await process.wait() == 0
            assert b"Traceback" not in await process.stderr.read()
    finally:
        process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()
