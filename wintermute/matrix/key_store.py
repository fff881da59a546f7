"""nio's key store as a file that may be full, locked or read-only: what it did not take is forgotten.

nio changes its account and its sessions in memory first and stores them afterwards. Where storing
fails, memory is ahead: a one-time key is gone whose session nobody kept, a ratchet has moved on
that nobody saved. So everything that writes is one transaction, and after one that failed the
account and the sessions are read anew from the store, before anybody works with them again.

A data folder that was put back from a copy starts like any other, but its encryption has gone on
without it. So a value at the homeserver is replaced again and again: who finds one there that was
never theirs is an earlier copy of what was used since. Our database and the key store's file are
copied apart, so both must know it (F-009).
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from nio import AsyncClient
from peewee import DatabaseError, OperationalError, PeeweeException, SqliteDatabase

from wintermute.errors import KeyStoreBlocked, SendRefused
from wintermute.matrix.http import call, path
from wintermute.messages import Json, mapping

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that a statement waits for a lock; nothing else of the daemon runs meanwhile."""
CANNOT = "the key store {} cannot be written"
ADVICE = {
    "locked": "let the program that has locked it end",
    "disk is full": "make room on its disk",
    "disk I/O error": "make room on its disk",
    "readonly database": "make it writable for the user who runs Wintermute",
}


def is_trouble(error: BaseException) -> bool:
    """Whether the disk or the file is to blame, rather than what was to be stored.

    What a stranger can cause is an IntegrityError, a DataError or no error of the database at all.
    """
    return isinstance(error, OperationalError) or type(error) is DatabaseError


def blocked(file: Path, problem: object) -> KeyStoreBlocked | None:
    """What to say of a problem that goes away when somebody does something about it; else None."""
    while problem is not None:
        reason = " ".join(str(problem).split())
        for text, advice in ADVICE.items():
            if text in reason:
                return KeyStoreBlocked(f"{CANNOT.format(file.name)} ({reason}): {advice}")
        # SQLite gives up a whole transaction when the disk is full: what is undone then fails too.
        problem = getattr(problem, "__context__", None)
    return None


class KeyStore:
    """The one way to let nio write."""

    def __init__(self, nio: AsyncClient, prepare: Callable[[Any], None]) -> None:
        """`prepare` puts our hooks into nio's machine when its account is another object."""
        self._nio = nio
        self._prepare = prepare
        self._is_stale = False
        self.trouble = ""
        """Why nothing can be written, for the status; empty when it can."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What nio stores inside is stored as a whole, or nio does not know it either.

        Nothing inside may wait: the transaction would be everybody's.

        Raises: KeyStoreBlocked; what was to be done is to be done again, later.
        """
        if self._nio.olm is None:
            yield
            return
        self.fresh()
        database = self._nio.store.database
        try:
            before = database.connection().total_changes
            with database.atomic():
                yield
            written = database.connection().total_changes > before
        except PeeweeException as error:
            if not is_trouble(error):
                raise
            told = self._told(error)
            self._forget()
            with suppress(KeyStoreBlocked):  # then the next one who wants to write tries again
                self.fresh()
            raise told from error
        if written and self.trouble:
            log.info("key store written again")
            self.trouble = ""

    def probe(self) -> None:
        """After trouble, write what is there already. Raises: KeyStoreBlocked."""
        if self.trouble:
            with self.writing():
                self._nio.olm.save_account()

    def _forget(self) -> None:
        """Memory is ahead of the store: nobody may write from it, nor pass over the sync again."""
        self._is_stale = True
        self._nio.next_batch = ""
        database = self._nio.store.database
        database.autoconnect = False  # so that who goes round this class cannot write either
        with suppress(PeeweeException):
            database.close()

    def fresh(self) -> None:
        """See that nio knows what is stored, and nothing else. Raises: KeyStoreBlocked."""
        if not self._is_stale:
            return
        olm, database = self._nio.olm, self._nio.store.database
        try:
            if database.is_closed():
                database.connect()
            account = olm.store.load_account()
            olm.load()
            own = account.identity_keys["curve25519"]
        except (PeeweeException, ValueError, AttributeError) as error:  # also another file by now
            self._forget()
            raise self._told(error) from error
        olm.account = account
        self._prepare(olm)
        olm.outbound_group_sessions = {
            room_id: session
            for room_id, session in olm.outbound_group_sessions.items()
            if olm.inbound_group_store.get(room_id, own, session.id)  # else we could not read us
        }
        self._is_stale = False

    def _told(self, error: Exception) -> KeyStoreBlocked:
        file = Path(self._nio.store.database_path)
        unclear = f"{CANNOT.format(file.name)} ({error}): run `wintermute check`"
        told = blocked(file, error) or KeyStoreBlocked(unclear)
        if not self.trouble:
            log.warning("key store blocked reason=%s", told)
        self.trouble = str(told)
        return told


EPOCH = "dev.wintermute.epoch."
"""How the type of our account data begins, followed by the device's id."""
AT_WORK = "dev.wintermute.installation"
"""The type of our account data that says which installation is at work."""
MOST_EPOCHS = 1000
"""Of ours that are remembered: a homeserver restored from its own backup may have an old one."""
VALUE = re.compile(r"epoch_[0-9a-f]{16}")

Standing = Literal["none", "ours", "foreign"]


def standing(served: str, here: frozenset[str], beside_keys: frozenset[str] | None) -> Standing:
    """Whose the value is that the homeserver has; "" where it has none that we could have made.

    `beside_keys`: those in the key store's file; None where there is no encryption.
    """
    if not served:
        return "none"
    known = served in here and (beside_keys is None or served in beside_keys)
    return "ours" if known else "foreign"


def value_in(content: object) -> str:
    """The value in account data, which anybody with our login may have written."""
    value = mapping(content).get("epoch")
    return value if isinstance(value, str) and VALUE.fullmatch(value) else ""


def newest_in(sync: Json, kind: str) -> object:
    """Return our account data of a type in a sync; None when it brings none."""
    events = mapping(sync.get("account_data")).get("events")
    found = [mapping(event) for event in events] if isinstance(events, list) else []
    return next((e.get("content") for e in reversed(found) if e.get("type") == kind), None)


class KeyNotes:
    """What we keep in the file of nio's key store, so that it is copied and restored with the keys.

    It is as blocked as that one: all of this happens in `KeyStore.writing()`, or as it is opened.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        # Each time, which writes nothing where it is: the file may be another by now.
        self._execute(
            "CREATE TABLE IF NOT EXISTS wintermute_notes (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " kind TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (kind, value))"
        )

    def values(self, kind: str) -> frozenset[str]:
        """All of a kind."""
        rows = self._execute("SELECT value FROM wintermute_notes WHERE kind = ?", kind)
        return frozenset(value for (value,) in rows)

    def note(self, kind: str, value: str) -> None:
        """Keep one more; the oldest beyond `MOST_EPOCHS` go."""
        self._execute(
            "INSERT OR IGNORE INTO wintermute_notes (kind, value) VALUES (?, ?)", kind, value
        )
        self._execute(
            "DELETE FROM wintermute_notes WHERE kind = ? AND seq <= (SELECT seq FROM"
            " wintermute_notes WHERE kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            *(kind, kind, MOST_EPOCHS),
        )

    def remove(self, kind: str, value: str) -> None:
        """Keep one no longer."""
        self._execute("DELETE FROM wintermute_notes WHERE kind = ? AND value = ?", kind, value)

    def add_olm_sessions(self, kind: str, also: str) -> None:
        """Keep the ids of all sessions with other devices that there are now, and one value more."""
        self._execute(
            "INSERT OR IGNORE INTO wintermute_notes (kind, value)"
            " SELECT ?, session_id FROM olmsessions UNION ALL SELECT ?, ?",
            *(kind, kind, also),
        )

    def _execute(self, sql: str, *values: object) -> Any:
        return self._database.execute_sql(sql, values)


class Epochs:
    """The values of one device: at the homeserver, and beside its keys."""

    def __init__(self, nio: AsyncClient, store: KeyStore) -> None:
        self._nio = nio
        self._store = store

    @property
    def beside_keys(self) -> frozenset[str] | None:
        """Those in the key store's file; None where there is no encryption.

        Raises: KeyStoreBlocked.
        """
        if not self._nio.olm:
            return None
        with self._store.writing():
            return KeyNotes(self._nio.store.database).values("epoch")

    def keep(self, value: str) -> None:
        """Keep a value beside the keys, before the homeserver has it. Raises: KeyStoreBlocked."""
        if self._nio.olm:
            with self._store.writing():
                KeyNotes(self._nio.store.database).note("epoch", value)

    async def served(self) -> str:
        """What the homeserver has; "" for nothing that we could have written."""
        return value_in(await self.kept_under(EPOCH + self._nio.device_id))

    async def serve(self, value: str) -> None:
        """Give the homeserver a value."""
        await self.keep_under(EPOCH + self._nio.device_id, {"epoch": value})

    async def kept_under(self, kind: str) -> Json:
        """Fetch the account data of a type; nothing where there is none."""
        try:
            return await call(self._nio, "GET", self._target(kind))
        except SendRefused as error:
            if error.code != "M_NOT_FOUND" and error.status != 404:  # M_FORBIDDEN at Dendrite
                raise
            return {}

    async def keep_under(self, kind: str, content: Json) -> None:
        """Put something there in the place of what stands under a type."""
        await call(self._nio, "PUT", self._target(kind), content)

    def _target(self, kind: str) -> str:
        return path("user", self._nio.user_id, "account_data", kind)
