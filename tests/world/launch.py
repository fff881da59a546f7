"""Starts the daemon as a process that can be made to die at a chosen database statement.

    python -m tests.world.launch '{"logger": "aiosqlite", "steps": [["executing", "COMMIT"]]}' run

The program itself knows nothing of this: the driver and nio's store log each statement at debug
level, and the handler here reads those lines. `{}` starts the daemon as it is. With `"clock"` its
clocks are as far ahead as that file says at any moment, in seconds: `{"wall": 7200, "steady": 0}`.
With `"tape"` what it does to its database and to the files of a folder is written down:
`{"tape": "tape", "folder": "data", "first": "BEGIN", "step": "COMMIT", "at": 7}`, see `Tape`.
"""

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.world.homeserver import die_with_parent
from wintermute.cli.main import main
from wintermute.clock import SystemClock

PART = re.compile(r"part(\.\w+\.\w+)?_\w+(-\d+)?")
JOB = re.compile(r"\d{8}-\d{6}(-\d+)?")
"""Names that are others each time."""


class Killer(logging.Handler):
    """Ends this process by SIGKILL when the last of the steps is seen, each after the one before.

    A step is (phase, text): `executing` before the statement with this text, `operation` after it.
    nio's store logs only `executing`.
    """

    def __init__(self, steps: list[tuple[str, str]]) -> None:
        super().__init__()
        self._steps = steps

    def emit(self, record: logging.LogRecord) -> None:
        phase, statement = read(record)
        wanted_phase, wanted = self._steps[0]
        if phase != wanted_phase or wanted not in statement:
            return
        self._steps = self._steps[1:]
        if not self._steps:
            os.kill(os.getpid(), signal.SIGKILL)


class Tape(logging.Handler):
    """Writes down each statement and each step that changes a file of a folder, a line each, from the
    first statement with the text `first` on, and ends this process by SIGKILL before the `at`-th of
    those that are `step`, or of all; 0: never.

    What is killed before a step is killed after the one before it: the disk is the same. Where a
    transaction begins or ends, the line names the newest change before it.
    """

    def __init__(self, tape: Path, folder: Path, first: str, step: str, at: int) -> None:
        super().__init__()
        self._out = os.open(tape, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._folder = folder
        self._first = first
        self._step = step
        self._at = at
        self._n = 0
        self._begun = False
        self._change = "the start"
        self._fsync = os.fsync

    def emit(self, record: logging.LogRecord) -> None:
        phase, statement = read(record)
        if phase == "executing":
            self._note(" ".join(statement.split()))

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What the interpreter tells of files; nobody can be told to hear it no more."""
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._note_file("open", path)
        elif event == "os.rename":
            self._note_file(event, arguments[0], arguments[2])
        elif event in ("os.remove", "os.mkdir", "os.rmdir"):
            self._note_file(event, arguments[0], arguments[-1])
        elif event == "os.truncate":
            self._note_file(event, arguments[0])

    def fsync(self, file: int) -> None:
        """In the place of the system's, of which the interpreter tells nothing."""
        self._note_file("fsync", file)
        self._fsync(file)

    def _note_file(self, what: str, path: object, folder: int = -1) -> None:
        """`folder`: what the path is relative to; -1: the one we are in."""
        name = Path("." if isinstance(path, int) else os.fsdecode(str(path)))
        for descriptor in (path, folder):
            if isinstance(descriptor, int) and descriptor >= 0:
                name = Path(f"/proc/self/fd/{descriptor}").readlink() / name
        if self._begun and name.is_relative_to(self._folder):
            self._note(f"{what} {JOB.sub('job', PART.sub('part', name.name))}")

    def _note(self, what: str) -> None:
        with self.lock or threading.Lock():
            self._begun = self._begun or self._first in what
            if not self._begun:
                return
            if what in ("BEGIN IMMEDIATE", "COMMIT"):
                what = f"{what} after {self._change}"
            elif what.startswith(("INSERT", "UPDATE", "DELETE")):
                self._change = what
            self._n += self._step in ("", what)
            os.write(self._out, f"{what}\n".encode())
            if self._n == self._at > 0:
                os.kill(os.getpid(), signal.SIGKILL)


def read(record: logging.LogRecord) -> tuple[str, str]:
    """Phase and SQL of a log line; empty when it is about something else."""
    if record.name == "peewee":
        return "executing", str(record.msg)
    call = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if isinstance(call, partial) and call.args and isinstance(call.args[0], str):
        return str(record.msg).split()[0], call.args[0]
    return "", ""


def arm(logger: str, steps: list[tuple[str, str]]) -> None:
    """Set the process up to die."""
    listen(logger, Killer(steps))


def listen(logger: str, handler: logging.Handler) -> None:
    """Give it each statement."""
    source = logging.getLogger(logger)
    source.setLevel(logging.DEBUG)
    source.propagate = False
    source.addHandler(handler)


def record(trigger: dict[str, Any]) -> None:
    """Write down what is done to database and files, and end at one of it."""
    paths = Path(trigger["tape"]), Path(trigger["folder"])
    tape = Tape(*paths, *(trigger[name] for name in ("first", "step", "at")))
    listen("aiosqlite", tape)
    sys.addaudithook(tape.heard)
    os.fsync = tape.fsync  # type: ignore[assignment]  # nothing in the program may know of it


def set_clocks(file: Path) -> None:
    """Let somebody else set the machine's clocks while the program runs: who sleeps on them wakes when
    they say so, after the signal SIGURG.

    Tests at the door run on this clock; those that start a daemon of their own run on the shipped one.
    """
    wall, steady = SystemClock.now, SystemClock.monotonic
    ahead: dict[str, float] = {}
    asleep: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def look() -> None:
        ahead.update(json.loads(file.read_text()))
        for _, bell in asleep:
            bell.set()

    def moved(*_: object) -> None:
        # Between two steps of the loop: nobody may see one clock moved and the other not yet.
        for loop in {loop for loop, _ in asleep}:
            loop.call_soon_threadsafe(look)
        if not asleep:
            look()

    def now(self: SystemClock) -> datetime:
        return wall(self) + timedelta(seconds=ahead["wall"])

    def monotonic(self: SystemClock) -> float:
        return steady(self) + ahead["steady"]

    async def sleep(self: SystemClock, seconds: float) -> None:
        await asyncio.sleep(0)
        until = monotonic(self) + seconds
        bell = asyncio.Event()
        mine = (asyncio.get_running_loop(), bell)
        asleep.add(mine)
        try:
            while (left := until - monotonic(self)) > 0:
                bell.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, self._longest_nap)):
                        await bell.wait()
        finally:
            asleep.discard(mine)

    signal.signal(signal.SIGURG, moved)
    signal.siginterrupt(signal.SIGURG, False)
    look()
    SystemClock.now = now  # type: ignore[method-assign]  # nothing in the program may know of it
    SystemClock.monotonic = monotonic  # type: ignore[method-assign]  # likewise
    SystemClock.sleep = sleep  # type: ignore[method-assign]  # likewise


def begin(trigger: dict[str, Any] | None, *, lifeline: bool) -> None:
    """Run the command line of this process; on a lifeline it ends with its standard input."""
    if lifeline:
        threading.Thread(target=die_with_parent, daemon=True).start()
    if trigger and "clock" in trigger:
        set_clocks(Path(trigger["clock"]))
    if trigger and "steps" in trigger:
        arm(trigger["logger"], [tuple(step) for step in trigger["steps"]])
    if trigger and "tape" in trigger:
        record(trigger)
    main()


if __name__ == "__main__":
    begin(json.loads(sys.argv.pop(1)), lifeline=True)
