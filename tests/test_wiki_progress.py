"""What a person at a terminal sees while pages are made."""

import asyncio
import os
import sys

import pytest

from tests.test_consolidation import POND, ready
from tests.world.model import ModelServer
from tests.world.shelf import GARDEN, Shelf
from tests.world.terminal import Terminal


@pytest.mark.slow
async def test_who_waits_at_a_terminal_sees_what_is_done(
    terminal: Terminal, model: ModelServer
) -> None:
    """A page may take a local model minutes; others get the result alone."""
    shelf = Shelf.make(terminal.data / "wiki")
    ready(terminal, model)
    ours, theirs = os.openpty()
    words = ("wiki", "consolidate", "--conversation", shelf.conversation())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wintermute", *words),
        cwd=terminal.folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=theirs,
        env={"PATH": os.defpath},
    )
    printed, _ = await process.communicate()
    os.close(theirs)
    with os.fdopen(ours, "rb") as shown:
        assert shown.read1().decode().splitlines() == [
            "builtin is at work …",
            "part 1 of 1: which pages it is about …",
            f"part 1 of 1: {GARDEN} (1 of 2) …",
            f"part 1 of 1: {POND} (2 of 2) …",
        ]
    assert printed.decode().splitlines()[1:] == [GARDEN, POND]
