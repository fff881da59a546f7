"""Word search in pages, without a model: a match in the name weighs more than one in the text. Pure.

Case and accents make no difference. A word matches as a whole, from four letters on also as the beginning of a
longer one; in a script without blanks it matches anywhere (M-096).
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from wintermute.wiki.links import is_page, name_of

NAME, HEADING, TEXT = 8.0, 3.0, 1.0
WHOLE = 1.5
"""Weight of a whole word; the beginning of a word weighs 1."""
SHORTEST = 4
"""Letters that a matching beginning needs."""
SIGNS = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
"""Scripts without blanks between words, or with endings at each."""
GOOD = 0.5
"""Part of the best score from which on a page's neighbours are found as well."""
MOST_GOOD = 10
WIDTH = 120
"""Characters shown of a line."""
ACCENTS = re.compile("[\u0300-\u036f]+")
HEADINGS = re.compile(r"^[ \t]*#{1,6}[ \t].*$", re.MULTILINE)

WordWeights = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WikiHit:
    """Page that was found. `linked_with`: the matching page that links with it, if it has no word itself.

    `line`: a line with the words, or the first one.
    """

    path: str
    score: float
    linked_with: str = ""
    line: str = ""


def words_of(question: str) -> tuple[str, ...]:
    """Return the words of a question, each once."""
    return tuple(dict.fromkeys(re.findall(r"\w+", folded(question))))


def folded(text: str) -> str:
    """Return a text without case and accents."""
    if text.isascii():
        return text.lower()
    return ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))


def weights(words: tuple[str, ...], path: str, text: str) -> WordWeights:
    """Return the weight of each word in a page; nothing if none of them is in it."""
    name, said = folded(name_of(path)), folded(text)
    if not any(word in name or word in said for word in words):
        return ()
    headings = "\n".join(HEADINGS.findall(said))
    by_word = tuple(
        NAME * _weight(word, name)
        + HEADING * _weight(word, headings)
        + TEXT * _weight(word, said) * _often(said.count(word))
        for word in words
    )
    return by_word if any(by_word) else ()


def _weight(word: str, text: str) -> float:
    """Return the weight of a word in a text, 0 if it is missing."""
    if word not in text:
        return 0.0
    if re.search(rf"\b{word}\b", text):
        return WHOLE
    begins = len(word) >= SHORTEST and re.search(rf"\b{word}", text)
    return 1.0 if begins or SIGNS.fullmatch(word) else 0.0


def _often(times: int) -> float:
    """Return a factor for repeated matches: 1 for one, always less than 2."""
    return 2 * times / (times + 1)


def ranked(
    found: Mapping[str, WordWeights], pages: int, linked: Mapping[str, frozenset[str]], most: int
) -> list[WikiHit]:
    """Return the best pages first, then pages without a match that are linked with the best.

    `found`: weights of each matching page. `pages`: number of all pages. `linked`: link targets of each page.
    """
    columns = zip(*found.values(), strict=True)
    rare = [math.log(1 + pages / max(1, sum(map(bool, column)))) for column in columns]
    scores = {path: _score(each, rare) for path, each in found.items()}
    hits = sorted((WikiHit(*each) for each in scores.items()), key=_first)[:most]
    good = [hit for hit in hits[:MOST_GOOD] if hit.score >= GOOD * hits[0].score]
    linked_hits: dict[str, WikiHit] = {}
    for hit in good:
        for path in _neighbours(hit.path, linked):
            if path not in found:
                known = linked_hits.setdefault(path, WikiHit(path, 0.0, hit.path))
                linked_hits[path] = WikiHit(path, known.score + hit.score, known.linked_with)
    return [*hits, *sorted(linked_hits.values(), key=_first)][:most]


def _score(each: WordWeights, rare: list[float]) -> float:
    there = sum(map(bool, each)) / len(each)
    return there * sum(weight * often for weight, often in zip(each, rare, strict=True))


def _first(hit: WikiHit) -> tuple[float, str]:
    return -hit.score, hit.path


def _neighbours(path: str, linked: Mapping[str, frozenset[str]]) -> Iterator[str]:
    yield from filter(is_page, linked.get(path, ()))
    yield from (each for each, targets in linked.items() if path in targets and is_page(each))


def line_with(words: tuple[str, ...], text: str) -> str:
    """Return the line of a page with most of the words, or else its first one; shortened."""
    lines = [line for each in text.splitlines() if (line := each.strip())]
    if not lines:
        return ""
    best = max(lines, key=lambda line: sum(word in folded(line) for word in words))
    start = max(0, _first_place(words, best) - WIDTH // 3) if len(best) > WIDTH else 0
    end = start + WIDTH
    return f"{'…' if start else ''}{best[start:end].strip()}{'…' if len(best) > end else ''}"


def _first_place(words: tuple[str, ...], line: str) -> int:
    """Return the position of the first word in a line: a letter may fold to several, or to none."""
    said = folded(line)
    place = min((at for word in words if (at := said.find(word)) >= 0), default=0)
    ends = accumulate(len(folded(letter)) for letter in line)
    return next((n for n, end in enumerate(ends) if end > place), 0)
