"""`wintermute web` while no daemon runs: forgetting happens, and pages say what waits for a daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from tests.test_forgetting import found
from tests.test_web_daemon import login_address, serving, settings
from tests.world.bot import Bot
from tests.world.clock import WITHIN
from tests.world.homeserver import free_port
from tests.world.model import ModelServer
from tests.world.warm import Interpreter

WORD = "kakapo"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so."""
    async with asyncio.timeout(WITHIN):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def say(client: httpx2.AsyncClient, text: str, answer: str) -> None:
    """Send a message, and wait until the page shows words of its answer."""
    new = {"key": text.replace(" ", "-").strip("/"), "text": text}
    origin = {"Origin": str(client.base_url).rstrip("/")}
    sent = await client.post("/api/chats/first/messages", json=new, headers=origin)
    assert sent.status_code == 202, sent.text
    await until(lambda: shows(client, "/chat/first", answer))


async def shows(client: httpx2.AsyncClient, path: str, words: str) -> bool:
    return words in (await client.get(path)).text


@pytest.mark.slow
async def test_words_are_forgotten_while_no_daemon_runs_and_reminders_said_to_wait(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """V-002, M-084: also where the command is ended in the middle of it, by the next one."""
    config, port = settings(tmp_path, model), free_port()
    command, base = ("web", "--port", str(port)), f"http://127.0.0.1:{port}"

    async def is_forgotten() -> bool:
        rows = Bot(config).rows("SELECT state FROM jobs WHERE name = 'forget'")
        return rows == [{"state": "done"}]

    async with httpx2.AsyncClient(base_url=base, timeout=WITHIN) as ann:
        async with serving(python, config, *command) as said:
            assert (await ann.get(login_address(said))).status_code == 200
            for path in ("/chat", "/wiki", "/sessions"):
                assert await shows(ann, path, "Reminders, tasks and nights wait until you start")
            await say(ann, f"my bird is a {WORD}", f"echo: my bird is a {WORD}")
            await say(ann, f"/forget {WORD}", "1 message of yours")
            await say(ann, "/forget yes", "I forget it for good")
        async with serving(python, config, *command):
            await until(is_forgotten)
            assert not await shows(ann, "/chat/first", WORD)
    assert (await python.command("--config", str(config), "memory", "forget")).returncode == 0
    assert found(tmp_path / "data", WORD) == []
