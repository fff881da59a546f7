"""What a turn's calls say about who depends on whom, and what is forgotten of it."""

import json
from pathlib import Path

import pytest

from tests.world.delegating import all_over, behave, spawn
from tests.world.house import open_house
from tests.world.model import ModelServer
from tests.world.schema import traces_of
from wintermute.config.schema import SubSessionSettings
from wintermute.db.eraser import Came, erase
from wintermute.loom.sub_sessions import SESSIONS, spawns_of, to_be_named
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
def test_what_a_turn_will_depend_on_is_seen_in_its_calls(
    calls: list[Json], seen: set[int], names: set[str]
) -> None:
    assert to_be_named(spawns_of(calls), seen) == names


async def test_what_is_over_can_be_forgotten(tmp_path: Path, model: ModelServer) -> None:
    """DESIGN §5: by the words in it, or by the message that led to it."""
    behave(model, [spawn("a well kept secret"), spawn("another")])
    async with (
        open_house(tmp_path, model.url, sub_sessions=SubSessionSettings()) as house,
        house.working(),
    ):
        event = await house.incoming("go")
        await all_over(house, 2)
        said = await traces_of(house.database, ["Well *kept* secret"])
        async with house.database.transaction() as tx:
            assert len((await erase(tx, [SESSIONS], said)).rows) == 1
            assert len((await erase(tx, [SESSIONS], came=Came([event]))).rows) == 1
        rows = await house.rows("SELECT DISTINCT objective, context, result FROM sub_sessions")
        assert rows == [{"objective": "", "context": "", "result": ""}]
