"""Notices that our data are an earlier copy of what was used since, or that another copy is at work."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.errors import AnotherCopyRuns, KeyStoreBlocked, SendRefused
from wintermute.health.store import Health
from wintermute.ids import NewId
from wintermute.mailbox.elsewhere import Elsewhere
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.epochs import MOST_EPOCHS, standing

log = logging.getLogger(__name__)

ACTIVE_SECONDS = 600.0
"""How long a value stands while we are active: what a copy from within does not know shows in the rooms."""
AT_ONCE_SECONDS = 3600.0
"""Two foreign values within this are no copy put back, but one that runs beside us."""
RUNS_BESIDE = (
    "another copy of this data folder is at work with the same login, and the two spoil each other's "
    "encryption: stop one of them, then start this one again; a second bot needs an account and a "
    "folder of its own (`wintermute init DIR`)"
)
MET = "another copy of these data was at work -> see that only one runs"


@dataclass(frozen=True, slots=True)
class Copy:
    """That our data went back. `since`: when they were last in use, if they ever were."""

    seq: int
    since: datetime | None
    noticed_at: datetime


class CopyStore:
    """The values we have had the homeserver keep, and the copies that were noticed."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def values(self, device_id: str) -> frozenset[str]:
        """Those of a device that are remembered."""
        rows = await self._database.rows(
            "SELECT value FROM epochs WHERE device_id = ?", (device_id,)
        )
        return frozenset(row["value"] for row in rows)

    async def add(self, device_id: str, value: str) -> None:
        """Remember one more, before the homeserver has it."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO epochs (device_id, value) VALUES (?, ?)", (device_id, value)
            )
            await tx.execute(
                "DELETE FROM epochs WHERE device_id = :device AND seq <= (SELECT seq FROM epochs"
                " WHERE device_id = :device ORDER BY seq DESC LIMIT 1 OFFSET :most)",
                {"device": device_id, "most": MOST_EPOCHS},
            )

    async def notice(
        self, tx: Transaction, sign: str, since: datetime | None, *, settled: bool
    ) -> None:
        """Keep a sign of a copy, once."""
        await tx.execute(
            "INSERT INTO copies (sign, since, noticed_at, settled) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (sign) DO NOTHING",
            (sign, stamp(since) if since else None, stamp(self._clock.now()), settled),
        )

    async def unsettled(self, tx: Transaction) -> Copy | None:
        """The copy of whose time it is not known yet what was said; the oldest."""
        row = await tx.row("SELECT * FROM copies WHERE NOT settled ORDER BY seq LIMIT 1")
        if row is None:
            return None
        since = moment(row["since"]) if row["since"] else None
        return Copy(row["seq"], since, moment(row["noticed_at"]))

    async def settle(self, tx: Transaction) -> None:
        """All of it is known, and told."""
        await tx.execute("UPDATE copies SET settled = 1 WHERE NOT settled")


class Copies:
    """Keeps the value at the homeserver new, and looks whose it is."""

    def __init__(
        self, client: MatrixClient, database: Database, clock: Clock, new_id: NewId
    ) -> None:
        self._client = client
        self._health = Health(database, clock)
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._replacing = asyncio.Lock()
        self._pending = ""
        self._looked = False
        self._replaced_at: float | None = None
        self._foreign: dict[str, float] = {}  # when each foreign value was met
        self._overheard_at = -AT_ONCE_SECONDS
        self._store = CopyStore(database, clock)
        self._elsewhere = Elsewhere(database)

    async def arrive(self) -> None:
        """At the start, before anything is heard: whose is the value, and put one of ours there.

        A value of ours can be put there later, while the key store is blocked: nothing is encrypted
        before that, and what is said in clear shows in the rooms.

        Raises: AnotherCopyRuns; KeyStoreBlocked while nobody can know or keep whose it is.
        """
        if self._replaced_at is not None or (self._looked and self._client.store_trouble):
            return
        try:
            served = await self._client.epochs.served()
        except SendRefused as error:
            await self._refused(error)
            return
        if await self._is_foreign(served):
            since = await self._elsewhere.last_sync(self._client.account.user_id)
            await self._meet(served, since)
        elif await self._health.part("copies") is not None:
            await self._health.note("copies", "ok", "no other copy of these data is at work")
        self._looked = True
        with suppress(KeyStoreBlocked):
            await self.replace()

    async def heard(self, value: str) -> None:
        """A sync brought a value: whose is it? Raises: AnotherCopyRuns."""
        if value and await self._is_foreign(value):
            await self._meet(value, None)
            await self._health.note("copies", "warn", MET)
            await self.replace()

    async def overheard(self, event_id: str) -> None:
        """Somebody else speaks with our mark: told once an hour, for values tell more of it."""
        now = self._clock.monotonic()
        if event_id and not self._lately(now):
            self._overheard_at = now
            await self._notice(event_id, None)
            await self._health.note("copies", "warn", MET)

    def _lately(self, now: float) -> bool:
        met = [*self._foreign.values(), self._overheard_at]
        return any(now - at < AT_ONCE_SECONDS for at in met)

    async def before_sending(self, *, encrypted: bool) -> None:
        """Put a new value there if the last one has stood for long.

        What goes out in clear does not wait for a key store that is blocked. Raises: KeyStoreBlocked.
        """
        since = self._replaced_at
        if since is not None and self._clock.monotonic() - since < ACTIVE_SECONDS:
            return
        if self._client.store_trouble and not encrypted:
            return
        async with self._replacing:
            if self._replaced_at == since:
                try:
                    await self.replace()
                except KeyStoreBlocked:
                    if encrypted:
                        raise

    async def replace(self) -> None:
        """Put a new value at the homeserver; first it is kept here, in both places."""
        if not self._pending:
            value = self._new_id("epoch")
            self._client.epochs.keep(value)
            await self._store.add(self._client.account.device_id, value)
            self._pending = value
        try:
            await self._client.epochs.serve(self._pending)
        except SendRefused as error:
            await self._refused(error)
        else:
            self._replaced_at = self._clock.monotonic()
        self._pending = ""

    async def _is_foreign(self, served: str) -> bool:
        known = await self._store.values(self._client.account.device_id)
        return standing(served, known, self._client.epochs.beside_keys) == "foreign"

    async def _notice(self, sign: str, since: datetime | None) -> None:
        """That keys are renewed is kept first: to do that without need does no harm."""
        self._client.renew_keys()
        async with self._database.transaction() as tx:
            await self._store.notice(tx, sign, since, settled=since is None)
        log.warning("copy noticed since=%s", since.isoformat() if since else "another runs")

    async def _meet(self, value: str, since: datetime | None) -> None:
        await self._notice(value, since)
        now = self._clock.monotonic()
        lately = {met: at for met, at in self._foreign.items() if now - at < AT_ONCE_SECONDS}
        self._foreign = {**lately, value: now}
        if len(self._foreign) > 1:
            raise AnotherCopyRuns(RUNS_BESIDE)

    async def _refused(self, error: SendRefused) -> None:
        """Then only what was said tells of a copy."""
        self._replaced_at = self._clock.monotonic()
        log.warning("account data refused reason=%s", error)
        text = f"the homeserver keeps no account data for us: {error} -> ask its admin"
        await self._health.note("copies", "warn", text)
