"""Lexical overlap of texts: their main words, numbers and negations, compared without a model. No I/O."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

TOKENS = re.compile(r"[^\W_]+")
# Scripts without blanks between words; each pair of characters counts as a word.
CJK_RUN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
STOP_WORD_LIST = (
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
STOP_WORDS = frozenset(STOP_WORD_LIST.split())
NEGATIONS = frozenset(NEGATION_WORDS.split())
CJK_NEGATIONS = frozenset("不没未无非無ない")
POSSESSIVE = re.compile(r"['\u2019]s\b")
SHORT_NOT = re.compile(r"n['\u2019]t\b")

PREFIX_LENGTH = 5
"""Words with this many equal first letters count as equal: "sings" and "singing"."""
MIN_PREFIX_LENGTH = 3
MOST_ADDED = 0.25
"""Largest part of a merged text's words that may be new: words that join sentences."""
PAST_MARKER_LIST = (
    "until till formerly previously bis früher ehemals jusqu jusque autrefois anciennement hasta"
    " antes fino finché prima até tot"
)
PAST_MARKERS = frozenset(PAST_MARKER_LIST.split())
PAST_PHRASES = re.compile(
    r"no longer|not \w+ any ?more|used to\b|nicht mehr|kein\w* \w+ mehr|ne \w+ plus\b|n['\u2019]\w+ plus\b"
    r"|ya no\b|non \w+ più|\u307e\u3067|\u76f4\u5230|\u4e0d\u518d|\u4ee5\u524d|\uae4c\uc9c0"
)
DENIED = "not"
# End of one statement and start of the next; in doubt it splits.
CLAUSE_END = re.compile(
    r"(?:[,;:!?)]|(?<=\w\w\w)\.)(?:\s+|$)|\s[(\u2013\u2014-]\s*|[\n\u3001\u3002\uff0c\uff1b\uff01\uff1f]"
    r"|\b(?:and|but|or|though|although|while|whereas|because|who|which|where|when|if|und|aber|oder|sondern"
    r"|doch|denn|et|mais|ou|parce|tandis|qui|quand|y|pero|sino|porque|aunque|e|ma|per\u00f2|mentre)\b"
)

FEW_WORDS = 2
"""Texts with at most this many main words often share nothing but the name of a person."""


def says_something(line: str) -> bool:
    """Check whether a line has a letter or a digit; decoration alone is no memory."""
    return any(mark.isalnum() for mark in line)


@dataclass(frozen=True, slots=True)
class _WordSet:
    """Words of a line, to compare with other lines. `words`: its main words; `numbers`: those with a digit.

    `prefixes`: their first letters, from `MIN_PREFIX_LENGTH` to `PREFIX_LENGTH` letters.
    """

    words: frozenset[str]
    numbers: frozenset[str]
    negated: bool
    prefixes: frozenset[str]

    def is_kept_in(self, other: "_WordSet") -> bool:
        """Check whether the other line has half of our main words, every number, and a "not" if we have one."""
        shared = len(self.words & other.words)
        return (
            shared > 0
            and shared >= self.needed
            and self.numbers <= other.numbers
            and (other.negated or not self.negated)
        )

    @property
    def needed(self) -> int:
        """Half of the number of main words, rounded up."""
        return (len(self.words) + 1) // 2

    def has_half_in(self, other: "_WordSet", *, any_ending: bool = False) -> bool:
        """Check whether another line has half of our main words, compared by their first letters."""
        shared = sum(other.has(word, any_ending=any_ending) for word in self.words)
        return 2 * shared >= len(self.words)

    def has(self, word: str, *, any_ending: bool = False) -> bool:
        """Check whether a word is present, whole or by its first letters.

        `any_ending`: words of at most five letters are compared without their last letter.
        """
        if word in self.words:
            return True
        length = PREFIX_LENGTH
        if any_ending:
            length = max(MIN_PREFIX_LENGTH, min(PREFIX_LENGTH, len(word) - 1))
        if word[:length] not in self.prefixes or len(word) < length:
            return False
        return not (_has_digit(word) or CJK_RUN.match(word))

    def candidates(self, lines_by_word: Mapping[str, Sequence[int]]) -> set[int]:
        """Look up the lines to compare: any line with half of our words must have at least one of our rarest ones."""
        rarest = sorted(
            self.numbers or self.words, key=lambda word: len(lines_by_word.get(word, ()))
        )
        count = 1 if self.numbers else len(rarest) - self.needed + 1
        return {n for word in rarest[:count] for n in lines_by_word.get(word, ())}


def main_words(text: str) -> frozenset[str]:
    """Return the topic words of a line: longer words, everything with a digit, pairs of CJK characters."""
    return _words(_folded(text))


def _words(folded: str) -> frozenset[str]:
    words: set[str] = set()
    for signs in CJK_RUN.findall(folded):
        words.update(signs[i : i + 2] for i in range(max(1, len(signs) - 1)))
    tokens = TOKENS.findall(CJK_RUN.sub(" ", folded))
    words.update(token for token in tokens if len(token) >= 3 or _has_digit(token))
    return frozenset(words - STOP_WORDS - NEGATIONS or words or {folded})


def beginnings(text: str) -> set[str]:
    """Return the main words cut to `PREFIX_LENGTH` letters, numbers whole; texts are compared by these (M-039)."""
    return {word if _has_digit(word) else word[:PREFIX_LENGTH] for word in main_words(text)}


def is_negated(text: str) -> bool:
    """Check whether a text has a "not" in it."""
    return _word_set(text).negated


def succeeds(old: str, new: str) -> bool:
    """Check whether `new` covers `old`: it has half of its main words, every number, and its "not".

    "Ann lives in Rome near the river" is covered by "Ann lives in Rome"; "Ann lives in Rome" is not by "Ann sings".
    """
    return _word_set(old).is_kept_in(_word_set(new))


def successors(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """Return for each old line the index of the new line that covers it best, or None."""
    word_sets = [_word_set(line) for line in new]
    lines_by_word: dict[str, list[int]] = defaultdict(list)
    for n, word_set in enumerate(word_sets):
        for word in word_set.words:
            lines_by_word[word].append(n)
    result: list[int | None] = []
    for line in old:
        old_words = _word_set(line)
        covering = [
            n
            for n in sorted(old_words.candidates(lines_by_word))
            if old_words.is_kept_in(word_sets[n])
        ]
        shared = [len(old_words.words & word_sets[n].words) for n in covering]
        result.append(covering[shared.index(max(shared))] if covering else None)
    return result


@dataclass(frozen=True, slots=True)
class _Clause:
    """Part of a text with its own verb and its own "not"."""

    text: str
    word_set: _WordSet

    def is_over(self, old: _WordSet) -> bool:
        """Check whether the clause says that its content is past: "used to", "until"."""
        return _says_past(self.text) and (self.word_set.negated or not old.negated)

    def denies(self, old: _WordSet) -> bool:
        """Check whether its "not" belongs to the words of `old`, and to no other words of the clause."""
        if old.negated or not self.word_set.negated:
            return False
        words = TOKENS.findall(_folded(self.text))
        after = [words[n + 1 :] for n, word in enumerate(words) if word in NEGATIONS]
        nearest = [next((w for w in rest if w in self.word_set.words), "") for rest in after]
        return all(not word or old.has(word, any_ending=True) for word in nearest)


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
        self._all_words = _word_set_of(
            {word for word_set in self._word_sets for word in word_set.words}
        )

    def cover(self, old: str, nearest: int | None = None) -> bool:
        """Check whether the texts lose nothing of `old` (M-039). `nearest`: index of the text most similar to it.

        Every main word of `old` is somewhere in the texts, by its first letters. Its numbers are, whole, in the
        nearest text or in another one with half of its words. Each of its clauses is affirmed. Example: "Ann lives in
        Rome. Ann sings." covers "Ann sings in Rome"; "Ann no longer lives in Rome" does not cover "Ann lives in Rome".
        """
        old_words = self._of_older(old)
        checked = [
            clause
            for clause in _clauses(old)
            if clause.word_set.negated or clause.word_set.words & old_words.words
        ]
        if (
            nearest is not None
            and _says_past(self._texts[nearest])
            and _cover(self._clauses[nearest], old)
        ):
            return all(map(self._affirms, checked))  # "lives" beside "lived there until"
        if not all(map(self._all_words.has, old_words.words)):
            return False
        matching = [word_set for word_set in self._word_sets if old_words.has_half_in(word_set)]
        numbers = frozenset[str]().union(*(word_set.numbers for word_set in matching))
        if nearest is not None:
            numbers |= self._word_sets[nearest].numbers
        return old_words.numbers <= numbers and all(map(self._affirms, checked))

    def _affirms(self, clause: _Clause) -> bool:
        """Check whether a clause has the same polarity (negated or not) in the clause most similar to it.

        "Ann lives in Rome" is affirmed by "Ann lives in Rome, and does not sing", but not by "Ann never lived in Rome".
        """
        words = clause.word_set
        others = [other.word_set for clauses in self._clauses for other in clauses]
        matching = [other for other in others if words.has_half_in(other)]
        if not matching:
            return not words.negated and not any(other.negated for other in others)
        shared = [sum(map(other.has, words.words)) for other in matching]
        nearest = [other for other, n in zip(matching, shared, strict=True) if n == max(shared)]
        return any(other.negated == words.negated for other in nearest)

    def outdates(self, old: str, n: int) -> bool:
        """Check whether text `n` says all of `old`, and that it is no longer true (M-074).

        "Ann no longer lives in Rome" outdates "Ann lives in Rome". The "no longer" counts only in clauses that have
        the words of `old`.
        """
        old_words, clauses, length = self._of_older(old), self._clauses[n], len(_clauses(old))
        runs = [clauses[k : k + length] for k in range(max(1, len(clauses) - length + 1))]
        covering = [run for run in runs if _cover(run, old)]
        over = not _says_past(old) and all(
            any(clause.is_over(old_words) for clause in run) for run in covering
        )
        denied = all(any(clause.denies(old_words) for clause in run) for run in covering)
        return bool(covering) and (over or denied)

    def shared(self, other: str) -> list[set[str]]:
        """Return for each text the main words that it shares with another text, and `DENIED` if both are negated."""
        words = _word_set(other)
        return [
            {word for word in words.words if word_set.has(word)}
            | ({DENIED} if words.negated and word_set.negated else set())
            for word_set in self._word_sets
        ]

    def most_similar(self, old: str, among: Sequence[int] = ()) -> int:
        """Return the index of the text, out of `among` if given, that shares most words with `old`."""
        words = main_words(old)
        indexes = among or range(len(self._word_sets))
        return max(indexes, key=lambda n: (len(words & self._word_sets[n].words), -n))


def _cover(clauses: Sequence[_Clause], old: str) -> bool:
    """Check whether clauses have all words and numbers of an older text. Words with a capital need the same form."""
    word_sets = [clause.word_set for clause in clauses]
    lower = {word for word in TOKENS.findall(unicodedata.normalize("NFKC", old)) if word.islower()}
    return all(
        any(word_set.has(word, any_ending=word in lower) for word_set in word_sets)
        for word in _word_set(old).words
    )


def are_grounded(texts: Sequence[str], inputs: Sequence[str]) -> bool:
    """Check whether the inputs contain at least half of each text's main words."""
    known = _word_set_of({word for each in inputs for word in main_words(each)})
    return all(_word_set(text).has_half_in(known) for text in texts)


def are_made_of(text: str, inputs: Sequence[str]) -> bool:
    """Check whether a text adds no number and almost no word to its inputs.

    Words may have other endings, and words such as "until" may be added. In scripts without blanks half of the words
    may be new, as for `are_grounded`.
    """
    known = _word_set_of({word for each in inputs for word in main_words(each)})
    text_words = _word_set(text)
    words = {word for word in text_words.words - PAST_MARKERS if not CJK_RUN.match(word)}
    added = [word for word in words if not known.has(word, any_ending=True)]
    return (
        len(added) <= MOST_ADDED * len(words)
        and text_words.numbers <= known.numbers
        and are_grounded([text], inputs)
    )


def words_in(text: str, said: str) -> frozenset[str]:
    """Return the main words of `text` that `said` contains too; endings may differ."""
    known = _word_set(said)
    return frozenset(word for word in _word_set(text).words if known.has(word, any_ending=True))


def shared_words(texts: Sequence[str], others: Sequence[str]) -> list[list[float]]:
    """Return, for each text and each of the `others`, the part (0 to 1) of the shorter one's main words that both have.

    It replaces the similarity of embeddings if there are none (M-041).
    """
    other_sets = [_word_set(text) for text in others]
    return [[_shared(one, other) for other in other_sets] for one in map(_word_set, texts)]


def similar_in_words(one: str, other: str) -> float:
    """Return the value of `shared_words` for two texts; 0 if a short text shares at most half of all its words.

    All words count for that, stop words too: "Ann sings" and "Ann paints" share only a name, 0; "Ann is married"
    and "Ann is single" share more than half.
    """
    first, second = _word_set(one), _word_set(other)
    part = _shared(first, second)
    if part == 1 or min(len(first.words), len(second.words)) > FEW_WORDS:
        return part
    fewer, more = sorted((_every_word(one), _every_word(other)), key=lambda each: len(each.words))
    same = sum(more.has(word, any_ending=True) for word in fewer.words)
    return part if 2 * same > len(fewer.words) else 0.0


def _every_word(text: str) -> _WordSet:
    folded = POSSESSIVE.sub("", _folded(text))
    signs = "".join(CJK_RUN.findall(folded))
    return _word_set_of({*signs, *TOKENS.findall(CJK_RUN.sub(" ", folded))})


def _shared(one: _WordSet, other: _WordSet) -> float:
    fewer, more = sorted((one, other), key=lambda word_set: len(word_set.words))
    return sum(map(more.has, fewer.words)) / len(fewer.words)


def _says_past(text: str) -> bool:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return not PAST_MARKERS.isdisjoint(TOKENS.findall(folded)) or bool(PAST_PHRASES.search(folded))


def _word_set(text: str) -> _WordSet:
    folded = _folded(text)
    negated = not NEGATIONS.isdisjoint(TOKENS.findall(folded))
    negated = negated or not CJK_NEGATIONS.isdisjoint(folded)
    return _word_set_of(_words(folded), negated=negated)


def _word_set_of(words: Collection[str], *, negated: bool = False) -> _WordSet:
    prefixes = {
        word[:n]
        for word in words
        for n in range(MIN_PREFIX_LENGTH, min(len(word), PREFIX_LENGTH) + 1)
    }
    numbers = frozenset(filter(_has_digit, words))
    return _WordSet(frozenset(words), numbers, negated, frozenset(prefixes))


def _folded(text: str) -> str:
    return SHORT_NOT.sub(" not", unicodedata.normalize("NFKC", text).casefold())


def _has_digit(token: str) -> bool:
    return any(map(str.isdigit, token))
