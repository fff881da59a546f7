"""Problems that last are said once."""

import logging


class SaidOnce:
    """Warns of a problem of a scope when it begins or becomes another, not at each prompt."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, tuple[str, str]] = {}

    def warn(self, event: str, scope: str, problem: Exception) -> None:
        """`event` is what comes of it."""
        said = (event, str(problem))
        if self._last.get(scope) != said:
            self._last[scope] = said
            self._log.warning("%s scope=%s reason=%s", event, scope, problem)

    def over(self, scope: str) -> None:
        """All is well: the next problem is a new one."""
        self._last.pop(scope, None)
