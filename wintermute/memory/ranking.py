"""How memory ranks: words, meaning and what stands beside a fact make one score. Pure.

A fact is seldom said in words that make sense alone: "yes, on Friday" is about what was said before.
So a word counts for the facts beside the one it stands in, less and less, and only once, however
many neighbours have it. All parts of a score are absolute: the share of what was asked for, each
word by its rarity in this scope, and how far a likeness is above the floor. So where a question has
few words in common with anything, meaning decides, and where nothing fits there is no hit (M-071).
"""

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from wintermute.memory.sense import (
    NEGATIONS,
    SHORT_NOT,
    SIGNS,
    SIGNS_OF_NEGATION,
    TOKENS,
    main_words,
)
from wintermute.memory.words import forms, query_words, spoken_name, words_of

BEGUN = 0.1
"""The part of its weight that a word loses where a fact has only its beginning."""
ASSISTANT = "assistant"
"""Who speaks where an answer was kept as a fact."""
BEFORE_READ = 500
"""Characters of the last reply that are looked at (P-010)."""
BEFORE_TERMS = 12
MOST_POSTINGS = 1_000
"""Facts of a scope that are read for one word, the newest; a word in more is a common one."""
MOST_WORK = 4_000
"""Facts that are read for all words of a question, the rarest first."""
MOST_LEADING = 100
"""Facts that are weighed for their words, and for their meaning; besides their neighbours."""
LEAST_SIZE = 100
"""Facts that a scope is taken to have: in one of three facts no word is common."""
PIECE = 100
"""Words of a text that are embedded at once."""
MOST_PIECES = 16
TAIL = 30
"""Words of the message before that are embedded with a fact, its last ones."""
LONG = 600
"""Characters; in a longer text a word says less of what it is about."""
UNIT = re.compile(rf"{SIGNS.pattern[:-1]}|(?:(?!{SIGNS.pattern})\S){{1,40}}\s*|\s+")

APART = timedelta(hours=6)
"""What was said so long after something else was said in another conversation."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much. `floor`: the likeness, of the embedded model, below which it is chance.

    `near`: what a fact has of its neighbours, one and two places away. `before`: what the last
    reply counts beside the message. `named`: for what a person said who is named in the question;
    0 switches that off. `assistant`: what the assistant said, beside what people said. `least`: the
    score of the weakest hit that is not above the floor itself.
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
    """What is looked for: what a person wrote, and the reply that it followed."""

    text: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The words of a query: those of the message, and those that only the reply before it has."""

    asked: tuple[str, ...]
    around: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """What is to be looked up, each word once."""
        return self.asked + self.around


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live fact that may be a hit, or stands beside one.

    `place`: facts one after the other in a conversation have places one after the other; between
    two conversations some are left out (`place_after`). No two of a scope have the same place.
    `length`: characters.
    """

    seq: int
    place: int
    speaker: str | None = None
    length: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """A fact that was found. `words` and `meaning` are what of its score is due to them.

    `beside`: it has neither itself, and stands beside one that has.
    """

    seq: int
    score: float
    words: float
    meaning: float
    beside: bool = False


def terms_of(query: Query) -> Terms:
    """The words to look up; of any text at all."""
    asked = query_words(query.text)
    around = query_words(query.before[:BEFORE_READ]) if query.before else ()
    return Terms(asked, tuple(word for word in around if word not in asked)[:BEFORE_TERMS])


def are_apart(before: str | None, then: datetime, speaker: str | None, at: datetime) -> bool:
    """Whether two facts, one learnt right after the other, are no two messages of a conversation.

    `before`, `speaker`: who said them. What nobody in particular has said, such as "Ann drinks
    tea", is understood alone.
    """
    return not (before and speaker) or abs(at - then) > APART


def place_after(last: int, apart: bool) -> int:
    """The place of a fact after the last one of its scope; `apart`: in another conversation."""
    return last + (2 * len(WEIGHTS.near) if apart else 1)


def leading(
    terms: Terms, postings: Mapping[str, Sequence[int]], size: int, most: int = MOST_LEADING
) -> list[int]:
    """The facts with the most of the words, best first.

    `postings`: for each word the facts that have it, by `seq`, at most MOST_POSTINGS. `size`: the
    number of facts in the scope.
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
    """The hits, best first, of equal ones the newest; none if nothing fits.

    `candidates`: the leading ones, the likest and the neighbours of both. `likeness`: cosines, of
    those that have one; empty without a model.
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


def begun(asked: Mapping[str, set[str]], text: str) -> float:
    """The part of the asked words in a text of which only the beginning stands there (M-096)."""
    there = forms(text)
    shared = [word for word in asked if word in there]
    differ = sum(asked[word].isdisjoint(there[word]) for word in shared)
    return differ / len(shared) if shared else 0.0


def distinct(hits: Iterable[T], said: Callable[[T], tuple[str | None, str]]) -> Iterator[T]:
    """The hits, one after the other, of equal ones the first: same speaker, main words, numbers and negations.

    `said`: speaker and text of a hit. Never by likeness: "tea in the morning" and "tea in the
    evening" are alike.
    """
    seen: set[object] = set()
    for hit in hits:
        speaker, text = said(hit)
        mark = (speaker, main_words(text), _is_negated(text))
        if mark not in seen:
            seen.add(mark)
            yield hit


def embedded_text(
    text: str, speaker: str = "", before: str = "", then: str = ""
) -> tuple[str, ...]:
    """What is embedded of a fact, in pieces of about PIECE words; nothing if it has no word.

    `before`: the message before it in its conversation, with its speaker. Its end stands behind the
    first piece, so that an answer to a question is alike to what the question was about. `then`: who
    spoke next. Where that is the assistant, or was, a text stands alone: whoever talks with it asks
    later without a name, and its answers are long.
    """
    if not TOKENS.search(text):
        return ()
    if ASSISTANT in (speaker, before.partition(":")[0], then):
        speaker = before = ""
    name = f"{spoken_name(speaker)}: " if speaker else ""
    first, *others = [name + piece for piece in pieces(text)]
    return " ".join([first, *before.split()[-TAIL:]]), *others


def pieces(text: str, most: int = PIECE) -> list[str]:
    """A text in pieces of `most` words, two signs for a word; the first MOST_PIECES of them."""
    found: list[str] = []
    part, size = "", 0.0
    for unit in UNIT.findall(text):
        size += 0.5 if SIGNS.match(unit) else not unit.isspace()
        if size > most:
            found.append(part.strip())
            part, size = "", 1.0
            if len(found) == MOST_PIECES:
                return found
        part += unit
    return [*found, part.strip()] if part.strip() else found


def blended(message: Sequence[float], before: Sequence[float], share: float = 0.2) -> list[float]:
    """One vector of length 1 for a message and the reply before it, which counts `share`."""
    both = [a + share * b for a, b in zip(message, before, strict=True)]
    length = math.hypot(*both)
    return [value / length for value in both] if length else list(message)


def _values(
    terms: Terms, postings: Mapping[str, Sequence[int]], size: int, weights: Weights
) -> dict[str, float]:
    """What each word that is looked at adds to a score: in all 1, and `before` for the reply."""
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
    """How much a word says, the rarest first, as long as the work for them is bounded.

    Common words are left out where there are others.
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
    """What words add to the score at each place; each word once, from where it counts most."""
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
    """What likeness adds to the score at each place."""
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
    """How much one word says of what a text is about: less, the longer it is."""
    return math.sqrt(LONG / fact.length) if fact.length > LONG else 1.0


def _named(speakers: Iterable[str | None], asked: Collection[str]) -> set[str]:
    """The people who are named in the question."""
    return {
        speaker
        for speaker in speakers
        if speaker
        and speaker != ASSISTANT
        and not set(words_of("", speaker).split()).isdisjoint(asked)
    }


def _is_negated(text: str) -> bool:
    folded = SHORT_NOT.sub(" not", text.casefold())
    return not (
        NEGATIONS.isdisjoint(TOKENS.findall(folded)) and SIGNS_OF_NEGATION.isdisjoint(folded)
    )
