"""`/tasks`: a list that a person can read, and lines that act on one task (T-011, T-063)."""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.world.house import ANN, ROOM, HeldClock, House, house_at_work
from tests.world.promised import BY_BEN, GROUP, IN_GROUP, do, now, promise
from tests.world.promised import promise as task_of
from wintermute.commands.tasks import HELD, VERBS
from wintermute.tasks.schedules import NOTHING, PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Task
from wintermute.text import EMPTY_LISTS

MINE = f"person:{ANN}"
ROOM_SCOPE = f"room:{GROUP}"
OTHER: dict[str, Any] = {"room": "!other:test", "scope": "room:!other:test", "direct": False}
DAILY = PlanRequest(schedule_type="daily", at="08:00")
BY_ITSELF = PlanRequest(
    schedule_type="daily", at="08:00", execution_mode="autonomous_notify", ai_prompt="Look."
)
ALL_VERBS = ("done", "snooze", "tomorrow", "cancel", "pause", "resume")


@pytest.fixture
def clock() -> HeldClock:
    """A Monday, at 14:00 in Berlin."""
    return HeldClock()


@pytest.fixture
async def house(tmp_path: Path, clock: HeldClock) -> AsyncIterator[House]:
    async with house_at_work(tmp_path, None, clock=clock) as house:
        yield house


def once(when: str) -> PlanRequest:
    return PlanRequest(schedule_type="once", at=when)


def reach(clock: HeldClock, when: str) -> None:
    """Move the clock to a local time of a summer in Berlin."""
    clock.advance((datetime.fromisoformat(f"{when}+02:00") - clock.now()).total_seconds())


async def task_lines(house: House, **where: Any) -> list[str]:
    """The lines of `/tasks` without the numbers of tasks."""
    said = await house.ask("/tasks", **where)
    return [re.sub("^- `[0-9]+`", "-", line) for line in said.splitlines() if line]


async def act(house: House, verb: str, task: Task, **where: Any) -> str:
    """What a line about a task is answered with, with `ID` for every id."""
    said = await house.ask(f"/tasks {verb} {task.id}", **where)
    return re.sub(r"task_\w{8}", "ID", said)


async def said_at(house: House, clock: HeldClock, when: str) -> None:
    """What is due then is said then."""
    reach(clock, when)
    await house.fire()
    await house.deliver()
    await house.fire()


async def test_tasks_stand_below_headings_by_when_they_are_due(house: House) -> None:
    """T-011, T-027: sorted by that; days are those of the configured zone."""
    await promise(house, "tree", once("2026-12-24T09:00"))
    await promise(house, "next monday", once("2026-05-11T00:00"))
    await promise(house, "sunday", once("2026-05-10T23:59"))
    await promise(house, "just after midnight", once("2026-05-05T00:30"))
    await promise(house, "Call *Anna*", once("2026-05-04T18:30:15"))
    await promise(house, "tea", once("2026-05-04T15:00"))
    await promise(house, "water", DAILY)
    await promise(house, "news", BY_ITSELF)
    await promise(house, "book", NOTHING)
    await do(
        house,
        "pause",
        await promise(
            house, "rent", PlanRequest(schedule_type="monthly", at="09:00", day_of_month=31)
        ),
    )
    await do(house, "delete", await promise(house, "gone", NOTHING))
    await do(house, "complete", await promise(house, "ended", NOTHING), "done")
    assert await task_lines(house) == [
        "**Today**",
        "- 15:00 tea",
        "- 18:30 Call \\*Anna\\*",
        "**This week**",
        "- Tue 00:30 just after midnight",
        "- Tue 08:00 water (daily at 08:00)",
        "- Tue 08:00 news (daily at 08:00, runs by itself)",
        "- Sun 23:59 sunday",
        "**Later**",
        "- 2026-05-11 00:00 next monday",
        "- 2026-12-24 09:00 tree",
        "**Any time**",
        "- book",
        "**Paused**",
        "- rent (monthly on day 31 at 09:00)",
    ]


async def test_a_list_of_very_many_ends_with_how_many_more_there_are(house: House) -> None:
    for n in range(52):
        await promise(house, f"thing {n}", NOTHING)
    await promise(house, "tea" + " very" * 399, once("2026-05-04T15:00"))
    lines = await task_lines(house)
    assert (lines[0], lines[1][:11], lines[2]) == ("**Today**", "- 15:00 tea", "**Any time**")
    assert len(lines[1]) < 200
    assert (lines[-2], lines[-1]) == ("- thing 48", "and 3 more")


async def test_what_is_on_its_way_says_so(house: House, clock: HeldClock) -> None:
    """Lesson 11: until it is in the room."""
    await promise(house, "tea", once("2026-05-04T15:00"))
    await promise(house, "water", DAILY)
    reach(clock, "2026-05-05T08:00")
    await house.fire()
    assert await task_lines(house) == [
        "**Today**",
        "- 2026-05-04 15:00 tea (being delivered)",
        "**This week**",
        "- Wed 08:00 water (daily at 08:00; being delivered)",
    ]
    await house.deliver()
    await house.fire()
    assert [line.split()[2] for line in await task_lines(house) if line[0] == "-"] == ["08:00"]


async def test_a_miss_is_visible_until_the_next_time_it_is_said(
    house: House, clock: HeldClock
) -> None:
    """Lesson 11, T-043."""
    await promise(house, "water", DAILY)
    await said_at(house, clock, "2026-05-07T13:10:30")
    line = "- Fri 08:00 water (daily at 08:00; 3 missed, last said late at 13:10)"
    assert (await task_lines(house))[1] == line
    await said_at(house, clock, "2026-05-08T08:00")
    assert (await task_lines(house))[1] == "- Sat 08:00 water (daily at 08:00)"
    reach(clock, "2026-05-09T08:00")
    await house.fire()
    await said_at(house, clock, "2026-05-09T08:06")
    assert (await task_lines(house))[1].endswith("at 08:00; last said late at 08:06)")


async def test_what_is_due_but_not_said_says_why(house: House, clock: HeldClock) -> None:
    """T-013, lesson 11."""
    await promise(house, "soup", once("2026-05-04T15:00"), ROOM_SCOPE, GROUP)
    reach(clock, "2026-05-04T15:05")
    assert await task_lines(house, **IN_GROUP) == ["**Today**", "- 15:00 soup"]
    clock.advance(1)
    assert (await task_lines(house, **IN_GROUP))[1] == "- 15:00 soup (overdue)"
    house.speaker.unfit.add(GROUP)
    await house.fire()
    assert (await task_lines(house, **IN_GROUP))[1] == f"- 15:00 soup ({HELD})"


async def test_a_failed_run_says_why_to_those_it_ran_for(house: House, clock: HeldClock) -> None:
    """T-050: what is shown everywhere does not tell what is private."""
    tasks = [await promise(house, "news", BY_ITSELF, scope) for scope in (MINE, EVERYWHERE)]
    reach(clock, "2026-05-05T08:00")
    await house.promises.fire()  # and nobody starts the runs
    notes = [line.split("; ")[1] for line in (await task_lines(house))[1:]]
    assert notes == ["its run is not finished)"] * 2
    last = await house.stores.occurrences.last([task.id for task in tasks])
    async with house.database.transaction() as tx:
        for run in last.values():
            out = await house.outbox.enqueue(
                tx, run.conversation_id, "x", kind="event", meant_for=""
            )
            await house.stores.runs.failed(tx, run, "no *page*", out, pauses=False)
    notes = [line.split("; ")[1] for line in (await task_lines(house))[1:]]
    assert notes == ["last run failed: no \\*page\\*)", "last run failed)"]


@pytest.mark.parametrize("verb", ALL_VERBS)
async def test_an_id_of_another_room_is_unknown(house: House, verb: str) -> None:
    """T-013, T-015: for every verb the same as an id that nobody has."""
    mine = await promise(house, "mine", DAILY)
    ours = await promise(house, "ours", DAILY, ROOM_SCOPE, GROUP)
    before = [await now(house, mine), await now(house, ours)]
    assert await act(house, verb, ours) == "no task ID"
    assert await act(house, verb, ours, **OTHER) == "no task ID"
    assert await act(house, verb, mine, **IN_GROUP) == "no task ID"
    bens: dict[str, Any] = {"room": "!ben:test", **BY_BEN}
    assert await act(house, verb, mine, **bens) == "no task ID"
    assert await task_lines(house, **bens) == [EMPTY_LISTS["tasks"]]
    assert [await now(house, mine), await now(house, ours)] == before
    assert len(await task_lines(house)) == len(await task_lines(house, **IN_GROUP)) == 2


@pytest.mark.parametrize("verb", ALL_VERBS)
async def test_what_is_shown_everywhere_is_changed_by_the_owner_alone(
    house: House, verb: str
) -> None:
    """T-014: the owner may from every room."""
    task = await promise(house, "be kind", DAILY, EVERYWHERE)
    if verb == "resume":
        await do(house, "pause", task)
    before = await now(house, task)
    assert "only the owner" in await act(house, verb, task, **IN_GROUP, **BY_BEN)
    assert await now(house, task) == before
    assert "only the owner" not in await act(house, verb, task, **IN_GROUP)


async def test_a_delivered_reminder_is_answered(house: House, clock: HeldClock) -> None:
    """T-063: each answer after the other, as reactions do it."""
    task = await promise(house, "Call Anna", once("2026-05-04T15:00"))
    await said_at(house, clock, "2026-05-04T15:00")
    assert await act(house, "done", task) == "Done: Call Anna"
    assert await act(house, "done", task) == "Done: Call Anna"
    assert await act(house, "snooze", task) == "Again at 15:10: Call Anna"
    assert (await task_lines(house))[1] == "- 15:10 Call Anna"
    await said_at(house, clock, "2026-05-04T15:10")
    assert (await house.spoken()).count("⏰ Call Anna") == 2
    reach(clock, "2026-05-04T23:30")
    said = "Again tomorrow at 15:10: Call Anna"
    assert await act(house, "tomorrow", task) == said
    assert await act(house, "cancel", task) == "Cancelled: Call Anna (`/undo` brings it back)"
    assert await act(house, "cancel", task) == "ID is deleted already; nothing was changed"
    assert await act(house, "done", task) == "ID is deleted; nothing was changed"
    assert (await now(house, task)).status == "deleted"
    assert await house.ask("/undo") == "- the task is back: Call Anna"


async def test_what_comes_again_is_done_until_then(house: House, clock: HeldClock) -> None:
    """T-063: the series goes on."""
    task = await promise(house, "water", DAILY)
    await said_at(house, clock, "2026-05-05T08:00")
    assert await act(house, "snooze", task) == "Again at 08:10: water"
    assert await act(house, "done", task) == "Done until tomorrow at 08:00: water"
    await said_at(house, clock, "2026-05-05T20:00")
    assert (await house.spoken()).count("⏰ water") == 1
    await act(house, "cancel", task)
    await house.ask("/undo")
    await said_at(house, clock, "2026-05-06T08:00")
    assert (await house.spoken()).count("⏰ water") == 2


@pytest.mark.parametrize(
    ("asked", "said"), [(DAILY, "08:00"), (once("2026-05-07T09:30"), "09:30"), (NOTHING, "14:00")]
)
async def test_tomorrow_is_at_the_time_of_day_that_it_has(
    house: House, asked: PlanRequest, said: str
) -> None:
    """T-063: also before it was ever said."""
    task = await promise(house, "tea", asked)
    assert await act(house, "tomorrow", task) == f"Again tomorrow at {said}: tea"


@pytest.mark.parametrize(
    ("asked", "line", "resumed"),
    [
        (NOTHING, "- tea", "Active again: tea"),
        (DAILY, "- tea (daily at 08:00)", "Active again, next tomorrow at 08:00: tea"),
        (
            once("2026-05-04T15:00"),
            "- tea (once at 2026-05-04 15:00)",
            "Active again, but its time has passed and it will not come by itself;"
            " `/tasks tomorrow 1` lets it come tomorrow: tea",
        ),
    ],
)
async def test_what_was_paused_goes_on_from_now(
    house: House, clock: HeldClock, asked: PlanRequest, line: str, resumed: str
) -> None:
    """T-006: nothing of the pause is said."""
    task = await promise(house, "tea", asked)
    assert await act(house, "pause", task) == "Paused until `/tasks resume 1`: tea"
    assert await task_lines(house) == ["**Paused**", line]
    assert await act(house, "snooze", task) == "ID is paused; nothing was changed"
    await said_at(house, clock, "2026-05-05T09:00")
    assert await act(house, "resume", task) == resumed
    await house.fire()
    assert not any(text.startswith("⏰") for text in await house.spoken())
    assert ("its time has passed" in resumed) == ("time has passed" in str(await task_lines(house)))


async def test_what_is_paused_can_be_done(house: House) -> None:
    """T-005: but not a whole series, for which `cancel` is meant."""
    book, water = await promise(house, "book", NOTHING), await promise(house, "water", DAILY)
    for task in (book, water):
        await act(house, "pause", task)
    assert await act(house, "done", book) == "Done: book"
    assert (await now(house, book)).status == "completed"
    assert await act(house, "done", water) == "ID is paused; nothing was changed"


HELPED = (
    *(
        ("task_00000000", "Say what to do: `/tasks done 2`."),
        ("call mum", "I do not know call. Say"),
    ),
    *(
        ("dnoe `4`", "I do not know dnoe. Did you mean `/tasks done`?"),
        ("Resume", "`/tasks resume 2`."),
    ),
    ("done", "Which task? Add its number or its words, as in `/tasks done 2`."),
)


@pytest.mark.parametrize(("line", "why"), HELPED)
async def test_anything_else_gets_the_verbs(house: House, line: str, why: str) -> None:
    """U-016: after what is wrong or missing."""
    said = await house.ask(f"/tasks {line}")
    assert why in said.splitlines()[0]
    assert said.endswith(f"\n\n{VERBS}")
    assert [f"`/tasks {verb} TASK`" in said for verb in ALL_VERBS] == [True] * len(ALL_VERBS)


async def test_what_is_put_off_before_it_is_due_comes_once(
    tmp_path: Path, clock: HeldClock
) -> None:
    """T-063, T-035: then alone, also after a restart; of a series one occurrence moves."""
    async with house_at_work(tmp_path, None, clock=clock) as house:
        for text in ("at 16:28 soup", "at 15:00 tea", "every day at 15:30 water"):
            await house.ask(f"/remind {text}")
        said = "It is not due yet and comes today at 15:30: water"
        assert await house.ask("/tasks done water") == said
        assert await house.ask("/tasks snooze soup") == "Again at 14:10: soup"
        for text, at in (("tea", "15:00"), ("water", "15:30")):
            assert await house.ask(f"/tasks tomorrow {text}") == f"Again tomorrow at {at}: {text}"
        assert (await task_lines(house))[:2] == ["**Today**", "- 14:10 soup"]
    async with house_at_work(tmp_path, None, clock=clock) as house:
        for when in ("04T14:10", "04T15:30", "04T16:28", "05T15:00", "05T15:30", "06T15:30"):
            await said_at(house, clock, f"2026-05-{when}")
        told = [text[2:] for text in await house.spoken() if text.startswith("⏰ ")]
        assert [text for text in told if "💤" not in text] == ["soup", "tea", "water", "water"]


async def test_a_task_is_named_by_words_of_it(house: House) -> None:
    """U-010: or by its number, which is never a word; what several tasks say is asked back."""
    for text in ("Call mum", "Call Ben", "mum's cake"):
        await house.ask(f"/remind tomorrow at 9 {text}")
    assert (
        await house.ask("/tasks cancel call MUM") == "Cancelled: Call mum (`/undo` brings it back)"
    )
    assert await house.ask("/tasks done call") == "Done: Call Ben"
    assert (await house.ask("/undo")).endswith(": Call Ben")
    assert await house.ask("/tasks done dog") == "No task here says dog. `/tasks` lists them."
    assert await house.ask("/tasks cancel all") == "No task here says all. `/tasks` lists them."
    await house.ask("/remind tomorrow at 9 Call Ann")
    which = (await house.ask("/tasks pause call")).splitlines()
    assert which[1:] == ["- `2` Call Ben", "- `4` Call Ann"]
    assert await house.ask("/tasks pause `4`") == "Paused until `/tasks resume 4`: Call Ann"
    assert await house.ask("/tasks snooze 4") == "It is paused; nothing was changed"
    await promise(house, "2 eggs, ours", NOTHING, ROOM_SCOPE, GROUP)
    assert await house.ask("/tasks done ٤") == "No task here says ٤. `/tasks` lists them."
    for wrong, where in ((1, {}), (5, {}), (6, {}), (2, IN_GROUP)):
        assert "has the number" in await house.ask(f"/tasks cancel {wrong}", **where)
    assert await house.ask("/tasks done 2 eggs", **IN_GROUP) == "Done: 2 eggs, ours"


async def test_every_change_is_on_record_with_its_message(house: House) -> None:
    task = await promise(house, "tea", NOTHING)
    await act(house, "pause", task)
    newest = await house.stores.changes.newest(("task",), MINE)
    event = await house.one("SELECT event_id FROM inbox")
    assert newest is not None
    assert newest.cause == "command"
    assert newest.changes[0].evidence == (event["event_id"],)


@pytest.mark.parametrize("form", ["`{}`", "{}.", "({})", "#{}", "{}"])
async def test_an_id_is_taken_as_people_copy_it(house: House, form: str) -> None:
    """T-009: with what stands around it; a slip gets a hint."""
    task = await task_of(house, "tea", NOTHING, room=ROOM)
    for wanted in (form.format(task.id), form.format(task.id.upper())):
        assert await house.ask(f"/tasks pause {wanted}") == "Paused until `/tasks resume 1`: tea"
        assert await house.ask(f"/tasks resume {wanted}") == "Active again: tea"
    slip = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
    assert f"did you mean {task.id}?" in await house.ask(f"/tasks DONE {form.format(slip)}")


async def test_undo_says_what_a_task_is_again(house: House) -> None:
    """T-063: "as it was before" tells nobody whether it is still to be done."""
    task = await task_of(house, "tea", NOTHING, room=ROOM)
    for verb, before in (("pause", "active"), ("done", "active"), ("cancel", None)):
        await house.ask(f"/tasks {verb} {task.id}")
        said = f"the task is {before} again: tea" if before else "the task is back: tea"
        assert await house.ask("/undo") == f"- {said}"
