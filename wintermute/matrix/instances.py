"""One installation per account: each records itself in the account data, and a second one stops.

Two installations with different devices would both answer every message. Two with one device or
one tag key are copies of one data folder, which `rollback` detects. Both end with `AnotherCopyRuns`.
"""

import logging
import re
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from wintermute.clock import Clock
from wintermute.errors import AnotherCopyRuns, SendRefused
from wintermute.health.health import Health
from wintermute.matrix.key_store import INSTALLATION_TYPE, Epochs
from wintermute.messages import mapping

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 300.0
YOUNG = timedelta(minutes=10) // timedelta(milliseconds=1)
NAME = re.compile(r"[\w.~/+=-]{1,64}", re.ASCII)
PART = "installations"
ANOTHER = (
    "another installation uses this account, as device {device}: stop it, or run `wintermute run"
    " --take-over` here, which ends it. If it is gone already, wait ten minutes or take over. A"
    " second bot needs an account of its own"
)
ALSO_STARTED = (
    "another installation, device {device}, was started with this account -> stop one of them"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A running installation. `since`: its start; `at`: its last heartbeat.

    Both in milliseconds since 1970, so that the earlier of two starts in one second is known.
    `met`: the device of another installation that stopped because of this one.
    """

    name: str
    device_id: str
    since: int = 0
    at: int = 0
    takes_over: bool = False
    met: str = ""


def read_installation(content: object) -> Installation | None:
    """Parse the installation in account data, which anybody with our login may have written."""
    match mapping(content):
        case {"name": str(name), "device_id": str(device), "since": int(since), "at": int(at)}:
            optional = (
                mapping(content).get("takes_over") is True,
                str(mapping(content).get("met", "")),
            )
            if NAME.fullmatch(device) and NAME.fullmatch(optional[1] or "-"):
                return Installation(name, device, since, at, *optional)
    return None


def is_running_beside(ours: Installation, other: Installation, now: int) -> bool:
    """Check if another installation had a heartbeat recently."""
    own = other.name == ours.name or other.device_id == ours.device_id
    return not own and abs(now - other.at) < YOUNG


def has_to_stop(ours: Installation, other: Installation) -> bool:
    """Check if ours has to stop: the first one stays, unless one takes over."""
    if other.since - ours.at >= YOUNG:  # ours was suspended when the other one started
        return True
    if ours.takes_over != other.takes_over:
        return other.takes_over
    return ((ours.since, ours.name) < (other.since, other.name)) is ours.takes_over


class Installations:
    """Records our installation at the homeserver, and stops it if another one takes precedence."""

    def __init__(self, data: Epochs, health: Health, clock: Clock, ours: Installation) -> None:
        self._data = data
        self._health = health
        self._clock = clock
        self._wrote_at = 0.0
        self._ours = ours

    async def register(self) -> None:
        """Register our installation before the first sync. Raises: AnotherCopyRuns."""
        if self._ours.at:
            return
        try:
            other = read_installation(await self._data.fetch_account_data(INSTALLATION_TYPE))
        except SendRefused:
            other = None
        now = round(self._clock.now().timestamp() * 1000)
        if other and is_running_beside(self._ours, other, now) and not self._ours.takes_over:
            await self._write(replace(other, met=self._ours.device_id))
            raise AnotherCopyRuns(ANOTHER.format(device=other.device_id))
        if await self._health.part(PART) is not None:
            await self._health.note(PART, "ok", "no other installation uses this account")
        ours = replace(self._ours, since=now, at=now)
        await self._write(ours)
        self._ours = ours

    async def check(self, seen: Installation | None) -> None:
        """Check an installation from a sync; renew our heartbeat when due. Raises: AnotherCopyRuns."""
        now = round(self._clock.now().timestamp() * 1000)
        other = seen if seen and is_running_beside(self._ours, seen, now) else None
        other_device = other.device_id if other else seen.met if seen else ""
        if other_device and other_device != self._ours.device_id:
            log.warning("another installation met device=%s", other_device)
            await self._health.note(PART, "warn", ALSO_STARTED.format(device=other_device))
        if other and has_to_stop(self._ours, other):
            raise AnotherCopyRuns(ANOTHER.format(device=other.device_id))
        if other_device or self._clock.monotonic() - self._wrote_at >= HEARTBEAT_SECONDS:
            ours = replace(self._ours, at=now)
            await self._write(ours)
            self._ours = ours

    async def _write(self, installation: Installation) -> None:
        try:
            await self._data.set_account_data(INSTALLATION_TYPE, asdict(installation))
        except SendRefused as error:
            log.warning("account data refused reason=%s", error)
        self._wrote_at = self._clock.monotonic()
