"""Pages in an editor: preview, save against what was opened, and the way back (V-022, V-032)."""

import asyncio
from datetime import date
from functools import partial
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.undo import FORGETTING
from wintermute.errors import PageRefused, StoreChanged, StoreUnusable, WintermuteError
from wintermute.messages import Json
from wintermute.night.nights import follow_undo
from wintermute.web.parts import WebParts
from wintermute.web.views import ApiProblem, Viewing, Views, address, told
from wintermute.web.wiki import differences, in_store, page_html
from wintermute.wiki.editing import PageSource, page_source
from wintermute.wiki.links import ENDING, name_of
from wintermute.wiki.page_jobs import state_of
from wintermute.wiki.store import WikiStore

router = APIRouter()

LATER = "Correct that, then save again. Your text is still in the editor."
CHANGED = (
    "Somebody else saved this page while you edited it.",
    "Take what you want from their text below. If you save again, your text replaces it.",
)
REMOVED = (
    "Somebody removed this page while you edited it.",
    "Save again to create it anew, or leave it removed.",
)
ANSWERED = "this was answered already: reload the page to see what is still asked"
UNKNOWN = "this change of pages is unknown: changes are kept for 30 days"
NOT_UNDONE = "nothing was undone, for the page was undone or changed since: open it to read it"


class TypedPage(BaseModel):
    """A page as it was typed."""

    path: Annotated[str, Field(min_length=1, max_length=4_000)]
    text: Annotated[str, Field(max_length=1_000_000)]


class PageToSave(TypedPage):
    """A page to save. `before`: the version that was opened; "": there was none."""

    before: Annotated[str, Field(max_length=64)]


class ShownPreview(BaseModel):
    """A page as it would be shown. `problem`: why it cannot be saved like this; "": it can."""

    html: str
    problem: str


class SavedPage(BaseModel):
    """A page as it is now. `change`: its change set; "": nothing was changed."""

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
    source = await in_store(views, lambda wiki: page_source(wiki, _meant(wiki, title)))
    if (there := address(source.path, "/edit/")) != address(title, "/edit/"):
        return RedirectResponse(there, 303)
    title = f"{'New page' if source.text is None else 'Edit'}: {name_of(source.path)}"
    return views.page("edit.html", title=title, place="edit", source=source)


def _meant(wiki: WikiStore, title: str) -> str:
    """Give the path of the page that a title means, or that a new one of this title gets."""
    found = wiki.resolve(title)
    if isinstance(found, str):
        return found
    if found.reason != "missing":
        raise PageRefused(f"{found}: choose the address of one page, such as semantic/Garden")
    return f"{title if '/' in title else f'semantic/{title}'}{ENDING}"


@router.post("/api/wiki/preview")
async def preview(views: Viewing, typed: TypedPage) -> ShownPreview:
    """Render a page as it would be shown, and say if it could be saved."""

    def look(wiki: WikiStore) -> ShownPreview:
        problem = ""
        try:
            page_source(wiki, typed.path).edited(typed.text, _today(views))
        except PageRefused as refused:
            problem = str(refused)
        return ShownPreview(html=page_html(wiki, typed.path, typed.text), problem=problem)

    return await in_store(views, look)


@router.post("/api/wiki/save", response_model=SavedPage, responses={409: {"model": EditConflict}})
async def save(views: Viewing, wanted: PageToSave) -> SavedPage | JSONResponse:
    """Save a page in the place of what was opened, as one change set; else say why not."""
    try:
        return await _saved(views, wanted)
    except (PageRefused, StoreUnusable) as problem:
        status = 400 if isinstance(problem, PageRefused) else 503
        return told(status, f"The page was not saved: {problem}.", LATER)


async def _saved(views: Views, wanted: PageToSave) -> SavedPage | JSONResponse:
    stores, look = views.parts.stores, partial(page_source, path=wanted.path)
    source = await in_store(views, look)
    if source.version == wanted.before:
        text, done = await asyncio.to_thread(source.edited, wanted.text, _today(views)), ""
        try:
            if text != source.text:
                change = Change("page", source.path, state_of(source.text), state_of(text))
                done = await put_page(views.parts, change, Reason("edit", stores.owner.scope))
            version = PageSource(source.path, text).version
            return SavedPage(text=text, version=version, change=done)
        except StoreChanged:
            source = await in_store(views, look)
    theirs = None if source.text is None else source.text.replace("\r\n", "\n")

    def compared() -> str:
        return views.fragment("differences.html", rows=differences(theirs or "", wanted.text))

    shown = await asyncio.to_thread(compared)
    error, what_to_do = REMOVED if theirs is None else CHANGED
    more: Json = {"theirs": theirs, "version": source.version, "difference": shown}
    return told(409, error, what_to_do, **more)


async def put_page(parts: WebParts, change: Change, why: Reason, proposal: str = "") -> str:
    """Record a change of a page, then make it; the id of its change set, "" in a store alone.

    `proposal`: what it says yes to, in the transaction that records it.

    Raises: StoreChanged, StoreUnusable, StorageBlocked; then the page is as it was.
    """
    stores, set_id = parts.stores, ""
    pages, changes = stores.undo.files["page"], stores.changes
    async with pages.prepared([change]) as place:
        if parts.rooms is not None:
            async with stores.database.transaction() as tx:
                if proposal and not await stores.proposals.decide(tx, proposal, "taken"):
                    raise StoreChanged(ANSWERED)
                set_id = await changes.record(tx, why, [change])
        try:
            await place()
        except WintermuteError:
            if set_id and await pages.state(change.item) != change.after:
                async with stores.database.transaction() as tx:
                    await changes.withdraw(tx, set_id)
                    await stores.proposals.reopen(tx, proposal)
            raise
    return set_id


@router.post("/api/wiki/undo")
async def undo(views: Viewing, wanted: SetToUndo) -> UndonePages:
    """Take a change of pages back, as far as nobody changed them since."""
    stores = views.parts.stores
    found = await stores.changes.get(wanted.change) if views.parts.rooms else None
    kinds = {change.kind for change in found.changes} if found else set()
    if found is None or found.scope != stores.owner.scope or kinds != {"page"}:
        raise WintermuteError(UNKNOWN)
    async with stores.database.transaction() as tx:
        if await stores.jobs.is_forgetting(tx):
            raise WintermuteError(FORGETTING)
    undone = await stores.undo.run(found)
    async with stores.database.transaction() as tx:
        await follow_undo(tx, undone)
    if not undone.back:
        raise WintermuteError(NOT_UNDONE)
    return UndonePages(back=[c.item for c in undone.back], kept=[c.item for c in undone.kept])


def _today(views: Views) -> date:
    return views.parts.clock.now().astimezone(views.parts.stores.tasks.zone).date()
