"""One runner for lives at random: their options, their seeds, and the verdict on all of them."""

import argparse
import random
from collections.abc import Awaitable, Iterable


def trial_options(about: str | None, **counts: int) -> argparse.ArgumentParser:
    """Describe trials by the first line of their module; each count and the seed are options."""
    options = argparse.ArgumentParser(description=(about or "").split("\n", maxsplit=1)[0])
    for name, count in counts.items():
        options.add_argument(f"--{name}", type=int, default=count)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    return options


async def judge(lives: Iterable[Awaitable[list[str]]], trials: str) -> int:
    """Live them one after the other and print the problems of each; return the exit code."""
    wrong = 0
    for life in lives:
        problems = await life
        print("\n".join(problems), end="\n" if problems else "", flush=True)  # noqa: T201
        wrong += bool(problems)
    print(f"{trials}: {wrong} went wrong")  # noqa: T201
    return 1 if wrong else 0
