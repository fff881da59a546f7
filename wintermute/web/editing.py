"""Pages in an editor: preview, save against what was opened, and the way back (V-022, V-032)."""

import asyncio
from datetime import date
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.undo import FORGETTING
from wintermute.errors import PageRefused, StoreChanged, WintermuteError
from wintermute.night.nights import follow_undo
from wintermute.stores import Stores
from wintermute.web.views import ApiProblem, Viewing, Views, address, problems, told
from wintermute.web.wiki import differences, in_store, page_html
from wintermute.wiki.editing import PageSource, page_source
from wintermute.wiki.links import ENDING, name_of
from wintermute.wiki.page_jobs import state_of
from wintermute.wiki.store import WikiStore

router = APIRouter()

AGAIN = "Correct it, then save again. Your text is still in the editor."
LATER = "Solve that, then save again. Your text is still in the editor."
CHANGED = (
    "Somebody else saved this page while you edited it.",
    "Take what you want from their text below. If you save again, your text replaces it.",
)
REMOVED = (
    "Somebody removed this page while you edited it.",
    "Save again to create it anew, or leave it removed.",
)
UNDONE = "Open the page to see what it says now."

Path = Annotated[str, Field(min_length=1, max_length=4_000)]
Text = Annotated[str, Field(max_length=1_000_000)]


class TypedPage(BaseModel):
    """A page as it was typed."""

    path: Path
    text: Text


class PageToSave(TypedPage):
    """A page to save. `before`: the version that was opened; "": there was none."""

    before: Annotated[str, Field(max_length=64)]


class ShownPreview(BaseModel):
    """A page as it would be shown. `problem`: why it cannot be saved like this; "": it can."""

    html: str
    problem: str


class SavedPage(BaseModel):
    """A page as it is now. `change`: its change set; "": nothing was changed."""

    path: str
    text: str
    version: str
    change: str


class EditConflict(ApiProblem):
    """Somebody saved meanwhile: their text, and how it differs. `theirs` None: they removed it."""

    theirs: str | None
    version: str
    difference: str


class SetToUndo(BaseModel):
    """A change set, by its id."""

    change: Annotated[str, Field(min_length=1, max_length=100)]


class UndonePages(BaseModel):
    """The pages that are as before. `kept`: those that were changed again since, and stay."""

    back: list[str]
    kept: list[str]


@router.get("/edit/{title:path}", include_in_schema=False)
async def edit_page(views: Viewing, title: str) -> Response:
    """Show a page in the editor, or an empty one for a page that does not exist yet."""

    def look(wiki: WikiStore) -> PageSource:
        return page_source(wiki, _meant(wiki, title))

    values: dict[str, Any] = {"place": "edit", "source": None, "problem": ""}
    try:
        source = await in_store(views, look)
    except PageRefused as problem:
        values |= {"title": "This page cannot be edited", "problem": str(problem)}
        return views.page("edit.html", 400, **values)
    if (there := address(source.path, "/edit/")) != address(title, "/edit/"):
        return RedirectResponse(there, 303)
    verb = "New page" if source.text is None else "Edit"
    values |= {"title": f"{verb}: {name_of(source.path)}", "source": source}
    return views.page("edit.html", **values)


def _meant(wiki: WikiStore, title: str) -> str:
    """Give the path of the page that a title means, or that a new one of this title gets."""
    found = wiki.resolve(title)
    if isinstance(found, str):
        return found
    if found.reason != "missing":
        raise PageRefused(f"{found}. Choose the address of one page, such as semantic/Garden.")
    return f"{title if '/' in title else f'semantic/{title}'}{ENDING}"


@router.post("/api/wiki/preview", responses=problems(400, 403, 413, 422, 503))
async def preview(views: Viewing, typed: TypedPage) -> ShownPreview:
    """Render a page as it would be shown, and say if it could be saved."""
    today = _today(views)

    def look(wiki: WikiStore) -> ShownPreview:
        problem = ""
        try:
            page_source(wiki, typed.path).edited(typed.text, today)
        except PageRefused as refused:
            problem = str(refused)
        return ShownPreview(html=page_html(wiki, typed.path, typed.text), problem=problem)

    return await in_store(views, look)


@router.post(
    "/api/wiki/save",
    response_model=SavedPage,
    responses={**problems(400, 403, 413, 422, 503), 409: {"model": EditConflict}},
)
async def save(views: Viewing, wanted: PageToSave) -> SavedPage | JSONResponse:
    """Save a page in the place of what was opened, as one change set; else say why not."""
    try:
        return await _saved(views, wanted)
    except PageRefused as problem:
        return told(400, str(problem), AGAIN)
    except WintermuteError as problem:
        return told(503, f"The page was not saved: {problem}.", LATER)


async def _saved(views: Views, wanted: PageToSave) -> SavedPage | JSONResponse:
    stores, look = views.parts.stores, partial(page_source, path=wanted.path)
    source = await in_store(views, look)
    if source.version == wanted.before:
        text, done = await asyncio.to_thread(source.edited, wanted.text, _today(views)), ""
        try:
            if text != source.text:
                change = Change("page", source.path, state_of(source.text), state_of(text))
                done = await put_page(stores, change, Reason("edit", stores.owner.scope))
        except StoreChanged:
            source = await in_store(views, look)
        else:
            now = PageSource(source.path, text)
            return SavedPage(path=now.path, text=text, version=now.version, change=done)
    theirs = (source.text or "").replace("\r\n", "\n")
    rows = await asyncio.to_thread(differences, theirs, wanted.text)
    shown = views.fragment("differences.html", rows=rows)
    more = {"theirs": source.text and theirs, "version": source.version, "difference": shown}
    return told(409, *(REMOVED if source.text is None else CHANGED), **more)


async def put_page(stores: Stores, change: Change, why: Reason) -> str:
    """Record a change of a page, then make it; the id of its change set.

    Raises: StoreChanged, StoreUnusable, StorageBlocked; then the page is as it was.
    """
    pages, changes = stores.undo.files["page"], stores.changes
    async with pages.prepared([change]) as place:
        async with stores.database.transaction() as tx:
            set_id = await changes.record(tx, why, [change])
        try:
            await place()
        except WintermuteError:
            if await pages.state(change.item) != change.after:
                async with stores.database.transaction() as tx:
                    await changes.withdraw(tx, set_id)
            raise
    return set_id


@router.post(
    "/api/wiki/undo", response_model=UndonePages, responses=problems(400, 403, 404, 409, 422, 503)
)
async def undo(views: Viewing, wanted: SetToUndo) -> UndonePages | JSONResponse:
    """Take a change of pages back, as far as nobody changed them since."""
    stores = views.parts.stores
    found = await stores.changes.get(wanted.change)
    if (
        found is None
        or found.scope != stores.owner.scope
        or {c.kind for c in found.changes} != {"page"}
    ):
        return told(404, "This change of pages is unknown.", "Changes are kept for 30 days.")
    async with stores.database.transaction() as tx:
        if await stores.jobs.is_forgetting(tx):
            return told(409, f"{FORGETTING.capitalize()}.", "Wait a minute, then try again.")
    try:
        undone = await stores.undo.run(found)
    except StoreChanged as problem:
        return told(409, f"The change was not undone: {problem}.", "Try again.")
    async with stores.database.transaction() as tx:
        await follow_undo(tx, undone)
    back, kept = [each.item for each in undone.back], [each.item for each in undone.kept]
    if not back:
        error = "The page was changed since." if kept else "This change is undone already."
        return told(409, f"Nothing was undone. {error}", UNDONE)
    return UndonePages(back=back, kept=kept)


def _today(views: Views) -> date:
    return views.parts.clock.now().astimezone(views.parts.stores.tasks.zone).date()
