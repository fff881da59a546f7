"""What a model can read from blocks and results is true, whatever has happened.

A longer run, with seeds of its own, is a part of `make torture`.
"""

from pathlib import Path

import pytest

from tests.world.model import ModelServer
from tests.world.truth import Truth

STEPS = 60


@pytest.mark.quick("2")
@pytest.mark.parametrize("seed", [2, 8, 12, 13, 14, 20])
async def test_what_a_model_reads_is_so(seed: int, tmp_path: Path, model: ModelServer) -> None:
    """P-010, P-018, P-020, P-034, L-048, F-034: all of the scope, of no other, nothing forgotten."""
    await _lived(Truth(seed, tmp_path, model), STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_what_a_model_reads_is_so_for_long(
    seed: int, tmp_path: Path, model: ModelServer
) -> None:
    """The same through several folds, forgettings and restarts."""
    life = Truth(seed, tmp_path, model)
    await _lived(life, 3 * STEPS)
    assert min(life.counts[each] for each in ("fold", "forget", "new", "restart")) > 1


async def _lived(life: Truth, steps: int) -> None:
    await life.run(steps)
    problems = life.problems()
    assert not problems, "\n".join(problems)
    print(life.summary())  # noqa: T201
