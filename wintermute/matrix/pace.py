"""How fast signs may follow each other, so that what a homeserver takes is left for answers."""

BURST = 10
PER_SECOND = 0.2
"""What Synapse takes from one user unless somebody lifts its limits (`rc_message`)."""
SPARE = 3
"""So many are always left for an answer, and for what counts as well and is not seen here: joining."""


class Pace:
    """Counts our events as a homeserver with Synapse's limits would.

    No homeserver tells its limits before they are reached. So signs go as fast as they can until it
    asks us to slow down for the first time, and from then on leave something over.
    """

    def __init__(self) -> None:
        self._limited = False
        self._counted = 0.0
        self._at = 0.0

    def sent(self, now: float) -> None:
        """An event of ours went out."""
        self._counted = self._still_counted(now) + 1

    def slowed(self, now: float) -> None:
        """The homeserver asks us to slow down: by its own count we have had all there is."""
        self._counted = max(self._still_counted(now), BURST)
        self._limited = True

    def sign(self, now: float) -> float:
        """Count a sign if it may go now, which is 0; else the seconds until it may be asked again."""
        over = self._still_counted(now) - (BURST - SPARE - 1)
        if self._limited and over > 0:
            return over / PER_SECOND
        self.sent(now)
        return 0.0

    def _still_counted(self, now: float) -> float:
        """What a homeserver still counts at this time."""
        self._counted = max(0.0, self._counted - (now - self._at) * PER_SECOND)
        self._at = now
        return self._counted
