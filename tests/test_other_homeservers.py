"""The main stories of the Matrix door at homeservers that are not Synapse (F-059)."""

from urllib.parse import quote

import pytest

from tests.world.bot import Bot, said
from tests.world.copied import talk
from tests.world.differences import DIFFERENCES, Other
from tests.world.homeserver import Homeserver
from tests.world.logins import with_token
from tests.world.model import ModelServer, Text
from tests.world.proxy import Proxy
from tests.world.scene import NewBot, Scene
from tests.world.user import CLIENT, MatrixUser


async def at_home(
    homeserver: Homeserver, bot: NewBot, owner: MatrixUser, proxy: Proxy
) -> tuple[Bot, Other]:
    """A bot with a token at another homeserver."""
    other = Other(proxy)
    daemon = await bot(owner, via=proxy.url, start=False)
    with_token(daemon, homeserver.login(daemon.user_id[1:].partition(":")[0]).access_token)
    await daemon.start()
    return daemon, other


async def test_a_bot_comes_in_talks_and_is_started_again(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """F-059: with an encrypted and a plain room; nothing that it asks is refused."""
    ann = await scene.person("ann")
    daemon, other = await at_home(homeserver, scene.bot, ann, proxy)
    sealed, plain = await scene.room(ann, daemon, encrypted=True), await scene.room(ann, daemon)
    for chat in (sealed, plain):
        await talk(ann, chat, "one")
    await daemon.restart()
    for chat in (sealed, plain):
        await talk(ann, chat, "two")
        assert await said(ann, chat, daemon.user_id) == ["echo: one", "echo: two"]
    assert "account data" not in (await daemon.command("status", "--all"))[1]
    assert not other.refused
    assert other.met == {each.name for each in DIFFERENCES if each.told is not DIFFERENCES[0].told}


async def test_a_password_at_a_homeserver_that_has_no_login_is_told(scene: Scene) -> None:
    """F-059: it does not wait for what will never be there."""
    daemon = await scene.bot(await scene.person("ann"), via=scene.proxy.url, start=False)
    Other(scene.proxy)
    code, told = await daemon.command("run")
    assert (code, "it takes no passwords; set" in told) == (2, True), told


@pytest.mark.slow
async def test_edits_redactions_mentions_and_members_are_what_they_are_at_synapse(
    scene: Scene, homeserver: Homeserver, proxy: Proxy, model: ModelServer
) -> None:
    """F-059: what stands in the state as well is no news."""
    ann, bob = await scene.person("ann"), await scene.person("bob")
    daemon, other = await at_home(homeserver, scene.bot, ann, proxy)
    chat = await scene.room(ann, daemon, encrypted=True)
    first = await ann.send(chat, "one")
    await ann.wait_for(chat, lambda m: m.body == "echo: one")
    await ann.edit(chat, first, "one and a half")
    await ann.wait_for(chat, lambda m: "one and a half" in m.body and m.sender == daemon.user_id)
    gone = await ann.send(chat, "a secret word")
    await ann.wait_for(chat, lambda m: m.body == "echo: a secret word")
    await ann.redact(chat, gone)
    await daemon.until(lambda: not daemon.rows("SELECT 1 FROM inbox WHERE body LIKE '%secret w%'"))
    model.script(Text("to all of you"))
    group = await scene.room(ann, daemon, bob, name="three")
    await ann.send(group, "nobody asked")
    await ann.send(group, f"{daemon.user_id} you?")
    await ann.wait_for(group, lambda m: m.body == "to all of you")
    assert "nobody asked" in model.requests[-1].last_user
    await ann.invite(chat, bob.user_id)
    await bob.join(chat)
    await ann.send(chat, "who is here?")
    await ann.wait_for(chat, lambda m: "no longer" in m.body or "private" in m.body)
    assert not other.refused


@pytest.mark.slow
async def test_a_room_is_upgraded_to_one_whose_creators_stand_outside_the_power_levels(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """F-059, F-013: to version 12 (MSC4289), in which a creator is in no `users`."""
    ann = await scene.person("ann")
    daemon, other = await at_home(homeserver, scene.bot, ann, proxy)
    status, made = await ann.api(
        "POST",
        f"{CLIENT}/createRoom",
        {"room_version": "11", "invite": [daemon.user_id], "is_direct": True},
    )
    assert status == 200, made
    old = str(made["room_id"])
    await ann.wait_joined(old, daemon.user_id)
    await talk(ann, old, "one")
    status, made = await ann.api(
        "POST", f"{CLIENT}/rooms/{quote(old)}/upgrade", {"new_version": "12"}
    )
    assert status == 200, made
    new = str(made["replacement_room"])
    await ann.invite(new, daemon.user_id)
    await ann.wait_joined(new, daemon.user_id)
    await talk(ann, new, "two")
    levels = homeserver.request(
        "GET",
        f"{CLIENT}/rooms/{quote(new)}/state/m.room.power_levels",
        token=ann.login.access_token,
    )
    assert ann.user_id not in levels.get("users", {})
    assert daemon.rows("SELECT moved_to FROM rooms WHERE room_id = ?", old) == [{"moved_to": new}]
    assert not other.refused
