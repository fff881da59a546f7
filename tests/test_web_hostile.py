"""Text of strangers and of models on every page, in a real browser, with a listener that must hear nothing."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from tests.world.browser import Browsing, browsing
from tests.world.furnished import CHAT, Furnished, furnished
from tests.world.hostile import hostile_name, hostile_text, overhearing
from tests.world.model import Calls, Drip, Fail, ModelServer, Text, Use
from tests.world.pages import PAGES

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


async def look(page: Page) -> list[str]:
    """Traces of hostile text on a page that has settled, after all that folds is open."""
    for closed in await page.locator("details:not([open]) > summary:visible").all():
        await closed.click()
    await page.mouse.move(300, 300)
    found: list[str] = await page.evaluate(TRACES)
    return [f"{page.url}: {each}" for each in found]


async def walk(browser: Browsing, addresses: Sequence[str]) -> list[str]:
    """Open every page; whatever of hostile text came to life on it."""
    page, found = await browser.open("/healthz"), list[str]()
    for address in addresses:
        await page.goto(browser.web.base + address)
        await expect(page.get_by_role("heading", level=1).first).to_be_attached()
        found += await look(page)
    return found


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


async def test_nothing_hostile_runs_or_loads_or_leaves_from_any_page(
    tmp_path: Path, model: ModelServer, chromium: str
) -> None:
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
            Text("hello"),
            Text(text),
            Calls((Use(name), Use("recall", {"title": name}), Use("recall", text))),
            Text(f"# {name}\n\n{text}"),
            Fail(400, {"error": {"message": name + text}}),
        )
        async with (
            furnished(tmp_path, model, pages, report=text) as home,
            browsing(home.web, chromium, provoked=["status of 4"]) as browser,
        ):
            for said in (text, "use your tools", "/unknown " + name, "go on"):
                await home.say(said)
            found = await walk(browser, addresses(home, name))
            assert not found, "\n".join(found)


async def test_nothing_hostile_lives_in_an_answer_that_grows_or_in_a_preview(
    tmp_path: Path, model: ModelServer, chromium: str
) -> None:
    """V-027: where HTML enters a page by script: the draft, the message, the preview, the difference."""
    async with overhearing() as there:
        text, name = hostile_text(there.url), hostile_name(there.url)
        model.script(Text("hello"), Calls((Use(name),)), Drip(f"{text}\n\nthe end", None, 0.005))
        async with (
            furnished(tmp_path, model, PAGES | {f"semantic/{name}.md": text}) as home,
            browsing(home.web, chromium, provoked=["status of 4"]) as browser,
        ):
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
