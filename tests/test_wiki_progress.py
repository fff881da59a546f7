"""What a person at a terminal sees while pages are made."""

import asyncio

import pytest

from tests.world.consolidated import POND, ready
from tests.world.model import ModelServer
from tests.world.shelf import GARDEN, Shelf
from tests.world.terminal import Terminal


@pytest.mark.slow
async def test_who_waits_sees_what_is_done(terminal: Terminal, model: ModelServer) -> None:
    """A page may take a local model minutes; others get the result alone."""
    shelf = Shelf.make(terminal.data / "wiki")
    ready(terminal, model)
    words = ("wiki", "consolidate", "--conversation", shelf.conversation())
    printed, shown = await asyncio.to_thread(terminal.at_screen, *words)
    assert shown.splitlines() == [
        "builtin is at work …",
        "part 1 of 1: which pages it is about …",
        f"part 1 of 1: {GARDEN} (1 of 2) …",
        f"part 1 of 1: {POND} (2 of 2) …",
    ]
    assert printed.splitlines()[1:] == [GARDEN, POND]
