"""A house in which each page of the web door has something to show, and all addresses that it has."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from tests.world.clock import WITHIN
from tests.world.pages import PAGES, FilePages
from tests.world.web import NewDoor, Served
from wintermute.ids import new_id
from wintermute.web.app import unguarded
from wintermute.wiki.conversations import ConversationFolder, create
from wintermute.wiki.page_jobs import JOB, WikiJob, begin, write_job_files

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
    threads: tuple[str, ...]
    """Functions that the framework would call in a thread for each request."""

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
        assert (await self.web.post(TALK, given)).status_code == 202
        await self.web.house.settled()
        after = (await self.web.get(TALK)).text
        assert len(after) > len(before)
        return after


NO_PAGES = {"/healthz", "/static", "/login/{key}"}
NewHome = Callable[..., Awaitable[Furnished]]
CHAT = "chat_0123456789abcdef"
FOLDERS = [f"{each}/{{conversation_id}}" for each in ("/conversations", "/api/conversations")]
FOLDERS += [f"{FOLDERS[1]}/{each}" for each in ("message", "generate")]
TALK = f"/api/chats/{CHAT}/messages"


@pytest.fixture
def furnish(door: NewDoor, tmp_path: Path) -> NewHome:
    """`home = await furnish(pages, report)`: a door with pages, talks of both kinds and a job."""

    async def new(
        pages: Mapping[str, str] = PAGES, report: str = "The pond has a page now."
    ) -> Furnished:
        wiki = FilePages(tmp_path / "wiki", pages)
        (tmp_path / "secret.md").write_text(SECRET)
        web = await door(pages=wiki)
        house = web.house
        files = house.stores.wiki.files
        job = begin(files, WikiJob("", report), house.checked.now())
        done = replace(job, end=job.start, reason=report, changed_files=(report[:200],))
        write_job_files(
            files, job, {"report.md": report, "diff.patch": report, JOB: done.as_json()}
        )
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
            "/chat/{chat_id}": CHAT,
            **{f"/api/chats/{{chat_id}}/{each}": CHAT for each in ("messages", "stream")},
            **{each: talk.rpartition("/")[2] for each in FOLDERS},
        }
        table = _table(await unguarded(web.parts))
        home = Furnished(web, wiki, values, table)
        await home.say("hello")
        return home

    return new


def _table(app: FastAPI) -> list[Route]:
    found = list[Route]()
    for each in iter_route_contexts(app.routes):
        dependant = getattr(each, "dependant", None)
        queries = tuple(field.alias for field in dependant.query_params) if dependant else ()
        given = [each.call for each in dependant.dependencies] if dependant else []
        threads = tuple(call.__name__ for call in given if not iscoroutinefunction(call))
        methods = sorted((each.methods or {"GET"}) - {"HEAD"})
        found += [Route(method, str(each.path), queries, threads) for method in methods]
    return found


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
