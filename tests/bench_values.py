"""What it costs to read an inbox row by the names of its fields, against by hand.

    python -m tests.bench_values

docs/benchmarks.md reports it.
"""

import tempfile
import timeit
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench_runner import show
from tests.world.schema import lay_schema
from wintermute.clock import moment
from wintermute.db import driver
from wintermute.db.values import columns, insert, reader
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Incoming

NOON = datetime(2026, 6, 12, 12, tzinfo=UTC)
HELLO = Incoming("$one", "!r:here", "@ann:here", "Ann", "owner", "message", "hello", NOON, True)
READS, ROUNDS = 50, 1_000  # short ones: on a busy machine some of them are left alone


def by_hand(row: Any) -> InboxRow:
    """As it would be written for this one table."""
    not_before: str | None = row["not_before"]
    return InboxRow(
        seq=row["seq"],
        event_id=row["event_id"],
        conversation_id=row["conversation_id"],
        room_id=row["room_id"],
        sender=row["sender"],
        sender_name=row["sender_name"],
        origin=row["origin"],
        kind=row["kind"],
        body=row["body"],
        direct=bool(row["direct"]),
        state=row["state"],
        not_before=None if not_before is None else float(not_before),
        received_at=moment(row["received_at"]),
        sent_at=moment(row["sent_at"]),
        edits=row["edits"],
        replies_to=row["replies_to"],
    )


def microseconds() -> tuple[float, float]:
    """A row by hand and by the names of the fields, in turn; the best of all rounds."""
    by_names = reader(InboxRow)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wintermute.db")
        lay_schema(path)
        connection = driver.connect(path, read_only=False)
        try:
            connection.execute("PRAGMA foreign_keys=OFF")
            more = {"conversation_id": "conv_1", "received_at": NOON, "state": "waiting"}
            connection.execute(*insert("inbox", columns(HELLO) | more))
            row = connection.execute("SELECT * FROM inbox").fetchone()
        finally:
            connection.close()
    assert by_names(row) == by_hand(row)
    rounds = [
        [timeit.timeit(lambda: read(row), number=READS) for read in (by_hand, by_names)]  # noqa: B023  called at once
        for _ in range(ROUNDS)
    ]
    hand, names = (min(times) / READS * 1e6 for times in zip(*rounds, strict=True))
    return hand, names


if __name__ == "__main__":
    hand, names = microseconds()
    show([f"| an inbox row | {hand:.1f} µs | {names:.1f} µs | {names / hand:.2f} |"])
