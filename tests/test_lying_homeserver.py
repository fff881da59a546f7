"""What a homeserver says of an encrypted event is not believed beyond what its keys say (F-005)."""

import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
from functools import partial
from itertools import cycle

import pytest

from tests.world.bot import Bot
from tests.world.chats import inbox_states, notices, undecryptable
from tests.world.clock import until
from tests.world.forger import Forger, Json, unchanged
from tests.world.proxy import Proxy
from tests.world.scene import Scene
from tests.world.user import CLIENT, MatrixUser, Message
from wintermute.matrix.sync_response import decrypted_event


async def echo_id(ann: MatrixUser, chat: str, text: str) -> str:
    """Say it and wait for the echo; its id."""
    event_id = await ann.send(chat, text)
    await ann.wait_for(chat, lambda m: m.body == f"echo: {text}")
    return event_id


def event_of(forger: Forger, event_id: str) -> Json:
    """An event as the homeserver has it."""
    return next(event for event in forger.seen if event["event_id"] == event_id)


def is_answer(bot: str, text: str, message: Message) -> bool:
    return message.sender == bot and message.body.endswith(text)


async def test_a_message_shown_again_under_another_name_is_not_said_again(scene: Scene) -> None:
    """F-005: neither answered nor followed nor context, after a restart too; the room is told once."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=scene.proxy.url)
    forger = Forger.at(scene.proxy)
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    background = await ann.send(chat, "the code is 4711")
    asked = await ann.send(chat, "one", **us)
    await ann.wait_for(chat, partial(is_answer, daemon.user_id, "one"))
    typed = await ann.send(chat, "/new")
    await ann.wait_for_count(chat, daemon.user_id, 2)
    before = [row["id"] for row in daemon.rows("SELECT id FROM branches")]
    repeated = [event_of(forger, each) for each in (background, asked, typed)]
    for again in ("soon", "restarted"):
        if again == "restarted":
            assert await daemon.stop() == 0
        for event in repeated:
            forger.add(chat, event, f"{event['event_id'][:9]}{again}")
            forger.add(chat, event, event["event_id"])
        if again == "restarted":
            await daemon.start()
        await ann.send(chat, again, **us)
        await ann.wait_for(chat, partial(is_answer, daemon.user_id, again))
    assert forger.all_shown
    await daemon.said_all()
    assert [row["id"] for row in daemon.rows("SELECT id FROM branches")] == before
    assert inbox_states(daemon).count("locked") == undecryptable(daemon) == 6
    assert len(notices(daemon, "second time")) == 1
    assert not notices(daemon, "decrypt")
    intents = [row["intent"] for row in daemon.rows("SELECT intent FROM casts ORDER BY seq")]
    assert ["4711" in intent for intent in intents] == [True, False, False]


@pytest.mark.slow
@pytest.mark.breaks("edit", perhaps=True)
async def test_a_false_relation_or_time_beside_the_ciphertext_changes_nothing_that_was_said(
    scene: Scene, proxy: Proxy
) -> None:
    """F-005: no message becomes an edit, and an edit stays one of what its author named."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    forger = Forger.at(proxy)
    chat = await scene.room(ann, daemon, encrypted=True)
    first = await echo_id(ann, chat, "one")

    def lie(_room: str, event: Json) -> Json:
        if event["type"] != "m.room.encrypted" or event["sender"] != ann.user_id:
            return event
        relation = {"rel_type": "m.replace", "event_id": first}
        content = {**event["content"], "m.relates_to": relation}
        return {**event, "content": content, "origin_server_ts": next(times)}

    times = cycle((-1, 0, 1, 2**31, 2**53, 2**63, 10**30))
    forger.change = lie
    for text in ("two", "three", "four", "five", "six", "seven"):
        newest = await echo_id(ann, chat, text)
    await ann.edit(chat, newest, "eight")
    await ann.wait_for(chat, lambda m: m.body == "* echo: eight")  # in the place of the former
    rows = daemon.rows(
        "SELECT body, edits, 86400 * abs(julianday(received_at) - julianday(sent_at)) AS age"
        " FROM inbox ORDER BY seq"
    )
    assert [row["body"] for row in rows][1:] == [
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
    ]
    assert [row["edits"] for row in rows] == [*[None] * 7, newest]
    assert max(row["age"] for row in rows) < 60


@pytest.mark.slow
async def test_what_was_said_in_another_room_is_not_said_here(scene: Scene, proxy: Proxy) -> None:
    """F-005: shown under a new name or its own, encrypted in both rooms."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=proxy.url)
    forger = Forger.at(proxy)
    mine = await scene.room(ann, daemon, encrypted=True)
    other = await scene.room(ann, daemon, eve, encrypted=True)
    asked = await echo_id(ann, mine, "one")
    for event_id in ("$relayed", asked):
        forger.add(other, event_of(forger, asked), event_id)
    await ann.send(other, "/help")
    await ann.wait_for(other, lambda m: "/stop" in m.body)
    assert forger.all_shown
    rows = daemon.rows("SELECT event_id, room_id, state FROM inbox WHERE kind <> 'command'")
    assert {tuple(row.values()) for row in rows} == {
        (asked, mine, "answered"),
        ("$relayed", other, "locked"),
    }
    assert undecryptable(daemon) == 2


@pytest.mark.slow
@pytest.mark.parametrize("conspires", [False, True])
async def test_a_key_that_somebody_else_sent_in_a_persons_name_is_not_theirs(
    scene: Scene, conspires: bool, proxy: Proxy
) -> None:
    """F-005: the homeserver names her as the sender of key and message; the client may even help."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}

    def rename(_room: str, event: Json) -> Json:
        sealed = event["type"] == "m.room.encrypted" and event["sender"] == eve.user_id
        return {**event, "sender": ann.user_id} if sealed else event

    if conspires:
        say_it_is(eve, ann.user_id)
    Forger.at(proxy).change = rename
    await eve.send(chat, "/new", **us)
    await eve.send(chat, "tell me her secrets", **us)
    await until(lambda: inbox_states(daemon).count("locked") == 2)
    await ann.send(chat, "one", **us)
    await ann.wait_for(chat, partial(is_answer, daemon.user_id, "one"))
    assert inbox_states(daemon) == ["locked", "locked", "answered"]
    [cast] = daemon.rows("SELECT intent FROM casts")
    assert "secrets" not in cast["intent"]
    owners = daemon.rows("SELECT user_id, device_id FROM session_owners")
    bound = {tuple(row.values()) for row in owners}
    mine = (ann.user_id, ann.login.device_id)
    assert bound == ({mine, (eve.user_id, eve.login.device_id)} if conspires else {mine})


def say_it_is(eve: MatrixUser, ann: str) -> None:
    """What a client of hers writes into its to-device messages as their sender."""
    olm = eve._client.olm
    seal = olm._olm_encrypt

    def lie(*asked: object) -> object:
        ours, olm.user_id = olm.user_id, ann
        try:
            return seal(*asked)
        finally:
            olm.user_id = ours

    olm._olm_encrypt = lie


@pytest.mark.slow
async def test_whose_a_session_is_is_kept_when_its_key_comes(scene: Scene, proxy: Proxy) -> None:
    """F-005: a device nobody told of is asked for first; signed out before it is heard, it is heard."""
    ann = await scene.current("ann")
    forger = Forger.at(proxy)
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    phone = await scene.current(ann)
    held: list[Json] = []

    def hold(room_id: str, event: Json) -> Json:
        mine = event["content"].get("device_id") == phone.device_id if room_id else False
        if not mine:
            return event
        held.append(event)
        return {**event, "type": "m.held", "event_id": "$held"}

    forger.change = hold
    await phone.send(chat, "one")
    await until(lambda: bool(held))
    owner = "SELECT 1 FROM session_owners WHERE device_id = ?"
    await until(lambda: bool(daemon.rows(owner, phone.device_id)))
    assert (await phone.api("POST", f"{CLIENT}/logout", {}))[0] == 200
    assert await daemon.stop() == 0
    forget_devices(daemon, phone.device_id)
    forger.change = unchanged
    forger.add(chat, held[0], held[0]["event_id"])
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: one")
    assert undecryptable(daemon) == 0


def forget_devices(daemon: Bot, device_id: str) -> None:
    """As if nio's store had never heard of a device; our own table has to know."""
    [store] = (daemon.data / "matrix").glob("@*.db")
    connection = sqlite3.connect(store)
    try:
        gone = connection.execute("DELETE FROM devicekeys WHERE device_id = ?", (device_id,))
        assert gone.rowcount
        connection.commit()
    finally:
        connection.close()


REPLACE = {"rel_type": "m.replace", "event_id": "$old"}
THREAD = {"rel_type": "m.thread", "event_id": "$root"}
TEXT = {"body": "hello"}
EDIT = {"body": "* new", "m.new_content": {"body": "new"}}


def inside(content: object, room: object = "!room", kind: object = "m.room.message") -> Json:
    return {"room_id": room, "type": kind, "content": content, "sender": "@eve:far", "unsigned": {}}


@pytest.mark.parametrize(
    ("payload", "beside", "expected"),
    [
        (inside(TEXT), None, TEXT),
        (inside(TEXT), THREAD, {**TEXT, "m.relates_to": THREAD}),
        (inside({**TEXT, "m.relates_to": THREAD}), REPLACE, {**TEXT, "m.relates_to": THREAD}),
        (inside({**TEXT, "m.relates_to": THREAD}), None, {**TEXT, "m.relates_to": THREAD}),
        (inside(TEXT), REPLACE, TEXT),
        (inside(EDIT), REPLACE, {**EDIT, "m.relates_to": REPLACE}),  # as some clients send edits
        (inside({**EDIT, "m.relates_to": REPLACE}), THREAD, {**EDIT, "m.relates_to": REPLACE}),
        (inside({**TEXT, "m.relates_to": None}), REPLACE, {**TEXT, "m.relates_to": None}),
        (inside(TEXT), "m.replace", TEXT),
        (inside(TEXT), [REPLACE], TEXT),
        (inside(TEXT, "!other"), None, None),
        (inside(TEXT, None), None, None),
        (inside(TEXT, ["!room"]), None, None),
        (inside(TEXT, kind=None), None, None),
        (inside(TEXT, kind={}), None, None),
        (inside("hello"), None, None),
        (inside([TEXT]), None, None),
        ({"type": "m.room.message", "content": TEXT}, None, None),
        (["m.room.message"], None, None),
        (None, None, None),
    ],
)
def test_what_is_inside_the_ciphertext_counts(
    payload: object, beside: object, expected: Json | None
) -> None:
    """F-005: of what is beside it only a relation that makes no message an edit."""
    head = {"event_id": "$one", "sender": "@ann:home", "origin_server_ts": 5}
    event = {**head, "type": "m.room.encrypted", "content": {"m.relates_to": beside}}
    kind = {"type": "m.room.message", "room_id": "!room"}
    found = decrypted_event(payload, "!room", event)
    assert found == ({**head, **kind, "content": expected} if expected else None)
