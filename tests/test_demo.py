"""`wintermute demo`: real processes, a real homeserver, nothing needed from outside (L-083)."""

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.full_config import full_config
from tests.world.clock import WITHIN
from tests.world.current import CurrentClient, what_is_missing
from tests.world.homeserver import Homeserver, Login
from tests.world.processes import descendants, survivors
from tests.world.scene import NewName, NewPerson
from tests.world.user import Message
from wintermute.config.read import environment, read_config
from wintermute.config.schema import Matrix, Secret
from wintermute.demo.bot import configured, find_model, local_zone
from wintermute.demo.homeserver import DemoSecrets, free_port, recovery_key
from wintermute.demo.practice_server import SERVED_NAME, PracticeModel
from wintermute.demo.terminal_user import LIVE, heard, present
from wintermute.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0
HELD = "starting a private Matrix homeserver"
READY = "in an encrypted room: type"
AT_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Ctrl-C on it is a signal while the line is shown, and a key while it is typed."""
FOR_CLIENTS = (
    b"recovery key at its first login",
    b"cannot read older messages",
    b"nheko, type a space",
    b"bot/config.yaml matrix verify",
)
OPENAI = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "wintermute", "demo", "--practice", *map(str, words)]


def surroundings(**more: str) -> dict[str, str]:
    """This environment without anything that names a model."""
    kept = {name: value for name, value in environment().items() if name not in OPENAI}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def demo(*words: str | Path, typed: str = "") -> list[str]:
    """The dialogue of a demo that must end well: each message from its first line on."""
    done = subprocess.run(
        command(*words),
        input=typed,
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE,
        env=surroundings(),
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return re.split(r"^(?=(?:you|wintermute)> )", done.stdout, flags=re.MULTILINE)[1:]


@contextmanager
def running(folder: Path, *, since: str = READY) -> Iterator[subprocess.Popen[str]]:
    """A demo with nobody typing, when it has said this: by default, that one can."""
    with subprocess.Popen(
        command("--folder", folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(),
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if since in line:
                    break
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a demo ended and what it complained of; its standard input stays open till then."""
    assert process.stderr is not None
    code = process.wait(PATIENCE)
    return code, process.stderr.read()


def homeserver_rows(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{folder}/homeserver/homeserver.db?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_dialogue_goes_through_an_encrypted_room_and_goes_on(tmp_path: Path) -> None:
    """L-083, X-014."""
    script = tmp_path / "script.txt"
    script.write_text(
        "remember that the garage has 4711 tiles\n\nwhat do you know about the garage?\n"
        "add a task: water the plants\n/tasks\n/memory\n"
    )
    folder = tmp_path / "demo"
    said = demo("--folder", folder, "--script", script)
    expected = [
        "you> remember",
        "wintermute> (.|\n)*practice model",
        "wintermute> ",
        "you> what do",
    ]
    expected += ["wintermute> (.|\n)*4711", "you> add a task", "wintermute> .*water the plants"]
    expected += ["you> /tasks", "wintermute> (.|\n)*water the plants", "you> /memory"]
    expected += ["wintermute> .*garage has 4711 tiles"]
    for line, wanted in zip(said, expected, strict=True):
        assert re.match(wanted, line), said

    types = (  # an answer that grew is one message
        "SELECT type, count(*) FROM events WHERE type LIKE 'm.room.%' AND event_id NOT IN"
        " (SELECT event_id FROM event_relations WHERE relation_type = 'm.replace') GROUP BY type"
    )
    counts = dict(homeserver_rows(folder, types))
    assert "m.room.message" not in counts
    assert (counts["m.room.encrypted"], counts["m.room.encryption"]) == (len(said), 1)

    again = demo("--folder", folder, typed="what do you know about the garage?\n/tasks")
    assert [line.split()[0] for line in again] == ["you>", "wintermute>"] * 2, again  # no greeting
    assert "4711" in again[1]
    assert "water the plants" in again[3]
    counts = dict(homeserver_rows(folder, types))
    assert (counts["m.room.encrypted"], counts["m.room.create"]) == (len(said) + 4, 1)
    assert "m.room.message" not in counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_all_of_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to the whole group: the children are in none that would hear it."""
    with running(tmp_path / "demo") as process:
        children = descendants(process.pid)
        assert len(children) >= 2  # a search may have one of its own at work
        assert process.pid not in {os.getpgid(pid) for pid in children}
        os.killpg(process.pid, number)
        assert ended(process) == (0, "")
        assert survivors(children, within=0) == set()


@pytest.mark.slow
def test_nothing_is_left_running_when_the_demo_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "demo") as process:
        children = descendants(process.pid)
        assert len(children) >= 2  # a search may have one of its own at work
        process.kill()
        process.wait()
        assert survivors(children, within=10) == set()


@pytest.mark.slow
def test_a_daemon_that_dies_ends_the_demo_and_is_quoted(tmp_path: Path) -> None:
    with running(tmp_path / "demo") as process:
        children = descendants(process.pid)
        daemon = next(
            pid
            for pid in children
            if b"wintermute\0--config" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(daemon, signal.SIGKILL)
        code, errors = ended(process)
        assert code == 1
        assert errors.startswith("wintermute: the daemon ended (-9); its last lines:\n")
        assert "ready device=" in errors
        assert survivors(children, within=0) == set()


def test_a_person_types_at_a_terminal_and_gets_it_back_as_it_was(tmp_path: Path) -> None:
    """U-021."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(
        [sys.executable, "-c", AT_THE_TERMINAL, *command("--folder", tmp_path / "demo")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=surroundings(TERM="xterm"),
        start_new_session=True,
    ) as process:
        try:
            screen_until(ours, b"/quit or Ctrl-D ends", *FOR_CLIENTS, b"you>")
            os.write(ours, b"/help\r")
            screen_until(ours, b"wintermute> ", b"\x1b[36m/undo\x1b[0m")
            os.write(ours, b"exit\r")
            while process.poll() is None:
                screen_until(ours)
            assert process.returncode == 0
        finally:
            process.kill()
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def screen_until(terminal: int, *wanted: bytes) -> None:
    """Be the terminal until all of this was written to it; say where the cursor is, if asked.

    With nothing wanted: for a moment.
    """
    seen = b""
    while not seen or not all(text in seen for text in wanted):
        readable, _, _ = select.select([terminal], [], [], PATIENCE if wanted else 0.1)
        if not readable:
            assert not wanted, seen
            return
        written = os.read(terminal, 65536)
        seen += written
        if b"\x1b[6n" in written:
            os.write(terminal, b"\x1b[20;1R")


@pytest.mark.slow
def test_without_its_homeserver_the_demo_says_what_to_install(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in Path(pytest.__file__).parent.parent.iterdir():
        if not package.name.startswith("synapse"):
            (packages / package.name).symlink_to(package)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "wintermute", "demo"],
        capture_output=True,
        check=False,
        env={"PATH": os.defpath, "PYTHONPATH": f"{packages}:{ROOT}"},
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE,
    )
    line = "wintermute: the demo needs its homeserver: pip install 'wintermute[demo]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.slow
def test_one_folder_holds_one_demo(tmp_path: Path) -> None:
    with running(tmp_path / "demo", since=HELD) as process:
        second = subprocess.run(
            command("--folder", tmp_path / "demo"),
            capture_output=True,
            check=False,
            env=surroundings(),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
        )
        assert second.returncode == 1
        assert f"another Wintermute (process {process.pid})" in second.stderr


async def test_the_model_of_the_environment_goes_before_one_that_happens_to_run() -> None:
    async with PracticeModel() as model:
        surrounding = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "very secret"}
        asked = await find_model(None, surrounding)
        named = await find_model(None, surrounding | {"OPENAI_MODEL": "mine"})
    assert asked is not None
    assert named is not None
    assert asked.llm["backends"]["demo"] == {
        "base_url": model.url,
        "model": SERVED_NAME,
        "api_key": {"env": "OPENAI_API_KEY"},
    }
    assert named.llm["backends"]["demo"]["model"] == "mine"
    assert "secret" not in repr(asked)


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("http://127.0.0.1:{port}/v1", "names no models: check OPENAI_BASE_URL"),
        ("localhost", "OPENAI_BASE_URL must be text like http://"),
    ],
)
async def test_an_address_without_a_model_is_told_to_the_person(address: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        await find_model(None, {"OPENAI_BASE_URL": address.format(port=free_port())})


def test_a_configured_model_is_taken_and_its_key_stays_out_of_files(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = full_config().replace("api_key: null", "api_key: {env: MY_KEY}")
    file.write_text(text)
    config = read_config(file, {"WINTERMUTE_PASSWORD": "x", "MY_KEY": "very secret"})
    found = configured(config)
    assert "very secret" not in json.dumps(found.llm) + repr(found)
    matrix = {"homeserver": "http://h", "user_id": "@a:b", "owner": "@c:d"}
    plain = {"matrix": matrix | {"password": {"env": "PASSWORD"}}, "llm": found.llm}
    file.write_text(json.dumps(plain))
    assert read_config(file, {**found.environment, "PASSWORD": "x"}).llm == config.llm


@pytest.mark.parametrize(
    ("localtime", "zone"),
    [
        ("/usr/share/zoneinfo/Europe/Berlin", "Europe/Berlin"),
        ("/usr/share/zoneinfo/UTC", "UTC"),
        ("/usr/share/zoneinfo/No/Where", "UTC"),
        ("/usr/share/zoneinfo/../secret", "UTC"),
        ("/etc/localtime", "UTC"),
    ],
)
def test_the_zone_is_that_of_this_machine(localtime: str, zone: str) -> None:
    assert local_zone(Path(localtime)) == zone


@pytest.mark.parametrize(
    ("content", "text", "replaces"),
    [
        ({"msgtype": "m.text", "body": "a\x1b[2Jb"}, "a[2Jb", None),
        (
            {
                "msgtype": "m.text",
                "body": "* new",
                "m.new_content": {"body": "new"},
                "m.relates_to": {"rel_type": "m.replace", "event_id": "$old"},
            },
            "new",
            "$old",
        ),
        ({"msgtype": "m.text", "body": "half a", LIVE: {}}, "", None),
        (
            {
                "body": "* one",
                "m.new_content": {"body": "one\n- two\n\n\u2699 reading", LIVE: {}},
                "m.relates_to": {"rel_type": "m.replace", "event_id": "$old"},
            },
            "one\n- two",
            "$old",
        ),
    ],
)
def test_no_message_steers_a_screen(
    content: dict[str, Any], text: str, replaces: str | None
) -> None:
    message = heard(
        {"type": "m.room.message", "event_id": "$e", "sender": "@b:c", "content": content}
    )
    assert message is not None
    assert (message.text, message.replaces) == (text, replaces)


P = ParamSpec("P")
T = TypeVar("T")


class LateExecutor(ThreadPoolExecutor):
    """As on a busy machine: whatever it is given waits for its turn."""

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        super().submit(Event().wait, 0.2)
        return super().submit(fn, *args, **kwargs)


@pytest.mark.slow
async def test_what_was_heard_before_the_end_is_not_heard_again_at_the_next_start(
    homeserver: Homeserver, person: NewPerson, fresh: NewName, tmp_path: Path
) -> None:
    """A demo ends with the answer to its last line: its next start showed that answer again."""
    asyncio.get_running_loop().set_default_executor(LateExecutor())
    ann, you = await person("ann"), homeserver.user(fresh("you"))
    room = await ann.create_room([you.user_id])
    join = f"/_matrix/client/v3/join/{room}"
    await asyncio.to_thread(homeserver.request, "POST", join, {}, you.access_token)
    password = Secret(you.password)
    me = Matrix(
        homeserver=homeserver.url, user_id=you.user_id, password=password, owner=you.user_id
    )
    async with present(me, tmp_path / "you") as at_terminal, asyncio.TaskGroup() as group:
        listening = group.create_task(at_terminal.listen())
        said = await ann.send(room, "good night")
        assert (await asyncio.wait_for(at_terminal.heard.get(), WITHIN)).event_id == said
        listening.cancel()
    async with present(me, tmp_path / "you") as at_terminal:
        assert at_terminal.heard.empty()


def test_a_folder_keeps_its_secrets_for_its_owner(tmp_path: Path) -> None:
    kept = DemoSecrets.of(tmp_path)
    kept.save(tmp_path)
    assert DemoSecrets.of(tmp_path) == kept
    assert (tmp_path / "demo.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "demo.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="choose another folder"):
        DemoSecrets.of(tmp_path)


@pytest.mark.slow
def test_nobody_left_to_read_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    """L-082: as in `wintermute demo --script FILE | head -1`."""
    script = tmp_path / "lines"
    script.write_text("hello\n")
    with subprocess.Popen(
        command("--script", script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 0


def logged_in(url: str, user: str, password: str) -> Login:
    """One more session of somebody in a demo."""
    body = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": user},
        "password": password,
    }
    with urlopen(f"{url}/_matrix/client/v3/login", json.dumps(body).encode()) as answer:
        made = json.load(answer)
    return Login(made["user_id"], made["access_token"], made["device_id"], password)


@pytest.mark.slow
async def test_what_is_told_in_passing_is_known_until_its_deletion(tmp_path: Path) -> None:
    """M-025, M-030: as a newcomer sees it, with the normal demo and a graphical client."""
    if what_is_missing():
        pytest.skip(what_is_missing())
    with running(tmp_path, since="  recovery") as process:
        kept = DemoSecrets(**json.loads((tmp_path / "demo.json").read_text()))
        url, room = f"http://127.0.0.1:{kept.port}", str(kept.room_id)
        login = logged_in(url, "you", kept.password)
        async with CurrentClient(url, login, tmp_path / "client") as client:

            def whole() -> list[Message]:
                said = client.messages(room, "@wintermute:localhost")
                return [m for m in said if LIVE not in m.content.get("m.new_content", m.content)]

            async def ask(line: str, answers: int = 1) -> str:
                before = len(whole())
                await client.send(room, line)
                await client.until(lambda: len(whole()) >= before + answers)
                return whole()[-1].body

            async def ask_until(line: str, wanted: str) -> str:
                for _ in range(200):
                    if wanted in (answer := await ask(line)):
                        break
                    await asyncio.sleep(2)  # else it would be taken for a program (F-048)
                return answer

            await client.until_so(lambda: client.knows(login.user_id, login.device_id, signed=True))
            assert "In a few seconds" in await ask("my brother Tom likes tea", 2)
            told = next(m for m in client.messages(room) if "brother Tom" in m.body)
            assert "picked up" in await ask_until("/memory", "my brother Tom likes tea")
            await ask("/new")
            assert "my brother Tom likes tea" in await ask("what does my brother like?", 2)
            why = await ask("/why")
            assert "my brother Tom likes tea. (picked up, you on [" in why
            assert quote(told.event_id, safe="!$:") in why
            await client.redact(room, told.event_id)
            assert "nothing here" in await ask_until("/memory", "nothing here")
            assert "I know nothing about Tom yet" in await ask("what do you know about Tom?")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "")


@pytest.mark.slow
def test_a_terminal_deletes_a_message_as_a_client_does(tmp_path: Path) -> None:
    """M-030, U-021: who has no graphical client beside it sees the same, but for emojis."""
    said = demo(
        "--folder", tmp_path, typed="I like green tea\n/delete coffee\n/verify\n/delete green"
    )
    assert "no message of yours has these words" in said[-3]
    assert "a graphical client can" in said[-2]
    assert "deleted, as in any Matrix client: I like green tea" in said[-1]
    gone = "SELECT count(*) FROM redactions"
    assert homeserver_rows(tmp_path, gone) == [(1,)]


@pytest.mark.slow
def test_what_was_said_becomes_a_page_that_is_recalled(tmp_path: Path) -> None:
    """W-058, W-078: by the real command beside the real daemon; the answer comes from the page."""
    lines = ["my garden has two apple trees", "/pages", "/new", "what do you know about my garden?"]
    said = "\n".join(demo("--folder", tmp_path, typed="\n".join(lines)))
    store = tmp_path / "bot" / "data" / "wiki"
    page = (store / "semantic" / "Your garden.md").read_text()
    assert "- My garden has two apple trees." in page
    assert "none yet" not in page
    assert "[[episodic-raw/" in page
    assert "[[Your garden]]" in (store / "meta" / "Index.md").read_text()
    assert "Written: Your garden. Ask" in said
    assert "The page *Your garden* says:" in said
    assert "<recall>" not in said


@pytest.mark.slow
async def test_a_client_that_joins_in_is_the_person_and_sees_no_red_shields(tmp_path: Path) -> None:
    """Issue 13, U-021: signed by the terminal, then by itself with the key; older messages stay locked."""
    if what_is_missing():
        pytest.skip(what_is_missing())
    with running(tmp_path, since="  recovery") as process:
        kept = DemoSecrets(**json.loads((tmp_path / "demo.json").read_text()))
        url = f"http://127.0.0.1:{kept.port}"
        login = logged_in(url, "you", kept.password)
        async with CurrentClient(url, login, tmp_path / "client", strict=True) as client:
            room = str(kept.room_id)
            await client.until_so(lambda: client.knows(login.user_id, login.device_id, signed=True))
            await client.recover(recovery_key(bytes.fromhex(kept.recovery)))
            await client.send(room, " what do you know?")
            said = await client.wait_for_count(room, "@wintermute:localhost", 2)
            await client.send(room, " /help")
            await client.until(lambda: "/undo" in client.messages(room)[-1].body)
            assert [(message.shield, message.failure) for message in said] == [(None, None)] * 2
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "")
