"""The pages for everybody: a phone, a zoom, a screen reader, other scripts, no script at all."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.world.browser import accessible, browsing, overflow
from tests.world.furnished import furnished
from tests.world.model import ModelServer


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_page_fits_a_phone_and_has_nothing_that_a_screen_reader_stumbles_over(
    tmp_path: Path, model: ModelServer, chromium: str, scheme: str
) -> None:
    """V-010, V-026, W-074: by the route table; one main heading, a name for each part."""
    async with furnished(tmp_path, model) as home, browsing(home.web, chromium) as browser:
        page = await browser.open("/", width=360, color_scheme=scheme)
        found = []
        for path in home.shown():
            await page.goto(home.web.base + path)
            await expect(page.get_by_role("heading", level=1)).to_have_count(1)
            await expect(page.get_by_role("main")).to_have_count(1)
            found += await overflow(page) + await accessible(page)
        assert not found, "\n".join(found)
