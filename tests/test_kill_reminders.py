"""The daemon is killed at every step of a promise; each is still kept once, with its signs."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from tests.world.bot import Bot, meet, write_settings
from tests.world.delegating import done, objective
from tests.world.duties import (
    SYSTEM,
    Back,
    asks_model,
    in_,
    is_sign,
    is_text,
    kept,
    once,
    promise,
    run,
    signs,
)
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.proxy import Action, Cut, Proxy, Request, pass_after, pass_before
from tests.world.user import MatrixUser
from wintermute.schedule.words import REMINDER, SIGNS
from wintermute.tasks.asked import Asked

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEFORE, AFTER = "executing", "operation"
CLAIM, SETTLED = "INSERT INTO occurrences", "UPDATE occurrences SET state = 'done'"
PARTS, SENT_MARK = "INSERT INTO outbox_parts", "UPDATE outbox_parts SET state"
RUN_ENDS = "UPDATE occurrences SET state = ?, result"
WITHIN = 60.0
Steps = tuple[tuple[str, str], ...]
Wanted = Callable[[Request], bool]
Held = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Where to die, and what must be in the database then.

    `request`: whether it has been seen by the other side, and which. `first`: what is held of the
    task that was put in first; `rest`: of the others, None where they may be at several places.
    """

    name: str
    first: Held
    rest: Held | None = None
    steps: Steps = ()
    request: tuple[str, Wanted] | None = None


# Of a reminder: its status, occurrence, message, part of it; signs recorded as sent of a row.
DUE: Held = ("active", None, None, None, None)
CLAIMED: Held = ("active", "claimed", "waiting", None, None)
RENDERED: Held = ("active", "claimed", "waiting", "waiting", None)
SENT: Held = ("active", "claimed", "sent", "sent", None)
SETTLED_: Held = ("completed: delivered", "done", "sent", "sent", 0)
SIGNED: Held = ("completed: delivered", "done", "sent", "sent", 1)

REMINDER_POINTS = (
    Point("before claim", DUE, DUE, ((BEFORE, CLAIM),)),
    Point("before claim commit", DUE, DUE, ((BEFORE, CLAIM), (BEFORE, "COMMIT"))),
    Point("after claim commit", CLAIMED, CLAIMED, ((BEFORE, CLAIM), (AFTER, "COMMIT"))),
    Point("before parts commit", CLAIMED, CLAIMED, ((BEFORE, PARTS), (BEFORE, "COMMIT"))),
    Point("after parts commit", RENDERED, CLAIMED, ((BEFORE, PARTS), (AFTER, "COMMIT"))),
    Point("before send request", RENDERED, CLAIMED, request=("before", is_text)),
    Point("before send response", RENDERED, CLAIMED, request=("after", is_text)),
    Point("after send response", RENDERED, CLAIMED, ((BEFORE, SENT_MARK),)),
    Point("before sent mark", RENDERED, CLAIMED, ((BEFORE, SENT_MARK), (BEFORE, "COMMIT"))),
    Point("after sent mark", SENT, CLAIMED, ((BEFORE, SENT_MARK), (AFTER, "COMMIT"))),
    Point("before settle", SENT, None, ((BEFORE, SETTLED),)),
    Point("before settle commit", SENT, None, ((BEFORE, SETTLED), (BEFORE, "COMMIT"))),
    Point("after settle commit", SETTLED_, None, ((BEFORE, SETTLED), (AFTER, "COMMIT"))),
    Point("before request of a sign", SETTLED_, None, request=("before", is_sign)),
    Point("before response of a sign", SETTLED_, None, request=("after", is_sign)),
    Point("before sent mark of a sign", SETTLED_, None, ((BEFORE, SENT_MARK), (BEFORE, "COMMIT"))),
    Point("after sent mark of a sign", SIGNED, None, ((BEFORE, SENT_MARK), (AFTER, "COMMIT"))),
)
REMINDERS_HELD = (
    "SELECT t.content, t.status || iif(t.reason = '', '', ': ' || t.reason), o.state, m.state,"
    " p.state, (SELECT sum(q.state = 'sent') FROM outbox s LEFT JOIN outbox_parts q"
    "  ON q.outbox_id = s.id WHERE s.reacts_to = p.event_id)"
    " FROM tasks t LEFT JOIN occurrences o ON o.task_id = t.id LEFT JOIN outbox m"
    " ON m.id = o.outbox_id LEFT JOIN outbox_parts p ON p.outbox_id = m.id ORDER BY t.seq"
)
