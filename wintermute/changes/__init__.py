"""The ledger: changes item by item, their undo, decisions and nights."""
