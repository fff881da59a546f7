"""Ids for rows: a readable prefix and random hex digits."""

import secrets
from typing import Protocol


class NewId(Protocol):
    """A source of ids that were never given before."""

    def __call__(self, prefix: str, /) -> str: ...


def new_id(prefix: str, /) -> str:
    """Return `prefix_` and 16 random hex digits."""
    return f"{prefix}_{secrets.token_hex(8)}"
