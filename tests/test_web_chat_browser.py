"""Stories of the chat in a real browser, with a scripted model behind the rooms."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.test_web_chat import talking
from tests.world.browser import browsing
from tests.world.model import Drip, ModelServer

pytestmark = pytest.mark.slow


async def test_talking_in_the_browser(tmp_path: Path, model: ModelServer, chromium: str) -> None:
    """V-013, V-014."""
    words = asyncio.Semaphore(0)
    model.script(Drip("**one** two three", words))
    async with talking(tmp_path, model) as (_, web), browsing(web, chromium) as browser:
        page = await browser.open("/")
        await page.get_by_label("Message", exact=True).fill("hello\nyou")
        await page.keyboard.press("Enter")
        await expect(page.locator("#messages .own .text")).to_have_text("hello\nyou")
        for _ in range(2):
            words.release()
        await expect(page.locator("#draft strong")).to_have_text("one")
        await page.screenshot(path="/tmp/w38/chat/grow.png")
        for _ in range(20):
            words.release()
        await expect(page.locator("#messages > li")).to_have_count(2)
        await page.screenshot(path="/tmp/w38/chat/done.png")
