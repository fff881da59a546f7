"""The graph of the wiki: which pages are drawn, and the links between them (V-024)."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from wintermute.web.views import Refusal, Viewing, address
from wintermute.wiki.graph import shown
from wintermute.wiki.links import ENDING, name_of
from wintermute.wiki.store import WikiStore

MOST_NODES = 300
MOST_EDGES = 1_500
"""The most lines of a picture: more are unreadable, and take longer than a frame to draw."""
Neighbours = Mapping[str, set[str]]

router = APIRouter()
Around = Annotated[str, Query(max_length=1_000)]


class GraphNode(BaseModel):
    """A page in the picture: its address here, its title, its folder, its links in the whole wiki."""

    path: str
    href: str
    title: str
    folder: str
    links: int


class GraphPicture(BaseModel):
    """The pages that are drawn, and links from one to another by their places among them."""

    nodes: list[GraphNode]
    edges: list[tuple[int, int]]
    all_pages: int
    all_edges: int


def picture(
    linked: Mapping[str, frozenset[str]],
    neighbours: Neighbours,
    around: str | None = None,
    most: int = MOST_NODES,
) -> GraphPicture:
    """Choose the pages: breadth first around one, or the most linked of all."""

    def rank(path: str) -> tuple[int, str]:
        return -len(neighbours[path]), path

    found = _around(around, neighbours, rank) if around else nsmallest(most, linked, rank)
    chosen = {path: place for place, path in enumerate(islice(found, most))}
    turns = []
    for path, place in chosen.items():
        targets = sorted(chosen[each] for each in linked[path] if each in chosen and each != path)
        turns += [(turn, place, target) for turn, target in enumerate(targets)]
    nodes = [
        GraphNode(
            path=shown(path),
            href=address(path),
            title=name_of(path),
            folder=path.partition("/")[0],
            links=len(neighbours[path]),
        )
        for path in chosen
    ]
    # Draw the first link of each page before any second one.
    edges = [(place, target) for _, place, target in sorted(turns)[:MOST_EDGES]]
    return GraphPicture(nodes=nodes, edges=edges, all_pages=len(linked), all_edges=len(turns))


def _around(
    path: str, neighbours: Neighbours, rank: Callable[[str], tuple[int, str]]
) -> Iterator[str]:
    """Yield a page, then those linked with it, then those linked with these."""
    waiting, seen = deque([path]), {path}
    while waiting:
        yield (nearest := waiting.popleft())
        further = sorted(neighbours[nearest] - seen, key=rank)
        seen.update(further)
        waiting.extend(further)


def _drawn(wiki: WikiStore, around: str, most: int = MOST_NODES) -> tuple[GraphPicture, str | None]:
    """Return the picture, and the page in the address, which may end with `.md`."""
    graph = wiki.graph()
    paths = (path for path in (around + ENDING, around) if path in graph.linked)
    middle = next(paths, None)
    return picture(graph.linked, graph.neighbours, middle, most), middle


@router.get("/graph", include_in_schema=False)
async def graph_page(views: Viewing, around: Around = "") -> HTMLResponse:
    """Show the graph as a picture and as a list with links."""
    found, middle = await asyncio.to_thread(_drawn, views.parts.stores.wiki, around)
    targets: dict[int, list[int]] = {}
    for source, target in found.edges:
        targets.setdefault(source, []).append(target)
    values = {"found": found, "targets": targets, "around": around, "is_found": middle is not None}
    status = 404 if around and middle is None else 200
    values |= {"title": "Graph", "place": "graph"}
    return await asyncio.to_thread(views.page, "graph.html", status, **values)


@router.get("/api/graph")
async def graph(
    views: Viewing, around: Around = "", most: Annotated[int, Query(ge=1, le=MOST_NODES)] = 300
) -> GraphPicture:
    """Give the pages around one, or the most linked of all, and the links between them."""
    found, middle = await asyncio.to_thread(_drawn, views.parts.stores.wiki, around, most)
    if around and middle is None:
        what_to_do = "Leave `around` out, or name a page by its path."
        raise Refusal(404, "There is no such page.", what_to_do)
    return found
