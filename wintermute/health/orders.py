"""What signals ask of the daemon: to stop, or to go on as the configuration says now."""

import asyncio
import logging
from collections.abc import Callable

from wintermute.config.schema import Config
from wintermute.errors import ConfigurationError
from wintermute.health.notify import Supervisor

log = logging.getLogger(__name__)

AT_WORK = "at work"


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

    def taken(self) -> Config | None:
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

    def judged(self, problem: Exception | None) -> Exception | None:
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
