"""The graph of the wiki: what is chosen, the same as a list, and walking through it by keyboard."""

import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.world.browser import browsing
from tests.world.budget import Budgeted
from tests.world.web import NewDoor
from tests.world.web import door as door
from tests.world.wiki import made, page
from wintermute.web import graph
from wintermute.web.graph import picture
from wintermute.wiki.graph import undirected

STATIC = Path(graph.__file__).parent / "static"
VENDORED = {
    "d3-dispatch.min.js": "5afe071dad74c14cd580f540c9ec85b0755eed78b7f9ed3e9f63b989fc41aa4b",
    "d3-force.min.js": "ed05b52ecfe280d753ebab954e4e1f24097952480a9d277be55b6ba297bf4a9b",
    "d3-quadtree.min.js": "6bd9974b3efdf9c22942a6fb9a5a027ee39f81a6c27b09a3444c9e911796f439",
    "d3-timer.min.js": "f6b80ed73b21d01658db60d1c04adb88adc70f885346ae07d59ed69ba0348849",
    "LICENSE.d3": "",
}
AFTER_A_FRAME = (
    "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
)
LINKS = {"Hub": "ABCD", "A": "B", "B": "ABC", "C": "D", "D": "", "Lone": ""}
"""Pages by their names, and the pages that each links to."""


@pytest.mark.parametrize(
    ("around", "most", "expected"),
    [
        (None, 300, "Hub B C A D Lone"),
        (None, 2, "Hub B"),
        ("D", 300, "D Hub C B A"),
        ("A", 3, "A Hub B"),
        ("Lone", 300, "Lone"),
    ],
)
def test_nearest_or_most_linked_pages_are_shown(
    around: str | None, most: int, expected: str
) -> None:
    """V-024. What is no page is not drawn, nor a link to itself or to what is left out."""
    links = {
        f"semantic/{name}.md": frozenset(
            [*(f"semantic/{target}.md" for target in targets), "episodic-raw/1/m/0001.md"]
        )
        for name, targets in LINKS.items()
    }
    found = picture(links, undirected(links), around and f"semantic/{around}.md", most)
    titles = [node.title for node in found.nodes]
    assert (" ".join(titles), found.all_pages) == (expected, 6)
    assert {(titles[one], titles[other]) for one, other in found.edges} == {
        (one, other) for one in titles for other in LINKS[one] if other in titles and other != one
    }


def test_a_picture_of_too_many_links_keeps_some_of_each_page() -> None:
    """V-024."""
    everything = {f"semantic/{n}.md" for n in range(400)}
    links = {path: frozenset(everything) for path in everything}
    found = picture(links, undirected(links))
    assert (len(found.nodes), len(found.edges), found.all_edges) == (300, 1_500, 300 * 299)
    assert {one for one, _ in found.edges} == set(range(300))


def linking(links: Mapping[str, str]) -> dict[str, str | bytes]:
    """Pages that link to one another."""
    texts = {name: " ".join(f"[[{each}]]" for each in targets) for name, targets in links.items()}
    return {f"semantic/{name}.md": page(text) for name, text in texts.items()}


async def test_the_graph_is_a_list_with_links_and_the_same_for_programs(door: NewDoor) -> None:
    """V-024, V-027, V-028, V-031."""
    hostile = "<img src=x onerror=alert(1)> & 100% #1 ?"
    web = await door()
    assert "No pages yet" in (await web.get("/graph")).text
    made(web.house.stores.wiki.root, linking({**LINKS, hostile: "A"}))
    text = (await web.get("/graph", params={"around": "semantic/D"})).text
    assert '<h1 dir="auto">Around D</h1>' in text
    assert '<a href="/wiki/semantic/Hub" dir="auto">Hub</a>' in text
    assert re.search(r'<small>links to <a href="#n\d" dir="auto">D</a></small>', text)
    assert "<img" not in text
    assert (
        "/wiki/semantic/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%20%26%20100%25%20%231" in text
    )
    found = (await web.get("/api/graph", params={"around": "semantic/D.md"})).json()
    assert [node["title"] for node in found["nodes"]][:3] == ["D", "Hub", "C"]
    assert found["nodes"][0]["href"] == "/wiki/semantic/D"
    for around in ("semantic/Gone", "../../etc/passwd", "episodic-raw/1", "x" * 1_000):
        answer = await web.get("/api/graph", params={"around": around})
        assert (answer.status_code, set(answer.json())) == (404, {"error", "what_to_do"})
        shown = await web.get("/graph", params={"around": around})
        assert (shown.status_code, "There is no page at" in shown.text) == (404, True)


def test_the_files_of_others_are_unchanged_and_named_with_their_licence(budget: Budgeted) -> None:
    """V-024, V-028. First load: the page's own files and those of others, below 90 kB."""
    notice = (Path(__file__).parents[1] / "NOTICE").read_text("utf-8")
    for name, digest in VENDORED.items():
        content = (STATIC / "vendor" / name).read_bytes()
        if digest:
            assert hashlib.sha256(content).hexdigest() == digest
            version = re.search(rb"/(d3-\w+)/ v([\d.]+)", content)
            assert version
            assert b" ".join(version.groups()).decode() in notice
    assert {file.name for file in (STATIC / "vendor").iterdir()} == set(VENDORED)
    here = ["git", "-C", str(STATIC), "check-ignore", "-q", "vendor/d3-force.min.js", "graph.js"]
    assert subprocess.run(here, check=False).returncode != 0  # else the wheel would lack them
    own = ["graph.js", "page.js", "style.css", "icon.svg"]
    loaded = sum((STATIC / name).stat().st_size for name in own)
    loaded += sum((STATIC / "vendor" / name).stat().st_size for name in VENDORED)
    used = {"all": loaded, "style.css": (STATIC / "style.css").stat().st_size}
    most = {"all": 60_000, "style.css": 15_000}
    budget("bytes of the first page", used, most, "Delete what no page uses: people wait for it.")


async def is_still(opened: Page) -> None:
    await expect(opened.locator("canvas[data-state=still]")).to_be_visible()


@pytest.mark.slow
async def test_the_graph_is_walked_through_by_keyboard(door: NewDoor, chromium: str) -> None:
    """V-024, V-026."""
    web = await door()
    async with browsing(web, chromium, provoked=["404"]) as browser:
        pages = linking({"Hub": "AB", "A": "", "B": "", "Lone": ""})
        made(web.house.stores.wiki.root, pages)
        opened = await browser.open("/graph", reduced_motion="reduce")
        await is_still(opened)
        picked = opened.locator(".picked")
        await opened.locator("canvas").focus()
        await opened.keyboard.press("ArrowDown")
        await expect(picked).to_contain_text("Hub · linked pages: 2")
        reached = set()
        for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"):
            await opened.keyboard.press("Home")
            await opened.keyboard.press(key)
            reached.add((await picked.inner_text()).split()[0])
        assert reached >= {"A", "B"}
        await opened.keyboard.press("Home")
        await opened.keyboard.press("PageUp")
        await expect(picked).to_contain_text("Lone")
        await opened.keyboard.press("Escape")
        await expect(picked).to_be_hidden()
        await opened.keyboard.press("End")
        await opened.keyboard.press("Home")
        await opened.keyboard.press("Enter")
        await opened.wait_for_url("**/wiki/semantic/Hub")


@pytest.mark.slow
async def test_three_hundred_pages_are_drawn_and_moved(door: NewDoor, chromium: str) -> None:
    """V-024, V-026: where motion is unwanted, there is one picture, of the pages at rest."""
    many = {f"P{n}": page(f"[[P{n // 3}]] [[P{n * 7 % 400}]]") for n in range(400)}
    drawn = "performance.getEntriesByName('graph-drawn').length"
    picture_now = "document.querySelector('canvas').toDataURL()"
    web = await door()
    async with browsing(web, chromium) as browser:
        files = {f"semantic/{name}.md": text for name, text in many.items()}
        made(web.house.stores.wiki.root, files | {"semantic/Lone.md": page("")})
        opened = await browser.open("/graph", reduced_motion="reduce")
        await is_still(opened)
        assert await opened.locator(".nodes > li").count() == 300
        assert await opened.evaluate(drawn) == 1
        opened = await browser.open("/graph")
        await is_still(opened)
        assert await opened.evaluate(drawn) > 5
        before = await opened.evaluate(picture_now)
        await opened.locator("canvas").hover()
        await opened.mouse.wheel(0, -200)
        zoomed = await opened.evaluate(f"async () => {{ {AFTER_A_FRAME} return {picture_now} }}")
        await opened.get_by_role("button", name="Show all").click()
        shown = await opened.evaluate(f"async () => {{ {AFTER_A_FRAME} return {picture_now} }}")
        assert (zoomed != before, shown == before) == (True, True)
        touched = await browser.open("/graph?around=semantic/Lone", has_touch=True, width=360)
        await is_still(touched)
        await touched.locator("canvas").tap()
        await expect(touched.locator(".picked")).to_contain_text("Lone")
        await touched.locator("canvas").tap(position={"x": 30, "y": 30})
        await expect(touched.locator(".picked")).to_be_hidden()
        middle = await touched.locator("canvas").bounding_box()
        assert middle
        x, y = middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2
        await touched.mouse.move(x + 40, y)
        await touched.mouse.down()
        await touched.mouse.move(x + 90, y, steps=3)
        await touched.mouse.up()
        await touched.mouse.click(x + 50, y)
        await expect(touched.locator(".picked")).to_contain_text("Lone")
