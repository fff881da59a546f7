"""Coming in: the login page, login addresses, and the list of sessions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field

from wintermute.config.schema import is_loopback
from wintermute.web.safety import too_often
from wintermute.web.sessions import SESSION_LASTS
from wintermute.web.views import Viewing, Views, Visiting, told

router = APIRouter()

WORN = (
    "This login address does not work any more.",
    "Each works once, for ten minutes. Run `wintermute web` for a new one.",
)
AHEAD = "This login address was only loaded in advance.", "Open it."


class GivenToken(BaseModel):
    """Somebody's token."""

    token: str = Field(max_length=4096)


@router.get("/login", include_in_schema=False)
async def login_page(views: Viewing) -> HTMLResponse:
    """Ask for the token."""
    return views.page("login.html", title="Log in", place="login")


@router.post("/login", status_code=204)
async def log_in(given: GivenToken, request: Request, views: Viewing) -> Response:
    """Begin a session with the token."""
    if seconds := views.sessions.wait():
        refusal = too_often(seconds)
        answer = told(refusal.status, refusal.error, refusal.what_to_do)
        answer.headers.update(refusal.headers)
        return answer
    if not views.sessions.knows(given.token.strip()):
        return told(401, "This is not the token.", "Run `wintermute web` for a login address.")
    return _logged_in(views, request, Response(status_code=204), await views.sessions.enter())


@router.get("/login/{key}", include_in_schema=False)
async def login_address(key: str, request: Request, views: Viewing) -> Response:
    """Begin a session with the key of a login address.

    The page goes on by itself: what another site or program began carries no strict cookie.
    """
    purpose = request.headers.get("sec-purpose", request.headers.get("purpose", ""))
    if "prefetch" in purpose or request.headers.get("x-moz") == "prefetch":
        return views.problem(request.scope, 403, *AHEAD)
    cookie = await views.sessions.redeem(key)
    if cookie is None:
        return views.problem(request.scope, 403, *WORN)
    page = views.page("again.html", title="Logged in", place="login", to="/")
    return _logged_in(views, request, page, cookie)


def _logged_in(views: Views, request: Request, answer: Response, cookie: str) -> Response:
    """Send the cookie, for TLS only where the browser came by an https `public_url`.

    A proxy on this machine that passes on another Host says so by `X-Forwarded-Proto`.
    """
    web = views.parts.config.web
    is_proxy = is_loopback(request.client.host if request.client else "")
    is_tls = is_proxy and request.headers.get("x-forwarded-proto") == "https"
    is_public = is_tls or request.url.hostname == web.public_host
    answer.set_cookie(
        views.cookie,
        cookie,
        max_age=int(SESSION_LASTS.total_seconds()),
        secure=is_public and (web.public_url or "").startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return answer


@router.get("/sessions", include_in_schema=False)
async def sessions_page(views: Viewing, visitor: Visiting) -> HTMLResponse:
    """List who is logged in."""
    listed, own = await views.sessions.listed(), visitor.session
    values: dict[str, Any] = {"title": "Sessions", "place": "sessions", "sessions": listed}
    return views.page("sessions.html", own=own, **values)


class EndedSessions(BaseModel):
    """The number of sessions that ended."""

    ended: int


@router.post("/api/sessions/end")
async def end_all(views: Viewing) -> EndedSessions:
    """End all sessions, also one's own."""
    return EndedSessions(ended=await views.sessions.end(None))


@router.post("/api/sessions/{seq}/end", response_model=EndedSessions)
async def end_one(seq: int, views: Viewing) -> EndedSessions | Response:
    """End one session, with its streams."""
    ended = await views.sessions.end(seq) if abs(seq) < 1 << 62 else 0
    if not ended:
        return told(404, "There is no such session any more.", "Load the page again.")
    return EndedSessions(ended=ended)
