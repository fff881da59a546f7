"""Signals to the daemon, and its notifications to systemd.

SIGTERM and SIGINT stop it, SIGHUP reloads the configuration. systemd learns of the start, the end,
a reload, and that the daemon is alive.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.errors import ConfigurationError

log = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds; the supervisor's queue may be full
AT_WORK = "at work"


class Supervisor:
    """A client of systemd's sd_notify protocol; without NOTIFY_SOCKET it does nothing."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        allowed = environment.get("WATCHDOG_USEC", "")
        self._pause = int(allowed) / 2_000_000 if allowed.isdecimal() else None
        self._clock = clock
        self._pulsed = float("-inf")

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete."""
        self._tell("READY=1", _status(status))

    def status(self, text: str) -> None:
        """Report a status line for people."""
        self._tell(_status(text))

    def reloading(self) -> None:
        """Report that SIGHUP came; `ready` ends the reload."""
        since = time.monotonic_ns() // 1000  # systemd's clock does not count suspended time
        self._tell("RELOADING=1", f"MONOTONIC_USEC={since}", _status("reloads the configuration"))

    def stopping(self) -> None:
        """Report that SIGTERM came."""
        self._tell("STOPPING=1", _status("finishes what is being sent"))

    def pulse(self) -> None:
        """Reset the watchdog, at most twice in its interval, from the loops that must not hang."""
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
            log.warning("supervisor not notified line=%s reason=%s", lines[0], error)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"


class WatchedClock:
    """The clock of a loop that sleeps only after a failure: a retry is a sign of life as well.

    So the watchdog ends a loop that hangs, but never one that waits for a homeserver.
    """

    def __init__(self, clock: Clock, pulse: Callable[[], None]) -> None:
        self._pulse = pulse
        self._sleep = clock.sleep
        self.now = clock.now
        self.monotonic = clock.monotonic

    async def sleep(self, seconds: float) -> None:
        """Reset the watchdog and wait before the next attempt."""
        self._pulse()
        await self._sleep(seconds)


class Orders:
    """The orders that signals give: to stop, or to go on with the configuration as it is now."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config],
        usable: Callable[[Config], object],
        supervisor: Supervisor,
    ) -> None:
        """`usable` raises ConfigurationError for a configuration that cannot work."""
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
        """Set when the run with the present configuration has to end."""

    def stop(self) -> None:
        """Stop, after SIGTERM or SIGINT."""
        self._stopped, self._next = True, None
        self._supervisor.stopping()
        self.leaving.set()

    def reload(self) -> None:
        """Reload the configuration, after SIGHUP. If it has an error, that is reported and nothing changes."""
        if self._stopped:
            return
        self._supervisor.reloading()
        try:
            self._next = self._checked_config()
        except ConfigurationError as error:
            self._refuse(error)
            if self._proven is not None:  # else the start is not complete
                self._supervisor.ready(self._status)
        else:
            log.info("configuration read again")
            self._status = AT_WORK
            self.leaving.set()

    def _checked_config(self) -> Config:
        config = self._reread()
        if config.data_dir != self._config.data_dir:
            raise ConfigurationError("data_dir: another folder needs a restart")
        if _account(config) != _account(self._config):  # the stored keys belong to the old account
            raise ConfigurationError("matrix: another account or device needs a restart")
        self._usable(config)
        return config

    def next_config(self) -> Config | None:
        """Return the configuration for the next run; None: end."""
        config, self._next = self._next, None
        self._config = config or self._config
        self.leaving.clear()
        return config

    def ready(self) -> None:
        """Note that the first sync with the present configuration is complete."""
        self._proven = self._config
        self._waits_for = ""
        self._supervisor.ready(self._status)

    def outcome(self, problem: Exception | None) -> Exception | None:
        """Return the error that has to end the program. If a new configuration failed, go back to the old one."""
        if problem is None or self._stopped or self._proven in (None, self._config):
            return problem
        self._refuse(problem)
        self._next = self._next or self._proven
        return None

    def blocked(self, problem: Exception) -> None:
        """Note that nothing can be written: the same run begins again later. Logged once until it works again."""
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
