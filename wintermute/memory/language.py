"""Words, numbers and dates of a text in many languages. Words are data.

Each language has a table in `languages.toml`; a text in another one has letters and digits.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib import resources

MARKS = "\u0900-\u0903\u093a-\u094f\u0962\u0963\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
LETTER = f"[\\w{MARKS}]"
WORD = re.compile(f"(?:[^\\W\\d_]|[{MARKS}])+")
NUMBER = re.compile(r"\d+")
THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:[ .,\u00a0\u202f]\d{3})+(?!\d)")
KANA, KATAKANA = re.compile("[\u3040-\u309f]+"), re.compile("([\u30a0-\u30ff]+)")
BY_SCRIPT = {
    "ja": "\u3040-\u30ff", "ko": "\uac00-\ud7af", "zh": "\u3400-\u9fff", "th": "\u0e00-\u0e7f",
    "hi": "\u0900-\u097f", "he": "\u0590-\u05ff", "ar": "\u0600-\u06ff", "el": "\u0370-\u03ff",
    "ru": "\u0400-\u04ff",
}  # fmt: skip
SEVERAL = ("months", "days", "seasons", "units", "kin", "ill")
"""Tables with a group of words for each thing."""
UNSPACED = frozenset({"ja", "zh", "th"})
PREFIXES = {"he": "[ושהבלכמ]{0,2}", "ar": "(?:[وفبلك]{0,2}(?:ال|ل)?)"}
JOINED = "[ -]?(?:(?:and|und|et|y|e|и|i|ve|και|و|\u05d5)[ -]?)?"
COUNTERS = "[살시명개마리번달잔대권가지주병층사람만천백원분년월일]"
LATIN = str.maketrans({"\u2019": "'", "\u0131": "i", "ł": "l"})
YEAR = r"(?:19|20|25)\d\d"
ISO = re.compile(rf"(?<!\d)(?P<y>{YEAR})[-/.](?P<m>\d\d?)[-/.](?P<d>\d\d?)(?!\d)")
DAY_FIRST = re.compile(rf"(?<!\d)(?P<d>\d\d?)[./](?P<m>\d\d?)[./](?P<y>{YEAR})(?!\d)")
DAY_BEFORE = re.compile(
    r"(?<![\d:.])(\d\d?)(?:st|nd|rd|th|er|o|a|-?\u0433\u043e|-?\u0435)?\.?\s*(?:of |de |di |d')?$"
)
DAY_AFTER = re.compile(r"^\s*(?:the |den )?(\d\d?)(?:st|nd|rd|th)?(?![\d:]|[.]\d)(?:[日号號일])?")
YEAR_BEFORE = re.compile(rf"({YEAR})\s*[年년]\s*$")
YEAR_AFTER = re.compile(
    rf"^\W*(?:\d\d?(?:st|nd|rd|th)?\W+)?(?:พ\.ศ\.\s*|\w{{1,3}}\W{{1,2}})?({YEAR})(?!\d)"
)
YEAR_ALONE = re.compile(rf"(?<![\d:])({YEAR})(?![\d:])\s*[年년]?")
COUNT = re.compile(r"(\d{1,3})\s*[个個ヶか箇カ]?\s*$")
YEAR_UNIT = 3
SEASONS = ((3, 6), (6, 9), (9, 12), (12, 3))
DaySpan = tuple[date, date]
WrittenDate = tuple[int | None, int | None, int | None]
"""Year, month and day, as far as they are given."""


@dataclass(frozen=True, slots=True)
class Language:
    """The words of a language, by what they are for."""

    name: str
    tables: Mapping[str, tuple[re.Pattern[str], ...]]
    near: tuple[tuple[frozenset[int], re.Pattern[str]], ...]
    """Words for days relative to today, the longest first."""
    small: re.Pattern[str]
    """Words that identify the language."""
    values: Mapping[str, int]
    numbers: re.Pattern[str]
    parts: re.Pattern[str]
    """Matches a number or a number word, the parts of a match of `numbers`."""

    def has(self, table: str, text: str) -> bool:
        """Check for a word of this table in a text."""
        return any(pattern.search(text) for pattern in self.tables[table])

    def which(self, table: str, text: str) -> set[int]:
        """Return the groups that have a word in a text."""
        return {n for n, pattern in enumerate(self.tables[table]) if pattern.search(text)}

    def looks(self, text: str, folds: str) -> int:
        """Count the words of a text that are typical of this language."""
        small = len(self.small.findall(folds)) + len(self.numbers.findall(folds))
        return 2 * small + len(self.tables["look"][0].findall(text))


@cache
def known_languages() -> Mapping[str, Mapping[str, str]]:
    """Return the word tables of all languages, by their codes."""
    text = (resources.files("wintermute.memory") / "languages.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def language_named(name: str) -> Language:
    """Return a language; its expressions are compiled at the first call."""
    table = known_languages()[name]
    values = {word.replace("_", " "): value for value, word in _valued(folded(table["numbers"]))}
    words = "|".join(map(re.escape, sorted(values, key=len, reverse=True)))
    large = "|".join(re.escape(word) for word, value in values.items() if value >= 100)
    more = "\\d?" if name in UNSPACED else JOINED
    numbers = f"(?:\\d+ ?(?={large}))?(?:{words})(?:{more}(?:{words}))*"
    if name not in UNSPACED:
        end = f"(?!{LETTER})|(?={COUNTERS})" if name == "ko" else f"(?!{LETTER})"
        numbers = f"(?<!{LETTER}){PREFIXES.get(name, '')}{numbers}(?:{end})"
    tables = {
        key: tuple(
            _pattern(name, group, key) for group in (listed.split() if key in SEVERAL else [listed])
        )
        for key, listed in table.items()
        if key not in ("numbers", "near")
    }
    listed: dict[str, set[int]] = {}
    for days, word in _valued(table["near"]):
        listed.setdefault(word, set()).add(days)
    ordered = sorted(listed, key=len, reverse=True)  # the day after tomorrow is not tomorrow
    near = tuple((frozenset(listed[word]), _pattern(name, word, "near")) for word in ordered)
    known = " ".join(table[key] for key in ("light", "not", "habit", "kin", "near"))
    small = _pattern(name, re.sub(r"-?\d", "", known), "light")
    parts = re.compile(f"\\d+|{words}")
    return Language(name, tables, near, small, values, re.compile(numbers), parts)


def _valued(listed: str) -> Iterator[tuple[int, str]]:
    """Yield words with the number that precedes them."""
    value = 0
    for word in listed.split():
        if word.lstrip("-").isdigit():
            value = int(word)
        else:
            yield value, word


def _pattern(name: str, words: str, key: str) -> re.Pattern[str]:
    plain = words if key == "look" else folded(words)
    parts = sorted(re.split(r"[\s|]+", plain), key=len, reverse=True)
    listed = "|".join(
        re.escape(part).replace(r"\*", f"{LETTER}*").replace("_", "[ -]") for part in parts if part
    )
    listed = listed or "(?!)"
    if name in UNSPACED:
        return re.compile(rf"(?<!\d)(?:{listed})" if words[:1].isdigit() else f"(?:{listed})")
    end = "" if name == "ko" else f"(?!{LETTER})"
    prefix = PREFIXES.get(name, "")
    if name == "ar" and key == "not":  # the word for "when" contains the one for "not"
        prefix = "[وف]?"
    return re.compile(f"(?<!{LETTER}){prefix}(?:{listed}){end}")


def folded(text: str) -> str:
    """Return a text without case, accents and vowel points, with ASCII digits."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(LATIN).replace("n't", " not")
    marks = unicodedata.normalize("NFD", plain)
    kept = (m for m in marks if m >= "\u0900" or unicodedata.category(m) != "Mn")
    whole = unicodedata.normalize("NFC", "".join(kept))
    return "".join(str(unicodedata.digit(m)) if m.isdigit() else m for m in whole)


def language_of(text: str) -> Language:
    """Return the language of a text: by its script if that is unique, else by its words."""
    folds, text = folded(text), text.casefold()
    for name, signs in BY_SCRIPT.items():
        if len(re.findall(f"[{signs}]", folds)) * 4 > len(folds.replace(" ", "")):
            return language_named(name)
    spaced = [language_named(name) for name in known_languages() if name not in BY_SCRIPT]
    return max(spaced, key=lambda each: each.looks(text, folds))


def numeric(text: str, language: Language) -> str:
    """Return a folded text with digits for number words."""

    def digits(found: re.Match[str]) -> str:
        parts = language.parts.findall(found[0])
        turned = language.name in ("de", "ar")  # five and twenty
        known = language.values
        values = _combined(
            [known[part] if part in known else int(part) for part in parts], turned=turned
        )
        alone = len(parts) == 1
        if language.name in ("th", "zh") and len(parts) > 1 and 10 > values[-1] % 100 > 0:
            unit = language.values.get(parts[-2], 0)  # six thousand four: 6400
            if unit >= 100:
                last = language.values.get(parts[-1], 0)
                values[-1] += last * (unit // 10 - 1)
        if values == [1] or (alone and language.name in UNSPACED and values[0] >= 100):
            return found[0]
        if language.name == "ko" and (
            (len(found[0]) == 1 and found[0] not in "두세네둘셋넷") or len(values) > 1
        ):
            return found[0]  # a syllable of another word
        return " ".join(map(str, values))

    return language.numbers.sub(
        digits, THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    )


def _combined(values: Sequence[int], *, turned: bool) -> list[int]:
    """Combine the numbers of consecutive number words: 4, 1000, 5, 100 is 4500."""
    out, last = [values[0]], values[0]
    for value in values[1:]:
        if value >= 1000 and out[-1] < value:
            out[-1], last = out[-1] * value, out[-1] * value
        elif 0 < last < value and (value >= 100 or (value == 10 and last < 10)):
            out[-1], last = out[-1] + last * value - last, last * value
        elif (
            (last > value and last % 10 ** len(str(value)) == 0)
            or (last in (60, 80) and value < 20)  # soixante-dix
            or (turned and last < 10 and value in range(20, 100, 10))
        ):
            out[-1], last = out[-1] + value, value
        else:
            out, last = [*out, value], value
    return out


def written(text: str, language: Language) -> tuple[list[WrittenDate], str]:
    """Return the dates in a text, as far as they are given, and the text without them."""
    found = list[WrittenDate]()
    for pattern in (ISO, DAY_FIRST):
        found += [(int(m["y"]), int(m["m"]), int(m["d"])) for m in pattern.finditer(text)]
        text = pattern.sub(" ", text)
    for number, month in enumerate(language.tables["months"], 1):
        while match := month.search(text):
            before, after = text[: match.start()], text[match.end() :]
            if year := YEAR_BEFORE.search(before):
                before = before[: year.start()]
            if day := None if match[0][0].isdigit() else DAY_BEFORE.search(before):
                before = before[: day.start()]
            elif day := DAY_AFTER.search(after):
                after = after[day.end() :]
            if not year and (year := YEAR_AFTER.search(after)):
                after = after[year.end() :]
            found.append((int(year[1]) if year else None, number, int(day[1]) if day else None))
            text = f"{before} \x00 {after}"
    found += [(int(year), None, None) for year in YEAR_ALONE.findall(text)]
    return found, YEAR_ALONE.sub(" ", text)


def bounds(year: int, month: int | None, day: int | None) -> Iterator[DaySpan]:
    """Yield the first and the last day of a date; nothing for an impossible date."""
    year -= 543 if year > 2400 else 0  # of Thailand
    try:
        begin = date(year, month or 1, day or 1)
        after = date(year + (month in (None, 12)), (month or 12) % 12 + 1, 1)
    except ValueError:
        return
    yield begin, begin if day else after - timedelta(1)


def spans(text: str, language: Language, on: date) -> Iterator[DaySpan]:
    """Yield the days that a text written on day `on` may mean."""
    past, coming = language.has("last", text), language.has("next", text)
    sides = range(0 if coming and not past else -1, 1 if past and not coming else 2)
    dates, _ = written(text, language)
    for year, month, day in dates:
        for each in (year,) if year else (on.year - 1, on.year, on.year + 1):
            yield from bounds(each, month, day)
    near = set[int]()
    for days, pattern in language.near:
        if pattern.search(text):
            near, text = near | days, pattern.sub(" ", text)
    weekdays = language.which("days", text)
    numbers = set() if any(m for _, m, _ in dates) else {int(n) for n in NUMBER.findall(text)}
    for k in range(-31, 32):
        day_of = on + timedelta(k)
        is_named = day_of.weekday() in weekdays and -8 < k < (14 if coming else 8)
        if k in near or day_of.day in numbers or (is_named and (k > 0) - (k < 0) in sides):
            yield day_of, day_of
    yield from _away(text, language, on, sides, bool(dates))


def _away(
    text: str, language: Language, on: date, sides: Sequence[int], dated: bool
) -> Iterator[DaySpan]:
    """Yield the weeks, months, years and seasons that a text mentions, past, present and future."""
    for unit, pattern in enumerate(language.tables["units"][: YEAR_UNIT if dated else None]):
        for match in pattern.finditer(text):
            count = COUNT.search(text[: match.start()])
            for k in (int(count[1]), -int(count[1])) if count else sides:
                yield from _around(on, unit, k, exact=bool(count))
    for season in language.which("seasons", text):
        first, last = SEASONS[season]
        for year in range(on.year - 2, on.year + 2):
            begin, end = date(year, first, 1), date(year + (last < first), last, 28)
            if (1 in sides or begin <= on) and (-1 in sides or end >= on):
                yield begin, end


def _around(on: date, unit: int, k: int, *, exact: bool) -> Iterator[DaySpan]:
    """Yield the day, week, month or year that is `k` units away."""
    if unit == 0 and exact:
        yield on + timedelta(k), on + timedelta(k)
    elif unit == 1:
        middle = on + timedelta(7 * k) - timedelta(0 if exact else on.weekday() - 3)
        yield middle - timedelta(2 if exact else 3), middle + timedelta(2 if exact else 3)
    elif unit == 2:
        month = on.year * 12 + on.month - 1 + k
        yield from bounds(month // 12, month % 12 + 1, None)
    elif unit == 3:
        yield from bounds(on.year + k, None, None)
