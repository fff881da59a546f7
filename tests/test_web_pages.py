"""Each page in a real browser: hostile text, a phone, a zoom, a screen reader, other scripts, no script at all."""

from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from tests.world.browser import accessible, browsing, first_load, overflow
from tests.world.furnished import CHAT, Furnished, NewHome
from tests.world.furnished import furnish as furnish
from tests.world.hostile import hostile_name, hostile_text, overhearing
from tests.world.model import Calls, Drip, Fail, ModelServer, Text, Use
from tests.world.pages import PAGES
from tests.world.web import door as door

pytestmark = pytest.mark.slow

TRACES = """() => [
    ...document.querySelectorAll(
        "iframe, object, embed, base, frame, portal, audio, video, form[action^='http'], body style, body link,"
        + " body meta, body script, image, use, math, [style], main img[src^='http'], [ping], [srcdoc]"
    ),
    ...[...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) =>
        a.name.startsWith("on") || a.name.includes(":")
        || (["href", "src", "action", "formaction"].includes(a.name)
            && !/^(\\/(?!\\/)|#|\\?|https?:|mailto:|matrix:)/.test(a.value))
    )),
].map((e) => e.outerHTML.slice(0, 200)).concat(window.hurt ? ["it ran"] : [])"""
"""Elements and attributes that no page of ours has: whatever is found came from the text."""


WORD = "Donaudampfschiff" * 19
STRANGE = (
    f"# {WORD}\n\n{WORD} `{WORD}` [[{WORD}]] [{WORD}](https://example.org/{WORD}) **{WORD}**\n\n"
    f"> > > - 1. {WORD}\n\n| {' | '.join(['column'] * 12)} |\n|{'---|' * 12}\n| {' | '.join([WORD[:40]] * 12)} |\n\n"
    f"```\n{'x = 1; ' * 60}\n```\n\n# שלום עולם\n\nשלום English עולם 123, [[גן]].\n\nمرحبا بالعالم\n\n"  # noqa: RUF001  scripts from right to left
    f"# 日本語の見出し\n\n{'日本語の文章は空白なしで続きます。' * 12}\n\nह\u0301" + "\u0301" * 80
)
TITLES = (WORD[:80], "שלום עולם", "日本語の見出し", "مرحبا (1) <b>")


async def look(page: Page) -> list[str]:
    """Traces of hostile text on a page that has settled, after all that folds is open."""
    for closed in await page.locator("details:not([open]) > summary:visible").all():
        await closed.click()
    await page.mouse.move(300, 300)
    found: list[str] = await page.evaluate(TRACES)
    return [f"{page.url}: {each}" for each in found]


def addresses(home: Furnished, name: str) -> list[str]:
    """All pages, and those that repeat what they were asked for."""
    titles = [f"semantic/{quote(name, safe='')}", "semantic/Evil", "semantic/none"]
    return [
        *home.shown(),
        *(f"/{place}/{title}" for place in ("wiki", "edit") for title in titles),
        *(
            address
            for address in home.asked(quote(name, safe=""))
            if not address.startswith(("/api/", "/login/"))
        ),
        f"/nothing/{quote(name)}",
        "/wiki-search?q=img",
    ]


async def test_nothing_hostile_runs(furnish: NewHome, model: ModelServer, chromium: str) -> None:
    """V-027, W-073: in pages, titles, names of files, jobs, messages, answers, tools and errors."""
    async with overhearing() as there:
        text, name = hostile_text(there.url), hostile_name(there.url)
        pages = PAGES | {
            f"semantic/{name}.md": f"# {name}\n\n{text} [[{name}]] [[Evil]]",
            "semantic/Evil.md": f"---\ncreated: {name}\nupdated: 2026-01-01\n---\n# {name}\n\n{text}",
            "episodic/Evil.md": f"# {text}",
            f"episodic-raw/20261101/{name}/0001-user.md": text,
        }
        model.script(
            *(Text("hello"), Text(text)),
            Calls((Use(name), Use("recall", {"title": name}), Use("recall", text))),
            Text(f"# {name}\n\n{text}"),
            Fail(400, {"error": {"message": name + text}}),
        )
        home = await furnish(pages, report=text)
        async with browsing(home.web, chromium, ["status of 4"]) as browser:
            for said in (text, "use your tools", "/unknown " + name, "go on"):
                await home.say(said)
            page, found = await browser.open("/healthz"), list[str]()
            for address in addresses(home, name):
                await page.goto(home.web.base + address)
                await expect(page.get_by_role("heading", level=1).first).to_be_attached()
                found += await look(page)
            assert not found, "\n".join(found)


async def test_nothing_hostile_grows(furnish: NewHome, model: ModelServer, chromium: str) -> None:
    """V-027: where HTML enters a page by script: the draft, the message, the preview, the difference."""
    async with overhearing() as there:
        text, name = hostile_text(there.url), hostile_name(there.url)
        model.script(Text("hello"), Calls((Use(name),)), Drip(f"{text}\n\nthe end", None, 0.005))
        home = await furnish(PAGES | {f"semantic/{name}.md": text})
        async with browsing(home.web, chromium, ["status of 4"]) as browser:
            page = await browser.open(f"/chat/{CHAT}")
            await page.get_by_label("Message", exact=True).fill(text)
            await page.keyboard.press("Enter")
            await expect(page.locator("#draft")).to_be_visible()
            assert await look(page) == []
            await expect(page.locator("#messages > li")).to_have_count(4)
            await expect(page.locator("#messages > li").last).to_contain_text("the end")
            assert await look(page) == []
            page = await browser.open("/edit/semantic/Garden")
            await page.locator("#source").fill(text)
            await page.get_by_role("button", name="Preview").click()
            await expect(page.locator("#preview")).to_be_visible()
            assert await look(page) == []
            home.pages.write("semantic/Garden.md", f"# theirs\n\n{text}")
            await page.locator("#source").fill(f"# mine\n\n{text}")
            await page.get_by_role("button", name="Save").click()
            await expect(page.locator("#conflict")).to_be_visible()
            assert await look(page) == []


async def test_each_page_fits_phones_and_screen_readers(furnish: NewHome, chromium: str) -> None:
    """V-010, V-026, W-074: by the route table, light and dark; one main heading, a name for each part."""
    home = await furnish()
    async with browsing(home.web, chromium) as browser:
        found = list[str]()
        for scheme in ("light", "dark"):
            page = await browser.open("/", width=360, color_scheme=scheme)
            for path in home.shown():
                await page.goto(home.web.base + path)
                await expect(page.get_by_role("heading", level=1)).to_have_count(1)
                await expect(page.get_by_role("main")).to_have_count(1)
                found += await overflow(page) + await accessible(page)
        assert not found, "\n".join(found)


async def test_no_text_is_too_wide(furnish: NewHome, model: ModelServer, chromium: str) -> None:
    """V-026: 360 px, and 1280 px at 200 %; words of 300 letters, wide tables, right to left, CJK."""
    pages = PAGES | {f"semantic/{name}.md": f"{STRANGE} [[{name}]] [[Garden]]" for name in TITLES}
    model.script(Text("hello"), Text(STRANGE), Text(f"{WORD} {WORD}"))
    home = await furnish(pages, report=STRANGE)
    strange = [f"/{at}/semantic/{quote(name)}" for at in ("wiki", "edit") for name in TITLES]
    strange += [f"/wiki-search?q={WORD}", f"/wiki/{WORD}", "/wiki-search?q=xx"]
    async with browsing(home.web, chromium, ["status of 404"]) as browser:
        for said in (STRANGE, WORD):
            await home.say(said)
        found = list[str]()
        for width, scale in ((360, 1), (640, 2)):
            page = await browser.open("/", width=width, device_scale_factor=scale)
            for path in (*home.shown(), *strange):
                await page.goto(home.web.base + path)
                found += await overflow(page)
        assert not found, "\n".join(found)


async def test_a_first_load_is_small_and_needs_no_script(furnish: NewHome, chromium: str) -> None:
    """V-025, V-026, V-028: bytes as they travel; the editor, the chat and the graph say what they need."""
    home = await furnish()
    async with browsing(home.web, chromium) as browser:
        for path, most in (("/", 60_000), ("/graph", 90_000)):
            sizes = await first_load(browser, path)
            assert 10_000 < sum(sizes) <= most, (path, sizes)
        page = await browser.open("/", java_script_enabled=False)
        for path in home.shown():
            await page.goto(home.web.base + path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await page.goto(home.web.base + "/wiki")
        await page.get_by_role("searchbox").fill("spade")
        await page.keyboard.press("Enter")
        await page.locator("#hits").get_by_role("link", name="Shed").first.click()
        await page.goto(home.web.base + "/wiki/semantic/Garden")
        await page.get_by_role("link", name="Pond").first.click()
        await expect(page.get_by_text("Three carp.")).to_be_visible()
        await page.goto(f"{home.web.base}/chat/{CHAT}")
        await expect(page.locator("#messages")).to_contain_text("echo: hello")
        for path in (f"/chat/{CHAT}", "/edit/semantic/Garden", "/graph", "/login"):
            await page.goto(home.web.base + path)
            assert "JavaScript" in await page.locator("main").inner_text(), path
