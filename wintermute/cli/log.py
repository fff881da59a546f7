"""Logs on stderr for the person at 3 a.m.: one line per event, and never a secret."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

FORMAT = "%(levelname)s %(message)s part=%(name)s"
PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}

log = logging.getLogger(__name__)


class Lines(logging.Formatter):
    """Formats a record; everything that leaves goes through `redact`, tracebacks as well."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, redact: Callable[[str], str], *, journal: bool) -> None:
        super().__init__(FORMAT if journal else f"%(asctime)s {FORMAT}")
        self.converter = time.gmtime
        self._redact = redact
        self._journal = journal

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """One line, whatever line ends a message brings along."""
        return "\\n".join(super().formatMessage(record).splitlines())

    def format(self, record: logging.LogRecord) -> str:
        text = self._redact(super().format(record))
        if not self._journal:
            return text
        priority = f"<{PRIORITIES.get(record.levelname, 5)}>"
        return "\n".join(priority + line for line in text.splitlines())


def configure_logging(
    level: str, redact: Callable[[str], str], environment: Mapping[str, str]
) -> None:
    """Our own lines from `level` on, other libraries' from warnings on.

    Libraries log what they send and receive at lower levels: messages, keys, SQL. What nio warns
    of, keys that are missing, is told by ourselves, and once.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(redact, journal="JOURNAL_STREAM" in environment))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("nio").setLevel(logging.ERROR)
    logging.getLogger("wintermute").setLevel(level.upper())
    sys.excepthook = _crashed


def _crashed(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """A bug: told through the log, so that its traceback shows no secret either."""
    log.critical("crashed error=%s", kind.__name__, exc_info=(kind, error, traceback))
