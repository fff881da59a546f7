"""Debian's Chromium at a served door: pages that are logged in, and all that goes wrong in them.

    async with web_served(house, house.config, speaker) as web, browsing(web, chromium) as browser:
        page = await browser.open("/wiki")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()

Leaving the block fails if a page wrote to its console, met an error in a script, or asked another
host for something. A test names what it provokes, such as the console's word for a 409:
`browsing(web, chromium, provoked=["409"])`. The fixture `chromium` skips the test where there is none.
Such tests are slow: `@pytest.mark.slow`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import (
    Browser,
    BrowserContext,
    Page,
    Response,
    ViewportSize,
    async_playwright,
    expect,
)

from tests.world.bot import Bot
from tests.world.clock import WITHIN
from tests.world.web import Served

MOST_SECONDS = 5 * WITHIN
SERIOUS = {"serious", "critical"}
MILLISECONDS = 1000 * WITHIN


@dataclass(frozen=True, slots=True)
class DoorAt:
    """The door of a daemon."""

    base: str
    bot: Bot

    async def login_address(self) -> str:
        """Give what `wintermute web` prints."""
        code, output = await self.bot.command("web")
        assert code == 0, output
        return next(word for word in output.split() if "/login/" in word)


@dataclass(frozen=True)
class Browsing:
    """A browser of the owner's. `problems`: what its pages said or did that a good page does not."""

    chromium: Browser
    web: Served | DoorAt
    provoked: Sequence[str]
    problems: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    """Each address that a page asked for, in order."""

    async def profile(
        self, *, logged_in: bool = True, width: int = 1280, **more: Any
    ) -> BrowserContext:
        """A browser profile of its own: `java_script_enabled=False`, `color_scheme="dark"`, `locale="de"`."""
        made = await self.chromium.new_context(
            viewport=ViewportSize(width=width, height=800), **more
        )
        made.set_default_timeout(MILLISECONDS)
        made.on("console", lambda said: self._note(f"console: {said.text} {said.location}"))
        made.on("weberror", lambda error: self._note(f"error: {error.error}"))
        made.on("request", lambda request: self._asked(request.url))
        if logged_in:
            # No page: one that goes on by itself may never close.
            address = await self.web.login_address()
            came_in = await made.request.get(address, timeout=MILLISECONDS)
            assert came_in.ok, await came_in.text()
        return made

    async def open(
        self, path: str, *, inside: BrowserContext | None = None, **profile: Any
    ) -> Page:
        """A page at a path: in a profile that is there, as one more tab, or in a new one."""
        context = inside or await self.profile(**profile)
        page = await context.new_page()
        await page.goto(self.web.base + path)
        return page

    def _asked(self, address: str) -> None:
        self.addresses.append(address)
        if not address.startswith((self.web.base + "/", "data:image/svg+xml,")):
            self._note(f"left the host: {address}")

    def _note(self, problem: str) -> None:
        if not any(known in problem for known in self.provoked):
            self.problems.append(problem)


@asynccontextmanager
async def browsing(
    web: Served | DoorAt, chromium: str, provoked: Sequence[str] = ()
) -> AsyncIterator[Browsing]:
    """A browser at a served door while the block lasts; fails at its end for what pages did wrong."""
    async with async_playwright() as playwright:  # its driver ends what hangs by itself
        async with asyncio.timeout(MOST_SECONDS):  # where Chromium dies, it may wait for ever
            launched = await playwright.chromium.launch(executable_path=chromium)
            expect.set_options(timeout=MILLISECONDS)
            browser = Browsing(launched, web, provoked)
            yield browser
        async with asyncio.timeout(WITHIN):
            await launched.close()
    assert not browser.problems, browser.problems


async def accessible(page: Page) -> list[str]:
    """List what axe finds serious or critical on a page, one line for each element."""
    await page.evaluate(AXE_SCRIPT)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{urlsplit(page.url).path}: {each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


async def first_load(browser: Browsing, path: str) -> list[int]:
    """Bytes of each answer that a page needs in a new browser, its HTML first; its stream has no end."""
    profile = await browser.profile()
    page, answers = await profile.new_page(), list[Response]()
    page.on("response", lambda answer: answers.append(answer))
    await page.goto(browser.web.base + path)
    sizes = [len(await answer.body()) for answer in answers if "/stream" not in answer.url]
    await profile.close()
    return sizes


async def overflow(page: Page) -> list[str]:
    """Elements that make a page scroll sideways, or one word for it if none sticks out by itself."""
    found = await page.evaluate(
        """() => {
            const wide = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= wide) return [];
            const out = [...document.body.querySelectorAll("*")]
                .filter((e) => e.getBoundingClientRect().right > wide + 1)
                .map((e) => e.outerHTML.slice(0, 120));
            return out.length ? out : ["page"];
        }"""
    )
    return [f"{urlsplit(page.url).path}: {each}" for each in found]
