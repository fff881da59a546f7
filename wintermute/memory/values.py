"""What two memories differ in: one value that a night may settle, or a matter for a person (M-087). Pure.

Whatever cannot be told is a person's: a word with a capital may be somebody, unless it is said to be
a place.
"""

import re
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from wintermute.memory.sense import FILLERS, NEGATIONS, SIGNS, SIGNS_OF_NEGATION, TOKENS, words_in
from wintermute.memory.words import MONTHS

PIECES = re.compile(f"{SIGNS.pattern[:-1]}|(?:(?!{SIGNS.pattern}){TOKENS.pattern[:-1]})+")
DAY = re.compile(r"(19|20)\d\d|\d{1,2}(st|nd|rd|th|er|º|ª)")
OF_DAY = re.compile(r"(?<=\d)[./-]\d|\d[./-](?=\d)")
"""Digits that others stand beside, as in a date or a fraction."""
OF_UNIT = re.compile(r"\d(?:mg|g|mcg|\u00b5g|ml|k|eur|usd)$")
HALVES = frozenset({"am", "pm"})
"""Of a day."""
SAME = 5
"""Letters by which words are one, as in `memory.sense`."""
MOST_SIGNS = 8
NEAR = 2
"""Words on each side of a number that may say what it is a number of."""


@cache
def table(name: str) -> frozenset[str]:
    """The words of one kind in all languages."""
    text = (resources.files("wintermute.memory") / "values.toml").read_text("utf-8")
    words = ",".join(tomllib.loads(text)[name].values()).split(",")
    return frozenset(word.strip() for word in words)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word, or a sign of those that are written without blanks."""

    text: str
    start: int
    place: int

    @property
    def key(self) -> str:
        return self.text.casefold()

    @property
    def is_main(self) -> bool:
        """Whether it counts: also a short one that may be a name, or is a number or a "not"."""
        if self.key in NEGATIONS | HALVES or SIGNS.match(self.text):
            return True
        if self.key in FILLERS:
            return False
        return len(self.text) > 2 or self.text[0].isupper() or _has_digit(self.text)

    def is_like(self, other: "_Word") -> bool:
        if _has_digit(self.key + other.key) or min(len(self.key), len(other.key)) < SAME:
            return self.key == other.key
        return self.key[:SAME] == other.key[:SAME]


def differ_in_a_value(one: str, other: str) -> bool:
    """Whether all but one value is said by both, and it is no dose, money, date or person."""
    mine, theirs = (_words(unicodedata.normalize("NFKC", text)) for text in (one, other))
    first, second = _differing([w for w in mine if w.is_main], [w for w in theirs if w.is_main])
    if not (_is_value(first) and _is_value(second)):
        return False
    return not (_is_for_a_person(one, mine, first) or _is_for_a_person(other, theirs, second))


def _words(text: str) -> list[_Word]:
    found = enumerate(PIECES.finditer(text))
    return [_Word(each[0], each.start(), n) for n, each in found]


def _differing(
    one: Sequence[_Word], other: Sequence[_Word]
) -> tuple[Sequence[_Word], Sequence[_Word]]:
    """What is left between the words that both begin and end with."""
    while one and other and one[0].is_like(other[0]):
        one, other = one[1:], other[1:]
    while one and other and one[-1].is_like(other[-1]):
        one, other = one[:-1], other[:-1]
    return one, other


def _is_value(words: Sequence[_Word]) -> bool:
    if any(word.key in NEGATIONS or word.text in SIGNS_OF_NEGATION for word in words):
        return False
    signs = all(SIGNS.match(word.text) for word in words)
    return 0 < len(words) <= (MOST_SIGNS if signs else 1)


def _is_for_a_person(text: str, words: Sequence[_Word], value: Sequence[_Word]) -> bool:
    """Whether the value is a dose, an amount of money, a date or a person, or may be one."""
    first, last, said = value[0], value[-1], "".join(word.text for word in value)
    before = words[first.place - 1].key if first.place else ""
    is_sign, is_number = bool(SIGNS.match(said)), _has_digit(said)
    is_named = said[0].isupper() or is_sign or not (first.place or is_number)
    if said.casefold() in table("person") or (is_named and before not in table("place")):
        return True
    near = words[max(0, first.place - NEAR) : last.place + NEAR + 1]
    if (
        _has([*value], "date")
        or _has(near, "unit")
        or ((is_sign or is_number) and _has(near, "date"))
    ):
        return True
    around = text[max(0, first.start - NEAR) : last.start + len(last.text) + NEAR]
    return is_number and bool(
        _has(words, "amount")
        or OF_UNIT.search(said.casefold())
        or DAY.fullmatch(said.casefold())
        or OF_DAY.search(around)
        or any(unicodedata.category(mark) == "Sc" for mark in around)
    )


def _has(words: Sequence[_Word], kind: str) -> bool:
    known, said = table(kind), "".join(word.text for word in words if SIGNS.match(word.text))
    months = MONTHS.keys() if kind == "date" else ()
    return any(w.key in known or w.key in months for w in words) or any(
        sign in said for sign in known if SIGNS.match(sign)
    )


def hands_over(one: str, other: str) -> bool:
    """Whether one says that something changes, and both are about a thing beside whom they begin with."""
    if not (_says_change(one) or _says_change(other)):
        return False
    begins = {words[0].key for text in (one, other) if (words := _words(text))}
    shared = words_in(one, other) - {word for phrase in table("change") for word in phrase.split()}
    return bool(shared - begins if len(begins) == 1 else shared)


def _says_change(text: str) -> bool:
    return bool(
        _changes().search(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'"))
    )


@cache
def _changes() -> re.Pattern[str]:
    signs, words = list[str](), list[str]()
    for phrase in sorted(table("change")):
        (signs if SIGNS.match(phrase) else words).append(re.escape(phrase))
    return re.compile(rf"\b(?:{'|'.join(words)})(?!\w)|{'|'.join(signs)}")


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
