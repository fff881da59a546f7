"""One request to the homeserver, and the one place that reads its refusals."""

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
LONGEST_REQUESTED_MS = 60_000  # a server that asks for more is asked again anyway
PAGES = ("m.oauth", "org.matrix.cross_signing_reset")
"""Stages of authentication that a person settles at a web page (MSC4312)."""
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
"""An address that says nothing else, in a terminal or in Markdown."""
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
"""The meaning of an error code, whatever the HTTP status; any other refuses the one request."""


class RenewingClient(AsyncClient):  # type: ignore[misc]  # nio is not typed
    """nio's client, with a way to log in again where a homeserver wants that.

    That is after a soft logout, and once where a token has ended (F-061).
    """

    access_token: str

    def __init__(
        self,
        *nio: Any,
        renew: Callable[[LoginRefused], Awaitable[str]],
        dates: CheckedClock | None = None,
    ) -> None:
        """`renew` gives a new token for the same device by why it is wanted; `dates` hears the homeserver's clock."""
        super().__init__(*nio)
        self._renew = renew
        self._dates = dates
        self._renewing = asyncio.Lock()
        self._over: LoginRefused | None = None

    async def renew(self, refused: str, why: LoginRefused) -> None:
        """Have another token than the one that was refused; all who were refused wait for one."""
        async with self._renewing:
            if self.access_token == refused and self._over is None:
                try:
                    self.access_token = await self._renew(why)
                except LoginRefused as error:  # whoever waits here must not try it once more
                    self._over = error
            if self._over is not None:
                raise self._over

    async def send(self, *args: Any, **more: Any) -> ClientResponse:
        """As nio does. Each answer shows what the homeserver's clock does, whatever it says."""
        response: ClientResponse = await super().send(*args, **more)
        if self._dates and (date := date_of(response.headers.get("Date", ""))) is not None:
            self._dates.heard(date)
        return response


class JudgedBody(BytesPayload):
    """A body that is judged once more when its connection is there: until then minutes may pass."""

    def __init__(self, body: bytes, judge: Callable[[], None]) -> None:
        """`judge` raises AudienceChanged to withdraw it."""
        super().__init__(body, content_type="application/json")
        self._judge = judge

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        """Hand it over, whole."""
        self._judge()
        await super().write_with_length(writer, content_length)


def path(*parts: str, prefix: str = "/_matrix/client/v3") -> str:
    """A request path; each part is quoted, so an id cannot become structure."""
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
    """The JSON answer to one request, sent once; once more with another token.

    `judge` may withdraw a body by AudienceChanged. It is called when the connection is there; with
    it a request is not sent again, because the rooms were not heard of while the login was renewed.

    Raises: HomeserverUnavailable when it may work later, LoginRefused when our token is gone,
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
    if judge:  # sync was refused too: who can read there by now is not known
        raise HomeserverUnavailable("the homeserver wanted a new login")
    try:
        return _answer(*await _sent(client, method, target, judged, seconds))
    except LoginExpired as error:
        raise HomeserverUnavailable("the homeserver ends logins that it has just given") from error


async def fetch(client: AsyncClient, target: str) -> tuple[Json, str]:
    """The JSON answer at a path, and the address that gave it, wherever redirects led."""
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
        told = no_answer(client.homeserver, error)
        if isinstance(error, (ProxyError, ProxyConnectionError, ProxyTimeoutError)):
            told = f"the proxy to {client.homeserver}: {error}"
        elif isinstance(error, TooManyRedirects):
            told = f"{client.homeserver} redirects in a circle"
        raise HomeserverUnavailable(told) from error
    return response, content


def date_of(header: str) -> datetime | None:
    """What a `Date` says, if that is a time one can count with."""
    try:
        date = parsedate_to_datetime(header[:100])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    date = date.replace(tzinfo=UTC)  # of HTTP, always GMT
    return date if 2000 <= date.year < 9000 else None


def _answer(response: ClientResponse, content: bytes) -> Json:
    answer = json_in(content)
    if response.status < 300 and isinstance(answer, dict):
        return answer
    refuse(response.status, mapping(answer))
    told = f"the homeserver answered {response.status} without JSON"
    raise HomeserverUnavailable(told, status=response.status)


def refuse(status: int, answer: Json) -> None:
    """Raise what a refusal means; return when it is no Matrix answer at all."""
    code = answer.get("errcode")
    if code == "M_UNKNOWN_TOKEN" and answer.get("soft_logout") is True:
        raise LoginExpired(LOGIN_EXPIRED.format(device="the bot's device"))
    meaning, text = CODES.get(code, ("", "")) if isinstance(code, str) else ("", "")
    if meaning == "login":
        raise LoginEnded(text) if (status, code) == (401, "M_UNKNOWN_TOKEN") else LoginRefused(text)
    if meaning == "account":
        named = [answer.get(key) for key in ("consent_uri", "admin_contact")]
        shown = [f": {at}" for at in named if isinstance(at, str) and ADDRESS.fullmatch(at)]
        told = f"the homeserver refuses us: {text.format(at=''.join(shown[:1]))}"
        raise AccountBlocked(told, ACCOUNT_SECONDS, status)
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
        told = f"the homeserver answered {status} {code or ''}".strip() + hint
        raise HomeserverUnavailable(told, status=status)
    raise SendRefused(f"{code}: {str(answer.get('error'))[:300]}", code, status)


def approval(answer: Json) -> ApprovalNeeded:
    """What a 401 of interactive authentication asks for, whatever is in it."""
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
