"""A folder of pages that can be recalled, as small as one can be."""

from collections.abc import Mapping
from pathlib import Path

GARDEN = "# Garden\n\nThe roses are by the [[Pond]]."
POND = "# Pond\n\nThree carp."
SHED = "# Shed\n\nThe spade."
ATTIC = "# Attic\n\nBoxes."
CITED = "[[episodic-raw/20261101/mail/0001-user]]"
PAGES = {
    "meta/Index.md": "# Index\n\n[[Garden]] [[Pond]] [[Shed]] [[Attic]]",
    "semantic/Garden.md": GARDEN,
    "semantic/Pond.md": POND,
    "semantic/Shed.md": SHED,
    "semantic/Attic.md": ATTIC,
    "semantic/Trip.md": "# Trip\n\nLyon.",
    "episodic/Trip.md": "# Trip\n\nOslo.",
}


class FilePages:
    """The folder of a store. Pages that begin with `OUTSIDE` come from a conversation with text from outside."""

    def __init__(self, root: Path, pages: Mapping[str, str] = PAGES) -> None:
        self.root = root
        for path, text in pages.items():
            self.write(path, text)
        self.write("meta/outside.json", '["episodic-raw/20261101/mail"]')

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("OUTSIDE", CITED), "utf-8")
