"""The embedder as a process of its own that behaves in a chosen way."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.world import embedding_child
from tests.world.clock import WITHIN, FakeClock
from tests.world.missing import NO_MEANING
from wintermute.llm.embedded import ChildLimits, EmbeddedEmbedder, is_installed

needs_the_model = pytest.mark.skipif(not is_installed(), reason=NO_MEANING)
PATIENT = ChildLimits(query=WITHIN, start=WITHIN, answer=WITHIN)


def child_command(way: str, folder: Path) -> Sequence[str]:
    """Return the command of an embedder that behaves so."""
    return (sys.executable, str(Path(embedding_child.__file__)), way, str(folder))


def child(
    way: str,
    folder: Path,
    kind: type[EmbeddedEmbedder] = EmbeddedEmbedder,
    clock: FakeClock | None = None,
) -> EmbeddedEmbedder:
    """An embedder in a process that behaves so; as patient as the daemon's."""
    return kind(clock or FakeClock(), child_command(way, folder), ChildLimits())
