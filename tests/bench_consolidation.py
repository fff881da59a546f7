"""What making pages of a conversation costs beside the model: seconds in a large store.

    python -m tests.bench_consolidation [--pages 10000] [--messages 200] [--folder FOLDER]

A store of so many pages with four links each, a conversation of so many messages, a scripted model
that changes two pages and makes one. Cold: nothing of the store is in our memory, as in a command;
warm: its pages were read before, as in a daemon. What the model takes is counted apart.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench_runner import TimedModels, options, show
from tests.world.consolidated import PAGE_CALL
from tests.world.house import PROMPTS, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.shelf import Shelf, page
from wintermute.config.secrets import UNHIDDEN
from wintermute.llm.background import BackgroundModels
from wintermute.pages.agents import BUILTIN
from wintermute.pages.consolidation import Consolidation
from wintermute.pages.page_writer import PageWriter, WriterPrompts
from wintermute.pages.sources import Consolidations, FolderSource
from wintermute.templates import Template
from wintermute.wiki.conversations import ConversationFolder
from wintermute.wiki.store import WikiStore

GOAL = 0.5
ROUNDS = 5
LINKS = 4
WORDS = "Some words of a page that is about something else. " * 20


def fill(shelf: Shelf, pages: int) -> None:
    """Pages that link to each other, and an index that leads to one."""
    choice = random.Random(1)
    shelf.write("meta/Index.md", page("# Index\n\n- [[Page 0]]"))
    for n in range(pages):
        others = [(n + 1) % pages, *(choice.randrange(pages) for _ in range(LINKS - 1))]
        links = " ".join(f"[[Page {each}]]" for each in others)
        folder = "semantic" if n % 2 else "episodic"
        shelf.write(f"{folder}/Page {n}.md", page(f"# Page {n}\n\n{WORDS}\n\nSee {links}."))


def answers(seen: Seen) -> Step:
    """Two pages get a line more, a third is new."""
    if PAGE_CALL.search(seen.system) is None:
        paths = ["episodic/Page 2.md", "semantic/Page 3.md", f"semantic/New {time.time_ns()}.md"]
        entries = [{"path": path, "action": "update", "reason": "it was said"} for path in paths]
        return Text(json.dumps({"pages": entries}))
    now = seen.block("memory")
    return Text(
        page("# New\n\nNew words, see [[Page 3]].") if now[0] == "(" else f"{now}\n\nMore.\n"
    )


def at_work(house: House, store: WikiStore) -> Consolidation:
    kept = Consolidations(house.stores, house.clock)
    prompts = (
        Template(PROMPTS, f"consolidation/{name}.md") for name in ("default", "plan", "page")
    )
    writer = PageWriter(BackgroundModels(house.models), WriterPrompts(*prompts), kept)
    zone = house.stores.tasks.zone
    return Consolidation(store, {BUILTIN: writer}, house.clock, zone, kept, UNHIDDEN)


async def measured(house: House, talk: str, *, warm: bool) -> float:
    """Seconds of one consolidation, without those of the model."""
    store = WikiStore(house.stores.wiki.root)
    if warm:
        store.pages()
    folder = ConversationFolder(store.root, talk)
    models, work = house.models, at_work(house, store)
    assert isinstance(models, TimedModels)
    models.seconds = 0.0
    began = time.perf_counter()
    job = await work.consolidate(FolderSource(store.root, folder), BUILTIN)
    took = time.perf_counter() - began - models.seconds
    assert job is not None
    assert job.status == "applied", job.reason
    return took


async def main(pages: int, messages: int, folder: Path) -> None:
    async with (
        ModelServer(default=answers) as model,
        open_house(folder, model.url, models_type=TimedModels) as house,
    ):
        shelf = Shelf.make(house.stores.wiki.root, {})
        fill(shelf, pages)
        said = [("user" if n % 2 else "assistant", f"words {n} " * 20) for n in range(messages)]
        talk = shelf.conversation(*said)
        await measured(house, talk, warm=True)
        show([f"{pages:,} pages, {messages} messages; seconds beside the model (goal ≤ {GOAL})"])
        for name, warm in (("warm", True), ("cold", False)):
            took = [await measured(house, talk, warm=warm) for _ in range(ROUNDS)]
            show([f"| {name} | {statistics.median(took):.2f} | {max(took):.2f} |"])


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        asyncio.run(main(given.pages, given.messages, Path(place)))
