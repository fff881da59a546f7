"""The inbox of a program that knew no identities, after the upgrade: every row and place is kept."""

import itertools
import sqlite3  # noqa: TID251  a look from outside, with another library than the program's
from pathlib import Path

from wintermute.db import Row, open_database
from wintermute.db.database import shipped_migrations
from wintermute.db.migrate import migrate

STATES = ("locked", "waiting", "casting", "answered", "ignored")
KINDS = ("message", "command", "event", "context", "locked")
KEPT = (
    "seq, event_id, conversation_id, room_id, sender, sender_name, origin, kind, body, direct,"
    " by_bot, raw, sent_at, received_at, state, edits"
)
CONVERSATION = (
    "INSERT INTO conversations (id, kind, room_id, scope, created_at)"
    " VALUES ('c', 'room', '!r', 's', ?)"
)
NOW = "2026-05-04T12:00:00.000000+00:00"


def values(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in row.keys())  # noqa: SIM118  a row gives its values otherwise


def of_schema_5(path: Path) -> list[tuple[object, ...]]:
    """A database with rows of every state and kind, some gone; the rows."""
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, path, [step for step in shipped_migrations() if step.number <= 5])
    connection.execute(CONVERSATION, (NOW,))
    for n, (state, kind) in enumerate(itertools.product(STATES, KINDS)):
        connection.execute(
            "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
            " kind, body, direct, by_bot, raw, sent_at, received_at, not_before, state, edits)"
            " VALUES (?, 'c', '!r', '@a:b', 'A', 'owner', ?, 'x', 1, ?, '{}', ?, ?, ?, ?, ?)",
            (f"$e{n}", kind, n % 2, NOW, NOW, NOW if n % 3 else None, state, f"$e{n - 1}"),
        )
    connection.execute("DELETE FROM inbox WHERE seq % 7 = 0")
    rows = connection.execute(f"SELECT {KEPT} FROM inbox ORDER BY seq").fetchall()
    connection.close()
    return rows


async def test_an_upgrade_keeps_every_row_of_the_inbox_in_its_place(tmp_path: Path) -> None:
    """X-034: the new state needs a new table. A start lets go what waits."""
    path = tmp_path / "wintermute.db"
    before = of_schema_5(path)
    assert len(before) > 20
    async with open_database(path) as database:
        after = await database.rows(f"SELECT {KEPT} FROM inbox ORDER BY seq")
        assert [values(row) for row in after] == before
        waits = await database.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")
        assert not waits  # until a moment of a clock that may be set (F-015)
        for question, index in QUESTIONS.items():
            plan = await database.rows(f"EXPLAIN QUERY PLAN {question}", ("x",))
            assert index in str([values(row) for row in plan]), question


QUESTIONS = {
    "SELECT * FROM inbox WHERE state IN ('locked', 'untrusted') AND state = ? ORDER BY seq DESC"
    " LIMIT 200": "inbox_held",
    "UPDATE inbox SET raw = '' WHERE state IN ('locked', 'untrusted') AND state = 'untrusted'"
    " AND received_at < ?": "inbox_held",
    "SELECT DISTINCT conversation_id FROM inbox WHERE state IN ('waiting', 'casting')"
    " AND room_id <> ?": "inbox_open",
    "SELECT seq FROM inbox WHERE conversation_id = ? AND seq < 9 ORDER BY seq DESC": (
        "inbox_by_conversation"
    ),
    "SELECT * FROM inbox WHERE edits = ?": "inbox_edits",
    "SELECT * FROM inbox WHERE event_id = ?": "sqlite_autoindex_inbox",
}
