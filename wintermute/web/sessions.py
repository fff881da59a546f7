"""The logins of a door: tokens, login addresses and sessions, as hashes in the database."""

import asyncio
import hashlib
import hmac
import math
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wintermute.clock import Clock, stamp
from wintermute.config.schema import SHORTEST_TOKEN, Config
from wintermute.db import Database, Transaction, put_single, single
from wintermute.db.values import reader
from wintermute.errors import FileUnusable, StorageBlocked, WebUnavailable
from wintermute.files import content_of, decoded, write_new
from wintermute.web.parts import WebParts

TOKEN = "web.token"
LARGEST = 4096
LINK_LASTS = timedelta(minutes=10)
SESSION_LASTS = timedelta(days=30)
TOUCHED = timedelta(minutes=1)
"""The precision of the time of the last use."""
MOST_WRONG = 5
WRONG_SECONDS = 60.0
LEAVE_SECONDS = 3.0
DOOR_ID, ADDRESS = "web door", "web address"
"""The keys for the id in the cookie's name, and for the address where pages are served now."""
ROLLBACK = "(SELECT COALESCE(MAX(seq), 0) FROM rollbacks WHERE since IS NOT NULL)"
"""The newest rollback: the last time that our data turned out to be an earlier copy."""


@dataclass(eq=False, slots=True)
class Visitor:
    """The sender of a request, until it is answered. `session` None: a program with the token.

    `is_known` False: not logged in. Streams end when it has `left`.
    """

    session: str | None = None
    is_known: bool = True
    left: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))

    def leave(self) -> None:
        """End the streams, and everything else within a few seconds."""
        if not self.left.is_set():
            self.left.set()
            self.limit.reschedule(asyncio.get_running_loop().time() + LEAVE_SECONDS)


@dataclass(frozen=True, slots=True)
class WebSession:
    """A browser that is logged in."""

    seq: int
    hash: str
    made_at: datetime
    used_at: datetime


_session = reader(WebSession)


def door_token(config: Config) -> str:
    """Return the configured token, else the one in the data folder, which is made once.

    Raises: WebUnavailable for a file without a token, or with a short one that others could guess.
    """
    if config.web.token is not None:
        token = config.web.token.reveal()
        if len(token) < SHORTEST_TOKEN and config.web.is_exposed:
            raise WebUnavailable(
                f"web.token has fewer than {SHORTEST_TOKEN} characters, and other machines can reach"
                " the pages: write a longer one, or none"
            )
        return token
    path = config.data_dir / TOKEN
    try:
        if not path.exists():
            write_new(path, f"{secrets.token_urlsafe(32)}\n".encode())
        token = decoded(content_of(path, LARGEST, follow=False) or b"").strip()
    except OSError as error:
        raise WebUnavailable(f"{path} cannot be written: {error.strerror}") from error
    except FileUnusable as problem:
        raise WebUnavailable(f"{path} {problem}") from problem
    if len(token) < SHORTEST_TOKEN or not token.isprintable():
        raise WebUnavailable(
            f"{path} holds no token of at least {SHORTEST_TOKEN} characters: delete the file, and a"
            " new token is made"
        )
    return token


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class DoorStore:
    """The rows of a door: a command writes login addresses here, the daemon takes them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def invite(self) -> str:
        """Return a key that lets one browser in, once, within ten minutes."""
        key = secrets.token_urlsafe(32)
        async with self._database.transaction() as tx:
            await tx.execute(
                f"INSERT INTO web_links (hash, rollback, made_at) VALUES (?, {ROLLBACK}, ?)",
                (_digest(key), stamp(self._clock.now())),
            )
        return key

    async def id(self) -> str:
        """Return the id in the name of this data folder's cookie."""
        async with self._database.transaction() as tx:
            known = await single(tx, DOOR_ID) or secrets.token_hex(6)
            await put_single(tx, DOOR_ID, known)
        return str(known)

    async def serve_at(self, address: str | None) -> None:
        """Note where the daemon serves pages; None: nowhere."""
        async with self._database.transaction() as tx:
            await put_single(tx, ADDRESS, address)

    async def address(self) -> str | None:
        """Return the address at which a running daemon serves pages."""
        return await single(self._database, ADDRESS)


class Logins:
    """The tokens, login addresses and sessions of one data folder, and the present visitors."""

    def __init__(self, parts: WebParts) -> None:
        """Read the token. Raises: WebUnavailable if there is none."""
        self._database = parts.stores.database
        self._clock = parts.clock
        token = door_token(parts.config)
        parts.redact.hide(token)
        self._token = _digest(token)
        self._wrong = deque[float](maxlen=MOST_WRONG)
        self._present: set[Visitor] = set()
        self._is_over = False

    def wait(self) -> int:
        """Return the seconds until a token is checked again; 0: now."""
        if len(self._wrong) < MOST_WRONG:
            return 0
        return max(0, math.ceil(self._wrong[0] + WRONG_SECONDS - self._clock.monotonic()))

    def knows(self, token: str) -> bool:
        """Compare a token with ours; wrong ones are counted."""
        right = hmac.compare_digest(_digest(token), self._token)
        if not right:
            self._wrong.append(self._clock.monotonic())
        return right

    async def enter(self) -> str:
        """Begin a session after the right token. Return the value of its cookie."""
        async with self._database.transaction() as tx:
            return await self._begin(tx)

    async def redeem(self, key: str) -> str | None:
        """Begin a session with the key of a login address; None if it was used, or is old."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            taken = await tx.execute(
                "UPDATE web_links SET used_at = :now WHERE hash = :hash AND used_at IS NULL"
                f" AND made_at BETWEEN :first AND :last AND rollback = {ROLLBACK}",
                {
                    "now": stamp(now),
                    "hash": _digest(key),
                    "first": stamp(now - LINK_LASTS),
                    "last": stamp(now + LINK_LASTS),  # the clock may have been set back
                },
            )
            return await self._begin(tx) if taken else None

    async def _begin(self, tx: Transaction) -> str:
        cookie, now = secrets.token_urlsafe(32), self._clock.now()
        await tx.execute("DELETE FROM web_links WHERE made_at < ?", (stamp(now - SESSION_LASTS),))
        await tx.execute(
            f"DELETE FROM web_sessions WHERE used_at < ? OR token <> ? OR rollback <> {ROLLBACK}",
            (stamp(now - SESSION_LASTS), self._token),
        )
        await tx.execute(
            "INSERT INTO web_sessions (hash, token, rollback, made_at, used_at)"
            f" VALUES (?, ?, {ROLLBACK}, ?, ?)",
            (_digest(cookie), self._token, stamp(now), stamp(now)),
        )
        return cookie

    async def visitor(self, cookie: str) -> Visitor:
        """Return the sender with this cookie, and note the use of its session."""
        found = await self._sessions("AND hash = ?", _digest(cookie)) if cookie else []
        if not found:
            return Visitor(is_known=False)
        now = self._clock.now()
        if abs(now - found[0].used_at) >= TOUCHED:
            with suppress(StorageBlocked):  # pages can be read even if nothing can be written
                async with self._database.transaction() as tx:
                    await tx.execute(
                        "UPDATE web_sessions SET used_at = ? WHERE hash = ?",
                        (stamp(now), found[0].hash),
                    )
        return Visitor(found[0].hash)

    async def lives(self, visitor: Visitor) -> bool:
        """Return True while a session is valid: it ends by a logout, by age, or by a new token."""
        if visitor.session is None:
            return True
        return bool(await self._sessions("AND hash = ?", visitor.session))

    async def listed(self) -> list[WebSession]:
        """Return all sessions, the last used first."""
        return await self._sessions("ORDER BY used_at DESC, seq DESC")

    async def end(self, seq: int | None) -> int:
        """End one session, or all, with their streams. Return their number."""
        gone = [each for each in await self.listed() if seq in (None, each.seq)]
        async with self._database.transaction() as tx:
            await tx.execute_many(
                "DELETE FROM web_sessions WHERE seq = ?", [(each.seq,) for each in gone]
            )
        ended = {each.hash for each in gone}
        for visitor in self._present:
            if visitor.session in ended:
                visitor.leave()
        return len(gone)

    async def _sessions(self, which: str, *values: str) -> list[WebSession]:
        rows = await self._database.rows(
            "SELECT seq, hash, made_at, used_at FROM web_sessions WHERE token = ? AND used_at >= ?"
            f" AND rollback = {ROLLBACK} {which}",
            (self._token, stamp(self._clock.now() - SESSION_LASTS), *values),
        )
        return [_session(row) for row in rows]

    @contextmanager
    def present(self, visitor: Visitor) -> Iterator[None]:
        """Note a visitor as present during a block, so that it can be ended."""
        self._present.add(visitor)
        if self._is_over:
            visitor.leave()
        try:
            yield
        finally:
            self._present.remove(visitor)

    def dismiss_all(self) -> None:
        """Ask all requests to end now, and those that still come."""
        self._is_over = True
        for visitor in self._present:
            visitor.leave()
