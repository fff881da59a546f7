"""When work that nobody waits for may ask a model (M-064).

It asks one question at a time, and none beside a chat's. Where it shares the one slot of a server
with the chats, each question would push what a chat has read out of that server's memory, and the
next answer would be read for from the start: there it waits for the night, or for six quiet hours.
"""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.llm.models import Models
from wintermute.stores import Stores

NIGHT = timedelta(hours=5)
SILENCE = timedelta(hours=6)
KNOWN = timedelta(hours=1)
"""How long what a server said of itself is taken for true."""


def quiet_from(now: datetime, last_said: datetime | None, zone: ZoneInfo, begins: time) -> datetime:
    """When it is quiet next: `now`, if it is. `begins`: the night, by the clock of `zone`."""
    local = now.astimezone(zone)
    tonight = datetime.combine(local.date(), begins, zone)
    if tonight > local:
        tonight -= timedelta(days=1)
    if local - tonight < NIGHT or last_said is None:
        return now
    tomorrow = datetime.combine(tonight.date() + timedelta(days=1), begins, zone)
    return max(now, min(last_said + SILENCE, tomorrow.astimezone(now.tzinfo)))


class Quiet:
    """Says when a role may be asked while nobody waits."""

    def __init__(self, stores: Stores, models: Models, dreaming: Dreaming, clock: Clock) -> None:
        self._stores = stores
        self._models = models
        self._begins = time(dreaming.hour, dreaming.minute)
        self._clock = clock
        self._known: dict[str, tuple[datetime, bool]] = {}

    async def until(self, role: str) -> datetime | None:
        """Until when to wait; None: it may be asked now."""
        now = self._clock.now()
        asked_at, wanted = self._known.get(role, (now - KNOWN, False))
        if not timedelta(0) <= now - asked_at < KNOWN:
            wanted = await self._models.wants_quiet(role)
            self._known[role] = now, wanted
        if not wanted:
            return None
        last = await self._stores.inbox.last_said()
        quiet = quiet_from(now, last, self._stores.tasks.zone, self._begins)
        return quiet if quiet > now else None
