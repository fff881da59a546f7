"""What is kept of recalls, and what is made of it: the loom, a resumed cast, an edit, a run."""

import json
from pathlib import Path

import pytest

from tests.full_config import full_config
from tests.replay import replayed
from tests.world.clock import FakeClock
from tests.world.delegating import done
from tests.world.house import PROMPTS, SCOPE, open_house
from tests.world.model import Calls as Called
from tests.world.model import Empty, ModelServer, Text, Use
from tests.world.pages import GARDEN, PAGES, POND, FilePages
from tests.world.promised import MORNING, after, ended, promise
from tests.world.recalled import EACH, Form, recall, twice, wiki_house
from tests.world.recalled import memory_block as page
from tests.world.recalled import recalled as told
from tests.world.recalled import tell_pages as tell
from tests.world.recalled import tools_of as tools
from tests.world.resumed import answered_once, began, casting, completed, took_turn
from tests.world.resumed import reply as turn_of
from tests.world.terminal import Terminal
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.forgetting.forgetting import forget
from wintermute.messages import Call
from wintermute.tasks.schedules import PlanRequest

OWNER = "@you:example.org"
REMEMBER = Use("append_memory", {"entry": "Likes tea"})


@pytest.mark.slow
@EACH
async def test_the_loom_has_what_was_said_without_tags_and_runs_it_again(
    terminal: Terminal, model: ModelServer, form: Form
) -> None:
    """W-027, L-088: shown, exported, and replayed offline with neither the pages nor a model."""
    (terminal.folder / "config.yaml").write_text(full_config())
    model.script(
        recall(form, "Garden", "Gate", "Garden", "Pond", said="Let me see."),
        recall(form, "Shed", said="Well."),
        Text("So it is."),
    )
    pages = FilePages(terminal.folder / "pages")
    opened = wiki_house(
        terminal.data,
        model,
        pages,
        owner=OWNER,
        record=True,
        prompts=PROMPTS,
        sub_sessions=Limits(),
    )
    (terminal.data / "prompts").symlink_to(PROMPTS)
    async with opened as house:
        for text in ("where?", "and?"):
            await house.say(text, sender=OWNER)
        assert await house.spoken() == ["Well.", "So it is."]
        (branch,) = await house.rows("SELECT id FROM branches")
        shown = terminal.says("loom", "show", branch["id"])
        lines = terminal.says("loom", "export", branch["id"]).splitlines()
        again = list(await replayed(terminal.data, branch["id"]))
    first, second, third = map(json.loads, lines)
    assert "    Let me see.\n" in shown
    assert '    recall {"title": "Garden"} -> {"title": "Garden", "path": "semantic/Garden' in shown
    assert "<recall>" not in shown + "".join(lines)
    assert [each["utterance"] for each in (first, second, third)] == [
        "Let me see.",
        "Well.",
        "So it is.",
    ]
    ways = {call.get("via") for call in first["calls"]}
    assert ways == ({"tag"} if form == "tag" else {None})
    assert first["observations"][0]["result"]["text"] == GARDEN
    assert again == ["no divergence"]


@EACH
async def test_a_recall_that_a_crash_interrupted_is_made_again(
    tmp_path: Path, model: ModelServer, form: Form
) -> None:
    """L-051, W-030: what was given before counts, and nothing counts twice."""
    titles = ("Garden", "Pond", "semantic/Garden")
    calls = [
        Call(f"c{n}", "recall", json.dumps({"title": title}), "tag" if form == "tag" else "call")
        for n, title in enumerate(titles)
    ]
    given = {"title": "Garden", "path": "semantic/Garden.md", "outside": False, "text": GARDEN}
    pages = FilePages(tmp_path / "wiki")
    async with open_house(tmp_path, model.url, pages=pages) as house:
        turn = await took_turn(house, await casting(house), turn_of("", *calls))
        await completed(house, turn, 0, given)
        await began(house, turn, 1)
        assert await answered_once(house) == ("echo: go" if form == "gate" else "echo: " + _last())
    assert told(model.requests[-1], form) == [
        page("Garden", GARDEN),
        page("Pond", POND),
        twice("semantic/Garden"),
    ]


def _last() -> str:
    """What the echo says of a message that tells what tags gave."""
    return "\n".join([page("Garden", GARDEN), page("Pond", POND), twice("semantic/Garden")])


async def test_edit_and_receipt_say_nothing_of_pages(tmp_path: Path, model: ModelServer) -> None:
    """L-054: a page that was looked at is nothing that was done, nor one that was not found."""
    looked = Called((REMEMBER,), "<recall>Gate</recall>\n<recall>Garden</recall>")
    model.script(looked, Empty())
    async with wiki_house(tmp_path, model, prompts=PROMPTS) as house:
        event = await house.incoming("tea")
        await house.settled()
        assert await house.spoken() == ['Done: remembered: "Likes tea"']
        model.script(Text("three"))
        await house.say("coffee", edits=event)
    asked = model.requests[-1].last_user
    assert "append_memory" in asked
    assert "recall" not in asked


@pytest.mark.parametrize("way", ["tag", "gate"])
async def test_a_run_of_a_task_has_no_pages(tmp_path: Path, model: ModelServer, way: Form) -> None:
    """M-013, T-047: they are for chats."""
    model.script(recall(way, "Garden"), done("nothing"))
    check = PlanRequest(
        schedule_type="daily",
        at="09:00",
        execution_mode="autonomous_notify",
        ai_prompt="Compare the prices.",
    )
    clock = FakeClock(MORNING)
    async with wiki_house(
        tmp_path, model, prompts=PROMPTS, sub_sessions=Limits(), clock=clock
    ) as house:
        await promise(house, "Price check", check)
        after(clock, "2026-03-02T09:00")
        await house.fire()
        await ended(house)
    assert all("recall" not in tools(seen) for seen in model.requests)
    assert "# Memory Wiki" not in model.requests[0].messages[0]["content"]
    assert "unknown tool: recall" in model.requests[1].messages[-1]["content"]


@EACH
@pytest.mark.breaks("forgetting")
async def test_a_page_that_repeats_what_was_forgotten_is_shown_no_more(
    tmp_path: Path, model: ModelServer, form: Form
) -> None:
    """L-048: the record of it is blank, and the conversation goes on."""
    (tmp_path / "MEMORIES.txt").write_text("Ann is allergic to peanuts.\n")
    pages = FilePages(tmp_path / "wiki", PAGES | {"semantic/Ann.md": "Ann is allergic to peanuts."})
    model.script(recall(form, "Ann"), Text("I see."), Text("Yes."))
    async with wiki_house(tmp_path, model, pages) as house:
        await tell(house, "who?")
        await forget(house.stores, await house.stores.facts.live(SCOPE))
        await tell(house, "and?")
        assert await house.spoken() == ["I see.", "Yes."]
    last = model.requests[-1].messages
    assert "peanuts" not in json.dumps(last)
    given = "" if form == "gate" else "<cathedral>[this message was erased]</cathedral>"
    assert last[3]["content"] == given
