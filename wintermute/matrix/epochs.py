"""A value that stands at the homeserver, in our database and in the key store's file (F-009).

A data folder that was put back from a copy starts like any other, but its encryption has gone on
without it. So the value is replaced again and again: who finds one there that was never theirs is
an earlier copy of what was used since. The two files are copied apart, so both must know it.
"""

import re
from typing import Any, Literal

from nio import AsyncClient
from peewee import SqliteDatabase

from wintermute.errors import SendRefused
from wintermute.matrix.http import call, path
from wintermute.matrix.inbox import mapping
from wintermute.matrix.key_store import KeyStore
from wintermute.messages import Json

EPOCH = "dev.wintermute.epoch."
"""How the type of our account data begins, followed by the device's id."""
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


def newest_in(sync: Json, device_id: str) -> str:
    """The value that a sync brings for a device; "" when it brings none."""
    events = mapping(sync.get("account_data")).get("events")
    found = [mapping(event) for event in events] if isinstance(events, list) else []
    values = [value_in(e.get("content")) for e in found if e.get("type") == EPOCH + device_id]
    return values[-1] if values else ""


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
        return frozenset(
            row[0]
            for row in self._execute("SELECT value FROM wintermute_notes WHERE kind = ?", kind)
        )

    def add(self, kind: str, value: str) -> None:
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
                KeyNotes(self._nio.store.database).add("epoch", value)

    async def served(self) -> str:
        """What the homeserver has; "" for nothing that we could have written."""
        try:
            return value_in(await call(self._nio, "GET", self._target))
        except SendRefused as error:
            if error.code != "M_NOT_FOUND":
                raise
            return ""

    async def serve(self, value: str) -> None:
        """Give the homeserver a value."""
        await call(self._nio, "PUT", self._target, {"epoch": value})

    @property
    def _target(self) -> str:
        return path("user", self._nio.user_id, "account_data", EPOCH + self._nio.device_id)
