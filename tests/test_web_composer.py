"""The field that messages are written in: nothing written is lost, nothing waits for ever."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.test_web_chat import talking
from tests.test_web_chat_browser import hide, shown, write
from tests.world.browser import browsing
from tests.world.model import ModelServer

pytestmark = pytest.mark.slow


async def test_a_message_written_offline_goes_out_by_itself(
    tmp_path: Path, model: ModelServer, chromium: str
) -> None:
    """V-015: the first one of a conversation, and one of a tab that is hidden and shown meanwhile."""
    async with talking(tmp_path, model) as (_, web), browsing(web, chromium, ["ERR_"]) as browser:
        mine = await browser.profile()
        page = await browser.open("/chat", inside=mine)
        for text, hidden in (("first", False), ("second", True)):
            await mine.set_offline(True)
            await write(page, text)
            await expect(page.locator("#unsent")).to_contain_text("Not sent yet.")
            await expect(page.locator("#state")).to_contain_text("Connecting again")
            await hide(page, hidden=hidden)
            await mine.set_offline(False)
            await expect(page.locator("#unsent .unsent")).to_have_count(0)
            await hide(page, hidden=False)
            await expect(page.get_by_text(f"echo: {text}")).to_have_count(1)
        await expect(shown(page)).to_have_count(4)


async def test_a_text_is_kept_until_it_is_sent_and_comes_back_where_it_was_refused(
    tmp_path: Path, model: ModelServer, chromium: str
) -> None:
    """V-013, V-015: a reload keeps what is half typed, in each conversation its own; too long is cut."""
    async with talking(tmp_path, model) as (_, web), browsing(web, chromium, ["413"]) as browser:
        mine = await browser.profile()
        page = await browser.open("/chat", inside=mine)
        field = page.get_by_label("Message", exact=True)
        await field.fill("half a text")
        await page.reload()
        await expect(field).to_have_value("half a text")
        await field.press("Enter")
        await expect(shown(page)).to_have_text(["half a text", "echo: half a text"])
        await field.fill("more")
        new = await browser.open("/chat", inside=mine)
        await expect(new.get_by_label("Message", exact=True)).to_have_value("")
        await page.reload()
        await expect(field).to_have_value("more")
        await write(page, "long " * 60_000)
        refused = page.locator("#unsent .unsent")
        await expect(refused).to_contain_text("Send it in parts.")
        assert len(await refused.inner_text()) < 2_000
        await field.fill("more")
        await refused.get_by_role("button", name="Edit").click()
        assert await field.input_value() == "long " * 60_000 + "\nmore"
        await expect(refused).to_have_count(0)
        await field.fill("short")
        await page.reload()
        await field.press("Enter")
        await expect(shown(page)).to_have_count(4)
        await page.reload()
        await expect(field).to_have_value("")
