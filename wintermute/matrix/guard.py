"""The bulkhead around nio's reading of one to-device event: it may come from anybody."""

import logging
from collections.abc import Callable
from typing import Any

from nio import AsyncClient

log = logging.getLogger(__name__)


def install(client: AsyncClient, dropped: Callable[[], None]) -> None:
    """Make one garbage event cost that event only (notes/matrix §6).

    The event is handled inside one transaction of nio's store: nio commits an Olm session and the
    Megolm session it carried apart, and a kill between the two would lose the room key for good.
    """
    inner = client.olm.handle_to_device_event

    def guarded(event: Any) -> Any:
        try:
            with client.store.database.atomic():
                return inner(event)
        except Exception:  # bulkhead: see above
            log.exception("to-device event dropped sender=%s", getattr(event, "sender", None))
            dropped()
            return None

    client.olm.handle_to_device_event = guarded
    client.olm.handle_key_verification = lambda _event: None  # nio's own SAS asserts and raises
