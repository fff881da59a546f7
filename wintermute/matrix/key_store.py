"""Safe writing to nio's key store, whose file may be full, locked or read-only.

nio changes its account and sessions in memory first and stores them afterwards. If storing fails,
memory is ahead: a one-time key is gone whose session was not stored, or a ratchet has advanced. So
every write is one transaction. After a failed one, account and sessions are read again from the
store before they are used.

A restored data folder starts like any other, but its keys are outdated. So a random value at the
homeserver, the epoch, is replaced regularly: an unknown epoch shows that the data come from a
backup. Our database and the key store's file are copied separately, so both must know the epoch
(F-009).
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
"""Seconds that a statement waits for a lock; the whole daemon is blocked meanwhile."""
CANNOT = "the key store {} cannot be written"
ADVICE = {
    "locked": "let the program that has locked it end",
    "disk is full": "make room on its disk",
    "disk I/O error": "make room on its disk",
    "readonly database": "make it writable for the user who runs Wintermute",
}
EPOCH = "dev.wintermute.epoch."
"""Beginning of the account data type of an epoch; the device's id follows."""
INSTALLATION_TYPE = "dev.wintermute.installation"
"""The account data type of the running installation."""
MOST_EPOCHS = 1000
"""Remembered epochs: a homeserver restored from its own backup may serve an old one."""
VALUE = re.compile(r"epoch_[0-9a-f]{16}")
EpochOrigin = Literal["none", "ours", "foreign"]


def is_trouble(error: BaseException) -> bool:
    """Check if an error comes from the disk or the file, not from the data.

    Data of a stranger can cause only an IntegrityError, a DataError or no database error at all.
    """
    return isinstance(error, OperationalError) or type(error) is DatabaseError


def blocked(file: Path, problem: object) -> KeyStoreBlocked | None:
    """Return the error for a problem that a person can solve; None for another one."""
    while problem is not None:
        reason = " ".join(str(problem).split())
        for text, advice in ADVICE.items():
            if text in reason:
                return KeyStoreBlocked(f"{CANNOT.format(file.name)} ({reason}): {advice}")
        # If the disk is full, SQLite rolls back by itself, and the rollback after it fails, too.
        problem = getattr(problem, "__context__", None)
    return None


class KeyStore:
    """The only way for nio to write its key store."""

    def __init__(self, nio: AsyncClient, prepare: Callable[[Any], None]) -> None:
        """`prepare` installs our hooks in nio's Olm machine after its account was replaced."""
        self._nio = nio
        self._prepare = prepare
        self._is_stale = False
        self.trouble = ""
        """The reason why the store cannot be written, for the status; "" if it can."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Store the changes of this block in one transaction, or undo them in nio's memory as well.

        The block must not await: the transaction would include other tasks' writes.

        Raises: KeyStoreBlocked; the work has to be repeated later.
        """
        if self._nio.olm is None:
            yield
            return
        self.reload()
        database = self._nio.store.database
        try:
            before = database.connection().total_changes
            with database.atomic():
                yield
            written = database.connection().total_changes > before
        except PeeweeException as error:
            if not is_trouble(error):
                raise
            blocked_error = self._note_problem(error)
            self._forget()
            with suppress(KeyStoreBlocked):  # the next writer tries again
                self.reload()
            raise blocked_error from error
        if written and self.trouble:
            log.info("key store written again")
            self.trouble = ""

    def probe(self) -> None:
        """After a failure, write the stored account again as a test. Raises: KeyStoreBlocked."""
        if self.trouble:
            with self.writing():
                self._nio.olm.save_account()

    def _forget(self) -> None:
        """Mark nio's memory as ahead of the store: it must not be written, and the sync is repeated."""
        self._is_stale = True
        self._nio.next_batch = ""
        database = self._nio.store.database
        database.autoconnect = False  # so that no other code can write, either
        with suppress(PeeweeException):
            database.close()

    def reload(self) -> None:
        """Reload nio's memory from the store if it is ahead. Raises: KeyStoreBlocked."""
        if not self._is_stale:
            return
        olm, database = self._nio.olm, self._nio.store.database
        try:
            if database.is_closed():
                database.connect()
            account = olm.store.load_account()
            olm.load()
            own = account.identity_keys["curve25519"]
        except (PeeweeException, ValueError, AttributeError) as error:  # or another file by now
            self._forget()
            raise self._note_problem(error) from error
        olm.account = account
        self._prepare(olm)
        olm.outbound_group_sessions = {
            room_id: session
            for room_id, session in olm.outbound_group_sessions.items()
            if olm.inbound_group_store.get(room_id, own, session.id)  # else undecryptable for us
        }
        self._is_stale = False

    def _note_problem(self, error: Exception) -> KeyStoreBlocked:
        file = Path(self._nio.store.database_path)
        unclear = f"{CANNOT.format(file.name)} ({error}): run `wintermute check`"
        blocked_error = blocked(file, error) or KeyStoreBlocked(unclear)
        if not self.trouble:
            log.warning("key store blocked reason=%s", blocked_error)
        self.trouble = str(blocked_error)
        return blocked_error


def classify_epoch(
    served: str, here: frozenset[str], beside_keys: frozenset[str] | None
) -> EpochOrigin:
    """Classify the served epoch; "" means that the homeserver has none of ours.

    `beside_keys`: those in the key store's file; None without encryption.
    """
    if not served:
        return "none"
    known = served in here and (beside_keys is None or served in beside_keys)
    return "ours" if known else "foreign"


def value_in(content: object) -> str:
    """Return the epoch in account data, which anybody with our login may have written."""
    value = mapping(content).get("epoch")
    return value if isinstance(value, str) and VALUE.fullmatch(value) else ""


def newest_in(sync: Json, kind: str) -> object:
    """Return our account data of a type in a sync; None if it has none."""
    events = mapping(sync.get("account_data")).get("events")
    found = [mapping(event) for event in events] if isinstance(events, list) else []
    return next((e.get("content") for e in reversed(found) if e.get("type") == kind), None)


class KeyNotes:
    """Our own table in the file of nio's key store, which is copied and restored with the keys.

    It is written only in `KeyStore.writing()`, or while the store is opened.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        # Every time, as the file may be another one by now; nothing is written if it exists.
        self._execute(
            "CREATE TABLE IF NOT EXISTS wintermute_notes (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " kind TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (kind, value))"
        )

    def values(self, kind: str) -> frozenset[str]:
        """Return all values of a kind."""
        rows = self._execute("SELECT value FROM wintermute_notes WHERE kind = ?", kind)
        return frozenset(value for (value,) in rows)

    def note(self, kind: str, value: str) -> None:
        """Add a value; the oldest beyond `MOST_EPOCHS` are deleted."""
        self._execute(
            "INSERT OR IGNORE INTO wintermute_notes (kind, value) VALUES (?, ?)", kind, value
        )
        self._execute(
            "DELETE FROM wintermute_notes WHERE kind = ? AND seq <= (SELECT seq FROM"
            " wintermute_notes WHERE kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            *(kind, kind, MOST_EPOCHS),
        )

    def remove(self, kind: str, value: str) -> None:
        """Delete a value."""
        self._execute("DELETE FROM wintermute_notes WHERE kind = ? AND value = ?", kind, value)

    def add_olm_sessions(self, kind: str, also: str) -> None:
        """Add the ids of all current Olm sessions, and one more value."""
        self._execute(
            "INSERT OR IGNORE INTO wintermute_notes (kind, value)"
            " SELECT ?, session_id FROM olmsessions UNION ALL SELECT ?, ?",
            *(kind, kind, also),
        )

    def _execute(self, sql: str, *values: object) -> Any:
        return self._database.execute_sql(sql, values)


class Epochs:
    """The epochs of one device: at the homeserver, and in the key store's file."""

    def __init__(self, nio: AsyncClient, store: KeyStore) -> None:
        self._nio = nio
        self._store = store

    @property
    def beside_keys(self) -> frozenset[str] | None:
        """The epochs in the key store's file; None without encryption.

        Raises: KeyStoreBlocked.
        """
        if not self._nio.olm:
            return None
        with self._store.writing():
            return KeyNotes(self._nio.store.database).values("epoch")

    def store_beside_keys(self, value: str) -> None:
        """Store an epoch in the key store's file before the homeserver has it. Raises: KeyStoreBlocked."""
        if self._nio.olm:
            with self._store.writing():
                KeyNotes(self._nio.store.database).note("epoch", value)

    async def fetch(self) -> str:
        """Return the epoch at the homeserver; "" if there is none that we could have written."""
        return value_in(await self.fetch_account_data(EPOCH + self._nio.device_id))

    async def upload(self, value: str) -> None:
        """Store an epoch at the homeserver."""
        await self.set_account_data(EPOCH + self._nio.device_id, {"epoch": value})

    async def fetch_account_data(self, kind: str) -> Json:
        """Fetch the account data of a type; {} if there are none."""
        try:
            return await call(self._nio, "GET", self._target(kind))
        except SendRefused as error:
            if error.code != "M_NOT_FOUND" and error.status != 404:  # M_FORBIDDEN at Dendrite
                raise
            return {}

    async def set_account_data(self, kind: str, content: Json) -> None:
        """Replace the account data of a type."""
        await call(self._nio, "PUT", self._target(kind), content)

    def _target(self, kind: str) -> str:
        return path("user", self._nio.user_id, "account_data", kind)
