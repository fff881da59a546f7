"""Random lives of what is told and taken back: all is read once, and what is gone is nowhere.

A longer run, with seeds of its own, is a part of `make torture`.
"""

from pathlib import Path

import pytest

from tests.tiers import tiered
from tests.world.model import ModelServer
from tests.world.remembering import Remembering

SEEDS = {"a short life": (3, 25)} | {f"seed {n}": (n, 60) for n in (0, 1, 2, 174)}


@pytest.mark.parametrize("life", tiered(SEEDS, ("a short life",)))
async def test_all_is_read_once_and_what_is_taken_back_is_nowhere(
    tmp_path: Path, model: ModelServer, life: tuple[int, int]
) -> None:
    """M-012, M-026, M-028, M-030, L-048: edits, fresh starts, folds, redactions, other readers, restarts."""
    seed, steps = life
    lived = Remembering(seed, tmp_path, model)
    await lived.run(steps)
    problems = lived.problems()
    assert not problems, "\n".join(problems)
