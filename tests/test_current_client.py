"""The current client that other tests stand on does what they take for granted."""

import asyncio

import pytest

from tests.world.current import CurrentClient, Shield
from tests.world.emojis import EmojiCheck
from tests.world.scene import NewCurrent, Scene


async def together(host: CurrentClient, *guests: CurrentClient) -> str:
    """An encrypted room with all of them in it."""
    room = await host.create_room([guest.user_id for guest in guests], encrypted=True)
    for guest in guests:
        await guest.join(room)
        await host.wait_joined(room, guest.user_id)
    return room


async def both_agree(asking: EmojiCheck, asked: EmojiCheck) -> None:
    """From the request to the end, as two people who see the same."""
    await asked.accept()
    await asking.until("ready")
    await asking.start()
    theirs, ours = await asked.emojis(), await asking.emojis()
    assert theirs == ours
    assert len(ours) == 7
    assert asking.seen["decimals"] == asked.seen["decimals"]
    await asking.confirm()
    await asked.confirm()
    for check in (asking, asked):
        await check.until("done")


@pytest.mark.slow
async def test_two_strict_clients_read_each_other_without_a_shield(current: NewCurrent) -> None:
    ann = await current("ann", strict=True)
    bob = await current("bob", strict=True)
    room = await together(ann, bob)
    sent = await ann.send(room, "good morning")
    got = await bob.wait_for(room, lambda message: message.sender == ann.user_id)
    assert (got.event_id, got.body, got.encrypted) == (sent, "good morning", True)
    assert (got.shield, got.failure) == (None, None)
    await bob.edit(room, await bob.send(room, "to yu"), "to you")
    await bob.redact(room, await bob.react(room, sent, "👍"))
    told = await ann.wait_for_count(room, bob.user_id, 2)
    assert [(m.body, m.shield) for m in told] == [("to yu", None), ("* to you", None)]
    assert [m.body for m in await ann.history(room)] == ["good morning", "to yu", "* to you"]
    await ann.until(lambda: "m.room.redaction" in [event.type for event in ann.events(room)])


@pytest.mark.slow
async def test_the_bot_and_people_at_other_clients_are_talked_to(scene: Scene) -> None:
    ann, bob = await scene.current("ann"), await scene.person("bob")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, bob, encrypted=True)
    sent = await ann.send(chat, "hello", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    for watcher in (ann, bob):
        answer = await watcher.wait_for(chat, lambda m: m.sender == daemon.user_id)
        assert (answer.body.endswith("hello"), answer.encrypted) == (True, True)
    [got] = bob.messages(chat, ann.user_id)
    assert (got.event_id, got.encrypted) == (sent, True)
    laptop = await scene.current(bob)
    assert await laptop.knows(bob.user_id, laptop.device_id, signed=True)
    assert not await laptop.knows(bob.user_id, bob.login.device_id, signed=True)


@pytest.mark.slow
async def test_two_people_compare_emojis_in_a_room_and_between_devices(current: NewCurrent) -> None:
    ann, bob = await current("ann"), await current("bob")
    room = await together(ann, bob)
    for user in (ann, bob):
        assert not await user.trusts(ann.user_id if user is bob else bob.user_id)
    await both_agree(await ann.verify(bob.user_id, room=room), await bob.incoming(ann.user_id))
    await ann.until_so(lambda: ann.trusts(bob.user_id))
    await bob.until_so(lambda: bob.trusts(ann.user_id))

    eve = await current("eve")
    await together(ann, eve)
    asking = await eve.verify(ann.user_id, device=ann.device_id)
    asked = await ann.incoming(eve.user_id)
    assert asked.seen["device"] == eve.device_id
    await both_agree(asking, asked)
    await eve.until_so(lambda: eve.trusts(ann.user_id))


@pytest.mark.slow
async def test_emojis_that_differ_end_it_with_the_right_code(current: NewCurrent) -> None:
    ann, bob = await current("ann"), await current("bob")
    room = await together(ann, bob)
    asking = await ann.verify(bob.user_id, room=room)
    asked = await bob.incoming(ann.user_id)
    await asked.accept()
    await asking.until("ready")
    await asked.start()
    await asking.emojis()
    await asked.emojis()
    await asked.mismatch()
    await asking.until("cancelled")
    assert (asking.code, asking.seen["cancelled_by"]) == ("m.mismatched_sas", bob.user_id)

    again = await bob.verify(ann.user_id, room=room)
    await (await ann.incoming(bob.user_id)).cancel()
    await again.until("cancelled")
    assert again.code == "m.user"
    assert not await ann.trusts(bob.user_id)


@pytest.mark.slow
async def test_an_unsigned_device_is_read_by_those_who_are_not_strict(current: NewCurrent) -> None:
    ann, strict, bob = await asyncio.gather(
        current("ann"), current("strict", strict=True), current("bob")
    )
    room = await together(bob, ann, strict)
    phone = await current(bob, identity=False)
    await ann.until_so(lambda: ann.knows(bob.user_id, phone.device_id))
    await phone.send(room, "from my phone")
    got = await ann.wait_for(room, lambda message: message.body == "from my phone")
    assert got.shield == Shield("RED", "UNSIGNED_DEVICE")
    unread = await strict.wait_unreadable(room, bob.user_id)
    assert (unread.event_id, unread.failure) == (got.event_id, "UNSIGNED_SENDER_DEVICE")
    await strict.send(room, "not for phones")
    unread = await phone.wait_unreadable(room, strict.user_id)
    assert unread.failure == "MEGOLM_KEY_WITHHELD_FOR_UNVERIFIED_DEVICE"

    await bob.share_identity(phone)
    await ann.until_so(lambda: ann.knows(bob.user_id, phone.device_id, signed=True))
    assert await ann.shield(got, room) is None


@pytest.mark.slow
async def test_a_new_identity_replaces_the_old_one_with_a_password(current: NewCurrent) -> None:
    ann, bob = await current("ann"), await current("bob")
    await together(ann, bob)
    await ann.until_so(lambda: ann.master_key(bob.user_id))
    before = await ann.master_key(bob.user_id)
    await bob.make_identity(anew=True)
    after = await bob.master_key(bob.user_id)

    async def seen() -> bool:
        return await ann.master_key(bob.user_id) == after

    await ann.until_so(seen, "the new identity")
    assert before != after


async def test_a_client_that_ends_says_what_it_last_said(current: NewCurrent) -> None:
    ann = await current("ann", identity=False)
    assert ann._process is not None
    ann._process.kill()
    with pytest.raises(AssertionError, match="ended with"):
        await ann.send("!no:where", "hello")
