"""Lets rooms live at random, again and again: who read what was not made for them, and what hangs.

    python -m tests.lives --lives 20 [--steps 150] [--seed N]

The same lives as in tests/test_lives_of_rooms.py, longer. Exit 1 when anything was read
by others or is still open in the end.
"""

import argparse
import asyncio
import itertools
import logging
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.world.homeserver import Homeserver
from tests.world.lives import Life
from tests.world.model import ModelServer
from tests.world.proxy import Proxy
from tests.world.scene import NewName, Scene
from tests.world.warm import Interpreter


async def live(
    homeserver: Homeserver, python: Interpreter, fresh: NewName, seed: int, steps: int
) -> list[str]:
    """One life, and what was wrong with it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = await stack.enter_async_context(ModelServer())
        model.allow("restored copy", "fork", "edit", perhaps=True)
        proxy = await stack.enter_async_context(Proxy(homeserver.url))
        scene = await stack.enter_async_context(Scene(homeserver, python, fresh, folder, model.url))
        ann, ben, eve = [await scene.person(name) for name in ("ann", "ben", "eve")]
        daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [ben.user_id]})
        life = Life(seed, (ann, ben, eve), daemon, model, proxy)
        await life.furnish()
        await life.run(steps)
        print(life.summary(), flush=True)  # noqa: T201
        daemon.log.clear()
        return life.problems()


async def lives(count: int, steps: int, seed: int) -> int:
    """All of them; the exit code."""
    numbers, wrong = itertools.count(1), 0
    with tempfile.TemporaryDirectory() as folder, Interpreter() as python:
        (Path(folder) / "synapse").mkdir()
        with Homeserver(Path(folder) / "synapse") as homeserver:
            for n in range(seed, seed + count):
                name: NewName = lambda name: f"{name}-{next(numbers)}"  # noqa: E731
                problems = await live(homeserver, python, name, n, steps)
                print("\n".join(problems), flush=True)  # noqa: T201
                wrong += bool(problems)
    print(f"{count} lives of {steps} steps from seed {seed}: {wrong} went wrong")  # noqa: T201
    return 1 if wrong else 0


def main() -> None:
    """Parse and run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--lives", type=int, default=20)
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # the watchers' word on every outage
    sys.exit(asyncio.run(lives(chosen.lives, chosen.steps, chosen.seed)))


if __name__ == "__main__":
    main()
