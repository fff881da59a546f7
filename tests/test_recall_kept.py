"""What is kept of recalls, and what is made of it: the loom, edits, receipts, runs, what is forgotten."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_recall import EACH, FORMS, Form, missing, page, recall, tell, told, wiki_house
from tests.test_replay import replayed
from tests.world.clock import FakeClock
from tests.world.delegating import done
from tests.world.house import PROMPTS, House
from tests.world.model import Calls, Empty, ModelServer, Text, Use
from tests.world.pages import GARDEN, PAGES, POND, FilePages
from tests.world.promised import MORNING, after, promise
from tests.world.terminal import Terminal
from wintermute.config.schema import Context
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.loom.records import Wards
from wintermute.messages import Call, Reply, Usage
from wintermute.tasks.schedules import PlanRequest

OWNER = "@you:example.org"


@EACH
async def test_the_loom_shows_what_was_said_without_tags(
    terminal: Terminal, model: ModelServer, form: Form
) -> None:
    """W-027: the tag is a call with the way it was made, and what it gave is on record."""
    model.script(recall(form, "Garden", said="Let me see."), Text("So it is."))
    pages = FilePages(terminal.data / "wiki")
    async with wiki_house(terminal.data, model, pages, owner=OWNER) as house:
        await house.incoming("where?", sender=OWNER)
        await house.settled()
        (branch,) = await house.rows("SELECT id FROM branches")
        told_all = terminal.says("loom", "show", branch["id"])
        first, second = map(json.loads, terminal.says("loom", "export", branch["id"]).splitlines())
    assert "    Let me see.\n" in told_all
    assert '    recall {"title": "Garden"} -> {"title": "Garden", "path": "semantic/Garden' in told_all
    assert "<recall>" not in told_all + json.dumps([first, second])
    assert (first["utterance"], second["utterance"]) == ("Let me see.", "So it is.")
    (call,) = first["calls"]
    assert (call["name"], call.get("via")) == ("recall", "tag" if form == "tag" else None)
    (observed,) = first["observations"]
    assert observed["result"]["text"] == GARDEN


@EACH
@pytest.mark.parametrize("titles", [["Garden"], ["Garden", "Gate", "Garden", "Pond"]])
async def test_a_recorded_recall_is_the_same_when_it_runs_again(
    tmp_path: Path, model: ModelServer, form: Form, titles: list[str]
) -> None:
    """L-088: offline, without the pages."""
    model.script(recall(form, *titles), recall(form, "Shed"), Text("So."), Text("Yes."))
    async with wiki_house(tmp_path, model, prompts=PROMPTS, record=True) as house:
        await tell(house, "where?", "and?")
        found = await replayed(house, PROMPTS, context=Context())
    assert found.divergence is None
    assert (found.casts, found.requests) == (2, len(model.requests))


def plain(*calls: Call) -> Reply:
    return Reply("", calls, "stop", Usage(10, 5), "scripted", "m", 1)


@EACH
async def test_a_recall_that_a_crash_interrupted_is_made_again(
    tmp_path: Path, model: ModelServer, form: Form
) -> None:
    """L-051, W-031: what was given before counts, and nothing counts twice."""
    via = "tag" if form == "tag" else "call"
    calls = [Call(f"c{n}", "recall", f'{{"title": "{t}"}}', via) for n, t in enumerate(PAGES_ASKED)]  # type: ignore[arg-type]  # one of two words
    pages = FilePages(tmp_path / "wiki")
    async with wiki_house(tmp_path, model, pages) as house:
        await tell(house, "hello")
    async with wiki_house_asleep(tmp_path, model, pages) as house:
        event = await house.incoming("go")
        row = await house.inbox.next((await house.rows("SELECT id FROM conversations"))[0]["id"])
        assert row is not None
        async with house.database.transaction() as tx:
            await house.inbox.begin(tx, event)
            branch = await house.conversations.current_branch(tx, row.conversation_id)
            wards = Wards(30, 60, 1_000_000, require_done=False).record()
            cast = await house.casts.start(tx, branch, event, "go", "owner", wards)
            turn = await house.casts.add_turn(tx, cast, None, plain(*calls), None)
            given = {"title": "Garden", "path": "semantic/Garden.md", "outside": False, "text": GARDEN}
            for n in (0, 1):
                await house.casts.begin_observation(tx, turn.id, n, calls[n], {"title": "x"})
            await house.casts.complete_observation(tx, turn.id, 0, given, is_error=False)
        async with house.working():
            await house.settled()
    assert told(model.requests[-1], form) == [page("Garden", GARDEN), page("Pond", POND)] + [
        "<cathedral>The page 'semantic/Garden' was already given in this turn. Answer without"
        " recalling it again.</cathedral>"
    ]


PAGES_ASKED = ("Garden", "Pond", "semantic/Garden")


def wiki_house_asleep(folder: Path, model: ModelServer, pages: FilePages) -> Any:
    from tests.world.house import open_house

    return open_house(folder, model.url, pages=pages)
