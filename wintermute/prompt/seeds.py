"""The text that opens a conversation, in the configured language."""

import logging
from collections.abc import Mapping
from pathlib import Path

from wintermute.templates import NOTHING_KEPT, Template

log = logging.getLogger(__name__)

FALLBACK = "SEED_en.txt"


def seed_template(folder: Path, language: str, kept: Mapping[str, str] = NOTHING_KEPT) -> Template:
    """The seed of a language; English, with a warning, where that has no file (P-057, P-058).

    Raises: ConfigurationError when even `SEED_en.txt` cannot be used (P-059).
    """
    english = Template(folder, FALLBACK, kept)
    name = f"SEED_{language}.txt"
    if (folder / name).exists():
        return Template(folder, name, kept)
    log.warning("seed file missing name=%s used=%s", name, FALLBACK)
    return english
