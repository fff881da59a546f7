"""When to tell the model that a part of its prompt has grown too long."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

Component = Literal["memories", "tasks", "skills"]
COMPONENTS: tuple[Component, ...] = get_args(Component)

QUIET = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Told:
    """How long a component was when the model was last told, and when that was."""

    size: int
    at: datetime


def oversize(
    sizes: Mapping[Component, int],
    limits: Mapping[Component, int],
    told: Mapping[Component, Told],
    now: datetime,
) -> tuple[Component, ...]:
    """The components to tell about now, in their order (P-050): over the limit, and news (P-051)."""
    return tuple(
        each
        for each in COMPONENTS
        if sizes.get(each, 0) > limits[each] and _is_news(sizes[each], told.get(each), now)
    )


def _is_news(size: int, told: Told | None, now: datetime) -> bool:
    return told is None or now - told.at >= QUIET or size * 10 >= told.size * 11
