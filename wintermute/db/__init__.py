"""The one SQLite database: connections, transactions and numbered migrations."""

from wintermute.db.database import Database, Row, Transaction, open_database
from wintermute.db.driver import Error, IntegrityError, OperationalError

__all__ = [
    "Database",
    "Error",
    "IntegrityError",
    "OperationalError",
    "Row",
    "Transaction",
    "open_database",
]
