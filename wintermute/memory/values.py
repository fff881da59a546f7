"""Contradictions that a night settles unasked: only a harmless value differs (M-087). Pure.

Harmless are only known cases: somebody's place of residence, a time of day, the colour of a thing, a count of
things. Anything else may be a dose, money, a date or a person, and is asked about.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import resources

from wintermute.memory.lexical_overlap import CJK_RUN, is_negated, words_in

SIGN = CJK_RUN.pattern.removesuffix("+")
FIRST_WORD = re.compile(rf"{SIGN}|(?:(?!{SIGN})[^\W_])+")
BLANKS = re.compile(r"[\s,;:.!?]+")
ONE_WORD = r"[^\W\d_]+(?:-[^\W\d_]+)*"


@cache
def table(name: str) -> frozenset[str]:
    """Return the words of a table in all languages."""
    text = (resources.files("wintermute.memory") / "values.toml").read_text("utf-8")
    words = ",".join(tomllib.loads(text)[name].values()).split(",")
    return frozenset(map(str.strip, words))


@cache
def _forms() -> tuple[re.Pattern[str], ...]:
    """Return patterns of sentences with a harmless value: the text before it, the value, the text after."""
    place, hour, clock, colour, verb, count = (
        "|".join(map(re.escape, sorted(table(name))))
        for name in ("place", "hour", "clock", "colour", "is", "count")
    )
    return tuple(
        re.compile(rf"(.*{before})({value})({end})[.\u3002!]?")
        for before, value, end in (
            (rf"\b(?:{place}) ", ONE_WORD, "(?: now)?"),
            ("\u4f4f\u5728", f"(?!.*[\u5bb6\u90a3\u5988\u7238\u54e5\u59d0])(?:{SIGN}){{2,6}}", ""),
            (rf"\b(?:{hour}) ", r"\d{1,2}(?::\d\d)?", rf" ?(?:{clock})"),
            (rf"\b(?:{hour}) ", r"\d{1,2}:\d\d", ""),
            (rf"\b(?:{verb}) ", colour, ""),
            (" ", r"\d{1,2}", f" (?:{count})"),
        )
    )


def differ_in_a_value(one: str, other: str) -> bool:
    """Check whether two texts differ only in one value that is known to be harmless."""
    return bool({*_frames(one)} & {*_frames(other)}) and not is_negated(one)


def _frames(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield a text without its value, with the number of the matching pattern."""
    said = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    for kind, form in enumerate(_forms()):
        if found := form.fullmatch(said):
            yield kind, found[1], found[3]


def says_change(one: str, other: str) -> bool:
    """Check whether a text says that something changes, and that both share more than their first word."""
    if not any(map(_says_change, (one, other))):
        return False
    begins = {found[0].casefold() for text in (one, other) if (found := FIRST_WORD.search(text))}
    shared = words_in(one, other) - {word for phrase in table("change") for word in phrase.split()}
    return bool(shared - begins if len(begins) == 1 else shared)


@lru_cache(1_000)
def _says_change(text: str) -> bool:
    said = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    spaced = f" {' '.join(re.split(BLANKS, said))} "
    return any(
        phrase in said if CJK_RUN.match(phrase) or phrase.endswith("'") else f" {phrase} " in spaced
        for phrase in table("change")
    )
