"""A folder of pages that can be recalled, as small as one can be."""

from collections.abc import Mapping
from pathlib import Path

from wintermute.wiki.recall import RecalledPage, ambiguous, not_found

GARDEN = "# Garden\n\nThe roses are by the [[Pond]]."
POND = "# Pond\n\nThree carp."
SHED = "# Shed\n\nThe spade."
ATTIC = "# Attic\n\nBoxes."
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
    """Implements `PageSource`. Pages that begin with `OUTSIDE` come from outside."""

    def __init__(self, root: Path, pages: Mapping[str, str] = PAGES) -> None:
        self.root = root
        for path, text in pages.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    async def recalled(self, title: str) -> RecalledPage | str:
        found = [path for path in self._paths() if title in _meanings(path)]
        if len(found) > 1:
            return ambiguous(title, found)
        if not found:
            names = (path.rpartition("/")[2].removesuffix(".md") for path in self._paths())
            return not_found(title, [each for each in names if each.lower() == title.lower()])
        text = (self.root / found[0]).read_text("utf-8")
        return RecalledPage(found[0], text, text.startswith("OUTSIDE"))

    async def has_pages(self) -> bool:
        return any(not path.startswith("meta/") for path in self._paths())

    async def index(self) -> str:
        """What the prompt tells."""
        return f"Recall what is linked.\n\n{(self.root / 'meta/Index.md').read_text('utf-8')}"

    def _paths(self) -> list[str]:
        return sorted(str(file.relative_to(self.root)) for file in self.root.rglob("*.md"))


def _meanings(path: str) -> tuple[str, ...]:
    bare = path.removesuffix(".md")
    return (path, bare, bare.rpartition("/")[2])
