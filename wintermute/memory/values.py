"""What two memories differ in: one value that a night may settle, or a matter for a person (M-087). Pure.

What cannot be told is a person's: a word with a capital may be somebody, unless it is said to be a place.
"""

import re
import tomllib
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources

from wintermute.memory.sense import FILLERS, NEGATIONS, SIGNS, SIGNS_OF_NEGATION, words_in
from wintermute.memory.words import MONTHS

SIGN = SIGNS.pattern.removesuffix("+")
# Dates, fractions and times whole; signs and currencies one by one; words.
PIECES = re.compile(rf"\d+(?:[.,:/-]\d+)+|{SIGN}|[$\u20ac\u00a3\u00a5]|(?:(?!{SIGN})[^\W_])+")
OF_PERSONS = re.compile(
    r"\d.*[.,/-]\d|(?:19|20)\d\d|\d+(?:st|nd|rd|th|mg|g|mcg|\u00b5g|ml|k|eur|usd)"
)
BLANKS = re.compile(r"[\s,;:.!?]+")
SAME = 5
"""Letters by which words are one, as in `memory.sense`."""
MOST_SIGNS = 8
NEAR = 2
"""Words on each side of a value that may say what it is a value of."""


@cache
def table(name: str) -> frozenset[str]:
    """The words of one kind in all languages; of dates the months, too."""
    text = (resources.files("wintermute.memory") / "values.toml").read_text("utf-8")
    words = ",".join(tomllib.loads(text)[name].values()).split(",")
    return frozenset(map(str.strip, words)).union(MONTHS if name == "date" else ())


def differ_in_a_value(one: str, other: str) -> bool:
    """Whether both say all but one value, in one order, and it is no dose, money, date or person."""
    mine, theirs = _words(one), _words(other)
    first, second = (
        [n for n, word in enumerate(each) if _is_main(word)] for each in (mine, theirs)
    )
    while first and second and _are_alike(mine[first[0]], theirs[second[0]]):
        first, second = first[1:], second[1:]
    while first and second and _are_alike(mine[first[-1]], theirs[second[-1]]):
        first, second = first[:-1], second[:-1]
    return _is_harmless(mine, first) and _is_harmless(theirs, second)


def _words(text: str) -> list[str]:
    return PIECES.findall(unicodedata.normalize("NFKC", text))


def _is_main(word: str) -> bool:
    """Whether a word counts: also a short one that may be a name, a number or a "not"."""
    key = word.casefold()
    if key in NEGATIONS or key in ("am", "pm") or SIGNS.match(word):
        return True
    return key not in FILLERS and (len(word) > 2 or word[0].isupper() or not word.isalpha())


def _are_alike(one: str, other: str) -> bool:
    one, other = one.casefold(), other.casefold()
    long = min(len(one), len(other)) >= SAME and one.isalpha() and other.isalpha()
    return one[:SAME] == other[:SAME] if long else one == other


def _is_harmless(words: Sequence[str], places: Sequence[int]) -> bool:
    """Whether what differs is one value, which a person need not decide about."""
    value = [words[n] for n in places]
    signs = all(map(SIGNS.match, value))
    if not 0 < len(value) <= (MOST_SIGNS if signs else 1):
        return False
    if not (NEGATIONS | SIGNS_OF_NEGATION).isdisjoint(word.casefold() for word in value):
        return False
    said, first = "".join(value).casefold(), places[0]
    is_number = any(map(str.isdigit, said))
    may_be_named = signs or value[0][0].isupper() or not (first or is_number)
    before = words[first - 1].casefold() if first else ""
    near = words[max(0, first - NEAR) : places[-1] + NEAR + 1]
    return not (
        said in table("person")
        or (may_be_named and before not in table("place"))
        or _has(value, "date")
        or _has(near, "unit")
        or ((signs or is_number) and _has(near, "date"))
        or (is_number and (_has(words, "amount") or OF_PERSONS.match(said)))
    )


def _has(words: Sequence[str], kind: str) -> bool:
    known = table(kind)
    said = "".join(filter(SIGNS.match, words))
    return not known.isdisjoint(word.casefold() for word in words) or any(
        sign in said for sign in known if SIGNS.match(sign)
    )


def hands_over(one: str, other: str) -> bool:
    """Whether one says that something changes, and both are about a thing beside whom they begin with."""
    if not any(map(_says_change, (one, other))):
        return False
    begins = {words[0].casefold() for text in (one, other) if (words := _words(text))}
    shared = words_in(one, other) - {word for phrase in table("change") for word in phrase.split()}
    return bool(shared - begins if len(begins) == 1 else shared)


@lru_cache(1_000)
def _says_change(text: str) -> bool:
    said = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    spaced = f" {' '.join(re.split(BLANKS, said))} "
    return any(
        phrase in said if SIGNS.match(phrase) or phrase.endswith("'") else f" {phrase} " in spaced
        for phrase in table("change")
    )
