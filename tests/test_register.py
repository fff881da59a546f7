"""All that is registered: each kind of item has a history, an undo and is forgotten; each job and tool its words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

from tests.world.house import PROMPTS, SCOPE, house_at_work, open_house
from tests.world.model import ModelServer
from tests.world.pages import FilePages
from wintermute.changes.change_sets import Change, ItemKind, Reason
from wintermute.changes.texts import state_of
from wintermute.commands.chat import NAMES, UNKNOWN
from wintermute.commands.tasks import undo_lines
from wintermute.forgetting.forgetting import forget
from wintermute.health.health import status_lines
from wintermute.memory.fact import EXPLICIT
from wintermute.messages import Json
from wintermute.prompt.tool_names import ATTENDED, DELEGATING, PERSONAL, WORKING
from wintermute.stores import Stores
from wintermute.tools.definition import definition
from wintermute.work.jobs import JobPolicy, StoredJobs

SAID = "The spare key lies under the third flowerpot"
WHY = Reason("command", SCOPE)
FILES: Mapping[ItemKind, tuple[str, str]] = {
    "skill": ("keys", f"How to find keys\n\n{SAID}\n"),
    "core": (SCOPE, f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- {SAID}\n"),
    "page": ("semantic/Keys.md", f"# Keys\n\n- {SAID}\n"),
}


async def store_item(stores: Stores, kind: ItemKind) -> None:
    """Something of this kind says it from now on."""
    if kind in FILES:
        item, text = FILES[kind]
        await stores.placing.write(WHY, [Change(kind, item, None, state_of(text))])
        return
    async with stores.database.transaction() as tx:
        if kind == "fact":
            await stores.facts.add(tx, WHY, SAID, EXPLICIT, scope=SCOPE)
        else:
            await stores.tasks.add(tx, WHY, f"{SAID}: move it", scope=SCOPE)


async def state(stores: Stores, kind: ItemKind, item: str) -> Json | None:
    if kind in FILES:
        return await stores.placing.files[kind].state(item)
    async with stores.database.transaction() as tx:
        return await (stores.facts if kind == "fact" else stores.tasks).state(tx, item)


@pytest.mark.parametrize("kind", get_args(ItemKind))
async def test_each_kind_of_item_has_a_history_and_an_undo(tmp_path: Path, kind: ItemKind) -> None:
    """M-065: an undo can be undone, and has words."""
    async with open_house(tmp_path, None, pages=FilePages(tmp_path / "wiki")) as house:
        stores = house.stores
        await store_item(stores, kind)
        [made] = await stores.changes.history((kind,), SCOPE)
        [change] = made.changes
        assert SAID in json.dumps(change.after)
        undone = await stores.undo.apply(made)
        assert await state(stores, kind, change.item) is None
        assert len(undo_lines(undone)) == 1
        again = await stores.changes.get(undone.set_id or "")
        assert again is not None
        await stores.undo.apply(again)
        assert await state(stores, kind, change.item) == change.after


@pytest.mark.parametrize("kind", get_args(ItemKind))
async def test_each_kind_of_item_is_forgotten(tmp_path: Path, kind: ItemKind) -> None:
    """M-030, M-066: no change says it any more; an item that still does is named."""
    async with open_house(tmp_path, None, pages=FilePages(tmp_path / "wiki")) as house:
        stores = house.stores
        await store_item(stores, kind)
        [made] = await stores.changes.history((kind,), SCOPE)
        async with stores.database.transaction() as tx:
            fact, _ = await stores.facts.add(tx, WHY, SAID, EXPLICIT, scope=SCOPE)
        done = await forget(stores, [fact])
        rows = await house.rows("SELECT before, after FROM changes")
        assert SAID not in json.dumps([dict(row) for row in rows])
        item = made.changes[0].item
        left = SAID in json.dumps(await state(stores, kind, item))
        assert left == any(item in each for each in done.quoted)


async def test_each_job_has_words_and_a_line_in_the_status(
    tmp_path: Path, model: ModelServer
) -> None:
    """U-012, U-014."""
    async with open_house(tmp_path, model.url) as house:
        kinds = [kind for kind in house.runner.job_types if isinstance(kind, StoredJobs)]
        assert [kind.name for kind in kinds if kind.policy.use == JobPolicy().use] == []
        for kind in kinds:
            async with house.database.transaction() as tx:
                await house.stores.jobs.enqueue(tx, kind.name, "again", SCOPE)
                await tx.execute("UPDATE jobs SET state = 'failed', last_error = 'broken'")
            told = {
                each.name: each for each in await status_lines(house.database, house.checked, "UTC")
            }
            assert (told["jobs"].state, f"{kind.name} of " in told["jobs"].text) == ("fail", True)


async def test_each_tool_has_words_and_a_place(tmp_path: Path, model: ModelServer) -> None:
    """P-047."""
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house:
        tools = house.runner.toolbox.tools
        sets = (WORKING, PERSONAL, DELEGATING, ATTENDED)
        assert [tool.name for tool in tools if sum(tool.name in each for each in sets) != 1] == []
        assert [tool.name for tool in tools if not definition(tool.name)["people"]] == []


async def test_each_command_is_answered(tmp_path: Path, model: ModelServer) -> None:
    """L-081: whatever `/help` names is there."""
    async with house_at_work(tmp_path, model.url) as house:
        for n, name in enumerate(NAMES, 1):
            await house.incoming(name)
            *_, said = await house.said(n)
            assert not said.startswith(UNKNOWN.partition("{")[0]), name
