"""A memory of which only what fits is in the prompt, as the model reads it and as it is on record."""

import re
import shutil
from pathlib import Path

import pytest

from tests.world.house import SCOPE, grows
from tests.world.model import Calls, ModelServer, Text, Use
from tests.world.ranked import FTS5, context_block, open_ranked, remember_fact
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Context, Memory
from wintermute.memory.flat_file import GENERATED

OTHER = "person:@ben:test"
WHY = Reason("command", SCOPE)
OVER = re.compile("no longer|nothing any more")


async def test_what_fits_comes_with_the_message_once(tmp_path: Path, model: ModelServer) -> None:
    """P-011, P-012: best first; what is in view already is not repeated."""
    facts = ("Ann drinks green tea", "Carl plays chess", "Ann has a sister in Lyon")
    async with open_ranked(tmp_path, model, *facts) as house:
        await house.say("which tea do I like?", "and the tea of my sister?", "good night")
    first, second, third = (context_block(seen.texts[-1]) for seen in model.requests)
    heading = "# User Memories (relevance-ranked)\n"
    assert f"{heading}- Ann drinks green tea\n" in first
    assert "chess" not in first
    assert f"{heading}- Ann has a sister in Lyon\n" in second
    assert "green tea" not in second
    assert "User Memories" not in third
    grows(model)


async def test_an_event_brings_the_working_set_once(tmp_path: Path, model: ModelServer) -> None:
    """P-013: an unranked set does not claim to be ranked."""
    async with open_ranked(tmp_path, model, "Ann drinks green tea") as house:
        await house.say("tea is due", kind="event", origin="timer")
        await house.say("tea is due again", kind="event", origin="timer")
    first, second = (context_block(seen.texts[-1]) for seen in model.requests)
    assert "# User Memories\nAnn drinks green tea\n" in first
    assert "Memories" not in second


async def test_nobody_finds_what_another_scope_knows(tmp_path: Path, model: ModelServer) -> None:
    """M-010: neither in the prompt nor by the tool."""
    look = Calls((Use("search_memory", {"query": "canary"}), Use("search_memory", {})))
    model.script(look, Text("nothing"))
    async with open_ranked(tmp_path, model, "Ann drinks green tea") as house:
        await remember_fact(house, "the canary is yellow", OTHER)
        await house.say("where is the canary?")
    assert "yellow" not in str([seen.body for seen in model.requests])
    found, newest = model.requests[-1].texts[-2:]
    assert found == "[]"
    assert "green tea" in newest


async def test_the_tool_finds_what_was_true_on_a_day(tmp_path: Path, model: ModelServer) -> None:
    """M-009, M-074: with id, source and dates; the newest without a query; none where n is 0."""
    uses = (
        Use("search_memory", {"query": "Where does Ann live?"}),
        Use("search_memory", {"query": "Where does Ann live?", "when": "2026-03-01"}),
        Use("search_memory", {"n": 1}),
        Use("search_memory", {"n": 0}),
        Use("search_memory", {"when": "soon"}),
    )
    model.script(Calls(uses), Text("Lyon"))
    async with open_ranked(tmp_path, model, "Carl plays chess") as house:
        lyon = await remember_fact(house, "Ann lives in Lyon")
        rome = await remember_fact(house, "Ann lives in Rome")
        async with house.database.transaction() as tx:
            until = house.clock.now().replace(month=4)
            await house.stores.facts.end(tx, WHY, lyon, until, rome)
        await house.say("look it up")
    now, then, newest, none, wrong = model.requests[-1].texts[-5:]
    assert rome in now
    assert lyon not in now
    assert rome in then
    assert f'"id": "{lyon}"' in then
    assert '"until": "2026-04-04"' in then
    assert newest.count("fact_") == 1
    assert none == "[]"
    assert "2026-05-04" in wrong
    assert "Lyon" not in context_block(model.requests[0].texts[-1])


@pytest.mark.parametrize("how", ["ended", "retired", "replaced"])
async def test_what_is_true_no_more_is_named(tmp_path: Path, model: ModelServer, how: str) -> None:
    """M-074: once, with what is true instead."""
    async with open_ranked(tmp_path, model) as house:
        lyon = await remember_fact(house, "Ann lives in Lyon")
        await house.say("is it Lyon where Ann lives?")
        rome = await remember_fact(house, "Since May Ann has her home in Rome")
        facts = house.stores.facts
        async with house.database.transaction() as tx:
            if how == "ended":
                await facts.end(tx, WHY, lyon, house.clock.now(), rome)
            elif how == "retired":
                await facts.supersede(tx, WHY, (), dict.fromkeys([lyon]))
            else:
                await facts.replace(tx, WHY, SCOPE, [lyon], [("Ann lives in Rome", "harvest")])
        await house.say("hm", "hm again")
    _, second, third = (context_block(seen.texts[-1]) for seen in model.requests)
    instead = {
        "ended": "; now: Since May Ann has her home in Rome",
        "retired": "",
        "replaced": "; now: Ann lives in Rome",
    }[how]
    assert f"\nno longer true: - Ann lives in Lyon{instead}\n" in second
    assert "no longer true" not in third
    grows(model)


AWKWARD = ("no longer: Ann smokes", "<context> is a tag that Ann likes", "- Ann's list has - signs")
WAYS = {
    "ranked, listed": (FTS5, Memory(), Context()),
    "listed, ranked": (Memory(), FTS5, Context()),
    "another layout": (FTS5, Memory(), Context(layout="system")),
    "a layout, and back": (Memory(), Memory(), Context(layout="system")),
}


@pytest.mark.breaks("layout system", perhaps=True)
@pytest.mark.parametrize("way", WAYS)
async def test_another_backend_or_layout_calls_nothing_over_that_is_true(
    tmp_path: Path, model: ModelServer, way: str
) -> None:
    """M-088: decided on facts, whatever their lines look like; what went meanwhile is told."""
    before, after, between = WAYS[way]
    facts = ("Ann drinks green tea", "Carl plays chess", "Ann has a sister in Lyon", *AWKWARD)
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "tea.md").write_text("Making tea\n")
    async with open_ranked(tmp_path, model, *facts, memory=before) as house:
        await house.say("tea, chess, a sister, who smokes, which tag, what signs has the list?")
    async with open_ranked(tmp_path, model, memory=after, context=between) as house:
        await house.say("hm")
    async with open_ranked(tmp_path, model, memory=after) as house:
        await house.say("and now?")
        [tea] = [each for each in await house.stores.facts.live(SCOPE) if "tea" in each.text]
        async with house.database.transaction() as tx:
            await house.stores.facts.supersede(tx, WHY, (), dict.fromkeys([tea.id]))
        await house.say("hm again")
    async with open_ranked(tmp_path, model, memory=before) as house:
        await house.say("at last")
    *news, gone, last = (context_block(seen.texts[-1]) for seen in model.requests)
    assert [line for text in (*news, last) for line in text.splitlines() if OVER.match(line)] == []
    [over] = [line for line in gone.splitlines() if OVER.match(line)]
    assert over.endswith("Ann drinks green tea")
    told = [line.removeprefix("- ").lstrip("\\") for line in "\n".join(news).splitlines()]
    assert told.count("Carl plays chess") == 1


async def test_a_message_has_the_same_at_each_call(tmp_path: Path, model: ModelServer) -> None:
    """M-004: what the cast itself stores is in its result, not in a second block."""
    remember_tea = Calls((Use("append_memory", {"entry": "Ann likes tea with milk."}),))
    model.script(remember_tea, Text("noted"), Text("with milk"))
    async with open_ranked(tmp_path, model, "Ann drinks green tea") as house:
        await house.say("remember that I take my tea with milk", "tea?")
        [seen] = await house.rows(
            "SELECT accesses, count(*) AS shown FROM recalled r JOIN facts f ON f.seq = r.fact"
            " WHERE f.text = 'Ann drinks green tea'"
        )
    assert "<context>" not in "".join(model.requests[1].texts[2:])
    assert "with milk" not in context_block(model.requests[2].texts[-1])  # its result is in view
    assert seen["accesses"] == 1  # two messages of one day (M-024)
    assert seen["shown"] == 2
    grows(model)


async def test_the_system_message_has_what_fits(tmp_path: Path, model: ModelServer) -> None:
    """P-011: the same with `context.layout: system`."""
    async with open_ranked(
        tmp_path,
        model,
        "Ann drinks green tea",
        "Carl plays chess",
        context=Context(layout="system"),
    ) as house:
        await house.say("which tea?")
    system = model.requests[0].system
    assert "# User Memories (relevance-ranked)\n- Ann drinks green tea\n" in system
    assert "chess" not in system


async def test_few_memories_come_where_many_are_in_view(tmp_path: Path, model: ModelServer) -> None:
    """Issue 18, point 3: an eighth of the window in all; beyond it the best three of a message."""
    colours = ("blue", "green", "red", "black", "white", "yellow")
    facts = [f"{c} cup {n} {'of glass ' * 40}" for c in colours for n in range(10)]
    async with open_ranked(tmp_path, model, *facts) as house:
        for colour in colours:
            await house.say(f"which cup is {colour}?")
    told = [
        len([line for line in context_block(seen.texts[-1]).splitlines() if " cup " in line])
        for seen in model.requests
    ]
    assert told[0] == 10
    assert told[-2:] == [3, 3]


# Files (M-016, M-018, M-077)


async def test_the_file_is_an_export_that_nobody_reads(tmp_path: Path, model: ModelServer) -> None:
    """M-016, P-049: write_file is refused with what to do instead."""
    path = "data/MEMORIES.txt"
    write = Use("write_file", {"path": path, "content": "Ann hates tea\n"})
    model.script(Calls((Use("read_file", {"path": path}), write)), Text("well"))
    async with open_ranked(tmp_path, model, "Ann drinks green tea") as house:
        await house.stores.memories.text(SCOPE)
        file = tmp_path / "MEMORIES.txt"
        assert file.read_text() == f"{GENERATED}\nAnn drinks green tea\n"
        file.write_text("Ann hates tea\n")
        await house.say("tidy up")
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == [
            "Ann drinks green tea"
        ]
        await house.stores.memories.text(SCOPE)
        assert file.read_text() == f"{GENERATED}\nAnn drinks green tea\n"
    read, refused = model.requests[-1].texts[-2:]
    assert "Ann drinks green tea" in read
    assert "append_memory" in refused


async def test_switching_loses_no_hand_edit(tmp_path: Path, model: ModelServer) -> None:
    """M-077, M-018: the last edits of the file count first; back, the whole list is live again."""
    file = tmp_path / "MEMORIES.txt"
    async with open_ranked(tmp_path, model, "one is one", memory=Memory()) as house:
        await house.stores.memories.text(SCOPE)
    file.write_text("one is one\ntwo is two\n")
    async with open_ranked(tmp_path, model, "three is three") as house:
        await house.stores.memories.text(SCOPE)
        assert len(await house.stores.facts.live(SCOPE)) == 3
        assert file.read_text().startswith(GENERATED)
        async with house.database.transaction() as tx:
            [first, *_] = await house.stores.facts.live(SCOPE)
            await house.stores.facts.supersede(tx, WHY, (), dict.fromkeys([first.id]))
    file.write_text("what nobody reads\n")
    async with open_ranked(tmp_path, model, memory=Memory()) as house:
        assert await house.stores.memories.text(SCOPE) == "three is three\ntwo is two\n"
        file.write_text("three is three\n")
        assert await house.stores.memories.text(SCOPE) == "three is three\n"
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == ["three is three"]


async def test_a_file_that_came_first_is_taken_in(tmp_path: Path, model: ModelServer) -> None:
    """M-018."""
    (tmp_path / "MEMORIES.txt").write_text("Ann drinks green tea\n")
    shutil.copy(tmp_path / "MEMORIES.txt", tmp_path / "before.txt")
    async with open_ranked(tmp_path, model) as house:
        await house.say("which tea?")
        [fact] = await house.stores.facts.live(SCOPE)
        assert fact.source == "user_explicit"
    assert "- Ann drinks green tea" in context_block(model.requests[0].texts[-1])
