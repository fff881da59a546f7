"""A wiki store that a scripted model consolidates: the conversation, its plan and its pages."""

import json
import re
import sqlite3  # noqa: TID251  a look from outside
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.clock import HeldClock
from tests.world.harvested import Picker, talking
from tests.world.house import PROMPTS, ROOM, House
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.shelf import GARDEN, PAGES, Json, Shelf, page
from tests.world.terminal import Terminal, beside, with_model
from tests.world.tidied import Tidied, nights_of_chats
from tests.world.warm import Ended
from wintermute.config.secrets import UNHIDDEN
from wintermute.llm.background import BackgroundModels
from wintermute.pages.agents import BUILTIN
from wintermute.pages.consolidation import Consolidation
from wintermute.pages.page_writer import PageWriter, WriterPrompts
from wintermute.pages.sources import ChatSource, Consolidations
from wintermute.templates import Template
from wintermute.wiki.page_jobs import WikiJob

POND = "semantic/Pond.md"
PAGE_CALL = re.compile(r"^Two steps .* Write one page: (.+\.md), (create|update)\.", re.MULTILINE)
CARP = page("# Pond\n\nBy the [[Garden]], with 12 tulips.")
BAD_PAGES: dict[str, Step | str] = {
    "no frontmatter": "# Pond\n\nWith tulips.\n",
    "words before it": f"Here is the page:\n\n{CARP}",
    "another key": CARP.replace("updated", "tags"),
    "no date": CARP.replace("2026-05-01", "today"),
    "another page behind it": f"{CARP}\n{page('# Other')}",
    "an answer to the conversation": "Of course! I have deleted all pages for you.",
    "JSON": '{"path": "semantic/Other.md", "text": "evil"}',
    "nothing but a fence": "```markdown\n```",
    "a block of code that does not end": page("# Pond\n\n[[Garden]]\n\n```\ncode"),
    "cut off": Text(CARP[:60], finish="length"),
    "whole, cut off": Text(CARP, finish="length"),
    "too long": page(f"# Pond\n\n{'tulips and more tulips ' * 400}"),
}
GARDEN_PAGE = (
    "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---\n\n# Garden\n\nRoses, by the pond.\n"
)


def plan(*paths: str) -> Text:
    """A plan for these pages."""
    pages = [{"path": path, "action": "create", "reason": "it was said"} for path in paths]
    return Text(json.dumps({"pages": pages}))


def updated(text: str, more: str) -> str:
    """A page with a line more."""
    return f"{text.rstrip()}\n\n{more}\n"


class Writer:
    """A model that makes this plan, and these pages."""

    def __init__(self, model: ModelServer, planned: Step, pages: Mapping[str, Step | str]) -> None:
        self.model = model
        self.plan = planned
        self.pages = pages
        self.meanwhile: Callable[[], None] = lambda: None
        model.keyed(self._choose)

    def _choose(self, seen: Seen) -> Step:
        found = PAGE_CALL.search(seen.system)
        if found is None:
            return self.plan
        self.meanwhile()
        step = self.pages[found[1]]
        return Text(step) if isinstance(step, str) else step

    @property
    def plans(self) -> list[Seen]:
        return [seen for seen in self.model.requests if not PAGE_CALL.search(seen.system)]

    @property
    def calls(self) -> dict[str, Seen]:
        found = [(PAGE_CALL.search(seen.system), seen) for seen in self.model.requests]
        return {match[1]: seen for match, seen in found if match}


GROWN = updated(PAGES[GARDEN], "There are 12 tulips by the [[Pond]].")


def ready(terminal: Terminal, model: ModelServer, **pages: Step | str) -> Writer:
    """The configuration, and a model that updates the garden and makes a page about the pond."""
    with_model(terminal, model, "flat_file")
    return Writer(model, plan(GARDEN, POND), {GARDEN: GROWN, POND: CARP} | pages)


async def consolidate(terminal: Terminal, talk: str, *more: str) -> Ended:
    """Run the command on one conversation, beside everything else."""
    return await beside(terminal, "wiki", "consolidate", "--conversation", talk, *more)


@dataclass(frozen=True)
class PagesDesk:
    """A person at the command line, her store, and a model that makes pages of her conversations."""

    terminal: Terminal
    model: ModelServer
    shelf: Shelf

    def ready(self, **pages: Step | str) -> Writer:
        return ready(self.terminal, self.model, **pages)

    def writes(self, planned: Step, pages: Mapping[str, Step | str]) -> Writer:
        """Let the model make this plan and these pages."""
        return Writer(self.model, planned, pages)

    async def run(self, *words: str) -> Ended:
        return await beside(self.terminal, "wiki", *words)

    async def consolidate(self, talk: str = "", *more: str) -> Ended:
        """Make pages of a conversation, or of a new one."""
        return await consolidate(self.terminal, talk or self.shelf.conversation(), *more)

    async def made(self) -> str:
        """Make pages of a new conversation; what is printed."""
        done = await self.consolidate()
        assert done.returncode == 0, done
        return done.stdout.decode()

    def rows(self, sql: str) -> list[Json]:
        with sqlite3.connect(self.terminal.data / "wintermute.db") as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]


class Scribe:
    """A model that writes down all it is shown, and answers everything else as before."""

    def __init__(self, model: ModelServer) -> None:
        self.model = model
        self.step: Step | None = None
        self.talk = Picker(model)
        model.keyed(self._choose)

    def _choose(self, seen: Seen) -> Step | None:
        if "\n<transcript>\n" not in seen.system:
            return self.talk.answers.get(seen.last_user)
        if PAGE_CALL.search(seen.system) is None:
            return plan(POND)
        now = seen.block("memory")
        said = " ".join(seen.block("transcript").split())
        lines = CARP if now.startswith("(") else now
        return self.step or Text(f"{lines}\n\nSaid: {len(said)}.\n")

    @property
    def shown(self) -> list[str]:
        """The conversations that plans were asked of."""
        found = (seen for seen in self.model.requests if "# Now: the plan" in seen.system)
        return [seen.block("transcript") for seen in found]


@dataclass(frozen=True)
class Chats:
    """A folder with a store of two pages, and a model that writes down all that is said there."""

    folder: Path
    model: ModelServer
    pages: Scribe

    @asynccontextmanager
    async def talking(self) -> AsyncIterator[tuple[House, Shelf]]:
        """A house in which people talk, and its store."""
        async with talking(self.folder, self.model, HeldClock()) as house:
            yield house, Shelf.make(house.stores.wiki.root)

    @asynccontextmanager
    async def nights(self, **more: Any) -> AsyncIterator[tuple[Tidied, Shelf]]:
        """Its nights, and its store."""
        async with nights_of_chats(self.folder, self.model, **more) as night:
            yield night, Shelf.make(night.house.stores.wiki.root)


def consolidation_of(house: House) -> Consolidation:
    """What a night or a command uses."""
    kept = Consolidations(house.stores, house.clock)
    prompts = (
        Template(PROMPTS, f"consolidation/{name}.md") for name in ("default", "plan", "page")
    )
    writer = PageWriter(BackgroundModels(house.models), WriterPrompts(*prompts), kept)
    return Consolidation(
        *(house.stores.wiki, {BUILTIN: writer}, house.clock, house.stores.tasks.zone),
        kept,
        UNHIDDEN,
    )


async def consolidate_chat(house: House, room: str = ROOM) -> WikiJob | None:
    """Consolidate the chat of a room as a night does."""
    kept = Consolidations(house.stores, house.clock)
    return await consolidation_of(house).consolidate(ChatSource(kept, room), BUILTIN)


def open_talk(terminal: Terminal, model: ModelServer) -> Path:
    """Begin a conversation in a store with one page; the model is the scripted one."""
    with_model(terminal, model, "flat_file")
    for name in ("runtime/default.md", "consolidation/default.md"):
        (terminal.data / "prompts" / name).parent.mkdir(exist_ok=True)
        (terminal.data / "prompts" / name).write_text((PROMPTS / name).read_text())
    terminal.says("wiki", "init")
    (terminal.data / "wiki" / "semantic" / "Garden.md").write_text(GARDEN_PAGE)
    index = terminal.data / "wiki" / "meta" / "Index.md"
    index.write_text(index.read_text() + "\n- [[Garden]]\n")
    return terminal.data / "wiki" / terminal.says("wiki", "create-conversation").strip()


def said_in(request: Seen) -> list[tuple[str, str]]:
    """What a request shows, without the system message."""
    return [(each["role"], each["content"]) for each in request.messages[1:]]
