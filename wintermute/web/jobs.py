"""Jobs on pages: what they did, and their questions with yes and no (V-023)."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Body
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.decisions import PAGE_LINES, Decision
from wintermute.changes.texts import state_of, text_in
from wintermute.errors import StoreChanged
from wintermute.night.phases import night_executors
from wintermute.night.questions import Questions
from wintermute.pages.agents import REPORT
from wintermute.pages.consolidation import DIFF, PROPOSED
from wintermute.text import clean
from wintermute.web.editing import put_page
from wintermute.web.views import Viewing, Views
from wintermute.web.wiki import MOST_COMPARED, Difference, differences, in_store, page_html
from wintermute.wiki.editing import PageSource
from wintermute.wiki.page_jobs import NAME, WikiJob, job_names, read_job, text_at
from wintermute.wiki.store import WikiStore

router = APIRouter()
T = TypeVar("T")

MOST_JOBS = 50
MOST_QUESTIONS = 20
MOST_ROWS = 1_000
"""Lines of several comparisons on one page: so many are rendered within 30 ms."""
HEAD = re.compile(r"^--- (.*)\n\+\+\+ (.*)\n(?=@@ )", re.MULTILINE)
LineKind = Literal["new", "gone", "same", "gap"]
DifferenceRows = Sequence[Difference] | None
MARKS: dict[str, LineKind] = {"+": "new", "-": "gone", " ": "same", "@": "gap"}
RELOAD = "reload the page to see what is still asked"


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """A change of a `page` to a `text` that a person may allow; None: the page is deleted.

    `places`: the lines that would be deleted instead. `wanted`: the decision that asks.
    """

    id: str
    reason: str
    at: datetime
    page: PageSource
    text: str | None
    wanted: Decision
    places: Sequence[str] = ()


def behind(key: str, keys: Sequence[str]) -> int:
    """Return the position after a key; the first one if the key is gone."""
    return keys.index(key) + 1 if key in keys else 0


@router.get("/jobs", include_in_schema=False)
async def job_list(views: Viewing, before: str = "") -> HTMLResponse:
    """List what made or changed pages, the newest first; `before`: the last one that was shown."""

    def read(wiki: WikiStore) -> tuple[list[WikiJob], str]:
        names = job_names(wiki.files)
        names = names[behind(before, names) :]
        found = filter(None, (read_job(wiki.files, name) for name in names[:MOST_JOBS]))
        return list(found), names[MOST_JOBS - 1] if len(names) > MOST_JOBS else ""

    found, more = await in_store(views, read)
    return views.page("jobs.html", title="Jobs", place="wiki", jobs=found, more=more)


@router.get("/jobs/{name}", include_in_schema=False)
async def job_page(views: Viewing, name: str, after: str = "") -> HTMLResponse:
    """Show what a job did, why, and what it changed or wanted to change; `after`: from behind there."""

    def read(wiki: WikiStore) -> dict[str, Any]:
        job = read_job(wiki.files, name) if NAME.fullmatch(name) else None
        if job is None:
            raise HTTPException(404)
        files = (f"{job.folder}/{each}" for each in (REPORT, DIFF, PROPOSED))
        report, made, wanted = (text_at(wiki.files, each) or "" for each in files)
        html = page_html(wiki, job.file, report.partition("\n")[2])  # without the title
        parts = (("Changes", made), ("Proposed changes", wanted))
        pages = [
            (f"{kind} {path}", (kind, path), rows)
            for kind, patch in parts
            for path, rows in patched(patch)
        ]
        shown, more = fitting(pages[behind(after, [key for key, _, _ in pages]) :])
        return {"job": job, "report": html, "pages": shown, "more": more}

    values = await in_store(views, read)
    page = partial(views.page, "job.html", title=f"Job {name}", place="wiki", **values)
    return await asyncio.to_thread(page)


def fitting(
    found: Iterable[tuple[str, T, DifferenceRows]],
) -> tuple[list[tuple[str, T, DifferenceRows]], str]:
    """Return the comparisons that fit on one page: whole ones, at least one.

    With the key of the last one, if there are more.
    """
    shown: list[tuple[str, T, DifferenceRows]] = []
    left = MOST_ROWS
    for key, what, rows in found:
        if shown and (len(rows or ()) > left or len(shown) == MOST_QUESTIONS):
            return shown, shown[-1][0]
        shown.append((key, what, rows))
        left -= len(rows or ())
    return shown, ""


def patched(patch: str) -> list[tuple[str, DifferenceRows]]:
    """Read a unified diff: each page with its lines; None where they are too many to be shown."""
    _, *parts = HEAD.split(clean(patch))
    found: list[tuple[str, DifferenceRows]] = []
    for old, new, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        lines = (line for line in body.split("\n") if line and line[0] in MARKS)
        rows = [Difference(MARKS[line[0]], line[1:] * (line[0] != "@")) for line in lines]
        path = (old if new == "/dev/null" else new)[2:]
        found.append((path, rows if len(rows) <= MOST_COMPARED else None))
    return found


@router.get("/proposals", include_in_schema=False)
async def question_list(views: Viewing, after: str = "") -> HTMLResponse:
    """Show what may become of pages if a person says yes; `after`: from behind this question on."""
    found = await _open_questions(views)
    found = found[behind(after, [each.id for each in found]) :]

    def render() -> HTMLResponse:
        shown, more = fitting(
            (q.id, q, differences(q.page.text or "", q.text or "")) for q in found
        )
        values = {"questions": shown, "more": more}
        return views.page("proposals.html", 200, title="Proposals", place="wiki", **values)

    return await asyncio.to_thread(render)


async def _open_questions(views: Views) -> list[PageQuestion]:
    """List the nights' questions about pages, and those not asked yet; for a store alone there are none."""
    stores, scope = views.parts.stores, views.parts.stores.owner.scope
    found: list[PageQuestion] = []
    if views.parts.rooms is None:
        return found
    asked = await Questions(stores).open_in(scope)
    for item in (*asked, *await stores.decisions.waiting(scope, "page")):
        known, of = (item.id, item.reason, item.at), item.file
        if of is None and item.kind == PAGE_LINES:
            found.append(PageQuestion(*known, PageSource("", None), None, item, item.before))
        elif of is not None and of["kind"] == "page":
            state = await stores.placing.files["page"].state(of["item"])
            now = of["was"] if item.night else text_in(state)
            if item.night or now != of["text"]:
                found.append(PageQuestion(*known, PageSource(of["item"], now), of["text"], item))
    return [*{each.wanted.seq: each for each in found}.values()]


@router.post("/api/wiki/answer", status_code=204)
async def answer(
    views: Viewing,
    question: Annotated[str, Body(alias="id", min_length=1, max_length=100)],
    yes: Annotated[bool, Body()],
    before: Annotated[str, Body(max_length=64)] = "",
) -> None:
    """Answer yes or no to a question about pages, once; `before`: the version that it was shown with."""
    waiting = await _open_questions(views)
    asked = (each for each in waiting if question in (each.id, str(each.wanted.seq)))
    found = next(asked, None)
    if found is None:
        raise StoreChanged(f"this was answered already, or is out of date: {RELOAD}")
    if yes and not found.wanted.night:
        return await _change(views, found, before)
    stores = views.parts.stores
    done = night_executors(stores)
    answered = await Questions(stores).apply_answer(found.wanted, "yes" if yes else "no", done)
    if answered.problem:
        raise StoreChanged(f"{answered.problem}: {RELOAD}")
    return None


async def _change(views: Views, found: PageQuestion, before: str) -> None:
    """Carry out a change that no night has asked yet. Raises: StoreChanged; StoreUnusable."""
    stores = views.parts.stores
    if found.page.version != before:
        raise StoreChanged(f"the page was changed meanwhile: {RELOAD}")
    change = Change("page", found.page.path, state_of(found.page.text), state_of(found.text))
    seq = found.wanted.seq
    why = Reason("command", stores.owner.scope, summary=found.reason, decision=seq)
    await put_page(views.parts, change, why, found.wanted)
