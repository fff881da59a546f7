"""Lines of pages go with the messages they came from, and nothing brings them back (M-082)."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.world.bot import Bot
from tests.world.consolidated import PAGE_CALL, plan
from tests.world.files import files_with
from tests.world.forgetting import OPEN_JOBS, SCRUBBED, forget_all, forgotten, is_gone
from tests.world.house import PROMPTS, ROOM
from tests.world.killing import Work
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.person import Person
from tests.world.redacted import take_back
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.shelf import INDEX, Shelf, page
from tests.world.tidied import OWNER, Tidied, open_nights
from wintermute.changes.decisions import WAITS
from wintermute.matrix.relations import Relations
from wintermute.memory.fact import NewFact
from wintermute.pages.page_lines import LineOrigin, find_origins, strip_marks

pytestmark = pytest.mark.breaks("edited wiki", "redaction", "forgetting", "tools", perhaps=True)

SHED = "semantic/Shed.md"
SAID = (
    "The shed got a new roof in May",
    "By the way, we keep the spades there",
    "The lock wants the year in which the zimtkanarie was bought",
    "And the ladder leans on the left wall",
    "That was all",
)
CANARY = "zimtkanarie"
HIDDEN = f"Whoever knows when the {CANARY} came opens the door"
WRITTEN = (
    f"# Shed\n\n{HIDDEN}. [3]\n\n- It has had a new roof since May [1]\n- Spades stand there [2].\n"
    f"- Its ladder leans beside what {CANARY}s open [3, 4]"
)


class ShedPages:
    """A model that plans one page, and writes it as it is told."""

    def __init__(self, model: ModelServer, *texts: str) -> None:
        self.texts = [page(text) for text in texts]
        self.shown: list[Seen] = []
        model.keyed(self._choose)

    def _choose(self, seen: Seen) -> Step | None:
        if "\n<transcript>\n" not in seen.system:
            return None
        self.shown.append(seen)
        if PAGE_CALL.search(seen.system) is None:
            return plan(SHED)
        return Text(self.texts.pop(0))


@asynccontextmanager
async def written(
    folder: Path, model: ModelServer, *texts: str
) -> AsyncIterator[tuple[Tidied, Shelf, ShedPages, Sequence[str]]]:
    """A night has made the page of five messages."""
    async with open_nights(folder, model, prompts=PROMPTS) as night, night.house.working():
        shelf = Shelf.make(night.house.stores.wiki.root)
        events = await night.house.say(*list(SAID))
        pages = ShedPages(model, *texts)
        await night.night("pages")
        yield night, shelf, pages, events


async def test_the_line_of_a_deleted_message_is_gone(tmp_path: Path, model: ModelServer) -> None:
    """M-082, W-008: from page, index, job files, change sets and prompts; rewritten from the rest.

    M-083: a line with a secret keeps its message; two that are the same without it go with either.
    """
    secrets = "\n- Wifi password: hunter2xyz [2]\n- PIN: 4711 [1]\n- PIN: 4712 [3]"
    again = (
        "# Shed\n\n- It has had a new roof since May\n- Spades stand there.\n"
        "- A ladder leans left [7]"
    )
    async with written(tmp_path, model, WRITTEN + secrets, again) as (night, shelf, pages, events):
        assert "[3" not in shelf.read(SHED)
        assert "- PIN: [secret]\n- PIN: [secret]\n" in shelf.read(SHED)
        assert f"[[Shed]]: {HIDDEN}" in shelf.read(INDEX)
        assert files_with(tmp_path)
        [item] = await night.items()
        await take_back(night.house, events[2])
        await forgotten(night.house)
        assert await night.house.database.scrub()
        assert files_with(tmp_path) == []
        body = shelf.read(SHED).partition("# Shed")[2]
        assert "roof since May\n- Spades stand there.\n" in body
        assert "- Wifi password: [secret]\n" in body
        assert not any(word in body for word in ("ladder", "PIN"))
        assert "[[Shed]]" in shelf.read(INDEX)
        del pages.shown[:]
        await night.night("pages")
        shown = [seen.system for seen in pages.shown]
        assert len(shown) == 2, pages.shown[-1].messages[1:]
        assert CANARY not in "".join(shown)
        assert "ladder leans on the left wall" in pages.shown[1].block("transcript")
        assert "- A ladder leans left\n" in shelf.read(SHED)
        change = await night.house.stores.changes.get(item.change_set or "")
        assert change is not None
        await night.house.stores.undo.apply(change)
        assert files_with(tmp_path) == []


FACT = "Anna's boat is called Petrel"
TOLD = {
    1: (
        f"[Monday, 2026-05-04]\nAnn (@ann:test): {FACT}\nassistant: A spare key hangs there.",
        "$1",
    ),
    2: ("Ann (@ann:test): she sails on Sundays\nassistant: Anna's boat again!", "$2"),
    3: ("Ann (@ann:test): the spare key hangs in the cellar", "$3"),
}


@pytest.mark.parametrize(
    ("line", "named", "before", "events", "lines"),
    [
        ("She sails on Sundays [2]", (2,), "", {"$2"}, set()),
        ("She sails on Sundays. [2, 3]", (2, 3), "", {"$2", "$3"}, set()),
        ("She sails on Sundays [2][3].", (2, 3), "", {"$2", "$3"}, set()),
        ("She sails [2]. On Sundays. [3]", (2, 3), "", {"$2", "$3"}, set()),
        ("| Sundays | She sails [2] |", (2,), "", {"$2"}, set()),
        ("She sails on Sundays [7]", (7,), "", set(), set()),
        ("She sails on Sundays", (), "", set(), set()),
        ("The Petrel sails on Sundays [2]", (2,), "", {"$1", "$2"}, set()),
        ("The spare key is downstairs [2]", (2,), "", {"$2", "$3"}, set()),
        ("Published [2024]", (), "", set(), set()),
        ("Her dog Rex sails with her [2]", (2,), "Anna has a dog, Rex", {"$2"}, {"Anna has a dog, Rex"}),
        ("Anna has a dog, Rex [3]", (3,), "Anna has a dog, Rex [3]", None, set()),
    ],
)  # fmt: skip
def test_what_a_line_came_from_is_checked_by_its_words(
    line: str, named: tuple[int, ...], before: str, events: set[str] | None, lines: set[str]
) -> None:
    """M-082: a number that was not shown is none; none named is all; words tell what was not named."""
    old = page(f"# Boat\n\n{before}")
    text, marks = strip_marks(page(f"# Boat\n\n{line}"), old, TOLD)
    assert sum(marks.values(), ()) == (named if events is not None else ())
    shown = {n: (said, (event,)) for n, (said, event) in TOLD.items()}
    told = find_origins(text, old, marks, shown, {})
    if events is None:
        assert (text, told) == (page(f"# Boat\n\n{line}"), {})
        return
    assert not named or "[" not in text
    [origin] = told.values()
    assert origin == LineOrigin(frozenset(events), frozenset(lines))


UNNAMED = f"# Shed\n\n{HIDDEN}.\n\n- It has had a new roof since May"


async def test_a_line_without_names_goes_with_any(tmp_path: Path, model: ModelServer) -> None:
    """M-082: also a short one, and what the page begins with in the index; the page waits to be anew."""
    async with written(tmp_path, model, f"{UNNAMED}\n- PIN 77") as (night, shelf, _, events):
        await take_back(night.house, events[4])
        await forgotten(night.house)
        assert [line for line in shelf.read(SHED).splitlines() if line.startswith(("-", "W"))] == [
            *("---", "---")
        ]
        assert shelf.read(INDEX).endswith("- [[Shed]]\n")
        assert [
            file for file in files_with(tmp_path, "pin 77") if not file.startswith("winter")
        ] == []
        [row] = await night.house.rows("SELECT after FROM changes WHERE item = ?", SHED)
        assert not any(word in row["after"] for word in ("PIN 77", "erased"))
        assert await night.house.rows("SELECT 1 FROM page_lines") == []


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_persons_line_is_asked_about(
    tmp_path: Path, model: ModelServer, answer: str
) -> None:
    """M-082, W-064, M-079: no model sees it until then, nor is it lost; a yes is for good."""
    mine, other = f"{HIDDEN}, says Ann", f"- The {CANARY}'s year opens the lock"
    again = "# Shed\n\n- It has had a new roof since May\n- Spades stand there.\n\nNew. [7]"
    async with written(tmp_path, model, WRITTEN, again, again) as (night, shelf, pages, events):
        mended = shelf.read(SHED).replace(f"{HIDDEN}.", f"{mine}.")
        shelf.write(SHED, mended.replace("- Spades", f"{mine}.\n- Spades"))
        shelf.write("semantic/Roses.md", page(f"# Roses\n\nRed.\n{other}\n{HIDDEN}.\n"))
        await take_back(night.house, events[2])
        await forgotten(night.house)
        wiki, roses = night.house.stores.wiki, "semantic/Roses.md"
        for path, line in ((SHED, mine), (roses, other), (roses, f"{HIDDEN}.")):
            assert line in shelf.read(path)
            recalled = await wiki.recalled(path)
            assert CANARY not in getattr(recalled, "text", CANARY)
        del pages.shown[:]
        await night.night("pages")
        assert CANARY not in json.dumps([seen.body for seen in model.requests[-2:]])
        assert "New." in shelf.read(SHED)
        assert shelf.read(SHED).count(mine) == 2
        [item] = await night.items("open")
        assert item.kind == "page lines"
        shown = await night.house.ask("/night")
        assert "Remove these lines from your pages?" in shown
        assert "semantic/Roses.md, line 9" in shown
        assert CANARY not in shown
        await night.night("pages")
        assert await night.items("open") == [item]
        await night.house.ask(f"/night {answer} {item.id}")
        await forgotten(night.house)
        assert (CANARY in shelf.read(SHED)) is (CANARY in shelf.read("semantic/Roses.md"))
        assert (mine in shelf.read(SHED)) is (answer == "no")
        recalled = await wiki.recalled(SHED)
        assert (mine in getattr(recalled, "text", "")) is (answer == "no")
        if answer == "yes":
            assert await night.house.database.scrub()
            assert files_with(tmp_path) == []
        else:  # another message with these words
            await deleted_by_somebody_else(night, await night.house.say(f"{mine}.\n{other}"))
            await night.night("pages")
            assert mine not in getattr(await wiki.recalled(SHED), "text", mine)
            assert len(await night.items("open")) == 1


async def deleted_by_somebody_else(night: Tidied, events: Sequence[str]) -> None:
    async with night.house.database.transaction() as tx:
        relations = Relations(night.house.stores, night.house.rooms)
        await relations.redact(tx, ROOM, events, asks=True)
    await forgotten(night.house)


@pytest.mark.parametrize("what", ["renamed", "undone", "before", "forgotten"])
async def test_a_line_goes_wherever_it_is(tmp_path: Path, model: ModelServer, what: str) -> None:
    """M-082: a page that a person renamed, one that was undone, one from before; by `/forget`."""
    async with written(tmp_path, model, WRITTEN) as (night, shelf, _, events):
        stores, [item] = night.house.stores, await night.items()
        made = await stores.changes.get(item.change_set or "")
        assert made is not None
        back = None
        if what == "renamed":
            (shelf.root / SHED).rename(shelf.root / "semantic" / "Hut.md")
        elif what == "undone":
            back = await stores.undo.apply(made)
        elif what == "before":
            async with night.house.database.transaction() as tx:
                await tx.execute("DELETE FROM page_lines")
        if what == "forgotten":
            fact = NewFact(OWNER, f"The {CANARY} is about the lock", "harvest", None, (events[2],))
            async with night.house.database.transaction() as tx:
                await stores.facts.take(tx, [fact])
            await forget_all(night.house)
        else:
            await take_back(night.house, events[2])
            await forgotten(night.house)
        if back is not None and back.set_id is not None:
            again = await stores.changes.get(back.set_id)
            assert again is not None
            await stores.undo.apply(again)
            assert "roof since May" in shelf.read(SHED)
        assert await night.house.database.scrub()
        assert files_with(tmp_path) == []
        hut = (shelf.root / "semantic" / "Hut.md").exists()
        left = shelf.read("semantic/Hut.md" if hut else SHED)
        assert ("roof since May" in left) is (what != "before")


async def test_what_others_delete_is_hidden_and_asked_about(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-082, F-027: one question is open as long as lines are withheld, after 14 days as well."""
    again = "# Shed\n\nRoof. [1]"
    async with written(tmp_path, model, WRITTEN, again) as (night, shelf, _, events):
        await deleted_by_somebody_else(night, [events[2]])
        assert HIDDEN in shelf.read(SHED)
        before = len(model.requests)
        await night.house.ask("and now?")
        await night.night("pages")
        assert CANARY not in json.dumps([seen.body for seen in model.requests[before:]])
        assert HIDDEN in shelf.read(SHED)
        [first] = await night.items("open")
        night.clock.advance(WAITS.total_seconds())
        assert "is no longer open" in await night.house.ask(f"/night no {first.id}")
        await night.night("pages")
        [item] = await night.items("open")
        await night.house.ask(f"/night yes {item.id}")
        await forgotten(night.house)
        assert await night.house.database.scrub()
        assert files_with(tmp_path) == []


async def tell_and_consolidate(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> tuple[Person, Bot, str, list[str]]:
    """Ann said it to a bot that made the page of it; the message with the canary, and our answer."""
    ShedPages(model, WRITTEN)
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    shelf = Shelf.make(daemon.data / "wiki")
    await daemon.start()
    chat = await room(ann, daemon)
    events = []
    for text in SAID:
        events.append(await ann.send(chat, text))
        await ann.wait_for_count(chat, daemon.user_id, len(events))
    await daemon.said_all()
    code, said = await daemon.command("wiki", "consolidate", "--conversation", chat)
    assert code == 0, said
    assert HIDDEN in shelf.read(SHED)
    assert HIDDEN in shelf.read(INDEX)
    answer = next(m for m in ann.events(chat) if m.body == f"echo: {SAID[2]}")
    return ann, daemon, chat, [events[2], answer.event_id]


async def test_a_message_that_is_deleted_at_the_client_leaves_the_page(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-082: from the client's redaction to the last file, the next request, and no wiki undo."""
    ann, daemon, chat, events = await tell_and_consolidate(person, bot, room, model)
    for event_id in events:
        await ann.redact(chat, event_id)
    await is_gone(ann, daemon, chat, model)
    assert "- Spades stand there.\n" in Shelf(daemon.data / "wiki").read(SHED)
    code, said = await daemon.command("wiki", "undo")
    assert (code, files_with(daemon.data)) == (0, []), said


@pytest.mark.slow
async def test_a_forgetting_of_lines_that_was_killed_ends_as_one_that_was_not(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-082, M-030: with pages and some records cut, and before it is known no more."""
    ann, daemon, chat, events = await tell_and_consolidate(person, bot, room, model)
    assert await daemon.stop() == 0
    daemon.set_clocks(3600.0, 3600.0)
    for event_id in events:
        await ann.redact(chat, event_id)

    def over() -> bool:
        return bool(daemon.rows(SCRUBBED)) and not daemon.rows(OPEN_JOBS)

    work = await Work.of_daemon(daemon, "INSERT INTO jobs", over, CANARY)
    steps = ("UPDATE outbox SET body", "DELETE FROM page_lines")
    await work.survives([[work.place(step)] for step in steps])
