"""The idle gate: when background work may ask a model (M-064).

It asks one question at a time, and none while a chat is being answered. On a server with a single slot, each
question would evict the chats' prompt cache, and the next answer would start from scratch: there it waits for the
night, or for six quiet hours.
"""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.llm.models import Models
from wintermute.stores import Stores

NIGHT = timedelta(hours=5)
SILENCE = timedelta(hours=6)
ANSWER_VALID = timedelta(hours=1)
"""Age up to which a server's answer about its slots is reused."""


def next_idle(now: datetime, last_said: datetime | None, zone: ZoneInfo, begins: time) -> datetime:
    """Return when it is quiet next, or `now` if it is. `begins`: start of the night in `zone`."""
    local = now.astimezone(zone)
    tonight = datetime.combine(local.date(), begins, zone)
    if tonight > local:
        tonight -= timedelta(days=1)
    if local - tonight < NIGHT or last_said is None:
        return now
    tomorrow = datetime.combine(tonight.date() + timedelta(days=1), begins, zone)
    return max(now, min(last_said + SILENCE, tomorrow.astimezone(now.tzinfo)))


class IdleGate:
    """Decides when a role may be asked in the background."""

    def __init__(self, stores: Stores, models: Models, dreaming: Dreaming, clock: Clock) -> None:
        self._stores = stores
        self._models = models
        self._begins = time(dreaming.hour, dreaming.minute)
        self._clock = clock
        self._known: dict[str, tuple[datetime, bool]] = {}

    async def wait_until(self, role: str) -> datetime | None:
        """Return the time to wait for; None: the role may be asked now."""
        now = self._clock.now()
        asked_at, wanted = self._known.get(role, (now - ANSWER_VALID, False))
        if not timedelta(0) <= now - asked_at < ANSWER_VALID:
            wanted = await self._models.evicts_chat_cache(role)
            self._known[role] = now, wanted
        if not wanted:
            return None
        last = await self._stores.inbox.last_said()
        quiet = next_idle(now, last, self._stores.tasks.zone, self._begins)
        return quiet if quiet > now else None
