"""A wiki store in a folder, with pages and conversations that a test writes, and what jobs did to it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self

from tests.world.bot import Bot
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.pages import page_text
from wintermute.wiki.store import WikiStore

Json = dict[str, Any]
DAY = date(2026, 5, 1)
GARDEN = "semantic/Garden.md"
ROSES = "semantic/Roses.md"
INDEX = "meta/Index.md"
TALK = (("user", "I have planted 12 tulips by the pond."), ("assistant", "12 tulips, noted."))
LOOKS = ("SELECT", "PRAGMA")
Pages = dict[str, bytes]


def page(body: str, created: date = DAY, updated: date = DAY) -> str:
    """A page of these words."""
    return page_text(created, updated, body)


PAGES = {
    GARDEN: page("# Garden\n\nBehind the house since 2024. Anna waters it.\n\nSee [[Roses]]."),
    ROSES: page("# Roses\n\nThree red ones.\n\n```\nprune --in march\n```"),
    INDEX: page("# Index\n\n- [[Garden]]: what grows behind the house"),
}


@dataclass(frozen=True)
class Shelf:
    """A store."""

    root: Path

    @classmethod
    def make(cls, root: Path, pages: Mapping[str, str] = PAGES) -> Self:
        """One with these pages, which people wrote."""
        WikiStore(root).init(DAY, "Runtime.")
        made = cls(root)
        for path, text in pages.items():
            made.write(path, text)
        return made

    @property
    def files(self) -> StoreFolder:
        """What works on it."""
        return StoreFolder(self.root)

    def write(self, path: str, text: str) -> None:
        """Save a file, as an editor does."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())

    def read(self, path: str) -> str:
        """What stands in a file."""
        return (self.root / path).read_bytes().decode()

    def pages(self) -> dict[str, bytes]:
        """Every page and the index, byte for byte."""
        paths = [*(self.root / "semantic").rglob("*"), *(self.root / "episodic").rglob("*")]
        files = [path for path in (*paths, self.root / INDEX) if path.is_file()]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in files}

    def conversation(self, *messages: tuple[str, str], name: str = "20260504-101500") -> str:
        """A conversation in the store; its path there."""
        for n, (role, text) in enumerate(messages or TALK, 1):
            self.write(f"conversations/{name}/{n:04}-{role}.md", f"{text}\n")
        return f"conversations/{name}"

    def jobs(self) -> list[Json]:
        """What jobs say of themselves, the oldest first."""
        files = sorted(
            (self.root / "sleep").glob("2*/job.json"), key=lambda f: f.stat().st_mtime_ns
        )
        return [json.loads(file.read_text()) for file in files]

    def job(self) -> Json:
        """The only one."""
        [job] = self.jobs()
        return job

    def raw(self) -> dict[str, str]:
        """What was copied word for word."""
        files = (self.root / "episodic-raw").rglob("*.md")
        return {file.relative_to(self.root).as_posix(): file.read_text() for file in files}


def change(shelf: Shelf, path: str, after: str | None) -> FileChange:
    """A file of a store is to say this."""
    before = shelf.read(path) if (shelf.root / path).exists() else None
    return FileChange(path, before, after)


def shelf_of(bot: Bot) -> Shelf:
    """Return the wiki store of a bot."""
    return Shelf(bot.data / "wiki")


def pages_of(bot: Bot) -> Pages:
    """The pages as whoever comes next reads them."""
    shelf = shelf_of(bot)
    with shelf.files.reading():
        return shelf.pages()
