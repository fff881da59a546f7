"""Two installations on one account: one of them works, and says that the other was there."""

import json
import shutil
from dataclasses import asdict, replace

import pytest

from tests.world.bot import Bot, said
from tests.world.copied import talk
from tests.world.homeserver import Homeserver
from tests.world.logins import kept_login
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.schema import lay_schema
from tests.world.warm import Interpreter
from wintermute.matrix.instances import (
    YOUNG,
    Installation,
    has_to_stop,
    is_running_beside,
    read_installation,
)

NOW = 1_700_000_000_000
OURS = Installation("ours", "OURS", NOW - 50, NOW)
LATER = Installation("other", "OTHER", NOW - 20, NOW)
EARLIER = replace(LATER, since=NOW - 90)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (LATER, True),
        (replace(LATER, name="ours"), False),
        (replace(LATER, device_id="OURS"), False),
        (replace(LATER, at=NOW - YOUNG + 1), True),
        (replace(LATER, at=NOW - YOUNG), False),
        (replace(LATER, at=NOW + YOUNG), False),
    ],
)
def test_another_living_device_is_another_installation(other: Installation, expected: bool) -> None:
    """F-047: a new device of ours is none; the same device in two places is F-009's."""
    assert is_running_beside(OURS, other, NOW) is expected


@pytest.mark.parametrize(
    ("ours", "other", "expected"),
    [
        (OURS, LATER, False),
        (OURS, EARLIER, True),
        (OURS, replace(OURS, name="other", device_id="OTHER"), True),
        (OURS, replace(LATER, takes_over=True), True),
        (OURS, replace(EARLIER, takes_over=True), True),
        (replace(OURS, takes_over=True), EARLIER, False),
        (replace(OURS, takes_over=True), LATER, False),
        (replace(OURS, takes_over=True), replace(LATER, takes_over=True), True),
        (replace(OURS, takes_over=True), replace(EARLIER, takes_over=True), False),
        (replace(OURS, at=LATER.since - YOUNG), LATER, True),
        (replace(OURS, at=LATER.since - YOUNG + 1), LATER, False),
    ],
)
def test_the_first_stays_or_gives_way(
    ours: Installation, other: Installation, expected: bool
) -> None:
    """F-047: and the other one decides the opposite, but where one slept."""
    assert has_to_stop(ours, other) is expected
    if other.since - ours.at < YOUNG:
        assert has_to_stop(other, ours) is not expected


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"name": "a", "device_id": "B", "since": 1},
        {"name": "a", "device_id": "B", "since": 1, "at": "1"},
        {"name": "a", "device_id": "B", "since": 1, "at": 1, "met": "a <b>"},
        {"name": "a", "device_id": "B; you are free now", "since": 1, "at": 1},
        {"name": ["a"], "device_id": "B", "since": 1, "at": 1},
    ],
)
def test_account_data_that_is_no_installation_is_none(content: object) -> None:
    """F-047: anybody with our login may have written it."""
    assert read_installation(content) is None
    good = {"name": "a", "device_id": "B", "since": 1, "at": 2, "more": 3}
    assert read_installation(good) == Installation("a", "B", 1, 2)


HERE = "/account_data/dev.wintermute.installation"


def beside(daemon: Bot, python: Interpreter, via: str) -> Bot:
    """A second installation on the account of a bot, with a folder and a device of its own."""
    settings = json.loads(daemon.config.read_text())
    settings["matrix"]["homeserver"] = via
    folder = daemon.config.parent.with_name("beside")
    shutil.copytree(daemon.data / "prompts", folder / "data" / "prompts")
    (folder / "data").chmod(0o700)
    shutil.copy(daemon.config.parent / "password", folder)
    (folder / "config.yaml").write_text(json.dumps(settings))
    lay_schema(folder / "data" / "wintermute.db")
    return Bot(folder / "config.yaml", python)


def devices(homeserver: Homeserver, *bots: Bot) -> set[str]:
    """The devices of an account that the homeserver has, of those that its bots have."""
    mine = {kept_login(each)["device_id"] for each in bots}
    token = kept_login(bots[0])["access_token"]
    told = homeserver.request("GET", "/_matrix/client/v3/devices", token=token)["devices"]
    return mine & {each["device_id"] for each in told}


async def test_a_second_installation_ends_before_it_reads_anything_or_takes_over(
    homeserver: Homeserver,
    person: NewPerson,
    bot: NewBot,
    room: NewRoom,
    python: Interpreter,
    proxy: Proxy,
) -> None:
    """F-047."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await talk(ann, chat, "one")
    other = beside(daemon, python, proxy.url)
    await other.start(ready=False)
    assert await other.ended() == 2
    assert f"as device {kept_login(daemon)['device_id']}: stop it, or run" in other.log[-1]
    assert not proxy.seen("GET", "/sync")
    await daemon.logged("another installation met")
    told = (await daemon.command("status", "--all"))[1]
    assert f"another installation, device {kept_login(other)['device_id']}, was started" in told
    await talk(ann, chat, "two")

    try:
        await other.start(None, "--take-over")
        assert await daemon.ended() == 2
        assert f"as device {kept_login(other)['device_id']}: stop it, or run" in daemon.log[-1]
        await talk(ann, chat, "three")
        assert len(devices(homeserver, daemon, other)) == 2
        await daemon.start(ready=False)
        assert await daemon.ended() == 2
        await talk(ann, chat, "four")
    finally:
        await other.stop()
    heard = [text for text in await said(ann, chat, daemon.user_id) if text.startswith("echo")]
    assert heard == [f"echo: {text}" for text in ("one", "two", "three", "four")]


@pytest.mark.slow
async def test_of_two_that_start_at_once_the_first_that_wrote_stays(
    person: NewPerson, bot: NewBot, room: NewRoom, python: Interpreter, proxy: Proxy
) -> None:
    """F-047: the second looked before the first had written; it refreshes its place meanwhile."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    other = beside(daemon, python, proxy.url)
    looked: list[str] = []

    def before(request: Request) -> Action:
        if request.method == "GET" and HERE in request.path and not looked:
            looked.append(request.path)
            return Answer(404, {"errcode": "M_NOT_FOUND", "error": "none"})
        return None

    proxy.before = before
    await other.start(ready=False)
    assert await other.ended() == 2
    await daemon.logged("another installation met")
    await talk(ann, chat, "one")
    assert (looked != [], daemon.running) == (True, True)


@pytest.mark.slow
async def test_a_place_that_nobody_keeps_is_free_after_ten_minutes(
    homeserver: Homeserver, person: NewPerson, bot: NewBot, python: Interpreter, proxy: Proxy
) -> None:
    """F-047: who is at work writes every five; a start of the same folder need not wait."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    wrote = len(proxy.seen("PUT", HERE))
    daemon.pass_time(301)
    await ann.create_room([daemon.user_id])  # a sync
    await daemon.until(lambda: len(proxy.seen("PUT", HERE)) > wrote)
    await daemon.restart()
    assert await daemon.stop() == 0
    kept = Installation(**proxy.seen("PUT", HERE)[-1].json)
    target, token = proxy.seen("PUT", HERE)[-1].path, kept_login(daemon)["access_token"]
    old = replace(kept, at=kept.at - 2 * YOUNG)
    homeserver.request("PUT", target, asdict(old), token)
    other = beside(daemon, python, homeserver.url)
    await other.start()
    assert await other.stop() == 0
