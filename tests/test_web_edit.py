"""Pages edited in the browser: previewed, saved against what was opened, taken back."""

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import expect

from tests.world.browser import browsing
from tests.world.clock import FakeClock
from tests.world.shelf import GARDEN, INDEX, PAGES, ROSES, Json, Shelf
from tests.world.web import FIELD, NewDoor, Served, web_served
from tests.world.web import door as door
from wintermute.changes.decisions import text_proposal
from wintermute.wiki.page_jobs import written_lines

NEW = "semantic/New.md"


@dataclass(frozen=True)
class Desk:
    """Somebody who edits pages of a store, by HTTP."""

    web: Served
    shelf: Shelf

    async def opened(self, path: str) -> tuple[str, str]:
        """The version of a page in the editor, and its text."""
        page = await self.web.get(f"/edit/{path.removesuffix('.md')}")
        assert page.status_code == 200, page.text
        found = FIELD.search(page.text)
        assert found is not None
        return found[1], unescape(found[2])

    async def post(self, what: str, **body: Any) -> httpx2.Response:
        return await self.web.post(f"/api/wiki/{what}", body)

    async def save(self, path: str, text: str, before: str | None = None) -> tuple[int, Json]:
        """Save over a version, or over what is there now; the status, and what was said."""
        over = (await self.opened(path))[0] if before is None else before
        answer = await self.post("save", path=path, text=text, before=over)
        found: Json = answer.json()
        return answer.status_code, found

    async def sets(self) -> list[tuple[str, str]]:
        """The change sets of pages, the newest first: cause and page."""
        found = await self.web.house.stores.changes.history(("page",))
        return [(one.cause, change.item) for one in found for change in one.changes]


async def editing(door: NewDoor) -> Desk:
    """The door of a house with a few pages."""
    web = await door(clock=FakeClock())
    return Desk(web, Shelf.make(web.house.stores.wiki.root))


async def test_a_save_is_a_change_set_that_can_be_undone(door: NewDoor) -> None:
    """V-022, W-050: by the button, or by `/undo SET` in a chat; a store alone has no record to undo."""
    desk = await editing(door)
    before, text = await desk.opened(GARDEN)
    assert text == PAGES[GARDEN]
    shown = await desk.post("preview", path=GARDEN, text=f"{text}\n[[Nowhere]] <b>&</b>\n")
    assert 'class="missing"' in shown.json()["html"]
    assert "&lt;b&gt;" in shown.json()["html"]
    assert (shown.json()["problem"], desk.shelf.read(GARDEN)) == ("", text)
    status, saved = await desk.save(GARDEN, text.replace("Anna", "Ben"), before)
    today = desk.web.house.clock.now().date()
    wanted = text.replace("Anna", "Ben").replace("updated: 2026-05-01", f"updated: {today}")
    assert (status, saved["text"], desk.shelf.read(GARDEN)) == (200, wanted, wanted)
    assert saved["version"] == (await desk.opened(GARDEN))[0]
    assert await desk.sets() == [("edit", GARDEN)]
    assert (await desk.save(GARDEN, wanted))[1]["change"] == ""
    undone = await desk.post("undo", change=saved["change"])
    assert (undone.status_code, undone.json()) == (200, {"back": [GARDEN], "kept": []})
    assert desk.shelf.read(GARDEN) == text
    again = await desk.post("undo", change=saved["change"])
    assert (again.status_code, "Nothing was undone" in again.json()["error"]) == (409, True)
    assert (await desk.post("undo", change="set_x")).status_code == 409
    _, saved = await desk.save(GARDEN, text.replace("Anna", "Cleo"))
    await desk.web.house.incoming(f"/undo {saved['change']}")
    await desk.web.house.said(1)
    assert desk.shelf.read(GARDEN) == text
    house, (_, saved) = desk.web.house, await desk.save(GARDEN, text.replace("Anna", "Dora"))
    recorded = await desk.sets()
    async with house.database.transaction() as tx:
        wish = text_proposal("page", ROSES, "Less.", "why")
        await house.stores.decisions.propose(tx, house.stores.owner.scope, wish)
    async with web_served(house, is_store=True) as store:
        alone = Desk(store, desk.shelf)
        assert (await alone.save(ROSES, "Roses anew."))[1]["change"] == ""
        assert "Roses anew." in desk.shelf.read(ROSES)
        assert await alone.sets() == recorded
        desk.shelf.write(GARDEN, saved["text"])
        assert (await alone.post("undo", change=saved["change"])).status_code == 409
        assert desk.shelf.read(GARDEN) == saved["text"]
        assert "No proposal waits" in (await store.get("/proposals")).text


async def test_of_two_who_save_the_second_is_shown_what_the_first_saved(door: NewDoor) -> None:
    """V-022: also of two in one moment, or when the page was removed or made meanwhile."""
    desk = await editing(door)
    before, text = await desk.opened(GARDEN)
    theirs, mine = text.replace("Anna", "Ben"), text.replace("Anna", "Cleo")
    desk.shelf.write(GARDEN, theirs)
    status, said = await desk.save(GARDEN, mine, before)
    assert (status, said["theirs"], said["version"] == before) == (409, theirs, False)
    assert "Ben waters it" in said["difference"]
    assert "Cleo waters it" in said["difference"]
    assert (desk.shelf.read(GARDEN), await desk.sets()) == (theirs, [])
    assert (await desk.save(GARDEN, mine, said["version"]))[0] == 200
    before, _ = await desk.opened(GARDEN)
    texts = [f"{mine}\nNumber {n}\n" for n in range(5)]
    done = await asyncio.gather(*(desk.save(GARDEN, each, before) for each in texts))
    assert sorted(status for status, _ in done) == [200, 409, 409, 409, 409]
    [won] = [said["text"] for status, said in done if status == 200]
    assert {said["theirs"] for status, said in done if status == 409} == {won}
    assert (desk.shelf.read(GARDEN), len(await desk.sets())) == (won, 2)
    before, _ = await desk.opened(ROSES)
    (desk.shelf.root / ROSES).unlink()
    status, said = await desk.save(ROSES, "Roses anew.", before)
    assert (status, said["theirs"], said["version"]) == (409, None, "")
    assert (await desk.save(ROSES, "Roses anew.", said["version"]))[0] == 200
    status, said = await desk.save(ROSES, "New as well.", "")
    assert (status, "Roses anew." in said["theirs"]) == (409, True)


async def test_a_page_that_breaks_a_rule_is_refused_and_says_which(door: NewDoor) -> None:
    """V-022, W-079: nothing is written, nothing recorded."""
    garden = PAGES[GARDEN]
    refused = [
        (GARDEN, garden.replace("created: ", "made: "), "unknown key 'made'"),
        (GARDEN, garden.replace("updated: 2026-05-01", "updated: soon"), "updated is no date"),
        (GARDEN, garden.replace("\n---\n", "\n"), "close it"),
        (GARDEN, "---\ncreated: 2026-05-01\nupdated: 2026-05-01\n---\n \n", "would be empty"),
        (GARDEN, "x" * 500_001, "at most 500,000"),
        ("semantic/garden.md", "x", "only in case"),
        ("semantic/Ga\u0308rten.md", "x", "only in case"),
        ("semantic/../meta/x.md", "x", "outside the store"),
        ("meta/system-runtime.md", "x", "neither in semantic/"),
        ("episodic-raw/20260501/a/0001-user.md", "x", "neither in semantic/"),
        ("semantic/a|b.md", "x", "no link can hold"),
        ("semantic/x", "x", "does not end in .md"),
        (f"semantic/{'x' * 300}.md", "x", "no link can hold"),
        ("semantic/Fifo.md", "x", "no plain file"),
        ("semantic/Latin.md", "x", "is not UTF-8"),
        ("semantic/Away.md", "x", "cannot be read"),
    ]
    desk = await editing(door)
    desk.shelf.write("semantic/Gärten.md", garden)
    (desk.shelf.root / "semantic/Latin.md").write_bytes(b"\xe4")
    (desk.shelf.root / "semantic/Away.md").symlink_to("/etc/hostname")
    os.mkfifo(desk.shelf.root / "semantic/Fifo.md")
    for path, text, why in refused:
        before = (await desk.opened(path))[0] if path == GARDEN else ""
        status, said = await desk.save(path, text, before)
        assert (status, why in said["error"]) == (400, True), (path, text[:60], said)
        preview = await desk.post("preview", path=path, text=text)
        assert (preview.status_code, why in preview.json()["problem"]) == (200, True)
    assert desk.shelf.read(GARDEN) == garden
    assert await desk.sets() == []
    for path in ("semantic/garden", "meta/system-runtime", "semantic/Fifo", "..%2Fx", "%00"):
        assert (await desk.web.get(f"/edit/{path}")).status_code == 400, path


async def test_a_new_page_gets_frontmatter_and_an_old_one_keeps_its_own(door: NewDoor) -> None:
    """V-022, V-023, W-064: a missing link leads there; what we wrote and nobody touched stays ours."""
    desk = await editing(door)
    today = desk.web.house.clock.now().date()
    moved = await desk.web.get("/edit/New")
    assert (moved.status_code, moved.headers["location"]) == (303, "/edit/semantic/New")
    assert await desk.opened(NEW) == ("", "")
    assert (await desk.save(NEW, "# New\n\nWords."))[0] == 200
    assert (
        desk.shelf.read(NEW) == f"---\ncreated: {today}\nupdated: {today}\n---\n\n# New\n\nWords.\n"
    )
    desk.shelf.write(ROSES, "\ufeff---\r\ncreated: 2026-05-01\r\n---\r\n\r\n# Roses\r\n")
    _, text = await desk.opened(ROSES)
    assert (await desk.save(ROSES, text.replace("# Roses", "# Red\n\n  roses")))[0] == 200
    assert "# Red\r\n\r\n  roses\r\n" in desk.shelf.read(ROSES)
    assert (await desk.save(GARDEN, "# Garden\n\nOnly this. [[Roses]]"))[0] == 200
    assert f"created: 2026-05-01\nupdated: {today}\n" in desk.shelf.read(GARDEN)
    ours = "# Pond\n\nIt has carp.\n\nIt is deep.\n"
    desk.shelf.write(NEW, ours)
    desk.shelf.write(f"sleep/written/{NEW}", "It has carp.\nIt is deep.\n")
    assert (await desk.save(NEW, ours.replace("It is deep.", "It is very deep.")))[0] == 200
    assert written_lines(desk.shelf.files, NEW) == {"It has carp."}
    assert (await desk.save(INDEX, f"{PAGES[INDEX]}- [[New]]\n"))[0] == 200


async def test_a_full_disk_changes_nothing_and_says_so(
    door: NewDoor, tmp_path: Path, own_disk: Callable[[Path], None]
) -> None:
    """V-022: and it is saved once there is room."""
    own_disk(tmp_path / "wiki")
    desk = await editing(door)
    before, text = await desk.opened(GARDEN)
    filler = desk.shelf.root / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    status, said = await desk.save(GARDEN, f"{text}More.\n", before)
    assert (status, said["what_to_do"][:13]) == (503, "Correct that,")
    assert "cannot be written: No space left" in said["error"]
    assert (desk.shelf.read(GARDEN), await desk.sets()) == (text, [])
    assert [path.name for path in (desk.shelf.root / "sleep").iterdir()] == []
    filler.unlink()
    assert (await desk.save(GARDEN, f"{text}More.\n", before))[0] == 200


@pytest.mark.slow
async def test_two_edit_one_page_and_both_texts_are_kept(door: NewDoor, chromium: str) -> None:
    """V-022: in a browser, by keyboard, over a reload, and with the door away for a moment."""
    desk = await editing(door)
    async with browsing(
        desk.web, chromium, provoked=["409", "ERR_INTERNET_DISCONNECTED"]
    ) as browser:
        page = await browser.open("/edit/semantic/Garden")
        text = page.get_by_label("Text of semantic/Garden.md")
        theirs = PAGES[GARDEN].replace("Anna", "Ben")
        desk.shelf.write(GARDEN, theirs)
        await text.fill(PAGES[GARDEN].replace("Anna", "Cleo"))
        await page.reload()
        await expect(text).to_have_value(re.compile("Cleo waters it"))
        await page.context.set_offline(True)
        await text.press("Control+s")
        await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
        await page.context.set_offline(False)
        await text.press("Control+s")
        await expect(page.get_by_role("alert")).to_contain_text("Somebody else saved this page")
        await expect(page.get_by_label("Their text")).to_have_value(theirs)
        await expect(text).to_have_value(re.compile("Cleo waters it"))
        await page.get_by_role("button", name="Swap the two texts").click()
        await expect(text).to_have_value(theirs)
        await text.fill(theirs.replace("Ben waters", "Ben and Cleo water"))
        await page.get_by_role("button", name="Preview").click()
        await expect(page.get_by_role("region", name="Preview")).to_contain_text("Ben and Cleo")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status")).to_contain_text("Saved.")
        assert "Ben and Cleo water it" in desk.shelf.read(GARDEN)
        await page.get_by_role("button", name="Undo").click()
        await expect(text).to_have_value(theirs)
        assert desk.shelf.read(GARDEN) == theirs
