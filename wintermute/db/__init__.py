"""The one SQLite database: connections, transactions and numbered migrations."""

from wintermute.db.database import Database, Patience, Row, Transaction, open_database, prove_free
from wintermute.db.driver import Error, IntegrityError, OperationalError
from wintermute.db.migrate import UpgradeCopy

__all__ = [
    "Database",
    "Error",
    "IntegrityError",
    "OperationalError",
    "Patience",
    "Row",
    "Transaction",
    "UpgradeCopy",
    "open_database",
    "prove_free",
]
