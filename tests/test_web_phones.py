"""The pages for everybody: a phone, a zoom, a screen reader, other scripts, no script at all."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.world.browser import accessible, browsing, overflow
from tests.world.house import open_house
from tests.world.model import ModelServer
from tests.world.web import web_served
from wintermute.web.speaker import WebSpeaker

PAGES = ("/", "/wiki")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light"])
async def test_each_page_fits_a_phone_and_has_nothing_that_a_screen_reader_stumbles_over(
    tmp_path: Path, model: ModelServer, chromium: str, scheme: str
) -> None:
    """V-010, V-026."""
    async with (
        open_house(tmp_path, model.url) as house,
        house.working(),
        web_served(house, house.config, WebSpeaker()) as web,
        browsing(web, chromium) as browser,
    ):
        profile = await browser.profile(width=360, color_scheme=scheme)
        for path in PAGES:
            page = await browser.open(path, inside=profile)
            await expect(page.get_by_role("heading", level=1)).to_have_count(1)
            assert await overflow(page) == []
            assert await accessible(page) == []
