"""The append-only record of every conversation: casts, turns and observations."""
