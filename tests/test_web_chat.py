"""Talking in the browser: by the door's own addresses, with a scripted model behind the rooms."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.clock import WITHIN
from tests.world.house import House, open_house
from tests.world.model import Drip, ModelServer
from tests.world.web import Served, web_served
from wintermute.messages import Json

CHAT = "chat_0123456789abcdef"


@asynccontextmanager
async def talking(
    tmp_path: Path, model: ModelServer, **more: Any
) -> AsyncIterator[tuple[House, Served]]:
    """A house whose rooms work, and its door."""
    async with (
        open_house(tmp_path, model.url, **more) as house,
        house.working(),
        web_served(house, house.config, house.web) as web,
    ):
        yield house, web


async def say(web: Served, text: str, key: str = "k1", chat: str = CHAT) -> Any:
    """Send a message as the page does; the answer of the door."""
    body = {"key": key, "text": text}
    return await web.client.post(f"{web.base}/api/chats/{chat}/messages", json=body)


@dataclass
class Watching:
    """A page that listens: its messages by id, in order, and the draft, as its script shows them."""

    messages: dict[str, str]
    draft: list[str]
    answers: str | None
    seen: list[tuple[str, Json]]

    def take(self, name: str, value: Json) -> None:
        self.seen.append((name, value))
        if name == "messages":
            known = self.messages | {row["id"]: row["html"] for row in value["rows"]}
            self.messages = {each: known[each] for each in value["ids"]}
        elif value["answers"] is None:
            self.draft, self.answers = [], None
        else:
            self.draft = self.draft[: value["from"]] + value["blocks"]
            self.answers = value["answers"]


async def watch(web: Served, until: Any, chat: str = CHAT, has: str = "") -> Watching:
    """Listen to a conversation until something is so."""
    page = Watching({}, [], None, [])
    address = f"{web.base}/api/chats/{chat}/stream?has={has}"
    async with asyncio.timeout(WITHIN), web.client.stream("GET", address) as stream:
        assert stream.status_code == 200, await stream.aread()
        name = ""
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                page.take(name, json.loads(line.removeprefix("data: ")))
                if until(page):
                    return page
    raise AssertionError(page)


async def test_a_message_is_answered_on_the_page(tmp_path: Path, model: ModelServer) -> None:
    """V-013, V-014."""
    words = asyncio.Semaphore(0)
    model.script(Drip("**one** two", words))
    async with talking(tmp_path, model) as (house, web):
        assert (await say(web, "hello")).status_code == 202
        listening = asyncio.create_task(watch(web, lambda page: len(page.messages) == 2))
        words.release()
        words.release()
        words.release()
        page = await listening
        assert "hello" in page.messages[next(iter(page.messages))]
        assert "<strong>one</strong>" in [*page.messages.values()][-1]
        print(page.seen)
        print((await web.get(f"/chat/{CHAT}")).text)
