"""Lets rooms live at random, again and again: who read what was not made for them, and what hangs.

    python -m tests.lives --lives 20 [--steps 150] [--seed N]

The same lives as in tests/test_lives_of_rooms.py, longer. Exit 1 when anything was read
by others or is still open in the end.
"""

import asyncio
import itertools
import logging
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.world.homeserver import Homeserver
from tests.world.lives import Life
from tests.world.model import ModelServer
from tests.world.proxy import Proxy
from tests.world.scene import NewName, Scene
from tests.world.trials import judge, trial_options
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
    numbers = itertools.count(1)
    name: NewName = lambda name: f"{name}-{next(numbers)}"  # noqa: E731
    with tempfile.TemporaryDirectory() as folder, Interpreter() as python:
        (Path(folder) / "synapse").mkdir()
        with Homeserver(Path(folder) / "synapse") as homeserver:
            seeds = range(seed, seed + count)
            trials = (live(homeserver, python, name, n, steps) for n in seeds)
            return await judge(trials, f"{count} lives of {steps} steps from seed {seed}")


def main() -> None:
    """Parse and run."""
    chosen = trial_options(__doc__, lives=20, steps=150).parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # the watchers' word on every outage
    sys.exit(asyncio.run(lives(chosen.lives, chosen.steps, chosen.seed)))


if __name__ == "__main__":
    main()
