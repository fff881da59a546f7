"""Reading the wiki in the browser: pages and what links to them, their history, lists, the search."""

import asyncio
import json
import os
import re
import unicodedata
from html import unescape
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from tests.world.browser import accessible, browsing, overflow
from tests.world.web import NewDoor, Served
from tests.world.web import door as door
from tests.world.wiki import made, page, wiki
from wintermute.changes.change_sets import Change, Reason
from wintermute.wiki.withheld_lines import digest, update_withheld

RAW = "episodic-raw/20261101/mail"
FILES = {
    "meta/Index.md": page("# Index\n\n- [[Garden]]\n- [[../../secret]]"),
    "semantic/Garden.md": page(
        "# Garden\n\nBy the [[Pond|old pond]], near [[Shed#Door]], [[Trip]] and `[[Attic]]`.\n\n"
        f"# Roses\n\nAsk Ann.\n\nSource: [[{RAW}/0001-user]]\n\n<img src=x onerror=alert(1)>"
    ),
    "semantic/Pond.md": page("# Fish\n\nThree carp. [[Garden]]"),
    "semantic/Trip.md": page("# Trip\n\nLyon."),
    "episodic/Trip.md": page("# Trip\n\nOslo. [[Garden]]"),
    "episodic/Long.md": page("# Long\n\n" + "## Part\n\nThe [[Pond]]. `code`\n\n" * 900),
    f"{RAW}/0001-user.md": "Roses, says **Mallory**.\n",
    f"{RAW}/0002-assistant.md": "Noted.\n",
    "meta/outside.json": json.dumps([RAW]),
}


async def reading(door: NewDoor, files: dict[str, str | bytes] | None = None) -> Served:
    """A door whose wiki has these files."""
    web = await door()
    made(web.house.stores.wiki.root, {**FILES, **(files or {})})
    return web


async def text(web: Served, path: str, status: int = 200) -> str:
    """A page's own part."""
    answer = await web.get(path)
    assert answer.status_code == status, answer.text
    found = answer.text.partition("<main")[2]
    assert found.count("<h1>") == 1
    return found


async def test_a_page_shows_its_links_and_whose_words_it_has(door: NewDoor) -> None:
    """V-021, V-023, V-027, W-074: by its path, with its links, its days, and what is not to be trusted."""
    web = await reading(door)
    files = web.house.stores.wiki.files
    update_withheld(files, [digest("Ask Ann.")])
    shown = await text(web, "/wiki/semantic/Garden")
    for there in (
        "<h1><bdi>Garden</bdi></h1>",
        'created <time datetime="2026-05-04">',
        '<a href="/wiki/semantic/Pond">old pond</a>',
        '<a href="/wiki/Shed" class="missing" title="No page has this name yet',
        '<a href="/wiki/Trip" class="ambiguous" title="Several pages have this name',
        "<code>[[Attic]]</code>",
        "<h2>Roses</h2>\n<p>Ask Ann.</p>",
        f'<a href="/wiki/{RAW}/0001-user">',
        "&lt;img src=x onerror=alert(1)&gt;",
        "holds text from outside",
        "Models do not see 1 line of this page",
        '<a href="/wiki/semantic/Pond"><bdi>Pond</bdi></a> <small dir="auto">semantic</small>',
        '<a href="/wiki/episodic/Trip">',
        'href="/edit/semantic/Garden"',
    ):
        assert there in shown
    assert "<h2>Fish</h2>" in await text(web, "/wiki/semantic/Pond")
    long = await text(web, "/wiki/episodic/Long")
    part = '<h2>Part</h2>\n<p>The <a href="/wiki/semantic/Pond">Pond</a>. <code>code</code></p>'
    assert long.count(part) == 900
    beside = (await web.get("/wiki/Garden?part=true")).text
    assert "old pond</a>" in beside
    assert "<main" not in beside
    assert "[[../../secret]]" in await text(web, "/wiki/meta/Index")
    choice = await text(web, "/wiki/Trip")
    assert '<a href="/wiki/episodic/Trip">' in choice
    assert '<a href="/wiki/semantic/Trip">' in choice
    missing = await text(web, "/wiki/Gardn", 404)
    assert missing.index('<a href="/wiki/Garden">') < missing.index('"/edit/semantic/Gardn"')
    for path in (RAW, f"{RAW}/0001-user"):
        copied = await text(web, f"/wiki/{path}")
        assert "Others may have said it" in copied
        assert "<strong>Mallory</strong>" in copied
        assert "/edit/" not in copied


async def test_the_history_of_a_page_is_that_of_its_owner(door: NewDoor) -> None:
    """V-021, V-030: newest first, in pages; what is no change of this page is not shown for one."""
    web = await reading(door)
    stores, item = web.house.stores, "semantic/Garden.md"
    sets = []
    for n in range(25):
        change = Change("page", item, {"text": f"<b>\nrose {n}"}, {"text": f"<b>\nrose {n + 1}"})
        why = Reason("consolidation", stores.owner.scope, summary=f"<i>{n}")
        async with stores.database.transaction() as tx:
            sets.append(await stores.changes.record(tx, why, [change]))
    async with stores.database.transaction() as tx:
        theirs = await stores.changes.record(tx, Reason("tool", "room:!x"), [change])
    shown = await text(web, "/wiki/semantic/Garden")
    assert re.findall(r"&lt;i&gt;(\d+)", shown) == [str(n) for n in range(24, 4, -1)]
    more = unescape(re.findall(r'href="(/wiki-history\?[^"]*before[^"]*)"', shown)[0])
    earlier = await text(web, more)
    assert re.findall(r"&lt;i&gt;(\d+)", earlier) == ["4", "3", "2", "1", "0"]
    one = await text(web, f"/wiki-history?path={item}&change={sets[3]}")
    for there in ("rose 3</del>", "rose 4</ins>", ">&lt;b&gt;<", "<time datetime="):
        assert there in one
    assert (await web.get(f"/wiki-history?path={item}&before={2**63}")).status_code == 400
    for other in (f"path={item}&change={theirs}", f"path=semantic/Pond.md&change={sets[3]}"):
        assert "</ins>" not in await text(web, f"/wiki-history?{other}")


REFUSED = (
    ("", 400, "empty title"),
    ("%20", 400, "empty title"),
    ("Nobody", 404, "no page named 'Nobody'"),
    ("gardn", 404, "did you mean 'Garden'?"),
    ("semantic/Nobody", 404, "not found: semantic/Nobody"),
    ("Trip", 409, "ambiguous title 'Trip': episodic/Trip.md, semantic/Trip.md"),
    ("sleep/x", 404, "not found"),
    ("..%2f..%2fsecret", 400, "outside the store"),
    ("%2e%2e/secret", 400, "outside the store"),
    ("%2fetc%2fpasswd", 400, "outside the store"),
    ("x%00y", 400, "characters that are no text"),
    ("%ed%a0%80", 400, "characters that are no text"),
    ("semantic/Pipe", 404, "not found"),
    ("semantic/Link", 400, "outside the store"),
    ("semantic/Bytes", 409, "semantic/Bytes.md is not UTF-8 at byte 2: save it as UTF-8."),
    ("a/" * 1000, 404, "not found"),
    ("<script>", 404, "no page named"),
)


FOUND = (
    ("Garden", "semantic/Garden.md"),
    ("episodic/Trip", "episodic/Trip.md"),
    (f"{RAW}/0001-user.md", f"{RAW}/0001-user.md"),
)


async def test_whoever_asks_for_no_page_is_told_why(door: NewDoor, tmp_path: Path) -> None:
    """W-071, W-018, W-077, V-012: at both addresses for programs, and as a page; never a bug."""
    web = await reading(door, {"semantic/Bytes.md": b"ab\xff"})
    folder = web.house.stores.wiki.root / "semantic"
    os.mkfifo(folder / "Pipe.md")
    (folder / "Link.md").symlink_to(tmp_path / "other.md")
    for title, status, told in REFUSED:
        is_damaged = title == "semantic/Bytes"
        for verb in ("read",) if is_damaged else ("read", "resolve"):
            answer = await web.get(f"/api/memory/{verb}?title={title}")
            assert (answer.status_code, told in answer.json()["error"]) == (status, True), title
            assert answer.json()["what_to_do"]
            assert ("paths" in answer.json()) == (title == "Trip")
        answer = await web.get(f"/wiki/{title}", follow_redirects=True)
        shown = 200 if status == 409 or not title.strip("%20") else status
        assert answer.status_code == shown, title
        assert "<script>" not in answer.text.partition("<main")[2]
        assert not is_damaged or "is not UTF-8 at byte 2" in answer.text
    for title, path in FOUND:
        assert (await web.get(f"/api/memory/resolve?title={title}")).json() == {"path": path}
        read = (await web.get(f"/api/memory/read?title={title}")).json()
        assert read == {"path": path, "text": FILES[path]}


async def test_an_address_finds_a_page_whatever_its_normal_form(door: NewDoor) -> None:
    """W-079, V-021: and leads to the one address that ends with its path."""
    nfd = unicodedata.normalize("NFD", "Käse")
    names = ("100% [sure]?", "a+b&c", "v1.2", "x.md", "日本語", "עברית", "w" * 200)
    files: dict[str, str | bytes] = {f"semantic/{name}.md": page("here") for name in (nfd, *names)}
    web = await reading(door, files)
    listed = unescape(await text(web, "/wiki-pages"))
    addresses = re.findall(r'href="(/wiki/sem[^"]*)"', listed)
    assert len(addresses) == len(files) + 3
    for each in addresses:
        await text(web, each)
    for title in ("Käse", "semantic/Käse", "semantic/Käse.md", nfd):
        answer = await web.get(f"/wiki/{title}", follow_redirects=True)
        assert answer.url.path == f"/wiki/semantic/{nfd}"
        assert "here" in answer.text


async def test_problems_are_listed_as_at_the_command_line(door: NewDoor) -> None:
    """V-023, V-029: each problem once, however many there are."""
    files: dict[str, str | bytes] = {f"semantic/{n:03}.md": page(f"[[No {n}]]") for n in range(230)}
    files |= {"semantic/Long.md": page("word " * 2_000), "episodic/bad.md": "no frontmatter"}
    web = await reading(door, files)
    root = web.house.stores.wiki.root
    found = json.loads(wiki(root, "check", "--json").stdout)
    home = await text(web, "/wiki")
    for kind in {each["kind"] for each in found}:
        here = [each for each in found if each["kind"] == kind]
        assert f"</a>: {len(here)}<br>" in home
        path, notes, pages = f"/wiki-problems?kind={kind}", list[str](), 0
        while path:
            shown = await text(web, path)
            notes += map(unescape, re.findall(r"<small><bdi>(.*)</bdi></small>", shown))
            following = re.findall(r'class="pager"><a href="([^"]*)"', shown)
            path = "/wiki-problems" + unescape(following[0]) if following else ""
            pages += 1
        assert sorted(notes) == sorted(each["note"] for each in here)
        assert pages == -(-len(here) // 100)
    assert 'href="/wiki/No%207"' in await text(web, "/wiki-problems?kind=broken+link")
    linking = await text(web, "/wiki-pages?to=semantic/Garden.md")
    assert re.findall(r"<bdi>(.*)</bdi>", linking) == ["Trip", "Index", "Pond"]
    assert "semantic/229" not in await text(web, "/wiki-pages?after=semantic/229.md")


async def test_search_finds_and_a_missing_wiki_says_how(door: NewDoor, tmp_path: Path) -> None:
    """V-025, V-026, W-005: the best page first; what is not there yet can be written, or made."""
    web = await reading(door)
    root = web.house.stores.wiki.root
    found = [each["path"] for each in json.loads(wiki(root, "search", "roses", "--json").stdout)]
    for path in ("/wiki-search?q=roses", "/wiki-search?q=roses&part=true"):
        shown = (await web.get(path)).text
        addresses = re.findall(r'<li><div><a href="/wiki/([^"]*)"', shown)
        assert [f"{each}.md" for each in addresses] == found
    assert 'value="roses"' in await text(web, "/wiki-search?q=roses")
    nothing = await text(web, "/wiki-search?q=%3Cb%3Ezebra")
    assert 'href="/edit/semantic/%3Cb%3Ezebra"' in nothing
    assert "<b>zebra" not in nothing
    assert "/edit/" not in await text(web, "/wiki-search?q=%5B%5Bx")
    root.rename(tmp_path / "away")
    for path in ("/wiki", "/wiki/Garden", "/wiki-search?q=x", "/wiki-pages", "/wiki-problems"):
        assert "wintermute wiki init --store" in (await web.get(path)).text
    told = await web.get("/api/memory/read?title=Garden")
    assert (told.status_code, set(told.json())) == (404, {"error", "what_to_do"})
    made(root, {"meta/Index.md": page("# Index\n\nNothing yet.")})
    assert "There are no pages yet." in await text(web, "/wiki")


@pytest.mark.slow
async def test_a_phone_is_searched_by_keyboard_alone(door: NewDoor, chromium: str) -> None:
    """V-025, V-026, W-073, W-074: an answer that comes late does not replace a newer one."""
    web = await reading(door)
    async with browsing(web, chromium, ["404"]) as browser:
        profile = await browser.profile(width=360)
        page = await browser.open("/wiki", inside=profile)
        late = asyncio.Event()

        async def held(route: Route) -> None:
            await late.wait()
            await route.continue_()

        await profile.route("**/wiki-search?q=carp&*", held)
        keyboard, hits = page.keyboard, page.locator("#hits")
        await page.get_by_role("searchbox").focus()
        try:
            async with page.expect_request("**/wiki-search?q=carp&*"):
                await keyboard.type("carp")
            for _ in "carp":
                await keyboard.press("Backspace")
            await keyboard.type("roses")
            await expect(hits.get_by_role("link").first).to_have_text("Garden")
            await expect(page.get_by_role("status")).to_have_text("3 pages")
        finally:
            late.set()
        for path in ("/wiki-search?q=roses&part=true", "/wiki-search?q=carp"):
            await browser.open(path, inside=profile)  # by now the late answer would be there
        await expect(hits.get_by_role("link").first).to_have_text("Garden")
        for _ in range(2):
            await keyboard.press("Tab")
        await keyboard.press("Enter")
        await expect(page).to_have_url(f"{web.base}/wiki/semantic/Garden")
        for path in ("/wiki", "/wiki/semantic/Garden", "/wiki/Trip", "/wiki-problems?kind=orphan"):
            await page.goto(web.base + path)
            assert [*await overflow(page), *await accessible(page)] == []
        await page.goto(f"{web.base}/wiki/semantic/Garden")
        missing = page.get_by_role("link", name="Shed")
        await missing.focus()
        await keyboard.press("Enter")
        await expect(page.get_by_role("link", name="Write this page")).to_be_visible()
