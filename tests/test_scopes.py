"""Nothing of one person or room is ever shown to another: random lives, watched by the server.

Each text carries the canary of its scope; the model server refuses a request with two of them.
"""

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.house import ANN, House, house_at_work, open_house
from tests.world.model import Calls, ModelServer, Seen, Slow, Step, Text, Use, broken_rules, canary
from tests.world.request_rules import CANARY
from wintermute.config.schema import ComponentSizeLimits
from wintermute.conversation import replies
from wintermute.mailbox.inbox import OVERSIZE, SEED
from wintermute.messages import Json

PROMPTS = Path(__file__).parent.parent / "data" / "prompts"
TOOLS = ("append_memory", "task", "add_skill", "read_file", "write_file", "done")


@dataclass(frozen=True)
class Place:
    """A chat: who writes there, and whose memory it is."""

    room: str
    sender: str
    scope: str
    direct: bool

    @property
    def word(self) -> str:
        return canary(self.scope)


PLACES = (
    Place("!ann:test", ANN, f"person:{ANN}", True),
    Place("!bob:test", "@bob:test", "person:@bob:test", True),
    Place("!bob2:test", "@bob:test", "person:@bob:test", True),
    Place("!club:test", ANN, "room:!club:test", False),
    Place("!club:test", "@bob:test", "room:!club:test", False),
    Place("!team:test", "@bob:test", "room:!team:test", False),
)
SHOWN = {
    place.scope: "data/MEMORIES.txt"
    if place.sender == ANN and place.direct
    else f"data/scopes/{place.scope}/MEMORIES.txt"
    for place in PLACES
}


@asynccontextmanager
async def lives(model: ModelServer) -> AsyncIterator[tuple[House, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(PROMPTS, folder / "prompts")
        house = open_house(folder, model.url, prompts=folder / "prompts", language="en")
        async with house as opened, opened.working():
            yield opened, folder


async def talk(house: House, place: Place, text: str) -> None:
    await house.incoming(
        text,
        room=place.room,
        sender=place.sender,
        origin="owner" if place.sender == ANN else "other",
        scope=place.scope,
        direct=place.direct,
    )


CALLS: tuple[tuple[str, Json], ...] = (
    ("append_memory", {"entry": "likes WORD most"}),
    ("task", {"action": "add", "content": "buy WORD"}),
    ("task", {"action": "list", "status": "all"}),
    ("task", {"action": "complete", "id": "TASK", "reason": "WORD is done"}),
    ("task", {"action": "delete", "id": "TASK"}),
    ("read_file", {"path": "data/MEMORIES.txt"}),
    ("read_file", {"path": "FILE"}),
    ("read_file", {"path": "data/wintermute.db"}),
    ("read_file", {"path": "data/scopes"}),
    ("write_file", {"path": "FILE", "content": "WORD is all there is\n"}),
    ("write_file", {"path": "data/MEMORIES.txt", "content": "WORD is all there is\n"}),
)
COMMANDS = ("/memory", "/tasks", "/undo", "/new")
steps = st.lists(
    st.tuples(
        st.sampled_from(PLACES),
        st.one_of(
            st.sampled_from(CALLS).map(lambda call: ("call", call)),
            st.sampled_from(COMMANDS).map(lambda line: ("say", line)),
            st.just(("edit", "by hand")),
            st.just(("say", "and the WORD?")),
        ),
        st.integers(0, 5),
    ),
    min_size=4,
    max_size=14,
)


@pytest.fixture
def house(working_house: House) -> House:
    return working_house


@given(steps)
@settings(max_examples=examples(25))
def test_no_request_and_no_answer_shows_what_another_scope_knows(
    life: list[tuple[Place, tuple[str, Any], int]],
) -> None:
    """M-010, M-011, T-013, T-015, P-020: any people, rooms, facts, tasks, files and commands."""
    asyncio.run(_live(life))


async def _live(life: list[tuple[Place, tuple[str, Any], int]]) -> None:
    numbers = itertools.count(1)
    async with ModelServer() as model, lives(model) as (house, folder):
        for place, (kind, what), pick in life:
            tasks = await house.rows("SELECT id FROM tasks ORDER BY seq")
            other = PLACES[pick].scope
            fill = {
                "WORD": f"{place.word} {next(numbers)}",
                "TASK": tasks[pick % len(tasks)]["id"] if tasks else "task_00000000",
                "FILE": SHOWN[other],
            }
            model.keyed(lambda seen: None)
            if kind == "edit":
                file = house.stores.places.memories(place.scope)
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a") as opened:
                    opened.write(f"by hand {fill['WORD']}\n")
            elif kind == "call":
                name, args = what
                filled = json.dumps(args)
                for mark, value in fill.items():
                    filled = filled.replace(mark, value)
                model.keyed(_once(Use(name, filled)))
                await talk(house, place, f"please, {fill['WORD']}")
            else:
                await talk(house, place, str(what).replace("WORD", fill["WORD"]))
            await house.settled()
        for place in PLACES:
            prompt = await house.gather.system(place.scope, TOOLS, None)
            assert set(CANARY.findall(prompt)) <= {place.word}
            said = "\n".join(await house.spoken(place.room))
            assert set(CANARY.findall(said)) <= {place.word}
        assert not model.violations
        for scope, name in SHOWN.items():
            text = (folder / name.removeprefix("data/")).read_text() if _is(folder, name) else ""
            assert set(CANARY.findall(text)) <= {canary(scope)}


def _is(folder: Path, name: str) -> bool:
    return (folder / name.removeprefix("data/")).is_file()


def _once(use: Use) -> Callable[[Seen], Step | None]:
    """One call for a message, then an answer that repeats what the tool gave."""

    def choose(seen: Seen) -> Step | None:
        if seen.messages[-1]["role"] == "tool":
            return Text(f"it says: {seen.messages[-1]['content']}")
        return None if "<event" in seen.last_user else Calls((use,))

    return choose


def test_the_watching_server_sees_a_leak() -> None:
    """M-010: the check itself."""
    mine, theirs = PLACES[0].word, PLACES[1].word
    body: Json = {
        "messages": [{"role": "system", "content": mine}, {"role": "user", "content": "hi"}],
        "tools": [{"function": {"name": "done"}}],
    }
    assert broken_rules(body) == []
    body["messages"][1]["content"] = f"Ann said {theirs}"
    assert "several scopes" in broken_rules(body)[0]


@pytest.mark.parametrize("third", ["joins", "leaves"])
async def test_a_room_that_changes_its_people_starts_without_what_was_known(
    model: ModelServer, third: str
) -> None:
    """M-010, DESIGN §6: direct chat and group have memories of their own, in both directions."""
    direct = PLACES[0]
    group = Place(direct.room, ANN, f"room:{direct.room}", False)
    first, second = (direct, group) if third == "joins" else (group, direct)
    async with lives(model) as (house, _):
        model.keyed(_once(Use("append_memory", {"entry": f"likes {first.word}"})))
        await talk(house, first, f"remember {first.word}")
        await house.settled()
        model.keyed(lambda seen: None)
        await talk(house, second, f"what do I like? {second.word}")
        await house.settled()
    last = json.dumps(model.requests[-1].body)
    assert first.word not in last
    assert second.word in last


async def test_an_answer_made_before_somebody_came_in_is_not_given_to_them(
    house: House, model: ModelServer
) -> None:
    """M-010: what the person told in private was in view when the room became a group."""
    direct, room = PLACES[0], PLACES[0].room
    release = asyncio.Event()
    model.script(Slow(release, Text("You love the secret.")))
    await talk(house, direct, "what do I love?")
    await model.request_arrived(1)
    async with house.database.transaction() as tx:
        await house.conversations.in_room(tx, room, f"room:{room}")
    release.set()
    assert await house.said(1, room) == [replies.JOINED]
    await talk(house, Place(room, ANN, f"room:{room}", False), "hello")
    assert "hello" in (await house.said(2, room))[1]


async def test_a_private_cast_that_a_crash_interrupted_is_not_answered_to_a_group(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-010, L-051: the room got a third person while we were down; the model is not asked."""
    direct, room = PLACES[0], PLACES[0].room
    model.script(Text("noted"), Slow(asyncio.Event(), Text("never")))
    async with house_at_work(tmp_path, model.url) as house:
        await talk(house, direct, "my secret is the cellar")
        await house.said(1, room)
        await talk(house, direct, "what is it?")
        await model.request_arrived(2)
    async with open_house(tmp_path, model.url) as house:
        async with house.database.transaction() as tx:
            await house.conversations.in_room(tx, room, f"room:{room}")
        async with house.working():
            assert await house.said(2, room) == ["noted", replies.JOINED]
    assert len(model.requests) == 2


async def test_an_event_about_a_branch_that_is_over_is_dropped(model: ModelServer) -> None:
    """M-010, P-048, P-055: neither a private size nor an old greeting reaches the group."""
    direct, room = PLACES[0], PLACES[0].room
    group = Place(room, ANN, f"room:{room}", False)
    async with lives(model) as (house, _):
        await talk(house, direct, "hello")
        await house.said(2, room)
        row = await house.one("SELECT id FROM branches ORDER BY seq DESC LIMIT 1")
        await talk(house, group, "hello all")
        await house.settled()
        body = '<event kind="component_oversize" id="x">data/MEMORIES.txt is long</event>'
        for start in (OVERSIZE, SEED):
            event_id = f"{start}{row['id']}_late"
            await house.incoming(
                body, kind="event", origin="system", event_id=event_id, scope=group.scope, room=room
            )
        await house.settled()
        assert len(await house.spoken(room)) == 4
    assert "MEMORIES.txt is long" not in str([seen.body for seen in model.requests])


@pytest.mark.parametrize("kind", ["conversation_seed", "component_oversize"])
async def test_what_the_system_starts_for_others_does_not_reach_the_owners_files(
    tmp_path: Path, model: ModelServer, kind: str
) -> None:
    """M-011: whoever can make an event happen in a chat gains nothing by it."""
    notes, data = tmp_path / "notes", tmp_path / "data"
    notes.mkdir()
    data.mkdir()
    (notes / "diary.txt").write_text("the secret diary")
    shutil.copytree(PROMPTS, data / "prompts")

    def behave(seen: Seen) -> Step | None:
        if seen.messages[-1]["role"] == "tool":
            return Text(str(seen.messages[-1]["content"]))
        read = Use("read_file", {"path": "diary.txt"})
        write = Use("write_file", {"path": "new.txt", "content": "mine"})
        return Calls((read, write)) if kind in seen.last_user else None

    model.keyed(behave)
    limits = ComponentSizeLimits(memories=10)
    house_of = open_house(
        data, model.url, prompts=data / "prompts", roots=[notes], limits=limits, language="en"
    )
    async with house_of as house, house.working():
        bob = PLACES[1]
        (data / "scopes" / bob.scope).mkdir(parents=True)
        (data / "scopes" / bob.scope / "MEMORIES.txt").write_text("Bob likes long lines.\n")
        await talk(house, bob, "hi")
        await house.settled()
        said = "\n".join(await house.spoken(bob.room))
        gates = await house.rows("SELECT gate, is_error FROM observations ORDER BY seq")
    assert gates == [{"gate": "read_file", "is_error": 1}, {"gate": "write_file", "is_error": 1}]
    assert "secret diary" not in said
    assert [file.name for file in notes.iterdir()] == ["diary.txt"]
