"""What it costs to know who can read in a room, however many they are.

    python -m tests.bench_readers

A part of `make bench`; docs/benchmarks.md reports it.
"""

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench_runner import ms_since, show
from tests.world.clock import HeldClock
from tests.world.desk import ANN, BOT, POLICY, ROOM, Desk, at_desk
from tests.world.malformed import JOIN, Always, member
from tests.world.parts import Idle
from tests.world.proxy import Answer, Proxy
from tests.world.reading import Json
from wintermute.clock import CheckedClock
from wintermute.config.schema import Matrix
from wintermute.ids import new_id
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Account, may_read
from wintermute.matrix.outbox import Sender
from wintermute.matrix.rollback import RollbackDetection
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync import Door, open_door

ROUNDS = 200
MANY = 10_000
ROW = "| {} | {:.3f} ms | {:.3f} ms | {} |"
ACCOUNT = Account(BOT, "BOTDEVICE", "")


def told(people: int, *, came: bool) -> Answer:
    """What /sync says of a room with so many; `came`: they joined one by one just now."""
    members = [member(f"@n{n}:here", JOIN | {"displayname": f"N {n}"}) for n in range(people)]
    room: Json = {"state": {"events": [member(ANN), member(BOT)]}, "timeline": {"events": []}}
    room["timeline" if came else "state"]["events"] += members
    answer = {"next_batch": "s1", "rooms": {"join": {ROOM: room}}}
    return Answer(200, json.dumps(answer).encode())


def door_of(desk: Desk) -> Door:
    """The door that the client of a desk belongs to."""
    copies = RollbackDetection(desk.client, desk.stores.database, desk.clock, new_id)
    drafts = Drafts(desk.clock, shows=True)
    sender = Sender(desk.client, desk.stores, copies, desk.clock, POLICY, drafts)
    settings = Matrix(homeserver="", user_id=BOT, owner=ANN)
    about = (desk.client, desk.stores, sender, POLICY, settings, desk.clock, drafts)
    speaker = MatrixSpeaker(*about)
    clocks = (CheckedClock(desk.clock, None), desk.clock)
    parts = (speaker, sender, desk.work, copies, Idle(), lambda: None, clocks)
    return open_door(settings, POLICY, desk.client, desk.stores, *parts)


async def decision(people: int) -> list[str]:
    """What the sender asks itself before each attempt; the homeserver is asked nothing."""
    async with Proxy("http://127.0.0.1:9") as proxy:
        with tempfile.TemporaryDirectory() as name:
            async with at_desk(Path(name), proxy, HeldClock()) as desk:
                proxy.before = Always(told(people - 2, came=False)).before
                await door_of(desk).sync._round(None, 0.0)
                proxy.requests.clear()
                taken = [_decided(desk) for _ in range(ROUNDS)]
                assert not proxy.requests
    goal = "≤ 1 ms, no request"
    return [ROW.format(f"{people:,} members", statistics.median(taken), max(taken), goal)]


def _decided(desk: Desk) -> float:
    began = time.perf_counter()
    view = desk.client.room(ROOM)
    held = desk.client.is_held(ROOM)
    fits = may_read(view, view.scope, ACCOUNT, POLICY)
    private = may_read(view, f"person:{ANN}", ACCOUNT, POLICY)
    taken = ms_since(began)
    assert (held, fits, private) == (False, True, len(view.members) == 2)
    return taken


async def flood() -> list[str]:
    """Ten thousand join in one answer to /sync: from the request until all of it is stored."""
    taken = []
    for _ in range(3):
        async with Proxy("http://127.0.0.1:9") as proxy:
            with tempfile.TemporaryDirectory() as name:
                async with at_desk(Path(name), proxy, HeldClock()) as desk:
                    proxy.before = Always(told(MANY, came=True)).before
                    began = time.perf_counter()
                    await door_of(desk).sync._round("s0", 0.0)
                    taken.append(ms_since(began))
    name = f"{MANY:,} join at once, taken in"
    return [ROW.format(name, statistics.median(taken), max(taken), "-")]


async def rows() -> list[str]:
    """The table."""
    lines = ["| who can read | median | most | goal |", "|---|---|---|---|"]
    for people in (2, 100, MANY):
        lines += await decision(people)
    return [*lines, *await flood()]


if __name__ == "__main__":
    show(asyncio.run(rows()))
