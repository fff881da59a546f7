"""The service: what systemd is told, what signals do, and what the files for it promise."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from tests.world.bot import Bot
from tests.world.clock import WITHIN, FakeClock
from tests.world.missing import NO_SYSTEMD
from tests.world.model import Hang as Silence
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.proxy import Action, Answer, Hang, Held, Proxy, Request, pass_before
from tests.world.scene import HasAccount, NewAnybody, NewBot, NewPerson, NewRoom
from tests.world.units import merged, python_of_a_service
from tests.world.warm import Interpreter
from wintermute.cli.main import VERBS
from wintermute.daemon import DRAIN_SECONDS
from wintermute.signals import Supervisor, WatchedClock

ROOT = Path(__file__).parent.parent
SYSTEM_UNIT = "systemd/wintermute.service"
USER_UNIT = "systemd/user/wintermute.service"
SHELL = "systemd/shell.conf"
READY, RELOADING, STOPPING, ALIVE = "READY=1", "RELOADING=1", "STOPPING=1", "WATCHDOG=1"
WATCHDOG_SECONDS, WATCHDOG_USEC = 0.2, "200000"
LONGEST = 65536
LONGEST_ROUND = 65  # seconds of a sync that ends in a time-out, and the pause after it


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(address).replace("@", "\0", 1))
        self.heard: list[list[str]] = []

    def close(self) -> None:
        self._socket.close()

    @property
    def lines(self) -> list[str]:
        """All that was heard so far."""
        return [line for message in self.heard for line in message]

    async def hears(self, line: str, times: int = 1, within: float = WITHIN) -> list[str]:
        """Wait until a line was heard so often; the message it was in."""
        async with asyncio.timeout(within):
            while self.lines.count(line) < times:
                await self._next()
        return [message for message in self.heard if line in message][times - 1]

    def waiting(self) -> list[str]:
        """Take what has come in; all that was heard so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(self._socket.recv(LONGEST).decode().splitlines())
        return self.lines

    async def hears_nothing(self, seconds: float) -> bool:
        """Whether it stays silent for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._next()
        except TimeoutError:
            return True
        return False

    async def _next(self) -> None:
        datagram = await asyncio.get_running_loop().sock_recv(self._socket, LONGEST)
        self.heard.append(datagram.decode().splitlines())


async def expects_an_answer(person: Person, room: str, text: str) -> None:
    await person.send(room, text)
    await person.wait_for(room, lambda message: message.body == f"echo: {text}")


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path / "notify")) as listening:
        yield listening


class NewService(Protocol):
    """`service`: a daemon as systemd starts it, killed when the test ends."""

    async def __call__(
        self, owner: HasAccount, *, via: str = "", start: bool = True, **environment: str
    ) -> Bot: ...


@pytest.fixture
async def service(bot: NewBot, systemd: Systemd, tmp_path: Path) -> AsyncIterator[NewService]:
    """A process that begins with nothing but its environment, so none that was forked."""
    async with AsyncExitStack() as stack:

        async def new(
            owner: HasAccount, *, via: str = "", start: bool = True, **environment: str
        ) -> Bot:
            config = (await bot(owner, via=via, start=False)).config
            environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
            daemon = Bot(config, python_of_a_service(tmp_path, **environment))
            stack.push_async_exit(daemon)
            if start:
                await daemon.start()
            return daemon

        yield new


async def test_ready_is_told_after_the_first_sync_and_stopping_at_its_end(
    proxy: Proxy, systemd: Systemd, person: NewPerson, service: NewService, tmp_path: Path
) -> None:
    """Issue 4: READY after migration and first sync; the password comes as a credential."""
    credentials = tmp_path / "credentials"
    daemon = await service(
        await person("ann"), via=proxy.url, start=False, CREDENTIALS_DIRECTORY=str(credentials)
    )
    credentials.mkdir()
    (daemon.config.parent / "password").rename(credentials / "password")
    proxy.before = lambda request: Answer(503) if request.path.endswith("/sync") else None
    await daemon.start(ready=False)
    await systemd.hears("STATUS=waits for the first sync")
    await daemon.logged("sync failed")
    assert READY not in systemd.waiting()
    assert daemon.rows("PRAGMA user_version")[0]["user_version"] > 0

    proxy.before = pass_before
    await systemd.hears(READY)
    assert await daemon.stop() == 0
    assert STOPPING in systemd.waiting()
    told = [line for line in systemd.lines if line in (READY, STOPPING, ALIVE)]
    assert told == [READY, STOPPING]


@pytest.mark.slow
async def test_the_watchdog_hears_of_every_sync_and_bites_when_the_loop_hangs(
    proxy: Proxy, systemd: Systemd, person: NewPerson, service: NewService, room: NewRoom
) -> None:
    """Issue 4: signs of life are real progress; a homeserver that is away is no reason to die."""
    hung = asyncio.Event()

    def hang(request: Request) -> Action:
        if not request.path.endswith("/sync"):
            return None
        hung.set()
        return Hang()

    ann = await person("ann")
    daemon = await service(ann, via=proxy.url, WATCHDOG_USEC=WATCHDOG_USEC)
    chat = await room(ann, daemon)
    for n in itertools.count():
        await expects_an_answer(ann, chat, f"{n}")
        if systemd.waiting().count(ALIVE) >= 3:
            break

    proxy.before = hang
    await ann.send(chat, "last")  # ends the sync that is under way
    await hung.wait()
    systemd.waiting()
    await ann.send(chat, "unheard")
    assert await systemd.hears_nothing(3 * WATCHDOG_SECONDS)

    await proxy.down()
    known = systemd.lines.count(ALIVE)
    await systemd.hears(ALIVE, known + 3)
    proxy.before = pass_before
    await proxy.up()
    await ann.wait_for(chat, lambda m: m.body == "echo: unheard")
    assert await daemon.stop() == 0


@pytest.mark.slow
async def test_each_page_of_what_was_missed_is_a_sign_of_life(
    proxy: Proxy, systemd: Systemd, person: NewPerson, service: NewService, room: NewRoom
) -> None:
    """Issue 39: a round with many pages lasts longer than the watchdog waits; one that hangs is bitten."""
    ann = await person("ann")
    daemon = await service(ann, via=proxy.url, WATCHDOG_USEC=WATCHDOG_USEC)
    chat = await room(ann, daemon)
    await expects_an_answer(ann, chat, "hello")
    asked, bells = asyncio.Semaphore(0), [asyncio.Event() for _ in range(4)]

    def cut_short(request: Request, status: int, body: bytes) -> Action:
        told = json.loads(body) if request.path.endswith("/sync") else {}
        timeline = told.get("rooms", {}).get("join", {}).get(chat, {}).get("timeline", {})
        if b"after the gap" not in body or not timeline:
            return None
        timeline |= {"limited": True, "prev_batch": "0"}
        return Answer(status, told)

    def pages(request: Request) -> Action:
        place = int(request.query["from"]) if request.path.endswith("/messages") else len(bells)
        if place >= len(bells):
            return None
        event = {"type": "m.custom", "event_id": f"${place}", "sender": ann.user_id}
        chunk = [event | {"origin_server_ts": 1, "content": {}}] if bells[place + 1 :] else []
        asked.release()
        return Held(bells[place], Answer(200, {"chunk": chunk, "end": str(place + 1)}))

    proxy.before, proxy.after = pages, cut_short
    await ann.send(chat, "after the gap")
    for bell in bells:
        async with asyncio.timeout(WITHIN):
            await asked.acquire()
        known = systemd.waiting().count(ALIVE)
        assert await systemd.hears_nothing(2 * WATCHDOG_SECONDS)
        bell.set()
        await systemd.hears(ALIVE, known + 1)
    await ann.wait_for(chat, lambda m: m.body == "echo: after the gap")
    assert await daemon.stop() == 0


@pytest.mark.slow
async def test_a_configuration_that_is_wrong_changes_nothing(
    systemd: Systemd, person: NewPerson, service: NewService, room: NewRoom
) -> None:
    """Issue 4: SIGHUP keeps the old configuration and says why, whenever the mistake shows."""
    ann, other = await person("ann"), await person("other")
    daemon = await service(ann)
    right = daemon.config.read_text()
    (daemon.config.parent / "wrong").write_text("open sesame")
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        ({"log": {"level": "loud", "colour": "red"}}, ["log.level", "log.colour"]),
        ({"data_dir": "elsewhere"}, ["data_dir: another folder needs a restart"]),
        (
            {"matrix": {"user_id": other.user_id, "password": {"file": "wrong"}}},
            ["matrix: another account or device needs a restart"],
        ),
        ({"tools": {"files": {"roots": ["data/skills"]}}}, ["lies in the data folder"]),
    ]
    chat = await room(ann, daemon)
    for n, (mistake, told) in enumerate(wrong, 1):
        daemon.config.write_text(json.dumps(merged(json.loads(right), mistake)))
        began = len(daemon.log)
        os.kill(daemon.pid, signal.SIGHUP)
        begun = await systemd.hears(RELOADING, n)
        assert any(re.fullmatch(r"MONOTONIC_USEC=\d+", line) for line in begun)
        status = "\n".join(await systemd.hears(READY, n + 1))
        for text in told:
            assert text in status
            await daemon.logged(text)
        refusals = [line for line in daemon.log[began:] if "the old one stays" in line]
        assert len(refusals) == len(told)
        await expects_an_answer(ann, chat, f"{n}")
    assert not any("Traceback" in line for line in daemon.log)
    assert await daemon.stop() == 0


@pytest.mark.slow
async def test_a_new_configuration_is_taken_up_without_losing_or_doubling_a_message(
    systemd: Systemd,
    anybody: NewAnybody,
    service: NewService,
    room: NewRoom,
    model: ModelServer,
    python: Interpreter,
) -> None:
    """Issue 4: SIGHUP while a model answers, and in a burst; one process holds the folder."""
    ann, bob = await anybody("ann"), await anybody("bob")
    daemon = await service(ann)
    chat = await room(ann, daemon, encrypted=True)
    model.script(Silence())
    await ann.send(chat, "before")
    await model.request_arrived(1)
    changes = {"matrix": {"allowed_users": [bob.user_id]}, "log": {"level": "info"}}
    changed = merged(json.loads(daemon.config.read_text()), changes)
    daemon.config.write_text(json.dumps(changed))
    os.kill(daemon.pid, signal.SIGHUP)
    await ann.send(chat, "during")
    await systemd.hears(READY, 2)
    await expects_an_answer(bob, await room(bob, daemon), "may I?")

    for n in range(12):
        await ann.send(chat, f"{n}")
        if n % 4 == 1:
            os.kill(daemon.pid, signal.SIGHUP)
    await expects_an_answer(ann, chat, "after")
    wanted = ["before", "during", *(str(n) for n in range(12)), "after"]
    answers = [message.body for message in ann.messages(chat, daemon.user_id)]
    assert answers == [f"echo: {text}" for text in wanted]
    assert not any(" DEBUG " in line for line in daemon.log)
    second = await python.command("--config", str(daemon.config), "run")
    assert (second.returncode, str(daemon.pid) in second.stderr.decode()) == (1, True)
    assert await daemon.stop() == 0


@pytest.mark.parametrize("where", ["a file", "an abstract name"])
def test_the_supervisor_is_found_in_both_kinds_of_places(where: str, tmp_path: Path) -> None:
    """Lines of one message belong together; a status is one line whatever it says."""
    name = str(tmp_path / "notify") if where == "a file" else f"@{tmp_path}/notify"
    with contextlib.closing(Systemd(name)) as systemd:
        supervisor = Supervisor({"NOTIFY_SOCKET": name}, FakeClock())
        supervisor.ready("one\nREADY=2")
        supervisor.pulse()  # without WATCHDOG_USEC nobody waits for it
        supervisor.stopping()
        assert systemd.waiting()
        assert systemd.heard[0] == [READY, "STATUS=one READY=2"]
        assert [message[0] for message in systemd.heard] == [READY, STOPPING]


def test_signs_of_life_are_sent_twice_in_their_time_at_most(tmp_path: Path) -> None:
    clock = FakeClock()
    with contextlib.closing(Systemd(tmp_path / "notify")) as systemd:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10000000"}
        supervisor = Supervisor(environment, clock)
        heard = []
        for _ in range(12):
            supervisor.pulse()
            heard.append(systemd.waiting().count(ALIVE))
            clock.advance(1)
    assert heard == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(("socket_name", "lines"), [(None, 0), ("gone", 1), ("x" * 200, 1)])
def test_a_supervisor_that_is_not_there_disturbs_nobody(
    socket_name: str | None, lines: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / socket_name)} if socket_name else {}
    Supervisor(environment, FakeClock()).ready("at work")
    assert len(caplog.messages) == lines


async def test_trying_again_is_a_sign_of_life() -> None:
    clock, pulses = FakeClock(), []
    await WatchedClock(clock, lambda: pulses.append(clock.monotonic())).sleep(5)
    assert (pulses, clock.slept) == ([0.0], [5])


def offline(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says, which needs no running systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip(NO_SYSTEMD)
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def test_the_service_is_exposed_as_little_as_it_can_be() -> None:
    """Issue 4: at most 2.0 of 10; the limit is given in tenths."""
    told = offline("security", "--offline=true", "--threshold=20", ROOT / SYSTEM_UNIT)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("unit", [SYSTEM_UNIT, USER_UNIT])
def test_systemd_understands_every_line_of_the_units(unit: str, tmp_path: Path) -> None:
    """The program is not where an installation has it, so another stands for it."""
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", (ROOT / unit).read_text(), flags=re.M)
    (tmp_path / "wintermute.service").write_text(text)
    (tmp_path / "wintermute.service.d").mkdir()
    shutil.copy(ROOT / SHELL, tmp_path / "wintermute.service.d" / "shell.conf")
    told = offline("verify", "--man=no", tmp_path / "wintermute.service")
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("unit", [SYSTEM_UNIT, USER_UNIT])
def test_the_units_agree_with_the_program(unit: str) -> None:
    """X-014: exit code 2 is for a person, so nobody starts us again."""
    text = (ROOT / unit).read_text()
    lines = text.splitlines()
    for line in ("Type=notify", "NotifyAccess=main", "RestartPreventExitStatus=2"):
        assert line in lines
    [watchdog] = re.findall(r"^WatchdogSec=(\d+)$", text, flags=re.M)
    assert int(watchdog) >= 2 * LONGEST_ROUND
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.M)
    assert int(stop) >= 2 * DRAIN_SECONDS
    [start] = re.findall(r"^ExecStart=(.*)$", text, flags=re.M)
    assert Path(start.split()[0]).name == "wintermute"
    assert start.split()[-1] in VERBS


@pytest.mark.parametrize("unit", [SYSTEM_UNIT, SHELL])
def test_every_setting_stands_under_its_reason(unit: str) -> None:
    """Issue 4: every line commented; a group of settings may share one comment."""
    bare = []
    for paragraph in (ROOT / unit).read_text().split("\n\n"):
        lines = [line for line in paragraph.splitlines() if not line.startswith("[")]
        if lines and not lines[0].startswith("#"):
            bare.append(lines[0])
    assert bare == []


def test_the_container_files_name_what_exists() -> None:
    """Issue 4: read, not run; no container engine is needed for the tests."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    steps = [line.split() for line in lines if line[:1].isupper()]
    copied = [source for step in steps if step[0] == "COPY" for source in step[1:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    by_word = {step[0]: " ".join(step[1:]) for step in steps}
    assert json.loads(by_word["ENTRYPOINT"]) == ["wintermute"]
    assert json.loads(by_word["CMD"])[0] in VERBS
    assert json.loads(by_word["VOLUME"]) == ["/data"]
    assert by_word["USER"] != "root"

    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    bot = compose["services"]["wintermute"]
    assert (ROOT / bot["build"]["context"] / bot["build"]["dockerfile"]).is_file()
    assert set(bot["depends_on"]) <= set(compose["services"])
    for part in compose["services"].values():
        [(source, target)] = [mount.split(":") for mount in part["volumes"]]
        assert source in compose["volumes"] or source.startswith("${HOME}/")
        assert target == "/data"
    images = [by_word["FROM"], compose["services"]["synapse"]["image"]]
    assert not any("." in image.rpartition("/")[0] for image in images)


def test_the_page_about_the_service_names_what_exists() -> None:
    text = (ROOT / "docs" / "service.md").read_text()
    ours = r"(?<![/\w])systemd/[\w/-]+\.\w+|\bContainerfile\b|\bcompose\.yaml\b"
    names = set(re.findall(ours, text))
    assert {SYSTEM_UNIT, USER_UNIT, SHELL, "Containerfile", "compose.yaml"} <= names
    assert all((ROOT / name).is_file() for name in names)
    verbs = re.findall(r"(?:config\.yaml|run --rm wintermute|bin/wintermute) ([a-z]+)\b", text)
    assert {"init", "check", "status"} <= set(verbs) <= set(VERBS)
