"""The only module that imports an SQLite driver; the rest of the program uses `wintermute.db`.

pysqlite3 brings its own SQLite: newer than most systems', free of the WAL-reset race of 3.7.0-3.51.2, and able to
load extensions where Python was built without. Its exceptions are not those of the standard library, which is why
both kinds are exported from here.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

try:
    import pysqlite3 as sqlite3
except ImportError:  # no wheel for this platform: the Python's own library
    import sqlite3  # noqa: TID251  the fallback lives here alone

log = logging.getLogger(__name__)

Error: type[Exception] = sqlite3.Error
OperationalError: type[Exception] = sqlite3.OperationalError
IntegrityError: type[Exception] = sqlite3.IntegrityError
VERSION: tuple[int, ...] = sqlite3.sqlite_version_info
is_complete: Callable[[str], bool] = sqlite3.complete_statement

PRAGMAS = (
    "PRAGMA foreign_keys=ON",
    "PRAGMA recursive_triggers=ON",
    "PRAGMA secure_delete=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-1000",  # KiB, twice; beyond that the file is in the cache of the system
)
LONGEST_LOG = 64 * 1024 * 1024
"""Bytes to which the WAL shrinks after a checkpoint without readers (F-068)."""
WRITER = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA wal_autocheckpoint=1000",
    f"PRAGMA journal_size_limit={LONGEST_LOG}",
)
READER = ("PRAGMA query_only=ON",)


def connect(path: Path, *, read_only: bool, patience: float = 10.0, extensions: bool = True) -> Any:
    """Open a DB-API connection in autocommit mode, with our PRAGMAs.

    The file must exist for a reader; a writer creates it. `patience`: seconds to wait for locks of other processes,
    as `forget` may rewrite the whole file meanwhile. `extensions` False: sqlite-vec is not loaded.
    """
    mode = "ro" if read_only else "rwc"
    uri = f"file:{quote(str(path))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")
        for pragma in PRAGMAS + (READER if read_only else WRITER):
            connection.execute(pragma)
    except Error:
        connection.close()
        raise
    if extensions:
        _load_vectors(connection)
    connection.row_factory = sqlite3.Row
    return connection


def is_whole_alone(path: Path) -> bool:
    """Check whether the file is whole if its WAL is ignored, without writing anything."""
    uri = f"file:{quote(str(path))}?immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except Error:
        return False


def knows_vectors(connection: Any) -> bool:
    """Check whether sqlite-vec's functions are there."""
    try:
        connection.execute("SELECT vec_version()").fetchone()
    except OperationalError:
        return False
    return True


def loads_vectors() -> bool:
    """Check whether sqlite-vec can be loaded here, before there is a database."""
    with closing(sqlite3.connect(":memory:")) as connection:
        _load_vectors(connection)
        return knows_vectors(connection)


def _load_vectors(connection: Any) -> None:
    """Load sqlite-vec, if it is installed and this driver can load extensions.

    Only the search by embeddings needs it: `Database.knows_vectors`.
    """
    # Its Python module is not imported: that would import numpy, 30 MB, where installed.
    package = find_spec("sqlite_vec")
    if package is None or package.origin is None:
        return
    if not hasattr(connection, "enable_load_extension"):
        return
    try:
        connection.enable_load_extension(True)
        connection.load_extension(str(Path(package.origin).with_name("vec0")))
    except Error as problem:  # built for another C library
        log.info("sqlite-vec cannot be loaded reason=%s", problem)
    finally:
        connection.enable_load_extension(False)
