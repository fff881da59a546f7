"""`wintermute init` in a terminal: it asks, tries each answer, and leaves nothing half made."""

import asyncio
import json
import signal
import ssl
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet
from tests.world.homeserver import Homeserver, free_port
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.proxy import Action, Answer, Hang, Proxy, Request
from tests.world.scene import NewName, NewPerson
from tests.world.typist import Asked, interviewed, models_listed
from tests.world.user import devices_of
from tests.world.warm import Interpreter
from wintermute.config.lock import hold
from wintermute.matrix.kept_login import Session, save

KEY, FOREIGN, SAID = "sk-right", "sk-or-another", "gpt-5-mini"


def lists(request: Request) -> Action:
    """Another server of models below each path."""
    if "/matrix" in request.path or "/_matrix" in request.path:
        return Answer(302, headers={"Location": request.path})
    door, _, path = request.path[1:].partition("/")
    is_known = request.authorization == f"Bearer {KEY}"
    if path not in ("models", "v1/models"):
        return Answer(401) if door == "open" and not is_known else None
    if door == "keyed":
        if path == "models":
            return Answer(404)
        return models_listed([SAID]) if is_known else Answer(401)
    answers = {
        "none": models_listed(()),
        "open": models_listed([SAID]),
        "page": Answer(200, b"<html>"),
        "moved": Answer(302, headers={"Location": "https://elsewhere.example/v1"}),
        "silent": Answer(500),
        "many": models_listed([*(f"m{n}" for n in range(400)), "qwen3:8b", "qwen3:14b"]),
    }
    is_there = path == "v1/models" or door not in ("many", "open")
    return answers.get(door) if is_there else Answer(404)


def speaks(seen: Seen) -> Step:
    """Calls the tool of a trial, unless the model is the first of many; else it talks."""
    if "Call the tool" not in seen.last_user:
        return Text("good day")
    return Text("no") if seen.body["model"] == "m0" else Calls((Use("done", {"answer": "ok"}),))


async def test_each_answer_is_tried_and_the_bot_that_comes_of_them_answers(
    homeserver: Homeserver, fresh: NewName, tmp_path: Path, person: NewPerson, python: Interpreter
) -> None:
    """U-001, U-003: wrong server, password, owner, model servers and models; then right ones."""
    ann, name, folder = await person("ann"), fresh("bot"), tmp_path / "my home"
    login, url = homeserver.user(name), homeserver.url
    async with (
        ModelServer(rules=False, default=speaks) as server,
        Proxy(server.url.removesuffix("/v1")) as door,
        interviewed("init", folder) as typist,
    ):
        door.before = lists
        for asked, typed, said in (
            ("Homeserver", "", "needed here"),
            ("Homeserver", "no such name!", "is no address"),
            ("Homeserver", f"127.0.0.1:{free_port()}", "nothing answers at http://127.0.0.1:"),
            ("Homeserver", server.url, "check matrix.homeserver"),
            ("Homeserver", door.url, "redirects in a circle"),
            ("Homeserver", url.removeprefix("http://"), f"{url} answers"),
            ("Account", "My Bot", "is no Matrix id: write one such as @bot:example.org"),
            ("Account", name.upper(), f"small letters, such as @{name}"),
            ("Account", "", ""),
            ("Password", name, "refuses the login"),
            ("Account", "", ""),
            ("Password", login.password, f"Logged in as {login.user_id}"),
            ("Your own", "ann@example.org", "is no Matrix id: write one such as @you:example.org"),
            ("Your own", ann.user_id.replace("ann", "Ann"), f"such as {ann.user_id}"),
            ("Your own", login.user_id, "write your own account"),
            ("Your own", "nobody", "wintermute.test has no account @nobody:wintermute.test"),
            ("Your own", ann.user_id, "exists"),
            ("Model server", f"127.0.0.1:{free_port()}/v1", "nothing answers"),
            ("Model server", "models.invalid/v1", "nothing answers at https://models.invalid/v1"),
            ("Model server", f"{door.url}/none", "has no models"),
            ("Model server", f"{door.url}/page", "without a list of models"),
            ("Model server", f"{door.url}/moved", "redirects to https://elsewhere.example/v1"),
            ("Model server", f"{door.url}/keyed", "wants a key"),
            ("API key", FOREIGN, "refuses this key"),
            ("Model server", f"{door.url}/open", "has 1 model: gpt-5-mini"),
            ("Model", "gpt-4", "gpt-4 matches none of the models there: choose one of gpt-5-mini"),
            ("Model", "", "wants a key"),
            ("API key", FOREIGN, "has 1 model"),
            ("Model", "", "refuses this key"),
            ("API key", KEY, "has 1 model"),
            ("Model", "", "Using gpt-5-mini."),
        ):
            await typist.answers(asked, typed, said)
        assert await typist.ended() == 0, typist.shown
        is_short_and_safe(folder, typist, {"password": login.password, "api-key": KEY})
        kept = json.loads((folder / "data/matrix/session.json").read_text())["device_id"]
        assert devices_of(homeserver, login) == {login.device_id, kept}
        async with interviewed("check", "--config", folder / "config.yaml") as first:
            assert await first.ended() == 0, first.shown
        next_steps = typist.shown.partition("made  ")[2]
        assert (next_steps.count("\n") <= 10, login.user_id in next_steps) == (True, True)
        async with Bot(folder / "config.yaml", python) as daemon:
            await daemon.until(lambda: any("in no room yet: invite" in line for line in daemon.log))
            chat = await meet(ann, login.user_id, encrypted=True)
            await ann.send(chat, "hello")
            await ann.wait_for(chat, lambda m: m.body == "good day")
        assert devices_of(homeserver, login) == {login.device_id, kept}


def is_short_and_safe(folder: Path, typist: Asked, secrets: dict[str, str]) -> None:
    """Look at what `init` wrote (U-003) and told to type, and for secrets in it."""
    text = (folder / "config.yaml").read_text()
    assert f"wintermute run --config '{folder}/config.yaml'" in typist.shown
    assert text.count("\n") <= 40
    assert max(len(line.partition("# ")[2].split()) for line in text.splitlines()[2:]) <= 12
    for secret, value in secrets.items():
        assert (folder / secret).read_text() == value
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600
        assert value not in text + typist.shown


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGHUP, None], ids=["^C", "gone", "EOF"])
@pytest.mark.parametrize("at", [0, 2, 3, 6])
@pytest.mark.quick(every=4)
async def test_whoever_leaves_at_a_question_leaves_nothing_half_made(
    homeserver: Homeserver, fresh: NewName, tmp_path: Path, way: signal.Signals | None, at: int
) -> None:
    """U-001: no folder, no file, and no device of the bot."""
    login = homeserver.user(fresh("bot"))
    async with ModelServer(rules=False) as server, Proxy(server.url[:-3]) as door:
        door.before = lists
        answers = (
            ("Homeserver", homeserver.url, "answers"),
            ("Account", login.user_id, ""),
            ("Password", login.password, "Logged in"),
            ("Your own", "@ann:elsewhere.example", "I cannot ask elsewhere.example"),
            ("Your own", "@ann:elsewhere.example", "was not checked"),
            ("Model server", f"{door.url}/many", "has 402 models: m0, m1, m2"),
            ("Model", "", "needed here"),
        )
        async with interviewed("init", tmp_path / "home") as typist:
            for asked, typed, said in answers[:at]:
                await typist.answers(asked, typed, said)
            await typist.sees(answers[at][0])
            await typist.sees(": ")
            if way is None:
                typist.type("\x04")
            assert await typist.ended(way) in (1, -(way or 1))  # or it came once more at the end
            await typist.sees("Aborted!")
    assert ("was logged out again" in typist.shown) == (at > 2)
    assert devices_of(homeserver, login) == {login.device_id}
    assert not (tmp_path / "home").exists()
    assert "Traceback" not in typist.shown


async def test_a_homeserver_without_passwords_gets_a_token_made_for_the_bot(
    homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> None:
    """U-005, U-001: what is not the bot's own device is refused, and no token is logged out."""
    name, flows = fresh("bot"), {"flows": [{"type": "m.login.sso"}]}
    login = homeserver.user(name)
    there = {
        "/login": Answer(200, flows),
        "/.well-known/matrix/client": Answer(200, {"m.homeserver": {"base_url": homeserver.url}}),
    }
    well_known = proxy.url.removeprefix("http://")
    proxy.before = lambda r: next((a for path, a in there.items() if r.path.endswith(path)), None)
    async with interviewed("init", tmp_path / "home") as typist:
        await typist.answers("Homeserver", well_known, f"{homeserver.url} answers")
        await typist.ended(signal.SIGINT)
    del there["/.well-known/matrix/client"]
    async with interviewed("init", tmp_path / "home", "--homeserver", proxy.url) as typist:
        await typist.sees("personal access token")
        await typist.sees("Do not copy a token out of a client")
        await typist.answers("Account", name, "")
        await typist.answers("Access token", "syt_wrong", "access_token")
        await typist.answers("Account", "", "")
        await typist.answers("Access token", login.access_token, f"device {login.device_id}")
        typist.type("\x04")
        assert await typist.ended() == 1
    assert devices_of(homeserver, login) == {login.device_id}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("data/matrix/session.json", "replace the login of @other:wintermute.test"),
        ("data/wintermute.lock", "which a running Wintermute uses"),
        ("password", "init cannot replace"),
    ],
)
async def test_a_folder_in_the_way_is_refused_first(tmp_path: Path, made: str, said: str) -> None:
    """U-001: a login of another account, a folder in use, somebody's file."""
    file = tmp_path / made
    file.parent.mkdir(parents=True, exist_ok=True)
    login = Session("@other:wintermute.test", "D", "t", "p")
    if "matrix" in made:
        save(file.parent, login)
    file.touch()
    with hold(file.parent) if "lock" in made else nullcontext():
        async with interviewed("init", tmp_path) as typist:
            assert await typist.ended() == 2
            await typist.sees(said)
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.slow
async def test_a_wrong_certificate_and_a_silent_server_are_named(
    proxy: Proxy, tmp_path: Path
) -> None:
    """U-001."""
    context, made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), tmp_path / "pem"
    words = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout {made} -out {made}.crt"
    await (await asyncio.create_subprocess_shell(words, stderr=asyncio.subprocess.DEVNULL)).wait()
    context.load_cert_chain(f"{made}.crt", made)
    proxy.before = lambda _: Hang()
    async with (
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server,
        interviewed("init", tmp_path / "home") as typist,
    ):
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await typist.answers("Homeserver", address, "certificate")
        await typist.answers("Homeserver", proxy.url, "gave no answer in time")
