"""What a model's likenesses mean: forty pairs tell, or that it cannot be told."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import FakeClock
from tests.world.embedder import PATIENT, needs_the_model
from wintermute.llm.calibration import (
    KNOWN,
    RELATIONS,
    Thresholds,
    calibrated,
    shipped_pairs,
    thresholds,
)
from wintermute.llm.embedded import MODEL, EmbeddedEmbedder
from wintermute.llm.vector import Vector, cosine_similarity, vector

COSINES = st.lists(st.floats(-1, 1), min_size=1, max_size=20)
SIGNS = {
    "zh": re.compile(r"[我他的们吗在]"),
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "de": re.compile(r"\b(ich|der|die|und|unser|wir)\b", re.IGNORECASE),
    "fr": re.compile(r"\b(je|le|les|une?|nous|ma)\b", re.IGNORECASE),
    "es": re.compile(r"\b(mi|los|en el|me gusta|cuánto)\b", re.IGNORECASE),
    "it": re.compile(r"\b(mia|ho|il|sto|di|è)\b", re.IGNORECASE),
    "en": re.compile(r"\b(I|my|the|he|anna)\b"),
}


class Squeezed:
    """A model of which all texts are alike, some a little more: many are so. Hashes, no meaning."""

    name = "squeezed"

    def __init__(self, *, blind: bool) -> None:
        self._blind = blind
        self.calls = 0

    async def warm(self, seconds: float = 0.0) -> None: ...

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self.embed_document(texts)

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        self.calls += 1
        relations = [pair.relation for pair in shipped_pairs() for _ in range(2)]
        assert len(texts) == len(relations)
        angles = {"same": 0.1, "related": 0.4, "unrelated": 0.7}
        return [
            vector([1, 0.3 if self._blind else angles[relation] * (n % 2) + n / 1000])
            for n, relation in enumerate(relations)
        ]

    async def aclose(self) -> None: ...


def test_kinds_that_lie_apart_are_told_apart() -> None:
    found = thresholds(
        {"same": [0.8, 0.9, 0.95], "related": [0.4, 0.5, 0.6], "unrelated": [0.0, 0.1, 0.2]}
    )
    assert found == Thresholds(same=0.9, related=0.5, floor=(0.2 + 0.4) / 2)


def test_a_model_whose_numbers_are_all_high_has_high_thresholds() -> None:
    found = thresholds({"same": [0.95, 0.96], "related": [0.88, 0.9], "unrelated": [0.8, 0.82]})
    assert found is not None
    assert found.floor == pytest.approx(0.85)
    assert (found.related, found.same) == pytest.approx((0.89, 0.955))


@pytest.mark.parametrize(
    ("same", "related", "unrelated"),
    [
        ([0.5] * 5, [0.5] * 5, [0.5] * 5),
        ([0.9, 0.1, 0.5], [0.5, 0.9, 0.1], [0.1, 0.5, 0.9]),
        ([0.1, 0.2], [0.4, 0.5], [0.8, 0.9]),
        ([0.8, 0.81], [0.8, 0.82], [0.1, 0.2]),
    ],
)
def test_a_model_that_cannot_tell_them_apart_has_none(
    same: list[float], related: list[float], unrelated: list[float]
) -> None:
    assert thresholds({"same": same, "related": related, "unrelated": unrelated}) is None


@given(COSINES, COSINES, COSINES)
def test_thresholds_are_in_order_whatever_comes(
    same: list[float], related: list[float], unrelated: list[float]
) -> None:
    found = thresholds({"same": same, "related": related, "unrelated": unrelated})
    assert found is None or -1 <= found.floor <= found.related < found.same <= 1


def test_forty_pairs_in_seven_languages_are_shipped() -> None:
    pairs = shipped_pairs()
    kinds = Counter(pair.relation for pair in pairs)
    assert (len(pairs), set(kinds)) == (40, set(RELATIONS))
    assert min(kinds.values()) >= 12
    for relation in RELATIONS:
        texts = [pair.one for pair in pairs if pair.relation == relation]
        silent = [name for name, sign in SIGNS.items() if not any(map(sign.search, texts))]
        assert silent == [], relation


async def test_a_model_nobody_knows_is_asked_once() -> None:
    model, blind = Squeezed(blind=False), Squeezed(blind=True)
    found = await calibrated(model)
    assert found is not None
    assert 0.7 < found.floor < found.related < found.same < 1
    assert await calibrated(blind) is None
    assert (model.calls, blind.calls) == (1, 1)


async def test_the_thresholds_of_the_embedded_model_are_stated() -> None:
    """M-071: no start of it for that."""
    async with aclosing(EmbeddedEmbedder(FakeClock())) as embedder:
        assert await calibrated(embedder) == KNOWN[MODEL]
        assert embedder.pid is None


@pytest.mark.slow
@needs_the_model
def test_what_is_stated_of_the_embedded_model_fits_the_pairs() -> None:
    """M-071: within what forty pairs can tell."""

    async def measured() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {relation: [] for relation in RELATIONS}
        async with aclosing(EmbeddedEmbedder(FakeClock(), limits=PATIENT)) as embedder:
            for pair in shipped_pairs():
                one, other = await embedder.embed_document([pair.one, pair.other])
                assert one is not None
                assert other is not None
                found[pair.relation].append(cosine_similarity(one, other))
        return found

    found = asyncio.run(measured())
    known = KNOWN[MODEL]
    learnt = thresholds({relation: found[relation] for relation in RELATIONS})
    assert learnt is not None
    assert learnt.same == pytest.approx(known.same, abs=0.05)
    assert learnt.related == pytest.approx(known.related, abs=0.05)
    assert learnt.floor == pytest.approx(known.floor, abs=0.06)
    assert max(found["unrelated"]) < known.floor
