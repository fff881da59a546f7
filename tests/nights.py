"""Simulates nights that die, run dry and are disturbed: what is lost, half written, or done twice.

    python -m tests.nights --nights 100 [--lives 4] [--seed N]

The same lives as in tests/test_night_lives.py, longer. Exit 1 when something went that no change set
names, a file is what nobody wrote, or a date has no night, or two.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.world.model import ModelServer
from tests.world.night_life import NightLife
from tests.world.trials import judge, trial_options


async def live(seed: int, nights: int) -> list[str]:
    """One life, and what was wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        async with ModelServer() as model:
            life = NightLife(seed, Path(folder), model)
            await life.run(nights)
        print(life.summary(), flush=True)  # noqa: T201
        return life.problems()


def main() -> None:
    """Parse and run."""
    chosen = trial_options(__doc__, nights=100, lives=4).parse_args()
    count, nights, seed = chosen.lives, chosen.nights, chosen.seed
    trials = (live(n, nights // count) for n in range(seed, seed + count))
    sys.exit(asyncio.run(judge(trials, f"{count} lives, {nights} nights, from seed {seed}")))


if __name__ == "__main__":
    main()
