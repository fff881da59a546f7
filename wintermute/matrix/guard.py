"""The bulkhead around nio's reading of one to-device event: it may come from anybody."""

import logging
from collections.abc import Callable
from typing import Any

from nio import AsyncClient

from wintermute.clock import Clock
from wintermute.matrix.key_store import is_trouble

log = logging.getLogger(__name__)

QUIET_SECONDS = 60.0


class Bulkhead:
    """Makes one garbage event cost that event only (notes/matrix §6).

    The event is handled inside one transaction of nio's store: nio commits an Olm session and the
    Megolm session it carried apart, and a kill between the two would lose the room key for good.
    An event that could not be stored is no garbage: the whole sync is to come again (F-007).
    """

    def __init__(self, client: AsyncClient, dropped: Callable[[], None], clock: Clock) -> None:
        self._database = client.store.database
        self._inner = client.olm.handle_to_device_event
        self._dropped = dropped
        self._clock = clock
        self._untold = 0
        self._told_at: float | None = None

    def __call__(self, event: Any) -> Any:
        """nio's answer to the event; None for garbage."""
        try:
            with self._database.atomic():
                return self._inner(event)
        except Exception as error:  # bulkhead: see above
            if is_trouble(error):
                raise
            self._dropped()
            self._untold += 1
            now = self._clock.monotonic()
            if self._told_at is None:
                log.exception("to-device event dropped sender=%s", getattr(event, "sender", None))
            elif now - self._told_at >= QUIET_SECONDS:
                log.warning("to-device events dropped count=%s", self._untold)
            else:
                return None
            self._untold, self._told_at = 0, now
            return None


def install(client: AsyncClient, dropped: Callable[[], None], clock: Clock) -> None:
    """Put the bulkhead between nio and what it reads."""
    client.olm.handle_to_device_event = Bulkhead(client, dropped, clock)
    client.olm.handle_key_verification = lambda _event: None  # nio's own SAS asserts and raises
    # We never mark one in nio; it would ask its store for each message that it decrypts.
    client.olm.is_device_verified = lambda _device: False
