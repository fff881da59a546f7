"""Words for times in seven languages, from `times.toml`, and the regular expressions made of them."""

# ruff: noqa: RUF001  marks of scripts that look like others

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from wintermute.text import NO_TEXT

LETTERS = "0-9a-z\u00df-\u1fff"
"""Letters that must not be followed by another word; scripts without blanks are not among them."""
EDGE = rf"(?:(?<![{LETTERS}.])|(?![{LETTERS}]|'[a-z]|[:./,-][0-9]|[-/][{LETTERS}]))"
"""The end of a time. In `9:00`, `9.5`, `9-10`, `9th` and `monday's` there is none after `9` or `monday`."""
CJK = "一二两兩三四五六七八九十百"
BEGIN = rf"(?!(?<=[{CJK}])[{CJK}])(?<![{LETTERS}$€£#])(?<![0-9][:./,-])(?<![{LETTERS}]['-])"
VALUES: dict[str, tuple[Any, ...]] = {
    "day": (0, 1, 2),
    "weekday": tuple(range(7)),
    "plural": tuple(range(7)),
    "short": tuple(range(7)),
    "month": tuple(range(1, 13)),
    "number": (*range(1, 13), 15, 20, 30, 40, 45),
    "unit": ("minute", "hour", "day", "week", "month", "year", "half"),
    "part": ((0, 11), (11, 14), (12, 20), (16, 23), (12, 23), (18, 23)),
    "late": ((0, 11), (11, 14), (12, 20), (16, 23), (12, 23), (18, 23)),
    "clock": ("mark", "minutes", "noon"),
    "before": ((30,), (15,), (-15,), (-30,), (30, -30)),
    "after": (30, 15, -15),
    "every": (
        *("each", "other", ("day", 1), ("week", 1), ("month", 1), ("year", 1), ("week", 2)),
        *((0, 1, 2, 3, 4), (5, 6), "weekend"),
    ),
    "next": ("next", "week", "this"),
    "glue": ("on", "at", "near", "in", "later", "one", "and", "to", "dated", "either", "of"),
    "stop": ("beside", "before", "minutes", "series"),
}
"""The meaning of each position in a row of the file."""
TONIGHT, WEEKEND = VALUES["part"][-1], VALUES["every"][-1]
_ = " *"
DAY = "(?P<day>[0-9]{1,2})"
ORDINAL = "(?:st|nd|rd|th|er|º|°|日|号|號)"
BETWEEN = re.compile("(?: |,|の|的)*")
FEW = re.compile(rf"(?<![0-9])[1-6] +[a-z-]*(?:[a-hj-rtv-z]s|[ae]ux)(?![{LETTERS}])")
"""`every day 2 pills` may say no hour; `tomorrow 9 James` says one."""
FOREIGN = re.compile(r"[\u0370-\u1dff]\S*(?: \S+){0,2}")
BEGINS = re.compile(BEGIN + "(?=[^ ])")


@lru_cache(4096)
def _letter(mark: str) -> str:
    if mark.isspace() or mark in NO_TEXT:
        return " "
    if "\uff01" <= mark <= "\uff5e":  # as wide as a character of Chinese
        mark = chr(ord(mark) - 0xFEE0)
    base = unicodedata.normalize("NFD", mark.lower())[0]
    return "'" if base == "’" else base if base.isascii() else mark.lower()[0]


def folded(text: str) -> str:
    """Turn a text into small letters without accents; its length stays the same."""
    return "".join(map(_letter, text))


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    kind: str
    value: Any
    language: str
    spelt: str


def _read() -> Iterator[_Word]:
    tables = tomllib.loads((resources.files("wintermute.tasks") / "times.toml").read_text("utf-8"))
    for language, table in tables.items():
        for kind, row in table.items():
            for value, place in zip(VALUES[kind], row.split("|"), strict=True):
                for word in place.split():
                    named = word.replace("_", " ")
                    yield _Word(folded(named), kind, value, language, named)


WORDS = tuple(_read())
MEANING = {kind: {word.text: word.value for word in WORDS if word.kind == kind} for kind in VALUES}
KNOWN = frozenset(word.text for word in WORDS)
DAYS = MEANING["weekday"] | MEANING["plural"] | MEANING["short"]
NAMED = {w.text: w.spelt for w in WORDS if w.kind in ("day", "weekday") and w.text != "demain"}
"""Days that may be misspelt, with their spelling. Damien and Demian are names, so `demain` is left out."""


def share(kind: str, text: str, other: str, word: str) -> bool:
    """Return True if two words are of one language: `at once` is not eleven o'clock in Spanish."""
    one, two = (
        {known.language for known in WORDS if (known.kind, known.text) == named}
        for named in ((kind, text), (other, word))
    )
    return not one.isdisjoint(two)


def any_of(kind: str, *values: Any) -> str:
    """Return a pattern of the words of a kind, or of some of their values, the longest first."""
    words = {
        word.text for word in WORDS if word.kind == kind and (not values or word.value in values)
    }
    ends = r"(?<![a-z\u00df-\u1fff])|(?![a-z\u00df-\u1fff])"
    found = (re.escape(word) for word in sorted(words, key=len, reverse=True))
    return f"(?:(?:{'|'.join(found)})(?:{ends}))"


FIGURE = f"(?:[0-9]{{1,9}}|{any_of('number')})"
UNIT = any_of("unit")
PART = any_of("part")
ON, AT, NEAR, AND, TO, OF, DATED = (
    any_of("glue", place) for place in ("on", "at", "near", "and", "to", "of", "dated")
)
WEEKDAY = rf"(?:{any_of('weekday')}|{any_of('plural')}|{any_of('short')})"
MARK, MINUTES = any_of("clock", "mark"), any_of("clock", "minutes")
EACH, OTHER = any_of("every", "each"), any_of("every", "other")
SOME = any_of("every", *VALUES["every"][7:])
NEXT, ONE = any_of("next", "next"), any_of("glue", "one")
MONTH = rf"(?P<month>{any_of('month')})\.?"
YEAR = rf"(?:,?{_}(?:{OF}{_})?(?P<year>[0-9]{{4}}))?"
SPAN = f"(?:{FIGURE}|{ONE})?{_}{UNIT}"
THEN = f"{_}(?:,|-|–|{AND}|{TO}){_}(?:{ON}{_})?"

PATTERNS = (
    (
        "iso",
        r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})(?:t| +)(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)"
        r"(?:\.[0-9]+)?(?P<offset>z|[+-][0-9]{2}:?[0-9]{2})?",
    ),
    (
        "ahead",
        f"(?:(?P<before>{any_of('glue', 'in')}){_})?(?P<spans>{SPAN}"
        f"(?:[0-9]{{2}}|{_}(?:{any_of('after', 30)}|(?:{AND}{_})?{SPAN}))?)"
        f"(?:{_}(?P<after>{any_of('glue', 'later')}))?(?:に)?",
    ),
    (
        "rhythm",
        f"(?:{OF}{_})?(?:(?P<other>{OTHER})(?:(?={_}{WEEKDAY})|{_}(?P<unit>{UNIT}))"
        f"|(?P<each>{EACH})(?:{_}(?P<part>{PART})|{_}(?P<dated>[0-9]{{1,2}})(?:{ORDINAL}|\\.)"
        f"|(?:{_}(?P<count>{FIGURE}))?(?:(?={_}(?P<weekday>{WEEKDAY}|{SOME}))|{_}(?P<units>{UNIT})))"
        f"|{any_of('every', ('month', 1))}{_}(?P<number>[0-9]{{1,2}})|(?P<fixed>{any_of('every', *VALUES['every'][2:7])}))",
    ),
    ("date", f"(?P<year>[0-9]{{4}})[-/.年](?P<number>[0-9]{{1,2}})[-/.月]{DAY}日?"),
    (
        "date",
        f"(?:{ON}{_})?"
        + "(?P<either>[0-9]{1,2})/(?P<or>[0-9]{1,2})(?:/(?P<year>[0-9]{4}|[0-9]{2}))?",
    ),
    (
        "date",
        rf"(?:{ON}{_})?{DAY}\.(?P<number>[0-9]{{1,2}})(?:\.(?P<year>[0-9]{{4}}|[0-9]{{2}})?)?(?!{_}{MARK})",
    ),
    ("date", rf"(?:(?:{ON}|{DATED}){_})?{DAY}(?:{ORDINAL}|\.)?{_}(?:{OF}{_})?{MONTH}{YEAR}"),
    ("date", rf"(?:{ON}{_})?{MONTH}{_}(?:{ON}{_})?{DAY}{ORDINAL}?{YEAR}"),
    ("date", f"(?P<number>[0-9]{{1,2}})月{DAY}[日号號]?"),
    ("date", f"(?:{ON}{_})?(?:{DATED}{_})?{DAY}{ORDINAL}"),
    ("date", rf"(?:{ON}{_})?{DATED}{_}{DAY}\.?"),
    ("week", f"{any_of('next', 'week')}(?={_}(?:{ON}{_})?(?P<then>{WEEKDAY}))?"),
    (
        "days",
        rf"(?P<either>{any_of('glue', 'either')}{_})?(?:(?P<on>{ON}|{any_of('next', 'this')}|{ONE}){_})?(?:(?P<next>{NEXT}){_})?"
        rf"(?P<days>{WEEKDAY}\.?(?:{THEN}{WEEKDAY}\.?)*)(?:{_}(?P<later>{NEXT}))?",
    ),
    ("days", f"(?:{ON}{_})?(?P<named>{SOME})"),
    ("day", f"(?P<day>{any_of('day')})|{any_of('next', 'this')}(?={_}{PART})"),
    (
        "clock",
        rf"(?:(?P<early>{PART}){_},?{_})?(?:(?P<at>{AT}){_}|(?P<near>{NEAR}){_})?(?:(?P<part>{PART}){_})?"
        rf"(?:(?P<before>{any_of('before')}){_})?(?:(?P<hour>[0-9]{{1,2}})|(?P<word>{any_of('number')}))"
        r"(?:(?P<colon>[:.])(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?"
        rf"(?:{_}(?P<mark>{MARK})(?!間)(?:{_}(?P<past>[0-9]{{1,2}}|{any_of('number')})(?:{_}{MINUTES}(?![間钟鐘前])|(?<![一-鿿])(?<![^0-9][0-9])(?!{_}{UNIT}|刻|[个個])))?)?"
        rf"(?:{_}(?P<after>{any_of('after')}))?(?:{_},?{_}(?P<late>{any_of('late')}))?(?:に)?",
    ),
    (
        "clock",
        f"(?:(?:{AT}|{NEAR}){_})?(?P<noon>{any_of('clock', 'noon')})(?!{_}(?:{AT}{_})?[0-9])",
    ),
    ("window", f"(?P<part>{PART})"),
)

SPANS = re.compile(
    rf"(?:(?P<count>{FIGURE}|{ONE}){_}|(?<![a-z]))(?P<unit>{UNIT})|(?P<more>[0-9]{{2}})"
    rf"|(?P<half>{any_of('after', 30)})"
)
EACH_DAY = re.compile(rf"(?P<to>-|–|{TO})?{_}(?P<day>{WEEKDAY})")
STOP = any_of("stop", "beside", "before")
MINUS = f"(?:{UNIT}{_})?{any_of('stop', 'minutes')}{_}(?:{any_of('before')}|{FIGURE})"
STOPS = re.compile(
    f"[ ,]*(?:{any_of('stop', 'beside')}(?!(?<=[a-z]) *$)|{EACH}{_}(?:{STOP}|[0-9])|{TO}{_}[0-9]|{MINUS}|{FIGURE}分前"
    f"|{any_of('number', 15, 20, 30, 40, 45)}|[{CJK}]{{2,}})"
)
"""Words before which a time is not read: `at ten to nine` is not ten. A last word is text: `9 y`."""
ODD = re.compile(
    f"{BEGIN}(?:(?:{any_of('glue', 'in')}|{EACH}){_}(?:{FIGURE}|{ONE}){_}(?!{OF})[{LETTERS}]+"
    f"|{FIGURE}{_}{UNIT}|{any_of('next', 'week')}|{NEXT}{_}{UNIT})"
)
"""A number or `next` with a word that makes no time: `in 5 x`, `5 min tea`, `next week`."""
BOUND = re.compile(
    f"[ ,]*{any_of('stop', 'series')}{_}(?:(?:{AT}|{ON}){_})?(?:[0-9]|(?:{FIGURE}|{ONE}){_}{UNIT}"
    f"|{any_of('month')}|{any_of('weekday')}|{any_of('day')}|{any_of('next')})"
)
"""A start or an end of a series: `for 5 days`, `from 1 march`, `starting tomorrow`."""
NO_DAY = rf"{any_of('next')}(?:{_}{UNIT})?|{any_of('day')}|{any_of('weekday')}|{any_of('every', WEEKEND)}|[0-9]+{ORDINAL}?\.?{_}{any_of('month')}"
STOPPED = re.compile(
    rf"{BEGIN}(?:{STOP}|{EACH}|{OTHER}|{NO_DAY}|{WEEKDAY}{_}{UNIT}|[0-9]+[/.][0-9]+|[{CJK}]+[日号號])[ ,.]*$"
)
"""Words after which a time is not read. `30 february` is an impossible day."""
FAR = re.compile(rf"{BEGIN}{any_of('unit', 'week', 'month', 'year')}[ ,の]*$")
"""Words after which a day is not read: `next month on the 5th`."""
COUNTED = re.compile(rf"(?! an ){_}{UNIT}| +[km]?[gml](?![{LETTERS}])| ?[%€£$]|[぀-鿿]")
"""`tomorrow 5 minutes` and `tomorrow 10 km` name no hour."""
OTHER_WORD = re.compile(f" +(?!{AT}|{NEAR}|{PART}|{any_of('number')})[a-z]")
"""A word after which `mon` is no day: `mon ami`."""


@cache
def slots() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the parts of a time, in the order in which they are tried."""
    return tuple((slot, re.compile(f"(?:{pattern}){EDGE}")) for slot, pattern in PATTERNS)
