"""What systemd is told of us: ready, still getting on, reloading, stopping."""

import logging
import socket
import time
from collections.abc import Callable, Mapping

from wintermute.clock import Clock

log = logging.getLogger(__name__)

PATIENCE = 1.0  # for a queue of the supervisor's that is full


class Supervisor:
    """Speaks sd_notify's protocol; without a NOTIFY_SOCKET there is nobody to tell."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        allowed = environment.get("WATCHDOG_USEC", "")
        self._pause = int(allowed) / 2_000_000 if allowed.isdecimal() else None
        self._clock = clock
        self._pulsed = float("-inf")

    def ready(self, status: str) -> None:
        """The start, or a reload, is over."""
        self._tell("READY=1", _status(status))

    def status(self, text: str) -> None:
        """One line for a person."""
        self._tell(_status(text))

    def reloading(self) -> None:
        """SIGHUP came; `ready` tells its end."""
        since = (
            time.monotonic_ns() // 1000
        )  # not the Clock's: the supervisor's does not count sleep
        self._tell("RELOADING=1", f"MONOTONIC_USEC={since}", _status("reloads the configuration"))

    def stopping(self) -> None:
        """SIGTERM came."""
        self._tell("STOPPING=1", _status("finishes what is being sent"))

    def pulse(self) -> None:
        """Something came round that must: tell the watchdog, twice in its time at most."""
        now = self._clock.monotonic()
        if self._pause is not None and now - self._pulsed >= self._pause:
            self._pulsed = now
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
                door.settimeout(PATIENCE)
                door.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError as error:
            log.warning("supervisor not told line=%s reason=%s", lines[0], error)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"


class Attempts:
    """The clock of a loop that sleeps only after a failure: trying again is getting on as well.

    So the watchdog bites a loop that hangs, and never one that waits for a homeserver.
    """

    def __init__(self, clock: Clock, pulse: Callable[[], None]) -> None:
        self._pulse = pulse
        self._sleep = clock.sleep
        self.now = clock.now
        self.monotonic = clock.monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait before the next attempt."""
        self._pulse()
        await self._sleep(seconds)
