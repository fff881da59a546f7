"""All that is registered: each kind of item has a history, an undo and is forgotten; each job and tool its words."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from tests.world.house import PROMPTS, SCOPE, house_at_work, open_house
from tests.world.model import ModelServer
from tests.world.nights import asked
from tests.world.pages import FilePages
from wintermute.changes.change_sets import Change, ChangeSet, ItemKind, Reason
from wintermute.changes.decisions import text_proposal
from wintermute.changes.texts import state_of
from wintermute.commands.chat import NAMES, UNKNOWN
from wintermute.commands.tasks import undo_lines
from wintermute.errors import WintermuteError
from wintermute.forgetting.forget_jobs import enqueue_forgetting
from wintermute.forgetting.forgetting import forget
from wintermute.health.health import status_lines
from wintermute.memory.fact import EXPLICIT
from wintermute.messages import Json
from wintermute.night.phases import night_executors
from wintermute.night.questions import Questions
from wintermute.prompt.tool_names import ATTENDED, DELEGATING, PERSONAL, WORKING
from wintermute.stores import Stores
from wintermute.tools.definition import definition
from wintermute.verbs.undo import undo
from wintermute.work.jobs import JobPolicy, StoredJobs

SAID = "The spare key lies under the third flowerpot"
WHY = Reason("command", SCOPE)
FILES: Mapping[str, tuple[str, str]] = {
    "skill": ("keys", f"How to find keys\n\n{SAID}\n"),
    "core": (SCOPE, f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- {SAID}\n"),
    "page": ("semantic/Keys.md", f"# Keys\n\n- {SAID}\n"),
}


KINDS = (*get_args(ItemKind), "question")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    async with open_house(tmp_path, None, pages=FilePages(tmp_path / "wiki")) as house:
        yield house.stores


async def changed(stores: Stores, kind: str) -> ChangeSet:
    """Have something of this kind say it from now on; `question`: by a yes, as to a night."""
    if kind == "question":
        wish = text_proposal("core", SCOPE, FILES["core"][1], "it is said often")
        done = await Questions(stores).approve(await asked(stores, wish), night_executors(stores))
        assert done.problem == ""
    elif kind in FILES:
        item, text = FILES[kind]
        await stores.placing.write(WHY, [Change(kind, item, None, state_of(text))])  # type: ignore[arg-type]  # in FILES
    else:
        async with stores.database.transaction() as tx:
            if kind == "fact":
                await stores.facts.add(tx, WHY, SAID, EXPLICIT, scope=SCOPE)
            else:
                await stores.tasks.add(tx, WHY, f"{SAID}: move it", scope=SCOPE)
    [made] = await stores.changes.history(get_args(ItemKind), SCOPE)
    return made


async def state(stores: Stores, change: Change) -> Json | None:
    """Read an item as it is now."""
    if change.kind in FILES:
        return await stores.placing.files[change.kind].state(change.item)
    async with stores.database.transaction() as tx:
        return await (stores.facts if change.kind == "fact" else stores.tasks).state(
            tx, change.item
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_changed_and_undone_by_one_ledger(stores: Stores, kind: str) -> None:
    """M-065, M-030: in history, undone, undone twice, undone again, and refused beside forgetting."""
    made = await changed(stores, kind)
    [change] = made.changes
    assert (SAID in json.dumps(change.after), await state(stores, change)) == (True, change.after)
    undone = await undo(stores, made)
    assert await state(stores, change) == change.before
    assert (len(undone.back), undone.kept, len(undo_lines(undone))) == (1, (), 1)
    again, redo = await stores.changes.get(made.id), await stores.changes.get(undone.set_id or "")
    assert again
    assert redo
    assert again.undone == {change.item}
    assert (redo.cause, redo.undoes) == ("undo", made.id)
    assert (await undo(stores, again)).back == ()
    assert await state(stores, change) == change.before
    back = await undo(stores, redo)
    assert await state(stores, change) == change.after
    latest = await stores.changes.get(back.set_id or "")
    assert latest
    async with stores.database.transaction() as tx:
        await enqueue_forgetting(stores, tx, ["$1"], ["Something else"], scope=SCOPE)
    with pytest.raises(WintermuteError, match="being forgotten for good"):
        await undo(stores, latest)
    assert await state(stores, change) == change.after


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_item_is_forgotten(stores: Stores, kind: str) -> None:
    """M-030, M-066: no change or question says it any more; an item that still does is named."""
    [change] = (await changed(stores, kind)).changes
    async with stores.database.transaction() as tx:
        fact, _ = await stores.facts.add(tx, WHY, SAID, EXPLICIT, scope=SCOPE)
    done = await forget(stores, [fact])
    rows = [
        *await stores.database.rows("SELECT before, after FROM changes"),
        *await stores.database.rows("SELECT before, after, reason, plan FROM decisions"),
    ]
    assert SAID not in str([dict(row) for row in rows])
    left = SAID in json.dumps(await state(stores, change))
    assert left == any(change.item in each for each in done.quoted)


async def test_each_job_has_words_and_a_status(tmp_path: Path, model: ModelServer) -> None:
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
