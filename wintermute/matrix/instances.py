"""One installation for an account: each writes itself into the account's data, and a second one ends.

Two with devices of their own would both answer every message. (Two with the same device are copies
of one folder, see `copies`; so are those with one key for their marks.)
"""

import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from wintermute.clock import Clock
from wintermute.errors import AnotherInstallationRuns, SendRefused
from wintermute.health.health import Health
from wintermute.matrix.http import AccountData
from wintermute.matrix.inbox import mapping
from wintermute.messages import Json

log = logging.getLogger(__name__)

AT_WORK = "dev.wintermute.installation"
"""The type of the account data in which the one at work stands."""
REFUSED = "dev.wintermute.installation.refused"
"""The type in which the last one that found another at work stands, so that the other hears of it."""
WRITE_SECONDS = 300.0
YOUNG_MS = 600_000
LATEST = 2**53
NAME = re.compile(r"[\w.~/+=-]{1,64}", re.ASCII)
PART = "installations"
ANOTHER = (
    "another installation uses this account, as device {device}: stop it, or run `wintermute run"
    " --take-over` here, which ends it; if it is gone already, either wait ten minutes or take over."
    " A second bot needs an account of its own"
)
MET = "another one, device {device}, was started with this account -> one of them has to be stopped"


@dataclass(frozen=True, slots=True)
class Installation:
    """One at work. `since` and `at`: its start and its newest sign of life, by the homeserver's clock, in ms."""

    name: str
    device_id: str
    since: int
    at: int
    takes_over: bool = False


def read_installation(content: object) -> Installation | None:
    """The installation in account data, which anybody with our login may have written."""
    match mapping(content):
        case {"name": str(name), "device_id": str(device), "since": int(since), "at": int(at)}:
            named = NAME.fullmatch(name) and NAME.fullmatch(device)
            if named and 0 <= since < LATEST and 0 <= at < LATEST:
                takes_over = mapping(content).get("takes_over") is True
                return Installation(name, device, since, at, takes_over)
    return None


def met_in(sync: Json) -> tuple[tuple[str, Installation], ...]:
    """The installations that a sync tells of, each with the type that it stands in."""
    events = mapping(sync.get("account_data")).get("events")
    told = [mapping(event) for event in events] if isinstance(events, list) else []
    found = [(str(each.get("type")), read_installation(each.get("content"))) for each in told]
    return tuple((kind, each) for kind, each in found if each and kind in (AT_WORK, REFUSED))


def is_beside(ours: Installation, other: Installation | None, now: int) -> bool:
    """Whether another installation is there, and gave a sign of life not long ago."""
    own = other is None or other.name == ours.name or other.device_id == ours.device_id
    return not own and other is not None and abs(now - other.at) < YOUNG_MS


def gives_way(ours: Installation, other: Installation) -> bool:
    """Whether ours ends for the other: the first stays, unless one takes over."""
    if other.since - ours.at >= YOUNG_MS:  # asleep: it began when nobody was at work
        return True
    if ours.takes_over != other.takes_over:
        return other.takes_over
    ours_first = (ours.since, ours.name) < (other.since, other.name)
    return ours_first is ours.takes_over


class Installations:
    """Keeps ours at the homeserver, and ends it when it has to give way."""

    def __init__(
        self,
        data: AccountData,
        health: Health,
        clock: Clock,
        now: Callable[[], datetime],
        ours: Installation,
    ) -> None:
        """`now` is the homeserver's time, if that is known; `ours` has no times yet."""
        self._data = data
        self._health = health
        self._clock = clock
        self._wrote_at = 0.0
        self._now = now
        self._ours = ours

    async def arrive(self) -> None:
        """At the start, before anything is heard. Raises: AnotherInstallationRuns."""
        if self._ours.at:
            return
        try:
            other = read_installation(await self._data.kept_under(AT_WORK))
        except SendRefused as error:
            log.warning("account data refused reason=%s", error)
            other = None
        now = self._ms()  # by an answer of the homeserver
        ours = replace(self._ours, since=now, at=now)
        if other and is_beside(ours, other, now) and not ours.takes_over:
            await self._put(REFUSED, ours)
            raise AnotherInstallationRuns(ANOTHER.format(device=other.device_id))
        if await self._health.part(PART) is not None:
            await self._health.note(PART, "ok", "no other one uses this account")
        await self._write(ours)

    async def look_at(self, told: tuple[tuple[str, Installation], ...]) -> None:
        """A sync told of these; ours is written again when it is time. Raises: AnotherInstallationRuns."""
        now, again = self._ms(), False
        for kind, other in told:
            if not is_beside(self._ours, other, now):
                continue
            log.warning("another installation met device=%s", other.device_id)
            await self._health.note(PART, "warn", MET.format(device=other.device_id))
            if kind == AT_WORK and gives_way(self._ours, other):
                raise AnotherInstallationRuns(ANOTHER.format(device=other.device_id))
            again = again or kind == AT_WORK
        if again or self._clock.monotonic() - self._wrote_at >= WRITE_SECONDS:
            await self._write(replace(self._ours, at=now))

    async def _write(self, ours: Installation) -> None:
        await self._put(AT_WORK, ours)
        self._ours, self._wrote_at = ours, self._clock.monotonic()

    async def _put(self, kind: str, installation: Installation) -> None:
        try:
            await self._data.keep_under(kind, asdict(installation))
        except SendRefused as error:
            log.warning("account data refused reason=%s", error)

    def _ms(self) -> int:
        return int(self._now().timestamp() * 1000)
