"""Logging in: the login page, login addresses, and the list of sessions."""

from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import HTMLResponse, Response

from wintermute.config.schema import is_loopback
from wintermute.web.safety import check_token
from wintermute.web.sessions import SESSION_LASTS
from wintermute.web.views import Refusal, Viewing, Views, Visiting

router = APIRouter()

WORN = (
    "This login address does not work any more.",
    "Each works once, for ten minutes. Run `wintermute web` for a new one.",
)
AHEAD = "This login address was only loaded in advance.", "Open it."


@router.get("/login", include_in_schema=False)
async def login_page(views: Viewing) -> HTMLResponse:
    """Ask for the token."""
    return views.page("login.html", title="Log in", place="login")


@router.post("/login", status_code=204)
async def log_in(
    token: Annotated[str, Body(embed=True, max_length=4096)], request: Request, views: Viewing
) -> Response:
    """Begin a session with the token."""
    check_token(views.sessions, token)
    return _logged_in(views, request, Response(status_code=204), await views.sessions.enter())


@router.get("/login/{key}", include_in_schema=False)
async def login_address(key: str, request: Request, views: Viewing) -> Response:
    """Begin a session with the key of a login address.

    The page goes on by itself: what another site or program began carries no strict cookie.
    """
    purpose = request.headers.get("sec-purpose", request.headers.get("purpose", ""))
    if "prefetch" in purpose or request.headers.get("x-moz") == "prefetch":
        raise Refusal(403, *AHEAD)
    cookie = await views.sessions.redeem(key)
    if cookie is None:
        raise Refusal(403, *WORN)
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
    """List the sessions."""
    listed, own = await views.sessions.listed(), visitor.session
    return views.page("sessions.html", title="Sessions", place="sessions", sessions=listed, own=own)


@router.post("/api/sessions/end")
async def end_all(views: Viewing) -> dict[str, int]:
    """End all sessions, also one's own; `ended`: their number."""
    return {"ended": await views.sessions.end(None)}


@router.post("/api/sessions/{seq}/end")
async def end_one(seq: int, views: Viewing) -> dict[str, int]:
    """End one session, with its streams."""
    if abs(seq) < 1 << 62 and (ended := await views.sessions.end(seq)):
        return {"ended": ended}
    raise Refusal(404, "There is no such session any more.", "Load the page again.")
