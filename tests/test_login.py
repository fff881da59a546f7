"""The password is used once, the login is kept, and ended when asked."""

import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet, write_settings
from tests.world.homeserver import Homeserver, Login
from tests.world.model import ModelServer
from tests.world.proxy import Action, Proxy, Request
from tests.world.user import MatrixUser

Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]
CLIENT = "/_matrix/client/v3"


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    async with Proxy(homeserver.url) as opened:
        yield opened


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(folder: Path) -> dict[str, str]:
    session: dict[str, str] = json.loads((folder / "session.json").read_text())
    return session


def devices(homeserver: Homeserver, login: Login) -> set[str]:
    answer = homeserver.request("GET", f"{CLIENT}/devices", token=login.access_token)
    return {device["device_id"] for device in answer["devices"]}


async def test_the_login_is_made_once_kept_in_private_and_ended_when_asked(
    homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> None:
    """X-033."""
    login = homeserver.user(fresh("bot"))
    config = write_settings(tmp_path / "bot", proxy.url, login, "http://127.0.0.1:9/v1", "@a:b")
    folder = config.parent / "data" / "matrix"
    async with Bot(config) as bot:
        first = kept(folder)
        assert (mode(folder), mode(folder / "session.json")) == (0o700, 0o600)
        for verb in ("logout", "reset-crypto"):
            code, told = await bot.command("matrix", verb)
            assert (code, str(bot.pid) in told) == (1, True)
        await bot.restart()
        assert len(proxy.seen("POST", "/login")) == 1
        assert await bot.stop() == 0

        store = folder / f"{first['user_id']}_{first['device_id']}.db"
        content = store.read_bytes()
        code, _ = await bot.command("matrix", "reset-crypto")
        [aside] = folder.glob("*.db.until-2*")
        assert (code, aside.read_bytes() == content, store.exists()) == (0, True, False)
        await bot.start()
        second = kept(folder)
        assert second["device_id"] != first["device_id"]
        assert await bot.stop() == 0

        assert second["device_id"] in devices(homeserver, login)
        code, _ = await bot.command("matrix", "logout")
        assert (code, (folder / "session.json").exists()) == (0, False)
        assert second["device_id"] not in devices(homeserver, login)
        await bot.start()
        assert kept(folder)["device_id"] != second["device_id"]
        assert len(proxy.seen("POST", "/login")) == 3
        assert not any(first["access_token"] in line or login.password in line for line in bot.log)


async def test_a_revoked_login_ends_the_daemon_without_hammering_the_server(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-014: while it works, and at its next start."""
    login = homeserver.user(fresh("bot"))
    refused: list[Request] = []

    def count(request: Request, status: int, _body: bytes) -> Action:
        if status == 401:
            refused.append(request)
        return None

    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id)
            proxy.after = count
            token = kept(config.parent / "data" / "matrix")["access_token"]
            homeserver.request("POST", f"{CLIENT}/logout", {}, token)
            await ann.send(room, "hello")
            assert await bot.ended() == 2
            assert "wintermute matrix logout" in bot.log[-1]
            assert not any("Traceback" in line for line in bot.log)
            assert 1 <= len(refused) <= 3
            refused.clear()
            await bot.start(ready=False)
            assert await bot.ended() == 2
            assert 1 <= len(refused) <= 3
            code, _ = await bot.command("matrix", "logout")
            assert code == 0
            proxy.after = lambda _request, _status, _body: None
            await bot.start()
            await ann.wait_for(room, lambda m: m.body == "echo: hello")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"password": {"file": "wrong"}}, "check matrix.user_id and matrix.password"),
        ({"owner": None}, "matrix.owner"),
    ],
    ids=["wrong password", "no owner"],
)
async def test_what_only_a_person_can_mend_ends_the_start(
    section: dict[str, object], told: str, homeserver: Homeserver, fresh: NewName, tmp_path: Path
) -> None:
    """X-033, L-079."""
    login = homeserver.user(fresh("bot"))
    config = write_settings(
        tmp_path, homeserver.url, login, "http://127.0.0.1:9/v1", "@a:b", matrix=section
    )
    (tmp_path / "wrong").write_text("open sesame, please")
    bot = Bot(config)
    await bot.start(ready=False)
    assert await bot.ended() == 2
    assert told in bot.log[-1]
    assert len(bot.log) == 1


async def test_an_account_spelt_otherwise_is_refused_before_it_makes_devices(
    homeserver: Homeserver, fresh: NewName, tmp_path: Path
) -> None:
    """X-033: the homeserver's spelling counts; with another each start would log in anew."""
    login = homeserver.user(fresh("bot"))
    spelt = {"user_id": login.user_id.replace("@bot", "@Bot")}
    config = write_settings(
        tmp_path, homeserver.url, login, "http://127.0.0.1:9/v1", "@a:b", matrix=spelt
    )
    bot = Bot(config)
    await bot.start(ready=False)
    assert await bot.ended() == 2
    assert login.user_id in bot.log[-1]
    assert not (tmp_path / "data" / "matrix" / "session.json").exists()


async def test_a_homeserver_that_is_away_at_the_start_is_waited_for(
    homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> None:
    """X-012."""
    login = homeserver.user(fresh("bot"))
    config = write_settings(tmp_path / "bot", proxy.url, login, "http://127.0.0.1:9/v1", "@a:b")
    await proxy.down()
    bot = Bot(config)
    await bot.start(ready=False)
    try:
        await bot.logged("login waits")
        await proxy.up()
        await bot.logged(" ready ", within=10)
    finally:
        await bot.kill()
