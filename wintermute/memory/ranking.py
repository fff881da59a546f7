"""How facts are found."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def segment(text: str) -> str:
    """Text whose Chinese, Japanese and Korean runs are pairs and single signs."""

    def split(found: re.Match[str]) -> str:
        run = found[0]
        return " " + " ".join([*(run[i : i + 2] for i in range(len(run) - 1)), *run]) + " "

    return CJK.sub(split, text)


def words_of(text: str, speaker: str, at: datetime) -> str:
    """What is indexed of a fact."""
    return segment(text)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked. `before`: the beginning of the last reply, which weighs less (P-012)."""

    text: str
    before: str = ""


def query_words(text: str) -> tuple[str, ...]:
    """The terms of a question."""
    return tuple(dict.fromkeys(re.findall(r"\w+", segment(text))))[:64]


def match(terms: Sequence[str]) -> str:
    """An expression of FTS5 that finds any of these."""
    return " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
