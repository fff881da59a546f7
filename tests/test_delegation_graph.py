"""What a turn's calls say about who depends on whom."""

import json

import pytest

from wintermute.loom.sub_sessions import names_still_needed, spawns_of
from wintermute.messages import Json


def spawned(name: str | None, *needs: str) -> Json:
    args = {"objective": "x", "name": name, "depends_on": list(needs)}
    return {"id": "1", "name": "spawn_sub_session", "arguments": json.dumps(args)}


@pytest.mark.parametrize(
    ("calls", "seen", "names"),
    [
        ([spawned("a"), spawned("b", "a")], {0}, {"a"}),
        ([spawned("a"), spawned("b", "a")], {0, 1}, set()),
        ([spawned("a"), spawned("b", "a"), spawned(None, "b")], {0, 1}, {"a", "b"}),
        ([spawned("a", "a")], set(), {"a"}),
        ([{"name": "spawn_sub_session", "arguments": "[{"}], set(), set()),
        ([{"name": "spawn_sub_session", "arguments": '{"depends_on": [1, {}]}'}], set(), set()),
        ([{"name": "echo", "arguments": '{"depends_on": ["a"]}'}], set(), set()),
    ],
)
def test_calls_show_what_they_depend_on(calls: list[Json], seen: set[int], names: set[str]) -> None:
    assert names_still_needed(spawns_of(calls), seen) == names
