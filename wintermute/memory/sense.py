"""What a text says: its main words, its numbers and what it denies, by which texts are compared. Pure."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache


def says_something(line: str) -> bool:
    """Whether a line has a word at all; decoration and signs alone are no memory."""
    return any(mark.isalnum() for mark in line)


TOKENS = re.compile(r"[^\W_]+")
# Scripts that write without blanks between words; pairs of signs stand for words.
SIGNS = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
FILLER_WORDS = (
    "the and are was were has have had his her its their they she with for from that this who which"
    " user usuario usuaria usuário usuária utente utilisateur utilisatrice gebruiker"
    " does did can will often also very der die das den dem des ein eine einen einem einer und ist sind war hat"
    " haben mit von für auch sehr nutzer les des une est son ses sur pour avec dans aux qui que los"
    " las una del con por para que tiene sus gli dei della nel per che"
)
NEGATION_WORDS = (
    "not no never none without cannot nicht nie niemals kein keine keinen"
    " keinem keiner ohne pas jamais sans aucun aucune nunca jamás sin ningún ninguna non senza"
    " nessun nessuna"
)
FILLERS = frozenset(FILLER_WORDS.split())
NEGATIONS = frozenset(NEGATION_WORDS.split())
SIGNS_OF_NEGATION = frozenset("不没未无非無ない")
OWNERS_S = re.compile(r"['\u2019]s\b")
SHORT_NOT = re.compile(r"n['\u2019]t\b")


@dataclass(frozen=True, slots=True)
class _Sense:
    """What is compared of a line."""

    words: frozenset[str]
    numbers: frozenset[str]
    negated: bool
    beginnings: frozenset[str]

    def survives_in(self, other: "_Sense") -> bool:
        """Half of the main words, every number, and a "not" if there is one."""
        shared = len(self.words & other.words)
        return (
            0 < shared >= self.needed
            and self.numbers <= other.numbers
            and (other.negated or not self.negated)
        )

    @property
    def needed(self) -> int:
        return (len(self.words) + 1) // 2

    def is_shared_by(self, other: "_Sense", *, loosely: bool = False) -> bool:
        """Whether another line has half of the main words, by their first letters."""
        shared = sum(other.has(word, loosely=loosely) for word in self.words)
        return 2 * shared >= len(self.words)

    def has(self, word: str, *, loosely: bool = False) -> bool:
        """Whether a word is there, as it is or by its beginning. `loosely`: another ending is the same."""
        if word in self.words:
            return True
        least = SAME_BEGINNING
        if loosely:
            least = max(LEAST_BEGINNING, min(SAME_BEGINNING, len(word) - 1))
        if word[:least] not in self.beginnings or len(word) < least:
            return False
        return not (_has_digit(word) or SIGNS.match(word))

    def likely(self, holders: Mapping[str, Sequence[int]]) -> set[int]:
        """Lines worth a look: whoever shares half of the words has one of the rarer half."""
        rarest = sorted(self.numbers or self.words, key=lambda word: len(holders.get(word, ())))
        most = 1 if self.numbers else len(rarest) - self.needed + 1
        return {n for word in rarest[:most] for n in holders.get(word, ())}


def main_words(text: str) -> frozenset[str]:
    """What a line is about: longer words, everything with a digit, pairs of signs."""
    return _words(_folded(text))


def _words(folded: str) -> frozenset[str]:
    words: set[str] = set()
    for signs in SIGNS.findall(folded):
        words.update(signs[i : i + 2] for i in range(max(1, len(signs) - 1)))
    tokens = TOKENS.findall(SIGNS.sub(" ", folded))
    words.update(token for token in tokens if len(token) >= 3 or _has_digit(token))
    return frozenset(words - FILLERS - NEGATIONS or words or {folded})


def beginnings(text: str) -> set[str]:
    """The main words by which texts are compared: their first letters, and numbers whole (M-039)."""
    return {word if _has_digit(word) else word[:SAME_BEGINNING] for word in main_words(text)}


def is_negated(text: str) -> bool:
    """Whether there is a "not" in it."""
    return _sense(text).negated


def succeeds(old: str, new: str) -> bool:
    """Whether `new` still says what `old` is about."""
    return _sense(old).survives_in(_sense(new))


def successors(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """For each old line which of the new ones succeeds it best, if any."""
    senses = [_sense(line) for line in new]
    holders: dict[str, list[int]] = defaultdict(list)
    for n, sense in enumerate(senses):
        for word in sense.words:
            holders[word].append(n)
    found: list[int | None] = []
    for line in old:
        mine = _sense(line)
        fit = [n for n in sorted(mine.likely(holders)) if mine.survives_in(senses[n])]
        shared = [len(mine.words & senses[n].words) for n in fit]
        found.append(fit[shared.index(max(shared))] if fit else None)
    return found


SAME_BEGINNING = 5
"""Letters by which words are one: "sings" and "singing"."""
LEAST_BEGINNING = 3
MOST_ADDED = 0.25
"""Which part of the words of a merged text may be new: what joins sentences."""
ENDING_WORDS = (
    "until till formerly previously bis früher ehemals jusqu jusque autrefois anciennement hasta"
    " antes fino finché prima até tot"
)
ENDINGS = frozenset(ENDING_WORDS.split())
ENDING_PHRASES = re.compile(
    r"no longer|not \w+ any ?more|used to\b|nicht mehr|kein\w* \w+ mehr|ne \w+ plus\b|n['\u2019]\w+ plus\b"
    r"|ya no\b|non \w+ più|\u307e\u3067|\u76f4\u5230|\u4e0d\u518d|\u4ee5\u524d|\uae4c\uc9c0"
)
DENIED = "not"
# Where one statement ends and another begins; rather too often than too seldom.
CLAUSE_END = re.compile(
    r"(?:[,;:!?)]|(?<=\w\w\w)\.)(?:\s+|$)|\s[(\u2013\u2014-]\s*|[\n\u3001\u3002\uff0c\uff1b\uff01\uff1f]"
    r"|\b(?:and|but|or|though|although|while|whereas|because|who|which|where|when|if|und|aber|oder|sondern"
    r"|doch|denn|et|mais|ou|parce|tandis|qui|quand|y|pero|sino|porque|aunque|e|ma|per\u00f2|mentre)\b"
)


@dataclass(frozen=True, slots=True)
class _Clause:
    """A part of a text with its own verb and its own "not"."""

    text: str
    sense: _Sense

    def is_over(self, old: _Sense) -> bool:
        """Whether it says that what it tells is past."""
        return _ends(self.text) and (self.sense.negated or not old.negated)

    def denies(self, old: _Sense) -> bool:
        """Whether its "not" stands before, or behind, what the old one says, not before other words."""
        if old.negated or not self.sense.negated:
            return False
        words = TOKENS.findall(_folded(self.text))
        after = [words[n + 1 :] for n, word in enumerate(words) if word in NEGATIONS]
        nearest = [next((w for w in rest if w in self.sense.words), "") for rest in after]
        return all(not word or old.has(word, loosely=True) for word in nearest)


def _clauses(text: str) -> list[_Clause]:
    parts = [part for part in CLAUSE_END.split(_folded(text)) if says_something(part)]
    return [_Clause(part, _sense(part)) for part in parts or [text]]


class Heirs:
    """What may stand in the place of older texts; each is looked at closely once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._senses = [_sense(text) for text in texts]
        self._of_older = cache(_sense)
        self._clauses = [_clauses(text) for text in texts]
        self._all = _sense_of({word for sense in self._senses for word in sense.words})

    def keeps(self, old: str, near: int | None = None) -> bool:
        """Whether nothing of `old` is lost where these stand for it; `near`: which is alike (M-039).

        Every main word stands somewhere in the texts, by its first letters; its numbers, whole, in
        the one that is near, or in another text that says half of what `old` does; and what each
        clause says or denies is said or denied in the clause that is most like it.
        """
        mine = self._of_older(old)
        told = [c for c in _clauses(old) if c.sense.negated or c.sense.words & mine.words]
        if near is not None and _ends(self._texts[near]) and _tell(self._clauses[near], old):
            return all(map(self._affirms, told))  # "lives" beside "lived there until"
        if not all(map(self._all.has, mine.words)):
            return False
        about = [each for each in self._senses if mine.is_shared_by(each)]
        numbers = frozenset[str]().union(*(sense.numbers for sense in about))
        if near is not None:
            numbers |= self._senses[near].numbers
        return mine.numbers <= numbers and all(map(self._affirms, told))

    def _affirms(self, clause: _Clause) -> bool:
        """Whether what is most like a clause has a "not" if it has one, and has none if it has none."""
        mine, found = clause.sense, [each.sense for part in self._clauses for each in part]
        about = [each for each in found if mine.is_shared_by(each)]
        if not about:
            return not mine.negated and not any(each.negated for each in found)
        shared = [sum(map(each.has, mine.words)) for each in about]
        likest = [each for each, n in zip(about, shared, strict=True) if n == max(shared)]
        return any(each.negated == mine.negated for each in likest)

    def overtakes(self, old: str, heir: int) -> bool:
        """Whether that text says all that `old` does and that it is over, or no longer so (M-074).

        The word that says so counts only in the clauses that have the words of `old`.
        """
        mine, theirs, length = self._of_older(old), self._clauses[heir], len(_clauses(old))
        runs = [theirs[n : n + length] for n in range(max(1, len(theirs) - length + 1))]
        telling = [run for run in runs if _tell(run, old)]
        over = not _ends(old) and all(any(c.is_over(mine) for c in run) for run in telling)
        denied = all(any(c.denies(mine) for c in run) for run in telling)
        return bool(telling) and (over or denied)

    def shared(self, other: str) -> list[set[str]]:
        """For each of the texts which main words of another one it has, and DENIED if both deny."""
        mine = _sense(other)
        denied = [{DENIED} if mine.negated and each.negated else set() for each in self._senses]
        found = [set(filter(each.has, mine.words)) for each in self._senses]
        return [words | mark for words, mark in zip(found, denied, strict=True)]

    def likest(self, old: str, among: Sequence[int] = ()) -> int:
        """Which of the texts, or of `among` them, has most of the words."""
        words = main_words(old)
        asked = among or range(len(self._senses))
        return max(asked, key=lambda n: (len(words & self._senses[n].words), -n))


def _tell(clauses: Sequence[_Clause], old: str) -> bool:
    """Whether these clauses have all words and numbers of an older text; no name in another form."""
    mine, senses = _sense(old), [clause.sense for clause in clauses]
    forms = {word for word in TOKENS.findall(unicodedata.normalize("NFKC", old)) if word.islower()}
    return all(any(each.has(w, loosely=w in forms) for each in senses) for w in mine.words)


def are_grounded(texts: Sequence[str], inputs: Sequence[str]) -> bool:
    """Whether at least half of what each text is about stands in what they were made from."""
    known = _sense_of({word for each in inputs for word in main_words(each)})
    return all(_sense(text).is_shared_by(known) for text in texts)


def are_made_of(text: str, inputs: Sequence[str]) -> bool:
    """Whether no number, and next to no word, of a text stands in none of the inputs.

    Other endings are the same, and so are words that say that something is over. Between signs that
    set no blanks half may be new, as for `are_grounded`.
    """
    known = _sense_of({word for each in inputs for word in main_words(each)})
    mine = _sense(text)
    words = {word for word in mine.words - ENDINGS if not SIGNS.match(word)}
    added = [word for word in words if not known.has(word, loosely=True)]
    return (
        len(added) <= MOST_ADDED * len(words)
        and mine.numbers <= known.numbers
        and are_grounded([text], inputs)
    )


def numbers_of(texts: Sequence[str]) -> set[str]:
    """All main words of these texts that have a digit."""
    return {number for text in texts for number in _sense(text).numbers}


def words_in(text: str, said: str) -> frozenset[str]:
    """The main words of a text that somebody said; other endings are the same."""
    known = _sense(said)
    return frozenset(word for word in _sense(text).words if known.has(word, loosely=True))


def is_denied_in(text: str, said: str) -> bool:
    """Say if every clause about a text is negated and the text is not, or the reverse."""
    mine, clauses = _sense(text), [clause.sense for clause in _clauses(said)]
    about = [c for c in clauses if any(c.has(word, loosely=True) for word in mine.words)]
    return bool(about) and all(clause.negated != mine.negated for clause in about)


def shared_words(texts: Sequence[str], others: Sequence[str]) -> list[list[float]]:
    """For each text, which part of the main words of the shorter one each of the `others` shares.

    It stands for likeness where no meaning is known (M-041).
    """
    theirs = [_sense(text) for text in others]
    return [[_shared(mine, other) for other in theirs] for mine in map(_sense, texts)]


SHORT = 2
"""Main words of a text of which one is as often as not the name of whom it is about."""


def alike_in_words(one: str, other: str) -> float:
    """As `shared_words`; 0 where a short one shares no more than half of all its words, small ones too.

    "Ann sings" and "Ann paints" share a name; "Ann is married" and "Ann is single" a statement as well.
    """
    mine, theirs = _sense(one), _sense(other)
    part = _shared(mine, theirs)
    if part == 1 or min(len(mine.words), len(theirs.words)) > SHORT:
        return part
    fewer, more = sorted((_every_word(one), _every_word(other)), key=lambda each: len(each.words))
    same = sum(more.has(word, loosely=True) for word in fewer.words)
    return part if 2 * same > len(fewer.words) else 0.0


def _every_word(text: str) -> _Sense:
    folded = OWNERS_S.sub("", _folded(text))
    signs = "".join(SIGNS.findall(folded))
    return _sense_of({*signs, *TOKENS.findall(SIGNS.sub(" ", folded))})


def _shared(one: _Sense, other: _Sense) -> float:
    fewer, more = sorted((one, other), key=lambda sense: len(sense.words))
    return sum(map(more.has, fewer.words)) / len(fewer.words)


def _ends(text: str) -> bool:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return not ENDINGS.isdisjoint(TOKENS.findall(folded)) or bool(ENDING_PHRASES.search(folded))


def _sense(text: str) -> _Sense:
    folded = _folded(text)
    negated = not NEGATIONS.isdisjoint(TOKENS.findall(folded))
    negated = negated or not SIGNS_OF_NEGATION.isdisjoint(folded)
    return _sense_of(_words(folded), negated=negated)


def _sense_of(words: Collection[str], *, negated: bool = False) -> _Sense:
    beginnings = {
        word[:n]
        for word in words
        for n in range(LEAST_BEGINNING, min(len(word), SAME_BEGINNING) + 1)
    }
    numbers = frozenset(filter(_has_digit, words))
    return _Sense(frozenset(words), numbers, negated, frozenset(beginnings))


def _folded(text: str) -> str:
    return SHORT_NOT.sub(" not", unicodedata.normalize("NFKC", text).casefold())


def _has_digit(token: str) -> bool:
    return any(map(str.isdigit, token))
