"""Our own identity: made once, uploaded, our device signed by it; clients trust what it signs."""

import json
from typing import Any

import pytest

from tests.world.bot import Bot
from tests.world.chats import echoed_each
from tests.world.homeserver import Homeserver
from tests.world.identities import identity_detail
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.scene import Scene
from wintermute.matrix.signing import FILE

Json = dict[str, Any]
PAGE = "https://account.example.org/?action=org.matrix.cross_signing_reset"


def seeds(daemon: Bot) -> Json:
    """What is kept of the identity."""
    kept: Json = json.loads((daemon.data / "matrix" / FILE).read_text())
    return kept


def uploads(proxy: Proxy) -> list[Request]:
    """What was uploaded of identity and signatures."""
    return [*proxy.seen("POST", "keys/device_signing"), *proxy.seen("POST", "keys/signatures")]


async def test_a_strict_client_and_the_bot_read_each_other_without_a_shield(scene: Scene) -> None:
    """X-018: from the first message."""
    ann, _, chat = await scene.met(
        await scene.current("ann", strict=True), encrypted=True, matrix={"encryption": "required"}
    )
    await ann.send(chat, "hello")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert (answer.shield, answer.failure) == (None, None)


async def test_an_identity_is_made_once_and_nothing_is_uploaded_again(scene: Scene) -> None:
    """X-017, X-050: the token alone is enough; file and folder are ours alone."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=scene.proxy.url)
    file = daemon.data / "matrix" / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    made = seeds(daemon)
    assert made["user_id"] == daemon.user_id
    assert len(uploads(scene.proxy)) == 2
    assert "auth" not in uploads(scene.proxy)[0].json
    assert not [
        line for line in daemon.log if any(made[u]["seed"] in line for u in made if u != "user_id")
    ]
    await identity_detail(daemon, "ok")
    before = len(scene.proxy.requests)
    await daemon.restart()
    later = [
        r.path.partition("/keys/")[2] for r in scene.proxy.requests[before:] if "/keys/" in r.path
    ]
    assert later == ["query"]  # which is made for people, and has us in it
    assert seeds(daemon) == made
    assert made["master"]["public"][:4] in await identity_detail(daemon, "ok")


@pytest.mark.slow
async def test_a_bot_from_before_gets_its_identity_and_its_rooms_go_on(scene: Scene) -> None:
    """X-050: a strict client reads it from then on; nobody has to do anything."""
    ann = await scene.current("ann")
    scene.proxy.before = lambda request: (
        Answer(404, {"errcode": "M_UNRECOGNIZED"}) if "device_signing" in request.path else None
    )
    daemon = await scene.bot(ann, via=scene.proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    await ann.send(chat, "before")
    old = await ann.wait_for(chat, lambda m: m.body == "echo: before")
    assert old.shield is not None  # and yet it is talked to
    assert "404" in await identity_detail(daemon, "warn")
    assert await daemon.stop() == 0
    (daemon.data / "matrix" / FILE).unlink()  # now the folder is as it was before
    scene.proxy.before = pass_before
    scene.proxy.requests.clear()
    await daemon.start()
    device = json.loads((daemon.data / "matrix" / "session.json").read_text())["device_id"]
    await ann.until_so(lambda: ann.knows(daemon.user_id, device, signed=True))
    await ann.isolate(strict=True)
    await ann.send(chat, "after")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: after")
    assert (answer.shield, answer.failure) == (None, None)
    assert len(uploads(scene.proxy)) == 2
    await daemon.restart()
    await echoed_each(ann, chat, "later")
    assert len(uploads(scene.proxy)) == 2


@pytest.mark.slow
async def test_a_lost_key_store_means_a_new_device_of_the_same_identity(scene: Scene) -> None:
    """X-016, X-017: then the seeds are lost too: told, and nothing is replaced."""
    ann, daemon, chat = await scene.met(
        await scene.current("ann", strict=True), encrypted=True, via=scene.proxy.url
    )
    await daemon.stop()
    made = seeds(daemon)
    folder = daemon.data / "matrix"
    for file in folder.glob("*.db"):
        file.unlink()
    await daemon.start()
    notice = await ann.wait_for(chat, lambda m: "new device" in m.body)
    assert "need not verify me again" in notice.body
    await ann.send(chat, "hello")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert (notice.shield, answer.shield, answer.failure) == (None, None, None)
    assert seeds(daemon) == made
    assert await ann.master_key(daemon.user_id) == made["master"]["public"]
    assert [r.path.rpartition("keys/")[2] for r in uploads(scene.proxy)] == [
        "device_signing/upload",
        "signatures/upload",
        "signatures/upload",
    ]
    await daemon.stop()
    (folder / FILE).unlink()
    await daemon.start()
    said = await identity_detail(daemon, "fail")
    assert "restore" in said
    assert "reset-crypto --identity" in said
    await echoed_each(ann, chat, "again")
    assert len(uploads(scene.proxy)) == 3
    assert not (folder / FILE).exists()


@pytest.mark.slow
async def test_an_identity_that_is_not_ours_is_reported_and_kept(scene: Scene) -> None:
    """X-017: somebody logged in as the bot with another client, which made one."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=scene.proxy.url, start=False)
    other = await scene.current(daemon)
    master = await other.master_key(daemon.user_id)
    for _ in range(2):
        await daemon.start()
        assert "reset-crypto --identity" in await identity_detail(daemon, "fail")
        chat = await scene.room(ann, daemon, encrypted=True)
        await echoed_each(ann, chat, "hello")
        await daemon.stop()
    assert not uploads(scene.proxy)
    assert not (daemon.data / "matrix" / FILE).exists()
    assert await other.master_key(daemon.user_id) == master


async def test_a_password_that_is_asked_for_is_given_and_in_no_log(scene: Scene) -> None:
    """X-051."""

    def ask(request: Request) -> Action:
        if "device_signing" not in request.path or "auth" in request.json:
            return None
        return Answer(401, {"flows": [{"stages": ["m.login.password"]}], "session": "s1"})

    ann = await scene.person("ann")
    scene.proxy.before = ask
    daemon = await scene.bot(ann, via=scene.proxy.url)
    await identity_detail(daemon, "ok")
    password = (daemon.config.parent / "password").read_text()
    given = uploads(scene.proxy)[1].json["auth"]
    assert (given["session"], given["password"]) == ("s1", password)
    assert not [line for line in daemon.log if password in line]


@pytest.mark.slow
async def test_a_page_that_has_to_be_opened_is_told_and_chatting_goes_on(
    scene: Scene, proxy: Proxy, homeserver: Homeserver
) -> None:
    """X-051: a bot with a token and no password; it is tried again at the next start."""
    answer = {
        "flows": [{"stages": ["m.oauth"]}],
        "params": {"m.oauth": {"url": PAGE}},
        "session": "s1",
    }
    ann = await scene.person("ann")
    token = {"password": None, "access_token": {"file": "token"}}
    daemon = await scene.bot(ann, via=proxy.url, start=False, matrix=token)
    login = homeserver.login(daemon.user_id[1:].partition(":")[0])
    (daemon.config.parent / "token").write_text(login.access_token)
    proxy.before = lambda request: Answer(401, answer) if "device_signing" in request.path else None
    await daemon.start()
    assert PAGE in await identity_detail(daemon, "fail")
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "hello")
    assert len(uploads(proxy)) == 1
    proxy.before = pass_before
    await daemon.restart()
    await identity_detail(daemon, "ok")
    [key] = uploads(proxy)[0].json["master_key"]["keys"].values()
    assert seeds(daemon)["master"]["public"] == key


@pytest.mark.slow
async def test_seeds_that_cannot_be_used_are_told_and_left_alone(scene: Scene) -> None:
    """X-017: the daemon goes on; those that others could read are closed."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=scene.proxy.url)
    file = daemon.data / "matrix" / FILE
    await daemon.stop()
    file.chmod(0o644)
    await daemon.start()
    await daemon.logged("readable by others")
    assert file.stat().st_mode & 0o777 == 0o600
    await daemon.stop()
    file.rename(file.with_name("aside"))
    file.mkdir()
    await daemon.start()
    said = await identity_detail(daemon, "fail")
    assert str(file) in said
    assert "backup" in said
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "hello")
    assert file.is_dir()
    assert len(uploads(scene.proxy)) == 2
