"""What many tests stand on, each thing with one fixture; what one worker of a run starts once."""

import fcntl
import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import HeldClock
from tests.world.consolidated import Chats, Scribe
from tests.world.harvested import Picker
from tests.world.homeserver import Homeserver
from tests.world.house import PROMPTS, House, house_at_work
from tests.world.keys import Wire, accepted
from tests.world.memory import Memory, memory_in
from tests.world.missing import NO_MOUNT
from tests.world.model import ModelServer
from tests.world.nights import opened
from tests.world.proxy import Proxy
from tests.world.scene import (
    JS,
    NIO,
    NewAnybody,
    NewBot,
    NewCurrent,
    NewName,
    NewPerson,
    NewRoom,
    NewScene,
    Scene,
)
from tests.world.schema import later_program
from tests.world.sleeping import Sleep, sleeping
from tests.world.story import Story
from tests.world.terminal import Terminal
from tests.world.tidied import Tidied, open_nights
from tests.world.warm import Interpreter

pytest_plugins = ["tests.tiers"]


@pytest.fixture(scope="session")
def blank(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a Synapse that has just been set up; made by the first worker that asks."""
    made = shared / "blank.db"
    with (shared / "blank.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = tmp_path_factory.mktemp("blank")
            with Homeserver(folder):
                pass
            assert not (folder / "homeserver.db-journal").exists()
            shutil.copy(folder / "homeserver.db", shared / "copied.db")
            (shared / "copied.db").rename(made)
    return made


@pytest.fixture(scope="session")
def homeserver(blank: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """The Synapse of this worker. A test that stops it, or wants limits, starts its own."""
    with Homeserver(tmp_path_factory.mktemp("synapse"), database=blank) as server:
        yield server


@pytest.fixture(scope="session")
def python() -> Iterator[Interpreter]:
    """An interpreter with the program imported: what it forks starts at once."""
    with Interpreter() as warm:
        yield warm


@pytest.fixture(scope="session")
def later_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """One of a program whose schema has one more step than ours."""
    with Interpreter(later_program(tmp_path_factory.mktemp("later"))) as warm:
        yield warm


@pytest.fixture(scope="session")
def fresh() -> NewName:
    """Gives a user name nobody in this run has: `ann-1`."""
    numbers = itertools.count(1)
    return lambda name: f"{name}-{next(numbers)}"


@pytest.fixture(scope="session")
def new_scene(homeserver: Homeserver, python: Interpreter, fresh: NewName) -> NewScene:
    """`async with new_scene(folder, model.url) as scene`: for what lives longer than one test."""
    return lambda folder, model_url: Scene(homeserver, python, fresh, folder, model_url)


@pytest.fixture
async def scene(
    homeserver: Homeserver, python: Interpreter, fresh: NewName, model: ModelServer, tmp_path: Path
) -> AsyncIterator[Scene]:
    """What `person`, `current`, `bot` and `room` open in, and are closed with."""
    async with Scene(homeserver, python, fresh, tmp_path, model.url, model) as opened:
        yield opened


@pytest.fixture
def person(scene: Scene) -> NewPerson:
    """`ann = await person("ann")`: a new user at a client that syncs until the test ends."""
    return scene.person


@pytest.fixture
def current(scene: Scene) -> NewCurrent:
    """`ann = await current("ann")`: a new user at a current client; `await current(ann)`: on one more device."""
    return scene.current


@pytest.fixture(params=[NIO, pytest.param(JS, marks=pytest.mark.slow)])
def anybody(scene: Scene, request: pytest.FixtureRequest) -> NewAnybody:
    """`person`, and slow at a strict client of today: `ann = await anybody("ann")` for encrypted rooms."""
    return scene.at(request.param)


@pytest.fixture
def bot(scene: Scene) -> NewBot:
    """`daemon = await bot(ann)`: a daemon of hers with an account and a folder of its own."""
    return scene.bot


@pytest.fixture
def room(scene: Scene) -> NewRoom:
    """`chat = await room(ann, daemon, encrypted=True)`: a new room, once all are in it."""
    return scene.room


@pytest.fixture
async def model(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ModelServer]:
    """A scripted model server of this test's own; `@pytest.mark.breaks("fold")` is `model.allow("fold")`."""
    async with ModelServer() as server:
        for mark in request.node.iter_markers("breaks"):
            server.allow(*mark.args, **mark.kwargs)
        yield server
        server.prefixes.count(tmp_path)


@pytest.fixture
async def working_house(tmp_path: Path, model: ModelServer) -> AsyncIterator[House]:
    """A house in the folder of the test, at work with its model."""
    async with house_at_work(tmp_path, model.url) as opened:
        yield opened


@pytest.fixture
def picker(model: ModelServer, tmp_path: Path) -> Picker:
    """A model that picks memories, by a clock that is held: `async with picker.talking() as house`."""
    return Picker(model, tmp_path)


@pytest.fixture
async def prompted_house(model: ModelServer, tmp_path: Path) -> AsyncIterator[House]:
    """A house at work with the real prompts, memory, tasks and skills."""
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as opened:
        yield opened


@pytest.fixture
def story(tmp_path: Path, model: ModelServer) -> Story:
    """`async with story.at_work() as house`: rooms, a loop and their stores, asking `model`."""
    return Story(tmp_path, model)


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    """A way to the homeserver that can be watched and spoilt; `bot(ann, via=proxy.url)`."""
    async with Proxy(homeserver.url) as opened:
        yield opened


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser of `browsing(web, chromium)`; without it such a test is skipped."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no Chromium here: apt-get install --no-install-recommends chromium")
    return found


@pytest.fixture
def terminal(tmp_path: Path, python: Interpreter) -> Terminal:
    """A person at the command line, with a data folder that no daemon uses."""
    return Terminal.in_folder(tmp_path, python)


@pytest.fixture
def own_disk() -> Iterator[Callable[[Path], None]]:
    """Makes a folder a small disk, where we may."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir(mode=0o700)
        words = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(folder)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip(NO_MOUNT)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    """A homeserver that is a table, and takes every key that is uploaded."""
    async with Proxy("http://127.0.0.1:1") as proxy:
        wire = Wire(proxy)
        wire.answers["keys/upload"] = accepted
        yield wire


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Memory]:
    """A memory whose database and files lie in the folder of the test."""
    async with memory_in(tmp_path) as memory:
        yield memory


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of the house that a test stands on: `@pytest.mark.opens(retries=1)`, over those of its file."""
    marks = reversed([*request.node.iter_markers("opens")])
    return {name: value for mark in marks for name, value in mark.kwargs.items()}


@pytest.fixture
async def sleep(
    tmp_path: Path, model: ModelServer, settings: dict[str, Any]
) -> AsyncIterator[Sleep]:
    """A house whose facts are looked through by whole nights; the model answers by `sleep.merge` and `sleep.compare`."""
    async with sleeping(tmp_path, model, **settings) as asleep:
        yield asleep


@pytest.fixture
async def night(
    tmp_path: Path, model: ModelServer, settings: dict[str, Any]
) -> AsyncIterator[Tidied]:
    """A house with its nights: `await night.night("tasks")` is one of them."""
    async with open_nights(tmp_path, model, **settings) as asleep:
        yield asleep


@pytest.fixture
def clock() -> HeldClock:
    """A clock that stands still until a test advances it."""
    return HeldClock()


@pytest.fixture
async def house(
    tmp_path: Path, model: ModelServer, clock: HeldClock, settings: dict[str, Any]
) -> AsyncIterator[House]:
    """A house with the small night of `tests.world.nights`, on the clock of the test."""
    async with opened(tmp_path, model, clock, **settings) as asleep:
        yield asleep


@pytest.fixture
def chats(tmp_path: Path, model: ModelServer) -> Chats:
    """Chats that become pages: `async with chats.talking() as (house, shelf)`, or `chats.nights()`."""
    return Chats(tmp_path, model, Scribe(model))
