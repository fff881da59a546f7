"""Promises, greetings and limits as people meet them: asked for in a room, kept in a room.

No row is written and no time is set here: what is due was asked for by a person, and is waited for.
"""

import asyncio
import json
import re
from functools import partial

import pytest

from tests.world.chats import (
    LATER,
    NOTIFY,
    all_from,
    heard_from,
    last_request,
    message_from,
    planning,
    say_to,
)
from tests.world.clock import promptly
from tests.world.delegating import done, objective
from tests.world.duties import in_, signs
from tests.world.model import Fail, ModelServer, Slow, Text
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import MatrixUser
from wintermute.matrix.outbox import ELSEWHERE, KEPT_BACK
from wintermute.messages import Usage
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.tasks import REMINDER_REACTIONS
from wintermute.text import EMPTY_LISTS

CLAIM = [["executing", "INSERT INTO occurrences"], ["executing", "COMMIT"]]
SAID = f"{REMINDER}water"


def is_signed(person: MatrixUser, chat: str, event_id: str) -> bool:
    """Whether a reminder has all the signs to answer with."""
    return len(signs(person, chat).get(event_id, {})) == len(REMINDER_REACTIONS)


async def test_a_reminder_is_said_and_answered_where_it_was_asked_for(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-013, T-046, T-052, T-063: there alone, and the next message there tells the model of it."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, matrix={"allowed_users": [ben.user_id]})
    mine, club = await room(ann, daemon, encrypted=True), await room(ann, daemon, ben)
    model.keyed(planning(LATER))
    for chat, what in ((mine, "oolong"), (club, "borscht")):
        await say_to(ann, chat, daemon, f"plan {what}")
        await heard_from(ann, chat, daemon, "it gave: ")
    daemon.pass_time(LATER)
    for who, chat, what, other in (
        (ann, mine, "oolong", "borscht"),
        (ben, club, "borscht", "oolong"),
    ):
        reminder = await message_from(who, chat, daemon, f"{REMINDER}{what}")
        await who.until(partial(is_signed, who, chat, reminder.event_id))
        await say_to(ann, chat, daemon, "hello")
        await heard_from(ann, chat, daemon, "echo: ")
        assert (
            '<event kind=\\"scheduled_task\\"' in last_request(model),
            other in last_request(model),
        ) == (True, False)
        await who.react(chat, reminder.event_id, "\N{WHITE HEAVY CHECK MARK}")
        await heard_from(ann, chat, daemon, f"Done: {what}")
        assert not [text for text in all_from(ann, chat, daemon) if other in text]


@pytest.mark.slow
async def test_a_reminder_of_a_group_is_answered_by_whoever_is_left_there(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-001, T-063: the chat is hers alone by now; the task is the group's, and was told there."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, matrix={"allowed_users": [ben.user_id]})
    club = await room(ann, daemon, ben)
    model.keyed(planning(LATER))
    for n, what in enumerate(("borscht", "pelmeni"), 1):
        await say_to(ann, club, daemon, f"plan {what}")
        await ann.wait_for_count(club, daemon.user_id, n)
    await ben.leave(club)
    daemon.pass_time(LATER)
    reminders = {
        what: await message_from(ann, club, daemon, f"{REMINDER}{what}")
        for what in ("borscht", "pelmeni")
    }
    await ann.react(club, reminders["borscht"].event_id, "\N{CROSS MARK}")
    await heard_from(ann, club, daemon, "Cancelled: borscht")
    await ann.send(club, "/undo")
    await heard_from(ann, club, daemon, "- the task is back: borscht")
    await ann.send(club, "/tasks snooze")
    await heard_from(ann, club, daemon, "Again at ")
    await ann.send(club, "/tasks")
    listed = await message_from(ann, club, daemon, "- ")
    assert "pelmeni" in listed.body or "borscht" in listed.body


async def test_a_command_promises_without_a_model_and_only_once(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-062, T-040, L-072, L-034: also while a message waits; that is answered after a restart."""
    ann = await person("ann")
    daemon = await bot(ann, llm={"max_retries": 0})
    chat = await room(ann, daemon)
    model.script(Fail(503))
    await ann.send(chat, "hello")
    await model.request_arrived(1)
    await ann.send(chat, "/remind daily 09:00 water")
    promised = await heard_from(ann, chat, daemon, "I'll remind you ")
    assert re.fullmatch(r"I'll remind you (today|tomorrow) at 09:00, every day: water", promised)
    assert len(model.requests) == 1
    await daemon.restart()
    await heard_from(ann, chat, daemon, "echo: hello")
    await ann.send(chat, "/tasks")
    await ann.wait_for_count(chat, daemon.user_id, 3)
    assert all_from(ann, chat, daemon)[2].count("water") == 1


async def test_what_fell_due_while_it_was_killed_is_said_late_and_once(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-036, T-037, T-042: it dies in the second in which it would have promised to say it."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    model.keyed(planning(LATER))
    await ann.send(chat, "plan water")
    await heard_from(ann, chat, daemon, "it gave: ")
    assert await daemon.stop() == 0
    daemon.pass_time(LATER)
    await daemon.start({"logger": "aiosqlite", "steps": CLAIM}, ready=False)
    assert await daemon.ended() < 0
    assert len(all_from(ann, chat, daemon)) == 1
    await daemon.start()
    assert "(was due " in await heard_from(ann, chat, daemon, SAID)
    await daemon.restart()
    await ann.send(chat, "hello")
    await heard_from(ann, chat, daemon, "echo: ")
    assert len(all_from(ann, chat, daemon)) == 3


@pytest.mark.slow
async def test_what_the_shell_promises_is_said_in_the_room_it_is_for(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """T-011, T-013, T-040: beside the daemon; what was paused in the chat meanwhile is not said."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann)
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    add = ("task", "add", "--schedule-type", "once", "--at")
    _, held = await daemon.command(*add, in_(LATER), "not this")
    await ann.send(mine, f"/tasks pause {re.findall('task_[0-9a-f]+', held)[0]}")
    await heard_from(ann, mine, daemon, "Paused")
    group = ("--scope", f"room:{club}")
    assert (await daemon.command(*add, in_(LATER), "water", *group))[0] == 0
    assert (await daemon.command(*add, in_(LATER), "plants"))[0] == 0
    daemon.pass_time(LATER)
    async with promptly(15):  # a sync wakes us twice a minute as well
        await message_from(ann, club, daemon, SAID)
        await message_from(ann, mine, daemon, f"{REMINDER}plants")
    assert (len(all_from(ann, mine, daemon)), len(all_from(ann, club, daemon))) == (2, 1)


@pytest.mark.slow
async def test_a_reminder_finds_another_chat_with_its_person_alone(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-013, X-030, F-002: a stranger came in, who says nothing; or its person has left."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    left, shared, other = [await room(ann, daemon) for _ in range(3)]
    model.keyed(planning(3))
    for chat, what in ((left, "oolong"), (shared, "borscht")):
        await ann.send(chat, f"plan {what}")
    for chat in (left, shared):
        await heard_from(ann, chat, daemon, "it gave: ")
    await ann.leave(left)
    await ann.invite(shared, eve.user_id)
    await eve.join(shared)
    for what in ("oolong", "borscht"):
        await heard_from(ann, other, daemon, f"{REMINDER}{what}")
    assert [len(all_from(ann, chat, daemon)) for chat in (left, shared)] == [1, 1]


@pytest.mark.slow
async def test_a_reminder_from_an_encrypted_chat_passes_by_one_that_is_not(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-013, F-002, X-015: its person left, and has spoken in neither of the others."""
    ann = await person("ann")
    daemon = await bot(ann)
    left = await room(ann, daemon, encrypted=True)
    plain, other = await room(ann, daemon), await room(ann, daemon, encrypted=True)
    model.keyed(planning(3))
    await ann.send(left, "plan oolong")
    await heard_from(ann, left, daemon, "it gave: ")
    await ann.leave(left)
    await heard_from(ann, other, daemon, f"{REMINDER}oolong")
    assert not all_from(ann, plain, daemon)


async def test_a_run_posts_its_result_where_it_was_asked_for(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """T-047, T-049, M-010: with the memories of that chat, and nothing of what was said in it."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann)
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    (daemon.data / "MEMORIES.txt").write_text("Ann earns 4711 a month\n")
    model.keyed(planning(LATER, done("they rise"), **NOTIFY))
    for chat, what in ((mine, "oolong"), (club, "borscht")):
        await say_to(ann, chat, daemon, f"plan {what}")
        await heard_from(ann, chat, daemon, "it gave: ")
    daemon.pass_time(LATER)
    for chat in (mine, club):
        assert await heard_from(ann, chat, daemon, "they rise") == "they rise"
    runs = {
        " oolong\n" in objective(seen): str(seen.body) for seen in model.requests if objective(seen)
    }
    assert ("earns 4711" in runs[True], "earns 4711" in runs[False]) == (True, False)
    assert all("Look at the prices" in run and "plan " not in run for run in runs.values())


@pytest.mark.slow
async def test_the_result_of_a_private_run_is_kept_from_who_came_in_without_a_word(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-010, T-047, F-002: the room hears that there is one; in her other chat Ann has it."""
    ann, eve, release = await person("ann"), await person("eve"), asyncio.Event()
    daemon = await bot(ann)
    chat, side = [await room(ann, daemon) for _ in range(2)]
    model.keyed(planning(LATER, Slow(release, done("they rise")), **NOTIFY))
    await ann.send(chat, "plan water")
    await heard_from(ann, chat, daemon, "it gave: ")
    daemon.pass_time(LATER)
    await model.request_arrived(3)
    await ann.invite(chat, eve.user_id)
    await eve.join(chat)
    await ann.send(side, "/help")
    await heard_from(ann, side, daemon, "Write to me")  # it has read all that was before
    release.set()
    await heard_from(ann, chat, daemon, KEPT_BACK)
    await heard_from(ann, side, daemon, ELSEWHERE + "they rise")
    assert not [text for text in all_from(ann, chat, daemon) if "they rise" in text]


async def test_another_zone_of_the_configuration_keeps_the_time_of_day(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """T-033, T-020: from the next start on, in the chat as at the command line."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await ann.send(chat, "/remind daily 09:00 water")
    await heard_from(ann, chat, daemon, "I'll remind")
    config = json.loads(daemon.config.read_text())
    daemon.config.write_text(json.dumps(config | {"timezone": "Asia/Tokyo"}))
    await daemon.restart()
    await ann.send(chat, "/tasks")
    listed = await heard_from(ann, chat, daemon, "**")
    assert " 09:00 water (" in listed
    [task] = [row["id"] for row in daemon.rows("SELECT id FROM tasks")]
    code, due = await daemon.command("task", "next", task)
    assert (code, due.count(" 09:00 JST")) == (0, 3)


async def test_a_chat_is_greeted_once_before_its_first_answer(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """P-055, P-056, P-060: also after a restart; a group when it is first spoken to; /new again."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, seed={"enabled": True})
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    model.keyed(lambda seen: Text("I am new here") if "_seed" in seen.last_user else None)
    await ann.send(club, "not for the bot")
    for chat in (mine, club):
        await say_to(ann, chat, daemon, "hello")
        await ann.wait_for_count(chat, daemon.user_id, 2)
        first, second = all_from(ann, chat, daemon)
        assert (first, second.endswith("hello")) == ("I am new here", True)
    await daemon.restart()
    await say_to(ann, mine, daemon, "again")
    await say_to(ann, mine, daemon, "/new")
    await ann.wait_for_count(mine, daemon.user_id, 5)
    assert all_from(ann, mine, daemon)[2:4] == ["echo: again", FRESH]
    assert all_from(ann, mine, daemon)[4:] == ["I am new here"]


FRESH = "A new conversation: I no longer see the earlier messages."


async def test_a_fresh_start_in_a_group_hides_all_that_was_said_before(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """L-074, L-002, X-002: what was asked, and what others said among themselves."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann)
    club = await room(ann, daemon, ben)
    await say_to(ann, club, daemon, "the code is jackdaw")
    await heard_from(ann, club, daemon, "echo: ")
    await ben.send(club, "Ann has the code")
    await ann.wait_for(club, lambda message: message.sender == ben.user_id)
    await say_to(ann, club, daemon, "what is it?")
    await ann.wait_for_count(club, daemon.user_id, 2)
    assert ("jackdaw" in last_request(model), "has the code" in last_request(model)) == (True, True)
    await ben.send(club, "and Ben has it too")
    await say_to(ann, club, daemon, "/new")
    await heard_from(ann, club, daemon, FRESH)
    await say_to(ann, club, daemon, "what was it?")
    await ann.wait_for_count(club, daemon.user_id, 4)
    assert not [
        text for text in ("jackdaw", "the code", "has it too") if text in last_request(model)
    ]


@pytest.mark.breaks("fold")
async def test_a_summary_is_made_of_one_room_and_stays_there(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """L-044, P-017, M-010: asked for with /compact."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, context={"keep_recent": 2})
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    model.keyed(lambda seen: Text("In short: paper") if "<history>" in seen.last_user else None)
    for chat, text in ((mine, "my own secrets"), (club, "our garden"), (mine, "so?")):
        await say_to(ann, chat, daemon, text * 40)
        await heard_from(ann, chat, daemon, "echo: ")
    await say_to(ann, mine, daemon, "/compact")
    await heard_from(ann, mine, daemon, "Summed up: ")
    assert ("own secrets" in last_request(model), "our garden" in last_request(model)) == (
        True,
        False,
    )
    for chat, count in ((mine, 4), (club, 2)):
        await say_to(ann, chat, daemon, "hello")
        await ann.wait_for_count(chat, daemon.user_id, count)
        assert ("In short: paper" in last_request(model)) == (chat == mine)


async def test_memories_that_are_too_long_are_told_of_in_their_own_chat(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """P-048, P-049, P-051, M-013: by the name of its own file, and once."""
    ann, ben = await person("ann"), await person("ben")
    limits = {"component_size_limits": {"memories": 10}}
    daemon = await bot(ann, context=limits, matrix={"allowed_users": [ben.user_id]})
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    (daemon.data / "MEMORIES.txt").write_text("Ann likes lines that are long\n")
    model.keyed(lambda seen: Text("I shall") if "component_oversize" in seen.last_user else None)
    for n, (chat, count) in enumerate(((club, 1), (mine, 2), (mine, 3))):
        await say_to(ann, chat, daemon, f"hello {n}")
        await ann.wait_for_count(chat, daemon.user_id, count)
    notices = [seen.last_user for seen in model.requests if "_oversize" in seen.last_user]
    assert len(notices) == 1
    assert "data/MEMORIES.txt" in notices[0]
    assert [text[:7] for text in all_from(ann, mine, daemon)] == ["echo: h", "I shall", "echo: h"]


async def test_a_spent_budget_is_told_once_in_each_room_and_promises_go_on(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """L-085, L-086: nothing is asked any more; commands and reminders need no model."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, llm={"budget": {"tokens_per_day": 30_000}})
    mine, club = await room(ann, daemon), await room(ann, daemon, ben)
    model.script(Text("a long answer", usage=Usage(6_000, 20_000, 0)))
    await say_to(ann, mine, daemon, "hello")
    await heard_from(ann, mine, daemon, "a long answer")
    for chat in (mine, club):
        await say_to(ann, chat, daemon, "hello again")
        assert "I keep your messages" in await heard_from(
            ann, chat, daemon, "scripted is not asked"
        )
        await say_to(ann, chat, daemon, "and again")
        await say_to(ann, chat, daemon, "/memory")
        await heard_from(ann, chat, daemon, EMPTY_LISTS["memories"])
    at = ("--schedule-type", "once", "--at", in_(LATER))
    assert (await daemon.command("task", "add", "water", *at))[0] == 0
    daemon.pass_time(LATER)
    await heard_from(ann, mine, daemon, SAID)
    assert [len(all_from(ann, chat, daemon)) for chat in (mine, club)] == [4, 2]
    assert len(model.requests) == 1
