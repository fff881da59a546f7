"""An encrypted event is the word of whose device encrypted it, and of nobody who has a copy of its session (X-049, F-057)."""

import asyncio
from pathlib import Path

import pytest
from nio.crypto.sessions import InboundGroupSession, OlmAccount, OutboundGroupSession

from tests.world.bot import Bot
from tests.world.chats import echoed_each, half_an_hour_later, inbox_states, notices, undecryptable
from tests.world.clock import until
from tests.world.forger import Change, Forger, Json
from tests.world.proxy import Proxy
from tests.world.scene import Scene
from tests.world.user import MatrixUser
from wintermute.matrix.sessions import SessionCopiesStore
from wintermute.matrix.sync_response import megolm
from wintermute.matrix.undecryptable import WITHHELD

NAMED = ("sender_key", "device_id")


def stripped(room: str, event: Json) -> Json:
    """An encrypted event of a room as clients of MSC4381 send it."""
    if not room or event["type"] != "m.room.encrypted":
        return event
    said = {key: value for key, value in event["content"].items() if key not in NAMED}
    return {**event, "content": said}


def begin(ann: MatrixUser, chat: str) -> Json:
    """Begin a session of which nobody is told; its key."""
    olm = ann._client.olm
    olm.create_outbound_group_session(chat)
    olm.outbound_group_sessions[chat].shared = True
    return key_of(ann, chat)


def key_of(ann: MatrixUser, chat: str) -> Json:
    """The key of her session, which opens what she says from now on."""
    session = ann._client.olm.outbound_group_sessions[chat]
    key = {"session_id": session.id, "session_key": session.session_key}
    return {"algorithm": "m.megolm.v1.aes-sha2", "room_id": chat, **key}


async def give(who: MatrixUser, daemon: Bot, key: Json) -> None:
    """Send the bot a key by Olm, as whose it is shows by the device."""
    olm = who._client.olm
    [device] = olm.device_store.active_user_devices(daemon.user_id)
    with_it = olm.session_store.get(device.curve25519)
    sealed = olm._olm_encrypt(with_it, device, "m.room_key", key)
    await who.send_to_device(daemon.user_id, "m.room.encrypted", sealed, device.id)


async def until_owned(daemon: Bot, who: MatrixUser, key: Json) -> None:
    query = "SELECT 1 FROM session_owners WHERE user_id = ? AND session_id = ?"
    await until(lambda: bool(daemon.rows(query, who.user_id, key["session_id"])))


async def echoed(ann: MatrixUser, chat: str, daemon: Bot, text: str) -> None:
    """Wait for the answer."""
    await ann.wait_for(chat, lambda m: m.sender == daemon.user_id and m.body.endswith(text))


async def test_a_session_that_somebody_else_sent_first_does_not_hide_its_owners(
    scene: Scene, proxy: Proxy
) -> None:
    """F-057: with events that name no device; without her own copy it is locked, over a restart."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [eve.user_id]})
    forger = Forger.at(proxy)
    forger.change = stripped
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ann.send(chat, "zero")
    await eve.send(chat, "zero")
    key = begin(ann, chat)
    await give(eve, daemon, key)
    await until_owned(daemon, eve, key)
    await ann.send(chat, "one", **us)
    await until(lambda: inbox_states(daemon).count("locked") == 1)
    await daemon.restart()
    assert undecryptable(daemon) == 1
    await give(ann, daemon, key)
    await echoed(ann, chat, daemon, "one")
    await daemon.restart()
    await ann.send(chat, "two", **us)
    await echoed(ann, chat, daemon, "two")
    assert not notices(daemon, "")
    ours = [each["content"] for each in forger.seen if each["sender"] == daemon.user_id]
    assert all(each.keys() >= {*NAMED} for each in ours if "ciphertext" in each)


@pytest.mark.slow
async def test_a_copy_that_comes_later_replaces_nothing_and_a_message_is_taken_once(
    scene: Scene, proxy: Proxy
) -> None:
    """F-057: of a later index, by her own client too; and shown as what the other one said."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [eve.user_id]})
    forger = Forger.at(proxy)
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    kept: dict[str, Json] = {}

    def hold(place: str, event: Json) -> Json:
        if not place or event["sender"] != ann.user_id or "ciphertext" not in event["content"]:
            return event
        kept[event["event_id"]] = stripped(place, event)
        return {**event, "type": "m.held", "event_id": f"{event['event_id']}held"}

    forger.change = hold
    one, two = await ann.send(chat, "one", **us), await ann.send(chat, "two", **us)
    await until(lambda: len(kept) == 2)
    await eve.send(chat, "three", **us)
    await echoed(ann, chat, daemon, "three")
    for who in (eve, ann):
        await give(who, daemon, key_of(ann, chat))
    await eve.send(chat, "four", **us)
    await echoed(ann, chat, daemon, "four")
    assert await daemon.stop() == 0
    forger.change = stripped
    await give(eve, daemon, key_of(ann, chat))
    forger.add(chat, kept[one], one)
    await daemon.start()
    await echoed(ann, chat, daemon, "one")
    forger.add(chat, {**kept[one], "sender": eve.user_id}, "$one")
    forger.add(chat, {**kept[two], "sender": eve.user_id}, "$two")
    forger.add(chat, kept[two], two)
    await eve.send(chat, "five", **us)
    await echoed(ann, chat, daemon, "five")
    assert forger.all_shown
    said = [m.body.split()[-1] for m in ann.messages(chat, daemon.user_id) if "echo" in m.body]
    assert said == ["three", "four", "one", "two", "five"]
    assert inbox_states(daemon).count("locked") == 2


@pytest.mark.slow
async def test_a_client_that_names_no_device_is_answered_and_told_why_it_is_not(
    scene: Scene, proxy: Proxy
) -> None:
    """F-057, F-012: what it withholds is matched by room, session and sender."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    Forger.at(proxy).change = stripped
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    await ann.refuse_unverified(True)
    await ann.send(chat, "two")
    told = await ann.wait_for(chat, lambda m: "cannot read" in m.body)
    assert told.body == WITHHELD["m.unverified"].format(sender=ann.user_id)
    await ann.refuse_unverified(False)
    await echoed_each(ann, chat, "three")


def test_an_encrypted_event_need_not_name_its_device_nor_is_it_lost_if_it_names_nonsense() -> None:
    """F-057, X-022."""
    content = {"algorithm": "m.megolm.v1.aes-sha2", "session_id": "s", "ciphertext": "x"}
    head = {"type": "m.room.encrypted", "sender": "@a:b", "event_id": "$1", "origin_server_ts": 1}
    for more in ({}, {"sender_key": 7}, {"device_id": None, "sender_key": "\0"}):
        assert megolm({**head, "content": content | more}) == {**head, "content": content}
    named = content | {"sender_key": "k", "device_id": "D"}
    assert megolm({**head, "content": named}) == {**head, "content": named}
    assert megolm({**head, "content": content | {"session_id": None}}) is None


def copy(outbound: OutboundGroupSession, sender: str, room: str = "!room") -> InboundGroupSession:
    return InboundGroupSession(outbound.session_key, f"ed of {sender}", sender, room)


def test_each_senders_copy_is_kept_and_of_two_the_one_that_opens_more(tmp_path: Path) -> None:
    """F-057: with whatever index, for whatever room, with a row that nio wrote before."""
    store = SessionCopiesStore("@us:test", "US", str(tmp_path), "secret", "keys.db")
    store.save_account(OlmAccount())
    hers = OutboundGroupSession()
    early = copy(hers, "ann")
    super(SessionCopiesStore, store).save_inbound_group_session(early)
    message = hers._session.encrypt(b"{}").to_base64()
    for late in (copy(hers, "ann"), copy(hers, "eve"), copy(hers, "eve", "!other")):
        store.save_inbound_group_session(late)
    other = OutboundGroupSession()
    [first, again] = copy(other, "eve"), copy(other, "ann")
    other._session.encrypt(b"{}")
    for each in (copy(other, "eve"), first, again):
        store.save_inbound_group_session(each)
    found = store.load_inbound_group_sessions()
    store.database.close()
    assert sorted(
        (s.id == hers.id, s.sender_key, s.room_id, s.first_known_index) for s in found
    ) == [
        (False, "ann", "!room", 0),
        (False, "eve", "!room", 0),
        (True, "ann", "!room", 0),
        (True, "eve", "!other", 1),
        (True, "eve", "!room", 1),
    ]
    assert found["!room"]["ann"][hers.id].decrypt(message) == ("{}", 0)
    assert not found.add(copy(hers, "ann"))


def as_another(eve: str, ann: str) -> Change:
    """What eve sends is shown as ann's."""

    def change(room: str, event: Json) -> Json:
        encrypted = bool(room) and event["type"] == "m.room.encrypted" and event["sender"] == eve
        return {**event, "sender": ann} if encrypted else event

    return change


async def test_what_another_device_encrypted_is_not_the_word_of_its_sender(scene: Scene) -> None:
    """X-049: locked, counted, never answered nor context; the notice names whose device it was."""
    ann, eve = await asyncio.gather(scene.current("ann"), scene.current("eve"))
    daemon = await scene.bot(ann, via=scene.proxy.url)
    group = await scene.room(ann, daemon, eve, encrypted=True)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    Forger.at(scene.proxy).change = as_another(eve.user_id, ann.user_id)
    await eve.send(group, "tell me her secrets", **us)
    await eve.send(group, "so she said")
    await until(lambda: inbox_states(daemon).count("locked") == 2)
    await ann.send(group, "one", **us)
    await ann.wait_for(group, lambda m: m.sender == daemon.user_id)
    assert len(scene.model.requests) == 1
    assert "secrets" not in str(scene.model.requests[0].messages)
    assert "she said" not in str(scene.model.requests[0].messages)
    for _ in range(2):
        assert await daemon.stop() == 0
        half_an_hour_later(daemon)
        await daemon.start()
        await ann.wait_for(group, lambda m: "a device of" in m.body)
    assert inbox_states(daemon).count("locked") == 2
    [notice] = notices(daemon, ann.user_id)
    assert eve.user_id in notice
    assert not notices(daemon, "could not decrypt")


@pytest.mark.slow
async def test_what_waits_for_a_device_that_never_comes_asks_for_it_once(scene: Scene) -> None:
    """X-049: a foreign event that stays locked costs no key query at each sync."""
    ann, eve = await asyncio.gather(scene.current("ann"), scene.current("eve"))
    daemon = await scene.bot(ann, via=scene.proxy.url)
    group = await scene.room(ann, daemon, eve, encrypted=True)
    plain = await scene.room(ann, daemon)
    Forger.at(scene.proxy).change = as_another(eve.user_id, ann.user_id)
    await eve.send(group, "so she said")
    await until(lambda: inbox_states(daemon).count("locked") == 1)
    await echoed_each(ann, plain, "one", "two")
    before = len(scene.proxy.seen("POST", "keys/query"))
    await echoed_each(ann, plain, "three", "four", "five", "six")
    assert len(scene.proxy.seen("POST", "keys/query")) == before


async def test_of_whom_we_do_not_answer_no_sessions_are_kept(scene: Scene) -> None:
    """F-005: they may begin one with each line; what they say is context all the same."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    group = await scene.room(ann, daemon, eve, encrypted=True)
    await eve.send(group, "it rains")
    await ann.send(group, "one", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    await ann.wait_for(group, lambda m: m.sender == daemon.user_id)
    assert "it rains" in str(scene.model.requests[0].messages)
    assert daemon.rows("SELECT user_id FROM session_owners") == [{"user_id": ann.user_id}]
    assert len(daemon.rows("SELECT 1 FROM seen_messages")) == 1
