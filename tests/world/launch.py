"""Starts the daemon as a process that can be made to die at a chosen database statement.

    python -m tests.world.launch '{"logger": "aiosqlite", "text": "COMMIT", "nth": 3, "phase": "after"}' run

The program itself knows nothing of this: the driver and nio's store log each statement at debug
level, and the handler here counts those lines. `{}` starts the daemon as it is.
"""

import json
import logging
import os
import signal
import sys
import threading
from functools import partial

from tests.world.homeserver import die_with_the_pipe
from wintermute.cli.main import main


class Killer(logging.Handler):
    """Ends this process by SIGKILL at the n-th matching statement."""

    def __init__(self, text: str, nth: int, phase: str) -> None:
        super().__init__()
        self._text = text
        self._left = nth
        self._begins = "operation" if phase == "after" else "executing"

    def emit(self, record: logging.LogRecord) -> None:
        statement = self._statement(record)
        if statement is None or self._text not in statement:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _statement(self, record: logging.LogRecord) -> str | None:
        if record.name == "peewee":
            return str(record.msg)
        if not str(record.msg).startswith(self._begins) or not isinstance(record.args, tuple):
            return None
        call = record.args[0]
        is_sql = isinstance(call, partial) and call.args and isinstance(call.args[0], str)
        return call.args[0] if is_sql else None


def arm(trigger: dict[str, str | int]) -> None:
    """Set the process up to die; nothing happens without a trigger."""
    if not trigger:
        return
    logger = logging.getLogger(str(trigger["logger"]))
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(
        Killer(str(trigger["text"]), int(trigger["nth"]), str(trigger.get("phase", "before")))
    )


if __name__ == "__main__":
    threading.Thread(target=die_with_the_pipe, daemon=True).start()
    arm(json.loads(sys.argv.pop(1)))
    main()
