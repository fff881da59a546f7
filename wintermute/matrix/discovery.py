"""Discovery of a homeserver by its address or its server name."""

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
    """Open a client without a key store, for a request or two."""
    config = AsyncClientConfig(encryption_enabled=False, max_timeouts=0, max_limit_exceeded=0)
    nio = AsyncClient(matrix.homeserver, config=config, proxy=proxied(matrix))
    nio.access_token = token
    try:
        yield nio
    except HomeserverUnavailable as error:
        if error.retry_after is not None:  # it runs, and says when to retry
            raise
        raise HomeserverUnavailable(f"{error} -> {ADVICE}", None, error.status) from error
    finally:
        await nio.close()


async def find(matrix: Matrix) -> str:
    """Find the address where the homeserver answers; `matrix.homeserver` may be a server name.

    Redirects and `.well-known` are followed, but never from https to http. Raises:
    HomeserverUnavailable, with what to do.
    """
    problems: list[HomeserverUnavailable] = []
    written = matrix.homeserver
    try:
        async with asyncio.timeout(SECONDS):
            for place in _places(written):
                at = replace(matrix, homeserver=place)
                for known in (False, True) if "://" in written else (True, False):
                    try:
                        return await _check_versions(await _well_known(at) if known else at)
                    except HomeserverUnavailable as error:
                        problems += [] if known and error.status else [error]
                        if not error.status:  # no connection: the other path has none, either
                            break
    except TimeoutError:
        problem = f"{written} gave no answer in {SECONDS:g} s -> {ADVICE}"
        problems.insert(0, HomeserverUnavailable(problem))
    no_address = HomeserverUnavailable(f"{written[:60]!r} is no address -> write example.org")
    raise (problems or [no_address])[0]


def _places(written: str) -> Iterator[str]:
    """Yield addresses to try: as written, then https; on this machine also http, which comes first."""
    scheme, _, name = written.strip().rstrip("/").rpartition("://")
    if re.fullmatch(URL, f"https://{name}"):
        plain = ["http"] if is_loopback(urlsplit(f"https://{name}").hostname or "") else []
        for each in dict.fromkeys([*([scheme] if scheme else plain), "https", *plain]):
            yield f"{each}://{name}"


async def _well_known(matrix: Matrix) -> Matrix:
    """Return the homeserver that the server's `.well-known` names."""
    answer, _ = await _fetch(matrix, WELL_KNOWN)
    problem = mapping(answer.get("m.homeserver")).get("base_url")
    return replace(matrix, homeserver=_checked_address(matrix, problem))


async def _check_versions(matrix: Matrix) -> str:
    answer, at = await _fetch(matrix, VERSIONS)
    if not isinstance(answer.get("versions"), list):
        problem = f"{matrix.homeserver} is no Matrix homeserver -> {ADVICE}"
        raise HomeserverUnavailable(problem, status=200)
    return _checked_address(matrix, at.partition(VERSIONS)[0])


def _checked_address(before: Matrix, address: object) -> str:
    """Check an address named by a server: no step from https to http."""
    is_url = isinstance(address, str) and re.fullmatch(URL, address)
    if not is_url or before.homeserver.split(":")[0] == "https" != str(address).split(":")[0]:
        problem = f"{before.homeserver} leads to {str(address)[:200]}, which is not encrypted"
        raise HomeserverUnavailable(problem, status=200)
    return str(address).rstrip("/")


async def _fetch(matrix: Matrix, target: str) -> tuple[dict[str, object], str]:
    try:
        async with anonymous(matrix) as nio:
            return await fetch(nio, target)
    except (SendRefused, LoginRefused, ValueError) as error:
        raise HomeserverUnavailable(f"{matrix.homeserver}: {error}", status=400) from error
