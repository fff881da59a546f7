"""A save in the browser is killed at each step: the page is that of before or that of after."""

import asyncio
import json
import random
import signal
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.world.bot import Bot, write_settings
from tests.world.clock import WITHIN
from tests.world.copied import copied, put_back
from tests.world.homeserver import Login, free_port
from tests.world.house import ANN
from tests.world.schema import lay_schema
from tests.world.shelf import GARDEN, LOOKS, PAGES, Shelf, page, pages_of, shelf_of
from tests.world.warm import Interpreter
from tests.world.web import FIELD
from wintermute.wiki.page_jobs import written_lines

MINE = page("# Garden\n\nBehind the house since 2024. Ben waters it.\n\nSee [[Roses]].")
NO_MODEL = "http://127.0.0.1:9/v1"


async def saved(
    bot: Bot, python: Interpreter, step: str = "", at: int = 0
) -> tuple[bool, int, list[str]]:
    """Save with a door that dies at the n-th of a step, 0: at none.
    Tells if it died, how many steps came before the save, and all of them.
    """
    tape, port = bot.config.with_name("tape"), str(free_port())
    trigger = {"tape": str(tape), "folder": str(bot.data), "first": "", "step": step, "at": at}
    words = ("--config", str(bot.config), "web", "--port", port)
    process = await python.start(*words, trigger=trigger)
    base, before = f"http://127.0.0.1:{port}", 0
    async with asyncio.timeout(2 * WITHIN), httpx2.AsyncClient(timeout=WITHIN) as client:
        with suppress(httpx2.TransportError):
            while not await serves(client, base) and process.returncode is None:  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.05)
            token = (bot.data / "web.token").read_text().strip()
            client.headers["Authorization"] = f"Bearer {token}"
            found = FIELD.search((await client.get(f"{base}/edit/semantic/Garden")).text)
            assert found is not None
            before = len(tape.read_text().splitlines())
            body = {"path": GARDEN, "before": found[1], "text": MINE}
            assert (await client.post(f"{base}/api/wiki/save", json=body)).status_code == 200
    with suppress(ProcessLookupError):  # it has died
        process.send_signal(signal.SIGTERM)
    died = await process.wait() == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()
    return died, before, tape.read_text().splitlines()


async def serves(client: httpx2.AsyncClient, base: str) -> bool:
    with suppress(httpx2.ConnectError):
        return (await client.get(f"{base}/healthz")).status_code == 200
    return False


@pytest.mark.slow
async def test_a_page_is_that_of_before_or_of_after_whenever_a_save_dies(
    tmp_path: Path, python: Interpreter, request: pytest.FixtureRequest
) -> None:
    """V-022, V-032: and what is new has its change set, so that `wiki undo` takes it back; `--every 1`: each step."""
    write_settings(
        tmp_path, "http://localhost", Login("@bot:test", "", "", "hunter2"), NO_MODEL, ANN
    )
    bot = Bot(tmp_path / "config.yaml", python)
    Shelf.make(bot.data / "wiki").write(f"sleep/written/{GARDEN}", "See [[Roses]].\n")
    lay_schema(bot.data / "wintermute.db")
    begin = copied(bot)
    died, first, steps = await saved(bot, python)
    after = shelf_of(bot).read(GARDEN)
    assert (died, "Ben waters it" in after) == (False, True)
    [done] = bot.rows("SELECT id FROM change_sets")
    code, said = await bot.command("wiki", "undo", done["id"])
    assert (code, shelf_of(bot).read(GARDEN)) == (0, PAGES[GARDEN]), said
    every = max(1, int(request.config.getoption("every")) // 8)
    last = max(n for n, step in enumerate(steps) if step.startswith("os.remove applying"))
    # A step that names an id of its own does not come again.
    known = [n for n, step in enumerate(steps) if ".undo_page_" not in step]
    points = [n for n in known if first <= n <= last and not steps[n].startswith(LOOKS)]
    points = sorted({points[0], points[-1], *points[random.randrange(every) :: every]})
    came = 0
    for at in points:
        put_back(bot, begin)
        came += (await saved(bot, python, steps[at], steps[: at + 1].count(steps[at])))[0]
        text = pages_of(bot)[GARDEN].decode()
        assert text in (PAGES[GARDEN], after), (at, steps[at])
        rows = bot.rows("SELECT after FROM changes WHERE kind = 'page'")
        sets = bot.rows("SELECT cause FROM change_sets")
        assert len(rows) == len(sets) <= 1
        assert text == PAGES[GARDEN] or json.loads(rows[0]["after"])["text"] == text
        assert written_lines(shelf_of(bot).files, GARDEN) == {"See [[Roses]]."}
        died, *_ = await saved(bot, python)
        assert (died, shelf_of(bot).read(GARDEN)) == (False, after)
    assert came > len(points) // 2
