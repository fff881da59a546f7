"""Texts of ours that are taken away go with all their edits: in the rooms, and from what we keep (X-054, X-055)."""

import asyncio
import signal
from functools import partial
from urllib.parse import quote

import pytest

from tests.test_kill_drafts import arm
from tests.world.bot import Bot
from tests.world.clock import WITHIN
from tests.world.copied import copied, echoed, heard, put_back, talk
from tests.world.model import Drip, ModelServer, Reads, Text
from tests.world.person import Person
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import CLIENT, Message

pytestmark = pytest.mark.slow

WORDS = " ".join(f"secret{n}" for n in range(200))
THOUGHTS = f"{' '.join(f'secret{n}' for n in range(30))} </think> All is well."
V1 = CLIENT.replace("v3", "v1")


async def left_of(ann: Person, chat: str, event_id: str, text: str = "") -> list[object]:
    """The contents that somebody in the room can still get of an event and its edits, with a text."""
    room, event = quote(chat), quote(event_id)
    _, shown = await ann.api("GET", f"{CLIENT}/rooms/{room}/event/{event}")
    _, edits = await ann.api("GET", f"{V1}/rooms/{room}/relations/{event}/m.replace?limit=100")
    _, page = await ann.api("GET", f"{CLIENT}/rooms/{room}/messages?dir=b&limit=100")
    about = [e for e in page["chunk"] if event_id in str(e["content"].get("m.relates_to"))]
    contents = [e["content"] for e in (shown, *edits["chunk"], *about)]
    return [content for content in contents if content and text in str(content)]


async def nothing_left(daemon: Bot, ann: Person, chat: str, event_id: str, text: str = "") -> None:
    """Until all of them are gone, and nothing is to be sent."""
    async with asyncio.timeout(WITHIN):
        while await left_of(ann, chat, event_id, text):  # noqa: ASYNC110  the homeserver is asked
            await asyncio.sleep(0.05)
    await daemon.said_all()
    assert not await left_of(ann, chat, event_id, text)
    assert not daemon.rows("SELECT 1 FROM inbox WHERE state IN ('waiting', 'casting')")


async def grown(
    daemon: Bot, ann: Person, chat: str, question: str, events: int = 2
) -> tuple[str, Message]:
    """Ask, and see the answer grow to so many events: the question's event and the first of ours."""
    before = len(ann.messages(chat, daemon.user_id))
    asked = await ann.send(chat, question)
    shown = (await ann.wait_for_count(chat, daemon.user_id, before + events))[before]
    assert "secret" in shown.body
    return asked, shown


def none_kept(daemon: Bot, text: str = "secret") -> None:
    """See that our database has a text no more, in what was said or thought."""
    for table, column in (("outbox", "body"), ("outbox_parts", "content"), ("turns", "utterance")):
        assert not daemon.rows(f"SELECT 1 FROM {table} WHERE {column} LIKE '%{text}%'")


async def test_a_notice_that_a_person_redacts_leaves_none_of_its_wordings(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-054: in an encrypted room; what comes later is no text of it."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon, encrypted=True)
    read, gate = ((2048, 5249), (4096, 5249)), asyncio.Semaphore(1)
    model.script(Reads(read, gate, None), Reads(read, gate, Text("at last")))
    await ann.send(chat, "a long text")
    await model.request_arrived(1)
    daemon.set_clocks(steady=61)
    gate.release()
    notice = await ann.wait_for(chat, lambda message: "tokens read" in message.body)
    gate.release()  # the connection breaks
    await ann.wait_for(chat, lambda message: "attempt 2 of" in message.body)
    assert len(await left_of(ann, chat, notice.event_id)) > 2
    await ann.redact(chat, notice.event_id)
    async with asyncio.timeout(WITHIN):
        while await left_of(ann, chat, notice.event_id):  # noqa: ASYNC110  the homeserver is asked
            await asyncio.sleep(0.05)
    for _ in range(5):
        gate.release()
    await ann.wait_for(chat, lambda message: message.body == "at last")
    await nothing_left(daemon, ann, chat, notice.event_id)
    none_kept(daemon, "still waiting")


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_an_answer_that_is_taken_back_leaves_nothing(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool
) -> None:
    """X-054, F-027: its question, or itself as it grows, or whole; nothing is said of that."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    short = " ".join(WORDS.split()[:25])
    for takes in ("question", "answer", "whole"):
        model.script(Drip(short if takes == "whole" else WORDS, interval=0.1))
        asked, shown = await grown(daemon, ann, chat, takes)
        if takes == "whole":
            await ann.wait_for(chat, lambda message: message.body.strip("* ") == short)
            await daemon.said_all()
        await ann.redact(chat, asked if takes == "question" else shown.event_id)
        await nothing_left(daemon, ann, chat, shown.event_id)
        events = ann.messages(chat, daemon.user_id)
        await talk(ann, chat, f"after {takes}")
        assert len(ann.messages(chat, daemon.user_id)) == len(events) + 1
    none_kept(daemon)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_thoughts_that_were_shown_go_and_are_not_shown_again(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool
) -> None:
    """X-040, F-020: what follows them grows in an event of its own; the next life knows."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    model.script(*(Drip(THOUGHTS, interval=0.1),) * 2)
    _, shown = await grown(daemon, ann, chat, "how many?")
    said = await ann.wait_for(chat, lambda message: message.body == "All is well.")
    assert said.event_id != shown.event_id
    await nothing_left(daemon, ann, chat, shown.event_id)
    await daemon.restart()
    known = len(ann.messages(chat, daemon.user_id))
    await ann.send(chat, "and now?")
    await ann.until(lambda: len(ann.messages(chat, daemon.user_id)) > known)
    await daemon.said_all()
    assert [m.body for m in ann.messages(chat, daemon.user_id)[known:]] == ["All is well."]
    none_kept(daemon)


async def test_an_answer_to_an_earlier_wording_has_its_text_again(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-062, X-040, F-027: where thoughts were shown in its place, or the question goes meanwhile.

    X-054: where that answer itself goes meanwhile, nothing is left, and nothing more is shown.
    """
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    said = partial(ann.messages, chat, daemon.user_id)
    for n, text in enumerate((WORDS, WORDS, THOUGHTS)):
        former, known = " ".join(f"word{n}{at:02}" for at in range(25)), len(said())
        model.script(Drip(former, interval=0.1))
        asked = await ann.send(chat, f"question {n}")
        [answer, *_] = (await ann.wait_for_count(chat, daemon.user_id, known + 1))[known:]
        await ann.wait_for(chat, lambda message, end=former[-6:]: message.body.endswith(end))  # type: ignore[misc]
        await daemon.said_all()
        model.script(Drip(text, interval=0.1))
        await ann.edit(chat, asked, "another wording")
        await ann.wait_for_count(chat, daemon.user_id, len(said()) + 2)
        assert await left_of(ann, chat, answer.event_id, "secret")
        if text == THOUGHTS:
            await ann.wait_for(chat, lambda message: message.body == "* All is well.")
        else:
            await ann.redact(chat, answer.event_id if n else asked)
        await nothing_left(daemon, ann, chat, answer.event_id, "secret")
        left = (former, "", "All is well")[n]
        assert bool(await left_of(ann, chat, answer.event_id, left)) is bool(left)
    assert not [m for m in said() if "echo" in m.body]  # the model was not asked once more
    none_kept(daemon)


@pytest.mark.breaks("restored copy", perhaps=True)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_copy_from_before_a_draft_takes_it_away_and_answers_once(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool
) -> None:
    """X-055, F-009: the daemon was killed between the draft and its answer."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    await talk(ann, chat, "before")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    model.script(Drip(WORDS, interval=0.1))
    _, shown = await grown(daemon, ann, chat, "question")
    await daemon.kill()
    put_back(daemon, copy)
    await daemon.start()
    await ann.wait_for(chat, lambda message: echoed(message.body) == "question")
    await nothing_left(daemon, ann, chat, shown.event_id)
    await daemon.restart()
    await talk(ann, chat, "after")
    said = await heard(ann, chat, daemon)
    assert [n for text, n in said.items() if echoed(text) == "question"] == [1]


async def test_a_kill_while_something_is_taken_away_leaves_none_of_it(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy, model: ModelServer
) -> None:
    """X-054: around the redactions of a draft and of its edits."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    for number, phase in ((1, "before"), (1, "after"), (2, "before"), (2, "after")):
        model.script(Drip(WORDS, interval=0.1))
        asked, shown = await grown(daemon, ann, chat, f"question {number} {phase}", 3)
        arm(proxy, daemon, number, phase, "/redact/")
        await ann.redact(chat, asked)
        assert await daemon.ended() == -signal.SIGKILL
        assert await left_of(ann, chat, shown.event_id), (number, phase)
        await daemon.start()
        await nothing_left(daemon, ann, chat, shown.event_id)
    model.script(Drip(WORDS, interval=0.1))
    before = len(ann.messages(chat, daemon.user_id))
    arm(proxy, daemon, 1, "after")  # nothing here knows that the draft is in its room
    asked = await ann.send(chat, "in flight")
    assert await daemon.ended() == -signal.SIGKILL
    await ann.redact(chat, asked)
    shown = (await ann.wait_for_count(chat, daemon.user_id, before + 1))[-1]
    await daemon.start()
    await nothing_left(daemon, ann, chat, shown.event_id)
    none_kept(daemon)


def refuse_redactions(request: Request) -> Action:
    """A homeserver for which we are not in the room."""
    if "/redact/" in request.path:
        return Answer(403, {"errcode": "M_FORBIDDEN", "error": "you are not in the room"})
    return None


async def test_what_may_not_be_taken_away_now_goes_when_we_are_in_the_room_again(
    person: NewPerson, bot: NewBot, proxy: Proxy, model: ModelServer
) -> None:
    """X-054: kicked between a redaction and the edits; `status` names what is readable until then."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await ann.create_room([daemon.user_id], preset="private_chat")
    await ann.wait_joined(chat, daemon.user_id)
    model.script(Drip(WORDS, interval=0.1))
    asked, shown = await grown(daemon, ann, chat, "question")
    proxy.before = refuse_redactions
    await ann.redact(chat, asked)
    await daemon.until(lambda: len(daemon.rows("SELECT 1 FROM outbox WHERE state = 'stuck'")) == 2)
    assert "2 in " in (await daemon.command("status", "--all"))[1]
    await ann.kick(chat, daemon.user_id)
    await ann.until(lambda: daemon.user_id not in ann.members(chat))
    proxy.before = pass_before
    await ann.invite(chat, daemon.user_id)
    await ann.wait_joined(chat, daemon.user_id)
    await nothing_left(daemon, ann, chat, shown.event_id)
