"""Simulates nights that die, run dry and are disturbed: what is lost, half written, or done twice.

    python -m tests.nights --nights 100 [--lives 4] [--seed N]

The same lives as in tests/test_night_lives.py, longer. Exit 1 when something went that no change set
names, a file is what nobody wrote, or a date has no night, or two.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.world.model import ModelServer
from tests.world.night_life import NightLife


async def live(seed: int, nights: int) -> list[str]:
    """One life, and what was wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        async with ModelServer() as model:
            life = NightLife(seed, Path(folder), model)
            await life.run(nights)
        print(life.summary(), flush=True)  # noqa: T201
        return life.problems()


async def lives(count: int, nights: int, seed: int) -> int:
    """All of them; the exit code."""
    wrong = 0
    for n in range(seed, seed + count):
        problems = await live(n, nights // count)
        print("\n".join(problems), end="\n" if problems else "", flush=True)  # noqa: T201
        wrong += bool(problems)
    print(f"{count} lives, {nights} nights, from seed {seed}: {wrong} went wrong")  # noqa: T201
    return 1 if wrong else 0


def main() -> None:
    """Parse and run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--nights", type=int, default=100)
    options.add_argument("--lives", type=int, default=4)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    sys.exit(asyncio.run(lives(chosen.lives, chosen.nights, chosen.seed)))


if __name__ == "__main__":
    main()
