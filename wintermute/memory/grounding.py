"""Grounding: a check that the lines of one person contain a fact that a model extracted. Pure (M-085, M-086).

fact ─ its numbers, dates, names, "not", whose it is ─▶ each is in the lines, else it is dropped
     └ its other words ─▶ most are in the lines: grounded · few: embeddings decide, if there are any
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import SequenceMatcher
from typing import Literal

from wintermute.memory.language import (
    KANA,
    KATAKANA,
    LETTER,
    NUMBER,
    UNSPACED,
    WORD,
    DaySpan,
    Language,
    WrittenDate,
    bounds,
    folded,
    known_languages,
    language_named,
    language_of,
    numeric,
    spans,
    written,
)

DropReason = Literal[
    "not said", "other number", "other date", "other name", "other not", "about others",
    "worded otherwise (no embedder)",
]  # fmt: skip
"""Reasons for dropping a fact, as a status counts them."""
MOST_WORDS = 0.5
"""Share of a fact's words that grounds it; below it the embeddings must be `LEAST_ALIKE`."""
LEAST_ALIKE = 0.46
UNKNOWN = frozenset({"el", "fi", "he", "hi"})
"""Languages that the embedder does not know: all their texts look alike, so words are needed as well."""
SAME = 0.5
"""Share of a word that must match in fragments, so that another form of it counts."""
STRANGE = 0.34
"""Share of a word's fragments below which it counts as another name."""
FRAGMENT = 3
"""Letters of a fragment; one for an ideograph, two for a syllable."""
SHORT = 4
"""Letters of a name so short that no other word may count as a form of it."""
LONGEST_WORD = 40
LONGEST_QUESTION = 500
MOST_CANDIDATES = 3
"""Lines that are tried for a fact, alone and in pairs."""
SYLLABLE = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
ALPHABET = re.compile("[a-z\u00c0-\u058f\u0900-\u0dff]")
FIRST_IDEOGRAPH = "\u2e80"
UNCASED = UNSPACED | {"ko", "hi", "he", "ar"}
INFLECTED = frozenset({"ru", "pl", "fi", "el"})
CLAUSE = re.compile(
    r"[,;:!?()\n\u060c\u3001\u3002\uff0c\u061b\u061f\u0964\u2014\u2013]|(?<=\w\w)\.(?=\s|$)"
)
SENTENCE = re.compile(r"[^.!?;\u061f\u3002\u0964\n]*\w[^.!?;\u061f\u3002\u0964\n]*[^\n]?")
QUESTION = re.compile(r"[?;\u061f]\s*$")
NOT_SPOKEN = re.compile(r"[^\w\s']")
SUBJECT = re.compile(r"(?i)\b(?:the )?user(?![a-z])(?:['\u2019]\w+)?")
NAME = re.compile(r"[^\W\d_][\w\u2019'-]*")
WEIGHTLESS = (
    *("user", "light", "not", "averse", "soft", "last", "next", "called", "days", "units"),
    *("habit", "maybe", "because", "owing"),
)
"""Word tables that are checked separately, or carry no meaning."""


@dataclass(frozen=True, slots=True)
class Line:
    """The words of one person in one message, and the day they were written."""

    text: str
    on: date
    name: str
    sender: str = ""


@dataclass(frozen=True, slots=True)
class GroundingResult:
    """The verdict on a fact: the lines that ground it, or the reason why none does.

    Without such lines and without a reason it is undecided: embeddings compare `fact` with the texts in `said`.
    """

    text: str
    lines: tuple[int, ...] = ()
    reason: DropReason | None = None
    is_grounded: bool = False
    fact: str = ""
    said: tuple[str, ...] = ()

    @property
    def is_undecided(self) -> bool:
        """True if only embeddings can decide."""
        return not (self.is_grounded or self.reason)

    def with_similarity(
        self, places: Mapping[str, int], like: Callable[[int, int], float] | None
    ) -> "GroundingResult":
        """Return the verdict after embeddings decided; `like` is None if there are none."""
        if not self.is_undecided:
            return self
        if like is None:
            return replace(self, reason="worded otherwise (no embedder)")
        is_told = any(like(places[self.fact], places[each]) >= LEAST_ALIKE for each in self.said)
        return replace(self, is_grounded=is_told, reason=None if is_told else "not said")


def confirmed(question: str, answer: str) -> str:
    """Return the statement that a bare yes to a single question confirms; else "" (M-085)."""
    if max(len(question), len(answer)) > LONGEST_QUESTION:
        return ""
    asked = unicodedata.normalize("NFKC", question).strip()
    said = " ".join(NOT_SPOKEN.sub(" ", folded(answer)).split())
    if not said or len(SENTENCE.findall(asked)) != 1 or not QUESTION.search(asked):
        return ""
    rests = (language_named(name).tables["yes"][0].sub(" ", said) for name in known_languages())
    return "" if all(map(WORD.search, rests)) else asked.rstrip("?;\u061f ")


class Grounding:
    """Checks facts against lines, each of which is normalised once."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._folded = [f" {folded(line.text)} " for line in lines]
        self._names = {folded(line.name) for line in lines}

    def ground(self, fact: str) -> GroundingResult:
        """Return the lines that ground a fact, or the reason why none does."""
        bare = folded(SUBJECT.sub(" ", fact))
        words = [*WORD.findall(bare), *NUMBER.findall(bare)]
        score = [sum(len(w) for w in words if covered(w, each) >= SAME) for each in self._folded]
        best = sorted(range(len(score)), key=lambda n: (-score[n], -n))[:MOST_CANDIDATES]
        candidates = [self._by(fact, (n,)) for n in best]
        if not any(each.is_grounded for each in candidates):
            candidates += [self._by(fact, pair) for n in best for pair in self._pairs(n, words)]
        ranked = [each for each in candidates if each.is_grounded] or [
            each for each in candidates if each.is_undecided
        ]
        return (ranked or candidates or [GroundingResult(fact, (), "not said")])[0]

    def _pairs(self, n: int, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield a line with another of the same person: adjacent, or with two words of the fact."""
        same = [k for k, line in enumerate(self._lines) if line.sender == self._lines[n].sender]
        for place, k in enumerate(same):
            if k != n:
                shared = [
                    w for w in words if len(w) > FRAGMENT and covered(w, self._folded[k]) >= SAME
                ]
                if abs(place - same.index(n)) == 1 or len(shared) > 1:
                    yield min(k, n), max(k, n)

    def _by(self, fact: str, which: tuple[int, ...]) -> GroundingResult:
        text, line = "\n".join(self._lines[n].text for n in which), self._lines[which[-1]]
        language = language_of(f"{text} {fact}")
        bare, said = _without_subject(fact, line.name, language), numeric(folded(text), language)
        others = (name for name in self._names - {folded(line.name)} if name)
        if any(name in bare and name not in said for name in others):
            return GroundingResult(fact, which, "about others")
        compared = _Compared(fact, numeric(bare, language), said, line, language)
        parts = (part.strip() for part in CLAUSE.split(text) if len(part.strip()) > FRAGMENT)
        reason, share = compared.contradiction(), compared.share()
        if not (reason or share) and language.name in UNKNOWN:
            reason = "not said"
        is_told = not reason and share >= MOST_WORDS
        return GroundingResult(fact, which, reason, is_told, bare.strip(" .,"), (text, *parts))


class _Compared:
    """A fact beside the words it was taken from, both casefolded and with digits for numbers."""

    def __init__(self, fact: str, mine: str, said: str, line: Line, language: Language) -> None:
        self._fact, self._mine, self._said = fact, mine, said
        self._line, self._language = line, language
        self._dates, self._rest = written(mine, language)
        self._known = _spaced(said, language)
        # "Never call me before ten" has no other word than one of those that name somebody.
        self._words = _content(self._rest, language) or _content(self._rest, language, "called")
        self._new = [word for word in self._words if covered(word, self._known) < SAME]
        self._sentence = max(
            SENTENCE.findall(said) or [said], key=lambda each: len(self._shared(each))
        )

    def _shared(self, text: str) -> set[str]:
        known = _spaced(text, self._language)
        return {word for word in self._words if covered(word, known) >= SAME}

    def share(self) -> float:
        """Return the part of the fact's words that was said; of two words, one is too little."""
        covered_words = len(self._words) - len(self._new)
        return covered_words / max(len(self._words), 3 if self._new else 1)

    def contradiction(self) -> DropReason | None:
        """Return the first contradiction between the fact and the words it was taken from, single words aside."""
        language, mine, said = self._language, self._mine, self._said
        more = language.has("habit", mine) and not language.has("habit", said)
        unsure = language.has("maybe", self._sentence) and not language.has("maybe", mine)
        asks = QUESTION.search(self._sentence)
        checks: tuple[tuple[DropReason, Callable[[], bool]], ...] = (
            ("other date", self._is_another_day),
            ("other number", self._is_another_number),
            ("other not", self._is_denied),
            ("other name", self._is_renamed),
            ("about others", self._is_about_others),
            ("not said", lambda: bool(more or unsure or asks) or bool(self._more_of("ill"))),
            ("not said", self._gives_another_reason),
        )
        return next((reason for reason, check in checks if check()), None)

    def _more_of(self, table: str) -> set[int]:
        return self._language.which(table, self._mine) - self._language.which(table, self._said)

    def _is_another_day(self) -> bool:
        on = self._line.on  # without a date the day of the message is meant
        meant = list(spans(self._said, self._language, on)) or [(on, on)]
        days = self._language.which("days", self._rest) - self._language.which("days", self._said)
        return not all(_meant(each, meant) for each in self._dates) or not all(
            any(_is_on(day, span) for span in meant) for day in days
        )

    def _is_another_number(self) -> bool:
        known = {int(n) for n in NUMBER.findall(self._said)}
        numbers = {int(n) for n in NUMBER.findall(self._rest)} - known - {0}
        if known <= {int(n) for n in NUMBER.findall(self._mine)}:
            numbers -= {1}  # a dog
        evening = 18 if self._language.name == "th" else 12  # ten at night
        return any(not {n - 12, n - evening} & known or n > 23 for n in numbers)

    def _is_denied(self) -> bool:
        """Check whether one of the two denies, or dislikes, what the other states."""
        tables, mine = self._language.tables, self._mine
        denies, averse, soft = (tables[name][0].search for name in ("not", "averse", "soft"))
        clauses = self._clauses()
        pairs = [(clause, self._shared(clause)) for clause in clauses]
        if denies(mine) or averse(mine):
            shuns = [(denies(c) or averse(c) or soft(c)) for c in clauses]
            shunned = [each for (_, each), shun in zip(pairs, shuns, strict=True) if shun]
            return not any(shuns) or (not any(shunned) and any(each for _, each in pairs))
        if soft(mine):
            return any(denies(c) and soft(c) and each for c, each in pairs)
        pairs = [(c, each) for c, each in pairs if not soft(c)]
        over = [(denies(clause) or averse(clause), each) for clause, each in pairs]
        affirmed = {word for is_over, each in over if not is_over for word in each}
        return any(is_over and each - affirmed for is_over, each in over)

    def _is_renamed(self) -> bool:
        """Check for a name in the fact that was not said, or a thing in place of another."""
        name, least = self._language.name, 0.6 if self._language.name in INFLECTED else 0.75
        text = SUBJECT.sub(" ", self._fact)
        capitals = " ".join(
            folded(found[0])
            for found in NAME.finditer(text)
            if found[0][0].isupper() and text[: found.start()].strip() and name != "de"
        )
        for word in self._words:
            strange = word in WORD.findall(capitals) or (
                KATAKANA.fullmatch(word) and len(word) > FRAGMENT
            )
            is_own = word[:FRAGMENT] in folded(self._line.name)
            if strange and not is_own and covered(word, self._known) < least:
                return True
        return self._is_called_otherwise() or self._is_replaced()

    def _is_called_otherwise(self) -> bool:
        """Check whether the word beside a "called" was not said."""
        language, text = self._language, self._rest
        if language.name not in UNCASED:
            return False
        ends = [found.span() for found in language.tables["called"][0].finditer(text)]
        named = [_content(text[end:], language)[:1] for _, end in ends]
        if language.name == "ja":
            named = [_content(text[:begin], language)[-1:] for begin, _ in ends]
        return any(covered(word, self._known) < STRANGE for each in named for word in each)

    def _is_replaced(self) -> bool:
        """Check for another word between two words of the fact; for names in scripts without capitals."""
        name = self._language.name
        if name not in {"ja", "ko", "hi", "he", "de"}:
            return False
        said = _content(self._said, self._language)
        mine = [
            w if w in said else next((s for s in said if covered(w, f" {s} ") >= SAME), w)
            for w in self._words
        ]
        ops = SequenceMatcher(None, said, mine, autojunk=False).get_opcodes()
        same = {"ko": 1, "ja": 1, "de": None}.get(name, 2)
        return any(
            (before[0], op, after[0]) == ("equal", "replace", "equal")
            and b - a == d - c == 1
            and said[a][:same] != mine[c][:same]
            and covered(mine[c], self._known) < STRANGE
            and (name != "de" or mine[c].capitalize() in self._fact)
            for before, (op, a, b, c, d), after in zip(ops, ops[1:], ops[2:], strict=False)
        )

    def _gives_another_reason(self) -> bool:
        """Check whether most words of a reason in the fact were not said."""
        tables, mine = self._language.tables, self._mine
        if len(self._clauses()) > 1:  # one of them may be the reason
            return False
        parts = [CLAUSE.split(mine[m.end() :])[0] for m in tables["because"][0].finditer(mine)]
        most = 1 if self._language.name in UNSPACED else None
        reasons = [_content(part, self._language)[:most] for part in parts]
        parts = [CLAUSE.split(mine[: m.start()])[-1] for m in tables["owing"][0].finditer(mine)]
        reasons += [_content(part, self._language)[-1:] for part in parts]
        return any(each and 2 * sum(w in self._new for w in each) >= len(each) for each in reasons)

    def _clauses(self) -> list[str]:
        parts = CLAUSE.split(self._language.tables["joins"][0].sub(",", self._said))
        return [part for part in parts if part.strip()]

    def _is_about_others(self) -> bool:
        """Check whether the fact names other relatives, or omits those that the line begins with."""
        language = self._language
        theirs, ours = (language.which("kin", each) for each in (self._sentence, self._mine))
        if ours or not theirs:
            return bool(ours and theirs) and not ours & language.which("kin", self._said)
        begins = [m.start() for kin in language.tables["kin"] for m in kin.finditer(self._sentence)]
        least = 1 if language.name in UNSPACED else FRAGMENT
        places = [self._sentence.find(w[:least]) for w in self._words if w not in self._new]
        return min(begins) < min((at for at in places if at >= 0), default=len(self._sentence))


def _meant(day: WrittenDate, meant: Sequence[DaySpan]) -> bool:
    """Check whether a date lies in one of the spans; a single day only in a span of two weeks at most."""
    years = [day[0]] if day[0] else {each.year for span in meant for each in span}
    return any(
        mine[0] <= end and begin <= mine[1] and (not day[2] or (end - begin).days < 15)
        for year in years
        for mine in bounds(year, *day[1:])
        for begin, end in meant
    )


def _is_on(weekday: int, span: DaySpan) -> bool:
    length = (span[1] - span[0]).days
    return length < 7 and (weekday - span[0].weekday()) % 7 <= length


def _without_subject(fact: str, name: str, language: Language) -> str:
    """Return a fact without its subject: the user, or the display name in any grammatical case."""
    mine = language.tables["user"][0].sub(" ", folded(SUBJECT.sub(" ", fact)))
    for part in WORD.findall(folded(name)):
        stem, whole = re.escape(part[:-1]), re.escape(part)
        forms = (
            f"{stem}{LETTER}{{0,4}}"
            if len(part) > SHORT
            else f"(?:{whole}{LETTER}{{0,3}}|{stem}{LETTER})"
        )
        cased = f"(?<!{LETTER}){forms}(?!{LETTER})(?:'{LETTER}+)?"
        mine = re.sub(whole if language.name in UNSPACED else cased, " ", mine)
    return " ".join(mine.split())


def _content(text: str, language: Language, but: str = "") -> list[str]:
    """List the meaningful words of a text in order; `but`: a word table that counts as well."""
    for name in (each for each in WEIGHTLESS if each != but):
        for pattern in language.tables.get(name, ()):
            text = pattern.sub(" ", text)
    for _, pattern in language.near:
        text = pattern.sub(" ", text)
    if language.name == "ja":  # hiragana is grammar
        text = KATAKANA.sub(r" \1 ", KANA.sub(" ", text))
    return [w for w in WORD.findall(text) if len(w) > 1 or language.name in UNSPACED]


def _spaced(text: str, language: Language) -> str:
    return text if language.name in UNSPACED else f" {' '.join(WORD.findall(text))} "


def covered(word: str, known: str) -> float:
    """Return the part of a word that consists of fragments found in a text."""
    word = word[:LONGEST_WORD]
    signs = 2 if SYLLABLE.match(word) else 1
    least = min(signs if word[0] >= FIRST_IDEOGRAPH else FRAGMENT, len(word))
    begins = " " if ALPHABET.match(word) else ""  # a word of three letters is in many others
    at = found = 0
    while at <= len(word) - least:
        sizes = range(len(word) - at, least - 1, -1)
        candidates = ((n, word[at : at + n]) for n in sizes)
        size = next(
            (n for n, each in candidates if (each if n > FRAGMENT else begins + each) in known), 0
        )
        found, at = found + size, at + (size or 1)
    return found / len(word)
