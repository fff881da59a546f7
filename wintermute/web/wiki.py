"""The wiki's pages: reading, searching, and the list of problems."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from wintermute.changes.change_sets import ItemVersion
from wintermute.errors import FileUnusable, StoreMissing, WintermuteError
from wintermute.markdown import WikiTarget, blocks, literal
from wintermute.messages import Json
from wintermute.text import clean
from wintermute.web.views import Refusal, Viewing, Views, address
from wintermute.wiki.conversations import ConversationFolder
from wintermute.wiki.graph import WikiProblem, shown
from wintermute.wiki.links import (
    ENDING,
    INDEX,
    RAW,
    Unresolved,
    is_page,
    legible,
    name_of,
    resolve,
    target_of,
)
from wintermute.wiki.pages import day_in, text_of, without_matter
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import path_problem
from wintermute.wiki.withheld_lines import digest, withheld_lines

router = APIRouter()
T = TypeVar("T")

MOST = 100
"""Lines of a list on one page."""
FEW = 20
"""Changes and hits on one page."""
MOST_COMPARED = 4_000
"""Lines of two texts: the time to compare grows faster than they do."""
AROUND = 3
"""Lines that are shown around a difference."""
NO_PAGE = "No page has this name yet: open it to write one"
SEVERAL = "Several pages have this name: open it to choose one"
REFUSALS = {
    "empty": (400, "Add ?title= and the name of a page."),
    "outside": (400, "Give the name of a page, or its path in the wiki."),
    "missing": (404, "Search for it with /wiki-search?q= and a word of it."),
    "ambiguous": (409, "Give one of these paths."),
}
"""The status and advice for each reason why a title names no page."""


@dataclass(frozen=True, slots=True)
class OpenedPage:
    """A page as it is shown. `unusable`: why it cannot be read; `asked`: lines hidden from models.

    `messages`: those of a conversation, each with its role.
    """

    path: str
    html: str = ""
    created: str = ""
    updated: str = ""
    backlinks: Sequence[str] = ()
    messages: Sequence[tuple[str, str]] = ()
    asked: int = 0
    is_outside: bool = False
    unusable: str = ""

    @property
    def is_editable(self) -> bool:
        """True if a person may edit it here."""
        return not path_problem(self.path) and not self.unusable


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of a comparison: in both texts, in the older or the newer one only, or left out."""

    kind: Literal["same", "gone", "new", "gap"]
    line: str = ""


async def in_store(views: Views, work: Callable[[WikiStore], T]) -> T:
    """Run a function on the store in a thread, under its lock. Raises: WintermuteError."""
    wiki = views.parts.stores.wiki

    def locked() -> T:
        with wiki.files.reading():
            return work(wiki)

    return await asyncio.to_thread(locked)


@router.get("/wiki", include_in_schema=False)
async def wiki_home(views: Viewing) -> HTMLResponse:
    """Show the wiki's first page: the index, the search, and the number of problems."""

    def read(wiki: WikiStore) -> dict[str, Any]:
        counts = Counter(each.kind for each in wiki.problems())
        has_pages = wiki.tree().names.has_pages
        return {"page": opened(wiki, INDEX), "counts": counts, "has_pages": has_pages, "why": ""}

    try:
        values: dict[str, Any] = await in_store(views, read)
    except StoreMissing as problem:
        values = {"page": None, "why": str(problem)}
    return _page(views, "wiki.html", "Wiki", q="", hits=(), more="", **values)


@router.get("/wiki/{title:path}", include_in_schema=False)
async def wiki_page(views: Viewing, title: str, part: bool = False) -> Response:
    """Show the page with a title or a path. `part`: without the frame of the site."""

    def read(wiki: WikiStore) -> OpenedPage | Unresolved:
        found = wiki.resolve(title)
        if isinstance(found, Unresolved):
            return _conversation(wiki, title) or found
        return opened(wiki, found)

    if not title.strip():
        return RedirectResponse("/wiki", 303)
    found = await in_store(views, read)
    if isinstance(found, Unresolved):
        return _unresolved(views, found)
    if part:
        return _page(views, "wiki_part.html", name_of(found.path), page=found)
    if address(found.path) != address(title):
        return RedirectResponse(address(found.path), 303)
    versions = await _versions(views, found.path, None)
    more: dict[str, Any] = {"versions": versions, "most": MOST, "most_versions": FEW}
    return _page(views, "wiki_page.html", name_of(found.path), page=found, **more)


def _page(
    views: Views, template: str, title: str, status: int = 200, **values: Any
) -> HTMLResponse:
    known = {"title": title, "place": "wiki", "kind": ""}
    return views.page(template, status, **known | values)


def opened(wiki: WikiStore, path: str) -> OpenedPage:
    """Read a page and what links to it; within `reading`."""
    try:
        content = wiki.files.content(path)
        text = text_of(content or b"")
    except FileUnusable as problem:
        return OpenedPage(path, unusable=str(problem))
    if content is None:
        return OpenedPage(path, unusable="is gone: somebody has just removed it")
    asked = withheld_lines(wiki.files)
    return OpenedPage(
        path,
        page_html(wiki, path, text),
        created=str(day_in(text, "created") or ""),
        updated=str(day_in(text, "updated") or ""),
        backlinks=wiki.graph().backlinks(path)[: MOST + 1] if path != INDEX else (),
        asked=sum(digest(line) in asked for line in text.splitlines()) if asked else 0,
        is_outside=wiki.is_outside(path, text),
    )


def page_html(wiki: WikiStore, path: str, text: str) -> str:
    """Render a page without frontmatter; its links work, and its name is not repeated."""
    names, presence = wiki.tree().names, wiki.files.presence

    def link(inside: str) -> WikiTarget | None:
        target, said = target_of(inside), inside.replace("\\|", "|").rpartition("|")[2].strip()
        found = resolve(target, names, presence, near=False)
        if isinstance(found, str):
            return WikiTarget(address(found), said or target)
        match found.reason:
            case "missing":
                return WikiTarget(address(target), said or target, "missing", NO_PAGE)
            case "ambiguous":
                return WikiTarget(address(target), said or target, "ambiguous", SEVERAL)
        return None

    made = blocks(without_matter(text), link)
    title = literal(name_of(path)).replace("p>", "h1>")
    html = "\n".join(made[1:] if made[:1] == (title,) else made)
    return html.replace("<h1>", "<h2>").replace("</h1>", "</h2>")


def _conversation(wiki: WikiStore, path: str) -> OpenedPage | None:
    """Return the raw copy of a conversation, whose path is that of a folder."""
    if not path.startswith(f"{RAW}/") or ".." in path.split("/") or "\0" in path:
        return None
    try:
        messages = ConversationFolder(wiki.root, path.rstrip("/")).messages()
    except WintermuteError:
        return None
    rendered = tuple((each.role, "\n".join(blocks(each.text))) for each in messages)
    return OpenedPage(path, messages=rendered)


def _unresolved(views: Views, found: Unresolved) -> HTMLResponse:
    """Report why a title names no page, and offer a choice, a similar name, or a new page."""
    is_choice, wanted = found.reason == "ambiguous", found.title.removesuffix(ENDING)
    new = wanted if "/" in wanted else f"semantic/{wanted}"
    problem = path_problem(f"{new}{ENDING}") if found.reason == "missing" else ""
    values: dict[str, Any] = {"found": found, "name": legible(found.title)}
    values |= {"new": new, "problem": problem}
    title = "Which page?" if is_choice else "No such page"
    status = 200 if is_choice else REFUSALS[found.reason][0]
    return _page(views, "wiki_missing.html", title, status, **values)


async def _versions(views: Views, path: str, before: int | None) -> list[ItemVersion]:
    """Return the newest changes of a page; those of a store alone are not recorded."""
    stores = views.parts.stores
    if views.parts.rooms is None:
        return []
    scope, most = stores.owner.scope, FEW + 1
    return await stores.changes.versions("page", path, scope, most, before)


@router.get("/wiki-history", include_in_schema=False)
async def wiki_history(
    views: Viewing,
    path: str = "",
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    change: str = "",
) -> HTMLResponse:
    """Show the changes of a page in the last 30 days, or what one of them changed."""
    stores, title = views.parts.stores, f"History of {shown(path)}"
    one = await stores.changes.get(change) if change and views.parts.rooms else None
    mine = one.changes if one and one.scope == stores.owner.scope else ()
    texts = next((each for each in mine if (each.kind, each.item) == ("page", path)), None)
    values: dict[str, Any] = {"path": path, "one": None, "most": FEW}
    if texts is None:
        versions = await _versions(views, path, before)
        return _page(views, "wiki_history.html", title, versions=versions, **values)
    sides = ((each or {}).get("text", "") for each in (texts.before, texts.after))
    rows = await asyncio.to_thread(differences, *sides)
    values |= {"one": one, "rows": rows}
    return await asyncio.to_thread(_page, views, "wiki_history.html", title, **values)


def differences(before: str, after: str) -> tuple[Difference, ...] | None:
    """Compare two texts line by line; None: they are too long."""
    old, new = clean(before).split("\n"), clean(after).split("\n")
    if len(old) + len(new) > MOST_COMPARED:
        return None
    found: list[Difference] = []
    for n, group in enumerate(SequenceMatcher(None, old, new).get_grouped_opcodes(AROUND)):
        found += [Difference("gap")] if n or group[0][1] else []
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                found += [Difference("same", line) for line in old[old_from:old_to]]
                continue
            found += [Difference("gone", line) for line in old[old_from:old_to]]
            found += [Difference("new", line) for line in new[new_from:new_to]]
    return tuple(found)


@router.get("/wiki-pages", include_in_schema=False)
async def wiki_pages(views: Viewing, after: str = "", to: str = "") -> HTMLResponse:
    """List all pages, or those that link to one, in the order of their paths."""

    def read(wiki: WikiStore) -> list[str]:
        found = wiki.graph().backlinks(to) if to else filter(is_page, wiki.tree().names.paths)
        return sorted(path for path in found if path > after)[: MOST + 1]

    found = await in_store(views, read)
    title = f"Links to {name_of(to)}" if to else "All pages"
    more = urlencode({"after": found[MOST - 1], "to": to}) if len(found) > MOST else ""
    return _page(views, "wiki_list.html", title, paths=found[:MOST], more=more, to=to)


@router.get("/wiki-problems", include_in_schema=False)
async def wiki_problems(
    views: Viewing, kind: str = "", page: str = "", subject: str = ""
) -> HTMLResponse:
    """List the problems, as `wiki check` does; `page` and `subject`: the last one shown."""

    def read(wiki: WikiStore) -> tuple[Mapping[str, int], list[WikiProblem]]:
        problems, last = wiki.problems(), (kind, page, subject)
        left = [each for each in problems if each.kind == kind and each.identity > last]
        left.sort(key=lambda each: each.identity)
        return Counter(each.kind for each in problems), left[: MOST + 1]

    counts, found = await in_store(views, read)
    last = found[MOST - 1] if len(found) > MOST else None
    more = {"kind": kind, "page": last.page, "subject": last.subject} if last else {}
    values: dict[str, Any] = {"counts": counts, "kind": kind, "found": found[:MOST]}
    values |= {"paths": (), "to": "", "more": urlencode(more)}
    return _page(views, "wiki_list.html", "Problems of pages", **values)


@router.get("/wiki-search", include_in_schema=False)
async def wiki_search(
    request: Request,
    views: Viewing,
    q: str = "",
    most: Annotated[int, Query(ge=1, le=200)] = FEW,
    part: bool = False,
) -> HTMLResponse:
    """Search the pages for words, the best first. `part`: the hits alone, while a person types."""
    is_late = views.searching.locked()
    async with views.searching:
        if is_late:
            await request.body()  # it arrives before the client's disconnect
            if await request.is_disconnected():  # for a newer query
                return HTMLResponse("", 499)
        hits = await in_store(views, lambda wiki: wiki.search(q, most)) if q.strip() else ()
    new = f"semantic/{q.strip()}"
    more = urlencode({"q": q, "most": 200}) if len(hits) == most < 200 else ""
    values: dict[str, Any] = {"q": q, "hits": hits, "more": more}
    values |= {"new": "" if path_problem(f"{new}{ENDING}") else new}
    if part:
        return HTMLResponse(views.fragment("wiki_hits.html", **values))
    return _page(views, "wiki.html", "Search", page=None, why="", **values)


@router.get("/api/memory/resolve")
async def memory_resolve(views: Viewing, title: str = "") -> dict[str, str]:
    """Return the `path` of the page with a title (W-071)."""
    return {"path": await in_store(views, lambda wiki: _path_of(wiki, title))}


@router.get("/api/memory/read")
async def memory_read(views: Viewing, title: str = "") -> dict[str, str]:
    """Return `path` and `text` of the page with a title (W-071)."""

    def read(wiki: WikiStore) -> dict[str, str]:
        found = _path_of(wiki, title)
        try:
            return {"path": found, "text": text_of(wiki.files.content(found) or b"")}
        except FileUnusable as problem:
            error = f"{found} {problem}."
            raise Refusal(409, error, "Correct the file, then try again.") from problem

    return await in_store(views, read)


def _path_of(wiki: WikiStore, title: str) -> str:
    """Find the page that a title means. Raises: Refusal, where there are several with their paths."""
    found = wiki.resolve(title)
    if isinstance(found, str):
        return found
    status, what_to_do = REFUSALS[found.reason]
    more: Json = {"paths": list(found.paths)} if found.paths else {}
    raise Refusal(status, str(found), what_to_do, **more)
