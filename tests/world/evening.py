"""An evening of four people with the bot and a model that comes and goes: what they can do in it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from tests.world.bot import Bot, Json
from tests.world.duties import open_rows, signs
from tests.world.homeserver import free_port
from tests.world.model import (
    Calls,
    Cut,
    Drip,
    Events,
    Fail,
    Hang,
    ModelServer,
    Seen,
    Slow,
    Step,
    Text,
    Use,
)
from tests.world.transcript import Deletion, Onlooker, Request, Ring, Told
from tests.world.user import CLIENT
from wintermute.conversation import replies
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.tasks import REMINDER_REACTIONS

SETTLED_SECONDS = 120.0
THINKS_SECONDS = 1.2
UNREACHABLE = replies.UNREACHABLE.split("{")[0]
TABLE = """
| day | place | km |
|---|---|---:|
| Sat | Annecy | 12 |

```python
def walk(km):
    return km * 12  # minutes
```

1. Pack *light*
2. Bring **water** and see [the map](https://example.org/map)
"""
LONG = " ".join(f"Sentence {n} about the long way round the lake." for n in range(1, 90))
SHAPES: dict[str, Step] = {
    "a table please": Text(f"ok: a table please\n{TABLE}"),
    "end without a word": Events(
        tuple(
            {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
            for piece in ("ok: end ", "without a word")
        )
    ),
    "think aloud": Text("<think>A thought of my own.</think>ok: think aloud"),
    "think late": Text("A thought of my own.\n</think>\n\nok: think late"),
    "too much": Text("ok: too much, and then it", finish="length"),
    "withheld": Text("", finish="content_filter"),
    "a long one please": Text(f"ok: a long one please. {LONG}"),
}
"""What answers can look like, each by what is asked for."""


class People(NamedTuple):
    """Who lives: Ann owns the bot, it listens to Ben and Cleo, and Eve is nobody it knows."""

    ann: Onlooker
    ben: Onlooker
    cleo: Onlooker
    eve: Onlooker


@dataclass(slots=True)
class Record:
    """What happened, for the verdict; moments are seconds since it began."""

    began: float = field(default_factory=time.monotonic)
    log: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    private: dict[str, set[str]] = field(default_factory=dict)
    """What each person said when alone with the bot."""
    requests: list[Request] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    tolds: list[Told] = field(default_factory=list)
    rings: list[Ring] = field(default_factory=list)

    def now(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        """Something that no client shows, now."""
        self.log.append(f"[{self.now():6.1f}] {text}")
        print(self.log[-1], flush=True)  # noqa: T201

    def problem(self, text: str) -> None:
        """Something that went wrong, now."""
        self.problems.append(text)
        self.note(f"!! {text}")


class Model:
    """A model that can be away; its answer follows from the last line it is asked, and repeats it."""

    def __init__(self, record: Record) -> None:
        self.hangs = True
        self._record = record
        self._breaks = 2
        self._port = free_port()
        self._server = ModelServer(default=self._answer, port=self._port)

    @property
    def url(self) -> str:
        """What a configuration has as `base_url`."""
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._server.__aexit__(kind, error, at)

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Its server is down inside this block."""
        await self._server.__aexit__(None, None, None)
        self._record.note("the model's server is gone")
        try:
            yield
        finally:
            self._server = ModelServer(default=self._answer, port=self._port)
            await self._server.__aenter__()
            self._record.note("the model's server is back")

    def _answer(self, seen: Seen) -> Step:
        if seen.is_probe:
            return Text("ok")
        whole = json.dumps(seen.messages, ensure_ascii=False)
        self._record.requests.append(Request(self._record.now(), whole))
        text = seen.last_user.strip()
        asked = text.splitlines()[-1]
        if asked == "</event>":
            return Text("Hello, I am Wintermute.")
        if "remember: " in text and seen.messages[-1]["role"] != "tool":
            return Calls((Use("append_memory", {"entry": text.rpartition("remember: ")[2]}),))
        return self._spoilt(asked) or SHAPES.get(asked) or _in_time(self._echo(asked, whole))

    def _spoilt(self, asked: str) -> Step | None:
        """What goes wrong, or takes its time."""
        if "poison" in asked:
            return Fail(500)
        if "hangs" in asked and self.hangs:
            return Hang()
        if "break off" in asked and self._breaks:
            self._breaks -= 1
            return Cut()
        if "slow: " in asked:
            return Drip(f"ok: {asked} and it goes on and on for a while yet", interval=0.35)
        return None

    def _echo(self, asked: str, whole: str) -> Step:
        if "secret" in asked:
            return Text("ok: I keep that to myself.")
        if "recite" in asked:
            texts = {text for texts in self._record.private.values() for text in texts}
            return Text(f"ok: {asked} {[text for text in sorted(texts) if text in whole]}")
        return Text(f"ok: {asked}")


def _in_time(step: Step) -> Step:
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(THINKS_SECONDS, gate.set)
    return Slow(gate, step)


@dataclass(frozen=True, slots=True)
class Evening:
    """The people, the rooms, the bot and the model of one life."""

    people: People
    rooms: dict[str, str]
    bot: Bot
    model: Model
    record: Record

    async def say(self, who: Onlooker, where: str, *texts: str, **content: object) -> str:
        """Say something and wait until nothing is left to answer; its event."""
        event_id = ""
        for text in texts:
            event_id = await self.drop(who, where, text, **content)
        await self.settle()
        return event_id

    async def drop(self, who: Onlooker, where: str, text: str, **content: object) -> str:
        """Say something without waiting for an answer."""
        room = self.rooms[where]
        if who.members(room) == {who.user_id, self.bot.user_id} and not text.startswith("/"):
            said = text.removeprefix("remember: ")
            self.record.private.setdefault(who.user_id, set()).add(said)
        return await who.send(room, text, **content)

    async def show(self, who: Onlooker, where: str, kind: str, **content: object) -> None:
        """Send a message of another kind than text."""
        await who.send_event(self.rooms[where], "m.room.message", {"msgtype": kind, **content})

    async def take_back(self, who: Onlooker, where: str, event_id: str, text: str) -> None:
        """Delete a message in the client."""
        await who.redact(self.rooms[where], event_id)
        self.record.deletions.append(Deletion(self.record.now(), text))

    async def settle(self) -> None:
        """Until all is answered and said."""
        await asyncio.sleep(1.5)  # until what was sent has arrived
        try:
            await self.bot.until(lambda: not open_rows(self.bot), SETTLED_SECONDS)
        except TimeoutError:
            self.record.problem(f"still open: {open_rows(self.bot)}")

    async def refused(self, who: Onlooker, where: str, text: str) -> None:
        """Say something while nobody listens for the model, and see how soon that is told."""
        room, bot = self.rooms[where], self.bot.user_id

        def told() -> int:
            return sum(m.body.startswith(UNREACHABLE) for m in who.messages(room, bot))

        before, began = told(), time.monotonic()
        await self.drop(who, where, text)
        await who.until(lambda: told() > before, 30, "a word about the model")
        self.record.tolds.append(Told(where, time.monotonic() - began))
        self.record.note(f"told in {where} after {self.record.tolds[-1].seconds:.1f} s")

    async def ring(self, who: Onlooker, where: str, reminder: str) -> None:
        """Wait for a reminder and its signs, and count the notifications."""
        room, bot = self.rooms[where], self.bot.user_id
        unread, said = await self._unread(who, room), len(who.messages(room, bot))
        came = await who.wait_for(room, lambda m: m.body.startswith(f"{REMINDER}{reminder}"), 120)
        await who.until(
            lambda: signs(who, room).get(came.event_id) == Counter([*REMINDER_REACTIONS])
        )
        others = len(who.messages(room, bot)) - said - 1
        times = await self._unread(who, room) - unread - others
        self.record.rings.append(Ring(reminder, times))

    async def _unread(self, who: Onlooker, room: str) -> int:
        _, answer = await who.api("GET", f"{CLIENT}/sync?timeout=0")
        return int(answer["rooms"]["join"][room]["unread_notifications"]["notification_count"])


def reply_to(event_id: str) -> Json:
    """What a message has beside its text when it is a reply."""
    return {"m.relates_to": {"m.in_reply_to": {"event_id": event_id}}}


def mention(*users: str) -> Json:
    """What a message has beside its text when its client says whom it mentions."""
    return {"m.mentions": {"user_ids": list(users)}}
