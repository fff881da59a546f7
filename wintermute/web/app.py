"""All routes in one application, and the bulkhead around each request (A-7)."""

import asyncio
import logging
from collections.abc import Coroutine, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from wintermute.config.secrets import Redaction
from wintermute.errors import (
    PageRefused,
    StorageBlocked,
    StoreBusy,
    StoreChanged,
    StoreMissing,
    StoreUnusable,
    WintermuteError,
)
from wintermute.messages import Json
from wintermute.web import chat, conversations, editing, graph, jobs, login, wiki
from wintermute.web.messages import MessageViews
from wintermute.web.parts import WebParts
from wintermute.web.safety import Out, Receive, RequestChecks, Scope, Send
from wintermute.web.sessions import DoorStore
from wintermute.web.views import Refusal, Views, failure_words

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
REFUSALS = (400, 401, 403, 404, 405, 408, 409, 413, 429, 431, 500, 503)
"""Error statuses of every JSON route."""
STATUSES: dict[type[WintermuteError], int] = {
    PageRefused: 400,
    StoreMissing: 404,
    StoreChanged: 409,
    StoreBusy: 409,
    StorageBlocked: 503,
    StoreUnusable: 503,
}
"""The status for each type of failure; others are 409."""
BUG = ("Wintermute made a mistake.", "Try again; the log of `wintermute run` tells what happened.")
WRONG_METHOD = (
    "This address cannot be used like that.",
    "Open it in a browser, or ask as documented.",
)
NOTHING = "There is nothing at this address.", "Go back to the chat, or correct the address."


class ApiProblem(BaseModel):
    """An error, in the one form of all JSON routes (V-031)."""

    error: str
    what_to_do: str


async def unguarded(parts: WebParts) -> FastAPI:
    """Put all routes together. Raises: WebUnavailable."""
    door = DoorStore(parts.stores.database, parts.clock)
    app = FastAPI(
        telemetry={"tracing": False, "metrics": False, "logs": False},
        title="Wintermute",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.views = Views(parts, f"wintermute_{await door.id()}")
    app.state.folders = conversations.FolderViews(app.state.views)
    app.state.messages = MessageViews(app.state.views)
    app.add_api_route("/healthz", health, include_in_schema=False)
    app.add_api_route("/openapi.json", description, include_in_schema=False)
    for part in (chat, conversations, wiki, editing, jobs, graph, login):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=STATIC))
    for kind in (HTTPException, RequestValidationError, WintermuteError, Exception):
        app.add_exception_handler(kind, error_response)
    return app


async def health() -> PlainTextResponse:
    """Answer `ok`, with nothing about the person."""
    return PlainTextResponse("ok")


def description(request: Request) -> JSONResponse:
    """Describe every JSON route (V-031): in a thread of the framework's, for the first time is long."""
    described = request.app.openapi()
    described["components"]["schemas"]["ApiProblem"] = ApiProblem.model_json_schema()
    for methods in described["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # we answer with 400 instead
            for status in REFUSALS:  # the framework would make a validator for each
                operation["responses"].setdefault(str(status), _described(status))
    return JSONResponse(described)


def _described(status: int) -> Json:
    schema = {"$ref": "#/components/schemas/ApiProblem"}
    content = {"application/json": {"schema": schema}}
    return {"description": HTTPStatus(status).phrase, "content": content}


class WebApp:
    """All pages, behind the checks of each request. A bug disturbs nothing but its own request."""

    def __init__(self, app: FastAPI) -> None:
        self._views: Views = app.state.views
        self._folders: conversations.FolderViews = app.state.folders
        self._checked = RequestChecks(app, self._views)

    def leave(self) -> None:
        """Ask all running answers to end."""
        self._views.sessions.dismiss_all()

    async def work(self) -> None:
        """Make the answers that were requested in folders, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._answer(await self._folders.asked.get()))

    async def _answer(self, asked: conversations.AskedAnswer) -> None:
        """Answer a request's question; the request may be over by now."""
        if await _is_bug(self._folders.make(asked), {}):
            self._folders.fail(asked, *BUG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        out = Out(scope, send)
        if await _is_bug(self._checked(scope, receive, out), scope) and not out.has_begun:
            await self._views.problem(scope, Refusal(500, *BUG))(scope, receive, out)


async def _is_bug(answering: Coroutine[Any, Any, None], scope: Scope) -> bool:
    """Await an answer inside the error boundary of web requests (A-7). True after a bug, which is logged."""
    try:
        await answering
    except Exception:
        # The path may name a page or a conversation; the route's pattern does not.
        route = getattr(scope.get("route"), "path", "none")
        log.exception("web request failed method=%s route=%s", scope.get("method", "none"), route)
        return True
    return False


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response for an error."""
    if isinstance(error, HTTPException) and error.status_code == 303:
        return Response(status_code=303, headers=error.headers)
    views: Views = request.app.state.views
    return views.problem(request.scope, _refusal(error, views.parts.redact))


def _refusal(error: Exception, redact: Redaction) -> Refusal:
    """Describe an error; an expected failure ends with what to do."""
    match error:
        case Refusal():
            return error
        case HTTPException(status_code=405):
            return Refusal(405, *WRONG_METHOD)
        case HTTPException():
            return Refusal(error.status_code, *NOTHING)
        case RequestValidationError():  # without the values: they may be secret, or no text
            named = [f"{_place(each)}: {each['msg']}" for each in error.errors()[:5]]
            text = f"The request is not understood: {'; '.join(named)}."
            return Refusal(400, text, "Send what /openapi.json describes.")
        case WintermuteError():
            found = (status for kind, status in STATUSES.items() if isinstance(error, kind))
            return Refusal(next(found, 409), *failure_words(redact(str(error))))
    return Refusal(500, *BUG)


def _place(problem: MutableMapping[str, Any]) -> str:
    """Return the field with a problem; only names of our own fields."""
    inner = [str(part) for part in problem["loc"][1:] if problem["type"] != "extra_forbidden"]
    return ".".join(inner) or str(problem["loc"][0])
