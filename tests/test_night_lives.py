"""Random days, each with its night: `make torture` lives a hundred of them."""

from pathlib import Path

import pytest

from tests.world.model import ModelServer
from tests.world.night_life import NightLife

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 5])
async def test_nights_lose_nothing_whatever_happens_in_them(
    tmp_path: Path, model: ModelServer, seed: int
) -> None:
    """M-054, M-063, M-064, M-081: killed at any statement, without a model or tokens, with somebody at work."""
    life = NightLife(seed, tmp_path, model)
    await life.run(6)
    assert life.problems() == []
