"""`/forget WORDS` means whatever of a chat has them and a model could be shown (M-084, F-034)."""

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock, HeldClock
from tests.world.files import files_with, texts_below
from tests.world.folding import FEW
from tests.world.forgetting import IN_CLUB, edit_of, forgotten, furnish, import_lines, said_by
from tests.world.harvested import RANKED
from tests.world.house import PROMPTS, ROOM, SCOPE, House, house_at_work, open_house
from tests.world.model import Calls, ModelServer, Seen, Slow, Step, Text, Use, is_for_summary
from tests.world.remembering import worded
from wintermute.commands.forgetting import (
    FORGET_WHAT,
    FORGETTING,
    FORGETTING_HERE,
    INTERRUPTED,
    NOT_ASKED,
    NOTHING_LIKE_IT,
    TOO_EARLY,
)
from wintermute.config.schema import Memory
from wintermute.db.text_match import AllWordsMatcher

WORD = "zimtkanarie"
BEN: dict[str, Any] = {"sender": "@ben:test", "name": "Ben", "origin": "other"}

WORDS: list[tuple[str, str, bool]] = [
    (WORD, f"My **{WORD[:4]}**{WORD[4:]} sings", True),
    (WORD, f"<b>{WORD[:2]}</b>{WORD[2:]}", True),
    (WORD, f"a bird<br>{WORD}<br>of hers", True),
    (WORD, f"zimt\u00ad&#107;anarie: {WORD[:3]}", True),
    ("bird hugo", "Hugo is\n\n my  BIRD", True),
    ("cat", "a CAT.", True),
    ("cat", "category", False),
    ("bird", "birdhouses", True),
    ("1234567", "12345678", False),
    ("Ann's bird", "the bird of Ann", True),
    ("Türkis", "tu\u0308rkis", True),
    ("Ärger", json.dumps({"text": "Ärger"}), True),
    ("entry", json.dumps([{"name": "entry", "arguments": json.dumps({"entry": "x"})}]), False),
    ("мария", "МАРИЯ ушла", True),
    ("猫", "我有一只猫。", True),
    ("绿松石色", "最喜欢绿松\n石色", True),
    ("iphone", "用iPhone打电话", True),
    ("น้ำ", "ขอน้ำหน่อย", True),
    ("고양이", "우리 고양이는", True),
    ("पानी", "मुझे पानी दो", True),
]


@pytest.fixture(name="house")
def house_with_prompts(prompted_house: House) -> House:
    return prompted_house


@pytest.mark.parametrize(("said", "text", "has"), WORDS)
def test_words_are_whole_or_characters_without_blanks(said: str, text: str, has: bool) -> None:
    """M-084, F-034: closely, and at a glance over many."""
    words = AllWordsMatcher(said)
    assert words.are_in(text) == has
    rows = [b"nothing", text.encode(), b"\\u0001"]
    assert words.among(rows) == ([1] if has else [])


def knows(word: str) -> Any:
    """A model that keeps what has the word, says it again, and sums it up."""

    def choose(seen: Seen) -> Step:
        if is_for_summary(seen.body):
            return Text(f"They spoke of the {word}.")
        if word in seen.last_user and not any(m["role"] == "tool" for m in seen.messages[-1:]):
            entry = {"entry": f"Ann's bird is a {word}", "source": "user_explicit"}
            return Calls((Use("append_memory", entry),))
        return Text(f"I keep the {word}" if word in str(seen.messages) else "noted")

    return choose


async def answer_of(house: House, said: str, room: str = ROOM, **about: Any) -> str:
    """Say something in a room and return the answer."""
    await house.say(said, room=room, **about)
    while await house.deliver(room):
        pass
    return (await house.spoken(room))[-1]


@pytest.mark.quick("han")
@pytest.mark.parametrize("word", [WORD, "猫", "แมว"], ids=["latin", "han", "thai"])
@pytest.mark.breaks("fold", "forgetting", "edited core", perhaps=True)
async def test_all_kinds_are_listed_and_gone(tmp_path: Path, model: ModelServer, word: str) -> None:
    """M-084: answered long ago and before `/new`; summary, core, page, index; nothing is in view."""
    root = furnish(tmp_path / "wiki")
    bird = root / "semantic" / "Bird.md"
    index = root / "meta" / "Index.md"
    for path in (bird, index, root / "semantic" / "Garden.md"):
        path.write_text(path.read_text().replace(WORD, word))
    opened = open_house(tmp_path, model.url, prompts=PROMPTS, context=FEW)
    async with opened as house, house.working():
        house.stores.places.core(SCOPE).write_text(f"# USER\n- Has a {word}\n- Likes tea\n")
        model.keyed(knows(word))
        await house.say(f"My bird is a {word} called Hugo", "Tell me more", "and more", "/compact")
        await house.say("/new", f"The {word} sings", "What a fine day", f"/memory {word}")
        await house.say(f"/remind tomorrow 09:00 feed the {word}")
        question = await answer_of(house, f"/forget {word}")
        for kind in (
            "- 1 memory: ",
            "- 3 messages of yours: ",
            "- 1 summary",
            "- 1 line of what I",
        ):
            assert kind in question
        assert "- 4 lines of pages and their index: " in question
        assert "`/forget fact_" not in question
        assert "Your messages stay in the room until you delete them there." in question
        assert "only you can change them: the task 1 (`/tasks cancel 1`)" in question
        model.keyed(lambda _: None)
        await answer_of(house, "/forget yes")
        assert FORGETTING in await house.spoken()
        await forgotten(house)
        rest = await answer_of(house, f"/forget {word}")
        assert "- " not in rest
        assert "only you can change them: the task 1 (`/tasks cancel 1`)" in rest
        for task in await house.stores.tasks.listed(SCOPE, "all"):
            await house.say(f"/tasks cancel {task.number}")
        await house.say("And now?")
        assert word not in str(model.requests[-1].messages).replace(f"feed the {word}", "")
        pages = texts_below(root)
        assert [
            name
            for name in pages
            if not name.startswith(("sleep", "conv", "epis")) and word in pages[name]
        ] == []
        assert "Likes tea" in house.stores.places.core(SCOPE).read_text()
        views = "SELECT utterance || calls AS text FROM turns UNION SELECT summary FROM folds UNION SELECT context_block FROM casts"
        for row in await house.rows(f"{views} UNION SELECT text FROM facts"):
            assert word not in row["text"].replace(f"feed the {word}", "")


async def test_it_never_says_that_nothing_is_remembered_while_the_words_are_in_view(
    house: House, model: ModelServer
) -> None:
    """M-084: harvested or not; an answer of ours alone; `/forget` alone says how it is used."""
    model.script(Text(f"Perhaps a {WORD}?"))
    await house.say("Which bird shall I buy?")
    assert "- 1 answer of mine with these words" in await answer_of(house, f"/forget {WORD}")
    await answer_of(house, "/forget yes")
    await forgotten(house)
    assert await answer_of(house, f"/forget {WORD}") == NOTHING_LIKE_IT
    await import_lines(
        house, [json.dumps({"text": "tea", "id": "fact_b", "scope": "person:@b:test"})]
    )
    assert await answer_of(house, "/forget fact_b") == "I know no memory `fact_b` here."
    assert await answer_of(house, "/forget yes") == NOT_ASKED
    for nothing in ("/forget", "/forget  ", "/forget 🐶!"):
        assert await answer_of(house, nothing) == FORGET_WHAT
    await house.say("And now?")
    assert WORD not in str(model.requests[-1].messages)


@pytest.mark.breaks("edit", "forgetting", perhaps=True)
async def test_a_message_counts_in_each_of_its_wordings(house: House) -> None:
    """M-084: an edit that was noted and not answered; blanks and capitals in the yes do no harm."""
    first, _ = await house.say("I have a dog", "hello")
    assert not await worded(house, edit_of(first, f"I have a {WORD}", house))
    assert "- 1 message of yours" in await answer_of(house, f"/forget {WORD}")
    assert (await answer_of(house, "/Forget  YES")).startswith("I forget it for good")
    await forgotten(house)
    assert [row["text"] for row in await house.rows("SELECT text FROM edits")] == [""]
    assert "I have a dog" in await said_by(house, "@ann:test")


async def test_in_a_room_what_others_said_stays_and_their_forgetting_takes_nothing(
    house: House, model: ModelServer
) -> None:
    """M-084, M-010: what Ann said here in private before is neither shown nor touched."""
    model.script(Text(f"A {WORD}, in private"), Text("echo"))
    await house.say(f"Mine is a {WORD}, in private", room="!club:test")
    await house.say(f"We keep a {WORD}", **IN_CLUB, **BEN)
    await house.say(f"The {WORD} is loud", **IN_CLUB)
    await house.say(f"A {WORD}, said nobody to you", kind="context", **IN_CLUB, **BEN)
    theirs = await answer_of(house, f"/forget {WORD}", **IN_CLUB, **BEN)
    assert "- 2 messages of yours" in theirs
    assert "1 message of others in this room with these words would stay" in theirs
    assert "private" not in theirs
    assert await answer_of(house, "/forget yes", **IN_CLUB, **BEN) == FORGETTING_HERE
    await forgotten(house)
    mine = await answer_of(house, f"/forget {WORD}", **IN_CLUB)
    assert "- 1 message of yours" in mine
    assert "of others" not in mine
    assert await said_by(house, "@ben:test") == ["", "", "", "/forget yes"]
    assert f"A {WORD}, in private" in await house.spoken("!club:test")
    await answer_of(house, "/forget yes", **IN_CLUB)
    await forgotten(house)
    await house.say(f"Ben, no {WORD} any more", **IN_CLUB, **BEN)
    others = await answer_of(house, f"/forget {WORD}", **IN_CLUB)
    assert "1 message of others in this room with these words would stay" in others
    assert "of yours" not in others
    assert f"Mine is a {WORD}, in private" in await said_by(house, "@ann:test")
    turns = await house.rows("SELECT utterance FROM turns ORDER BY seq LIMIT 1")
    assert turns[0]["utterance"] == f"A {WORD}, in private"


async def test_over_fifty_things_need_a_yes_with_a_number(house: House, tmp_path: Path) -> None:
    """M-084: neither a bare yes will do, nor another number, nor one after something was said."""
    await import_lines(house, [json.dumps({"text": f"Bird {n} is a {WORD}"}) for n in range(60)])
    question = await answer_of(house, f"/forget {WORD}")
    assert "- 60 memories: " in question
    [one] = re.findall(r" `/forget (fact_\w+)` erases only the first memory\.", question)
    assert f"(`{one}`); " in question
    assert "`/forget yes 60`" in question
    assert len(question.splitlines()) < 8
    for wrong in ("/forget yes", "/forget yes 61"):
        assert await answer_of(house, wrong) == NOT_ASKED
        await answer_of(house, f"/forget {WORD}")
    assert (await answer_of(house, "/forget yes 60")).startswith("I forget it for good")
    await forgotten(house)
    assert await house.stores.facts.live(SCOPE) == []
    assert "I forgot what you confirmed today at" in await answer_of(house, "/forget yes 60")
    assert await house.database.scrub()
    assert files_with(tmp_path) == []


async def test_a_yes_counts_only_for_a_list_seen_before(tmp_path: Path, model: ModelServer) -> None:
    """U-015: not said in advance, and not after something else: then the command is named."""
    clock = FakeClock()
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.say(f"Mine is a {WORD}", f"/forget {WORD}", "/forget yes")
        assert (await house.spoken())[-1] == TOO_EARLY.format(WORD)  # of a list that still waits
        await answer_of(house, f"/forget {WORD}")
        clock.ahead = timedelta(seconds=-1)
        assert await answer_of(house, "/forget yes") == TOO_EARLY.format(WORD)
        clock.ahead = timedelta(0)
        for line in (f"/forget {WORD}", "/memory"):
            await answer_of(house, line)
        assert await answer_of(house, "/forget yes") == INTERRUPTED.format(WORD)
        assert await answer_of(house, "/forget yes") == NOT_ASKED
        await answer_of(house, f"/forget {WORD}")
        assert await answer_of(house, "/forget yes") == FORGETTING
        await forgotten(house)


@pytest.mark.parametrize("kept", [Memory(), RANKED], ids=["flat_file", "fts5"])
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_from_the_yes_on_nothing_shows_what_is_being_forgotten(
    tmp_path: Path, model: ModelServer, kept: Memory
) -> None:
    """U-015: all lines come at once; a cast elsewhere has it in view, and another is about it."""
    gate, held, clock = asyncio.Event(), list[Seen](), HeldClock()

    def slow(seen: Seen) -> Step | None:
        ends = seen.last_user.startswith("Bring") and seen.messages[-1]["role"] == "tool"
        if not ends and ([*held][1:] or not seen.last_user.startswith("Where")):
            return None
        held.append(seen)
        return Slow(gate, Text("unheard"))

    async def deliver() -> None:
        while any([await house.deliver(room) for room in (ROOM, "!vet:test", "!desk:test")]):
            pass

    opened = open_house(tmp_path, model.url, prompts=PROMPTS, memory=kept, clock=clock)
    async with opened as house, house.working():
        model.keyed(lambda seen: slow(seen) or knows(WORD)(seen))
        await house.say(f"My bird is a {WORD}", "And my bird?")
        await house.incoming(f"Bring my {WORD} to the vet", room="!vet:test")
        await model.request_arrived(before := len(model.requests) + 2)
        await house.incoming(f"/forget {WORD}")
        await house.said(3)
        await deliver()
        await house.incoming("Where is my bird?", room="!desk:test")
        await model.request_arrived(before + 1)
        assert WORD in str(held[-1].messages)
        lines = ("/forget yes", "/forget yes", "/why", "/memory", "/undo", "/undo", "And now?")
        for line in lines:
            await house.incoming(line)
        said = [*(await house.said(3 + len(lines)))[3:], *await house.said(1, "!desk:test")]
        assert said[:2] == [FORGETTING, FORGETTING]
        asked = [seen for seen in model.requests[before + 1 :] if "the vet" not in seen.last_user]
        assert WORD not in str([said, *(seen.messages for seen in asked)])
        gate.set()
        await house.said(1, "!vet:test")
        await deliver()
        await clock.move(60)
        await forgotten(house)
        await house.say("/undo", "/undo")
        assert await house.rows("SELECT * FROM facts") == []
