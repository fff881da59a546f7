"""`wintermute task`: what is to be done, in the terminal."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from icalendar import Calendar

from tests.world.clock import FakeClock
from tests.world.terminal import Terminal
from wintermute.changes.change_sets import Reason
from wintermute.cli.history import CONFIRM, WOULD
from wintermute.cli.task import TaskView
from wintermute.db import Transaction, open_database
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.stores import Stores
from wintermute.tasks.occurrences import Claim, Due
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import Task
from wintermute.text import EMPTY_AT_SHELL

OWNER = "person:@you:example.org"
CHANGED = {"next", "remark"}
"""What `add`, `update` and the like tell on top of the fields of a list."""
DAILY = ("--schedule-type", "daily", "--at", "09:00")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def berlin(terminal: Terminal) -> Terminal:
    """A terminal whose configured time zone is not that of the machine."""
    config = terminal.folder / "config.yaml"
    config.write_text(config.read_text().replace("timezone: UTC", "timezone: Europe/Berlin"))
    return terminal


def abroad(terminal: Terminal, *words: str) -> str:
    """What a command says on a machine in another time zone."""
    return terminal.says(*words, TZ="America/New_York")


@asynccontextmanager
async def past(terminal: Terminal) -> AsyncIterator[tuple[Stores, Transaction]]:
    """The stores on a day in May, long before the clock of the machine."""
    clock, folder = FakeClock(), terminal.data
    async with open_database(folder / "wintermute.db") as database, database.transaction() as tx:
        yield (
            Stores.of(
                database, folder, Owner("@you:example.org"), clock, new_id, timezone=BERLIN.key
            ),
            tx,
        )


async def due_in_may(stores: Stores, tx: Transaction, **asked: Any) -> Task:
    """A task that was due on 5 May and is not said."""
    return await stores.tasks.add(
        tx, Reason("command", OWNER), "Rent", scope=OWNER, request=PlanRequest(**asked)
    )


def test_the_shell_reads_times_as_the_chat_does(berlin: Terminal) -> None:
    """U-010, U-011."""
    every = berlin.says("task", "add", "x", "--at", "jeden Montag um 8")
    assert "[weekly on mon at 08:00]" in every
    both = berlin.refuses("task", "add", "x", "--at", "1/12 at 9")
    assert both.endswith("Write '1 December at 09:00' or '12 January at 09:00'.")


def test_a_task_goes_its_way(terminal: Terminal) -> None:
    """T-002, T-004 to T-007, T-011: each line says how the task is now."""
    assert terminal.says("task", "list") == EMPTY_AT_SHELL["tasks"] + "\n"
    said = terminal.says("task", "add", "Renew the passport")
    name = said.split()[1].rstrip(":")
    assert said == f"[P5] {name}: Renew the passport\n"
    line = f"[P1] {name}: Renew it"
    changed = terminal.says("task", "update", name, "--content", "Renew it", "--priority", "1")
    assert changed == f"{line}\n"
    assert terminal.says("task", "pause", name) == f"{line} (paused)\n"
    assert terminal.says("task", "list") == EMPTY_AT_SHELL["tasks"] + "\n"
    assert terminal.says("task", "list", "--status", "paused") == f"{line} (paused)  {OWNER}\n"
    assert terminal.says("task", "resume", name) == f"{line}\n"
    done = f"{line} (completed: paid)\n"
    assert terminal.says("task", "complete", name, "--reason", "paid") == done
    assert "(deleted" in terminal.says("task", "delete", name)
    assert name in terminal.says("task", "list", "--status", "all")
    assert terminal.says("task", "restore", name) == done
    assert "\nreason: paid\n" in terminal.says("task", "show", name)


def test_json_has_the_same_keys_everywhere(terminal: Terminal) -> None:
    """T-008, T-011."""
    added = terminal.json("task", "add", "Renew", "--priority", "3")
    listed = {name: value for name, value in added.items() if name not in CHANGED}
    assert {**listed, "id": "", "created_at": ""} == {
        "id": "",
        "priority": 3,
        "status": "active",
        "content": "Renew",
        "schedule": None,
        "schedule_fields": None,
        "execution_mode": "reminder",
        "ai_prompt": "",
        "next_due": None,
        "next_due_local": None,
        "scope": OWNER,
        "reason": "",
        "created_at": "",
        "missed": 0,
        "failures": 0,
        "held": False,
        "last": None,
    }
    assert (added["next"], added["remark"]) == ([], "")
    assert terminal.json("task", "list") == [listed]
    assert terminal.json("task", "show", added["id"]) == {**added, "occurrences": []}
    assert terminal.json("task", "pause", added["id"]) == {**added, "status": "paused"}
    assert terminal.json("task", "list") == []
    assert terminal.says("task", "list", "--status", "deleted") == "No task is deleted.\n"


def test_tasks_of_others_are_seen_and_made_here(terminal: Terminal) -> None:
    """T-013, T-014: the person at the machine sees all of them."""
    names = {
        scope: terminal.json("task", "add", "Sail", "--scope", scope)["id"]
        for scope in ("person:@bob:example.org", "room:!abc:example.org", "global")
    }
    listed = terminal.says("task", "list")
    assert all(f"#{name}: Sail  {scope}\n" in listed for scope, name in names.items())
    only = terminal.json("task", "list", "--scope", "person:@bob:example.org")
    assert [task["scope"] for task in only] == ["person:@bob:example.org", "global"]


def test_a_change_of_a_task_is_taken_back(terminal: Terminal) -> None:
    """T-007."""
    name = terminal.json("task", "add", "Renew")["id"]
    terminal.says("memory", "add", "Likes tea")
    terminal.says("task", "update", name, "--content", "Burn it")
    change, added = terminal.says("task", "history").split("set_")[1:]
    assert f"~ task {name}: content: Renew -> Burn it" in change
    assert terminal.says("task", "undo", f"set_{change.split()[0]}").startswith(
        "taken back:\n- task "
    )
    assert terminal.json("task", "show", name)["content"] == "Renew"
    (memory,) = terminal.json("memory", "history")
    refused = terminal.refuses("task", "undo", memory["id"])
    assert refused.endswith("changed a fact: undo it there")
    asked = terminal.run("task", "undo", "--last")
    assert (asked.returncode, asked.stderr.decode().splitlines()) == (
        1,
        [WOULD, "- task removed again: Renew", f"wintermute: {CONFIRM}"],
    )
    assert terminal.says("task", "undo", "--last", "--yes").endswith(
        "- task removed again: Renew\n"
    )
    assert added.split()[0] not in terminal.refuses("task", "undo", "--last")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("add", " "), 1, "not blank"),
        (("add", "x" * 2001), 1, "2000"),
        (("add", "Renew", "--priority", "11"), 1, "from 1 (urgent) to 10 (low)"),
        (("add", "Renew", "--priority", "high"), 2, "not a valid integer"),
        (("add", "Renew", "--scope", "bob"), 2, "person:@name:server or room:!id or global"),
        (("list", "--status", "gone"), 2, "deleted"),
        (("show", "#nope"), 1, "no task nope"),
        (("complete", "nope"), 2, "--reason"),
        (("complete", "nope", "--reason", ""), 1, "not blank"),
        (("update", "nope"), 1, "a new content, priority, schedule or execution_mode"),
        (("add", "x", "--at", "soon"), 1, "'soon' cannot be read. Write for example tomorrow at"),
        (("add", "x", "--at", ""), 2, "--at is empty"),
        (("add", "x", "--schedule-type", "hourly"), 2, "is not one of 'once', 'daily'"),
        (("add", "x", "--schedule-type", "once", "--at", "2020-01-01T09:00"), 1, "has passed"),
        (("add", "x", *DAILY, "--day-of-month", "3"), 1, "does not go with day_of_month"),
        (("add", "x", *DAILY, "--execution-mode", "autonomous_notify"), 1, "needs an ai_prompt"),
        (("next", "nope"), 1, "no task nope"),
        (("next", "nope", "--count", "101"), 2, "1<=x<=100"),
        (("export", "tasks.ics", "--scope", "bob"), 2, "person:@name:server"),
        (("export", "nowhere/tasks.ics"), 1, "cannot be written"),
        (("restore", "nope"), 1, "no task nope"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, told: str
) -> None:
    """L-082, T-003, T-005, T-009; nothing is made."""
    assert told in terminal.refuses("task", *words, code=code)


def test_an_id_that_is_almost_right_is_answered_with_the_right_one(terminal: Terminal) -> None:
    """T-009."""
    name = terminal.json("task", "add", "Renew")["id"]
    assert terminal.refuses("task", "pause", f"{name}0").endswith(f"did you mean {name}?")


@pytest.mark.parametrize(
    ("words", "bracket", "remark"),
    [
        (DAILY, "daily at 09:00", ""),
        (
            ("--schedule-type", "weekly", "--day-of-week", "MON,Thursday", "--at", "9:00"),
            "weekly on mon, thu at 09:00",
            "",
        ),
        (
            ("--schedule-type", "monthly", "--day-of-month", "31", "--at", "09:00"),
            "monthly on day 31 at 09:00",
            "in a month without a day 31 it is due on the last day",
        ),
        (
            (
                "--schedule-type",
                "rrule",
                "--rrule",
                "FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4",
                "--at",
                "09:00",
            ),
            "rrule FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4",
            "",
        ),
    ],
)
def test_whoever_adds_a_task_is_told_the_next_due_times(
    berlin: Terminal, words: tuple[str, ...], bracket: str, remark: str
) -> None:
    """T-020, T-022: with weekday, time and zone, whatever the zone of the machine."""
    said = abroad(berlin, "task", "add", "Rent", *words).splitlines()
    assert said[0].endswith(f": Rent [{bracket}]")
    assert all(re.fullmatch(r"  due \w+day, [-0-9]{10} 09:00 CES?T", line) for line in said[1:4])
    assert said[4:] == ([f"  {remark}"] if remark else [])
    name = said[0].split()[1].strip("#:")
    shown = json.loads(abroad(berlin, "task", "next", name, "--json"))
    assert [f"  due {each['local']}" for each in shown] == said[1:4]
    for each in shown:
        local = datetime.fromisoformat(each["due"]).astimezone(BERLIN)
        assert f"{local:%A, %Y-%m-%d %H:%M %Z}" == each["local"]
    assert abroad(berlin, "task", "next", name, "--count", "1") == f"{shown[0]['local']}\n"


def test_an_interval_in_a_window_is_due_in_local_time(berlin: Terminal) -> None:
    """T-024."""
    words = ("--interval-seconds", "5400", "--window-start", "12:00", "--window-end", "16:30")
    name = berlin.json("task", "add", "Look", "--schedule-type", "interval", *words)["id"]
    due = abroad(berlin, "task", "next", name, "--count", "100").splitlines()
    assert len(due) == 100
    assert {line.split()[2] for line in due} == {"12:00", "13:30", "15:00", "16:30"}


def test_a_schedule_is_changed_part_by_part_and_taken_away(berlin: Terminal) -> None:
    """T-004, T-047."""
    name = berlin.json("task", "add", "Post", *DAILY)["id"]
    later = berlin.json("task", "update", name, "--at", "10:30")
    assert later["schedule_fields"] == {"kind": "daily", "at": "10:30:00"}
    assert all(" 10:30 CE" in each["local"] for each in later["next"])
    assert later["next_due"] == later["next"][0]["due"]
    assert later["next_due_local"] == later["next"][0]["local"]
    mode = ("--execution-mode", "autonomous_silent", "--ai-prompt", "Read the post.")
    runs = berlin.json("task", "update", name, *mode)
    assert (runs["execution_mode"], runs["ai_prompt"]) == ("autonomous_silent", "Read the post.")
    assert runs["schedule"] == "daily at 10:30"
    assert "must be reminder" in berlin.refuses("task", "update", name, "--schedule-type", "none")
    gone = ("--schedule-type", "none", "--execution-mode", "reminder")
    assert berlin.says("task", "update", name, *gone) == f"[P5] #{name}: Post\n"
    assert berlin.says("task", "next", name) == f"{name} has no schedule: it is never due.\n"


def test_a_paused_task_is_not_due_until_it_is_resumed(berlin: Terminal) -> None:
    """T-006, T-007."""
    name = berlin.json("task", "add", "Post", *DAILY)["id"]
    line = f"[P5] #{name}: Post [daily at 09:00]"
    for verb, status in (("pause", "paused"), ("delete", "deleted")):
        assert berlin.says("task", verb, name) == f"{line} ({status})\n"
        assert berlin.says("task", "next", name) == f"{name} is {status}: it is not due.\n"
        assert berlin.json("task", "next", name) == []
    assert berlin.says("task", "restore", name) == f"{line} (paused)\n"
    first, *due = berlin.says("task", "resume", name).splitlines()
    assert (first, len(due)) == (line, 3)


async def test_a_task_whose_time_has_passed_says_so_when_it_is_resumed(berlin: Terminal) -> None:
    """T-006: nothing that was missed in a pause is delivered."""
    async with past(berlin) as (stores, tx):
        task = await due_in_may(stores, tx, schedule_type="once", at="2026-05-05T09:00")
    assert "due Tuesday, 2026-05-05 09:00 CEST (overdue)" in berlin.says(
        "task", "show", task.id
    ).replace(": ", " ")
    assert berlin.says("task", "next", task.id) == "Tuesday, 2026-05-05 09:00 CEST (overdue)\n"
    berlin.says("task", "pause", task.id)
    _, said = berlin.says("task", "resume", task.id).splitlines()
    assert said.endswith(
        f"no due time left; another one: wintermute task update {task.id} --at TIME"
    )
    assert berlin.says("task", "next", task.id) == f"{said.strip()}\n"
    assert berlin.says("task", "update", task.id, "--at", "in 2 hours").count("  due ") == 1


async def test_what_went_wrong_is_seen_in_the_list_and_in_the_task(berlin: Terminal) -> None:
    """Issue 6, point 4; T-050."""
    async with past(berlin) as (stores, tx):
        asked = {"execution_mode": "autonomous_notify", "ai_prompt": "Pay\nit."}
        task = await due_in_may(stores, tx, schedule_type="daily", at="09:00", **asked)
        room = await stores.conversations.in_room(tx, "!room:example.org", OWNER)
        assert task.next_due is not None
        for day in range(12):
            due = task.next_due + timedelta(days=day)
            claim = Claim(Due(task, None, due), due, day, due + timedelta(days=1), None)
            await stores.occurrences.take(tx, [(claim, "claimed", room, None)])
            run = (await stores.occurrences.open_of(tx, [task.id]))[task.id]
            if day == 10:
                await stores.runs.done(tx, run, "paid", None)
            else:
                await stores.runs.failed(tx, run, f"the bank\nsaid {day}", "out", pauses=False)
    listed = berlin.says("task", "list")
    assert (
        "  due Tuesday, 2026-05-05 09:00 CEST  overdue  failed 1 time in a row  11 missed  "
        in listed
    )
    [row] = berlin.json("task", "list")
    assert (row["missed"], row["failures"], row["last"]["state"]) == (11, 1, "failed")
    assert row["last"]["result"] == "the bank\nsaid 11"
    shown = berlin.says("task", "show", task.id).splitlines()
    assert shown[5:8] == ["execution_mode: autonomous_notify", "ai_prompt: Pay", "  it."]
    occurrences = shown[shown.index("occurrences:") + 1 :]
    assert (
        occurrences[0] == "  Saturday, 2026-05-16 09:00 CEST  failed  11 missed  the bank said 11"
    )
    assert occurrences[1] == "  Friday, 2026-05-15 09:00 CEST  done  10 missed  paid"
    assert len(occurrences) == len(berlin.json("task", "show", task.id)["occurrences"]) == 10


def test_a_task_without_a_room_is_marked() -> None:
    """T-013."""
    now = datetime.fromisoformat("2026-05-04T12:00:00+00:00")
    task = Task(
        "task_ab12cd34", "room:!gone:test", "Rent", 5, "active", now, next_due=now, held=True
    )
    due = "due Monday, 2026-05-04 14:00 CEST"
    row = (
        f"[P5] #task_ab12cd34: Rent  {due}  due, but I have no room to post it in  room:!gone:test"
    )
    assert TaskView(task, None, now, BERLIN).row() == row


def test_tasks_are_exported_to_a_calendar(berlin: Terminal) -> None:
    """T-064: twice the same bytes; a file that is there is replaced, or kept when it fails."""
    daily = berlin.json("task", "add", "Rent; \\ BEGIN:VEVENT, x", *DAILY)
    berlin.says("task", "add", "Sail", "--scope", "room:!abc:example.org")
    file = berlin.folder / "tasks.ics"
    file.write_text("old")
    assert berlin.says("task", "export", "tasks.ics") == ""
    written = file.read_bytes()
    assert berlin.run("task", "export").stdout == written
    assert berlin.run("task", "export", "-").stdout == written
    entries: list[Any] = [part for part in Calendar.from_ical(written).walk() if "UID" in part]
    event, todo = entries
    assert (event["UID"], event["SUMMARY"]) == (f"{daily['id']}@wintermute", daily["content"])
    assert event["DTSTART"].dt == datetime.fromisoformat(daily["next_due"])
    assert (todo.name, todo["SUMMARY"]) == ("VTODO", "Sail")
    alone = berlin.run("task", "export", "--scope", "room:!abc:example.org").stdout
    assert alone.count(b"UID:") == 1
    (berlin.data / "wintermute.db").write_bytes(b"not a database at all")
    assert berlin.run("task", "export", "tasks.ics").returncode != 0
    assert file.read_bytes() == written
