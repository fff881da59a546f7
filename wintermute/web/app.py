"""All routes in one application, and the bulkhead around each request (A-7)."""

import logging
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles

from wintermute.web import chat, editing, graph, jobs, wiki
from wintermute.web.parts import WebParts
from wintermute.web.safety import Guarded
from wintermute.web.views import Views

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"


def web_app(parts: WebParts) -> Guarded:
    """Build the application that answers for these parts."""
    app = FastAPI(
        telemetry={"tracing": False, "metrics": False, "logs": False},
        title="Wintermute",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.views = Views(parts)
    app.add_api_route("/healthz", health, include_in_schema=False)
    app.include_router(chat.router)
    app.include_router(wiki.router)
    app.include_router(graph.router)
    app.include_router(editing.router)
    app.include_router(jobs.router)
    app.mount("/static", StaticFiles(directory=STATIC))
    return Guarded(app, parts)


async def health() -> PlainTextResponse:
    """Say `ok`, and nothing of the person."""
    return PlainTextResponse("ok")
