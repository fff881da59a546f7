"""People at current clients verify the bot by emoji, in rooms and between devices."""

import asyncio
import re
import statistics
import time
from functools import partial

import pytest

from tests.world.bot import Bot
from tests.world.chats import echoed_each
from tests.world.clock import WITHIN, promptly
from tests.world.current import CurrentClient
from tests.world.emojis import EmojiCheck, device_of, in_phase, until_row, verifications
from tests.world.scene import NewBot, NewCurrent, NewRoom, Scene
from tests.world.user import Json

ENCRYPTED = "m.room.encrypted"


async def device_check(ann: CurrentClient, daemon: Bot) -> EmojiCheck:
    """She asks the bot's device, once her client knows it."""
    await ann.until_so(lambda: ann.knows(daemon.user_id, device_of(daemon)))
    return await ann.verify(daemon.user_id, device=device_of(daemon))


async def agree(daemon: Bot, check: EmojiCheck) -> None:
    """From ready to the end, as a person who sees the same at both."""
    emojis = await check.emojis()
    assert len(emojis) == 7
    found = await in_phase(daemon, "keyed")
    assert found["shown"] == ", ".join(f"{sign} {name}" for sign, name in emojis)
    assert found["user_id"] == check._client.user_id  # type: ignore[attr-defined]  # a person's
    await daemon.logged(f"compare={found['shown']}")
    await check.confirm()
    await check.until("done")
    await in_phase(daemon, "done")


def verified(daemon: Bot, ann: CurrentClient) -> bool:
    """Whether she is among the verified people."""
    [row] = daemon.rows("SELECT * FROM people WHERE user_id = ?", ann.user_id)
    return bool(row["verified"] == row["master_key"])


def words(ann: CurrentClient, chat: str, daemon: Bot) -> list[str]:
    """What the bot said in a room."""
    return [message.body for message in ann.messages(chat, daemon.user_id)]


async def test_a_person_verifies_the_bot_in_an_encrypted_room(scene: Scene) -> None:
    """X-019: the room says where to compare, and not what; nothing travels in clear."""
    ann, daemon, chat = await scene.met(await scene.current("ann", strict=True), encrypted=True)
    assert not await ann.trusts(daemon.user_id)
    check = await ann.verify(daemon.user_id, room=chat)
    await check.until("ready")
    await check.start()
    await agree(daemon, check)
    await ann.until_so(lambda: ann.trusts(daemon.user_id))
    assert verified(daemon, ann)
    await echoed_each(ann, chat, "hello")
    [notice, _] = words(ann, chat, daemon)
    assert "wintermute matrix verify" in notice
    assert not re.search(r"[^\x00-\x7f]", notice)
    assert all(
        e.encrypted
        for e in ann.events(chat)
        if e.sender == daemon.user_id and e.content.get("body")
    )
    assert all(
        e.encrypted
        for e in ann.events(chat)
        if e.sender == daemon.user_id and e.type.startswith("m.key.")
    )
    assert not daemon.rows("SELECT 1 FROM inbox WHERE body <> 'hello'")


@pytest.mark.slow
async def test_the_bot_asks_when_it_is_told_to_verify(scene: Scene) -> None:
    """X-019: `/verify`; the answer says what to do."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await ann.send(chat, "/verify")
    check = await ann.incoming(daemon.user_id)
    [answer] = [m for m in await ann.wait_for_count(chat, daemon.user_id, 2) if "accept" in m.body]
    assert "wintermute matrix verify" in answer.body
    await check.accept()
    await agree(daemon, check)
    await ann.until_so(lambda: ann.trusts(daemon.user_id))
    assert verified(daemon, ann)
    assert len(words(ann, chat, daemon)) == 2
    assert all(m.encrypted for m in ann.messages(chat, daemon.user_id))


@pytest.mark.slow
async def test_a_device_verifies_the_bots_device(scene: Scene) -> None:
    """X-019: between devices, the direct chat says where to compare and nothing else; a mismatch trusts nobody."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    check = await device_check(ann, daemon)
    await check.until("ready")
    await check.start()
    await check.emojis()
    await in_phase(daemon, "keyed")
    await check.mismatch()
    assert (await in_phase(daemon, "cancelled"))["code"] == "m.mismatched_sas"
    assert not await ann.trusts(daemon.user_id)

    check = await ann.verify(daemon.user_id, device=device_of(daemon))
    await check.until("ready")
    await check.start()
    await agree(daemon, check)
    await ann.until_so(lambda: ann.trusts(daemon.user_id))
    notices = await ann.wait_for_count(chat, daemon.user_id, 2)
    assert all("wintermute matrix verify" in notice.body for notice in notices)


@pytest.mark.slow
async def test_a_stranger_is_declined_and_people_are_answered_all_the_while(scene: Scene) -> None:
    """X-019: 200 requests of a stranger in the same room, and between devices."""
    ann, eve = await asyncio.gather(scene.current("ann"), scene.current("eve"))
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    check = await eve.verify(daemon.user_id, room=chat)
    await check.until("cancelled")
    assert check.code == "m.user"
    stamp = int(time.time() * 1000)  # noqa: TID251  a stranger's clock
    request = {"from_device": eve.device_id, "methods": ["m.sas.v1"], "timestamp": stamp}
    await asyncio.gather(
        *(
            eve.send_to_device(
                daemon.user_id,
                "m.key.verification.request",
                request | {"transaction_id": f"T{n}"},
                device_of(daemon),
            )
            for n in range(200)
        )
    )
    await ann.send(chat, "hello", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    await ann.wait_for(chat, lambda m: m.sender == daemon.user_id and m.body.endswith("hello"))
    assert not verifications(daemon)
    cancels = [e for e in ann.events(chat) if e.type == "m.key.verification.cancel"]
    assert len(cancels) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "state"), [("room", "keyed"), ("devices", "keyed"), ("command", "started")]
)
async def test_a_person_who_thinks_better_of_it_trusts_nobody(
    scene: Scene, where: str, state: str
) -> None:
    """X-020: a cancellation in each state."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    check = await begun(ann, daemon, chat, where)
    if state != "ready":
        if where != "command":
            await check.start()
        await check.until("started")
    if state == "keyed":
        await check.emojis()
        await in_phase(daemon, "keyed")
    await check.cancel()
    assert (await in_phase(daemon, "cancelled"))["code"] == "m.user"
    assert not await ann.trusts(daemon.user_id)
    await echoed_each(ann, chat, "hello")


async def begun(ann: CurrentClient, daemon: Bot, chat: str, where: str) -> EmojiCheck:
    """A verification that both are ready for."""
    if where == "command":
        await ann.send(chat, "/verify")
        check = await ann.incoming(daemon.user_id)
        await check.accept()
        return check
    if where == "room":
        check = await ann.verify(daemon.user_id, room=chat)
    else:
        check = await device_check(ann, daemon)
    await check.until("ready")
    return check


@pytest.mark.slow
async def test_a_third_person_in_the_room_changes_nothing(scene: Scene) -> None:
    """X-019: whose client says every message of a verification in its own name; in a plain room."""
    ann, eve = await asyncio.gather(scene.current("ann"), scene.current("eve"))
    daemon = await scene.bot(ann, matrix={"allowed_users": [eve.user_id]})
    await scene.room(ann, daemon, encrypted=True)  # or her client would not know of its identity
    chat = await scene.room(ann, daemon, eve)
    check = await begun(ann, daemon, chat, "room")
    relation = {"rel_type": "m.reference", "event_id": check.seen["transaction"]}
    for kind in ("ready", "start", "accept", "key", "mac", "done", "cancel"):
        content: Json = {"m.relates_to": relation, "from_device": eve.device_id, "code": "m.user"}
        await eve.send_event(chat, f"m.key.verification.{kind}", content)
    await check.start()
    await agree(daemon, check)
    assert [row["user_id"] for row in verifications(daemon)] == [ann.user_id]


@pytest.mark.slow
async def test_both_start_at_once_and_go_on_with_one(scene: Scene) -> None:
    """X-020: her user id is the smaller one, so it is hers."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await ann.send(chat, "/verify")
    check = await ann.incoming(daemon.user_id)
    await check.accept()
    await check.start()
    await agree(daemon, check)
    await ann.until_so(lambda: ann.trusts(daemon.user_id))


@pytest.mark.slow
async def test_another_device_of_our_account_that_answers_first_goes_on(scene: Scene) -> None:
    """X-020: the bot steps back without a word."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    assert await daemon.stop() == 0
    other = await scene.current(daemon, identity=False)
    check = await ann.verify(daemon.user_id, room=chat)
    await (await other.incoming(ann.user_id)).accept()
    await check.until("ready")
    await daemon.start()
    assert (await in_phase(daemon, "cancelled"))["code"] == "m.accepted"
    await echoed_each(ann, chat, "hello")
    sent = [e.type for e in ann.events(chat) if e.sender == daemon.user_id]
    assert "m.key.verification.cancel" not in sent
    assert check.phase == "ready"


@pytest.mark.slow
async def test_an_unsigned_device_of_an_allowed_person_may_verify_too(scene: Scene) -> None:
    """X-019, X-034: which says nothing about its owner's identity."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    phone = await scene.current(ann, identity=False)
    check = await device_check(phone, daemon)
    await check.until("ready")
    await check.start()
    await agree(daemon, check)
    assert (await in_phase(daemon, "done"))["device_id"] == phone.device_id
    del chat


@pytest.mark.slow
async def test_a_changed_identity_gains_nothing_by_verifying(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """X-035: between devices it works and changes nothing; in the room it is not answered."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "hello")
    await ann.make_identity(anew=True)
    await ann.wait_for(chat, lambda m: "matrix trust" in m.body)
    said = len(ann.events(chat))
    check = await device_check(ann, daemon)
    await check.until("ready")
    await check.start()
    await agree(daemon, check)
    [person] = daemon.rows("SELECT * FROM people")
    assert (person["verified"], person["changed_to"]) == (None, await ann.master_key(ann.user_id))
    laptop = await current(ann)
    in_room = await laptop.verify(daemon.user_id, room=chat)
    await ann.until(lambda: len(ann.events(chat)) > said)
    await device_check(await current(ann), daemon)
    await until_row(daemon, lambda row: row["phase"] == "ready")
    assert in_room.phase == "requested"
    assert {e.sender for e in ann.events(chat)[said:]} == {ann.user_id}


@pytest.mark.slow
async def test_a_terminal_and_a_bot_without_keys_have_nothing_to_verify(scene: Scene) -> None:
    ann, daemon, chat = await scene.direct(matrix={"encryption": "off"})
    await ann.send(chat, "/verify")
    [answer] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert "no keys" in answer.body


@pytest.mark.slow
@pytest.mark.alone
async def test_from_request_to_done_takes_three_seconds_at_most(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """X-019: beside the person, who compares in no time; in the room, which takes longer."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    took = []
    for n in range(3):
        person = await current(ann) if n else ann
        await person.until_so(partial(person.knows, daemon.user_id, device_of(daemon)))
        async with promptly(WITHIN) as passed:
            check = await begun(person, daemon, chat, "room")
            await check.start()
            await check.emojis()
            await check.confirm()
            await check.until("done")
        took.append(passed())
    print(f"median {statistics.median(took):.2f} s of {took}")  # noqa: T201  the figure
    assert statistics.median(took) <= 3
