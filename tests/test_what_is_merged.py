"""What is merged and what is not, and which messages a merged memory goes with; entered by a chat."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world.clock import until_so
from tests.world.forgetting import deliver, forgotten
from tests.world.house import ROOM, SCOPE
from tests.world.model import ContextTooLarge, Seen, Step
from tests.world.reconstructed import QUIET, Chat, chat, reconstruction
from tests.world.redacted import take_back
from tests.world.request_rules import is_for_reconstruction
from tests.world.terminal import Terminal, beside, keep_by
from wintermute.learning.reconstruction import KIND


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Chat]:
    async with chat(tmp_path) as talk:
        yield talk


def asked_for(seen: Seen) -> list[str]:
    """The new contents of a question."""
    new = seen.system.partition("\n<new_contents>\n")[2]
    return [line[2:] for line in new.splitlines() if line.startswith("- ")]


async def origins(talk: Chat) -> dict[str, set[str]]:
    """Of each memory that is remembered the messages that it came from."""
    rows = await talk.house.rows(
        "SELECT text, origins FROM facts WHERE retired_at IS NULL AND NOT ended"
    )
    return {row["text"]: set(json.loads(row["origins"])) for row in rows}


async def test_what_is_too_large_alone_makes_no_questions_of_one_of_the_others(talk: Chat) -> None:
    """M-035, L-036: it stays as it is, and what comes after it is one batch again."""
    large, small = "Ann keeps stones", [f"Room {n} is painted green" for n in range(7)]
    sizes: list[int] = []

    def choose(seen: Seen) -> Step | None:
        if not is_for_reconstruction(seen.body):
            return talk.answer(seen)
        new = asked_for(seen)
        sizes.append(len(new))
        return ContextTooLarge() if large in new else reconstruction(*new)

    async def is_done() -> bool:
        return await talk.queued() == 0

    talk.model.keyed(choose)
    await talk.told(large, *small)
    await talk.clock.move(QUIET)
    talk.house.runner.wake(KIND)
    await until_so(is_done)
    assert await talk.remembered() == [large, *small]
    assert sizes == [8, 4, 2, 1, 7]


WORKS = "Ann works for Acme, where the boss is Bob"
MADE_OF = {
    "one fact in two memories": (
        ["Ann lives in Rome and works for Acme", "The boss at Acme is Bob"],
        ["Ann lives in Rome", WORKS],
        {"Ann lives in Rome": {0}, WORKS: {0, 1}},
    ),
    "a not from elsewhere": (
        ["Ann eats meat, never fish", "Ann eats fish"],
        ["Ann eats meat", "Ann never eats fish"],
        {"Ann eats meat": {0}, "Ann never eats fish": {0, 1}},
    ),
    "a name that all have": (
        ["Ann has a dog called Rex", "Ann plays chess", "Ann is a nurse"],
        ["Ann has a dog called Rex", "Ann plays chess well", "Ann is a nurse"],
        {"Ann has a dog called Rex": {0}, "Ann plays chess well": {1}, "Ann is a nurse": {2}},
    ),
    "three in one": (
        ["Ann has a dog", "The dog is called Rex", "Rex is brown"],
        ["Ann has a brown dog called Rex"],
        {"Ann has a brown dog called Rex": {0, 1, 2}},
    ),
}


@pytest.mark.parametrize(("new", "memories", "sources"), MADE_OF.values(), ids=MADE_OF)
async def test_a_memory_goes_with_each_message_that_a_word_of_it_is_from(
    talk: Chat, new: list[str], memories: list[str], sources: dict[str, set[int]]
) -> None:
    """M-030."""
    for text in new:
        await talk.told(text)
    said = await origins(talk)
    await talk.worked(reconstruction(*memories))
    made = await origins(talk)
    for text, numbers in sources.items():
        assert made[text] == set[str]().union(*(said[new[n]] for n in numbers)), text


async def test_what_half_of_a_deleted_message_went_into_goes_with_it(talk: Chat) -> None:
    """M-030: also where the other half became another memory."""
    new, memories, _ = MADE_OF["one fact in two memories"]
    talk.model.allow("forgetting", "redaction", perhaps=True)
    for text in new:
        await talk.told(text, room=ROOM)
    (first,) = (await origins(talk))[new[0]]
    await talk.worked(reconstruction(*memories))
    await deliver(talk.house)
    await take_back(talk.house, first)
    await forgotten(talk.house)
    assert await talk.remembered() == [new[1]]


async def test_what_ends_on_a_day_is_not_merged_and_keeps_its_end(terminal: Terminal) -> None:
    """M-074: neither as what is new nor as what is related, and it holds up no batch."""
    keep_by(terminal, "fts5")
    lyon, ends = "Ann lives in Lyon with Bob", ("Ann lives in Lyon.", "Ann is in Lyon, with Bob")
    async with chat(terminal.data) as talk:
        for text in ends:
            done = await beside(
                terminal, "memory", "add", text, "--until", "2126-12-01", "--scope", SCOPE
            )
            assert done.returncode == 0, done
        assert await talk.queued() == 0
        await talk.told(lyon)
        await talk.worked(reconstruction(lyon))
        assert await talk.remembered() == sorted([lyon, *ends])
        rows = await talk.house.rows("SELECT text FROM facts WHERE valid_to IS NOT NULL")
        assert {row["text"] for row in rows} == {*ends}
    [request] = talk.asked
    assert "<related_memories>\n- (none)\n" in request.system
