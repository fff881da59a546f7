"""`wintermute night`: run it, read it, answer it, take it back; beside a daemon or without one."""

import json
import re
import shutil
import sqlite3  # noqa: TID251  a look from outside
from contextlib import closing
from datetime import timedelta

import pytest

from tests.world.clock import SYSTEM
from tests.world.duties import Back
from tests.world.house import PROMPTS
from tests.world.model import ModelServer
from tests.world.nights import OLD, Fails, OldSkill, SmallNight, house_at, night_at, remember
from tests.world.shelf import Shelf
from tests.world.terminal import OWNER, YOU, Terminal, beside, with_model
from wintermute.commands.tasks import NOTHING_TO_UNDO
from wintermute.night.pipeline import night_lock
from wintermute.text import EMPTY_AT_SHELL

KNOWN = ("Likes tea", "Likes tea, again", "Has a dog", "Has a dog, again")


@pytest.fixture
def home(terminal: Terminal) -> Terminal:
    shutil.copytree(PROMPTS, terminal.data / "prompts")
    (terminal.data / "skills" / "old.md").write_text(OLD)
    return terminal


def listed_texts(home: Terminal) -> list[str]:
    return sorted(fact["text"] for fact in home.json("memory", "list"))


async def test_a_night_is_read_answered_and_taken_back(home: Terminal, model: ModelServer) -> None:
    """M-073, M-079, M-081: ids as they are printed; each answer once."""
    name = await night_at(home, model, SmallNight(more=[OldSkill()]), *KNOWN)
    found = home.json("night", "report")
    assert found == home.json("night", "report", name)
    assert found == home.json("night", "report", found["date"])
    assert found["id"] == name
    assert set(found) >= {"id", "date", "phases", "items", "calls", "tokens"}
    assert found["phases"][0] == {
        **{"name": "twice", "status": "ok", "before": 4, "after": 2},
        **{"scope": OWNER, "note": ""},
    }
    first, second, skill = found["items"]
    assert (first["id"], first["kind"], first["state"]) == (f"{name}#1", "merged", "done")
    assert (first["before"], first["after"]) == (["Likes tea", "Likes tea, again"], "Likes tea")
    assert first["reason"] == "said twice"
    assert len(first["evidence"]) == 1
    said = home.says("night", "report")
    assert (
        f"{name}#3  open      Remove this skill? How the fax is fed. Face down. (not read for 90 days)"
        in said
    )
    assert home.json("night", "report", skill["id"]) == skill
    assert home.says("night", "report", skill["id"]) == (
        f"{name}#3 Remove this skill? — waits for your yes or no\n"
        "Before:\n    How the fax is fed.\n\n    Face down.\nWhy: not read for 90 days\n"
    )
    assert "4 memories merged; 1 question; 0 calls, 0 tokens" in said
    assert home.says("night", "list").startswith(
        f"{name:<12}  {found['date']}  asked     done     2 done, 1 open"
    )
    assert home.says("night", "apply", skill["id"]) == f"{skill['id']} done\n"
    assert not (home.data / "skills" / "old.md").exists()
    assert home.refuses("night", "apply", skill["id"]).endswith("was done already")
    home.says("night", "undo", second["id"])
    assert listed_texts(home) == ["Has a dog", "Has a dog, again", "Likes tea"]
    home.says("night", "undo", name)
    assert listed_texts(home) == sorted(KNOWN)
    assert (home.data / "skills" / "old.md").read_text() == OLD
    again = home.run("night", "undo", name)
    assert (again.returncode, again.stdout) == (1, f"{NOTHING_TO_UNDO}\n".encode())


@pytest.mark.slow
async def test_what_is_not_there_is_told_with_what_is(home: Terminal, model: ModelServer) -> None:
    """Exit 1, one line, the newest ones."""
    assert home.refuses("night", "undo", "20200101") == (
        "wintermute: there is no night 20200101: none has run yet"
    )
    assert (
        home.says("night", "list")
        == home.says("night", "report")
        == EMPTY_AT_SHELL["nights"] + "\n"
    )
    name = await night_at(home, model, SmallNight(), *KNOWN)
    for verb in ("undo", "report"):
        assert home.refuses("night", verb, "20200101") == (
            f"wintermute: there is no night 20200101: the newest are {name}"
        )
    for verb in ("undo", "apply", "report"):
        assert home.refuses("night", verb, f"{name}#9") == (
            f"wintermute: the night {name} has no item 9: the newest are {name}#1, {name}#2"
        )
    assert "write it as NIGHT#ITEM" in home.refuses("night", "apply", name)


async def test_what_is_older_than_thirty_days_stays(home: Terminal, model: ModelServer) -> None:
    """M-065."""
    name = await night_at(home, model, SmallNight(), *KNOWN, clock=Back(timedelta(days=31)))
    assert "30 days" in home.refuses("night", "undo", name)
    assert listed_texts(home) == ["Has a dog", "Likes tea"]
    home.says("night", "run", "--phase", "housekeeping")
    assert home.json("night", "report", name)["items"] == []
    for which in (name, f"{name}#1"):
        assert home.refuses("night", "undo", which) == (
            "wintermute: it is too late to undo that: changes are kept for 30 days"
        )


def test_a_night_runs_without_a_daemon_and_prints_each_phase(home: Terminal) -> None:
    """M-054: nothing to do costs nothing."""
    home.says("memory", "add", "Likes tea")
    done = home.json("night", "run")
    assert (done["calls"], done["tokens"], done["items"], done["why"]) == (0, 0, [], "command")
    assert {phase["status"] for phase in done["phases"]} <= {"ok"}
    assert home.json("night", "run")["id"] == f"{done['id']}-2"
    said = home.says("night", "run", "--scope", OWNER)
    assert said.endswith("nothing was changed; 0 calls, 0 tokens\n")


def test_a_phase_or_a_scope_that_is_none_is_a_wrong_usage(home: Terminal) -> None:
    """L-082."""
    assert "there is no phase sleep" in home.refuses("night", "run", "--phase", "sleep", code=2)
    assert "person:@name:server" in home.refuses("night", "run", "--scope", "me", code=2)


OF_CALLS = re.compile(
    r'INSERT INTO "(?:model_calls|reservations|single_values|models|sqlite_sequence)"'
)


def rows_of(home: Terminal) -> list[str]:
    """All that the database holds, but what was asked of models."""
    with closing(sqlite3.connect(home.data / "wintermute.db")) as database:
        return [line for line in database.iterdump() if not OF_CALLS.match(line)]


async def test_a_dry_run_leaves_no_trace_and_names_what_it_does_not_try(
    home: Terminal, model: ModelServer
) -> None:
    """M-073: neither of a night, nor of what somebody is writing into MEMORIES.txt."""
    shelf = Shelf.make(home.data / "wiki")
    async with house_at(home, model, SmallNight(), Back(timedelta(hours=7))) as house:
        async with house.working():
            for n in range(5):
                await house.incoming(f"I planted {n} tulips", sender=YOU)
                await house.said(n + 1)
        await remember(house, "Likes tea", "Has a dog", scope=OWNER)
        async with house.database.transaction() as tx:
            await tx.execute("UPDATE facts SET queued = 1 WHERE text = 'Has a dog'")
    with_model(home, model, "flat_file")
    home.says("memory", "list")
    file = home.data / "MEMORIES.txt"
    file.write_text(edited := file.read_text() + "Plays the flute\n")
    before, pages = rows_of(home), shelf.pages()
    ended = await beside(home, "night", "run", "--dry-run", "--json")
    done = json.loads(ended.stdout)
    assert rows_of(home) == before
    assert (file.read_text(), shelf.pages()) == (edited, pages)
    assert (done["id"], done["items"]) == ("dry-run", [])
    notes = {phase["name"]: phase["note"] for phase in done["phases"]}
    assert notes["learn"] == "1 conversation would be read for what to remember: not tried here"
    assert notes["pages"] == "1 chat would become pages: not tried here"
    assert home.says("night", "list") == EMPTY_AT_SHELL["nights"] + "\n"
    assert "Plays the flute" in listed_texts(home)


async def test_a_dry_run_says_that_it_does_not_compare_what_is_new(
    home: Terminal, model: ModelServer
) -> None:
    """M-073: a night begins by bringing that together with what is known, which takes a model."""
    with_model(home, model, "fts5")
    for text in ("Ann's boat is the red one by the lake", "Ann's boat is the red one by the pier"):
        home.says("memory", "add", text)
    ended = await beside(home, "night", "run", "--dry-run")
    learn, *rest = ended.stdout.decode().splitlines()
    assert learn.endswith(
        "2 new memories would be brought together with the old, and until then no phase compares"
        " them: not tried here"
    )
    assert rest[-1] == "nothing would be changed; 0 calls, 0 tokens"
    assert model.requests == []


@pytest.mark.slow
def test_who_sits_at_a_terminal_sees_how_far_a_night_is(home: Terminal) -> None:
    """L-082: a bar and what is at work; others get the result alone."""
    home.says("memory", "add", "Likes tea")
    printed, drawn = home.at_screen("night", "run")
    assert "night  [" in drawn
    assert f"tasks {OWNER}" in drawn
    assert "100%" in drawn
    assert "100%" not in printed
    assert home.run("night", "run").stderr == b""


async def test_who_comes_second_is_told_who_is_at_work(home: Terminal) -> None:
    """Two processes start a night at once: one works, and nothing is doubled."""
    home.says("memory", "add", "Likes tea")
    async with night_lock(home.data):
        told = home.refuses("night", "run")
    assert told.startswith("wintermute: a night is already running (process ")
    assert home.json("night", "run")["state"] == "done"


async def test_a_command_ends_what_a_kill_left(home: Terminal, model: ModelServer) -> None:
    """M-063: it goes on with that, and begins its own then."""
    async with house_at(home, model, SmallNight()) as house:
        store = house.stores.nights
        async with house.database.transaction() as tx:
            left = await store.begin(tx, SYSTEM.now().date(), "schedule")
    assert left is not None
    own = home.json("night", "run")
    assert own["id"] == f"{left.id}-2"
    assert [night["state"] for night in home.json("night", "list")] == ["done", "done"]


@pytest.mark.slow
async def test_a_failed_phase_is_exit_1_and_named(home: Terminal, model: ModelServer) -> None:
    """M-054, M-055."""
    name = await night_at(home, model, SmallNight(more=[Fails()]), *KNOWN)
    said = home.says("night", "report", name)
    assert "fails             failed  0 -> 0" in said
    assert said.count("the disk is upside down") == 1
    for _ in range(2):
        await night_at(home, model, SmallNight(more=[Fails()]))
    told = home.run("status", "--all").stdout.decode()
    line = next(each for each in told.splitlines() if "nights:" in each)
    assert line.startswith("warn  nights: last ")
    assert "but not all of it could be done (fails); next " in line
    assert line.endswith("3 in a row have failed -> `wintermute night report` says why")
    checked = home.run("check").stdout.decode()
    assert "warn  nights: last" in checked
