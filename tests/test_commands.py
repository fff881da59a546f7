"""Lines that start with `/`: none needs a model."""

from pathlib import Path

import pytest

from tests.world.house import open_house
from tests.world.model import ModelServer
from wintermute.commands.chat import NAMES


async def test_new_forgets_what_was_said_so_far(tmp_path: Path, model: ModelServer) -> None:
    """L-074: a fresh branch; the old one stays in the loom."""
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("remember the milk")
        await house.incoming("/new")
        await house.incoming("hello")
        said = await house.said(3)
        branches = await house.rows("SELECT id, reason FROM branches ORDER BY seq")
        casts = await house.rows("SELECT branch_id, intent FROM casts ORDER BY seq")
    assert said[0] == "echo: remember the milk"
    assert "fresh start" in said[1]
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
    async with open_house(tmp_path, None) as house, house.working():
        await house.incoming(line)
        (said,) = await house.said(1)
    assert all(f"`{name}`: " in said for name in NAMES)


@pytest.mark.parametrize("line", ["/frobnicate", "/", "/ help", "/stopit", "/new\u2028", "//"])
async def test_an_unknown_word_gets_one_line_that_names_help(tmp_path: Path, line: str) -> None:
    """L-081."""
    async with open_house(tmp_path, None) as house, house.working():
        await house.incoming(line)
        (said,) = await house.said(1)
    assert ("`/help`" in said) == (line != "/new\u2028")
    assert "\n" not in said


async def test_a_long_unknown_word_is_not_repeated_whole(tmp_path: Path) -> None:
    async with open_house(tmp_path, None) as house, house.working():
        await house.incoming("/" + "x" * 5000)
        assert len((await house.said(1))[0]) < 100


async def test_status_shows_details_to_the_owner_only(tmp_path: Path, model: ModelServer) -> None:
    """L-034, L-086: what is broken, with rooms and reasons, is nobody else's business."""
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.health.note("model", "fail", "canary answered 500")
        await house.incoming("/status")
        await house.incoming("/status", origin="other")
        mine, theirs = await house.said(2)
    assert "canary" in mine
    assert "**model** (fail): canary" in mine
    assert "canary" not in theirs
    assert "**model**: fail" in theirs
    assert len(mine.splitlines()) == len(theirs.splitlines()) > 4
    assert model.requests == []
