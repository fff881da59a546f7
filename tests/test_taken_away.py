"""Texts of ours that are taken away go with all their edits: in the rooms, and from what we keep (X-054, X-055)."""

import asyncio
import signal
from urllib.parse import quote

import pytest

from tests.world.bot import Bot
from tests.world.chats import slip_in, slip_out
from tests.world.clock import WITHIN
from tests.world.copied import copied, counted_messages, echoed, put_back
from tests.world.copied import talk as chatted
from tests.world.drafts import GrowingTalk
from tests.world.killing import PARTS, kill_at_send
from tests.world.model import Drip, ModelServer, Reads, Text
from tests.world.proxy import Action, Answer, Held, Proxy, Request, pass_before
from tests.world.scene import Scene
from tests.world.user import CLIENT, Json, Message

pytestmark = pytest.mark.slow

WORDS = " ".join(f"secret{n}" for n in range(200))
THOUGHTS = f"{' '.join(f'secret{n}' for n in range(30))} </think> All is well."
V1 = CLIENT.replace("v3", "v1")
encrypted_or_not = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])


async def left_of(talk: GrowingTalk, event_id: str, text: str = "") -> list[object]:
    """The contents that somebody in the room can still get of an event and its edits, with a text."""
    ann, room, event = talk.person, quote(talk.chat), quote(event_id)
    _, shown = await ann.api("GET", f"{CLIENT}/rooms/{room}/event/{event}")
    _, edits = await ann.api("GET", f"{V1}/rooms/{room}/relations/{event}/m.replace?limit=100")
    _, page = await ann.api("GET", f"{CLIENT}/rooms/{room}/messages?dir=b&limit=100")
    about = [e for e in page["chunk"] if event_id in str(e["content"].get("m.relates_to"))]
    contents = [e["content"] for e in (shown, *edits["chunk"], *about)]
    return [content for content in contents if content and text in str(content)]


async def nothing_left(
    talk: GrowingTalk, event_id: str, text: str = "", *, is_last: bool = True
) -> None:
    """Until all of them are gone; in the end nothing is to be sent or answered either."""
    async with asyncio.timeout(WITHIN):
        while await left_of(talk, event_id, text):  # noqa: ASYNC110  the homeserver is asked
            await asyncio.sleep(0.05)
    if is_last:
        await talk.daemon.said_all()
        assert not await left_of(talk, event_id, text)
        assert not talk.daemon.rows("SELECT 1 FROM inbox WHERE state IN ('waiting', 'casting')")


async def grown(talk: GrowingTalk, text: str = WORDS, edits: int = 1) -> Message:
    """Ask, and see an answer grow with so many edits; its event."""
    shown = await talk.grow(Drip(text))
    for number in range(2, edits + 2):
        talk.say(5)
        await talk.until(lambda: len(talk.ours()) >= talk.known + number)  # noqa: B023
    return shown


def none_kept(daemon: Bot, text: str = "secret") -> None:
    """See that our database has a text no more, in what was said or thought."""
    for table, column in (("outbox", "body"), ("outbox_parts", "content"), ("turns", "utterance")):
        assert not daemon.rows(f"SELECT 1 FROM {table} WHERE {column} LIKE '%{text}%'")


async def test_a_notice_that_a_person_redacts_leaves_none_of_its_wordings(
    scene: Scene, model: ModelServer
) -> None:
    """X-054: in an encrypted room; what comes later is no text of it."""
    talk = await GrowingTalk.of(scene, model, encrypted=True)
    ann, daemon, chat = talk.person, talk.daemon, talk.chat
    read, gate = ((2048, 5249), (4096, 5249)), asyncio.Semaphore(1)
    model.script(Reads(read, gate, None), Reads(read, gate, Text("at last")))
    await ann.send(chat, "a long text")
    await model.request_arrived(1)
    daemon.set_clocks(steady=61)
    gate.release()
    notice = await ann.wait_for(chat, lambda message: "tokens read" in message.body)
    gate.release()  # the connection breaks
    await ann.wait_for(chat, lambda message: "attempt 2 of" in message.body)
    assert len(await left_of(talk, notice.event_id)) > 2
    await ann.redact(chat, notice.event_id)
    await nothing_left(talk, notice.event_id, is_last=False)
    for _ in range(5):
        gate.release()
    await talk.ends("at last")
    await nothing_left(talk, notice.event_id)
    none_kept(daemon, "still waiting")


@encrypted_or_not
async def test_an_answer_that_is_taken_back_leaves_nothing(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-054, F-027: its question, or itself as it grows, or whole; nothing is said of that."""
    talk = await GrowingTalk.of(scene, model, encrypted=encrypted)
    for takes in ("question", "answer", "whole"):
        shown = await grown(talk)
        if takes == "whole":
            talk.say(200)
            await talk.ends(f"* {WORDS}")
        await talk.person.redact(talk.chat, talk.asked if takes == "question" else shown.event_id)
        await nothing_left(talk, shown.event_id)
        known = len(talk.ours())
        await chatted(talk.person, talk.chat, f"after {takes}")
        assert len(talk.ours()) == known + 1
    none_kept(talk.daemon)


async def test_what_grew_for_others_is_taken_away_and_what_a_group_asked_is_answered_once(
    scene: Scene, model: ModelServer
) -> None:
    """X-037, X-055, F-004: Eve leaves, so that it is cast for Ann alone, and then comes in again."""
    talk, eve = await GrowingTalk.of(scene, model), await scene.person("eve")
    talk.chat = await scene.room(talk.person, talk.daemon, eve)
    us: Json = {"m.mentions": {"user_ids": [talk.daemon.user_id]}}
    among = await talk.grow(Drip(WORDS), **us)
    talk.begin(Drip(f"alone {WORDS}"))
    await slip_out(eve, talk.person, talk.chat)
    alone = await talk.grown("alone secret0 secret1 secret2 secret3")
    await slip_in(eve, talk.person, talk.chat)
    said = await talk.person.wait_for(talk.chat, lambda m: m.body.startswith("echo: "))
    for shown in (among, alone):
        await nothing_left(talk, shown.event_id)
    assert [m.event_id for m in await talk.history() if m.body] == [said.event_id]
    none_kept(talk.daemon)


@encrypted_or_not
async def test_thoughts_that_were_shown_go_and_are_not_shown_again(
    scene: Scene, model: ModelServer, proxy: Proxy, encrypted: bool
) -> None:
    """X-040, F-020: also while the next message is answered already; the next life knows."""
    talk = await GrowingTalk.of(scene, model, via=proxy.url, encrypted=encrypted)
    shown, bell = await grown(talk, THOUGHTS), asyncio.Event()
    held = list[Request]()

    def hold(request: Request) -> Action:
        held.extend([request] if b'"m.replace"' in request.body else [])
        return Held(bell, Answer(502)) if held and not bell.is_set() else None

    proxy.before = hold
    talk.say(5)
    await talk.until(lambda: bool(held))
    begun, known = len(model.requests), len(talk.ours())
    model.script(Drip(THOUGHTS, interval=0.1))
    await talk.person.send(talk.chat, "and now?")
    talk.say(40)
    await model.request_arrived(begun + 1)
    bell.set()
    await talk.ends("All is well.", "All is well.")
    await nothing_left(talk, shown.event_id)
    await talk.daemon.restart()
    model.script(Drip(THOUGHTS, interval=0.1))
    await talk.person.send(talk.chat, "and then?")
    await talk.ends(*["All is well."] * 3)
    assert len(talk.ours()) == known + 4  # the edit that was held came again, and went
    none_kept(talk.daemon)


async def test_an_answer_to_an_earlier_wording_has_its_text_again(
    scene: Scene, model: ModelServer
) -> None:
    """X-062, X-040, F-027: where thoughts were shown in its place, or the question goes meanwhile.

    X-054: where that answer itself goes meanwhile, nothing is left, and nothing more is shown.
    """
    talk = await GrowingTalk.of(scene, model)
    for n, text in enumerate((WORDS, WORDS, THOUGHTS)):
        former = " ".join(f"word{n}{at:02}" for at in range(25))
        answer = await talk.grow(Drip(former))
        talk.say(20)
        await talk.ends(f"* {former}")
        talk.begin(Drip(text))
        await talk.person.edit(talk.chat, talk.asked, "another wording")
        await talk.grown("* secret0 secret1 secret2 secret3 secret4")
        assert await left_of(talk, answer.event_id, "secret")
        if text == THOUGHTS:
            talk.say(40)
            await talk.ends("* All is well.")
        else:
            await talk.person.redact(talk.chat, answer.event_id if n else talk.asked)
        await nothing_left(talk, answer.event_id, "secret")
        left = (former, "", "All is well")[n]
        assert bool(await left_of(talk, answer.event_id, left)) is bool(left)
    assert "echo" not in str(talk.texts())  # the model was not asked once more
    none_kept(talk.daemon)


@pytest.mark.breaks("restored copy", perhaps=True)
@encrypted_or_not
async def test_a_copy_from_before_an_answer_keeps_no_draft_of_it_and_answers_once(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-055, F-009: of one that the copy does not know, and of one that waits there and was answered."""
    talk = await GrowingTalk.of(scene, model, encrypted=encrypted)
    ann, daemon, chat = talk.person, talk.daemon, talk.chat
    await chatted(ann, chat, "before")
    assert await daemon.stop() == 0
    before = copied(daemon)
    await daemon.start({"logger": "aiosqlite", "steps": [PARTS]})
    talk.begin(Drip(WORDS))
    await ann.send(chat, "hello")
    assert await daemon.ended() == -signal.SIGKILL
    waiting = copied(daemon, "waiting")
    put_back(daemon, before)
    talk.begin(Drip(WORDS))
    await daemon.start()
    shown = await talk.grown("secret0 secret1 secret2 secret3 secret4")
    await daemon.kill()
    put_back(daemon, before)
    await daemon.start()
    await ann.wait_for(chat, lambda message: echoed(message.body) == "hello")
    await nothing_left(talk, shown.event_id)
    await daemon.kill()
    put_back(daemon, waiting)
    await daemon.start()
    await chatted(ann, chat, "after")
    said = await counted_messages(ann, chat, daemon)
    assert [n for text, n in said.items() if echoed(text) == "hello"] == [1]
    assert "secret" not in str(said)


async def test_a_kill_while_something_is_taken_away_leaves_none_of_it(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """X-054: around the redactions of a draft and of its edits."""
    talk = await GrowingTalk.of(scene, model, via=proxy.url)
    daemon = talk.daemon
    for number, phase in ((1, "before"), (1, "after"), (2, "before"), (2, "after")):
        shown = await grown(talk, edits=2)
        kill_at_send(proxy, daemon, number, phase, "/redact/")
        await talk.person.redact(talk.chat, talk.asked)
        assert await daemon.ended() == -signal.SIGKILL
        assert await left_of(talk, shown.event_id), (number, phase)
        await daemon.start()
        await nothing_left(talk, shown.event_id)
    talk.begin(Drip(WORDS))
    kill_at_send(proxy, daemon, 1, "after")  # nothing here knows that the draft is in its room
    asked = await talk.person.send(talk.chat, "in flight")
    assert await daemon.ended() == -signal.SIGKILL
    await talk.person.redact(talk.chat, asked)
    await talk.person.until(lambda: len(talk.ours()) > talk.known)
    await daemon.start()
    await nothing_left(talk, talk.ours()[-1].event_id)
    none_kept(daemon)


def refuse_redactions(request: Request) -> Action:
    """A homeserver for which we are not in the room."""
    if "/redact/" in request.path:
        return Answer(403, {"errcode": "M_FORBIDDEN", "error": "you are not in the room"})
    return None


async def test_what_may_not_be_taken_away_now_goes_when_we_are_in_the_room_again(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """X-054: kicked between a redaction and the edits; `status` names what is readable until then."""
    talk = await GrowingTalk.of(scene, model, via=proxy.url)
    ann, daemon = talk.person, talk.daemon
    talk.chat = chat = await ann.create_room([daemon.user_id], preset="private_chat")
    await ann.wait_joined(chat, daemon.user_id)
    shown = await grown(talk)
    proxy.before = refuse_redactions
    await ann.redact(chat, talk.asked)
    await daemon.until(lambda: len(daemon.rows("SELECT 1 FROM outbox WHERE state = 'stuck'")) == 2)
    assert "2 in " in (await daemon.command("status", "--all"))[1]
    await ann.kick(chat, daemon.user_id)
    await ann.until(lambda: daemon.user_id not in ann.members(chat))
    proxy.before = pass_before
    await ann.invite(chat, daemon.user_id)
    await ann.wait_joined(chat, daemon.user_id)
    await nothing_left(talk, shown.event_id)
