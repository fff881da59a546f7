"""How much of the evidence a memory search found: recall, MRR, by category and by language."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MATERIAL = Path(__file__).parent / "bench"
DEPTHS = (5, 10, 20)
_LANGUAGE = re.compile(r"-([a-z]{2})/")


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question and the messages that answer it; `before` is the reply that stood above it, or ''."""

    id: str
    query: str
    scope: str
    before: str
    evidence: frozenset[str]
    category: str

    @property
    def language(self) -> str:
        """Two letters from the id (`dialogue-ja/q07` → `ja`), or '' where the id has none."""
        found = _LANGUAGE.search(self.id)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Recall:
    """Means over questions, each between 0 and 1.

    `recall[k]` is the share of the evidence among the first k hits, `all_found` how often the
    first ten hold all of it, `mrr` one divided by the place of the first hit that is evidence.
    """

    questions: int
    recall: Mapping[int, float]
    all_found: float
    mrr: float


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def asked(name: str, folder: Path = MATERIAL) -> tuple[AskedQuestion, ...]:
    """The questions of a set (`assistant`, `dialogue_de`); KeyError where one has no evidence."""
    evidence = {row["id"]: row for row in rows(folder / f"{name}_evidence.jsonl")}
    return tuple(
        AskedQuestion(
            id=row["id"],
            query=row["query"],
            scope=row["scope"],
            before=row.get("before", ""),
            evidence=frozenset(evidence[row["id"]]["evidence"]),
            category=evidence[row["id"]]["category"],
        )
        for row in rows(folder / f"{name}_questions.jsonl")
    )


def share_found(evidence: frozenset[str], hits: Sequence[str], depth: int) -> float:
    """The share of the evidence among the first `depth` hits; a hit named twice counts once."""
    return len(evidence & set(hits[:depth])) / len(evidence)


def reciprocal_place(evidence: frozenset[str], hits: Sequence[str]) -> float:
    """1 for evidence in the first place, 1/2 in the second …, 0 for none."""
    return next((1 / place for place, hit in enumerate(hits, 1) if hit in evidence), 0.0)


def score(questions: Iterable[AskedQuestion], hits: Mapping[str, Sequence[str]]) -> Recall:
    """What was found, `hits` best first by question; one without hits found nothing.

    Raises ValueError for no questions at all: a mean of nothing would look like a bad search.
    """
    each = [(question.evidence, hits.get(question.id, ())) for question in questions]
    if not each:
        raise ValueError("no questions to score")
    return Recall(
        questions=len(each),
        recall={depth: _mean([share_found(*one, depth) for one in each]) for depth in DEPTHS},
        all_found=_mean([float(share_found(*one, 10) == 1) for one in each]),
        mrr=_mean([reciprocal_place(*one) for one in each]),
    )


def score_by(
    key: Callable[[AskedQuestion], str],
    questions: Iterable[AskedQuestion],
    hits: Mapping[str, Sequence[str]],
) -> dict[str, Recall]:
    """The same for each group of questions: by `category`, by `language`."""
    groups: dict[str, list[AskedQuestion]] = {}
    for question in questions:
        groups.setdefault(key(question), []).append(question)
    return {name: score(group, hits) for name, group in sorted(groups.items())}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
