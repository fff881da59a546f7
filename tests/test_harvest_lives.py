"""Random talks: whatever happens in them, every message stands in exactly one transcript."""

import json
import random
import re
from contextlib import AsyncExitStack
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from tests.tiers import tiered
from tests.world.clock import HeldClock, until_so
from tests.world.harvested import CLUB, RANKED, Picker, is_harvest, transcript
from tests.world.house import PROMPTS, ROOM, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from wintermute.config.schema import MemoryHarvest

OFTEN = MemoryHarvest(message_threshold=6, min_messages=1)
SEEDS = {f"seed {n}": n for n in range(40)}
PLACES: tuple[dict[str, Any], ...] = (
    {"room": ROOM},
    {"room": "!club:test", "scope": CLUB, "direct": False},
    {"room": "!ben:test", "sender": "@ben:test", "name": "Ben", "origin": "other"},
)


def word(n: int) -> str:
    """A word that is like no other."""
    return f"q{''.join(random.Random(n).choices(ascii_lowercase, k=8))}q"


def every_word(seen: Seen) -> Step | None:
    """A memory of each thing that is said in a transcript."""
    if not is_harvest(seen):
        return None
    words = dict.fromkeys(re.findall(r"\bq[a-z]{8}q\b", transcript(seen)))
    return Text(json.dumps({"contents": list(words)}))


@pytest.mark.parametrize("seed", tiered(SEEDS, ("seed 0",)))
async def test_each_is_in_one_transcript(tmp_path: Path, model: ModelServer, seed: int) -> None:
    """M-026, M-028: over fresh starts, folds, edits, other people in the room, and restarts."""
    model.allow("edit", "fold", "fork", perhaps=True)
    draw, picker, clock = random.Random(seed), Picker(model), HeldClock()
    model.keyed(every_word)
    said: dict[str, list[str]] = {}
    newest: dict[int, str] = {}
    async with AsyncExitStack() as stack:
        house = await opened(stack, tmp_path, model, clock)
        for n in range(60):
            place = draw.randrange(len(PLACES))
            step = draw.choices(("say", "edit", "new", "fold", "wait", "restart"), STEPS)[0]
            text, is_new = word(n), place not in newest
            if step == "say" or (step == "edit" and is_new):
                (event,) = await house.say(text, **PLACES[place])
                newest[place] = event
                said[event] = [text]
            elif step == "edit":
                event = newest[place]
                await house.say(text, edits=event, **PLACES[place])
                said[event].append(text)
            elif step in ("new", "fold"):
                command = "/new" if step == "new" else "/compact"
                await house.say(command, **PLACES[place])
            elif step == "wait":
                await clock.move(16 * 60)
                house.runner.wake("harvest")
            else:
                await stack.aclose()
                house = await opened(stack, tmp_path, model, clock)
        for place in range(len(PLACES)):
            await house.say(*(word(60 + 10 * place + n) for n in range(6)), **PLACES[place])
        await clock.move(16 * 60)
        await drained(house)
        sets = await house.rows(
            "SELECT evidence FROM changes JOIN change_sets s ON s.id = change_set_id"
            " WHERE s.cause = 'harvest' AND before IS NULL"  # not what an edit took out (M-089)
        )
        read = [name for row in sets for name in json.loads(row["evidence"])]
        rows = await house.rows(
            "SELECT event_id, edits FROM inbox WHERE kind = 'message' ORDER BY seq"
        )
    assert_once(rows, read)
    for wordings in said.values():
        assert any(wordings[-1] in text for text in picker.transcripts), wordings
    for text in picker.transcripts:
        assert not ("@ann:test" in text and "@ben:test" in text)


STEPS = (10, 4, 1, 1, 2, 1)


def assert_once(rows: list[dict[str, Any]], read: list[str]) -> None:
    """Each message in one transcript; of wordings in the same transcript the last."""
    assert len(read) == len(set(read))
    last = {row["edits"]: row["event_id"] for row in rows if row["edits"]}
    worded_again = {row["event_id"] for row in rows if last.keys() & {row["event_id"]}} | {
        row["event_id"] for row in rows if row["edits"] and last[row["edits"]] != row["event_id"]
    }
    unread = {row["event_id"] for row in rows} - set(read)
    assert unread <= worded_again  # in the same transcript, and for nothing else


async def opened(
    stack: AsyncExitStack, folder: Path, model: ModelServer, clock: HeldClock
) -> House:
    house = await stack.enter_async_context(
        open_house(*(folder, model.url), prompts=PROMPTS, clock=clock, memory=RANKED, harvest=OFTEN)
    )
    await stack.enter_async_context(house.working())
    return house


async def drained(house: House) -> None:
    """Wait until nothing is left to be read."""
    rows = await house.rows("SELECT id FROM conversations WHERE room_id > ''")
    for row in rows:

        async def read(conversation: str = row["id"]) -> bool:
            house.runner.wake("harvest")
            left = await house.rows(
                "SELECT 1 FROM inbox i LEFT JOIN harvests h USING (conversation_id)"
                " WHERE i.conversation_id = ? AND i.kind = 'message' AND i.seq > coalesce(h.upto, 0)",
                conversation,
            )
            return not left

        await until_so(read)
