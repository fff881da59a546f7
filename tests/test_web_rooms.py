"""Conversations in the browser beside Matrix, behind the same loop; here without the door itself."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.world.bot import Bot
from tests.world.chats import LATER, all_from, heard_from, planning
from tests.world.clock import WITHIN, FakeClock, HeldClock
from tests.world.house import ANN, ROOM, House, house_at_work
from tests.world.model import Drip, Hang, ModelServer, Text
from tests.world.nights import begin, opened, remember, says_at_night, slept
from tests.world.promised import MORNING, after, now, promise, talk
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.clock import SystemClock
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.mailbox.outbox import TERMINAL, WEB
from wintermute.messages import InboxKind, Incoming
from wintermute.owner import Owner
from wintermute.schedule.firing import REMINDER
from wintermute.stores import Stores
from wintermute.web.speaker import AnswerInProgress

PAGE = f"{WEB}conv_1"
STATES = "SELECT room_id, state FROM outbox ORDER BY room_id"


async def held(house: House, room: str) -> str:
    async with house.database.transaction() as tx:
        found = await house.conversations.of_room(tx, room)
    assert found is not None
    return found.id


async def made(
    house: House, room: str, true: Callable[[AnswerInProgress | None], bool]
) -> AnswerInProgress | None:
    """Wait until the answer that a page shows as it is made is like that."""
    seen, conversation = 0, await held(house, room)
    async with asyncio.timeout(WITHIN):
        while not true(making := house.web.answer_in_progress(conversation)):
            seen = await house.web.wait_for_change(conversation, seen)
    return making


def shows(making: AnswerInProgress | None, begun: str) -> bool:
    """Decide if so much of an answer is there; a word may come in pieces."""
    return making is not None and making.text.strip() == begun


async def all_sent(house: House) -> list[tuple[str, str]]:
    """Rooms and states of all that was said, once none of it waits for a page."""
    async with asyncio.timeout(WITHIN):
        while await house.outbox.waiting_for_pages():  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0.05)
    return [(row["room_id"], row["state"]) for row in await house.rows(STATES)]


async def test_two_doors_at_once_get_each_its_answer(tmp_path: Path, model: ModelServer) -> None:
    """V-014, V-016, V-017: what is said on a page is said at once; Matrix waits for its event."""
    gates = asyncio.Semaphore(0), asyncio.Semaphore(0)
    answers = {"hi": ("tea *is* nice", gates[0]), "ho": ("so is coffee", gates[1])}
    model.keyed(lambda seen: Drip(*answers[seen.last_user]))
    async with house_at_work(tmp_path, model.url, done=False) as house:
        event = await house.incoming("hi", room=PAGE, event_id="web_1")
        await house.incoming("ho")
        for room, gate, begun in ((PAGE, gates[0], "tea"), (ROOM, gates[1], "so")):
            gate.release()
            making = await made(house, room, partial(shows, begun=begun))
            assert making is not None
            assert (making.gates, making.waiting) == ((), None)
            assert (making.answers == event) == (room == PAGE)
        gates[0].release()
        gates[0].release()
        assert await house.said(1, PAGE) == ["tea *is* nice "]
        assert await made(house, PAGE, lambda made: made is None) is None
        assert await all_sent(house) == [(PAGE, "sent")]
        for _ in range(2):
            gates[1].release()
        assert await house.said(1) == ["so is coffee "]
        await house.settled()
        assert await all_sent(house) == [(ROOM, "waiting"), (PAGE, "sent")]
        assert await house.outbox.conversations_waiting() == [(await held(house, ROOM), ROOM)]
        shown = {room for word, room in house.speaker.noted if word in ("attend", "rest")}
        assert shown == {ROOM}
        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as streams:
            shown_in = await held(house, PAGE)
            seen = await house.web.wait_for_change(shown_in, 0)
            waits = [
                streams.create_task(house.web.wait_for_change(shown_in, seen)) for _ in range(50)
            ]
            await asyncio.sleep(0)
            house.web.speak(shown_in)
        assert len({wait.result() for wait in waits} - {seen}) == 1


async def test_a_reminder_asked_for_on_a_page_is_said_in_matrix(tmp_path: Path) -> None:
    """V-017: it waits for a chat there if there is none, also at the page that asked last."""
    clock = FakeClock(MORNING)
    async with house_at_work(tmp_path, None, clock=clock) as house:
        async with house.database.transaction() as tx:
            await house.conversations.in_room(tx, PAGE, f"person:{ANN}", "terminal")
        task = await promise(house, room=PAGE)
        after(clock, "2026-03-02T09:00")
        await house.fire()
        assert (await now(house, task)).status == "active"
        assert await house.rows(STATES) == []
        await talk(house)
        clock.advance(31)
        await house.fire()
        assert (await house.spoken(), await house.spoken(PAGE)) == (["⏰ Call Anna"], [])


@pytest.mark.parametrize("home", [ROOM, TERMINAL])
async def test_night_reports_ignore_pages(tmp_path: Path, model: ModelServer, home: str) -> None:
    """V-017, M-078: a page counts neither as a chat nor as a room beside the terminal."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
        if home == ROOM:
            await begin(house, "Likes tea", "Likes tea, again")
        else:
            await says_at_night(house, "I sit here", room=TERMINAL)
            await remember(house, "Likes tea", "Likes tea, again")
        await says_at_night(house, "I sit here now", room=PAGE)
        await slept(house, clock)
        assert (await house.spoken(home))[1].startswith("Last night: 2 memories merged.")
        assert len(await house.spoken(PAGE)) == 1


async def put(daemon: Bot, person: str, *texts: str) -> None:
    """Messages of an open page, as its door stores them, for a daemon that is not there now."""
    data, clock = daemon.data, SystemClock()
    async with open_database(data / "wintermute.db") as database:
        owner = Owner(person)
        stores = Stores.of(database, data, owner, clock, new_id, timezone="Europe/Berlin")
        async with database.transaction() as tx:
            conversation = await stores.conversations.in_room(tx, PAGE, owner.scope, "terminal")
            for text in texts:
                kind: InboxKind = "command" if text.startswith("/") else "message"
                event = new_id("web"), PAGE, person, ""
                said_now = Incoming(*event, "owner", kind, text, clock.now(), direct=True)
                await stores.inbox.store(tx, conversation, said_now, "waiting")


@pytest.mark.slow
async def test_a_page_that_nobody_can_open_any_more_has_its_answers_all_the_same(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """V-015, V-017: killed while an answer is made, then started with no web door at all."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    model.script(Text("hello"))
    await ann.send(chat, "I am here")
    await heard_from(ann, chat, daemon, "hello")
    assert await daemon.stop() == 0
    await put(daemon, ann.user_id, "are you there?")
    model.script(Hang(), Text("I am"))
    await daemon.start()
    await model.request_arrived(2)
    await daemon.kill()
    await put(daemon, ann.user_id, "plan oolong", "/verify")
    model.keyed(lambda seen: None if "plan" not in seen.last_user else planning(LATER)(seen))
    await daemon.start()
    page = "SELECT body FROM outbox WHERE room_id = ? AND state = 'sent' ORDER BY seq"
    await daemon.until(lambda: len(daemon.rows(page, PAGE)) == 3)
    answers = [row["body"] for row in daemon.rows(page, PAGE)]
    assert (answers[0], answers[1][:8]) == ("I am", "it gave:")
    assert answers[2] == "There is nothing to verify here: `/verify` is for Matrix rooms."
    daemon.pass_time(LATER)
    await heard_from(ann, chat, daemon, f"{REMINDER}oolong")
    await ann.send(chat, "and here?")
    await heard_from(ann, chat, daemon, "echo: ")
    assert len(all_from(ann, chat, daemon)) == 3
    assert len(daemon.rows(page, PAGE)) == 3
