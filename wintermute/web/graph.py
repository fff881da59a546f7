"""The graph of the wiki: which pages are drawn, and the links between them (V-024)."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel

from wintermute.web.views import Viewing, Views, problems, told
from wintermute.wiki.graph import shown
from wintermute.wiki.links import ENDING, name_of

MOST_NODES = 300
MOST_EDGES = 1_500
"""More lines are no picture, and take longer than a frame."""
Links = Mapping[str, frozenset[str]]

router = APIRouter()


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


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The links of a wiki in both directions, between its pages only."""

    both: Mapping[str, set[str]]

    @classmethod
    def among(cls, linked: Links) -> "Neighbours":
        """Join both directions of each link."""
        both: dict[str, set[str]] = {path: set() for path in linked}
        for path, targets in linked.items():
            for target in (targets & linked.keys()) - {path}:
                both[path].add(target)
                both[target].add(path)
        return cls(both)

    def ranked(self, paths: set[str]) -> list[str]:
        """Sort pages, the most linked first."""
        return sorted(paths, key=lambda path: (-len(self.both[path]), path))

    def around(self, path: str) -> Iterator[str]:
        """Give a page, then those linked with it, then those linked with these (breadth first)."""
        waiting, seen = deque([path]), {path}
        while waiting:
            yield (nearest := waiting.popleft())
            further = self.ranked(self.both[nearest] - seen)
            seen.update(further)
            waiting.extend(further)


def picture(linked: Links, around: str | None = None, most: int = MOST_NODES) -> GraphPicture:
    """Choose what is drawn: breadth first around a page, or the most linked pages of all."""
    neighbours = Neighbours.among(linked)
    candidates = neighbours.around(around) if around else neighbours.ranked(set(linked))
    chosen = {path: place for place, path in enumerate(islice(candidates, most))}
    turns = []
    for path, place in chosen.items():
        targets = sorted(chosen[each] for each in linked[path] if each in chosen and each != path)
        turns += [(turn, place, target) for turn, target in enumerate(targets)]
    nodes = [
        GraphNode(
            path=shown(path),
            href=quote(f"/wiki/{shown(path)}"),
            title=name_of(path),
            folder=path.partition("/")[0],
            links=len(neighbours.both[path]),
        )
        for path in chosen
    ]
    # Each page has its first link drawn before any has its second.
    edges = [(place, target) for _, place, target in sorted(turns)[:MOST_EDGES]]
    return GraphPicture(nodes=nodes, edges=edges, all_pages=len(linked), all_edges=len(turns))


def page_around(around: str, linked: Links) -> str | None:
    """Find the page that an address means, with or without `.md`."""
    return next((path for path in (around + ENDING, around) if path in linked), None)


Around = Annotated[str, Query(max_length=1_000)]


async def _linked(views: Views) -> Links:
    wiki = views.parts.stores.wiki
    return await asyncio.to_thread(lambda: wiki.graph().linked)


@router.get("/graph", include_in_schema=False)
async def graph_page(views: Viewing, around: Around = "") -> HTMLResponse:
    """Show the graph as a picture and as a list with links."""
    linked = await _linked(views)
    middle = page_around(around, linked)
    found = await asyncio.to_thread(picture, linked, middle)
    targets: dict[int, list[int]] = {}
    for source, target in found.edges:
        targets.setdefault(source, []).append(target)
    values = {"found": found, "targets": targets, "around": around, "is_found": middle is not None}
    status = 404 if around and middle is None else 200
    return views.page("graph.html", status, title="Graph", place="graph", **values)


@router.get("/api/graph", responses=problems(404), response_model=GraphPicture)
async def graph(
    views: Viewing, around: Around = "", most: Annotated[int, Query(ge=1, le=MOST_NODES)] = 300
) -> GraphPicture | JSONResponse:
    """Give the pages around one, or the most linked of all, and the links between them."""
    linked = await _linked(views)
    middle = page_around(around, linked)
    if around and middle is None:
        return told(
            404, "There is no such page.", "Leave `around` out, or name a page by its path."
        )
    return await asyncio.to_thread(picture, linked, middle, most)
