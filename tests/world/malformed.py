"""Values that no field should have, put into each field of an event."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tests.world.desk import EVE
from tests.world.proxy import Action, Answer, Request
from tests.world.reading import Json

_INNERMOST: Any = {"a": []}
DEEP: Any = reduce(lambda value, _: [value], range(499), _INNERMOST)
GONE = object()
WRONG: tuple[object, ...] = (
    GONE,
    None,
    7,
    10**400,
    True,
    {},
    ["x", None, {"a": 1}],
    DEEP,
    "x" * 70_000,
    "lone \ud800 surrogate",
    "nul \0 and \u202e turned",
)
JOIN = {"membership": "join"}
NUMBERS = itertools.count(1)


def misshapen(value: object) -> Iterator[object]:
    """The value with each of its fields, at any depth, missing or of another kind."""
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        for other in WRONG:
            changed = {
                name: item for name, item in value.items() if name != key or other is not GONE
            }
            yield changed if other is GONE else changed | {key: other}
        for deeper in misshapen(inner):
            yield value | {key: deeper}


def state_event(kind: str, key: object, content: object, **more: object) -> Json:
    """Make a state event of Eve's."""
    head = {"sender": EVE, "event_id": f"$e{next(NUMBERS)}", "origin_server_ts": 1_780_000_000_000}
    return {**head, "type": kind, "state_key": key, "content": content} | more


def member(key: object, content: object = JOIN, **more: object) -> Json:
    """Make a membership event."""
    return state_event("m.room.member", key, content, **more)


@dataclass(frozen=True, slots=True)
class Always:
    """A homeserver that says one thing."""

    answer: Answer

    def before(self, _request: Request) -> Action:
        return self.answer


def nested(depth: int) -> Json:
    """Make a value that is so deep."""
    value: Json = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("nan"), "", "x", "\ud800", "\x00" * 9, "y" * 300_000, 10**5000,
    [], [None], [[]] * 3, {}, {"a": None}, {"user_ids": "x"}, {"user_ids": [{}, None]}, nested(3000),
)  # fmt: skip
