"""Names for rows: a readable prefix and random hex digits."""

import secrets
from typing import Protocol


class NewId(Protocol):
    """Gives a name that was never given before."""

    def __call__(self, prefix: str, /) -> str: ...


def new_id(prefix: str, /) -> str:
    """`prefix_` and 16 hex digits."""
    return f"{prefix}_{secrets.token_hex(8)}"
