"""Similarity thresholds of an embedding model, learnt from pairs with a known relation."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from statistics import median
from typing import Literal, get_args

from wintermute.errors import EmbeddingsUnavailable
from wintermute.llm.embedded import MODEL
from wintermute.llm.vector import Embedder, cosine_similarity

Relation = Literal["same", "related", "unrelated"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
TOLD_APART = 0.5
"""The share above chance by which a threshold must separate two relations, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The least cosines of each relation. Below the `floor`, a search found nothing."""

    same: float
    related: float
    floor: float


@dataclass(frozen=True, slots=True)
class KnownPair:
    """Two texts with a person's judgement of their relation."""

    relation: Relation
    one: str
    other: str


KNOWN: Mapping[str, Thresholds] = {MODEL: Thresholds(same=0.85, related=0.5, floor=0.25)}
"""Thresholds of the embedded model. Measured: of 14 facts in two wordings, 10 are over .85.

Facts that differ in a number, a name or a place are at .76 to .89. 99 of 100 pairs of any two
messages of one dialogue are below .50. A floor of .25 keeps .88 of the facts that answer a
question, in five languages and across them, and .008 of the others.
"""


def to_embedded_scale(likeness: float, same: float, related: float) -> float:
    """Convert a cosine of another model, with its two thresholds, to the embedded model's scale.

    So a threshold in the configuration means the same for all models.
    """
    ours = KNOWN[MODEL]
    marks = [(-1.0, -1.0), (related, ours.related), (same, ours.same), (1.0, 1.0)]
    for (low, means), (high, till) in pairwise(marks):
        if likeness <= high and low < high:
            return means + (likeness - low) / (high - low) * (till - means)
    return 1.0


def shipped_pairs() -> tuple[KnownPair, ...]:
    """Return the forty pairs that come with the program, in seven languages."""
    text = (resources.files("wintermute.llm") / "pairs.toml").read_text("utf-8")
    table = tomllib.loads(text)
    return tuple(
        KnownPair(relation, one, other) for relation in RELATIONS for one, other in table[relation]
    )


def thresholds(likenesses: Mapping[Relation, Sequence[float]]) -> Thresholds | None:
    """Return the thresholds for cosines of known pairs; None if the model cannot separate them.

    Half of the same or related pairs are over their threshold; the floor is the best cut between
    related and unrelated ones. Needs at least one pair of each relation.
    """
    same, related, unrelated = (likenesses[relation] for relation in RELATIONS)
    _, is_same = _cut([*related, *unrelated], same)
    floor, is_related = _cut(unrelated, [*related, *same])
    limits = Thresholds(median(same), median(related), floor)
    if min(is_same, is_related) < TOLD_APART or not limits.floor <= limits.related < limits.same:
        return None
    return limits


async def calibrated(embedder: Embedder) -> Thresholds | None:
    """Return a model's thresholds: known ones, or found by embedding the shipped pairs once.

    None: the model cannot separate them, so that searches use words where they need a threshold.
    Raises: EmbeddingsUnavailable.
    """
    if embedder.name in KNOWN:
        return KNOWN[embedder.name]
    likenesses: dict[Relation, list[float]] = {relation: [] for relation in RELATIONS}
    pairs = shipped_pairs()
    texts = [text for pair in pairs for text in (pair.one, pair.other)]
    vectors = await embedder.embed_document(texts)
    for pair, one, other in zip(pairs, vectors[::2], vectors[1::2], strict=True):
        if one is None or other is None:
            raise EmbeddingsUnavailable("a pair of the calibration has no vector")
        likenesses[pair.relation].append(cosine_similarity(one, other))
    return thresholds(likenesses)


def _cut(below: Sequence[float], above: Sequence[float]) -> tuple[float, float]:
    """Return the cut that separates two groups best, and its quality: 1 perfect, 0 chance."""
    marks = sorted({*below, *above})
    if len(marks) < 2:
        return 1.0, 0.0
    best, at = 0.0, marks[-1]
    for low, high in pairwise(marks):
        right = sum(each >= high for each in above) / len(above)
        wrong = sum(each >= high for each in below) / len(below)
        if right - wrong > best:
            best, at = right - wrong, (low + high) / 2
    return at, best
