"""Full-text tables (FTS5) as what they are here: derived, erased without a trace, never a reason not to start."""

import logging
from typing import Any

from wintermute.db import driver

log = logging.getLogger(__name__)

ERASES = driver.VERSION >= (3, 42)
"""Whether words that are deleted leave the index at once; else it has to be built anew for that."""
TABLES = (
    "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"
    " AND sql LIKE 'CREATE VIRTUAL TABLE%USING fts5%'"
)


def erasing(name: str) -> str:
    """The statement after which such a table leaves nothing of what is deleted there."""
    return f"INSERT INTO {name} ({name}, rank) VALUES ('secure-delete', 1)"


def erase_in_place(connection: Any) -> None:
    """See to that in every such table, as `PRAGMA secure_delete` does for the others."""
    for name, _ in connection.execute(TABLES).fetchall() if ERASES else ():
        kept = f"SELECT v FROM {name}_config WHERE k = 'secure-delete'"
        if not connection.execute(kept).fetchone():
            connection.execute(erasing(name))


def empty_broken(connection: Any) -> bool:
    """Make every such table anew, without its words, if one of them is broken; whether one was.

    Who owns it sees that it is not what its rows say, and fills it again.
    """
    found = connection.execute(TABLES).fetchall()
    if all(_is_sound(connection, name) for name, _ in found):
        return False
    connection.execute("BEGIN IMMEDIATE")
    for name, sql in found:
        log.warning("full-text index broken, emptied name=%s", name)
        # Nobody can drop a table whose settings are gone.
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name}_config (k PRIMARY KEY, v) WITHOUT ROWID"
        )
        connection.execute(f"INSERT OR IGNORE INTO {name}_config VALUES ('version', 4)")
        connection.execute(f"DROP TABLE {name}")
        connection.execute(sql)
    connection.execute("COMMIT")
    return True


def _is_sound(connection: Any, name: str) -> bool:
    try:
        connection.execute(f"INSERT INTO {name} ({name}) VALUES ('integrity-check')")
    except driver.Error:
        return False
    return True
