"""The daemon under test: a real process with its own folder, to be started, killed and looked into."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.world.clock import WITHIN
from tests.world.homeserver import Login
from tests.world.person import Person
from tests.world.warm import Interpreter, Process
from wintermute.templates import shipped_folder

Json = dict[str, Any]
LOOK_SECONDS = 0.1
NOBODY = Login("@bot:example.org", "", "", "correct horse")


def write_settings(
    folder: Path, homeserver: str, login: Login, model: str, owner: str, **changes: Json
) -> Path:
    """A configuration and data folder as `init` would leave them; JSON is YAML.

    `changes` are merged into the sections of their names.
    """
    shutil.copytree(shipped_folder(), folder / "data" / "prompts", dirs_exist_ok=True)
    (folder / "data").chmod(0o700)
    (folder / "password").write_text(login.password)
    sections: Json = {
        "data_dir": "data",
        "timezone": "Europe/Berlin",
        "matrix": {
            "homeserver": homeserver,
            "user_id": login.user_id,
            "password": {"file": "password"},
            "owner": owner,
            "encryption": "preferred",
        },
        "llm": {
            "backends": {
                "scripted": {
                    "base_url": model,
                    "model": "scripted",
                    "timeout_s": 20,
                    "first_token_s": 20,
                }
            },
            "roles": {"base": ["scripted"]},
            "max_retries": 1,
        },
        "seed": {"enabled": False},  # what is asked is what is answered
        "memory_harvest": {"enabled": False},
        "log": {"level": "debug"},
    }
    for name, change in changes.items():
        sections[name] = sections.get(name, {}) | change
    path = folder / "config.yaml"
    path.write_text(json.dumps(sections, indent=1))
    return path


class Bot:
    """One daemon. `start` after an end is a restart on the same data.

    `python` is a warm interpreter, or the path of one that has everything still to import.
    """

    def __init__(self, config: Path, python: Interpreter | str = sys.executable) -> None:
        self.config = config
        self._python = python
        self.log: list[str] = []
        self._process: asyncio.subprocess.Process | Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._line = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        print("\n".join(self.log[-60:]))  # noqa: T201  pytest shows it with a failure
        await self.kill()

    @property
    def user_id(self) -> str:
        """Who it is in its rooms."""
        return str(json.loads(self.config.read_text())["matrix"]["user_id"])

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.config.parent / "data"

    @property
    def _clocks(self) -> Path:
        return self.config.parent / "clocks.json"

    def set_clocks(self, wall: float = 0, steady: float = 0) -> None:
        """Set its machine's clocks so many seconds ahead; the first time before it is started."""
        assert self._clocks.exists() or not self.running
        new = self._clocks.with_suffix(".new")
        new.write_text(json.dumps({"wall": wall, "steady": steady}))
        new.replace(self._clocks)
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGURG)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for it at once, whether it runs or not."""
        ahead = json.loads(self._clocks.read_text())
        self.set_clocks(ahead["wall"] + seconds, ahead["steady"] + seconds)

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    async def start(self, trigger: Json | None = None, *more: str, ready: bool = True) -> None:
        """Start it, to die at `trigger` if one is given; wait for its first sync if `ready`."""
        words = ("--config", str(self.config), "run", *more)
        if self._clocks.exists():
            trigger = {**(trigger or {}), "clock": str(self._clocks)}
        if isinstance(self._python, Interpreter):
            self._process = await self._python.start(*words, trigger=trigger)
        else:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                *("-m", "tests.world.launch", json.dumps(trigger or {}), *words),
                stdin=asyncio.subprocess.PIPE,  # the lifeline
                stderr=asyncio.subprocess.PIPE,
                limit=2**24,
                env=dict(os.environ),  # noqa: TID251
            )
        began = len(self.log)
        self._reader = asyncio.get_running_loop().create_task(self._read(self._process))
        if ready:
            await self.until(lambda: any(" ready " in line for line in self.log[began:]))

    async def _read(self, process: asyncio.subprocess.Process | Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            async with self._line:
                self.log.append(line.decode(errors="replace").rstrip())
                self._line.notify_all()
        await process.wait()
        async with self._line:
            self._line.notify_all()

    async def until(self, true: Callable[[], bool], within: float = WITHIN) -> None:
        """Wait until the log, the database, or the end of the process makes something true."""
        async with asyncio.timeout(within), self._line:
            while not true():
                if self._reader is not None and self._reader.done():
                    raise AssertionError("the daemon ended:\n" + "\n".join(self.log[-40:]))
                with suppress(TimeoutError):  # a row that changes writes no line
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._line.wait()

    async def logged(self, text: str, within: float = WITHIN) -> None:
        """Wait for a log line with this text."""
        await self.until(lambda: any(text in line for line in self.log), within)

    async def said_all(self) -> None:
        """Wait until everything that is to be said is recorded as sent."""
        await self.until(lambda: not self.rows("SELECT 1 FROM outbox WHERE state = 'waiting'"))

    async def ended(self, within: float = WITHIN) -> int:
        """Wait for the end of the process; its exit code, negative for a signal."""
        assert self._process is not None
        assert self._reader is not None
        async with asyncio.timeout(within):
            code = await self._process.wait()
            await self._reader
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    async def kill(self) -> None:
        """As a crash would end it."""
        if self._process is None:
            return
        if self.running:
            self._process.kill()
        await self.ended()

    async def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def restart(self) -> None:
        """Stop it, as one should, and start it again."""
        assert await self.stop() == 0
        await self.start()

    def rows(self, sql: str, *values: object) -> list[Json]:
        """What its database says, read from outside."""
        path = self.config.parent / "data" / "wintermute.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(sql, values)]
        finally:
            connection.close()

    def change(self, sql: str, *values: object) -> int:
        """Alter the database of a stopped daemon; how many rows."""
        assert not self.running
        connection = sqlite3.connect(self.config.parent / "data" / "wintermute.db")
        try:
            changed = connection.execute(sql, values).rowcount
            connection.commit()
        finally:
            connection.close()
        return changed

    async def command(self, *words: str, trigger: Json | None = None) -> tuple[int, str]:
        """Run another verb on the same configuration: its exit code, and what it wrote.

        A warm interpreter can let it die at `trigger`.
        """
        words = ("--config", str(self.config), *words)
        if isinstance(self._python, Interpreter):
            done = await self._python.command(*words, trigger=trigger)
            return done.returncode, (done.stdout + done.stderr).decode()
        process = await asyncio.create_subprocess_exec(
            self._python,
            *("-m", "wintermute", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()


async def meet(
    host: Person, bot: str, *guests: Person, encrypted: bool = False, name: str = ""
) -> str:
    """A new room of a person with the bot, and guests, in it."""
    invited = [bot, *(guest.user_id for guest in guests)]
    room = await host.create_room(
        invited, encrypted=encrypted, direct=not guests, name=name or None
    )
    for guest in guests:
        await guest.join(room)
    for user in invited:
        await host.wait_joined(room, user)
    return room


async def said(watcher: Person, room: str, sender: str) -> list[str]:
    """Everything a sender ever said in a room, as the homeserver has it."""
    return [event.body for event in await watcher.history(room) if event.sender == sender]


def bare_settings(folder: Path, homeserver: str = "http://127.0.0.1:9", model: str = "") -> Path:
    """Write settings of somebody who has no account yet."""
    folder.mkdir(exist_ok=True)
    return write_settings(
        folder,
        homeserver,
        NOBODY,
        model or "http://127.0.0.1:9/v1",
        "@you:example.org",
        llm={
            "backends": {"local": {"base_url": model or "http://127.0.0.1:9/v1", "model": "qwen"}},
            "roles": {"base": ["local"]},
            "max_retries": 0,
        },
    )
