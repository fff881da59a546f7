"""The only module that imports openai.

Slow to import, so `backend` loads it with the first call.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx2
import openai

from wintermute.config.schema import Backend, proxied
from wintermute.config.secrets import Redaction
from wintermute.llm.failures import Outage, Refused, Unreachable, of_status
from wintermute.messages import Json
from wintermute.text import no_answer

LONGEST_CONNECT = 15.0
LEFT_ALONE = "x-stainless-raw-response"
STREAMED: openai.RequestOptions = {"headers": {LEFT_ALONE: "stream"}}
"""The option with which the library passes an answer's bytes on unchanged."""
OUR_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        LEFT_ALONE,
    }
)


class Client:
    """The openai client, restricted: no environment, no retries, no redirects."""

    def __init__(self, settings: Backend, key: str, redact: Redaction) -> None:
        self._redact = redact
        self._way = f" through the proxy {settings.proxy}" if settings.proxy else ""
        base_url = settings.base_url
        if not (key.isascii() and key.isprintable()):
            raise Refused("refused", "has an api_key with characters no key has: check it")
        try:
            self._openai = openai.AsyncOpenAI(
                base_url=base_url,
                api_key=key,
                default_headers={"Authorization": f"Bearer {key}"},
                max_retries=0,
                timeout=None,
                http_client=httpx2.AsyncClient(
                    # Certificates take 3.5 MB, and without redirects http:// never needs them.
                    verify=not base_url.lower().startswith("http://"),
                    trust_env=False,
                    proxy=proxied(settings),
                    follow_redirects=False,
                    # The caller enforces the deadlines; this one only detects dead hosts early.
                    timeout=httpx2.Timeout(
                        None, connect=min(settings.first_token_s, LONGEST_CONNECT)
                    ),
                    event_hooks={"request": [_only_ours]},
                ),
            )
        except httpx2.InvalidURL as error:
            raise Refused("refused", f"has no valid base_url ({error})") from None

    @asynccontextmanager
    async def opened(
        self, body: Json, path: str = "/chat/completions"
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open one answer's stream of bytes. Failures of the library become ours."""
        host = self._openai.base_url.netloc.decode("ascii", "replace") + self._way
        try:
            # Not `chat.completions.create`: it takes 1.4 MB, and checking a conversation against
            # its types takes longer than all the rest.
            response = await self._openai.post(
                path, cast_to=httpx2.Response, body=body, options=STREAMED
            )
            async with aclosing(response):
                yield response.aiter_bytes()
        except openai.APIStatusError as error:
            # Before the text is cut for a quote: half a secret would not be recognised.
            text, headers = self._redact(error.response.text), error.response.headers
            clean_headers = {name: self._redact(value) for name, value in headers.items()}
            raise of_status(error.status_code, text, clean_headers) from None
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise Outage("connection", f"does not accept connections at {host}") from None
        except (openai.APIConnectionError, httpx2.RequestError) as error:
            cause = self._redact(no_answer(host, error.__cause__ or error))
            reason = f"is not reachable ({cause[:200]})"
            failure = Unreachable if isinstance(error.__cause__, httpx2.ConnectError) else Outage
            raise failure("connection", reason) from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._openai.close()


async def _only_ours(request: httpx2.Request) -> None:
    """Remove headers in which the library describes this machine, or sends OPENAI_* variables."""
    for name in [name for name in request.headers if name not in OUR_HEADERS]:
        del request.headers[name]
