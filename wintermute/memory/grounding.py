"""Grounding: whether what a model picked stands in the lines of one person. Pure (M-085, M-086).

fact ─ its numbers, dates, names, "not", whose it is ─▶ each stands in the lines, else it is dropped
     └ its other words ─▶ most of them stand there: told · few: meaning decides, where there is one
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import SequenceMatcher
from itertools import chain
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
"""The part of its words that tells a fact; with fewer, meaning has to be `LEAST_ALIKE`."""
LEAST_ALIKE = 0.46
SAME = 0.5
"""The part of a word that has to stand there in pieces, so that another form of it counts."""
STRANGE = 0.34
"""Less of it in what was said, and it is another name."""
PIECE = 3
"""Letters of a piece; of a sign that is a word one, of a syllable two."""
SHORT = 4
"""Letters of a name of which no other word may be taken for a form."""
LONGEST_WORD = 40
LONGEST_QUESTION = 500
LIKELIEST = 3
"""Lines of which each is looked at as what may tell a fact, alone and with another one."""
SYLLABLE = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
ALPHABET = re.compile("[a-z\u00c0-\u058f\u0900-\u0dff]")
FIRST_SIGN = "\u2e80"
CLAUSE = re.compile(
    r"[,;:!?()\n\u060c\u3001\u3002\uff0c\u061b\u061f\u0964\u2014\u2013]|(?<=\w\w)\.(?=\s|$)"
)
SENTENCE = re.compile(r"[^.!?;\u061f\u3002\u0964\n]*\w[^.!?;\u061f\u3002\u0964\n]*[^\n]?")
QUESTION = re.compile(r"[?;\u061f]\s*$")
NOT_SPOKEN = re.compile(r"[^\w\s']")
SUBJECT = re.compile(r"(?i)\b(?:the )?user(?![a-z])(?:['\u2019]\w+)?")
NAME = re.compile(r"[^\W\d_][\w\u2019'-]*")
WEIGHTLESS = (
    "user", "light", "not", "averse", "soft", "last", "next", "called", "days", "units", "habit",
    "maybe", "because", "owing",
)  # fmt: skip
"""Tables of words that are judged by themselves, or say nothing."""


@dataclass(frozen=True, slots=True)
class Line:
    """Words of one person in one message, and their day."""

    text: str
    on: date
    name: str
    sender: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a fact: the lines that tell it, or the reason why none does.

    Neither `told` nor a reason: it is worded otherwise, and told if `fact` means one of `said`.
    """

    text: str
    lines: tuple[int, ...] = ()
    reason: DropReason | None = None
    told: bool = False
    fact: str = ""
    said: tuple[str, ...] = ()

    @property
    def is_undecided(self) -> bool:
        """True where only meaning can tell."""
        return not (self.told or self.reason)

    def decided(
        self, places: Mapping[str, int], like: Callable[[int, int], float] | None
    ) -> "Judged":
        """The same once meaning has told; None: there is none."""
        if not self.is_undecided:
            return self
        if like is None:
            return replace(self, reason="worded otherwise (no embedder)")
        told = any(like(places[self.fact], places[each]) >= LEAST_ALIKE for each in self.said)
        return replace(self, told=told, reason=None if told else "not said")


def confirmed(question: str, answer: str) -> str:
    """Return what a bare yes to a single question says; else "" (M-085)."""
    if max(len(question), len(answer)) > LONGEST_QUESTION:
        return ""
    asked = unicodedata.normalize("NFKC", question).strip()
    said = " ".join(NOT_SPOKEN.sub(" ", folded(answer)).split())
    if not said or len(SENTENCE.findall(asked)) != 1 or not QUESTION.search(asked):
        return ""
    rests = (language_named(name).tables["yes"][0].sub(" ", said) for name in known_languages())
    return "" if all(map(WORD.search, rests)) else asked.rstrip("?;\u061f ")


class Grounding:
    """Judges facts by lines, each of which is folded once."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._folded = [f" {folded(line.text)} " for line in lines]
        self._names = {folded(line.name) for line in lines}

    def judged(self, fact: str) -> Judged:
        """By which lines a fact is told, or why it is not."""
        bare = folded(SUBJECT.sub(" ", fact))
        words = [*WORD.findall(bare), *NUMBER.findall(bare)]
        score = [sum(len(w) for w in words if covered(w, each) >= SAME) for each in self._folded]
        best = sorted(range(len(score)), key=lambda n: (-score[n], -n))[:LIKELIEST]
        found = [self._by(fact, (n,)) for n in best]
        if not any(each.told for each in found):
            found += [self._by(fact, pair) for n in best for pair in self._pairs(n, words)]
        none = Judged(fact, (), "not said")
        return min(found, key=lambda each: (not each.told, bool(each.reason)), default=none)

    def _pairs(self, n: int, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """A line with another one of the same person: beside it, or with two words of the fact."""
        same = [k for k, line in enumerate(self._lines) if line.sender == self._lines[n].sender]
        for place, k in enumerate(same):
            if k != n:
                shared = [w for w in words if w[PIECE:] and covered(w, self._folded[k]) >= SAME]
                if abs(place - same.index(n)) == 1 or len(shared) > 1:
                    yield min(k, n), max(k, n)

    def _by(self, fact: str, which: tuple[int, ...]) -> Judged:
        text, line = "\n".join(self._lines[n].text for n in which), self._lines[which[-1]]
        language = language_of(f"{text} {fact}")
        bare, said = _without_subject(fact, line.name, language), numeric(folded(text), language)
        others = (name for name in self._names - {folded(line.name)} if name)
        if any(name in bare and name not in said for name in others):
            return Judged(fact, which, "about others")
        compared = _Compared(fact, numeric(bare, language), said, line, language)
        parts = (part.strip() for part in CLAUSE.split(text) if len(part.strip()) > PIECE)
        reason, share = compared.contradiction(), compared.share()
        if not (reason or share) and "unlearnt" in language.traits:
            reason = "not said"
        told = not reason and share >= MOST_WORDS
        return Judged(fact, which, reason, told, bare.strip(" .,"), (text, *parts))


class _Compared:
    """A fact beside what was said, both without case and with digits for numbers."""

    def __init__(self, fact: str, mine: str, said: str, line: Line, language: Language) -> None:
        self._fact, self._mine, self._said = fact, mine, said
        self._line, self._language = line, language
        self._dates, self._rest = written(mine, language)
        self._known = _spaced(said, language)
        # "Never call me before ten" has no other word than one of those that name somebody.
        self._words = _content(self._rest, language) or _content(self._rest, language, "called")
        self._new = [word for word in self._words if covered(word, self._known) < SAME]
        self._told = max(SENTENCE.findall(said) or [said], key=lambda each: len(self._shared(each)))

    def _shared(self, text: str) -> set[str]:
        known = _spaced(text, self._language)
        return {word for word in self._words if covered(word, known) >= SAME}

    def share(self) -> float:
        """Return the part of the fact's words that was said; of two words one tells too little."""
        return (len(self._words) - len(self._new)) / max(len(self._words), 3 if self._new else 1)

    def contradiction(self) -> DropReason | None:
        """The first thing in the fact that does not stand in what was said, words aside."""
        language, mine, said = self._language, self._mine, self._said
        once = language.has("last", said) or any(near.search(said) for _, near in language.near)
        once = once or not (language.has("units", said) or language.has("days", said))
        more = once and language.has("habit", mine) and not language.has("habit", said)
        unsure = language.has("maybe", self._told) and not language.has("maybe", mine)
        ill = language.which("ill", mine) - language.which("ill", said)
        checks: tuple[tuple[DropReason, Callable[[], bool]], ...] = (
            ("other date", self._is_another_day),
            ("other number", self._is_another_number),
            ("other not", self._is_denied),
            ("other name", self._is_renamed),
            ("about others", self._is_about_others),
            ("not said", lambda: bool(more or unsure or ill or QUESTION.search(self._told))),
            ("not said", self._gives_another_reason),
        )
        return next((reason for reason, check in checks if check()), None)

    def _is_another_day(self) -> bool:
        on = self._line.on  # who names no day speaks of the day on which they speak
        meant = list(spans(self._said, self._language, on)) or [(on, on)]
        days = self._language.which("days", self._rest) - self._language.which("days", self._said)
        short = [(a.weekday(), (b - a).days) for a, b in meant if (b - a).days < 7]
        return not all(_meant(each, meant) for each in self._dates) or not all(
            any((day - begin) % 7 <= length for begin, length in short) for day in days
        )

    def _is_another_number(self) -> bool:
        known = {int(n) for n in NUMBER.findall(self._said)}
        numbers = {int(n) for n in NUMBER.findall(self._rest)} - known - {0}
        if known <= {int(n) for n in NUMBER.findall(self._mine)}:
            numbers -= {1}  # a dog
        evening = 18 if self._language.name == "th" else 12  # ten at night
        return any(not {n - 12, n - evening} & known or n > 23 for n in numbers)

    def _is_denied(self) -> bool:
        """Tell if one of both denies, or shuns, what the other says."""
        tables, mine = self._language.tables, self._mine
        denies, averse, soft = (tables[name][0].search for name in ("not", "averse", "soft"))
        pairs = [(clause, self._shared(clause)) for clause in self._clauses()]
        if denies(mine) or averse(mine):
            told = [each for c, each in pairs if denies(c) or averse(c) or soft(c)]
            return not told or (not any(told) and any(each for _, each in pairs))
        if soft(mine):
            return any(denies(c) and soft(c) and each for c, each in pairs)
        over = [(denies(c) or averse(c), each) for c, each in pairs if not soft(c)]
        affirmed = {word for is_over, each in over if not is_over for word in each}
        return any(is_over and each - affirmed for is_over, each in over)

    def _is_renamed(self) -> bool:
        """Tell if the fact has a name that was not said, or one thing in place of another."""
        traits, least = self._language.traits, 0.6 if "inflected" in self._language.traits else 0.75
        text = NAME.sub("", SUBJECT.sub(" ", self._fact).strip(), 1)
        capitals = set() if "nouns" in traits else _capitals(text)
        capitals |= {w for w in self._words if KATAKANA.fullmatch(w) and len(w) > PIECE}
        capitals -= {w for w in capitals if w[:PIECE] in folded(self._line.name)}
        if any(w in capitals and covered(w, self._known) < least for w in self._words):
            return True
        return self._is_called_otherwise() or self._is_replaced()

    def _is_called_otherwise(self) -> bool:
        """Tell if the word beside a "called" was not said."""
        language, text = self._language, self._rest
        found = language.tables["called"][0].finditer(text) if "uncased" in language.traits else ()
        if language.name == "ja":
            named = [_content(text[: each.start()], language)[-1:] for each in found]
        else:
            named = [_content(text[each.end() :], language)[:1] for each in found]
        return any(covered(word, self._known) < STRANGE for each in named for word in each)

    def _is_replaced(self) -> bool:
        """Tell if another word was said in the place of one of the fact; for names without capitals."""
        language, traits = self._language, self._language.traits
        said, mine, new = _content(self._said, language), self._words, set(self._new)
        weighty = set(said)
        if "signs" in traits:
            weighty, new = set("".join(said)), {*"".join(mine)}.difference(self._said)
            said, mine = list(self._said), list(self._rest)
        elif "placed" in traits:
            said, mine = WORD.findall(self._said), WORD.findall(self._rest)
        elif "ordered" in traits:
            like = {w: [s for s in said if covered(w, f" {s} ") >= SAME] for w in mine}
            mine = [w if w in said else [*like[w], w][0] for w in mine]
        else:
            return False
        ops = SequenceMatcher(None, said, mine, autojunk=False).get_opcodes()
        befores = ("equal" if "final" in traits else "", *(op[0] for op in ops))
        afters = (*(op[0] == "equal" and WORD.match(said[op[1]]) for op in ops[1:]), None)
        return any(
            (before, op) == ("equal", "replace")
            and (after or "placed" in traits)
            and b - a == d - c in ((2, 3) if "signs" in traits else (1,))
            and weighty.issuperset(said[a:b])
            and new.issuperset(mine[c:d])
            and said[a][: 1 if mine[c] >= FIRST_SIGN else 2] not in mine[c]
            and not language.has("kin", mine[c])
            and ("nouns" not in traits or mine[c].capitalize() in self._fact)
            for before, (op, a, b, c, d), after in zip(befores, ops, afters, strict=False)
        )

    def _gives_another_reason(self) -> bool:
        """Tell if most words of a reason that the fact gives were not said."""
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
        """Tell if others did it: relatives that the fact leaves out, or whom the clause begins with."""
        language, told = self._language, self._told
        ours, kin = language.which("kin", self._mine), list(enumerate(language.tables["kin"]))
        begins = [(m.start(), n) for n, each in kin for m in each.finditer(told)]
        if not begins:
            return not self._new and self._is_done_by_somebody()
        first, piece = min(begins)[0], 1 if language.name in UNSPACED else PIECE
        shared = [told.find(word[:piece]) for word in self._words if word not in self._new]
        leads = first < min((at for at in shared if at >= 0), default=len(told))
        led = {n for at, n in begins if at == first} if leads else language.which("kin", self._said)
        return bool(ours or leads) and not ours & led

    def _is_done_by_somebody(self) -> bool:
        """Tell if a name that the fact leaves out stands before what it tells: Tom bought a boat."""
        clause = max(self._clauses(), key=lambda each: len(self._shared(each)), default="")
        first, second, *_ = [*_content(clause, self._language), "", ""]
        named = "signs" in self._language.traits or first in _capitals(self._line.text)
        if not (second and named and clause.strip().startswith(first)):
            return False
        fact = _spaced(self._mine, self._language)
        return covered(first, fact) < SAME <= covered(second, fact)


def _meant(day: WrittenDate, meant: Sequence[DaySpan]) -> bool:
    """Tell if a date lies in one of the spans; a day only in one of two weeks at most."""
    years = [day[0]] if day[0] else {each.year for span in meant for each in span}
    return any(
        mine[0] <= end and begin <= mine[1] and (not day[2] or (end - begin).days < 15)
        for year in years
        for mine in bounds(year, *day[1:])
        for begin, end in meant
    )


def _without_subject(fact: str, name: str, language: Language) -> str:
    """A fact without who it is about: the user, or the display name in any case."""
    mine = language.tables["user"][0].sub(" ", folded(SUBJECT.sub(" ", fact)))
    for part in WORD.findall(folded(name)):
        stem, whole = re.escape(part[:-1]), re.escape(part)
        forms = f"(?:{whole}{LETTER}{{0,3}}|{stem}{LETTER})"
        if len(part) > SHORT:
            forms = f"{stem}{LETTER}{{0,4}}"
        cased = f"(?<!{LETTER}){forms}(?!{LETTER})(?:'{LETTER}+)?"
        mine = re.sub(whole if language.name in UNSPACED else cased, " ", mine)
    return " ".join(mine.split())


def _content(text: str, language: Language, but: str = "") -> list[str]:
    """List the words of a text that say something, in its order; `but`: a table that counts as well."""
    weightless = [language.tables[name] for name in WEIGHTLESS if name != but]
    for pattern in (*(near for _, near in language.near), *chain(*weightless)):
        text = pattern.sub(" ", text)
    if language.name == "ja":  # what stands in hiragana is grammar
        text = KATAKANA.sub(r" \1 ", KANA.sub(" ", text))
    return [w for w in WORD.findall(text) if len(w) > 1 or language.name in UNSPACED]


def _capitals(text: str) -> set[str]:
    """The words that begin with a capital."""
    return {word for m in NAME.findall(text) if m[0].isupper() for word in WORD.findall(folded(m))}


def _spaced(text: str, language: Language) -> str:
    return text if language.name in UNSPACED else f" {' '.join(WORD.findall(text))} "


def covered(word: str, known: str) -> float:
    """Return the part of a word that is made of pieces that stand in a text."""
    word = word[:LONGEST_WORD]
    signs = 2 if SYLLABLE.match(word) else 1
    least = min(signs if word[0] >= FIRST_SIGN else PIECE, len(word))
    begins = " " if ALPHABET.match(word) else ""  # a word of three letters is in many others
    at = found = 0
    while at <= len(word) - least:
        sizes = range(len(word) - at, least - 1, -1)
        pieces = ((n, word[at : at + n]) for n in sizes)
        size = next((n for n, each in pieces if (each if n > PIECE else begins + each) in known), 0)
        found, at = found + size, at + (size or 1)
    return found / len(word)
