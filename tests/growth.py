"""Lets conversations live at random: whether requests only grow, what they tell is so, what was deleted is gone.

    python -m tests.growth --lives 20 [--steps 300] [--seed N]

The same lives as in tests/test_kept_prefix.py, tests/test_true_blocks.py and tests/test_random_lives.py,
longer. Exit 1 when something said was said differently, a model could believe what is not so, or
something was read twice or never, or is still there although it was taken back.
"""

import asyncio
import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.world.growing import Growth
from tests.world.model import ModelServer
from tests.world.remembering import Remembering
from tests.world.trials import judge, trial_options
from tests.world.truth import Truth

KINDS: tuple[type[Growth | Truth | Remembering], ...] = (Growth, Truth, Remembering)


async def live(kind: type[Growth | Truth | Remembering], seed: int, steps: int) -> list[str]:
    """One life, and what was wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        model = ModelServer()
        life = kind(seed, Path(folder), model)
        try:
            async with model:
                await life.run(steps)
        except AssertionError as broken:
            return [str(broken), *life.problems()]
        print(life.summary(), flush=True)  # noqa: T201
        return life.problems()


def main() -> None:
    """Parse and run."""
    chosen = trial_options(__doc__, lives=20, steps=300).parse_args()
    count, steps, seed = chosen.lives, chosen.steps, chosen.seed
    trials = (live(kind, n, steps) for kind, n in product(KINDS, range(seed, seed + count)))
    told = f"{len(KINDS)} times {count} lives of {steps} steps from seed {seed}"
    sys.exit(asyncio.run(judge(trials, told)))


if __name__ == "__main__":
    main()
