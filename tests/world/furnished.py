"""A house in which each page of the web door has something to show, and all addresses that it has."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from tests.world.house import WITHIN, House, open_house
from tests.world.model import ModelServer
from tests.world.pages import PAGES, FilePages
from tests.world.web import Served, web_served
from wintermute.ids import new_id
from wintermute.web.app import unguarded
from wintermute.wiki.conversations import ConversationFolder, create
from wintermute.wiki.page_jobs import JOB, WikiJob, begin, note

SECRET = "CANARY-OF-THE-DATA-FOLDER"
"""Stands in a file that no page may show."""
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


@dataclass(frozen=True)
class Route:
    """One address of the door. `path` as the framework has it: `/wiki/{path:path}`."""

    method: str
    path: str
    queries: tuple[str, ...]
    """Names that may follow a question mark."""

    @property
    def is_api(self) -> bool:
        """Decide if programs ask here: they are told errors as JSON."""
        return self.path.startswith("/api/") or self.path == "/openapi.json"

    def at(self, value: str) -> str:
        """The address with this for each of its parameters, as it travels."""
        return PARAMETER.sub(lambda _: value, self.path)


@dataclass(frozen=True)
class Furnished:
    """A furnished house, served."""

    house: House
    web: Served
    pages: FilePages
    values: Mapping[str, str]
    """For each path with parameters one that is there: a new route is red until it has one."""
    routes: Sequence[Route]
    """Every address that the application knows, once for each of its methods."""

    def address(self, route: Route) -> str:
        """An address of a route under which there is something."""
        return route.at(quote(self.values[route.path])) if "{" in route.path else route.path

    def asked(self, value: str) -> list[str]:
        """Every address for reading with this in the place of each of its parameters, as it travels."""
        reading = [route for route in self.routes if route.method == "GET"]
        inside = [route.at(value) for route in reading if "{" in route.path]
        return inside + [
            f"{self.address(route)}?{name}={value}" for route in reading for name in route.queries
        ]

    def shown(self) -> list[str]:
        """The addresses of all pages for people."""
        return [
            self.address(route)
            for route in self.routes
            if route.method == "GET" and not route.is_api and route.path not in NO_PAGES
        ]

    async def say(self, text: str) -> str:
        """Say something in the browser's conversation; the answers so far, as the API has them."""
        before = (await self.web.get(TALK)).text
        given = {"key": new_id("key"), "text": text}
        assert (await self.web.client.post(self.web.base + TALK, json=given)).status_code == 202
        await self.house.settled()
        after = (await self.web.get(TALK)).text
        assert len(after) > len(before)
        return after


NO_PAGES = {"/healthz", "/static", "/login/{key}"}
CHAT = "chat_0123456789abcdef"
TALK = f"/api/chats/{CHAT}/messages"


@asynccontextmanager
async def furnished(
    folder: Path,
    model: ModelServer,
    pages: Mapping[str, str] = PAGES,
    report: str = "The pond has a page now.",
    **more: Any,
) -> AsyncIterator[Furnished]:
    """Serve a house with pages, talks of both kinds and a job while the block lasts."""
    wiki = FilePages(folder / "wiki", pages)
    (folder / "secret.md").write_text(SECRET)
    async with (
        open_house(folder, model.url, pages=wiki, **more) as house,
        house.working(),
        web_served(house, house.config, house.web) as web,
    ):
        files = house.stores.wiki.files
        job = begin(files, WikiJob("", report), house.checked.now())
        done = replace(job, end=job.start, reason=report, changed_files=(report[:200],))
        note(files, job, {"report.md": report, "diff.patch": report, JOB: done.as_json()})
        with files.writing():
            talk = create(files, house.checked.now())
        ConversationFolder(files.root, talk).append("user", report)
        ConversationFolder(files.root, talk).append("assistant", report)
        values = {
            "/wiki/{title:path}": "semantic/Garden",
            "/edit/{title:path}": "semantic/Garden",
            "/login/{key}": "none",
            "/jobs/{name}": job.name,
            "/api/sessions/{seq}/end": "1",
            **dict.fromkeys(CHATS, CHAT),
            **dict.fromkeys(FOLDERS, talk.rpartition("/")[2]),
        }
        table = _table(await unguarded(web.parts))
        home = Furnished(house, web, wiki, values, table)
        await home.say("hello")
        yield home


def _table(app: FastAPI) -> list[Route]:
    found = list[Route]()
    for each in iter_route_contexts(app.routes):
        dependant = getattr(each, "dependant", None)
        queries = tuple(field.alias for field in dependant.query_params) if dependant else ()
        methods = sorted((each.methods or {"GET"}) - {"HEAD"})
        found += [Route(method, str(each.path), queries) for method in methods]
    return found


CHATS = ("/chat/{chat_id}", "/api/chats/{chat_id}/messages", "/api/chats/{chat_id}/stream")
FOLDERS = (
    "/conversations/{conversation_id}",
    "/api/conversations/{conversation_id}",
    "/api/conversations/{conversation_id}/message",
    "/api/conversations/{conversation_id}/generate",
)


@dataclass(frozen=True)
class Raw:
    """An answer as it came. `head`: headers by their lower names."""

    status: int
    head: Mapping[str, str]
    body: str


async def raw(
    web: Served, method: str, target: str, head: Mapping[str, str] | None = None, body: bytes = b""
) -> Raw:
    """Send a request as it is, without a client that would mend it; of a stream only its head is read."""
    host = web.base.removeprefix("http://")
    fields = {"Host": host, "Connection": "close"} | (
        {"Content-Length": str(len(body))} if body else {}
    )
    fields |= head or {}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    async with asyncio.timeout(WITHIN):
        reader, writer = await asyncio.open_connection(*host.split(":"))
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest if line)}
        is_stream = found.get("content-type", "").startswith("text/event-stream")
        answer = b"" if is_stream else await reader.read()
        writer.close()
    return Raw(int(first.split()[1]), found, answer.decode("utf-8", errors="replace"))
