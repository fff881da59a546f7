"""The password is used once, the login is kept, and ended when asked."""

import json
from pathlib import Path

import pytest

from tests.world.files import mode
from tests.world.homeserver import Homeserver, Login
from tests.world.proxy import Action, Answer, Proxy, Request, pass_after
from tests.world.scene import Scene

CLIENT = "/_matrix/client/v3"


def session_of(folder: Path) -> dict[str, str]:
    session: dict[str, str] = json.loads((folder / "session.json").read_text())
    return session


def devices(homeserver: Homeserver, login: Login) -> set[str]:
    answer = homeserver.request("GET", f"{CLIENT}/devices", token=login.access_token)
    return {device["device_id"] for device in answer["devices"]}


async def test_the_login_is_made_once_kept_in_private_and_ended_when_asked(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """X-033."""
    daemon = await scene.bot(await scene.person("ann"), via=proxy.url)
    login = homeserver.user(daemon.user_id[1:].partition(":")[0])
    folder = daemon.data / "matrix"
    first = session_of(folder)
    assert (mode(folder), mode(folder / "session.json")) == (0o700, 0o600)
    for verb in ("logout", "reset-crypto"):
        code, told = await daemon.command("matrix", verb)
        assert (code, str(daemon.pid) in told) == (1, True)
    await daemon.restart()
    assert len(proxy.seen("POST", "/login")) == 1
    assert await daemon.stop() == 0

    store = folder / f"{first['user_id']}_{first['device_id']}.db"
    content = store.read_bytes()
    code, _ = await daemon.command("matrix", "reset-crypto")
    [aside] = folder.glob("*.db.until-2*")
    assert (code, aside.read_bytes() == content, store.exists()) == (0, True, False)
    await daemon.start()
    second = session_of(folder)
    assert second["device_id"] != first["device_id"]
    assert await daemon.stop() == 0

    assert second["device_id"] in devices(homeserver, login)
    code, _ = await daemon.command("matrix", "logout")
    assert (code, (folder / "session.json").exists()) == (0, False)
    assert second["device_id"] not in devices(homeserver, login)
    await daemon.start()
    assert session_of(folder)["device_id"] != second["device_id"]
    assert len(proxy.seen("POST", "/login")) == 3
    assert not any(first["access_token"] in line or login.password in line for line in daemon.log)


async def test_a_revoked_login_ends_the_daemon_without_hammering_the_server(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """X-014, F-061: while it works, and at its next start; its device is not made anew."""
    refused: list[Request] = []

    def count(request: Request, status: int, _body: bytes) -> Action:
        if status == 401:
            refused.append(request)
        return None

    ann, daemon, chat = await scene.direct(via=proxy.url)
    proxy.after = count
    token = session_of(daemon.data / "matrix")["access_token"]
    homeserver.request("POST", f"{CLIENT}/logout", {}, token)
    await ann.send(chat, "hello")
    assert await daemon.ended() == 2
    assert "wintermute matrix logout" in daemon.log[-1]
    bot_login = homeserver.user(daemon.user_id[1:].partition(":")[0])
    assert session_of(daemon.data / "matrix")["device_id"] not in devices(homeserver, bot_login)
    assert not any("Traceback" in line for line in daemon.log)
    assert 1 <= len(refused) <= 3
    refused.clear()
    await daemon.start(ready=False)
    assert await daemon.ended() == 2
    assert 1 <= len(refused) <= 3
    code, _ = await daemon.command("matrix", "logout")
    assert code == 0
    proxy.after = pass_after
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"password": {"file": "wrong"}}, "check the account and its password"),
        ({"owner": None}, "matrix.owner"),
    ],
    ids=["wrong password", "no owner"],
)
async def test_what_only_a_person_can_mend_ends_the_start(
    scene: Scene, section: dict[str, object], told: str
) -> None:
    """X-033, L-079."""
    daemon = await scene.bot(await scene.person("ann"), start=False, matrix=section)
    (daemon.config.parent / "wrong").write_text("open sesame, please")
    await daemon.start(ready=False)
    assert await daemon.ended() == 2
    assert told in daemon.log[-1]
    assert len(daemon.log) == 1


async def test_an_account_spelt_otherwise_is_refused_before_it_makes_devices(scene: Scene) -> None:
    """X-033: the homeserver's spelling counts; with another each start would log in anew."""
    daemon = await scene.bot(await scene.person("ann"), start=False)
    account = daemon.user_id
    otherwise = daemon.config.read_text().replace(account, account.replace("@bot", "@Bot"))
    daemon.config.write_text(otherwise)
    await daemon.start(ready=False)
    assert await daemon.ended() == 2
    assert account in daemon.log[-1]
    assert not (daemon.data / "matrix" / "session.json").exists()


@pytest.mark.slow
async def test_a_homeserver_that_is_away_at_the_start_is_waited_for(
    scene: Scene, proxy: Proxy
) -> None:
    """X-012."""
    daemon = await scene.bot(await scene.person("ann"), via=proxy.url, start=False)
    await proxy.down()
    await daemon.start(ready=False)
    await daemon.logged("login waits")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM health WHERE state = 'fail'")))
    assert "fail  homeserver" in (await daemon.command("status", "--all"))[1]
    await proxy.up()
    await daemon.logged(" ready ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flows", [[{"type": "m.login.sso"}], 7, ["m.login.password", {"type": ["x"]}]], ids=str
)
async def test_where_no_password_is_taken_the_line_asks_for_a_token(
    scene: Scene, flows: object, proxy: Proxy
) -> None:
    """X-051: a homeserver whose logins are on a web page."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url, start=False)

    def only_by_page(request: Request) -> Action:
        if not request.path.endswith("/login"):
            return None
        if request.method == "GET":
            return Answer(200, {"flows": flows})
        return Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"})

    proxy.before = only_by_page
    await daemon.start(ready=False)
    assert await daemon.ended() == 2
    assert "set a new matrix.access_token" in daemon.log[-1]
