"""Pages from templates, and the one form of errors (V-005, V-031)."""

import asyncio
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from wintermute.text import harmless
from wintermute.web.parts import WebParts
from wintermute.web.sessions import Logins, Visitor
from wintermute.wiki.graph import shown
from wintermute.wiki.links import ENDING, name_of

HERE = Path(__file__).parent


class Refusal(HTTPException):
    """A refused request: what happened, then what to do; `more` is for programs."""

    def __init__(
        self,
        status: int,
        error: str,
        what_to_do: str,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(status, error, headers)
        self.what_to_do = what_to_do
        self.more = more


class Views:
    """Renders templates; every value in them is escaped unless our own renderer made it."""

    def __init__(self, parts: WebParts, cookie: str) -> None:
        """`cookie` is the name of the session cookie of this data folder."""
        self.parts = parts
        self.cookie = cookie
        self.sessions = Logins(parts)
        self.searching = asyncio.Lock()  # one search at a time: each keeps a core busy
        files = [each for each in (HERE / "static").rglob("*") if each.is_file()]
        names = [each.relative_to(HERE / "static").as_posix() for each in files]
        digests = [hashlib.sha256(each.read_bytes()).hexdigest()[:12] for each in files]
        self._versions = dict(zip(names, digests, strict=True))
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"static": self.static, "notice": parts.notice}
        self._templates.filters |= {
            "address": address,
            "coded": coded,
            "folder": lambda path: path.rpartition("/")[0],
            "harmless": harmless,
            "page_name": shown,
            "title_of": name_of,
        }

    def static(self, name: str) -> str:
        """Return the address of a static file; it changes with the file's content."""
        return f"/static/{name}?v={self._versions[name]}"

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a whole page."""
        return HTMLResponse(self.fragment(template, **values), status)

    def problem(self, scope: Mapping[str, Any], refusal: Refusal) -> Response:
        """Return an error: as JSON for a program, as a page for a person."""
        words = {"error": refusal.detail, "what_to_do": refusal.what_to_do, **refusal.more}
        if scope["method"] != "GET" or is_api(scope["path"]):
            return JSONResponse(words, refusal.status_code, refusal.headers)
        asking: Visitor | None = scope.get("state", {}).get("visitor")
        place = "problem" if asking and asking.is_known else "login"
        values = words | {"title": refusal.detail, "place": place}
        page = self.page("problem.html", refusal.status_code, **values)
        page.headers.update(refusal.headers or {})
        return page

    def fragment(self, template: str, **values: Any) -> str:
        """Render a part of a page as HTML."""
        return self._templates.get_template(template).render(values)


def is_api(path: str) -> bool:
    """Return True if a path is for programs, which always get JSON."""
    return path.startswith("/api/") or path == "/openapi.json"


def of_application(name: str) -> Any:
    """Return a dependency that gives a route the application's object of this name."""

    async def found(
        request: Request,
    ) -> Any:  # a function that is not `async` would be called in a thread
        return getattr(request.app.state, name)

    return Depends(found)


async def visitor(request: Request) -> Visitor:
    """Return the sender of a request."""
    found: Visitor = request.state.visitor
    return found


def address(path: str, place: str = "/wiki/") -> str:
    """Return the address of a page of the wiki by its path in the store, with or without `.md`."""
    bare = path.removesuffix(ENDING)
    return place + quote(path if bare.endswith(ENDING) else bare, errors="replace")


def coded(text: str) -> Markup:
    """Show parts of our own sentences between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def failure_words(text: str) -> tuple[str, str]:
    """Split the text of one of our errors into two sentences: what happened, and what to do."""
    happened, _, advice = text.rpartition(" -> " if " -> " in text else ": ")
    if not happened:
        happened, advice = text, "Try again, or look at `wintermute status`."
    return _sentence(happened), _sentence(advice)


def _sentence(text: str) -> str:
    """Return a text as a sentence; a path at its beginning stays unchanged."""
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


Viewing = Annotated[Views, of_application("views")]
Visiting = Annotated[Visitor, Depends(visitor)]
