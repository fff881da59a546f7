"""Events that we do not read: whoever sends us one hears so, once, and nobody else does (F-024)."""

from typing import Any

import pytest

from tests.tiers import tiered
from tests.world.chats import ask_bot
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.reading import (
    ACCOUNT,
    ANN,
    BOT,
    DIRECT,
    EDIT,
    EVE,
    GROUP,
    POLICY,
    message_event,
    room_of,
)
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.matrix.inbox import (
    EMPTY,
    LOCATION,
    OTHER,
    OUTBOX_KEY,
    POLL,
    STICKER,
    Policy,
    RoomView,
    UnreadableEvent,
    read_event,
    unread,
)
from wintermute.matrix.intake import ONLY_ENCRYPTED
from wintermute.matrix.verifications import NO_KEYS, TOO_OLD
from wintermute.owner import Owner

Json = dict[str, Any]
MESSAGE = "m.room.message"
PICTURE: Json = {"body": "wave", "url": "mxc://here/wave", "info": {}}
QUESTION: Json = {
    "kind": "m.disclosed",
    "max_selections": 1,
    "question": {"m.text": [{"body": "Pizza?"}]},
    "answers": [{"m.id": "1", "m.text": [{"body": "yes"}]}],
}
OLD_QUESTION: Json = {"question": {"org.matrix.msc1767.text": "Pizza?"}, "answers": []}
PLACE: Json = {"uri": "geo:51.5,0.1", "description": "here"}
HERE: Json = {"msgtype": "m.location", "body": "here", "geo_uri": "geo:51.5,0.1"}
CONFETTI: Json = {"msgtype": "nic.custom.confetti", "body": "hooray"}
CONTACT: Json = {"msgtype": "m.contact", "body": "Bob", "phone": "030 1234"}
GAME: Json = {"msgtype": "com.example.chess", "body": "e4", "move": ["e2", "e4"]}
VOTE: Json = {"m.relates_to": {"rel_type": "m.reference", "event_id": "$poll"}, "m.selections": []}
REFERENCE: Json = {"m.relates_to": {"rel_type": "m.reference", "event_id": "$asked"}}
CALL: Json = {"call_id": "1", "version": "1", "party_id": "x", "lifetime": 1000}

LINES: tuple[tuple[str, Json, UnreadableEvent], ...] = (
    ("m.sticker", PICTURE, STICKER),
    (MESSAGE, HERE, LOCATION),
    ("m.location", {"m.location": PLACE}, LOCATION),
    ("org.matrix.msc3488.location", {"org.matrix.msc3488.location": PLACE}, LOCATION),
    ("m.poll.start", {"m.poll": QUESTION, "m.text": [{"body": "Pizza?"}]}, POLL),
    ("org.matrix.msc3381.poll.start", {"org.matrix.msc3381.poll.start": OLD_QUESTION}, POLL),
    ("org.matrix.msc3381.v2.poll.start", {"org.matrix.msc3381.v2.poll": QUESTION}, POLL),
    (MESSAGE, CONTACT, OTHER),
    (MESSAGE, CONFETTI, OTHER),
    (MESSAGE, GAME, OTHER),
    ("m.message", {"m.text": [{"body": "hello"}]}, OTHER),
    ("org.matrix.msc1767.message", {"org.matrix.msc1767.text": "hello"}, OTHER),
    ("m.voice", {"m.file": {"url": "mxc://here/voice"}}, OTHER),
    (MESSAGE, {"msgtype": "m.text", "body": " \n"}, EMPTY),
    (MESSAGE, {"msgtype": "m.emote", "body": ""}, EMPTY),
)
NOTHING: tuple[tuple[str, Json], ...] = (
    ("m.poll.response", VOTE),
    ("org.matrix.msc3381.poll.response", VOTE),
    ("m.poll.end", VOTE),
    ("org.matrix.msc3381.poll.end", VOTE),
    ("m.beacon", {**REFERENCE, "m.location": PLACE}),
    ("org.matrix.msc3672.beacon", {**REFERENCE, "m.location": PLACE}),
    ("m.call.invite", {**CALL, "offer": {"type": "offer", "sdp": "v=0"}}),
    ("m.call.candidates", {**CALL, "candidates": []}),
    ("m.call.hangup", CALL),
    ("org.matrix.msc4075.rtc.notification", CALL),
    *((f"m.key.verification.{step}", REFERENCE) for step in ("start", "ready", "cancel", "done")),
    ("m.reaction", {"m.relates_to": {"rel_type": "m.annotation", "event_id": "$x", "key": "!"}}),
    ("m.room.redaction", {"redacts": "$x"}),
    ("com.example.whatever", {"body": "hm"}),
    (MESSAGE, {"msgtype": "m.notice", "body": "beep"}),
    (MESSAGE, {"msgtype": "m.server_notice", "body": "rules"}),
    (MESSAGE, {"body": "no kind"}),
    (MESSAGE, {"msgtype": 7, "body": "odd"}),
    (MESSAGE, {}),
    ("m.sticker", {}),
    ("m.sticker", {**PICTURE, **EDIT}),
    ("m.sticker", {**PICTURE, OUTBOX_KEY: {"by": ANN}}),
)
READ: tuple[Json, ...] = (
    {"msgtype": "m.text", "body": "hello"},
    {"msgtype": "m.emote", "body": "waves"},
    *(
        {"msgtype": f"m.{kind}", "body": f"a.{kind}"}
        for kind in ("image", "file", "audio", "video")
    ),
)
FOR_US: Json = {"m.mentions": {"user_ids": [BOT]}}


def event_of(kind: str, content: Json, **more: Any) -> Json:
    return {**message_event("", **more), "type": kind, "content": content}


def line_of(
    event: object, room: RoomView = DIRECT, policy: Policy = POLICY
) -> UnreadableEvent | None:
    return unread(event, room, ACCOUNT, policy)


@pytest.mark.parametrize(("kind", "content", "line"), LINES)
def test_what_is_not_read_is_said_to_whom_it_concerns(
    kind: str, content: Json, line: UnreadableEvent
) -> None:
    """F-024: in a direct chat, in a group if it addresses us, to nobody else."""
    event, to_us = event_of(kind, content), event_of(kind, content | FOR_US)
    open_ears = Policy(Owner(ANN), POLICY.allowed, frozenset(), False, POLICY.commands)
    elsewhere = Policy(Owner(ANN), POLICY.allowed, frozenset({"!other"}), True, POLICY.commands)
    assert line_of(event) == line
    assert line_of(event, GROUP) is None
    assert line_of(event, room_of(ANN, invited=(EVE,))) is None
    assert line_of(to_us, GROUP) == line
    assert line_of(event, GROUP, open_ears) == line
    assert unread(event, GROUP, ACCOUNT, POLICY, answers_us=True) == line
    for nobody in ({"sender": EVE}, {"sender": BOT}, {"sender": None}, {"state_key": ""}):
        assert line_of({**to_us, **nobody}, GROUP) is None
    assert line_of({**event, "unsigned": {"redacted_because": {}}}) is None
    assert line_of(event, DIRECT, elsewhere) is None
    assert read_event(event, DIRECT, ACCOUNT, POLICY, None) is None  # type: ignore[arg-type]  # not looked at


@pytest.mark.parametrize(("kind", "content"), NOTHING)
def test_what_is_no_message_of_a_person_gets_no_word(kind: str, content: Json) -> None:
    """F-024: answers to polls, calls, later steps, signs, state, bots, nothing at all."""
    assert line_of(event_of(kind, content)) is None
    if content:  # else it was taken back, and says nothing of whom it was for
        assert line_of(event_of(kind, content | FOR_US), GROUP) is None


@pytest.mark.parametrize("content", READ)
def test_what_is_read_is_not_said_to_be_unread(content: Json) -> None:
    """F-024."""
    assert line_of(event_of(MESSAGE, content)) is None


async def settled(person: Person, room: str, bot: str, word: str) -> list[str]:
    """What the bot has said in a room once it has read everything until now."""
    await person.send(room, f"{bot}: {word}")
    await person.wait_for(room, lambda m: m.sender == bot and m.body.endswith(word))
    return [message.body for message in person.messages(room, bot)]


@pytest.mark.slow
async def test_each_kind_gets_one_line_in_a_chat_and_the_rest_none(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-024: of everything that clients send, encrypted as all we say; one per kind and hour."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    for kind, content, _ in LINES:
        earlier = await ann.send_event(chat, kind, content)
    for kind, content in NOTHING:
        if kind not in ("m.room.redaction", "m.reaction"):
            relation = {**content.get("m.relates_to", {}), "event_id": earlier}
            more = {"m.relates_to": relation} if "m.relates_to" in content else {}
            await ann.send_event(chat, kind, {**content, **more})
    await ann.react(chat, earlier, "\N{THUMBS UP SIGN}")
    for content in READ[2:]:
        await ann.send_event(chat, MESSAGE, content)
    heard = await settled(ann, chat, daemon.user_id, "so?")
    lines = [each.line for each in (STICKER, LOCATION, POLL, OTHER, EMPTY)]
    assert [body for body in heard if not body.startswith("echo")] == lines
    assert all(message.encrypted for message in ann.messages(chat, daemon.user_id))
    shown = [request.last_user for request in model.requests][:-1]
    assert shown == [f"[{kind}: a.{kind}]" for kind in ("image", "file", "audio", "video")]
    assert not daemon.rows("SELECT 1 FROM inbox WHERE state = 'locked'")
    beacon = {"description": "on the way", "live": True, "timeout": 1000}
    for kind in ("m.beacon_info", "org.matrix.msc3672.beacon_info"):
        status, _ = await ann.api(
            "PUT", f"/_matrix/client/v3/rooms/{chat}/state/{kind}/{ann.user_id}", beacon
        )
        assert status == 200
    assert len(await settled(ann, chat, daemon.user_id, "and now?")) == len(heard) + 1


@pytest.mark.slow
@pytest.mark.breaks("redaction")
async def test_in_a_group_only_what_addresses_us_gets_a_line(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-024, F-025: by a mention, or as a reply to us; strangers never."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    chat = await room(ann, daemon, eve)
    mention = {"m.mentions": {"user_ids": [daemon.user_id]}}
    for kind, content, _ in LINES:
        await ann.send_event(chat, kind, content)
        await eve.send_event(chat, kind, content | mention)
    [first] = await settled(ann, chat, daemon.user_id, "hello")
    assert first.startswith("echo")
    [ours] = ann.messages(chat, daemon.user_id)
    reply = {"m.relates_to": {"m.in_reply_to": {"event_id": ours.event_id}}}
    await ann.send_event(chat, "m.sticker", PICTURE | reply)
    await ann.send_event(chat, "m.poll.start", {"m.poll": QUESTION} | mention)
    heard = await settled(ann, chat, daemon.user_id, "so?")
    assert heard[1:-1] == [STICKER.line, POLL.line]
    await ann.redact(chat, ours.event_id)
    assert len(await settled(ann, chat, daemon.user_id, "and now?")) == len(heard) + 1


@pytest.mark.parametrize("encryption", tiered({"on": "preferred", "off": "off"}, ["off"]))
async def test_a_verification_that_cannot_be_is_told_why(
    person: NewPerson, bot: NewBot, room: NewRoom, encryption: str
) -> None:
    """F-024, X-019: of one that goes on nothing is said, nor of one that is meant for others."""
    ann = await person("ann")
    daemon = await bot(ann, matrix={"encryption": encryption})
    chat = await room(ann, daemon)
    asked = {"msgtype": "m.key.verification.request", "from_device": "X", "methods": ["m.sas.v1"]}
    await ann.send_event(chat, MESSAGE, asked | {"body": "?", "to": "@eve:far"})
    await ann.send_event(chat, MESSAGE, asked | {"body": "?", "to": daemon.user_id})
    heard = await settled(ann, chat, daemon.user_id, "so?")
    assert heard[:-1] == ([NO_KEYS] if encryption == "off" else [])


@pytest.mark.slow
async def test_a_verification_request_that_came_too_late_is_told(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-024: asked while the bot was off, for longer than a client waits."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon)
    await ask_bot(ann, chat, daemon, "hello")
    await daemon.stop()
    asked = {"msgtype": "m.key.verification.request", "from_device": "X", "methods": ["m.sas.v1"]}
    await ann.send_event(chat, MESSAGE, asked | {"body": "?", "to": daemon.user_id})
    daemon.set_clocks(wall=900, steady=900)
    await daemon.start()
    await ann.wait_for(chat, lambda message: message.body == TOO_OLD)


@pytest.mark.slow
async def test_where_only_encrypted_words_count_that_is_what_is_told(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-024, X-015: the sticker would not be read in words either."""
    ann = await person("ann")
    daemon = await bot(ann, matrix={"encryption": "required"})
    chat = await room(ann, daemon)
    await ann.send_event(chat, "m.sticker", PICTURE)
    [line] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert line.body == ONLY_ENCRYPTED
