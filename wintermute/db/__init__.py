"""The one SQLite database: connections, transactions and numbered migrations."""

from wintermute.db.database import Database, Patience, Row, Transaction, open_database
from wintermute.db.driver import Error, IntegrityError, OperationalError

__all__ = [
    "Database",
    "Error",
    "IntegrityError",
    "OperationalError",
    "Patience",
    "Row",
    "Transaction",
    "open_database",
]
