"""The beginning of a story through the loop: a folder, a scripted model, and the house on both."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

from tests.world.house import House, house_at_work, open_house
from tests.world.model import ModelServer

P = ParamSpec("P")
Opened = AbstractAsyncContextManager[House]


def _on_both(
    opening: Callable[Concatenate[Path, str | None, P], Opened],
) -> "Callable[Concatenate[Story, P], Opened]":
    def opened(story: "Story", /, *args: P.args, **settings: P.kwargs) -> Opened:
        return opening(story.folder, story.model.url, *args, **settings)

    return opened


@dataclass(frozen=True)
class Story:
    """A folder and a model: `async with story.at_work(gates=[Gate()]) as house`."""

    folder: Path
    model: ModelServer
    house = _on_both(open_house)
    """Opens a house whose rooms rest; takes the settings of `open_house`."""
    at_work = _on_both(house_at_work)
    """Opens one whose rooms work as long as the block lasts."""
