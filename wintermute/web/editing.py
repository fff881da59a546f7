"""Pages in an editor: preview, saving only over the opened version, and undo (V-022, V-032)."""

import asyncio
from datetime import date
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.responses import RedirectResponse, Response

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.decisions import Decision
from wintermute.changes.texts import state_of
from wintermute.db import Transaction
from wintermute.errors import PageRefused, StoreChanged, StoreUnusable, WintermuteError
from wintermute.messages import Json
from wintermute.verbs.undo import undo as take_back
from wintermute.web.parts import WebParts
from wintermute.web.views import Refusal, Viewing, Views, address
from wintermute.web.wiki import differences, in_store, page_html
from wintermute.wiki.editing import PageSource, page_source
from wintermute.wiki.links import ENDING, name_of
from wintermute.wiki.store import WikiStore

router = APIRouter()

LATER = "Correct that, then save again. Your text is still in the editor."
CHANGED = (
    "Somebody else saved this page while you edited it.",
    "Take what you want from their text below. If you save again, your text replaces it.",
)
REMOVED = (
    "Somebody removed this page while you edited it.",
    "Save again to create it, or leave it removed.",
)
ANSWERED = "this was answered already: reload the page to see what is still asked"
UNKNOWN = "this change of pages is unknown: changes are kept for 30 days"
NOT_UNDONE = "nothing was undone, for the page was undone or changed since: open it to read it"

PagePath = Annotated[str, Body(min_length=1, max_length=4_000)]
TypedText = Annotated[str, Body(max_length=1_000_000)]
Version = Annotated[str, Body(max_length=64)]
ChangeSetId = Annotated[str, Body(embed=True, min_length=1, max_length=100)]


@router.get("/edit/{title:path}", include_in_schema=False)
async def edit_page(views: Viewing, title: str) -> Response:
    """Show a page in the editor, or an empty one for a page that does not exist yet."""
    source = await in_store(views, lambda wiki: page_source(wiki, _path_of(wiki, title)))
    if (there := address(source.path, "/edit/")) != address(title, "/edit/"):
        return RedirectResponse(there, 303)
    title = f"{'New page' if source.text is None else 'Edit'}: {name_of(source.path)}"
    return views.page("edit.html", title=title, place="edit", source=source)


def _path_of(wiki: WikiStore, title: str) -> str:
    """Return the path of the page with a title, or the path that a new one gets."""
    found = wiki.resolve(title)
    if isinstance(found, str):
        return found
    if found.reason != "missing":
        raise PageRefused(f"{found}: choose the address of one page, such as semantic/Garden")
    return f"{title if '/' in title else f'semantic/{title}'}{ENDING}"


@router.post("/api/wiki/preview")
async def preview(views: Viewing, path: PagePath, text: TypedText) -> dict[str, str]:
    """Render a page as it would be shown; `problem`: why it could not be saved, "" if it could."""

    def read(wiki: WikiStore) -> dict[str, str]:
        problem = ""
        try:
            page_source(wiki, path).edited(text, _today(views))
        except PageRefused as refused:
            problem = str(refused)
        return {"html": page_html(wiki, path, text), "problem": problem}

    return await in_store(views, read)


@router.post("/api/wiki/save")
async def save(views: Viewing, path: PagePath, text: TypedText, before: Version) -> dict[str, str]:
    """Save a page in the place of the version `before`, as one change set; "": there was none.

    The page as it is now, its `version`, and its `change` set, "" if nothing was changed. If somebody
    saved meanwhile: 409, with `theirs` (null if they removed it), its `version` and the `difference`.
    """
    try:
        return await _saved(views, path, text, before)
    except (PageRefused, StoreUnusable) as problem:
        status = 400 if isinstance(problem, PageRefused) else 503
        raise Refusal(status, f"The page was not saved: {problem}.", LATER) from problem


async def _saved(views: Views, path: str, typed: str, before: str) -> dict[str, str]:
    stores, read = views.parts.stores, partial(page_source, path=path)
    source = await in_store(views, read)
    if source.version == before:
        text, done = await asyncio.to_thread(source.edited, typed, _today(views)), ""
        try:
            if text != source.text:
                change = Change("page", source.path, state_of(source.text), state_of(text))
                done = await put_page(views.parts, change, Reason("edit", stores.owner.scope))
            return {"text": text, "version": PageSource(path, text).version, "change": done}
        except StoreChanged:
            source = await in_store(views, read)
    theirs = None if source.text is None else source.text.replace("\r\n", "\n")

    def compared() -> str:
        return views.fragment("differences.html", rows=differences(theirs or "", typed))

    more: Json = {"theirs": theirs, "version": source.version}
    more |= {"difference": await asyncio.to_thread(compared)}
    raise Refusal(409, *(REMOVED if theirs is None else CHANGED), **more)


async def put_page(
    parts: WebParts, change: Change, why: Reason, wanted: Decision | None = None
) -> str:
    """Record a change of a page, then make it; the id of its change set, "" in a store alone.

    `wanted`: what it says yes to. Raises: StoreChanged, StoreUnusable, StorageBlocked; then the page
    is as it was.
    """
    stores = parts.stores
    if parts.rooms is None:
        async with stores.placing.files["page"].prepared([change]) as place:
            await place()
        return ""

    async def decided(tx: Transaction, set_id: str) -> None:
        if wanted is not None and await stores.decisions.current(tx, wanted) is None:
            raise StoreChanged(ANSWERED)
        if wanted is not None:
            await stores.decisions.move(tx, wanted, "open", set_id)

    return await stores.placing.write(why, [change], decided)


@router.post("/api/wiki/undo")
async def undo(views: Viewing, change: ChangeSetId) -> dict[str, list[str]]:
    """Undo a change of pages; `kept`: pages that were changed since, which stay."""
    stores = views.parts.stores
    found = await stores.changes.get(change) if views.parts.rooms else None
    kinds = {each.kind for each in found.changes} if found else set()
    if found is None or found.scope != stores.owner.scope or kinds != {"page"}:
        raise WintermuteError(UNKNOWN)
    undone = await take_back(stores, found)
    if not undone.back:
        raise WintermuteError(NOT_UNDONE)
    return {"back": [c.item for c in undone.back], "kept": [c.item for c in undone.kept]}


def _today(views: Views) -> date:
    return views.parts.clock.now().astimezone(views.parts.stores.tasks.zone).date()
