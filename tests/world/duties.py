"""Puts tasks into the data folder of a real daemon, running or not, and counts what came of them."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from tests.world.bot import Bot
from tests.world.person import Person
from tests.world.proxy import Request
from wintermute.changes.change_sets import Reason
from wintermute.clock import Clock, SystemClock
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.stores import Stores
from wintermute.tasks.schedules import PlanRequest

SYSTEM = SystemClock()
LATE = re.compile(r" \(was due [^()]*\)$")


class Back:
    """The clock of the machine as it was some time ago: what is promised by it may be overdue."""

    def __init__(self, ago: timedelta) -> None:
        self._ago = ago

    def now(self) -> datetime:
        """Then."""
        return SYSTEM.now() - self._ago

    def monotonic(self) -> float:
        """As it is."""
        return SYSTEM.monotonic()

    async def sleep(self, seconds: float) -> None:
        """As it is."""
        await SYSTEM.sleep(seconds)


A_MINUTE_AGO = Back(timedelta(minutes=1))


def in_time(body: str) -> str:
    """A message as it was promised, without how late it is."""
    return LATE.sub("", body)


def in_(seconds: float) -> str:
    """That moment from now, as a schedule has it."""
    return (SYSTEM.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def once(at: str) -> PlanRequest:
    """A reminder."""
    return PlanRequest(schedule_type="once", at=at)


def run(at: str, prompt: str) -> PlanRequest:
    """Work of its own, whose result is posted."""
    return PlanRequest(
        schedule_type="once", at=at, execution_mode="autonomous_notify", ai_prompt=prompt
    )


async def promise(
    bot: Bot, person: str, room: str, asked: Mapping[str, PlanRequest], clock: Clock = A_MINUTE_AGO
) -> None:
    """Tasks of a person, as made in that direct chat.

    A minute ago: a busy machine may take longer than the seconds until they are due.
    """
    data, scope = bot.config.parent / "data", f"person:{person}"
    async with open_database(data / "wintermute.db") as database:
        stores = Stores.of(database, data, Owner(person), clock, new_id, timezone="Europe/Berlin")
        async with database.transaction() as tx:
            conversation = await stores.conversations.in_room(tx, room, scope)
            for content, each in asked.items():
                await stores.tasks.add(
                    tx,
                    Reason("command", scope),
                    content,
                    scope=scope,
                    request=each,
                    conversation_id=conversation,
                )


def is_all_kept(bot: Bot) -> bool:
    """Whether nothing that has been claimed is still to be done or said."""
    return not bot.rows(
        "SELECT 1 FROM occurrences WHERE state = 'claimed'"
        " UNION ALL SELECT 1 FROM outbox WHERE state = 'waiting'"
    )


class Open(NamedTuple):
    """A row that is still to be answered, done or said; `later`: when it is tried again."""

    table: str
    state: str
    room: str
    later: str | None
    about: str


def open_rows(bot: Bot) -> list[Open]:
    """What has been taken in or claimed and is not answered, done or said."""
    rows = bot.rows(
        "SELECT 'inbox' AS place, state, room_id, not_before, kind || ' ' || event_id FROM inbox"
        " WHERE state IN ('waiting', 'casting')"
        " UNION ALL SELECT 'outbox', state, room_id, NULL, kind || ' ' || id FROM outbox"
        " WHERE state = 'waiting'"
        " UNION ALL SELECT 'occurrence', coalesce(b.state, 'unsaid'), c.room_id, o.not_before,"
        " o.content FROM occurrences AS o JOIN conversations AS c ON c.id = o.conversation_id"
        " LEFT JOIN outbox AS b ON b.id = o.outbox_id WHERE o.state = 'claimed'"
    )
    return [Open(*row.values()) for row in rows]


def signs(person: Person, room: str) -> dict[str, Counter[str]]:
    """How often each sign is on each event."""
    found: dict[str, Counter[str]] = {}
    for event in person.events(room):
        if event.type == "m.reaction":
            about = event.content["m.relates_to"]
            found.setdefault(about["event_id"], Counter())[about["key"]] += 1
    return found


def is_sign(request: Request) -> bool:
    """Whether a request sends a sign; what it belongs to is readable, encrypted or not."""
    return sends(request) and b"m.annotation" in request.body


def is_text(request: Request) -> bool:
    """Whether a request sends a message."""
    return sends(request) and b"m.annotation" not in request.body


def sends(request: Request) -> bool:
    """Whether a request puts an event into a room."""
    return request.method == "PUT" and "/send/" in request.path


def asks_model(request: Request) -> bool:
    """Whether a request wants the model to go on."""
    return request.path.endswith("/chat/completions")


def is_send(request: Request) -> bool:
    """Decide whether a request sends an event into a room."""
    return request.method == "PUT" and "/send/m.room." in request.path
