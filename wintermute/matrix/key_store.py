"""nio's key store as a file that may be full, locked or read-only: what it did not take is forgotten.

nio changes its account and its sessions in memory first and stores them afterwards. Where storing
fails, memory is ahead: a one-time key is gone whose session nobody kept, a ratchet has moved on
that nobody saved. So everything that writes is one transaction, and after one that failed the
account and the sessions are read anew from the store, before anybody works with them again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nio import AsyncClient
from peewee import DatabaseError, OperationalError, PeeweeException

from wintermute.errors import KeyStoreBlocked

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that a statement waits for a lock; nothing else of the daemon runs meanwhile."""
LOCKED = "let the program that has locked it end"
NO_ROOM = "make room on its disk"
WRITABLE = "make it writable for the user who runs Wintermute"
ADVICE = {
    "locked": LOCKED,
    "disk is full": NO_ROOM,
    "disk I/O error": NO_ROOM,
    "readonly database": WRITABLE,
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
                return cannot_be_written(file, f"({reason}): {advice}")
        # SQLite gives up a whole transaction when the disk is full: what is undone then fails too.
        problem = getattr(problem, "__context__", None)
    return None


def cannot_be_written(file: Path, why: str) -> KeyStoreBlocked:
    """With what a person is told."""
    return KeyStoreBlocked(f"the key store {file.name} cannot be written {why}")


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
        told = blocked(file, error) or cannot_be_written(file, f"({error}): run `wintermute check`")
        if not self.trouble:
            log.warning("key store blocked reason=%s", told)
        self.trouble = str(told)
        return told
