"""Requests to the homeserver, and the interpretation of its error answers."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import (
    BytesPayload,
    ClientError,
    ClientResponse,
    TooManyRedirects,
)
from aiohttp_socks import ProxyConnectionError, ProxyError, ProxyTimeoutError
from nio import AsyncClient

from wintermute.clock import CheckedClock
from wintermute.errors import (
    AccountBlocked,
    ApprovalNeeded,
    AudienceChanged,
    HomeserverUnavailable,
    LoginEnded,
    LoginExpired,
    LoginRefused,
    SendRefused,
)
from wintermute.messages import Json, json_in, mapping
from wintermute.text import no_answer

NO_ANSWER = (
    *(ClientError, TimeoutError, OSError),
    *(ProxyError, ProxyConnectionError, ProxyTimeoutError),
)
LONGEST_REQUESTED_MS = 60_000  # the longest pause that a server may ask for
PAGES = ("m.oauth", "org.matrix.cross_signing_reset")
"""Authentication stages that a person completes on a web page (MSC4312)."""
PAGE = re.compile(r"https?://[\w.~:/?#@!$&'()*+,;=%\[\]-]{1,1000}", re.ASCII)
STAGE = re.compile(r"[\w.-]{1,100}", re.ASCII)
LOG_IN_AGAIN = (
    "the homeserver no longer accepts our login. Nothing that waits here is lost: set a new "
    "matrix.access_token of this same device, or matrix.password, and start again"
)
LOGIN_EXPIRED = (
    "the homeserver wants {device} to log in again; its keys here stay good, so keep them: set "
    "matrix.password in place of matrix.access_token, or a new matrix.access_token of that same "
    "device, and start again"
)
SLOW_DOWN = "the homeserver asks us to slow down"
ACCOUNT_SECONDS = 60.0
ADDRESS = re.compile(r"(?:https?://|mailto:|matrix:|@)[\w.~:/?#@&=%+,;-]{1,500}", re.ASCII)
"""An address that is safe to show in a terminal or in Markdown."""
CodeMeaning = Literal["login", "account", "later"]
CODES: Mapping[str, tuple[CodeMeaning, str]] = {
    "M_UNKNOWN_TOKEN": ("login", LOG_IN_AGAIN),
    "M_MISSING_TOKEN": ("login", LOG_IN_AGAIN),
    "M_USER_DEACTIVATED": ("login", LOG_IN_AGAIN),
    "M_LIMIT_EXCEEDED": ("later", SLOW_DOWN),
    "M_UNRECOGNIZED": ("later", ""),
    "M_CONSENT_NOT_GIVEN": (
        "account",
        "it wants the bot's account to agree to its terms -> read and accept them{at}",
    ),
    "M_RESOURCE_LIMIT_EXCEEDED": (
        "account",
        "it has reached a limit of its own, such as active users or storage -> ask its admin{at}",
    ),
    "M_USER_LOCKED": ("account", "it has locked the bot's account -> ask its admin{at}"),
    "M_USER_SUSPENDED": ("account", "it has suspended the bot's account -> ask its admin{at}"),
}
"""The meaning of error codes, whatever the HTTP status; any other code refuses only the request."""


class RenewingClient(AsyncClient):  # type: ignore[misc]  # nio is not typed
    """nio's client, which can log in again.

    It does after a soft logout, and once after a token has ended (F-061).
    """

    access_token: str

    def __init__(
        self,
        *nio: Any,
        renew: Callable[[LoginRefused], Awaitable[str]],
        dates: CheckedClock | None = None,
    ) -> None:
        """`renew` returns a new token for the same device, for the given reason.

        `dates` gets the date of each answer.
        """
        super().__init__(*nio)
        self._renew = renew
        self._dates = dates
        self._renewing = asyncio.Lock()
        self._over: LoginRefused | None = None

    async def renew(self, refused: str, why: LoginRefused) -> None:
        """Replace the refused token; requests that were refused with it wait for the new one."""
        async with self._renewing:
            if self.access_token == refused and self._over is None:
                try:
                    self.access_token = await self._renew(why)
                except LoginRefused as error:  # the other requests must not try again
                    self._over = error
            if self._over is not None:
                raise self._over

    async def send(self, *args: Any, **more: Any) -> ClientResponse:
        """Send a request like nio, and record the date of the answer."""
        response: ClientResponse = await super().send(*args, **more)
        if self._dates and (date := date_of(response.headers.get("Date", ""))) is not None:
            self._dates.note_server_time(date)
        return response


class JudgedBody(BytesPayload):
    """A request body that is checked once more when its connection is open, which may take minutes."""

    def __init__(self, body: bytes, judge: Callable[[], None]) -> None:
        """`judge` raises AudienceChanged to cancel the request."""
        super().__init__(body, content_type="application/json")
        self._judge = judge

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        """Check and write the whole body."""
        self._judge()
        await super().write_with_length(writer, content_length)


def path(*parts: str, prefix: str = "/_matrix/client/v3") -> str:
    """Return a request path; each part is quoted, so that an id cannot add path segments."""
    return prefix + "".join(f"/{quote(part, safe='')}" for part in parts)


async def call(
    client: AsyncClient,
    method: str,
    target: str,
    body: Json | None = None,
    *,
    seconds: float = 30,
    judge: Callable[[], None] | None = None,
) -> Json:
    """Send one request and return its JSON answer; it is repeated once after a new login.

    `judge` may cancel a request by AudienceChanged; it is called when the connection is open. Such
    a request is not repeated after a new login: the rooms may have changed meanwhile.

    Raises: HomeserverUnavailable if it may work later, LoginRefused if our token is invalid,
    SendRefused for any other refusal.
    """
    token, data = client.access_token, None if body is None else json.dumps(body)
    judged = JudgedBody(data.encode(), judge) if data and judge else data
    try:
        return _answer(*await _sent(client, method, target, judged, seconds))
    except (LoginExpired, LoginEnded) as error:
        if not isinstance(client, RenewingClient):
            raise
        await client.renew(token, error)
    if judge:  # sync was refused, too: the room's readers are unknown
        raise HomeserverUnavailable("the homeserver wanted a new login")
    try:
        return _answer(*await _sent(client, method, target, judged, seconds))
    except LoginExpired as error:
        raise HomeserverUnavailable("the homeserver ends logins that it has just given") from error


async def fetch(client: AsyncClient, target: str) -> tuple[Json, str]:
    """Return the JSON answer for a path, and its final address after redirects."""
    response, content = await _sent(client, "GET", target, None, 10)
    return _answer(response, content), str(response.url)


async def _sent(
    client: AsyncClient, method: str, target: str, data: str | JudgedBody | None, seconds: float
) -> tuple[ClientResponse, bytes]:
    headers = {"Content-Type": "application/json"}
    if client.access_token:
        headers["Authorization"] = f"Bearer {client.access_token}"
    try:
        async with asyncio.timeout(seconds):
            response = await client.send(method, target, data, headers, timeout=0)
            content = await response.read()
    except NO_ANSWER as error:
        if isinstance(error.__cause__, AudienceChanged):
            raise error.__cause__ from None
        problem = no_answer(client.homeserver, error)
        if isinstance(error, (ProxyError, ProxyConnectionError, ProxyTimeoutError)):
            problem = f"the proxy to {client.homeserver}: {error}"
        elif isinstance(error, TooManyRedirects):
            problem = f"{client.homeserver} redirects in a circle"
        raise HomeserverUnavailable(problem) from error
    return response, content


def date_of(header: str) -> datetime | None:
    """Parse a `Date` header; None if it is no plausible time."""
    try:
        date = parsedate_to_datetime(header[:100])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    date = date.replace(tzinfo=UTC)  # HTTP dates are GMT
    return date if 2000 <= date.year < 9000 else None


def _answer(response: ClientResponse, content: bytes) -> Json:
    answer = json_in(content)
    if response.status < 300 and isinstance(answer, dict):
        return answer
    refuse(response.status, mapping(answer))
    problem = f"the homeserver answered {response.status} without JSON"
    raise HomeserverUnavailable(problem, status=response.status)


def refuse(status: int, answer: Json) -> None:
    """Raise the error for a refusal; return if it is no Matrix error."""
    code = answer.get("errcode")
    if code == "M_UNKNOWN_TOKEN" and answer.get("soft_logout") is True:
        raise LoginExpired(LOGIN_EXPIRED.format(device="the bot's device"))
    meaning, text = CODES.get(code, ("", "")) if isinstance(code, str) else ("", "")
    if meaning == "login":
        raise LoginEnded(text) if (status, code) == (401, "M_UNKNOWN_TOKEN") else LoginRefused(text)
    if meaning == "account":
        named = [answer.get(key) for key in ("consent_uri", "admin_contact")]
        shown = [f": {at}" for at in named if isinstance(at, str) and ADDRESS.fullmatch(at)]
        problem = f"the homeserver refuses us: {text.format(at=''.join(shown[:1]))}"
        raise AccountBlocked(problem, ACCOUNT_SECONDS, status)
    if status == 401 and isinstance(answer.get("flows"), list):
        raise approval(answer)
    if status == 429 or text == SLOW_DOWN:
        wait = answer.get("retry_after_ms")
        seconds = (
            min(max(wait, 100), LONGEST_REQUESTED_MS) / 1000 if isinstance(wait, int) else None
        )
        raise HomeserverUnavailable(SLOW_DOWN, seconds)
    if status >= 500 or not isinstance(code, str) or meaning == "later":
        hint = ": is matrix.homeserver right?" if status == 404 else ""
        problem = f"the homeserver answered {status} {code or ''}".strip() + hint
        raise HomeserverUnavailable(problem, status=status)
    raise SendRefused(f"{code}: {str(answer.get('error'))[:300]}", code, status)


def approval(answer: Json) -> ApprovalNeeded:
    """Return the error for an interactive authentication request; its fields may be malformed."""
    flows = [flow.get("stages") for flow in answer["flows"] if isinstance(flow, dict)]
    stages = tuple(
        tuple(name if STAGE.fullmatch(name) else "?" for name in map(str, flow))
        for flow in flows
        if isinstance(flow, list)
    )
    session, params = answer.get("session"), answer.get("params")
    wanted = {flow[0] for flow in stages if len(flow) == 1}
    offered = (
        [params.get(name) for name in PAGES if name in wanted] if isinstance(params, dict) else []
    )
    pages = [page.get("url") for page in offered if isinstance(page, dict)]
    page = next((url for url in pages if isinstance(url, str) and PAGE.fullmatch(url)), "")
    return ApprovalNeeded(stages, session if isinstance(session, str) else "", page)
