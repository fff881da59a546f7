"""The pages for everybody: a phone, a zoom, a screen reader, other scripts, no script at all."""

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Response, expect

from tests.world.browser import accessible, browsing, overflow
from tests.world.furnished import CHAT, furnished
from tests.world.model import ModelServer, Text
from tests.world.pages import PAGES


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


WORD = "Donaudampfschiff" * 19
STRANGE = (
    f"# {WORD}\n\n{WORD} `{WORD}` [[{WORD}]] [{WORD}](https://example.org/{WORD}) **{WORD}**\n\n"
    f"> > > - 1. {WORD}\n\n| {' | '.join(['column'] * 12)} |\n|{'---|' * 12}\n| {' | '.join([WORD[:40]] * 12)} |\n\n"
    f"```\n{'x = 1; ' * 60}\n```\n\n# שלום עולם\n\nשלום English עולם 123, [[גן]].\n\nمرحبا بالعالم\n\n"  # noqa: RUF001  scripts from right to left
    f"# 日本語の見出し\n\n{'日本語の文章は空白なしで続きます。' * 12}\n\nह\u0301" + "\u0301" * 80
)
TITLES = (WORD[:80], "שלום עולם", "日本語の見出し", "مرحبا (1) <b>")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scale"), [(360, 1), (640, 2)])
async def test_no_text_of_any_script_makes_a_page_scroll_sideways(
    tmp_path: Path, model: ModelServer, chromium: str, width: int, scale: int
) -> None:
    """V-026: 360 px, and 1280 px at 200 %; words of 300 letters, wide tables, right to left, CJK."""
    pages = PAGES | {f"semantic/{name}.md": f"{STRANGE} [[{name}]] [[Garden]]" for name in TITLES}
    model.script(Text("hello"), Text(STRANGE), Text(f"{WORD} {WORD}"))
    async with (
        furnished(tmp_path, model, pages, report=STRANGE) as home,
        browsing(home.web, chromium, provoked=["status of 404"]) as browser,
    ):
        for said in (STRANGE, WORD):
            await home.say(said)
        page = await browser.open("/", width=width, device_scale_factor=scale)
        strange = [f"/{at}/semantic/{quote(name)}" for at in ("wiki", "edit") for name in TITLES]
        found = []
        for path in (
            *home.shown(),
            *strange,
            f"/wiki-search?q={WORD}",
            f"/wiki/{WORD}",
            "/wiki-search?q=xx",
        ):
            await page.goto(home.web.base + path)
            found += await overflow(page)
        assert not found, "\n".join(found)


@pytest.mark.slow
async def test_reading_works_without_scripts_and_the_rest_says_that_it_needs_them(
    tmp_path: Path, model: ModelServer, chromium: str
) -> None:
    """V-026: pages, links, search and what was said; the editor, the chat and the graph say so."""
    async with furnished(tmp_path, model) as home, browsing(home.web, chromium) as browser:
        page = await browser.open("/", java_script_enabled=False)
        for path in home.shown():
            await page.goto(home.web.base + path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await page.goto(home.web.base + "/wiki/semantic/Garden")
        await page.get_by_role("link", name="Pond").first.click()
        await expect(page.get_by_text("Three carp.")).to_be_visible()
        await page.goto(home.web.base + "/wiki-search?q=spade")
        await expect(page.get_by_role("link", name="Shed").first).to_be_visible()
        await page.goto(f"{home.web.base}/chat/{CHAT}")
        await expect(page.locator("#messages")).to_contain_text("echo: hello")
        for path in (f"/chat/{CHAT}", "/edit/semantic/Garden", "/graph", "/login"):
            await page.goto(home.web.base + path)
            assert "JavaScript" in await page.locator("main").inner_text(), path


@pytest.mark.slow
@pytest.mark.parametrize(("path", "most"), [("/", 60_000), ("/graph", 90_000)])
async def test_a_first_load_is_small_and_asks_nobody_else(
    tmp_path: Path, model: ModelServer, chromium: str, path: str, most: int
) -> None:
    """V-028: bytes as they travel, all scripts, styles and pictures together."""
    async with furnished(tmp_path, model) as home, browsing(home.web, chromium) as browser:
        profile, sizes = await browser.profile(), dict[str, int]()
        page = await profile.new_page()
        answers = list[Response]()
        page.on("response", lambda answer: answers.append(answer))
        await page.goto(home.web.base + path)
        await expect(page.locator("canvas, #messages").first).to_be_visible()
        for answer in answers:
            if not answer.url.endswith("/stream") and "/stream?" not in answer.url:
                sizes[answer.url] = len(await answer.body())
        assert 10_000 < sum(sizes.values()) <= most, sizes
