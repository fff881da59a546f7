"""Work on pages that waits to be looked at: what jobs did, and questions with yes and no (V-023)."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.proposals import Proposal
from wintermute.errors import StoreChanged
from wintermute.night.agents import REPORT
from wintermute.night.consolidation import DIFF, PROPOSED
from wintermute.night.nights import NightItem, Nights
from wintermute.night.programme import deeds
from wintermute.night.questions import NoSuchNight, Questions
from wintermute.stores import Stores
from wintermute.text import clean
from wintermute.web.editing import put_page
from wintermute.web.views import Viewing, Views, problems, told
from wintermute.web.wiki import MOST_COMPARED, Difference, differences, in_store, page_html
from wintermute.wiki.editing import PageSource
from wintermute.wiki.page_jobs import WikiJob, job_names, read_job, state_of, text_at
from wintermute.wiki.store import WikiStore

router = APIRouter()

MOST_JOBS = 50
MOST_QUESTIONS = 20
ABOUT_PAGES = ("page changed", "page removed", "page lines")
HEAD = re.compile(r"^--- (.*)\n\+\+\+ (.*)\n(?=@@ )", re.MULTILINE)
RELOAD = "Reload this page to see what is still asked."


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """What may become of a page if a person says yes. `version`: of the page, as it was asked about.

    `rows`: what would differ, None where that is too long; `places`: the lines that would go.
    """

    id: str
    path: str
    reason: str
    at: datetime
    version: str
    is_removal: bool = False
    rows: Sequence[Difference] | None = ()
    places: Sequence[str] = ()


class GivenAnswer(BaseModel):
    """A yes or a no. `before`: the version of the page that the question was shown with."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    yes: bool
    before: Annotated[str, Field(max_length=64)] = ""


class AnsweredQuestion(BaseModel):
    """A question that is answered now."""

    id: str


@router.get("/jobs", include_in_schema=False)
async def job_list(views: Viewing, before: str = "") -> HTMLResponse:
    """List what made or changed pages, the newest first; `before`: the last one that was shown."""

    def look(wiki: WikiStore) -> tuple[list[WikiJob], str]:
        names = job_names(wiki.files)
        names = names[names.index(before) + 1 if before in names else 0 :]
        found = [read_job(wiki.files, name) for name in names[:MOST_JOBS]]
        more = names[MOST_JOBS - 1] if len(names) > MOST_JOBS else ""
        return [job for job in found if job], more

    found, more = await in_store(views, look)
    return views.page("jobs.html", title="Jobs", place="wiki", jobs=found, more=more)


@router.get("/jobs/{name}", include_in_schema=False)
async def job_page(views: Viewing, name: str) -> HTMLResponse:
    """Show what a job did, why, and what it changed or wanted to change."""

    def look(wiki: WikiStore) -> dict[str, object]:
        job = read_job(wiki.files, name) if name in job_names(wiki.files) else None
        if job is None:
            return {"job": None}
        report, made, wanted = (
            text_at(wiki.files, f"{job.folder}/{each}") or "" for each in (REPORT, DIFF, PROPOSED)
        )
        html = page_html(wiki, job.file, report)
        return {"job": job, "report": html, "made": _pages(made), "wanted": _pages(wanted)}

    values = await in_store(views, look)
    job = values["job"]
    return views.page("job.html", 200 if job else 404, title=f"Job {name}", place="wiki", **values)


def _pages(patch: str) -> list[tuple[str, list[Difference] | None]]:
    """Read a unified diff: each page with its lines; None where they are too many to be shown."""
    kinds = {"+": "new", "-": "gone", " ": "same", "@": "gap"}
    _, *parts = HEAD.split(clean(patch))
    found: list[tuple[str, list[Difference] | None]] = []
    for old, new, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        path = (old if new == "/dev/null" else new)[2:]
        lines = [each for each in body.split("\n") if each[:1] in kinds and each]
        rows = [Difference(kinds[each[0]], each[1:]) for each in lines]
        found.append((path, rows if len(body) <= MOST_COMPARED else None))
    return found


@router.get("/proposals", include_in_schema=False)
async def question_list(views: Viewing) -> HTMLResponse:
    """Show what may become of pages if a person says yes."""
    items, waiting = await _open(views)
    found = [each for item in items[:MOST_QUESTIONS] if (each := await _of_item(item))]
    for proposal in waiting[: MOST_QUESTIONS - len(found)]:
        found += filter(None, [await _of_proposal(views, proposal)])
    more = len(items) + len(waiting) - MOST_QUESTIONS
    values = {"title": "Proposals", "place": "wiki", "questions": found, "more": more}
    return views.page("proposals.html", **values)


def _questions(views: Views) -> Questions:
    stores = views.parts.stores
    return Questions(stores, Nights(stores.database, views.parts.clock))


async def _open(views: Views) -> tuple[list[NightItem], list[Proposal]]:
    """What nights ask about pages, and what none has asked yet."""
    stores, scope = views.parts.stores, views.parts.stores.owner.scope
    items = [i for i in await _questions(views).open_in(scope) if i.kind in ABOUT_PAGES]
    asked = {item.plan.get("proposal") for item in items}
    waiting = await stores.proposals.open_in(scope, "page")
    return items, [each for each in waiting if each.id not in asked]


async def _of_item(item: NightItem) -> PageQuestion:
    about = next(iter(item.plan.get("files", ())), None)
    if about is None:
        return PageQuestion(item.id, "", item.reason, item.at, "", places=item.before)
    was, text = about["was"], about["text"]
    rows = await asyncio.to_thread(differences, was or "", text or "")
    source = PageSource(about["item"], was)
    return PageQuestion(
        item.id, source.path, item.reason, item.at, source.version, text is None, rows
    )


async def _of_proposal(views: Views, proposal: Proposal) -> PageQuestion | None:
    """None: the page says that already."""
    state = await views.parts.stores.undo.files["page"].state(proposal.item)
    source, text = PageSource(proposal.item, state and state["text"]), proposal.text or None
    if source.text == text:
        return None
    rows = await asyncio.to_thread(differences, source.text or "", text or "")
    values = proposal.item, proposal.reason, proposal.created_at, source.version
    return PageQuestion(proposal.id, *values, text is None, rows)


@router.post(
    "/api/wiki/answer",
    response_model=AnsweredQuestion,
    responses=problems(400, 403, 404, 409, 422, 503),
)
async def answer(views: Viewing, given: GivenAnswer) -> AnsweredQuestion | JSONResponse:
    """Say yes or no to a question about pages, once, wherever it was asked as well."""
    stores = views.parts.stores
    items, waiting = await _open(views)
    name = next((i.id for i in items if i.plan.get("proposal") == given.id), given.id)
    proposal = next((each for each in waiting if each.id == name), None)
    try:
        if proposal is not None:
            await _decide(stores, proposal, given)
            return AnsweredQuestion(id=name)
        ask = _questions(views)
        done = deeds(
            stores, views.parts.config.dreaming, Nights(stores.database, views.parts.clock)
        )
        item = await ask.item(name, stores.owner.scope)
        answered = await ask.follow(item, "yes" if given.yes else "no", done)
    except NoSuchNight as unknown:
        known = str(unknown) if "#" in name else "it was answered already, or is out of date"
        return told(404, f"Nothing was changed: {known}.", RELOAD)
    except StoreChanged as changed:
        return told(409, f"Nothing was changed: {changed}.", RELOAD)
    if answered.problem:
        return told(409, f"This question {answered.problem}.", RELOAD)
    return AnsweredQuestion(id=name)


async def _decide(stores: Stores, proposal: Proposal, given: GivenAnswer) -> None:
    """Answer what no night has asked yet. Raises: StoreChanged; StoreUnusable."""
    pages = stores.undo.files["page"]
    if given.yes:
        before, text = await pages.state(proposal.item), proposal.text or None
        if PageSource(proposal.item, before and before["text"]).version != given.before:
            raise StoreChanged("the page was changed meanwhile")
        change = Change("page", proposal.item, before, state_of(text))
        await put_page(
            stores, change, Reason("command", stores.owner.scope, summary=proposal.reason)
        )
    async with stores.database.transaction() as tx:
        if not await stores.proposals.decide(tx, proposal.id, "taken" if given.yes else "refused"):
            raise StoreChanged("it was answered already")
