"""Nights: what is over goes, and a night without news writes nothing but its row."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.shelf import Shelf
from tests.world.tidied import DAY, OWNER, Tidied, tally
from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision, text_proposal
from wintermute.night.expiry import Expiry
from wintermute.tasks.tasks import Target

WHY = Reason("command", OWNER)


async def dump(night: Tidied) -> list[str]:
    """All that is stored, but the rows of nights and of what works."""
    left = ("nights", "night_phases", "health", "sqlite_sequence")
    names = await night.house.rows(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    )
    found: list[str] = []
    for name in (row["name"] for row in names if row["name"] not in left):
        if not name.startswith("facts_fts"):
            rows = await night.house.rows(f"SELECT * FROM {name}")
            found += [f"{name} {tuple(row)}" for row in rows]
    return found


@pytest.mark.slow
async def test_thirty_nights_without_news_ask_nobody_and_change_nothing(
    night: Tidied, tmp_path: Path
) -> None:
    """Issue 21, 7: no model call, no write beyond the row."""
    Shelf.make(night.house.stores.wiki.root)
    await night.remember("Ann likes tea", "The boat is called Nora", "Ben lives in Lyon")
    await night.night()
    files = {path: path.read_bytes() for path in (tmp_path / "wiki").rglob("*") if path.is_file()}
    before, asked = await dump(night), len(night.model.requests)
    for _ in range(30):
        done = await night.night()
        assert {each.status for each in done.phases} == {"ok"}
        assert (done.calls, done.tokens) == (0, 0)
    assert await dump(night) == before
    assert len(night.model.requests) == asked
    assert {path: path.read_bytes() for path in files} == files
    assert await night.items() == []


async def test_what_can_be_undone_no_more_goes(night: Tidied) -> None:
    """M-065, T-061, M-079: tasks, what was retired, questions and folders of jobs, after their time."""
    stores, shelf = night.house.stores, Shelf.make(night.house.stores.wiki.root)
    [fact] = await night.remember("Ann likes tea")
    async with stores.database.transaction() as tx:
        done = await stores.tasks.add(tx, WHY, "Buy tea", scope=OWNER)
        await stores.tasks.add(tx, WHY, "Buy cake", scope=OWNER)
        await stores.tasks.complete(tx, Target(done.id, OWNER, WHY), "done")
        await stores.facts.supersede(tx, WHY, (), dict.fromkeys([fact]))
        await stores.decisions.propose(tx, OWNER, text_proposal("core", OWNER, "- tea\n", "why"))
    old = '{"name": "x", "agent": "hand", "start": "2020-05-04T10:15:00+00:00", "status": "failed"}'
    shelf.write("sleep/20200504-101500/job.json", old)
    shelf.write("sleep/20200504-101500/diff.patch", "+tea")
    shelf.write("sleep/mine/notes.md", "stays")
    begun = await night.night("housekeeping")
    first = tally(begun, "housekeeping", "")
    assert (first.note, first.before) == ("gone: 1 job folder", 1)
    async with stores.database.transaction() as tx:
        asked = Decision("skill", ("x",), "", "why", {"files": []}, state="open")
        await stores.decisions.number(tx, (begun.id, OWNER, "skills"), [asked])
    assert not (shelf.root / "sleep/20200504-101500").exists()
    assert shelf.read("sleep/mine/notes.md") == "stays"
    night.clock.advance(timedelta(days=30).total_seconds())
    second = tally(await night.night("housekeeping"), "housekeeping", "")
    assert second.note == "gone: 1 completed task, 1 question"
    states = "SELECT kind, state FROM decisions"
    assert await night.house.rows(states) == [{"kind": "skill", "state": "outdated"}]
    await Expiry(stores, night.house.checked).purge()  # where no night comes any more
    assert await night.house.rows(states) == []
    assert [row["content"] for row in await night.house.rows("SELECT content FROM tasks")] == [
        "Buy cake"
    ]
    assert await night.house.rows("SELECT 1 FROM facts") == []
    assert DAY


async def test_a_database_of_holes_is_written_anew_and_a_small_one_is_not(night: Tidied) -> None:
    """Issue 21, 2: holes of the vector table; and nothing is rewritten for a few bytes."""
    database = night.house.database
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE filler (data BLOB)")
        await tx.execute_many(
            "INSERT INTO filler VALUES (zeroblob(?))", [(1_000_000,) for _ in range(24)]
        )
        await tx.execute("DELETE FROM filler WHERE rowid > 1")
        await tx.execute("DROP TABLE filler")
    before = (await database.unused_bytes())[0]
    assert before > 20_000_000
    done = tally(await night.night("housekeeping"), "housekeeping", "")
    assert "of the database given back" in done.note
    assert (await database.unused_bytes())[0] < 1_000_000
    again = tally(await night.night("housekeeping"), "housekeeping", "")
    assert again.note == ""


async def test_a_linked_folder_of_jobs_is_no_way_out_of_the_wiki(
    night: Tidied, tmp_path: Path
) -> None:
    """House rule: no link is followed; what lies elsewhere stays."""
    shelf = Shelf.make(night.house.stores.wiki.root)
    job = tmp_path / "elsewhere" / "20200504-101500" / "job.json"
    job.parent.mkdir(parents=True)
    old = '{"name": "x", "agent": "hand", "start": "2020-05-04T10:15:00+00:00", "status": "failed"}'
    job.write_text(old)
    shutil.rmtree(shelf.root / "sleep")
    (shelf.root / "sleep").symlink_to(tmp_path / "elsewhere")
    await night.night("housekeeping")
    assert job.exists()
