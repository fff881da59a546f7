"""Finding a homeserver by its address or by the name of its server."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from nio import AsyncClient, AsyncClientConfig

from wintermute.config.schema import URL, Matrix, is_loopback, proxied
from wintermute.errors import HomeserverUnavailable, LoginRefused, SendRefused
from wintermute.matrix.http import fetch
from wintermute.messages import mapping

VERSIONS = "/_matrix/client/versions"
WELL_KNOWN = "/.well-known/matrix/client"
SECONDS = 20.0
ADVICE = "check matrix.homeserver and that the server runs"


@asynccontextmanager
async def anonymous(matrix: Matrix, token: str = "") -> AsyncIterator[AsyncClient]:
    """A client without a key store, for a request or two."""
    config = AsyncClientConfig(encryption_enabled=False, max_timeouts=0, max_limit_exceeded=0)
    nio = AsyncClient(matrix.homeserver, config=config, proxy=proxied(matrix))
    nio.access_token = token
    try:
        yield nio
    except HomeserverUnavailable as error:
        if error.retry_after is not None:  # it runs, and has named a time
            raise
        raise HomeserverUnavailable(f"{error} -> {ADVICE}", None, error.status) from error
    finally:
        await nio.close()


async def find(matrix: Matrix) -> str:
    """The address where the homeserver answers; `matrix.homeserver` may be the name of its server.

    Redirects and `.well-known` are followed, but never from https to http.
    Raises: HomeserverUnavailable, with what to do.
    """
    problems: list[HomeserverUnavailable] = []
    written = matrix.homeserver
    try:
        async with asyncio.timeout(SECONDS):
            for place in _places(written):
                at = replace(matrix, homeserver=place)
                for known in (False, True) if "://" in written else (True, False):
                    try:
                        return await _reached(await _well_known(at) if known else at)
                    except HomeserverUnavailable as error:
                        problems += [] if known and error.status else [error]
                        if not error.status:  # no connection: the other path has none either
                            break
    except TimeoutError:
        told = f"{written} gave no answer in {SECONDS:g} s -> {ADVICE}"
        problems.insert(0, HomeserverUnavailable(told))
    no_address = HomeserverUnavailable(f"{written[:60]!r} is no address -> write example.org")
    raise (problems or [no_address])[0]


def _places(written: str) -> Iterator[str]:
    """Addresses to try: as written, encrypted, and on this machine also plain, which comes first."""
    scheme, _, name = written.strip().rstrip("/").rpartition("://")
    if re.fullmatch(URL, f"https://{name}"):
        plain = ["http"] if is_loopback(urlsplit(f"https://{name}").hostname or "") else []
        for each in dict.fromkeys([*([scheme] if scheme else plain), "https", *plain]):
            yield f"{each}://{name}"


async def _well_known(matrix: Matrix) -> Matrix:
    """The homeserver that the server's `.well-known` names."""
    answer, _ = await _fetched(matrix, WELL_KNOWN)
    told = mapping(answer.get("m.homeserver")).get("base_url")
    return replace(matrix, homeserver=_safe(matrix, told))


async def _reached(matrix: Matrix) -> str:
    answer, at = await _fetched(matrix, VERSIONS)
    if not isinstance(answer.get("versions"), list):
        told = f"{matrix.homeserver} is no Matrix homeserver -> {ADVICE}"
        raise HomeserverUnavailable(told, status=200)
    return _safe(matrix, at.partition(VERSIONS)[0])


def _safe(before: Matrix, address: object) -> str:
    """An address that somebody else names: no step from https to http."""
    is_url = isinstance(address, str) and re.fullmatch(URL, address)
    if not is_url or before.homeserver.split(":")[0] == "https" != str(address).split(":")[0]:
        told = f"{before.homeserver} leads to {str(address)[:200]}, which is not encrypted"
        raise HomeserverUnavailable(told, status=200)
    return str(address).rstrip("/")


async def _fetched(matrix: Matrix, target: str) -> tuple[dict[str, object], str]:
    try:
        async with anonymous(matrix) as nio:
            return await fetch(nio, target)
    except (SendRefused, LoginRefused, ValueError) as error:
        raise HomeserverUnavailable(f"{matrix.homeserver}: {error}", status=400) from error
