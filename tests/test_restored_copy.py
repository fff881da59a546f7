"""An earlier copy of the data folder is put back: nothing is said twice, and all that is said can be read."""

import json
from collections.abc import Callable

import pytest

from tests.world.bot import Bot
from tests.world.copied import (
    RESTORED,
    copied,
    counted_messages,
    echoed,
    make_due,
    noticed,
    put_back,
    remind,
    talk,
)
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.scene import NewAnybody, Scene
from tests.world.user import Message

pytestmark = pytest.mark.slow


@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_copy_that_is_put_back_is_noticed_and_nothing_is_said_twice(
    scene: Scene, anybody: NewAnybody
) -> None:
    """F-009: stopped, copied, lived on, put back, lived on, as in README, Backup."""
    ann = await anybody("ann")
    daemon = await scene.bot(ann)
    chat, silent = [await scene.room(ann, daemon, encrypted=True) for _ in range(2)]
    await talk(ann, silent, "nothing since")
    await talk(ann, chat, "before")
    await remind(ann, chat, "drink water")
    assert await daemon.stop() == 0
    make_due(daemon)
    copy = copied(daemon)

    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body.startswith("⏰ drink water"))
    await talk(ann, chat, "since")
    await talk(ann, chat, "and since")
    await remind(ann, chat, "call Ben")
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await ann.send(chat, "while it was off")

    await daemon.start()
    told = (await ann.wait_for(chat, lambda m: RESTORED in m.body)).body
    asked = [line.split(": ", 1)[1] for line in told.splitlines() if line.startswith("- ")]
    assert asked == ["since", "and since", "/remind 2031-01-01 10:00 call Ben"]
    await talk(ann, chat, "after")
    await daemon.restart()
    await talk(ann, chat, "the end")
    assert noticed(daemon) == 1
    assert not [m for m in ann.messages(silent) if RESTORED in m.body]

    said = await counted_messages(ann, chat, daemon)
    assert set(said.values()) == {1}, said
    assert [text[0] for text in said].count("⏰") == 1
    wanted = ["before", "since", "and since", "while it was off", "after", "the end"]
    assert list(filter(None, map(echoed, said))) == wanted


@pytest.mark.breaks("restored copy", perhaps=True)
async def test_everybody_can_read_the_bot_as_before_and_current_clients_can_be_read(
    scene: Scene,
) -> None:
    """F-009: a copy of a running daemon; two clients, a session made since, and one made after all.

    Current clients give their keys anew to a device that begins anew.
    """
    ann, ben = await scene.current("ann", strict=True), await scene.person("ben")
    daemon = await scene.bot(
        ann, matrix={"allowed_users": [ben.user_id], "mention_in_groups": False}
    )
    chat = await scene.room(ann, daemon, ben, encrypted=True, name="all of us")
    await talk(ann, chat, "before")
    await talk(ben, chat, "before as well")
    copy = copied(daemon)  # while it runs

    phone = await scene.current(ann)
    await phone.until_so(lambda: phone.knows(daemon.user_id, device_of(daemon)))
    for teller, text in ((phone, "on the road"), (ben, "at home"), (ann, "at work")):
        await talk(teller, chat, text)
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await daemon.start()
    for reader in (ann, phone, ben):
        await reader.wait_for(chat, lambda m: RESTORED in m.body)

    for teller, text in ((ann, "one"), (phone, "two")):
        await teller.send(chat, text)
        for reader in (ann, phone, ben):
            await reader.wait_for(chat, answers(text))
    tablet = await scene.current(ann)
    await tablet.until_so(lambda: tablet.knows(daemon.user_id, device_of(daemon)))
    await talk(tablet, chat, "from a new one")
    for reader in (ann, phone, ben):
        await reader.wait_for(chat, answers("from a new one"))
    assert not ann.doubted(daemon.user_id)
    assert set((await counted_messages(ann, chat, daemon)).values()) == {1}
    assert noticed(daemon) == 1
    # (The phone's coming made everybody begin a session, whose key only the lost run had.)
    [told] = [m.body for m in ann.messages(chat) if RESTORED in m.body]
    assert "2 messages" in told
    assert "2 messages of it cannot be decrypted" in (await daemon.command("status", "--all"))[1]


def answers(text: str) -> Callable[[Message], bool]:
    """Whether a message is the answer to a text."""
    return lambda message: echoed(message.body) == text


def device_of(daemon: Bot) -> str:
    """The device that a daemon is logged in with."""
    return str(json.loads((daemon.data / "matrix" / "session.json").read_text())["device_id"])


@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_device_whose_new_keys_are_refused_gives_way_to_another(
    scene: Scene, proxy: Proxy
) -> None:
    """F-009: of the same identity, with the room keys of the old one."""
    ann = await scene.current("ann", strict=True)
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    await talk(ann, chat, "before")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    await talk(ann, chat, "since")
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await ann.send(chat, "in the old session")

    proxy.before = refuse_until_login
    await daemon.start(ready=False)
    await daemon.logged("device replaced")
    proxy.before = pass_before
    await ann.wait_for(chat, lambda m: RESTORED in m.body)
    await ann.wait_for(chat, lambda m: echoed(m.body) == "in the old session")
    await talk(ann, chat, "after")
    assert not ann.doubted(daemon.user_id)
    assert set((await counted_messages(ann, chat, daemon)).values()) == {1}


def refuse_until_login(request: Request) -> Action:
    """A homeserver that has other keys under each name."""
    if request.path.endswith("/keys/upload"):
        return Answer(400, {"errcode": "M_UNKNOWN", "error": "One time key already exists"})
    return None
