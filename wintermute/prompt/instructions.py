"""The instructions as they stand in BASE_PROMPT.txt, or as they last stood there in order."""

import logging
from collections.abc import Mapping
from pathlib import Path

from wintermute.errors import ConfigurationError
from wintermute.prompt.sections import Section, parse
from wintermute.templates import NOTHING_KEPT, Template

log = logging.getLogger(__name__)

FILE = "BASE_PROMPT.txt"


class Instructions:
    """The newest good version of the file in `folder`; of `kept` where it is no text (F-031).

    Raises: ConfigurationError when it cannot be used at the start.
    """

    def __init__(self, folder: Path, kept: Mapping[str, str] = NOTHING_KEPT) -> None:
        self._file = Template(folder, FILE, kept)
        self._seen = self._file.text()
        self._sections = parse(self._seen, FILE)

    def sections(self) -> tuple[Section, ...]:
        """The sections as edited last (P-005). A broken edit is logged once, and ignored (P-030)."""
        text = self._file.text()
        if text != self._seen:
            self._seen = text
            try:
                self._sections = parse(text, FILE)
            except ConfigurationError as error:
                log.error("edited prompt refused, last one stays in use reason=%s", error)  # noqa: TRY400
        return self._sections
