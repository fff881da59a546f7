"""A real model in a real loop: a day with it in a large window and in a small one.

    make real-model MODEL=CACHE

Runs only when asked for by its mark. What a model answers differs between machines, so nothing here
asks for words: every message is answered once, in an order that the window allows, and what is
stored is what calls without a mistake have made.
"""

import os
from pathlib import Path

import pytest

from tests.bench_model import Judge, looked, made, used
from tests.world.relay import SERVER, URL, Relay, serving
from tests.world.talking import Heard, Manner, Talk, talking

WAYS = {
    "full": (16384, "full"),
    "small": (16384, "small"),
    "little window": (4096, "small"),
}
"""Window and size; the full texts want more than 4,096 tokens."""
ANSWER = 256
LEAST_RIGHT = 4
"""Of the seven messages that ask for a call; a small model misses some on some machines."""


class Day:
    """What is said in order, and what came of it."""

    def __init__(self, talk: Talk, window: int) -> None:
        self._talk = talk
        self._window = window
        self.right: dict[str, bool] = {}

    async def say(self, text: str, judge: Judge | None = None) -> Heard:
        """Say it in a new minute; the loop must hold whatever the model makes of it."""
        self._talk.clock.advance(61)
        heard = await self._talk.say(text)
        assert heard.answers, text
        assert all(answer.strip() for answer in heard.answers), text
        assert heard.requests, text
        for passed in heard.requests:
            assert passed.tokens == 0 or passed.tokens + ANSWER <= self._window, passed.usage
        assert heard.ended == "terminated", heard
        if judge:
            self.right[text] = judge(heard)
        print(f"{text!r}: {heard.calls} {heard.answers}", flush=True)  # noqa: T201
        return heard

    async def anew(self) -> None:
        """A new conversation; what was stored stays."""
        assert (await self._talk.say("/new")).answers


@pytest.mark.real_model
@pytest.mark.alone
@pytest.mark.parametrize(("window", "size"), WAYS.values(), ids=WAYS)
async def test_a_day_with_a_real_model(tmp_path: Path, window: int, size: str) -> None:
    """Greeted, told, asked again, reminded, listed, cancelled, taught, in two languages."""
    if not os.environ.get(URL) and not os.environ.get(SERVER):  # noqa: TID251
        pytest.fail(f"no model: set {URL} or {SERVER}, or use `make real-model MODEL=CACHE`")
    more = {"context_tokens": window, "max_output_tokens": ANSWER}
    async with (
        serving(window, os.environ) as url,  # noqa: TID251
        Relay(url) as relay,
        talking(tmp_path, relay, Manner(size=size, more=more)) as talk,
    ):
        day = Day(talk, window)
        await day.say("Hi, how are you?")
        await day.say("Remember that I am allergic to penicillin.", used("append_memory"))
        await day.anew()
        await day.say("What am I allergic to?")
        await day.say("Remind me tomorrow at 9 to call Dr. Weber.", made("once"))
        await day.say("Every day at 18:00 remind me to water the plants.", made("daily"))
        await day.say("Which tasks do I have?", looked)
        await day.say("Cancel the reminder about the plants, please.", used("task"))
        await day.say(
            "Learn this: to make my tea, boil water, wait two minutes, pour, steep four minutes.",
            used("add_skill"),
        )
        await day.say("Make my tea the way I taught you: what are the steps?")
        await day.say("Merk dir bitte, dass ich in Hamburg wohne.", used("append_memory"))
        await _is_stored(talk, day)
    assert sum(day.right.values()) >= LEAST_RIGHT, day.right


async def _is_stored(talk: Talk, day: Day) -> None:
    """What the calls said that they did is there, and every cast has come to its end."""
    house = talk.house
    open_casts = await house.rows("SELECT id FROM casts WHERE state = 'running'")
    assert open_casts == []
    counted = {
        "append_memory": "SELECT 1 FROM facts",
        "task": "SELECT 1 FROM tasks",
        "add_skill": "SELECT 1 FROM changes WHERE kind LIKE '%skill%'",
    }
    for tool, query in counted.items():
        made_well = await house.rows(
            "SELECT 1 FROM observations WHERE gate = ? AND is_error = 0 AND args LIKE ?",
            *(tool, '%"add"%' if tool == "task" else "%"),
        )
        assert bool(await house.rows(query)) == bool(made_well), (tool, day.right)
