"""The pages of a house, served on loopback by the real server, and a client that asks for them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from tests.world.clock import WITHIN
from tests.world.house import PROMPTS, House
from wintermute.answering import folder_answers
from wintermute.config.schema import Config
from wintermute.config.secrets import UNHIDDEN
from wintermute.config.wiki import daemon_wiki
from wintermute.ids import new_id
from wintermute.prompt.gather import read_texts
from wintermute.templates import RUNTIME
from wintermute.web.door import WebDoor
from wintermute.web.parts import WebParts
from wintermute.web.sessions import TOKEN, DoorStore
from wintermute.web.speaker import WebSpeaker


@dataclass(frozen=True)
class Served:
    """A door at work: its address, and somebody who is logged in."""

    base: str
    token: str
    client: httpx2.AsyncClient
    parts: WebParts

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        """A page, as the owner."""
        return await self.client.get(self.base + path, **more)

    async def login_address(self) -> str:
        """An address that logs one browser in, as `wintermute web` prints it."""
        key = await DoorStore(self.parts.stores.database, self.parts.clock).invite()
        return f"{self.base}/login/{key}"


@asynccontextmanager
async def web_served(
    house: House,
    config: Config | None = None,
    speaker: WebSpeaker | None = None,
    *,
    is_store: bool = False,
) -> AsyncIterator[Served]:
    """Serve the pages of a house, or of its store alone, on a free port while the block lasts."""
    config, speaker = config or house.config, speaker or house.web

    wiki = replace(daemon_wiki(config), runtime_prompt=PROMPTS / RUNTIME)
    texts = read_texts(PROMPTS, config.seed)
    folders = folder_answers(
        *(config, house.stores, house.models, texts, house.checked, UNHIDDEN, wiki)
    )
    rooms = None if is_store else house.rooms
    parts = WebParts(
        *(config, house.stores, house.checked, new_id, UNHIDDEN, speaker, rooms), folders
    )
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(WebDoor(parts).listen(listener))
        async with httpx2.AsyncClient(timeout=WITHIN) as client:
            async with asyncio.timeout(WITHIN):
                while (await _status(client, base)) != 200:  # noqa: ASYNC110  no event tells of it
                    await asyncio.sleep(0.05)
            token = (
                config.web.token.reveal() if config.web.token else _token(config.data_dir / TOKEN)
            )
            client.headers["Authorization"] = f"Bearer {token}"
            yield Served(base, token, client, parts)
        serving.cancel()


def _token(file: Path) -> str:
    return file.read_text().strip()


async def _status(client: httpx2.AsyncClient, base: str) -> int:
    try:
        return (await client.get(base + "/healthz")).status_code
    except httpx2.ConnectError:
        return 0
