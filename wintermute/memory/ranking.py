"""The ranking of memory: words, embeddings and the neighbours of a fact make one score. Pure.

A message seldom makes sense alone: "yes, on Friday" refers to the messages before it. So a word also counts for the
facts beside its own, with a falling share, and only once, however many neighbours have it. All parts of a score are
absolute: the share of the query's words, each weighted by its rarity in this scope, and the distance of a similarity
above the floor. So embeddings decide where a question has few words in common with anything, and where nothing
matches there is no hit (M-071).
"""

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from wintermute.memory.lexical_overlap import (
    CJK_NEGATIONS,
    CJK_RUN,
    NEGATIONS,
    SHORT_NOT,
    TOKENS,
    main_words,
)
from wintermute.memory.words import forms, query_words, spoken_name, words_of

ENDING_PENALTY = 0.1
"""Share of its weight that a word loses if a fact has only its beginning."""
ASSISTANT = "assistant"
"""Speaker of a fact that is an answer of the assistant."""
BEFORE_READ = 500
"""Characters of the last reply that are used (P-010)."""
BEFORE_TERMS = 12
MOST_POSTINGS = 1_000
"""Facts of a scope that are read for one word, the newest first; a word with more is common."""
MOST_WORK = 4_000
"""Facts that are read for all words of a question, the rarest first."""
MOST_LEADING = 100
"""Facts that are scored by words, and by embeddings; their neighbours come on top."""
LEAST_SIZE = 100
"""Least size of a scope for rarity: among three facts no word is common."""
PIECE = 100
"""Words of a text that are embedded at once."""
MOST_PIECES = 16
TAIL = 30
"""Last words of the message before that are embedded with a fact."""
LONG = 600
"""Characters; in a longer text one word says less about the topic."""
UNIT = re.compile(rf"{CJK_RUN.pattern[:-1]}|(?:(?!{CJK_RUN.pattern})\S){{1,40}}\s*|\s+")

APART = timedelta(hours=6)
"""Pause after which a fact belongs to another conversation."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the parts of a score. `floor`: similarity of the embedded model below which it is chance.

    `near`: shares that neighbours one and two places away contribute. `before`: weight of the last reply beside the
    message. `named`: bonus for facts of a speaker named in the question; 0 switches it off. `assistant`: weight of
    the assistant's facts. `least`: score of the weakest hit whose own similarity is not above the floor.
    """

    meaning: float = 0.7
    floor: float = 0.2
    near: tuple[float, ...] = (0.5, 0.4)
    before: float = 0.2
    named: float = 0.2
    assistant: float = 0.3
    least: float = 0.05


WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Query:
    """A search query: the message of a person, and the reply before it."""

    text: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The words of a query: those of the message, and those that only the reply before it has."""

    asked: tuple[str, ...]
    around: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Return all words to look up, each once."""
        return self.asked + self.around


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live fact that may be a hit, or is next to one.

    `place`: facts that follow each other in a conversation have consecutive places; between two conversations there
    is a gap (`place_after`). Places are unique in a scope. `length`: characters.
    """

    seq: int
    place: int
    speaker: str | None = None
    length: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """A scored fact. `words` and `meaning` are the parts of its score from words and embeddings.

    `beside`: it matches neither itself, but is next to a fact that does.
    """

    seq: int
    score: float
    words: float
    meaning: float
    beside: bool = False


def terms_of(query: Query) -> Terms:
    """Return the words to look up for any query."""
    asked = query_words(query.text)
    around = query_words(query.before[:BEFORE_READ]) if query.before else ()
    return Terms(asked, tuple(word for word in around if word not in asked)[:BEFORE_TERMS])


def are_apart(before: str | None, then: datetime, speaker: str | None, at: datetime) -> bool:
    """Check whether two consecutive facts are not two messages of one conversation.

    `before`, `speaker`: their speakers. A fact without a speaker, such as "Ann drinks tea", makes sense alone.
    """
    return not (before and speaker) or abs(at - then) > APART


def place_after(last: int, apart: bool) -> int:
    """Return the place of a fact after the last one of its scope; `apart`: in another conversation."""
    return last + (2 * len(WEIGHTS.near) if apart else 1)


def leading(
    terms: Terms, postings: Mapping[str, Sequence[int]], size: int, most: int = MOST_LEADING
) -> list[int]:
    """Return the facts with the heaviest words, best first.

    `postings`: word → `seq` of the facts that have it, at most MOST_POSTINGS. `size`: the number of facts in the
    scope.
    """
    values = _values(terms, postings, size, WEIGHTS)
    sums: dict[int, float] = defaultdict(float)
    for word, value in values.items():
        for seq in postings[word]:
            sums[seq] += value
    return heapq.nlargest(most, sums, key=lambda seq: (sums[seq], seq))


def fuse(
    terms: Terms,
    postings: Mapping[str, Sequence[int]],
    size: int,
    likeness: Mapping[int, float],
    candidates: Iterable[Candidate],
    weights: Weights = WEIGHTS,
) -> list[Scored]:
    """Return the hits, best first, of equal scores the newest; none if nothing matches.

    `candidates`: the best by words, the most similar ones and the neighbours of both. `likeness`: cosine by `seq`,
    where there is one; empty without a model.
    """
    known = {fact.seq: fact for fact in candidates}
    shares = [(0, 1.0)]
    for away, share in enumerate(weights.near, 1):
        shares += [(away, share), (-away, share)]
    values = _values(terms, postings, size, weights)
    words = _words_at(known, shares, values, postings, weights)
    meaning = _meaning_at(known, shares, likeness, weights)
    having = {seq for word in values for seq in postings[word]}
    named = _named({fact.speaker for fact in known.values()}, terms.asked)
    hits = []
    for fact in known.values():
        voice = _voice(fact, weights)
        by_words, by_meaning = (
            voice * words.get(fact.place, 0.0),
            voice * meaning.get(fact.place, 0.0),
        )
        score = by_words + by_meaning
        if score >= weights.least or likeness.get(fact.seq, 0.0) > max(weights.floor, 0.0):
            score += weights.named * (fact.speaker in named)
            beside = fact.seq not in having and not likeness.get(fact.seq, 0.0) > weights.floor
            hits.append(Scored(fact.seq, score, by_words, by_meaning, beside))
    return sorted(hits, key=lambda hit: (-hit.score, -hit.seq))


def ending_mismatch(asked: Mapping[str, set[str]], text: str) -> float:
    """Return the share of the asked words that a text has with another ending (M-096)."""
    there = forms(text)
    shared = [word for word in asked if word in there]
    differ = sum(asked[word].isdisjoint(there[word]) for word in shared)
    return differ / len(shared) if shared else 0.0


def distinct(hits: Iterable[T], said: Callable[[T], tuple[str | None, str]]) -> Iterator[T]:
    """Yield the hits without repetitions: same speaker, main words, numbers and negations.

    `said`: speaker and text of a hit. Similarity does not count: "tea in the morning" and "tea in the evening" are
    similar.
    """
    seen: set[object] = set()
    for hit in hits:
        speaker, text = said(hit)
        kind_of_hit = (speaker, main_words(text), _is_negated(text))
        if kind_of_hit not in seen:
            seen.add(kind_of_hit)
            yield hit


def embedded_text(
    text: str, speaker: str = "", before: str = "", then: str = ""
) -> tuple[str, ...]:
    """Return the texts to embed for a fact, in parts of about PIECE words; none if it has no word.

    `before`: the previous message of its conversation, with its speaker. Its end is appended to the first part, so
    that an answer is similar to the topic of its question. `then`: the next speaker. Beside a message of the
    assistant a text is embedded alone: its user asks later without a name, and its answers are long.
    """
    if not TOKENS.search(text):
        return ()
    if ASSISTANT in (speaker, before.partition(":")[0], then):
        speaker = before = ""
    name = f"{spoken_name(speaker)}: " if speaker else ""
    first, *others = [name + piece for piece in text_parts(text)]
    return " ".join([first, *before.split()[-TAIL:]]), *others


def text_parts(text: str, most: int = PIECE) -> list[str]:
    """Split a text into parts of `most` words, two CJK characters for a word; return the first MOST_PIECES."""
    found: list[str] = []
    part, size = "", 0.0
    for unit in UNIT.findall(text):
        size += 0.5 if CJK_RUN.match(unit) else not unit.isspace()
        if size > most:
            found.append(part.strip())
            part, size = "", 1.0
            if len(found) == MOST_PIECES:
                return found
        part += unit
    return [*found, part.strip()] if part.strip() else found


def blended(message: Sequence[float], before: Sequence[float], share: float = 0.2) -> list[float]:
    """Return one vector of length 1 for a message and the reply before it, which counts `share`."""
    both = [a + share * b for a, b in zip(message, before, strict=True)]
    length = math.hypot(*both)
    return [value / length for value in both] if length else list(message)


def _values(
    terms: Terms, postings: Mapping[str, Sequence[int]], size: int, weights: Weights
) -> dict[str, float]:
    """Return the weight of each word: in all 1 for the message, and `before` for the reply."""
    rarity = _rarity({word: len(postings.get(word, ())) for word in terms.all}, size)
    values: dict[str, float] = {}
    for part, share in ((terms.asked, 1.0), (terms.around, weights.before)):
        total = sum(rarity.get(word, 0.0) for word in part)
        values |= {
            word: share * rarity[word] / total
            for word in part
            if word in rarity and postings.get(word)
        }
    return values


def _rarity(counts: Mapping[str, int], size: int) -> dict[str, float]:
    """Return the rarity of each word, the rarest first, while the work stays bounded.

    Common words are left out if there are others.
    """
    most = (
        MOST_POSTINGS if any(0 < count < MOST_POSTINGS for count in counts.values()) else math.inf
    )
    found: dict[str, float] = {}
    work = 0
    for word, count in sorted(counts.items(), key=lambda item: item[1]):
        work += count
        if count >= most or (work > MOST_WORK and found):
            break
        found[word] = math.log1p((max(size, count, LEAST_SIZE) - count + 0.5) / (count + 0.5))
    return found


def _words_at(
    known: Mapping[int, Candidate],
    shares: Sequence[tuple[int, float]],
    values: Mapping[str, float],
    postings: Mapping[str, Sequence[int]],
    weights: Weights,
) -> dict[int, float]:
    """Return the score from words at each place; each word counts once, from its best neighbour."""
    sums: dict[int, float] = defaultdict(float)
    for word, value in values.items():
        best: dict[int, float] = {}
        for seq in known.keys() & postings[word]:
            fact = known[seq]
            own = value * _voice(fact, weights) * _plainness(fact)
            for away, share in shares:
                place = fact.place + away
                if share * own > best.get(place, 0.0):
                    best[place] = share * own
        for place, most in best.items():
            sums[place] += most
    return sums


def _meaning_at(
    known: Mapping[int, Candidate],
    shares: Sequence[tuple[int, float]],
    likeness: Mapping[int, float],
    weights: Weights,
) -> dict[int, float]:
    """Return the score from embeddings at each place."""
    sums: dict[int, float] = defaultdict(float)
    for seq in sorted(known.keys() & likeness):
        cosine = likeness[seq]
        if cosine > max(weights.floor, 0.0):
            above = min(1.0, (cosine - weights.floor) / (1 - weights.floor))
            own = weights.meaning * above * _voice(known[seq], weights)
            for away, share in shares:
                sums[known[seq].place + away] += share * own
    return sums


def _voice(fact: Candidate, weights: Weights) -> float:
    return weights.assistant if fact.speaker == ASSISTANT else 1.0


def _plainness(fact: Candidate) -> float:
    """Return a factor for the words of a fact: the longer its text, the less one word says."""
    return math.sqrt(LONG / fact.length) if fact.length > LONG else 1.0


def _named(speakers: Iterable[str | None], asked: Collection[str]) -> set[str]:
    """Return the speakers whose names are in the question."""
    return {
        speaker
        for speaker in speakers
        if speaker
        and speaker != ASSISTANT
        and not set(words_of("", speaker).split()).isdisjoint(asked)
    }


def _is_negated(text: str) -> bool:
    folded = SHORT_NOT.sub(" not", text.casefold())
    return not (NEGATIONS.isdisjoint(TOKENS.findall(folded)) and CJK_NEGATIONS.isdisjoint(folded))
