"""Questions nobody waits for, when what they are made of is taken back before they are asked or answered."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import WITHIN, HeldClock, until_so
from tests.world.core_pages import at_work, core_questions, is_core, keep, keeps, quarter, wish
from tests.world.files import files_with
from tests.world.forgetting import forgotten
from tests.world.harvested import BEN, Picker, harvested, harvested_facts, talking
from tests.world.house import SCOPE, House
from tests.world.model import Calls, Fail, ModelServer, Seen, Slow, Step, Text, Use
from tests.world.reconstructed import LYON, reconstruction
from tests.world.redacted import take_back
from wintermute.learning.reconstruction import SILENCE

WORD = "zimtkanarie"
SAID = f"I own a {WORD}"
BENS: dict[str, Any] = {
    "room": "!ben:test",
    "scope": f"person:{BEN}",
    "sender": BEN,
    "name": "Ben",
    "direct": True,
}
PAGE = f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- Ann has a {WORD}.\n"
PICKED = Text(json.dumps({"contents": [f"Ann owns a {WORD}"]}))


def telling(model: ModelServer, since: int = 0) -> int:
    """How many requests after these say it."""
    later = model.requests[since:]
    return len([seen for seen in later if WORD in json.dumps(seen.body).lower()])


async def recorded(house: House, word: str = WORD) -> list[str]:
    """The roles of the questions of whose words something is kept."""
    rows = await house.rows("SELECT role, request, answer, detail FROM model_calls")
    return [row["role"] for row in rows if word in json.dumps(row, default=str).lower()]


def is_about(block: str) -> Callable[[Seen], bool]:
    """Whether a question has such a block of data."""
    return lambda seen: f"\n<{block}>\n" in seen.system


async def arrived(model: ModelServer, wanted: Callable[[Seen], bool]) -> None:
    n = 1
    async with asyncio.timeout(WITHIN):
        while not wanted(await model.request_arrived(n)):
            n += 1


async def is_over(house: House) -> bool:
    """Whether a question about what was said was answered, or failed."""
    return bool(await house.rows("SELECT 1 FROM model_calls WHERE role = 'harvest'"))


async def delivered(house: House) -> None:
    while await house.deliver():
        pass


async def erased(house: House, fact: str) -> None:
    """Ann has it forgotten."""
    await house.say(f"/forget {fact}")
    await delivered(house)
    await forgotten(house)


async def looks_at_core(house: House, model: ModelServer) -> None:
    """Fifteen quiet minutes later a model is asked what of it goes on the page."""
    await quarter(house)

    async def asks() -> bool:
        house.runner.wake("core")
        await house.rows("SELECT 1")
        return any(map(is_core, model.requests))

    await until_so(asks)


@asynccontextmanager
async def being_read(
    folder: Path, model: ModelServer, *steps: Step, clock: HeldClock | None = None, **more: Any
) -> AsyncIterator[tuple[House, str]]:
    """Twenty messages of Ann are before the model, which answers so; the first of them tells."""
    picker = Picker(model)
    picker.steps += steps
    async with talking(folder, model, clock or HeldClock(), **more) as house:
        said = await house.say(SAID, *(f"n{n}" for n in range(18)))
        await house.incoming("n18")
        await house.said(20)
        await delivered(house)
        house.runner.wake("harvest")
        await arrived(model, is_about("transcript"))
        yield house, said[0]


async def test_a_deleted_message_goes_to_nobody_after_the_wait_for_a_chat(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, M-030: the harvest had read it and waited for what Ben is answered."""
    picker, chat = Picker(model), asyncio.Event()
    picker.answers["hold"] = Slow(chat, Text("held"))
    async with talking(tmp_path, model, HeldClock()) as house:
        said = await house.say(SAID, *(f"n{n}" for n in range(18)))
        await house.incoming("hold", **BENS)
        await arrived(model, lambda seen: seen.last_user == "hold")
        await house.incoming("n18")
        await house.said(20)
        await delivered(house)
        house.runner.wake("harvest")
        for _ in range(100):  # time enough to read what was said, and to come to the wait
            await house.rows("SELECT 1")
        assert picker.transcripts == []
        before = len(model.requests)
        await take_back(house, said[0])
        chat.set()
        await harvested(house)
        assert telling(model, before) == 0
    assert len(picker.transcripts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("first", [Text("no JSON"), Fail(503)], ids=["unusable", "away"])
async def test_a_deleted_message_is_not_asked_about_once_more(
    tmp_path: Path, model: ModelServer, first: Step
) -> None:
    """F-027, M-030: neither the retry of an answer nor that of a failure shows it again."""
    gate, clock = asyncio.Event(), HeldClock()
    reading = being_read(tmp_path, model, Slow(gate, first), clock=clock, retries=1)
    async with reading as (house, told):
        await take_back(house, told)
        await forgotten(house)
        before = len(model.requests)
        gate.set()
        await until_so(partial(is_over, house))
        await clock.move(60)  # the pause before a failure is tried again
        await harvested(house)
        assert telling(model, before) == 0
        assert (
            await house.rows("SELECT * FROM single_values WHERE name LIKE 'answers refused%'") == []
        )


async def test_an_answer_about_a_deleted_message_is_neither_used_nor_kept(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, M-030: it came when all was forgotten; with `llm.record` as well."""
    gate = asyncio.Event()
    async with being_read(tmp_path, model, Slow(gate, PICKED), record=True) as (house, told):
        await take_back(house, told)
        await forgotten(house)
        gate.set()
        await harvested(house)
        assert await harvested_facts(house) == []
        assert await recorded(house) == []


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "said",
    [f"My diary: {WORD} " + "and then this " * 200, WORD[:10], f"> a quote\nmine is a {WORD}"],
    ids=["long", "short", "partly quoted"],
)
async def test_what_was_kept_of_a_question_goes_with_its_messages_however_they_were_shown(
    tmp_path: Path, model: ModelServer, said: str
) -> None:
    """M-030: with `llm.record`; in part, or in words too short to be looked for."""
    Picker(model)
    async with talking(tmp_path, model, HeldClock(), record=True) as house:
        events = await house.say(*(f"n{n}" for n in range(19)), said)
        await harvested(house)
        await delivered(house)
        assert "harvest" in await recorded(house, WORD[:10])
        await take_back(house, events[-1])
        await forgotten(house)
        assert await recorded(house, WORD[:10]) == []


@pytest.mark.parametrize(
    "first",
    [reconstruction(LYON, coverage="incomplete"), Text("no JSON")],
    ids=["refined", "asked anew"],
)
async def test_a_forgotten_fact_is_not_rewritten_by_a_question_that_was_under_way(
    tmp_path: Path, model: ModelServer, first: Step
) -> None:
    """M-030, M-036: the other fact of the batch is rewritten without it."""
    gate, clock, is_new = asyncio.Event(), HeldClock(), is_about("new_contents")
    steps: list[Step] = [Slow(gate, first), reconstruction(LYON)]
    model.reconstructs = True
    model.keyed(lambda seen: steps.pop(0) if is_new(seen) else keeps(seen))
    async with talking(tmp_path, model, clock, record=True) as house:
        gone, _ = await keep(house, f"Ann has a {WORD}", LYON)
        await delivered(house)
        await clock.move(SILENCE.total_seconds())
        house.runner.wake("reconstruct")
        await arrived(model, is_new)
        await erased(house, gone)
        before = len(model.requests)
        gate.set()
        await at_rest(house, "reconstruct")
        assert (telling(model, before), len(steps)) == (0, 0)
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == [LYON]
        assert await recorded(house) == []


async def test_a_page_made_of_a_forgotten_fact_is_not_put_in_place(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030, M-049: the answer came when all was forgotten."""
    gate = asyncio.Event()
    async with at_work(tmp_path, model, Slow(gate, wish(PAGE)), record=True) as house:
        (fact,) = await keep(house, f"Ann has a {WORD}")
        await delivered(house)
        await looks_at_core(house, model)
        await erased(house, fact)
        gate.set()
        await at_rest(house, "core")
        assert await house.database.scrub()
        assert files_with(tmp_path) == []


async def test_a_page_from_which_something_was_cut_is_not_shown_as_it_was(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, M-030: what is new has nothing to do with it, and waits for what Ben is answered."""
    chat, pages = asyncio.Event(), [wish(PAGE), wish(None)]
    model.updates_core = True

    def choose(seen: Seen) -> Step | None:
        if is_core(seen):
            return pages.pop(0)
        return Slow(chat, Text("held")) if seen.last_user == "hold" else keeps(seen)

    async with at_work(tmp_path, model) as house:
        model.keyed(choose)
        (gone,) = await keep(house, f"Ann has a {WORD}")
        await looks_at_core(house, model)
        await until_so(lambda: stands_on_page(house, WORD))
        await keep(house, "Ann likes tea in the evening")
        await delivered(house)
        await house.incoming("hold", **BENS)
        await arrived(model, lambda seen: seen.last_user == "hold")
        await quarter(house)
        for _ in range(100):  # time enough to read the page, and to come to the wait
            house.runner.wake("core")
            await house.rows("SELECT 1")
        before = len(model.requests)
        await house.incoming(f"/forget {gone}")
        await house.said(3)
        await delivered(house)
        house.runner.wake("forget")
        await at_rest(house, "forget")
        assert not await stands_on_page(house, WORD)
        chat.set()
        await at_rest(house, "core")
        assert len(core_questions(model)) == 2
        assert telling(model, before) == 0


async def stands_on_page(house: House, word: str) -> bool:
    _, page = await house.rows("SELECT 1"), house.stores.places.core(SCOPE)
    return page.exists() and word in page.read_text()


async def test_the_wish_for_a_page_made_of_what_was_taken_back_is_not_offered(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030, M-052: another fact of the batch is still remembered, and is asked about alone."""
    gate, tea = asyncio.Event(), "Ann likes tea in the evening"
    (tmp_path / "core.md").write_text("# SOUL\n- be calm\n\n# TOOLS\n\n# RULE\n\n# USER\n")
    async with at_work(tmp_path, model, Slow(gate, wish(PAGE)), wish(None)) as house:
        gone, _ = await keep(house, f"Ann has a {WORD}", tea)
        await looks_at_core(house, model)
        learnt = await house.one("SELECT change_set_id AS id FROM changes WHERE item = ?", gone)
        await house.say(f"/undo {learnt['id']}")
        gate.set()
        await at_rest(house, "core")
        assert [WORD in question for question in core_questions(model)] == [True, False]
        assert tea in core_questions(model)[-1]
        assert await house.rows("SELECT * FROM decisions") == []


def keeps_a_letter(model: ModelServer, steps: list[Step]) -> None:
    """It keeps a long letter when told "keep it", and answers so when it is to take that apart."""
    letter = " ".join(f"On day {n} Hugo, my {WORD}, sang a song." for n in range(60))

    def choose(seen: Seen) -> Step | None:
        if is_about("raw_input")(seen):
            return steps.pop(0) if steps else Text(json.dumps({"contents": []}))
        keeps = seen.last_user == "keep it" and seen.messages[-1]["role"] == "user"
        return Calls((Use("append_memory", {"entry": letter}),)) if keeps else None

    model.keyed(choose)


async def test_a_letter_is_not_asked_about_once_more_when_its_message_was_deleted(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, M-045: nor kept with what was asked about it."""
    gate = asyncio.Event()
    keeps_a_letter(model, [Slow(gate, Text("no JSON"))])
    async with talking(tmp_path, model, HeldClock(), record=True) as house:
        event = await house.incoming("keep it")
        await house.said(1)
        await delivered(house)
        house.runner.wake("split")
        await arrived(model, is_about("raw_input"))
        await take_back(house, event)
        await forgotten(house)
        before = len(model.requests)
        gate.set()
        await at_rest(house, "split")
        assert telling(model, before) == 0
        assert await recorded(house) == []


async def test_a_stopped_job_about_what_was_forgotten_does_not_come_back(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030, M-045: a letter could not be taken apart, its message is deleted, we start anew."""
    keeps_a_letter(model, [Fail(401)] * 3)
    states = "SELECT name, state FROM jobs WHERE name = 'split'"
    clock = HeldClock()
    async with talking(tmp_path, model, clock) as house:
        event = await house.incoming("keep it")
        await house.said(1)

        async def is_stopped() -> bool:
            await clock.move(60)
            house.runner.wake("split")
            return [row["state"] for row in await house.rows(states)] == ["failed"]

        await until_so(is_stopped)
        await delivered(house)
        await take_back(house, event)
        await forgotten(house)
        assert await house.stores.facts.live(SCOPE) == []
    async with talking(tmp_path, model, clock) as house:
        await at_rest(house, "split")
        assert await house.rows(states) == []


async def at_rest(house: House, name: str) -> None:
    """Wait until no job of this name is at work or waits."""

    async def so() -> bool:
        states = "('waiting', 'running')"
        left = await house.rows(f"SELECT 1 FROM jobs WHERE name = ? AND state IN {states}", name)
        return (
            not left and not next(k for k in house.runner.job_types if k.name == name).running_jobs
        )

    await until_so(so)
