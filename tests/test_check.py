"""`wintermute check` tries what it calls ok: the mistakes of a first day, each with what to do."""

import asyncio
import json
import signal

import pytest

from tests.world.bot import Bot, Json
from tests.world.homeserver import Homeserver
from tests.world.model import Fail, ModelServer
from tests.world.proxy import Action, Answer, Held, Proxy, Request
from tests.world.scene import NewBot, NewPerson
from tests.world.typist import interviewed, models_listed
from tests.world.user import CLIENT, devices_of

FRIEND = "allowed user @nobody:wintermute.test"
NOBODY, ELSEWHERE = "@nobody:wintermute.test", "@you:elsewhere.example"


async def check_lines(daemon: Bot, *words: str) -> tuple[int, dict[str, str]]:
    """The exit code of `check`, and its lines by their names."""
    code, said = await daemon.command("check", *words)
    return code, {line[6:].partition(": ")[0]: line for line in said.splitlines()}


MATRIX: dict[str, tuple[Json, str, str]] = {
    "nothing wrong": ({}, "login", "ok    login: the password of @bot"),
    "a wrong password": ({"password": {"file": "wrong"}}, "login", "fail  login: the homeserver r"),
    "a misspelt owner": ({"owner": NOBODY}, "owner", "fail  owner: the homeserver has no account"),
    "an owner elsewhere": ({"owner": ELSEWHERE}, "owner", "warn  owner: not tried"),
    "a misspelt friend": (
        {"allowed_users": [NOBODY]},
        FRIEND,
        f"warn  {FRIEND}: the homeserver has",
    ),
}


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("mistake", MATRIX)
async def test_accounts_are_tried_with_a_device_that_is_logged_out_again(
    homeserver: Homeserver, person: NewPerson, bot: NewBot, mistake: str
) -> None:
    """U-004: `fail` is for what our own homeserver denies, exit code 1; what is not there yet is not ok."""
    changes, name, said = MATRIX[mistake]
    daemon = await bot(await person("ann"), start=False, matrix=changes)
    login = homeserver.user(daemon.user_id[1:].partition(":")[0])
    (daemon.config.parent / "wrong").write_text("open sesame, please")
    code, found = await check_lines(daemon)
    assert (code, found[name][: len(said)]) == (int(said.startswith("fail")), said)
    assert found["encryption store"].startswith("none  encryption store: not tried")
    assert devices_of(homeserver, login) == {login.device_id}
    assert not (daemon.data / "matrix").exists()


async def test_a_kept_login_is_asked_and_the_password_only_on_request(
    homeserver: Homeserver, person: NewPerson, bot: NewBot, proxy: Proxy
) -> None:
    """U-004, U-006: and a second bot on the account is noticed."""
    daemon = await bot(await person("ann"), via=proxy.url)
    assert await daemon.stop() == 0
    code, found = await check_lines(daemon)
    assert (code, "on device" in found["login"], "account" in found) == (0, True, False)
    assert len(proxy.seen("POST", "/login")) == 1
    (daemon.config.parent / "password").write_text("changed since")
    assert (await check_lines(daemon))[0] == 0
    code, found = await check_lines(daemon, "--login")
    assert (code, "refuses the login" in found["login"]) == (1, True)
    login = homeserver.login(daemon.user_id[1:].partition(":")[0])
    settings = json.loads(daemon.config.read_text())
    settings["matrix"] |= {"access_token": {"file": "token"}, "password": None}
    daemon.config.write_text(json.dumps(settings))
    (daemon.config.parent / "token").write_text(login.access_token)
    code, found = await check_lines(daemon)
    assert (code, "another device called Wintermute" in found["account"]) == (0, True)
    homeserver.request("POST", f"{CLIENT}/logout", {}, login.access_token)
    code, found = await check_lines(daemon)
    assert (code, "of this same device" in found["login"]) == (1, True)


@pytest.mark.slow
async def test_ctrl_c_in_the_trial_of_a_password_leaves_no_device(
    homeserver: Homeserver, person: NewPerson, bot: NewBot, proxy: Proxy
) -> None:
    """U-004: it ends, also where the password is refused."""
    daemon = await bot(await person("ann"), via=proxy.url, start=False)
    login = homeserver.login(daemon.user_id[1:].partition(":")[0])
    before = devices_of(homeserver, login)

    def interrupted(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/login") or request.method != "POST":
            return None
        bell = asyncio.Event()
        typist.process.send_signal(signal.SIGINT)
        asyncio.get_running_loop().call_later(0.5, bell.set)  # Ctrl-C has arrived by then
        return Held(bell, Answer(status, body))

    proxy.after = interrupted
    for password in (None, "wrong"):
        if password:
            (daemon.config.parent / "password").write_text(password)
        async with interviewed("--config", daemon.config, "check") as typist:
            assert await typist.ended() == 1, typist.shown
        assert "homeserver" not in typist.shown  # no findings
    assert len(proxy.seen("POST", "/login")) == 2
    assert devices_of(homeserver, login) == before


@pytest.mark.parametrize("way", ["well-known", "redirect"])
async def test_an_address_that_leads_elsewhere_is_named(
    homeserver: Homeserver, person: NewPerson, bot: NewBot, proxy: Proxy, way: str
) -> None:
    """U-004: the name of a server in place of its address, http in place of https."""
    path = {"well-known": "/.well-known/matrix/client", "redirect": "/_matrix/client/versions"}[way]
    body, there = {"m.homeserver": {"base_url": homeserver.url}}, f"{homeserver.url}{path}"
    answer = Answer(200, body) if way == "well-known" else Answer(301, headers={"Location": there})
    proxy.before = lambda request: answer if request.path == path else Answer(404, b"<html>")
    code, found = await check_lines(await bot(await person("ann"), via=proxy.url, start=False))
    said = f"leads to {homeserver.url} -> write that as matrix.homeserver"
    assert (code, said in found["homeserver"]) == (1, True)


@pytest.mark.parametrize(
    ("path", "name", "key", "said"),
    [
        ("", "qwen3:8b", "", "-> write base_url: {url}/v1"),
        ("/v1", "qwen3", "", "-> write model: qwen3:8b"),
        ("/v1", "qwen3:8b", "AIzaForeign", "refuses this key"),
    ],
)
async def test_a_model_that_is_written_wrong_is_named_as_it_should_be(
    person: NewPerson, bot: NewBot, path: str, name: str, key: str, said: str
) -> None:
    """U-004: `/v1` or a tag that is missing, another provider's key; also of a model without a role."""
    async with ModelServer(rules=False) as server, Proxy(server.url[:-3]) as door:
        server.keyed(lambda seen: Fail(404) if seen.body["model"] != "qwen3:8b" else None)

        def lists(request: Request) -> Action:
            if key and request.authorization == f"Bearer {key}":
                return Answer(401)
            return models_listed(["qwen3:8b"]) if request.path == "/v1/models" else None

        door.before = lists
        backend: Json = {"base_url": f"{door.url}{path}", "model": name}
        backend |= {"api_key": {"file": "key"}} if key else {}
        llm: Json = {"backends": {"scripted": backend, "spare": backend}, "max_retries": 0}
        llm |= {"roles": {"base": ["scripted"]}}
        daemon = await bot(await person("ann"), start=False, llm=llm)
        (daemon.config.parent / "key").write_text(key)
        code, found = await check_lines(daemon)
        for line in (found["model scripted"], found["model spare"]):
            assert (code, line[:4], said.format(url=door.url) in line) == (1, "fail", True)
