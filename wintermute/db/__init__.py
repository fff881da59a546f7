"""The one SQLite database: connections, transactions and numbered migrations."""

from wintermute.db.database import (
    Database,
    Patience,
    Row,
    Transaction,
    check_writable,
    is_broken,
    is_missing,
    open_database,
)
from wintermute.db.driver import (
    LONGEST_LOG,
    Error,
    IntegrityError,
    OperationalError,
    loads_vectors,
)
from wintermute.db.full_text import ERASES
from wintermute.db.migrate import UpgradeCopy
from wintermute.db.single import add_to, counters, put_single, single

__all__ = [
    "ERASES",
    "LONGEST_LOG",
    "Database",
    "Error",
    "IntegrityError",
    "OperationalError",
    "Patience",
    "Row",
    "Transaction",
    "UpgradeCopy",
    "add_to",
    "check_writable",
    "counters",
    "is_broken",
    "is_missing",
    "loads_vectors",
    "open_database",
    "put_single",
    "single",
]
