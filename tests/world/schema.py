"""A database with all migrations, as its first opening leaves it: made once, then copied.

What a first opening does is told in `test_database.py`; elsewhere twenty milliseconds of it for each
test would prove nothing more.
"""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from wintermute.db import Database, driver, open_database
from wintermute.db.database import shipped_migrations
from wintermute.db.migrate import migrate
from wintermute.db.text_search import TextMatches, TextQuery
from wintermute.forgetting.forgetting import SPOKEN
from wintermute.llm.calls import RECORDED

ROOT = Path(__file__).parent.parent.parent


@cache
def newest_schema() -> bytes:
    """The file itself, without a row in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wintermute.db")
        connection = driver.connect(path, read_only=False)
        try:
            migrate(connection, path, shipped_migrations())
        finally:
            connection.close()
        return path.read_bytes()


LATER = 2
"""The number of a step that the schema does not have yet."""


def later_program(folder: Path) -> Path:
    """The program as it will be once its schema has one more step; all else is a link to ours."""
    for name in ("wintermute", "wintermute/db", "wintermute/db/migrations"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir(parents=True)
        for item in (ROOT / name).iterdir():
            (folder / name / item.name).symlink_to(item)
    (folder / "tests").symlink_to(ROOT / "tests")
    step = folder / f"wintermute/db/migrations/{LATER:04d}_later.sql"
    step.write_text("CREATE TABLE later (x);")
    return folder


def lay_schema(path: Path) -> None:
    """Put the file there, unless there is one."""
    if not path.exists():
        path.write_bytes(newest_schema())


@asynccontextmanager
async def open_migrated(path: Path) -> AsyncIterator[Database]:
    """The database at a path; if there was none, one that has nothing to migrate."""
    lay_schema(path)
    async with open_database(path) as database:
        yield database


async def traces_of(database: Database, texts: Sequence[str]) -> TextMatches:
    """The rows that say one of these."""
    async with database.text_search() as look:
        return await look.seek([TextQuery([*SPOKEN, RECORDED], texts)])
