"""Full-text tables (FTS5): derived, so damage never prevents a start, and erased without a trace."""

import logging
from typing import Any

from wintermute.db import driver

log = logging.getLogger(__name__)

ERASES = driver.VERSION >= (3, 42)
"""True if deleted words leave the index at once; otherwise the index must be rebuilt for that."""
TABLES = (
    "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"
    " AND sql LIKE 'CREATE VIRTUAL TABLE%USING fts5%'"
)
ORDINARY = (
    "SELECT name FROM sqlite_schema t WHERE type = 'table' AND rootpage > 0 AND NOT EXISTS"
    f" (SELECT 1 FROM ({TABLES}) f WHERE substr(t.name, 1, length(f.name) + 1) = f.name || '_')"
)


def erasing(name: str) -> str:
    """Return the statement that makes such a table erase deleted text."""
    return f"INSERT INTO {name} ({name}, rank) VALUES ('secure-delete', 1)"


def erase_in_place(connection: Any) -> None:
    """Set that option in every such table, as `PRAGMA secure_delete` does for other tables."""
    for name, _ in connection.execute(TABLES).fetchall() if ERASES else ():
        kept = f"SELECT v FROM {name}_config WHERE k = 'secure-delete'"
        if not connection.execute(kept).fetchone():
            connection.execute(erasing(name))


def dropping(name: str) -> tuple[str, ...]:
    """Return the statements that drop an existing table, however damaged."""
    return (
        # A table without its settings cannot be dropped.
        f"CREATE TABLE IF NOT EXISTS {name}_config (k PRIMARY KEY, v) WITHOUT ROWID",
        f"INSERT OR IGNORE INTO {name}_config VALUES ('version', 4)",
        f"DROP TABLE {name}",
    )


def drop_broken(connection: Any) -> None:
    """Drop every such table if one of them is broken.

    Its owner, in whatever process, finds it missing and rebuilds it.
    """
    names = [name for name, _ in connection.execute(TABLES).fetchall()]
    if all(_is_sound(connection, name) for name in names):
        return
    connection.execute("BEGIN IMMEDIATE")
    for name in names:
        log.warning("full-text index broken, dropped name=%s", name)
        for statement in dropping(name):
            connection.execute(statement)
    connection.execute("COMMIT")


def others_are_sound(connection: Any) -> bool:
    """Check whether every other table passes a quick check."""
    try:
        listed = connection.execute(ORDINARY).fetchall()
        checks = [connection.execute(f"PRAGMA quick_check('{name}')") for (name,) in listed]
        return bool(checks) and all(check.fetchone()[0] == "ok" for check in checks)
    except driver.Error:
        return False


def _is_sound(connection: Any, name: str) -> bool:
    try:
        connection.execute(f"INSERT INTO {name} ({name}) VALUES ('integrity-check')")
    except driver.Error:
        return False
    return True
