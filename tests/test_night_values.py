"""Contradictions that a night settles alone or asks about, and the ways in which a person answers."""

from pathlib import Path
from typing import Literal

import pytest

from tests.world.house import SCOPE
from tests.world.missing import NO_MEANING
from tests.world.model import ModelServer
from tests.world.nights import says_at_night
from tests.world.sleeping import APRIL, MARCH, MAY, SECOND, Sleep, sleeping
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.llm.embedded import EmbeddedEmbedder, is_installed
from wintermute.memory.values import differ_in_a_value, says_change

OLD, NEW = "Ann takes 5 mg in the morning", "Ann takes 10 mg in the morning"

SETTLED = [
    ("Ann lives in Lyon", "Ann lives in Rome"),
    ("Anna wohnt in Lyon", "Anna wohnt in Rom"),
    ("Ana vive en Lyon", "Ana vive en Roma"),
    ("我住在巴黎", "我住在里昂"),
    ("Ann's car is red", "Ann's car is blue"),
    ("Ann has 2 cats", "Ann has 3 cats"),
    ("Dinner is at 7 pm", "Dinner is at 8 pm"),
]
ASKED = [
    (OLD, NEW),
    ("Ann needs 5 mg", "Ann needs 5 ml"),
    ("Anna nimmt 2 Tabletten", "Anna nimmt 3 Tabletten"),
    ("The bike is 500 €", "The bike is 600 €"),
    ("Ben owes Ann $5", "Ben owes Ann $9"),
    ("The party is on 3 May", "The party is on 4 May"),
    ("The trip begins 2026-05-03", "The trip begins 2026-05-04"),
    ("Ann's boss is Bob", "Ann's boss is Carl"),
    ("The gift is for my sister", "The gift is for my brother"),
    ("我吃两片药", "我吃三片药"),
    ("Jo likes tea", "Al likes coffee"),
    ("Ann lives in Lyon", "Ann does not live in Lyon"),
    ("Ann lives in Lyon", "Ann works in Rome"),
    ("Ann is taller than Bob", "Bob is taller than Ann"),
    ("Ann eats fish", "Ann eats raw fish"),
    ("Анна принимает 5 таблеток", "Анна принимает 6 таблеток"),
    ("Ann's best man is tom", "Ann's best man is bob"),
    ("Ann believes in Tom", "Ann believes in Eva"),
    ("Ann lives in Tom's house", "Ann lives in Bob's house"),
    ("Christina lives in Rome", "Christian lives in Lyon"),
    ("Her car is red", "His car is blue"),
    ("Ann is allergic to nuts", "Ann is allergic to milk"),
    ("Ann's blood pressure is at 120", "Ann's blood pressure is at 180"),
    ("Dinner is at 7", "Dinner is at 8"),
]


@pytest.mark.parametrize(
    ("one", "other", "settled"),
    [*((*pair, True) for pair in SETTLED), *((*pair, False) for pair in ASKED)],
)
def test_a_night_settles_one_harmless_value_alone(one: str, other: str, *, settled: bool) -> None:
    """M-087: no dose, amount of money, date or person; whatever else differs is asked."""
    assert differ_in_a_value(one, other) == differ_in_a_value(other, one) == settled


@pytest.mark.parametrize(
    ("one", "other", "changes"),
    [
        ("Tom is responsible for the garden", "Anna does the garden from now on", True),
        ("Tom ist für den Garten verantwortlich", "Ab jetzt macht Anna den Garten", True),
        ("Tom s'occupe du jardin", "Désormais, Anna fait le jardin", True),
        ("Tom se encarga del jardín", "A partir de hoy Ana cuida el jardín", True),
        ("Tom è responsabile del giardino", "D'ora in poi Anna cura il giardino", True),
        ("汤姆负责花园", "从现在起安娜打理花园", True),
        ("トムが庭の担当です", "これからアンナが庭の世話をします", True),
        ("Anna sings from now on", "Anna paints", False),
        ("Tom is responsible for the garden", "Anna does the dishes from now on", False),
        ("Tom is responsible for the garden", "Anna loves the garden", False),
    ],
)
def test_what_is_handed_over_is_looked_at(one: str, other: str, *, changes: bool) -> None:
    """F-065: in the languages of the seeds; one shared word suffices where one says that it changes."""
    assert says_change(one, other) == says_change(other, one) == changes


@pytest.mark.parametrize("way", ["fts5", pytest.param("local_vector", marks=pytest.mark.slow)])
async def test_what_is_handed_over_is_asked_about(
    tmp_path: Path, model: ModelServer, way: Literal["fts5", "local_vector"]
) -> None:
    """F-065, M-087: by words and by meaning, with the days."""
    if way == "local_vector" and not is_installed():
        pytest.skip(NO_MEANING)
    embedder = EmbeddedEmbedder(SystemClock())
    async with sleeping(tmp_path, model, Memory(backend=way), embedder=embedder) as sleep:
        tom, anna = "Tom is responsible for the garden", "Anna does the garden from now on"
        await sleep.told(tom, at=MARCH)
        await sleep.told("Ben loves the garden", at=APRIL)
        await sleep.told(anna, at=MAY)
        sleep.compare = lambda first, _second: SECOND if first == tom else '{"action": "keep_both"}'
        await sleep.night()
        [item] = await sleep.items()
        assert (item.state, item.before, item.after) == ("open", (tom,), anna)
        said = await says_at_night(sleep.house, "/night")
        assert f"Which of these is true? “{tom}” or “{anna}” (said {MARCH}, then {MAY})" in said


async def open_question(sleep: Sleep, scope: str = SCOPE) -> str:
    """A question which of two is true; its name."""
    await sleep.told(OLD, at=MARCH, scope=scope)
    await sleep.told(NEW, at=MAY, scope=scope)
    sleep.compare = lambda _first, _second: SECOND
    await sleep.night()
    [item] = await sleep.items()
    assert item.state == "open"
    return item.id


@pytest.mark.parametrize(
    ("answer", "true"),
    [
        ("/night {n} new", [NEW]),
        ("/night yes {n}", [NEW]),
        ("/night {n} old", [OLD]),
        ("/night {n} both", [OLD, NEW]),
        ("/night no {n}", [OLD, NEW]),
        ("/night {n} neither", []),
    ],
)
async def test_a_person_says_which_is_true(sleep: Sleep, answer: str, true: list[str]) -> None:
    """M-087: what is not true has ended, and undo brings it back."""
    name = await open_question(sleep)
    said = await says_at_night(sleep.house, answer.format(n=name))
    assert sorted(await sleep.remembered()) == sorted(true)
    for text in {OLD, NEW} - {*true}:
        assert (await sleep.fact(text)).valid_to is not None
        assert text in said
    if "old" in answer:
        assert said.index(NEW) < said.index(OLD)  # it says what ended
    await says_at_night(sleep.house, f"/night undo {name}")
    assert sorted(await sleep.remembered()) == sorted([OLD, NEW])
    await sleep.night()
    assert len(sleep.pairs) == 1


async def test_five_are_asked_in_a_night_and_the_rest_waits(sleep: Sleep) -> None:
    """M-087: what can be settled alone is settled beside them; the next nights ask the others."""
    for n, pill in enumerate(("aspirin", "insulin", "iron", "zinc", "iodine", "quinine", "opium")):
        await sleep.told(f"{pill} for Ann in dose {n} mg daily", at=MARCH)
        await sleep.told(f"{pill} for Ann in dose {n + 20} mg daily", at=MAY)
    sleep.compare = lambda first, second: (
        SECOND if first.split()[0] == second.split()[0] else '{"action": "keep_both"}'
    )
    counts = []
    for _ in range(4):
        night = await sleep.night("contradictions")
        counts.append(len([i for i in await sleep.items() if i.night == night.id]))
    assert max(counts) <= 5
    assert sum(counts) == 7
    assert {state for _, state in await sleep.kinds()} == {"open"}
    assert night.tally(SCOPE, "contradictions") is not None
