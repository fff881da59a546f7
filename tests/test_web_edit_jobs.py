"""Jobs and proposals in the browser: what was done to pages while nobody watched, and a yes or a no."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.world.browser import browsing
from tests.world.consolidated import CARP, POND, Scribe, consolidate_chat
from tests.world.house import PROMPTS
from tests.world.model import ModelServer, Text
from tests.world.shelf import Json, Shelf, page
from tests.world.tidied import Tidied, open_nights
from tests.world.web import Served, web_served
from wintermute.changes.decisions import text_proposal
from wintermute.forgetting.forget_jobs import enqueue_forgetting, run_forgetting
from wintermute.jobs import FORGET
from wintermute.wiki.page_jobs import WikiJob, begin, write_job_files

# After a night there is one tool more.
pytestmark = pytest.mark.breaks("tools", "edited wiki", perhaps=True)
VALUE = re.compile(r'data-value="([^"]*)"')
THEIRS = CARP.replace("12 tulips", "a heron that Anna saw")
WANTED = page("# Pond\n\nBy the [[Garden]], <script>koi</script>.")


@dataclass(frozen=True)
class ProposalDesk:
    """A house whose pages are made at night, and a browser of its owner."""

    night: Tidied
    shelf: Shelf
    web: Served
    pages: Scribe

    async def loses(self, *texts: str) -> None:
        """Answer with a page that lacks what a person wrote."""
        self.pages.step = Text(WANTED)
        await self.night.house.say(*texts)

    async def told(self, path: str) -> str:
        answer = await self.web.get(path)
        assert answer.status_code == 200, answer.text
        assert "<script>koi" not in answer.text
        return answer.text

    async def asked(self) -> list[Json]:
        """Answer a proposal as the buttons of its page do."""
        found = VALUE.findall(await self.told("/proposals"))
        return [json.loads(unescape(each)) for each in found]

    async def post(self, what: str, given: Json) -> tuple[int, Json]:
        answer = await self.web.post(f"/api/wiki/{what}", given)
        found: Json = answer.json() if answer.content else {}
        return answer.status_code, found


@asynccontextmanager
async def answering(folder: Path, model: ModelServer) -> AsyncIterator[ProposalDesk]:
    """Nights over pages, and a door beside them."""
    async with (
        open_nights(folder, model, prompts=PROMPTS) as night,
        night.house.working(),
        web_served(night.house) as web,
    ):
        shelf = Shelf.make(night.house.stores.wiki.root)
        yield ProposalDesk(night, shelf, web, Scribe(model))


async def test_a_job_says_what_it_did_and_is_undone(tmp_path: Path, model: ModelServer) -> None:
    """V-023: report, difference and reason; a list that is paged."""
    async with answering(tmp_path, model) as desk:
        assert "No job has run yet" in await desk.told("/jobs")
        await desk.night.house.say("I planted 12 tulips")
        await desk.night.night("pages")
        [name] = [file.parent.name for file in (desk.shelf.root / "sleep").glob("2*/job.json")]
        assert f'href="/jobs/{name}"' in await desk.told("/jobs")
        told = await desk.told(f"/jobs/{name}")
        for words in ("applied", "semantic/Pond.md", "with 12 tulips", "Added: "):
            assert words in told, words
        [undo] = [json.loads(unescape(each)) for each in VALUE.findall(told)]
        assert (await desk.post("undo", undo))[0] == 200
        assert not (desk.shelf.root / POND).exists()
        later = desk.night.clock.now() + timedelta(days=1)
        for _ in range(50):
            job = begin(desk.shelf.files, WikiJob("", "evil"), later)
        write_job_files(
            desk.shelf.files, job, {"report.md": "# <script>koi</script>", "job.json": "{"}
        )
        first = await desk.told("/jobs")
        [more] = re.findall(r'href="/jobs\?before=([\d-]+)"', first)
        assert (f'/jobs/{name}"' in first, f'/jobs/{more}"' in first) == (False, True)
        assert f'/jobs/{name}"' in await desk.told(f"/jobs?before={more}")
        for gone in (job.name, "20200101-000000", "written", "..%2Fmeta", "%00"):
            answer = await desk.web.get(f"/jobs/{gone}")
            assert answer.status_code in (400, 404), gone


async def test_a_proposal_is_answered_once_anywhere(tmp_path: Path, model: ModelServer) -> None:
    """V-022, V-023, W-064: what a night wrote and a person edited here, the next one only proposes.
    It is answered here or by `/night yes N`, once.
    """
    async with answering(tmp_path, model) as desk:
        house = desk.night.house
        await house.say("I planted 12 tulips")
        await desk.night.night("pages")
        assert "No proposal waits" in await desk.told("/proposals")
        page = await desk.told("/edit/semantic/Pond")
        [before] = re.findall(r'data-before="(\w+)"', page)
        given = {"path": POND, "before": before, "text": THEIRS}
        assert (await desk.post("save", given))[0] == 200
        await desk.loses("the heron is gone")
        await desk.night.night("pages")
        [item] = await desk.night.items("open")
        told = await desk.told("/proposals")
        assert "the line &#34;By the [[Garden]], with a heron that Anna saw" in told
        assert "&lt;script&gt;koi" in told
        yes, no = await desk.asked()
        assert (yes["id"], yes["yes"], no["yes"]) == (item.id, True, False)
        assert (await desk.post("answer", yes))[0] == 204
        assert "koi" in desk.shelf.read(POND)
        for again in (yes, no):
            status, said = await desk.post("answer", again)
            assert (status, "answered already" in said["error"]) == (409, True)
        await house.incoming(f"/night yes {item.id}")
        assert "was done already" in (await house.said(3))[-1]


async def test_a_proposal_before_its_night_is_answered(tmp_path: Path, model: ModelServer) -> None:
    """V-023: a page that changed since it was shown is not overwritten. M-030."""
    async with answering(tmp_path, model) as desk:
        house = desk.night.house
        desk.shelf.write(POND, THEIRS)
        await desk.loses("the heron was never there")
        job = await consolidate_chat(house)
        assert job is not None
        assert job.proposed == (POND,)
        assert "Proposed changes" in await desk.told(f"/jobs/{job.name}")
        yes, no = await desk.asked()
        desk.shelf.write(POND, f"{THEIRS}More.\n")
        status, said = await desk.post("answer", yes)
        assert (status, "changed meanwhile" in said["error"]) == (409, True)
        assert "More." in desk.shelf.read(POND)
        yes, no = await desk.asked()
        assert (await desk.post("answer", yes))[0] == 204
        [newest] = await house.stores.changes.history(("page",), limit=1)
        assert (newest.cause, "koi" in desk.shelf.read(POND)) == ("command", True)
        assert (await desk.post("answer", no))[0] == 409
        assert (await desk.post("undo", {"change": newest.id}))[0] == 200
        assert desk.shelf.read(POND) == f"{THEIRS}More.\n"
        assert await desk.asked() == []
        heron = "with a heron that Anna saw"  # quoted as what would go, and a reason is on record
        assert heron in newest.summary
        async with house.database.transaction() as tx:
            scope = house.stores.owner.scope
            await enqueue_forgetting(house.stores, tx, ["$heron"], [heron], scope=scope)
            [owed] = await house.stores.jobs.begin(tx, FORGET, 1)
        await run_forgetting(house.stores, None, house.checked, owed)
        assert heron not in str(await house.rows("SELECT summary FROM change_sets"))


async def test_many_differences_and_two_answers_at_once(tmp_path: Path, model: ModelServer) -> None:
    """V-023, V-029: of a job and of proposals; a page is not changed against a no that counts."""
    async with answering(tmp_path, model) as desk:
        stores, paths = desk.night.house.stores, [f"semantic/{name}.md" for name in "ABC"]
        lines = [f"line {n}" for n in range(600)]
        async with stores.database.transaction() as tx:
            for path in paths:
                text, scope = page("\n".join(lines)), stores.owner.scope
                wish = text_proposal("page", path, text, "It is tidier.")
                await stores.decisions.propose(tx, scope, wish)
        added = "\n+".join(["@@ -0,0 +1,600 @@", *lines])
        patch = "".join(f"--- /dev/null\n+++ b/{path}\n{added}\n" for path in paths)
        job = begin(desk.shelf.files, WikiJob("", "reason"), desk.night.clock.now())
        write_job_files(desk.shelf.files, job, {"diff.patch": patch})
        for address in ("/proposals", f"/jobs/{job.name}"):
            shown, link = list[str](), address
            while link:
                told = await desk.told(unescape(link))
                shown += re.findall(r'href="/wiki/semantic/(\w)"', told)
                link = "".join(re.findall(rf'href="({address}\?after=[^"]+)"', told))
                assert told.count("line 599") == 1
            assert shown == ["A", "B", "C"]
        yes, no = await desk.asked()
        said = await asyncio.gather(desk.post("answer", yes), desk.post("answer", no))
        assert sorted(status for status, _ in said) == [204, 409]
        assert (desk.shelf.root / paths[0]).exists() is (said[0][0] == 204)


@pytest.mark.slow
async def test_a_no_is_said_by_a_button(tmp_path: Path, model: ModelServer, chromium: str) -> None:
    """V-023: the page stays, and nobody asks again."""
    async with answering(tmp_path, model) as desk, browsing(desk.web, chromium) as browser:
        desk.shelf.write(POND, THEIRS)
        await desk.loses("the heron is gone")
        await desk.night.night("pages")
        shown = await browser.open("/proposals")
        await shown.get_by_role("button", name="No").click()
        await expect(shown.get_by_role("status")).to_contain_text("all stays as it is")
        await expect(shown.get_by_role("button", name="Yes")).to_be_disabled()
        assert desk.shelf.read(POND) == THEIRS
        assert len(await desk.night.items("refused")) == 1
        await shown.reload()
        await expect(shown.get_by_text("No proposal waits for an answer.")).to_be_visible()
