"""The login: the password is used once, the login is kept, renewed when the homeserver asks, and ended when asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.world.bot import said
from tests.world.chats import echoed_each
from tests.world.files import mode
from tests.world.homeserver import Homeserver, Login
from tests.world.logins import SOFT, expire, kept_login, with_token
from tests.world.model import ModelServer, Text
from tests.world.proxy import Action, Answer, Proxy, Request, pass_after, pass_before
from tests.world.scene import Scene
from tests.world.user import MatrixUser
from tests.world.warm import Interpreter
from wintermute.config.schema import Matrix, Secret
from wintermute.errors import HomeserverUnavailable, LoginEnded, LoginExpired, LoginRefused
from wintermute.matrix.http import RenewingClient, call
from wintermute.matrix.kept_login import Session, load, save
from wintermute.matrix.login import renewed

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
async def test_a_homeserver_that_is_away_at_the_start_is_waited_for(scene: Scene) -> None:
    """X-012."""
    daemon = await scene.bot(await scene.person("ann"), via=scene.proxy.url, start=False)
    await scene.proxy.down()
    await daemon.start(ready=False)
    await daemon.logged("login waits")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM health WHERE state = 'fail'")))
    assert "fail  homeserver" in (await daemon.command("status", "--all"))[1]
    await scene.proxy.up()
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


HARD = Answer(401, {"errcode": "M_UNKNOWN_TOKEN", "error": "unknown"})
EITHER = pytest.mark.parametrize("refusal", [SOFT, HARD], ids=["soft logout", "token ended"])
SESSION = Session("@bot:test", "BOTDEVICE", "old token", "a pickle key")
MATRIX = Matrix(
    homeserver="", user_id=SESSION.user_id, owner="@ann:test", password=Secret("open sesame")
)


@pytest.mark.slow
@EITHER
async def test_the_same_device_logs_in_again_by_itself_and_goes_on(
    scene: Scene, refusal: Answer, proxy: Proxy, model: ModelServer
) -> None:
    """F-011, F-061: what was said meanwhile is answered once, and the new token is as secret as the old."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=proxy.url)
    await echoed_each(ann, chat, "one")
    before, pid = kept_login(daemon), daemon.pid
    expire(proxy, refusal)
    await echoed_each(ann, chat, "two")
    after = kept_login(daemon)
    assert {**before, "access_token": after["access_token"]} == after
    assert after["access_token"] != before["access_token"]
    assert mode(daemon.data / "matrix" / "session.json") == 0o600
    assert [r.json.get("device_id") for r in proxy.seen("POST", "/login")] == [
        None,
        before["device_id"],
    ]
    model.script(Text(f"it is {after['access_token']}"))
    await ann.send(chat, "what is your token?")
    await ann.wait_for(chat, lambda m: m.body == "it is [secret]")
    assert (daemon.running, daemon.pid) == (True, pid)
    assert not any(after["access_token"] in line for line in daemon.log)
    assert await said(ann, chat, daemon.user_id) == ["echo: one", "echo: two", "it is [secret]"]


async def test_a_new_token_is_hidden_in_the_log(scene: Scene, proxy: Proxy) -> None:
    """F-011, L-050: a homeserver repeats it in what it says; so the first one, of a first start."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    for n in range(2):
        if n:
            expire(proxy)
            await daemon.logged("login renewed")
        token = kept_login(daemon)["access_token"]
        told = {"errcode": "M_UNKNOWN", "error": f"try {n}: who has {token}?"}
        proxy.before = lambda r, told=told: Answer(403, told) if r.path.endswith("/sync") else None  # type: ignore[misc]  # mypy sees no default
        await daemon.logged(f"try {n}: who has")
        assert not any(token in line for line in daemon.log)
        proxy.before = pass_before


@pytest.mark.slow
@EITHER
async def test_without_a_password_it_ends_with_words_that_throw_no_keys_away(
    scene: Scene, refusal: Answer, homeserver: Homeserver, proxy: Proxy
) -> None:
    """F-011, F-061: a new token of the same device goes on with the keys that are there."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=proxy.url)
    await echoed_each(ann, chat, "one")
    assert await daemon.stop() == 0
    login = kept_login(daemon)
    with_token(daemon, login["access_token"])
    await daemon.start()
    expire(proxy, refusal)
    await ann.send(chat, "two")
    assert await daemon.ended() == 2
    told = daemon.log[-1]
    kept = (
        ("stay good", login["device_id"], "matrix.password")
        if refusal is SOFT
        else ("is lost", "a new matrix.access_token of this same device, or matrix.password")
    )
    assert all(word in told for word in kept)
    assert "logout" not in told
    assert "reset-crypto" not in told
    assert "Traceback" not in "\n".join(daemon.log)
    code, checked = await daemon.command("check")
    assert (code, kept[0] in checked) == (1, True)

    proxy.before = pass_before
    name = daemon.user_id[1:].partition(":")[0]
    fresh = await asyncio.to_thread(homeserver.login, name, login["device_id"])
    with_token(daemon, fresh.access_token)
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
    assert kept_login(daemon) == {**login, "access_token": fresh.access_token}


@pytest.fixture
async def wire() -> AsyncIterator[Proxy]:
    async with Proxy("http://127.0.0.1:1") as proxy:
        yield proxy


def answers(said: dict[str, str]) -> Callable[[Request], Action]:
    def answer(request: Request) -> Action:
        return Answer(200, said if request.path.endswith("/login") else {})

    return answer


async def test_a_login_of_another_device_is_not_used_with_our_keys(
    wire: Proxy, tmp_path: Path
) -> None:
    """F-011: it is ended again, and ours is kept as it was."""
    save(tmp_path, SESSION)
    matrix = Matrix(
        homeserver=wire.url, user_id=MATRIX.user_id, owner=MATRIX.owner, password=MATRIX.password
    )
    other = {"user_id": SESSION.user_id, "device_id": "OTHER", "access_token": "new"}
    wire.before = answers(other)
    with pytest.raises(LoginRefused, match=r"BOTDEVICE.*keep the data folder"):
        await renewed(matrix, tmp_path, SESSION, LoginExpired())
    assert len(wire.seen("POST", "/logout")) == 1
    assert load(tmp_path) == SESSION
    wire.before = answers(other | {"device_id": SESSION.device_id})
    assert (await renewed(matrix, tmp_path, SESSION, LoginExpired())).access_token == "new"
    assert load(tmp_path) == Session("@bot:test", "BOTDEVICE", "new", "a pickle key")


KEYS = {"ed25519:BOTDEVICE": "ours", "curve25519:BOTDEVICE": "ours too"}


@pytest.mark.parametrize(
    ("served", "goes_on"),
    [({"BOTDEVICE": {"keys": KEYS}}, True), ({"BOTDEVICE": {"keys": {}}}, False), ({}, False)],
    ids=["its keys are served", "others are", "none are"],
)
async def test_a_device_that_was_signed_out_is_not_brought_back(
    served: dict[str, object], goes_on: bool, wire: Proxy, tmp_path: Path
) -> None:
    """F-061: one login, which is ended again; all who were refused hear of it, and try nothing."""
    save(tmp_path, SESSION)
    matrix = Matrix(
        homeserver=wire.url, user_id=MATRIX.user_id, owner=MATRIX.owner, password=MATRIX.password
    )
    login = {"user_id": SESSION.user_id, "device_id": SESSION.device_id, "access_token": "new"}

    def answer(request: Request) -> Action:
        if request.path.endswith("/sync"):
            return None if nio.access_token == "new" else HARD
        said: dict[str, object] = {"device_keys": {SESSION.user_id: served}}
        return Answer(200, login if request.path.endswith("/login") else said)

    async def renew(why: LoginRefused) -> str:
        assert isinstance(why, LoginEnded)
        return (await renewed(matrix, tmp_path, SESSION, why, KEYS)).access_token

    nio = RenewingClient(wire.url, renew=renew)
    nio.access_token, wire.before = "old token", answer
    try:
        asked = [call(nio, "GET", "/_matrix/client/v3/sync") for _ in range(3)]
        heard = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await nio.close()
    told = [isinstance(each, LoginRefused) and "matrix logout" in str(each) for each in heard]
    assert told == [not goes_on] * 3
    assert len(wire.seen("POST", "/login")) == 1
    assert len(wire.seen("POST", "/logout")) == (0 if goes_on else 1)
    now = load(tmp_path)
    assert now is not None
    assert now.access_token == ("new" if goes_on else "old token")


async def test_all_who_were_refused_share_one_new_login(wire: Proxy) -> None:
    """F-011: and a homeserver that ends each login at once is an outage, not a reason to go."""
    renewals: list[str] = []

    async def renew(_why: LoginRefused) -> str:
        await asyncio.sleep(0)
        renewals.append(f"token {len(renewals)}")
        return renewals[-1]

    refused = 0

    def five_times(_request: Request) -> Action:
        nonlocal refused
        refused += 1
        return SOFT if refused <= 5 else Answer(200, {})

    wire.before = five_times
    nio = RenewingClient(wire.url, renew=renew)
    nio.access_token = "old"
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(call(nio, "GET", "/_matrix/client/v3/sync"))
        assert (renewals, nio.access_token) == (["token 0"], "token 0")
        wire.before = lambda _request: SOFT
        with pytest.raises(HomeserverUnavailable, match="just given"):
            await call(nio, "GET", "/_matrix/client/v3/sync")
    finally:
        await nio.close()


@pytest.fixture
def short_lived(blank: Path, tmp_path: Path) -> Iterator[Homeserver]:
    with Homeserver(tmp_path / "synapse", database=blank) as server:
        yield server


@pytest.mark.slow
async def test_a_homeserver_whose_sessions_end_after_a_while(
    short_lived: Homeserver, python: Interpreter, model: ModelServer, tmp_path: Path
) -> None:
    """F-011: Synapse's `session_lifetime`; ann logged in before it was set."""
    login: Login = await asyncio.to_thread(short_lived.user, "ann")
    await asyncio.to_thread(short_lived.stop)
    settings = tmp_path / "synapse" / "homeserver.yaml"
    limited = json.loads(settings.read_text()) | {"session_lifetime": "5s"}
    settings.write_text(json.dumps(limited))
    await asyncio.to_thread(short_lived.start)
    names = iter(["bot"])
    async with (
        MatrixUser(short_lived.url, login, tmp_path / "ann") as ann,
        Scene(short_lived, python, lambda _: next(names), tmp_path, model.url) as scene,
    ):
        daemon = await scene.bot(ann)
        chat = await scene.room(ann, daemon, encrypted=True)
        first = kept_login(daemon)
        for n in range(8):
            await ann.send(chat, f"word {n}")
            await ann.wait_for(chat, lambda m, n=n: m.body == f"echo: word {n}")  # type: ignore[misc]  # mypy sees no default
            await asyncio.sleep(1)
        renewals = [line for line in daemon.log if "login renewed" in line]
        assert renewals
        assert kept_login(daemon)["device_id"] == first["device_id"]
        answered = await said(ann, chat, daemon.user_id)
        assert answered == [f"echo: word {n}" for n in range(8)]
