"""Whatever a model does, who wrote in a direct chat hears something."""

import random
from pathlib import Path

import pytest

from tests.tiers import tiered
from tests.world.clock import FakeClock
from tests.world.house import Gate, House, open_house
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Cut,
    Drip,
    Empty,
    EmptyChoices,
    Events,
    Fail,
    Garbage,
    Html,
    ModelServer,
    NullChoices,
    Plain,
    Seen,
    Step,
    Text,
    Use,
)

ROOMS = 12


def events_of(*contents: str, end: str | None = "[DONE]") -> Events:
    deltas = [{"choices": [{"delta": {"content": content}}]} for content in contents]
    return Events((*deltas, *([end] if end else [])))


TOO_LONG = "<think>never closed " + "hm " * 50_000
STEPS: tuple[Step, ...] = (
    Text("an answer"),
    Text("half of", finish="length"),
    Text("", finish="content_filter"),
    Text("<think>only that</think>"),
    Text(TOO_LONG),
    Text('<tool_call>{"name": "not_offered"}</tool_call>'),
    Text('<tool_call>{"name": "echo", "arguments": {"say": "x"}}</tool_call>'),
    Calls((Use("echo", {"say": "x"}),)),
    Calls(tuple(Use("echo", {"say": str(n)}, id="") for n in range(200))),
    Calls((Use("unknown", "{broken"),)),
    Plain(Calls((Use("echo", {"say": "x"}),))),
    Fail(400),
    Fail(401),
    Fail(404),
    Fail(429, headers={"Retry-After": "7"}),
    Fail(500),
    Fail(503, "<html>not now"),
    ContextTooLarge(),
    Cut(),
    Cut(after_chunks=0),
    Drip("word by word", interval=0.001),
    Empty(),
    EmptyChoices(),
    NullChoices(),
    Garbage(),
    Garbage(b"\x00" * 5000, "text/event-stream"),
    Html(),
    events_of("no last line", end=None),
    events_of(end=None),
    events_of("caf\ud83d", "\ude00"),
    Events(("{broken",)),
    Events(({"error": {"message": "upstream"}},)),
    Events(({"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]},)),
)


@pytest.mark.parametrize("seed", tiered({str(n): n for n in range(12)}, ["0", "1"]))
async def test_every_message_ends_with_an_answer_or_a_line(tmp_path: Path, seed: int) -> None:
    """Each room's model goes through steps of its own, the last of which never ends."""
    rng = random.Random(seed)
    plans = {
        f"room {n}": [rng.choice(STEPS) for _ in range(rng.randint(1, 5))] for n in range(ROOMS)
    }

    def choose(seen: Seen) -> Step | None:
        asked = next((plans[m["content"]] for m in seen.messages if m["content"] in plans), None)
        if asked is None:
            return None
        return asked.pop(0) if len(asked) > 1 else asked[0]

    async with ModelServer() as model:
        model.keyed(choose)
        house = open_house(tmp_path, model.url, clock=FakeClock(), gates=[Gate()], retries=1)
        async with house as world, world.working():
            for n in range(ROOMS):
                await world.incoming(f"room {n}", room=f"!{n}")
            for n in range(ROOMS):
                heard = await _heard(world, f"!{n}")
                assert not any("think>" in text or "tool_call>" in text for text in heard)


async def _heard(house: House, room: str) -> list[str]:
    """What is said in a room, once there is something; a notice that the answer overtook is not."""

    async def something() -> bool:
        return any(text.strip() for text in await house.spoken(room))

    await house.until(something)
    return [text for text in await house.spoken(room) if text.strip()]
