"""The error boundary around nio's handling of one to-device event, which may come from anybody."""

import logging
from collections.abc import Callable
from typing import Any

from nio import AsyncClient

from wintermute.clock import Clock
from wintermute.matrix.key_store import is_trouble

log = logging.getLogger(__name__)

QUIET_SECONDS = 60.0


class Bulkhead:
    """Limits the damage of a malformed event to that event (notes/matrix §6).

    The event is handled in one transaction of nio's store: nio commits an Olm session and the
    Megolm session in it separately, and a kill between the two would lose the room key for good.
    If an event could not be stored, the error is raised, so that the whole sync is repeated
    (F-007).
    """

    def __init__(self, client: AsyncClient, dropped: Callable[[], None], clock: Clock) -> None:
        self._database = client.store.database
        self._inner = client.olm.handle_to_device_event
        self._dropped = dropped
        self._clock = clock
        self._unlogged = 0
        self._logged_at: float | None = None

    def __call__(self, event: Any) -> Any:
        """Return nio's answer to the event; None for a malformed one."""
        try:
            with self._database.atomic():
                return self._inner(event)
        except Exception as error:  # bulkhead: see above
            if is_trouble(error):
                raise
            self._dropped()
            self._unlogged += 1
            now = self._clock.monotonic()
            if self._logged_at is None:
                log.exception("to-device event dropped sender=%s", getattr(event, "sender", None))
            elif now - self._logged_at >= QUIET_SECONDS:
                log.warning("to-device events dropped count=%s", self._unlogged)
            else:
                return None
            self._unlogged, self._logged_at = 0, now
            return None


def install(client: AsyncClient, dropped: Callable[[], None], clock: Clock) -> None:
    """Install the error boundary in nio."""
    client.olm.handle_to_device_event = Bulkhead(client, dropped, clock)
    client.olm.handle_key_verification = lambda _event: None  # nio's own SAS asserts and raises
    # We never verify a device in nio, which would query its store for each decrypted message.
    client.olm.is_device_verified = lambda _device: False
