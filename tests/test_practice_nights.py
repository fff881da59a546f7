"""The practice model at night: what it answers there, and what a person sees of it in the demo."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.test_practice import TOM, said, talk
from tests.world.clock import FakeClock, HeldClock
from tests.world.house import PROMPTS, open_house
from wintermute.config.schema import Memory
from wintermute.demo.practice import answer
from wintermute.demo.practice_server import PracticeModel
from wintermute.messages import Json
from wintermute.templates import fill, read_template

DREAMS: list[tuple[str, dict[str, str], Json]] = [
    (
        "DREAM_DEDUP_PROMPT.txt",
        {"content": "- Lena lives in Graz.\n- Lena lives in Graz with cats\n- Lena has 2 dogs"},
        {"text": "Lena lives in Graz with cats. Lena has 2 dogs."},
    ),
    (
        "DREAM_CONTRADICTION_PROMPT.txt",
        {"entry_1": f"2026-05-04, Ann: {TOM}", "entry_2": "2026-05-05, Ann: Tom likes coffee now."},
        {"action": "keep_second"},
    ),
    (
        "DREAM_CONTRADICTION_PROMPT.txt",
        {"entry_1": f"2026-05-04, Ann: {TOM}", "entry_2": "2026-05-05, Ann: Tom bakes bread: rye"},
        {"action": "keep_both"},
    ),
    (
        "DREAM_TASK_PROMPT.txt",
        {"content": "[P5] #task_1a: Buy milk\n[P3] #task_2b: buy the milk [daily 09:00]"},
        {"actions": []},
    ),
    ("DREAM_SKILL_PROMPT.txt", {"content": "Tea.\n\n1. Boil water."}, {"text": ""}),
]


@pytest.fixture
async def practice() -> AsyncIterator[PracticeModel]:
    async with PracticeModel(clock=FakeClock()) as model:
        yield model


@pytest.mark.parametrize(("template", "values", "wanted"), DREAMS)
def test_what_is_asked_at_night_is_answered_in_json(
    template: str, values: dict[str, str], wanted: Json
) -> None:
    """M-072, T-056: by the shipped prompts."""
    question: Json = {"role": "user", "content": fill(read_template(PROMPTS, template), values)}
    assert json.loads(said(answer([question], frozenset()))) == wanted


def test_a_list_is_tidied_line_by_line() -> None:
    """M-062: as plain text, without what another line says as well."""
    lines = "Lena lives in Graz\nTom likes tea\nLena lives in Graz with two cats"
    prompt = read_template(PROMPTS, "DREAM_MEMORIES_PROMPT.txt")
    question: Json = {"role": "user", "content": fill(prompt, {"content": lines})}
    tidied = said(answer([question], frozenset()))
    assert tidied == "Tom likes tea\nLena lives in Graz with two cats"


async def test_a_night_is_asked_for_read_and_taken_back(
    tmp_path: Path, practice: PracticeModel
) -> None:
    """M-054, M-056: two memories that say the same, `/dream`, `/night`, `/night undo`."""
    opened = open_house(
        tmp_path, practice.url, prompts=PROMPTS, clock=HeldClock(), memory=Memory(backend="fts5")
    )
    async with opened as house, house.working():
        short = "my sister Lena lives in Graz with two cats"
        long = "my sister Lena has two cats in Graz, and lives there"
        await talk(house, f"remember that {short}", f"remember that {long}")
        (begun,) = await talk(house, "/dream")
        said = len(await house.spoken())
        house.runner.ring("night")
        over = (await house.said(said + 1))[-1]
        asked, shown, undone, known = await talk(
            house, "what time is it?", "/night", "/night undo", "/memory"
        )
    assert begun.startswith("I'm tidying up what I know.")
    assert over == "Done: 2 memories merged. `/night` shows all, `/night undo` takes it back."
    assert asked.startswith("It is ")
    assert f"→ “The user said: {long}.” (they say the same" in shown
    assert short in shown
    assert undone == f"- memory restored: The user said: {short}."
    assert (known.count(short), known.count(long)) == (1, 1)
