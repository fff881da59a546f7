"""Lets conversations live at random: whether requests only grow at their end, and what they tell is so.

    python -m tests.growth --lives 20 [--steps 300] [--seed N]

The same lives as in tests/test_kept_prefix.py and tests/test_true_blocks.py, longer. Exit 1 when
something said was said differently, or a model could believe what is not so.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.world.growing import Growth
from tests.world.model import ModelServer
from tests.world.truth import Truth

KINDS: tuple[type[Growth | Truth], ...] = (Growth, Truth)


async def live(kind: type[Growth | Truth], seed: int, steps: int) -> list[str]:
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


async def lives(count: int, steps: int, seed: int) -> int:
    """So many of each kind; the exit code."""
    wrong = 0
    for kind, n in product(KINDS, range(seed, seed + count)):
        problems = await live(kind, n, steps)
        print("\n".join(problems), end="\n" if problems else "", flush=True)  # noqa: T201
        wrong += bool(problems)
    print(f"twice {count} lives of {steps} steps from seed {seed}: {wrong} went wrong")  # noqa: T201
    return 1 if wrong else 0


def main() -> None:
    """Parse and run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--lives", type=int, default=20)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    sys.exit(asyncio.run(lives(chosen.lives, chosen.steps, chosen.seed)))


if __name__ == "__main__":
    main()
