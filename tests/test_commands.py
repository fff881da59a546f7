"""Lines that start with `/`: none needs a model."""

from pathlib import Path

import pytest

from tests.world.house import ANN, PROMPTS, House, house_at_work, open_house
from tests.world.model import Calls, ModelServer, Text, Use
from wintermute.changes.change_sets import Reason
from wintermute.commands.chat import HELP, NAMES, TO_SAY
from wintermute.config.schema import Price
from wintermute.health.health import WELL
from wintermute.messages import Usage
from wintermute.tasks.tasks import Target
from wintermute.text import EMPTY_LISTS


async def test_new_forgets_what_was_said_so_far(tmp_path: Path, model: ModelServer) -> None:
    """L-074: a fresh branch; the old one stays in the loom."""
    async with house_at_work(tmp_path, model.url) as house:
        await house.incoming("remember the milk")
        await house.incoming("/new")
        await house.incoming("hello")
        said = await house.said(3)
        branches = await house.rows("SELECT id, reason FROM branches ORDER BY seq")
        casts = await house.rows("SELECT branch_id, intent FROM casts ORDER BY seq")
    assert said[0] == "echo: remember the milk"
    assert "new conversation" in said[1]
    assert [m["content"] for m in model.requests[1].messages[1:]] == ["hello"]
    assert [branch["reason"] for branch in branches] == ["start", "new"]
    assert [cast["branch_id"] for cast in casts] == [branch["id"] for branch in branches]
    assert len(model.requests) == 2


async def test_new_in_a_group_hides_what_others_said_before_it(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-074, X-002: what was said after it stays, also when all came at once (X-005)."""
    async with open_house(tmp_path, model.url) as house:
        for text, kind in [
            ("before", "context"),
            ("/new", "command"),
            ("after", "context"),
            ("/help", "command"),
            ("so?", "message"),
        ]:
            await house.incoming(text, kind=kind, direct=False, scope="room:!room:test")  # type: ignore[arg-type]  # the literals
        async with house.working():
            await house.said(3)
    shown = str(model.requests[0].messages)
    assert "before" not in shown
    assert "after" in shown


@pytest.mark.parametrize("line", ["/help", "/HELP", "/help me please", "/help\nme"])
async def test_help_names_every_command(tmp_path: Path, line: str) -> None:
    """L-081: without a model."""
    async with house_at_work(tmp_path, None) as house:
        await house.incoming(line)
        (said,) = await house.said(1)
    assert all(f"`{name}`: " in said for name in NAMES)


EXAMPLES = HELP["/remind"].split(" | ")[1:]


async def test_help_begins_with_things_to_say_and_explains_one_command(tmp_path: Path) -> None:
    """U-012: its examples are understood; to verify is for Matrix alone."""
    async with house_at_work(tmp_path, None) as house:
        whole = await house.ask("/help")
        assert all(whole.index(said) < whole.index("`/new`") for said in TO_SAY)
        for line in ("/help remind", "/HELP `/Remind`"):
            told = await house.ask(line)
            assert told.startswith(f"`/remind`: {NAMES['/remind']}")
            assert all(f"- `{example}`" in told for example in EXAMPLES)
            assert "/undo" not in told
        await house.incoming("/help", room="web:1")
        assert "/verify" not in (await house.said(1, "web:1"))[0]
        for name, text in HELP.items():
            assert [line for line in text.split(" | ")[1:] if line.split()[0] != name] == []
        for line in EXAMPLES:
            await house.ask(line)
        assert len(await house.rows("SELECT * FROM tasks")) == 2


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("/remnd at 9", "/remind"),
        ("/forgt tea", "/forget"),
        ("/STATSU", "/status"),
        ("/help taks", "/tasks"),
        ("/stopit", "/stop"),
        ("/frobnicate", ""),
    ],
)
async def test_a_command_that_nearly_exists_gets_the_nearest_one(
    tmp_path: Path, line: str, near: str
) -> None:
    """U-016."""
    async with house_at_work(tmp_path, None) as house:
        said = await house.ask(line)
    assert (f"Did you mean `{near}`?" in said) == bool(near)
    assert "\n" not in said


@pytest.mark.parametrize("kind", EMPTY_LISTS)
async def test_a_list_without_lines_says_how_to_fill_it(tmp_path: Path, kind: str) -> None:
    """U-013."""
    commands = {"memories": "/memory", "nights": "/night"}
    async with house_at_work(tmp_path, None) as house:
        assert await house.ask(commands.get(kind, f"/{kind}")) == EMPTY_LISTS[kind]
        if kind == "memories":
            assert await house.ask("/memory gins") == EMPTY_LISTS[kind]


@pytest.mark.parametrize("line", ["/frobnicate", "/", "/ help", "/stopit", "/new\u2028", "//"])
async def test_an_unknown_word_gets_one_line_that_names_help(tmp_path: Path, line: str) -> None:
    """L-081."""
    async with house_at_work(tmp_path, None) as house:
        await house.incoming(line)
        (said,) = await house.said(1)
    assert ("`/help`" in said) == (line != "/new\u2028")
    assert "\n" not in said


async def test_a_long_unknown_word_is_not_repeated_whole(tmp_path: Path) -> None:
    async with house_at_work(tmp_path, None) as house:
        await house.incoming("/" + "x" * 5000)
        assert len((await house.said(1))[0]) < 100


async def test_status_shows_details_to_the_owner_only(tmp_path: Path, model: ModelServer) -> None:
    """L-034, L-086, U-012: what is broken, with rooms and reasons, is nobody else's business."""
    async with house_at_work(tmp_path, model.url) as house:
        await house.health.note("model", "fail", "canary answered 500")
        await house.incoming("/status all")
        await house.incoming("/status all", origin="other")
        mine, theirs = await house.said(2)
        assert await house.ask("/status") == next(
            line for line in mine.splitlines() if "canary" in line
        )
        await house.incoming("/status", origin="other")
        assert (await house.said(4))[3] == "- **model**: fail"
        await house.health.note("model", "ok")
        assert await house.ask("/status") == WELL.format("`/status all`")
    assert "canary" in mine
    assert "**model** (fail): canary" in mine
    assert "canary" not in theirs
    assert "**model**: fail" in theirs
    assert len(mine.splitlines()) == len(theirs.splitlines()) > 4
    assert model.requests == []


async def test_status_tells_what_was_read_from_the_cache(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-086: and what all of it cost, at the price of cached tokens."""
    price = Price(input=10.0, cached=1.0, output=30.0)
    model.script(Text("hi", usage=Usage(2000, 10)), Text("yes", usage=Usage(2100, 20, 1900)))
    async with house_at_work(tmp_path, model.url, price=price) as house:
        for n, text in enumerate(("hello", "still there?", "/status all"), 1):
            await house.incoming(text)
            *_, status = await house.said(n)
    told = "2 calls; 4,100 tokens read, 1,900 of them from the cache; 30 written; 0.0248 USD"
    assert f"- **today, base** (ok): {told}" in status.splitlines()


MINE = f"person:{ANN}"
OTHERS = "person:@bob:test"


async def remember(house: House, *texts: str, scope: str = MINE) -> None:
    """Store memories, each as a change of its own."""
    for text in texts:
        async with house.database.transaction() as tx:
            facts = house.stores.facts
            await facts.add(tx, Reason("tool", scope), text, "user_explicit", scope=scope)


async def plan(house: House, content: str, priority: int = 5, scope: str = MINE) -> str:
    """Add a task; its id."""
    async with house.database.transaction() as tx:
        why = Reason("tool", scope)
        task = await house.stores.tasks.add(tx, why, content, scope=scope, priority=priority)
    return task.id


async def test_memory_shows_what_is_remembered_in_this_room_only(tmp_path: Path) -> None:
    """L-081, M-010: all of it, or what has all the words; Markdown in it stays text."""
    async with house_at_work(tmp_path, None) as house:
        assert await house.ask("/memory") == EMPTY_LISTS["memories"]
        await remember(house, "Likes tea", "Has *two* dogs", "Walks two miles")
        await remember(house, "Likes two gins", scope=OTHERS)
        lines = (await house.ask("/memory")).splitlines()
        assert lines == ["- Walks two miles", "- Has \\*two\\* dogs", "- Likes tea"]
        assert (await house.ask("/memory TWO walk")).startswith("- Walks two miles\n")
        assert await house.ask("/memory gins") == "I remember nothing with these words."


async def test_memory_of_very_much_ends_with_how_much_more_there_is(tmp_path: Path) -> None:
    async with house_at_work(tmp_path, None) as house:
        await remember(house, *(f"fact number {n}" for n in range(53)))
        said = await house.ask("/memory")
    assert said.startswith("- fact number 52\n")
    assert said.endswith("\n\nand 3 more")


async def test_memory_knows_what_was_edited_by_hand_a_moment_ago(tmp_path: Path) -> None:
    """M-015."""
    async with house_at_work(tmp_path, None) as house:
        (tmp_path / "MEMORIES.txt").write_text("Has a cat\n")
        assert "Has a cat" in await house.ask("/memory")
        (tmp_path / "MEMORIES.txt").write_text("")
        assert "Has a cat" in await house.ask("/undo")
        assert "Has a cat" in await house.ask("/memory")


async def test_tasks_are_a_list_for_people(tmp_path: Path) -> None:
    """T-011, T-013, T-014: by priority, paused ones last; of this room and of all rooms."""
    async with house_at_work(tmp_path, None) as house:
        assert await house.ask("/tasks") == EMPTY_LISTS["tasks"]
        _, soon = await plan(house, "Sow *beans*", 7), await plan(house, "Pay", 1)
        await plan(house, "Be kind", scope="global")
        await plan(house, "Bob's own", scope=OTHERS)
        async with house.database.transaction() as tx:
            await house.stores.tasks.pause(tx, Target(soon, MINE, Reason("tool", MINE)))
        said = (await house.ask("/tasks")).replace("\\", "")
    assert said.splitlines() == [
        "**Any time**",
        "- `3` Be kind",
        "- `1` Sow *beans* (P7)",
        "",
        "**Paused**",
        "- `2` Pay (P1)",
    ]


async def test_undo_takes_back_the_newest_change_of_this_room(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-081, M-065: one by one, without a model; what happened elsewhere is not touched."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        assert await house.ask("/undo") == "There is nothing to undo here."
        await remember(house, "Likes tea")
        arguments = {"action": "add", "content": "Buy tea"}
        model.script(Calls((Use("task", arguments),)), Text("done"))
        assert await house.ask("I need tea") == "done"
        await remember(house, "Likes gin", scope=OTHERS)
        assert (await house.ask("/undo")).endswith(": Buy tea")
        assert await house.stores.tasks.listed(MINE) == ()
        assert (await house.ask("/undo")).endswith(": Likes tea")  # M-091: lately, its own
        assert await house.stores.facts.live(MINE) == []
        assert await house.ask("/undo") == "There is nothing to undo here."
        assert len(await house.stores.facts.live(OTHERS)) == 1
    assert len(model.requests) == 2
