"""Lexical overlap of texts: their main words, numbers and negations, compared without a model. Pure."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

TOKENS = re.compile(r"[^\W_]+")
# Scripts that write without blanks between words; pairs of characters stand in for words.
CJK_RUN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
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
CJK_NEGATIONS = frozenset("不没未无非無ない")
OWNERS_S = re.compile(r"['\u2019]s\b")
SHORT_NOT = re.compile(r"n['\u2019]t\b")

SAME_BEGINNING = 5
"""Letters that make two words equal: "sings" and "singing"."""
LEAST_BEGINNING = 3
MOST_ADDED = 0.25
"""Share of a merged text's words that may be new: words that join sentences."""
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
# Where one statement ends and another begins; it splits too often rather than too seldom.
CLAUSE_END = re.compile(
    r"(?:[,;:!?)]|(?<=\w\w\w)\.)(?:\s+|$)|\s[(\u2013\u2014-]\s*|[\n\u3001\u3002\uff0c\uff1b\uff01\uff1f]"
    r"|\b(?:and|but|or|though|although|while|whereas|because|who|which|where|when|if|und|aber|oder|sondern"
    r"|doch|denn|et|mais|ou|parce|tandis|qui|quand|y|pero|sino|porque|aunque|e|ma|per\u00f2|mentre)\b"
)

SHORT = 2
"""Texts with at most this many main words often share only the name of a person."""


def says_something(line: str) -> bool:
    """Check whether a line has a letter or a digit; decoration alone is no memory."""
    return any(mark.isalnum() for mark in line)


@dataclass(frozen=True, slots=True)
class _WordSet:
    """The words of a line that are compared with those of other lines."""

    words: frozenset[str]
    numbers: frozenset[str]
    negated: bool
    beginnings: frozenset[str]

    def survives_in(self, other: "_WordSet") -> bool:
        """Check whether the other line has half of the main words, every number, and a "not" if there is one."""
        shared = len(self.words & other.words)
        return (
            0 < shared >= self.needed
            and self.numbers <= other.numbers
            and (other.negated or not self.negated)
        )

    @property
    def needed(self) -> int:
        return (len(self.words) + 1) // 2

    def is_shared_by(self, other: "_WordSet", *, loosely: bool = False) -> bool:
        """Check whether another line has half of the main words, compared by their first letters."""
        shared = sum(other.has(word, loosely=loosely) for word in self.words)
        return 2 * shared >= len(self.words)

    def has(self, word: str, *, loosely: bool = False) -> bool:
        """Check whether a word is present, whole or by its beginning. `loosely`: another ending counts as the same."""
        if word in self.words:
            return True
        least = SAME_BEGINNING
        if loosely:
            least = max(LEAST_BEGINNING, min(SAME_BEGINNING, len(word) - 1))
        if word[:least] not in self.beginnings or len(word) < least:
            return False
        return not (_has_digit(word) or CJK_RUN.match(word))

    def candidates(self, holders: Mapping[str, Sequence[int]]) -> set[int]:
        """Return the lines worth comparing: a line that shares half of the words has one of the rarer half."""
        rarest = sorted(self.numbers or self.words, key=lambda word: len(holders.get(word, ())))
        most = 1 if self.numbers else len(rarest) - self.needed + 1
        return {n for word in rarest[:most] for n in holders.get(word, ())}


def main_words(text: str) -> frozenset[str]:
    """Return the topic words of a line: longer words, everything with a digit, pairs of CJK characters."""
    return _words(_folded(text))


def _words(folded: str) -> frozenset[str]:
    words: set[str] = set()
    for signs in CJK_RUN.findall(folded):
        words.update(signs[i : i + 2] for i in range(max(1, len(signs) - 1)))
    tokens = TOKENS.findall(CJK_RUN.sub(" ", folded))
    words.update(token for token in tokens if len(token) >= 3 or _has_digit(token))
    return frozenset(words - FILLERS - NEGATIONS or words or {folded})


def beginnings(text: str) -> set[str]:
    """Return the main words cut to their first letters, numbers whole; texts are compared by these (M-039)."""
    return {word if _has_digit(word) else word[:SAME_BEGINNING] for word in main_words(text)}


def is_negated(text: str) -> bool:
    """Check whether a text has a "not" in it."""
    return _word_set(text).negated


def succeeds(old: str, new: str) -> bool:
    """Check whether `new` still covers the subject of `old`."""
    return _word_set(old).survives_in(_word_set(new))


def successors(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """Return for each old line the index of the new line that succeeds it best, or None."""
    word_sets = [_word_set(line) for line in new]
    holders: dict[str, list[int]] = defaultdict(list)
    for n, word_set in enumerate(word_sets):
        for word in word_set.words:
            holders[word].append(n)
    found: list[int | None] = []
    for line in old:
        mine = _word_set(line)
        fit = [n for n in sorted(mine.candidates(holders)) if mine.survives_in(word_sets[n])]
        shared = [len(mine.words & word_sets[n].words) for n in fit]
        found.append(fit[shared.index(max(shared))] if fit else None)
    return found


@dataclass(frozen=True, slots=True)
class _Clause:
    """A part of a text with its own verb and its own "not"."""

    text: str
    word_set: _WordSet

    def is_over(self, old: _WordSet) -> bool:
        """Check whether the clause says that its content is past."""
        return _ends(self.text) and (self.word_set.negated or not old.negated)

    def denies(self, old: _WordSet) -> bool:
        """Check whether its "not" belongs to the words of `old`, not to other words beside it."""
        if old.negated or not self.word_set.negated:
            return False
        words = TOKENS.findall(_folded(self.text))
        after = [words[n + 1 :] for n, word in enumerate(words) if word in NEGATIONS]
        nearest = [next((w for w in rest if w in self.word_set.words), "") for rest in after]
        return all(not word or old.has(word, loosely=True) for word in nearest)


def _clauses(text: str) -> list[_Clause]:
    parts = [part for part in CLAUSE_END.split(_folded(text)) if says_something(part)]
    return [_Clause(part, _word_set(part)) for part in parts or [text]]


class Successors:
    """Texts that may replace older ones; each text is split into clauses and words once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._word_sets = [_word_set(text) for text in texts]
        self._of_older = cache(_word_set)
        self._clauses = [_clauses(text) for text in texts]
        self._all = _word_set_of({word for word_set in self._word_sets for word in word_set.words})

    def cover(self, old: str, near: int | None = None) -> bool:
        """Check whether the texts lose nothing of `old` (M-039). `near`: index of the text most similar to it.

        Every main word of `old` is somewhere in the texts, by its first letters. Its numbers are, whole, in the near
        text or in another one that has half of its words. Each clause that `old` states or denies is stated or
        denied in the most similar clause.
        """
        mine = self._of_older(old)
        checked = [c for c in _clauses(old) if c.word_set.negated or c.word_set.words & mine.words]
        if near is not None and _ends(self._texts[near]) and _cover(self._clauses[near], old):
            return all(map(self._affirms, checked))  # "lives" beside "lived there until"
        if not all(map(self._all.has, mine.words)):
            return False
        about = [word_set for word_set in self._word_sets if mine.is_shared_by(word_set)]
        numbers = frozenset[str]().union(*(word_set.numbers for word_set in about))
        if near is not None:
            numbers |= self._word_sets[near].numbers
        return mine.numbers <= numbers and all(map(self._affirms, checked))

    def _affirms(self, clause: _Clause) -> bool:
        """Check whether the most similar clause has a "not" exactly if this clause has one."""
        mine = clause.word_set
        found = [other.word_set for part in self._clauses for other in part]
        about = [words for words in found if mine.is_shared_by(words)]
        if not about:
            return not mine.negated and not any(words.negated for words in found)
        shared = [sum(map(words.has, mine.words)) for words in about]
        nearest = [words for words, n in zip(about, shared, strict=True) if n == max(shared)]
        return any(words.negated == mine.negated for words in nearest)

    def outdates(self, old: str, n: int) -> bool:
        """Check whether a text says all of `old` and that it is over, or no longer so (M-074).

        A word that says so counts only in clauses that have the words of `old`.
        """
        mine, theirs, length = self._of_older(old), self._clauses[n], len(_clauses(old))
        runs = [theirs[k : k + length] for k in range(max(1, len(theirs) - length + 1))]
        covering = [run for run in runs if _cover(run, old)]
        over = not _ends(old) and all(any(c.is_over(mine) for c in run) for run in covering)
        denied = all(any(c.denies(mine) for c in run) for run in covering)
        return bool(covering) and (over or denied)

    def shared(self, other: str) -> list[set[str]]:
        """Return for each text the main words it shares with another text, and DENIED if both are negated."""
        mine = _word_set(other)
        denied = [
            {DENIED} if mine.negated and word_set.negated else set() for word_set in self._word_sets
        ]
        found = [set(filter(word_set.has, mine.words)) for word_set in self._word_sets]
        return [words | mark for words, mark in zip(found, denied, strict=True)]

    def most_similar(self, old: str, among: Sequence[int] = ()) -> int:
        """Return the index of the text, out of `among` if given, that shares most words with `old`."""
        words = main_words(old)
        asked = among or range(len(self._word_sets))
        return max(asked, key=lambda n: (len(words & self._word_sets[n].words), -n))


def _cover(clauses: Sequence[_Clause], old: str) -> bool:
    """Check whether these clauses have all words and numbers of an older text; names must have the same form."""
    mine, word_sets = _word_set(old), [clause.word_set for clause in clauses]
    forms = {word for word in TOKENS.findall(unicodedata.normalize("NFKC", old)) if word.islower()}
    return all(any(each.has(w, loosely=w in forms) for each in word_sets) for w in mine.words)


def are_grounded(texts: Sequence[str], inputs: Sequence[str]) -> bool:
    """Check whether the inputs contain at least half of each text's main words."""
    known = _word_set_of({word for each in inputs for word in main_words(each)})
    return all(_word_set(text).is_shared_by(known) for text in texts)


def are_made_of(text: str, inputs: Sequence[str]) -> bool:
    """Check whether a text adds no number and almost no word to the inputs it was made from.

    Other endings count as the same, and so do words that say that something is over. In scripts without blanks half
    of the words may be new, as for `are_grounded`.
    """
    known = _word_set_of({word for each in inputs for word in main_words(each)})
    mine = _word_set(text)
    words = {word for word in mine.words - ENDINGS if not CJK_RUN.match(word)}
    added = [word for word in words if not known.has(word, loosely=True)]
    return (
        len(added) <= MOST_ADDED * len(words)
        and mine.numbers <= known.numbers
        and are_grounded([text], inputs)
    )


def words_in(text: str, said: str) -> frozenset[str]:
    """Return the main words of a text that somebody used; other endings count as the same."""
    known = _word_set(said)
    return frozenset(word for word in _word_set(text).words if known.has(word, loosely=True))


def shared_words(texts: Sequence[str], others: Sequence[str]) -> list[list[float]]:
    """Return, for each text and each of the `others`, the shared part of the shorter one's main words.

    It replaces the similarity of embeddings where there are none (M-041).
    """
    theirs = [_word_set(text) for text in others]
    return [[_shared(mine, other) for other in theirs] for mine in map(_word_set, texts)]


def similar_in_words(one: str, other: str) -> float:
    """Return the value of `shared_words` for two texts; 0 if a short one shares only half of all its words.

    "Ann sings" and "Ann paints" share a name; "Ann is married" and "Ann is single" share a statement.
    """
    mine, theirs = _word_set(one), _word_set(other)
    part = _shared(mine, theirs)
    if part == 1 or min(len(mine.words), len(theirs.words)) > SHORT:
        return part
    fewer, more = sorted((_every_word(one), _every_word(other)), key=lambda each: len(each.words))
    same = sum(more.has(word, loosely=True) for word in fewer.words)
    return part if 2 * same > len(fewer.words) else 0.0


def _every_word(text: str) -> _WordSet:
    folded = OWNERS_S.sub("", _folded(text))
    signs = "".join(CJK_RUN.findall(folded))
    return _word_set_of({*signs, *TOKENS.findall(CJK_RUN.sub(" ", folded))})


def _shared(one: _WordSet, other: _WordSet) -> float:
    fewer, more = sorted((one, other), key=lambda word_set: len(word_set.words))
    return sum(map(more.has, fewer.words)) / len(fewer.words)


def _ends(text: str) -> bool:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return not ENDINGS.isdisjoint(TOKENS.findall(folded)) or bool(ENDING_PHRASES.search(folded))


def _word_set(text: str) -> _WordSet:
    folded = _folded(text)
    negated = not NEGATIONS.isdisjoint(TOKENS.findall(folded))
    negated = negated or not CJK_NEGATIONS.isdisjoint(folded)
    return _word_set_of(_words(folded), negated=negated)


def _word_set_of(words: Collection[str], *, negated: bool = False) -> _WordSet:
    beginnings = {
        word[:n]
        for word in words
        for n in range(LEAST_BEGINNING, min(len(word), SAME_BEGINNING) + 1)
    }
    numbers = frozenset(filter(_has_digit, words))
    return _WordSet(frozenset(words), numbers, negated, frozenset(beginnings))


def _folded(text: str) -> str:
    return SHORT_NOT.sub(" not", unicodedata.normalize("NFKC", text).casefold())


def _has_digit(token: str) -> bool:
    return any(map(str.isdigit, token))
