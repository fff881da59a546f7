"""Each table is emptied as it declares, and keeps what is still needed (M-030, M-066)."""

import json
import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

import wintermute
from tests.world.schema import lay_schema
from wintermute.db import driver, open_database
from wintermute.db.eraser import DerivedFrom, Erased, erase
from wintermute.db.text_search import NO_MATCHES, SearchableText, TextQuery
from wintermute.forgetting.forgetting import STEPS
from wintermute.health.health import EDITED
from wintermute.jobs import ERASED_JOBS
from wintermute.loom.casts import FOLDS

WORD = "zimtkanarie"
TEXT = f"the bird is a {WORD}"
OTHER = json.dumps({"text": "Of tea they say nothing"})
SAID = json.dumps({"text": f"They say {TEXT}, of all things"})
PLACES = [kept for step in (*STEPS, (EDITED,)) for kept in step if kept != ERASED_JOBS[0]]
OVER = {
    "tasks": {"status": "deleted"},
    "jobs": {"state": "done"},
    "inbox": {"state": "answered"},
    "outbox": {"state": "stuck"},
    "decisions": {"state": "open"},
    "occurrences": {"state": "claimed", "outbox_id": "stuck"},
}
OPEN = {
    "casts": {"state": "running"},
    "turns": {"cast_id": "running"},
    "observations": {"turn_id": "of a running cast"},
    "sub_sessions": {"state": "waiting"},
    "inbox": {"state": "casting"},
    "outbox": {"state": "waiting"},
    "occurrences": {"state": "claimed"},
}
CAME = {
    "casts": {"id": "cast_gone"},
    "turns": {"cast_id": "cast_gone"},
    "observations": {"turn_id": "of cast_gone"},
    "edits": {"event_id": "$gone", "edited": "$gone"},
    "sub_sessions": {"root_event": "$gone"},
    "inbox": {"event_id": "$gone"},
    "outbox": {"answers": "$gone"},
    "model_calls": {"cast_id": "cast_gone", "sources": '["fact_gone"]'},
}
EMPTY = {"utterance": "", "calls": "[]"}
RUNNING = ("running", "of a running cast")
"""A cast, and a turn of it."""


def name(kept: SearchableText) -> str:
    """Its name, and the fate of its rows."""
    return f"{kept.name} {'dropped' if kept.drops else kept.cuts}".strip()


def declared() -> Iterator[SearchableText]:
    """What the modules of the program declare."""
    for found in pkgutil.walk_packages(wintermute.__path__, "wintermute."):
        if not found.name.endswith("__main__"):
            for value in vars(import_module(found.name)).values():
                parts = value if isinstance(value, tuple) else (value,)
                yield from (part for part in parts if isinstance(part, SearchableText))


def put(connection: Any, table: str, given: dict[str, Any], n: int = 0) -> None:
    """Insert a row with these values, and any others in the columns that need one."""
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    row = {
        column: n if kind == "INTEGER" else f"any {column} {n}"
        for _, column, kind, needs, default, _ in columns
        if needs and default is None and column != "seq"
    } | given
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", [*row.values()])


async def emptied(
    folder: Path, kept: SearchableText, given: dict[str, Any], came: DerivedFrom | None = None
) -> tuple[Erased, str]:
    """Erase the one row of two that says it, or that `came`; what was done, and what is left."""
    lay_schema(folder / "w.db")
    with closing(driver.connect(folder / "w.db", read_only=False)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        put(connection, "casts", {"id": RUNNING[0], "state": "running"})
        put(connection, "turns", {"id": RUNNING[1], "cast_id": RUNNING[0]})
        put(connection, "turns", {"id": "of cast_gone", "cast_id": "cast_gone"} | EMPTY)
        put(connection, "outbox", {"id": "stuck", "state": "stuck"})
        put(
            connection, kept.table, OVER.get(kept.table, {}) | dict.fromkeys(kept.columns, OTHER), 1
        )
        put(connection, kept.table, given | dict.fromkeys(kept.columns, SAID), 2)
        connection.commit()
    async with open_database(folder / "w.db") as database:
        async with database.text_search() as look:
            found = NO_MATCHES if came else await look.seek([TextQuery([kept], [TEXT.upper()])])
        async with database.transaction() as tx:
            done = await erase(tx, [kept], found, came or DerivedFrom())
        rows = await database.rows(f"SELECT * FROM {kept.table}")
        left = str([tuple(cast("Iterable[object]", row)) for row in rows])
        assert left.count(OTHER) == len(kept.columns)
        return done, left


@pytest.mark.parametrize("kept", PLACES, ids=name)
async def test_a_row_that_says_it_says_it_no_more(tmp_path: Path, kept: SearchableText) -> None:
    """M-030: it is counted once; where only words are cut, the others stay.

    Also one whose message nobody may ever read.
    """
    over = {"state": "waiting"} if kept.drops else OVER.get(kept.table, {})
    done, left = await emptied(tmp_path, kept, over)
    assert (len(done.rows), done.waiting) == (1, frozenset())
    assert WORD not in left
    assert ("of all things" in left) == bool(kept.cuts)


@pytest.mark.parametrize(
    "kept", [each for each in PLACES if each.derived and each != FOLDS], ids=name
)
async def test_a_row_that_came_of_it_goes_always(tmp_path: Path, kept: SearchableText) -> None:
    """M-030: known by its message or its cast, and by what a recording was made of."""
    for column, value in CAME[kept.table].items():
        (folder := tmp_path / column).mkdir()
        given = OVER.get(kept.table, {}) | {column: value}
        done, left = await emptied(
            folder, kept, given, DerivedFrom(["$gone"], ["cast_gone"], ["fact_gone"])
        )
        assert (len(done.rows), WORD in left) == (1, False)


@pytest.mark.parametrize("kept", [kept for kept in PLACES if kept.waits], ids=name)
async def test_a_row_still_needed_is_waited_for(tmp_path: Path, kept: SearchableText) -> None:
    """M-030: forgetting is asked for again until nothing of it is under way."""
    done, left = await emptied(tmp_path, kept, OPEN[kept.table])
    assert (done.rows, len(done.waiting)) == (frozenset(), 1)
    assert WORD in left


def test_whatever_may_hold_words_of_people_is_emptied() -> None:
    """F-034: a new table is none that forgetting does not know. Facts are purged."""
    holding = {(kept.table, column) for kept in declared() for column in kept.columns}
    emptying = {(kept.table, column) for kept in PLACES for column in kept.columns}
    assert holding - emptying == {("facts", "text")}
