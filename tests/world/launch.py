"""Starts the daemon as a process that can be made to die at a chosen database statement.

    python -m tests.world.launch '{"logger": "aiosqlite", "steps": [["executing", "COMMIT"]]}' run

The program itself knows nothing of this: the driver and nio's store log each statement at debug
level, and the handler here reads those lines. `{}` starts the daemon as it is. With `"clock"` its
clocks are as far ahead as that file says at any moment, in seconds: `{"wall": 7200, "steady": 0}`.
"""

import json
import logging
import os
import signal
import sys
import threading
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.world.homeserver import die_with_the_pipe
from wintermute.cli.main import main
from wintermute.clock import SystemClock


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
    source = logging.getLogger(logger)
    source.setLevel(logging.DEBUG)
    source.propagate = False
    source.addHandler(Killer(steps))


def set_clocks(file: Path) -> None:
    """Let somebody else set the machine's clocks while the program runs."""
    wall, steady = SystemClock.now, SystemClock.monotonic

    def ahead(which: str) -> float:
        return float(json.loads(file.read_text())[which])

    def now(self: SystemClock) -> datetime:
        return wall(self) + timedelta(seconds=ahead("wall"))

    def monotonic(self: SystemClock) -> float:
        return steady(self) + ahead("steady")

    SystemClock.now = now  # type: ignore[method-assign]  # nothing in the program may know of it
    SystemClock.monotonic = monotonic  # type: ignore[method-assign]  # likewise


def begin(trigger: dict[str, Any] | None, *, lifeline: bool) -> None:
    """Run the command line of this process; on a lifeline it ends with its standard input."""
    if lifeline:
        threading.Thread(target=die_with_the_pipe, daemon=True).start()
    if trigger and "clock" in trigger:
        set_clocks(Path(trigger["clock"]))
    if trigger and "steps" in trigger:
        arm(trigger["logger"], [tuple(step) for step in trigger["steps"]])
    main()


if __name__ == "__main__":
    begin(json.loads(sys.argv.pop(1)), lifeline=True)
