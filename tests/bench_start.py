"""Measures what a start costs beside another version: `python -m tests.bench_start CHECKOUT`.

Both versions run in turn against one Synapse with cold interpreters, first starts with a new account
and then later starts of the same. `CHECKOUT` is a folder with the other version, for instance made by
`git worktree add`; it needs no environment of its own.
"""

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench_runner import options, pss
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer

HERE = Path(__file__).parent.parent
LATER = 3
IDLE_SECONDS = 3.0


async def start(daemon: Bot) -> float:
    """Seconds from the start of the process until it is ready."""
    began = time.perf_counter()
    await daemon.start()
    return time.perf_counter() - began


async def measure(rounds: int, checkout: Path) -> dict[str, dict[str, list[float]]]:
    """Of each version the figures by name."""
    found: dict[str, dict[str, list[float]]] = {"before": {}, "now": {}}
    folder = Path(tempfile.mkdtemp(prefix="wintermute-bench-"))
    async with ModelServer() as model:
        with Homeserver(folder / "synapse") as homeserver:
            owner = homeserver.user("ann")
            for n in range(rounds):
                for version, root in (("before", checkout), ("now", HERE)):
                    os.chdir(root)  # from where `python -m` takes the program
                    name = f"bot{n}{version}"
                    login = homeserver.user(name)
                    config = write_settings(
                        folder / name, homeserver.url, login, model.url, owner.user_id
                    )
                    daemon = Bot(config, sys.executable)
                    try:
                        figures = found[version]
                        figures.setdefault("first start, s", []).append(await start(daemon))
                        await asyncio.sleep(IDLE_SECONDS)
                        figures.setdefault("PSS after it, MB", []).append(pss(daemon.pid))
                        for _ in range(LATER):
                            await daemon.stop()
                            figures.setdefault("later start, s", []).append(await start(daemon))
                        await asyncio.sleep(IDLE_SECONDS)
                        figures.setdefault("PSS after a later one, MB", []).append(pss(daemon.pid))
                    finally:
                        await daemon.stop()
    shutil.rmtree(folder)
    return found


def main() -> None:
    """Measure and print medians."""
    parser = options(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    found = asyncio.run(measure(given.rounds, checkout))
    for name in found["now"]:
        before, now = (statistics.median(found[version][name]) for version in ("before", "now"))
        print(f"{name}: {before:.3f} before, {now:.3f} now, {now - before:+.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
