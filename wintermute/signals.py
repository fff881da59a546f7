"""What signals ask of the daemon, and what systemd is told of it.

To stop, or to go on as the configuration says now; ready, still getting on, reloading, stopping.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.errors import ConfigurationError

PATIENCE = 1.0  # for a queue of the supervisor's that is full
log = logging.getLogger(__name__)
AT_WORK = "at work"


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
        since = time.monotonic_ns() // 1000  # not the Clock's: the supervisor's counts no sleep
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


class WatchedClock:
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


class Orders:
    """What signals ask of us: to stop, or to go on as the configuration says now."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config],
        usable: Callable[[Config], object],
        supervisor: Supervisor,
    ) -> None:
        """`usable` raises ConfigurationError for a configuration that nobody can work with."""
        self._config = config
        self._next: Config | None = config
        self._proven: Config | None = None
        self._stopped = False
        self._waits_for = ""
        self._status = AT_WORK
        self._reread = reread
        self._usable = usable
        self._supervisor = supervisor
        self.leaving = asyncio.Event()
        """Set when whoever works with the present configuration has to end."""

    def stop(self) -> None:
        """SIGTERM or SIGINT."""
        self._stopped, self._next = True, None
        self._supervisor.stopping()
        self.leaving.set()

    def reload(self) -> None:
        """SIGHUP. What is wrong with the file is told, and everything stays as it is."""
        if self._stopped:
            return
        self._supervisor.reloading()
        try:
            self._next = self._fitting()
        except ConfigurationError as error:
            self._refuse(error)
            if self._proven is not None:  # else the start is not over
                self._supervisor.ready(self._status)
        else:
            log.info("configuration read again")
            self._status = AT_WORK
            self.leaving.set()

    def _fitting(self) -> Config:
        config = self._reread()
        if config.data_dir != self._config.data_dir:
            raise ConfigurationError("data_dir: another folder needs a restart")
        if _account(config) != _account(self._config):  # its keys are all we have of the old one
            raise ConfigurationError("matrix: another account or device needs a restart")
        self._usable(config)
        return config

    def next_config(self) -> Config | None:
        """The configuration to work with from now on; None: end."""
        config, self._next = self._next, None
        self._config = config or self._config
        self.leaving.clear()
        return config

    def ready(self) -> None:
        """The first sync with the present configuration is over."""
        self._proven = self._config
        self._waits_for = ""
        self._supervisor.ready(self._status)

    def outcome(self, problem: Exception | None) -> Exception | None:
        """What has to end us. A new configuration that cannot start gives way to the last one."""
        if problem is None or self._stopped or self._proven in (None, self._config):
            return problem
        self._refuse(problem)
        self._next = self._next or self._proven
        return None

    def blocked(self, problem: Exception) -> None:
        """Nothing can be written: go on with the same, later. Told once until we are at work again."""
        if self._stopped:
            return
        self._next = self._next or self._config
        if self._waits_for != str(problem):
            self._waits_for = str(problem)
            log.warning("waits until it can be written reason=%s", problem)
        self._supervisor.status(f"waits: {problem}")

    def _refuse(self, problem: Exception) -> None:
        for line in str(problem).splitlines():
            log.error("configuration refused, the old one stays problem=%s", line)
        self._status = f"configuration refused, the old one stays: {problem}"
        self._supervisor.status(self._status)


def _account(config: Config) -> tuple[object, ...]:
    return config.matrix.user_id, config.matrix.device_id, config.matrix.access_token
