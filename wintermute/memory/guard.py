"""Whether a rewritten list of memories keeps what it must keep (M-062). Pure."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wintermute.memory.entry import entries, key
from wintermute.text import shortened

TOKENS = re.compile(r"[^\W_]+")
# Scripts that write without blanks between words; pairs of signs stand for words.
SIGNS = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
FILLER_WORDS = (
    "the and are was were has have had his her its their they she with for from that this who which"
    " user does did can will often also very der die das den dem des ein eine einen einem einer und ist sind war hat"
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
SHORT_NOT = re.compile(r"n['\u2019]t\b")
LEFT_OUT = re.compile(r"^\s*(?:\[truncated: \d|\[lines \d+-\d+ of |(?:\.{3,}|…)\s*$)", re.MULTILINE)
SHOWN = 3
"""Lines that a refusal quotes."""


@dataclass(frozen=True, slots=True)
class _Sense:
    """What is compared of a line."""

    words: frozenset[str]
    numbers: frozenset[str]
    negated: bool

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

    def likely(self, holders: Mapping[str, Sequence[int]]) -> set[int]:
        """Lines worth a look: whoever shares half of the words has one of the rarer half."""
        rarest = sorted(self.numbers or self.words, key=lambda word: len(holders.get(word, ())))
        most = 1 if self.numbers else len(rarest) - self.needed + 1
        return {n for word in rarest[:most] for n in holders.get(word, ())}


def main_words(text: str) -> frozenset[str]:
    """What a line is about: longer words, everything with a digit, pairs of signs."""
    folded = _folded(text)
    words: set[str] = set()
    for signs in SIGNS.findall(folded):
        words.update(signs[i : i + 2] for i in range(max(1, len(signs) - 1)))
    tokens = TOKENS.findall(SIGNS.sub(" ", folded))
    words.update(token for token in tokens if len(token) >= 3 or _has_digit(token))
    return frozenset(words - FILLERS - NEGATIONS or words or {folded})


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


def listed(text: str) -> list[str]:
    """The memories in a text of one per line, each once."""
    found = [line for raw in text.splitlines() for line in entries(raw)]
    return list({key(line): line for line in reversed(found)}.values())[::-1]


def refusal(old: Sequence[tuple[str, bool]], text: str) -> str | None:
    """Why the text must not replace the old lines, in words for the model; None: it may.

    `old`: each line, and whether it is protected: the person's own words.
    """
    new = listed(text)
    if not new:
        return "the new list is empty and nothing was changed: write the whole list, a line each"
    if LEFT_OUT.search(text):
        return (
            "the new list is only a part (it holds a mark of something left out) and nothing was"
            " changed: read the whole file and write the whole list"
        )
    if len(new) * 10 < len(old) * 6:
        return (
            f"the new list has {len(new)} lines instead of {len(old)} and nothing was changed:"
            f" at most 40 % may go at once, so keep at least {-(-len(old) * 6 // 10)} lines"
        )
    kept = {key(line) for line in new}
    gone = [line for line, protected in old if protected and key(line) not in kept]
    orphans = [line for line, heir in zip(gone, successors(gone, new), strict=True) if heir is None]
    return _orphaned(orphans) if orphans else None


def _orphaned(orphans: Sequence[str]) -> str:
    quoted = "; ".join(f'"{shortened(line, 200)}"' for line in orphans[:SHOWN])
    more = f" and {len(orphans) - SHOWN} more" if len(orphans) > SHOWN else ""
    return (
        "nothing was changed: these lines are the person's own words and must stay, or be in"
        f" another line with their main words, numbers and negations: {quoted}{more}"
    )


def _sense(text: str) -> _Sense:
    words = main_words(text)
    return _Sense(words, frozenset(filter(_has_digit, words)), _is_negated(_folded(text)))


def _is_negated(folded: str) -> bool:
    return not NEGATIONS.isdisjoint(TOKENS.findall(folded)) or any(
        sign in folded for sign in SIGNS_OF_NEGATION
    )


def _folded(text: str) -> str:
    return SHORT_NOT.sub(" not", unicodedata.normalize("NFKC", text).casefold())


def _has_digit(token: str) -> bool:
    return any(mark.isdigit() for mark in token)
