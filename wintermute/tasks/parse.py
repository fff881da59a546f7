"""Times as people type them, in seven languages: `tomorrow at 9`, `every monday at 8`, `in 20 minutes`.

One grammar serves the chat, the shell, the tool and the web. A time is never guessed: a text that
can mean two things is refused with both, and one without a time of day with an example.
"""

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from dateutil.relativedelta import relativedelta

from wintermute.clock import DAYS as NAMES
from wintermute.errors import ToolFailed
from wintermute.tasks import grammar
from wintermute.tasks.due import MONTHS, excerpt, instant, short_time
from wintermute.tasks.grammar import MEANING, folded

DAYS = tuple(name[:3].lower() for name in NAMES)
ELAPSED = {"minute": 60, "hour": 3600}
"""Seconds of the units of elapsed time. Days and longer units keep the time of day."""
RULES = {"day": "DAILY", "week": "WEEKLY", "year": "YEARLY"}
FURTHEST = timedelta(days=36_525)
EXAMPLES = "tomorrow at 9, in 20 minutes or every monday at 8"
WINDOW = 200
"""The number of characters at either end of a text in which a time is searched."""
SOUND = re.compile(r"(?=.)(?:i|e|h|a?c?|(?:D\+?|W[wvo]|W\+[wo]|Md|Ym|[ym](?:n?w)?|d|n?w|v|o|t)c?)")
"""Parts that go together: an instant, elapsed time, or days, dates and their rhythm with a time of day."""
HALF = "half"
ONLY = "I read English, German, French, Spanish, Italian, Chinese and Japanese times, not '{}'."
STRIPPED = " \t\n,:;，：；、。"  # noqa: RUF001  also in scripts without blanks
UNREAD = "I cannot read '{}' as a time."
EITHER, THIS = 2, 3
"""`next friday` may be of this week or of the next; `this friday` is of this week, even if it has passed."""
Slots = dict[str, tuple[Any, ...]]
"""The parts read so far, each with all its meanings."""
APART = {
    "iso": {"ahead", "rhythm", "date", "week", "days", "day", "clock"},
    "ahead": {"rhythm", "date", "week", "days", "day"},
    "rhythm": {"ahead", "day"},
    "date": {"ahead", "day"},
    "days": {"ahead", "day"},
    "day": {"ahead", "rhythm", "date", "days"},
}
"""For each part, the parts that cannot follow it."""


@dataclass(frozen=True, slots=True)
class TimedText:
    """A time found in a text, as a `PlanRequest` takes it, and the text without it."""

    at: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """One meaning of a time. `rhythm`: how often, as in `("week", 2)`; `ahead`: from now, in units."""

    iso: datetime | None = None
    ahead: tuple[tuple[str, int], ...] = ()
    rhythm: tuple[str, int] | None = None
    date: tuple[int | None, int | None, int] | None = None
    week: int = 0
    days: tuple[int, ...] = ()
    day: int | None = None
    clock: time | None = None
    often: bool = False
    """True for every such day, even without the word `every`."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing: a day needs a time of day."""
        return self.parts()[-1:] in "iaehc"

    @property
    def recurs(self) -> bool:
        """True if it is a series."""
        return self.rhythm is not None or self.often or len(self.days) > 1

    def parts(self) -> str:
        """Return a letter for each part that is named, in order, as in `SOUND`."""
        unit, count = self.rhythm or ("", 0)
        year, month, _ = self.date or (None, None, 0)
        named = (
            (self.iso, "i"),
            (self.ahead, "e" if any(unit in ELAPSED for unit, _ in self.ahead) else "a"),
            (unit, "h" if unit in ELAPSED else unit[:1].upper() + "+" * (count > 1)),
            (self.date, "y" if year else "m" if month else "d"),
            (self.week, "n"),
            (self.days, "v" if len(self.days) > 1 else "o" if self.often else "w"),
            (self.day is not None, "t"),
            (self.clock is not None, "c"),
        )
        return "".join(letter for part, letter in named if part)

    def words(self) -> str:
        """Return words that have only this meaning."""
        if self.iso:
            return f"{self.iso:%Y-%m-%d %H:%M}{'Z' if self.iso.tzinfo else ''}"
        if self.ahead:
            spans = " ".join(f"{count} {unit}{'s' * (count != 1)}" for unit, count in self.ahead)
            return f"in {spans}" + (f" at {self.clock:%H:%M}" if self.clock else "")
        on = " and ".join(NAMES[day] for day in self.days)
        named = "weekday" if self.days == (0, 1, 2, 3, 4) else on
        if self.day is not None:
            named = ("today", "tomorrow", "day after tomorrow")[self.day]
        if self.date:
            year, month, day = self.date
            named = f"{day} {MONTHS[month - 1]}" if month else f"day {day}"
            named += f" {year}" if year else ""
        if self.recurs:
            named = f"{self._every()} {named}".strip()
        return f"{named} at {short_time(self.clock.isoformat())}".strip() if self.clock else named

    def _every(self) -> str:
        unit, count = self.rhythm or ("week", 1)
        if self.days and count < 3:
            return "every other" if count == 2 else "every"
        every = f"every {count} {unit}s" if count > 1 else f"every {unit}"
        return f"{every} on" if self.days or self.date else every

    def request_parts(self) -> dict[str, Any]:
        """Return the parts of a `PlanRequest` for a series."""
        unit, count = self.rhythm or ("week", 1)
        if unit in ELAPSED:
            return {"schedule_type": "interval", "interval_seconds": count * ELAPSED[unit]}
        assert self.clock is not None
        at = short_time(self.clock.isoformat())
        if count == 1 and unit != "year":
            kind = {"day": "daily", "week": "weekly", "month": "monthly"}[unit]
            days, day = ",".join(DAYS[day] for day in self.days), self.date and self.date[2]
            given = {"schedule_type": kind, "at": at, "day_of_week": days, "day_of_month": day}
            return {name: part for name, part in given.items() if part}
        first = replace(self, rhythm=None, often=False).words()
        rule = f"FREQ={RULES[unit]};INTERVAL={count}"
        rule += f";BYDAY={DAYS[self.days[0]][:2].upper()}" if self.days else ""
        return {"schedule_type": "rrule", "rrule": rule, "at": first}


def _iso(found: re.Match[str], slots: Slots) -> Slots | None:
    clock, offset = f"{found['clock']:0>5}", found["offset"]
    clock = clock if clock[2] == ":" else f"0{clock}"
    try:
        at = datetime.fromisoformat(f"{found['date']}T{clock}{(offset or '').upper()}")
        return {"iso": (at.astimezone(UTC) if offset else at,)}
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else MEANING["number"].get(text, 1)


def _span(unit: str, count: str) -> tuple[str, int]:
    known, number = MEANING["unit"][unit], _number(count)
    return ("minute", 30 * number) if known == HALF else (known, number)


def _ahead(found: re.Match[str], slots: Slots) -> Slots | None:
    spans = list[tuple[str, int]]()
    for each in grammar.SPANS.finditer(found["spans"]):
        if each["unit"]:
            if each["count"] is None and MEANING["unit"][each["unit"]] != HALF:
                return None
            spans.append(_span(each["unit"], each["count"] or "1"))
        elif spans[-1][0] != "hour":
            return None
        else:
            spans.append(("minute", int(each["more"] or 30)))
    return {"ahead": (tuple(spans),)} if found["before"] or found["after"] else None


def _rhythm(found: re.Match[str], slots: Slots) -> Slots | None:
    if found["fixed"]:
        return {"rhythm": (MEANING["every"][found["fixed"]],), "loose": ("clock" in slots,)}
    if found["part"]:
        return {"rhythm": (("day", 1),)} | (_window(found, {**slots, "rhythm": ()}) or {})
    if day := found["dated"] or found["number"]:
        return {"rhythm": (("month", 1),), "date": ((None, None, int(day)),)}
    if found["units"] and not grammar.share("every", found["each"], "unit", found["units"]):
        return None  # `alle ore 9`
    unit = found["unit"] or found["units"]
    if not unit and "days" in slots:
        return None
    count = "2" if found["other"] else found["count"] or "1"
    span = _span(unit, count) if unit else ("week", _number(count))
    return {"rhythm": (span,)} if 1 <= span[1] <= 1000 else None


def _date(found: re.Match[str], slots: Slots) -> Slots | None:
    given: dict[str, Any] = found.groupdict()
    if found.start() and not slots and re.fullmatch("[0-9]+[.][0-9]+", found[0]):
        return None  # `version 3.2 at 9`
    year = int(given["year"]) if given.get("year") else None
    year = year + 2000 if year is not None and year < 100 else year
    if "either" in given:
        one, two = int(given["either"]), int(given["or"])
        pairs: list[tuple[int | None, int]] = list(dict.fromkeys([(two, one), (one, two)]))
    else:
        month = MEANING["month"].get(given.get("month") or "", given.get("number"))
        pairs = [(int(month) if month else None, int(given["day"]))]
    real = tuple((year, month, day) for month, day in pairs if _is_day(year, month, day))
    counts = given.get("month") and found[0][-1].isdecimal() and not year
    few = grammar.FEW.match(found.string, found.end() - 1)  # `march 4 miles`
    loose = bool(counts and (few or grammar.COUNTED.match(found.string, found.end())))
    return {"date": real, "loose": (loose,)} if real else None


def _is_day(year: int | None, month: int | None, day: int) -> bool:
    if year == 0 or not 0 < (month or 1) <= 12:
        return False
    return 0 < day <= monthrange(year or 2000, month or 1)[1]


def _days(found: re.Match[str], slots: Slots) -> Slots | None:
    given = found.groupdict()
    if given.get("named"):
        each, weekend = MEANING["every"][given["named"]], (5, 6)
        if each == grammar.WEEKEND and "rhythm" not in slots:
            return None  # of this week, or each of them
        return {"days": (weekend if each == grammar.WEEKEND else each,), "often": (True,)}
    named, days = list[str](), list[int]()
    for each in grammar.EACH_DAY.finditer(found["days"]):
        named.append(each["day"])
        day = grammar.DAYS[each["day"]]
        while each["to"] and days and days[-1] != day:
            days.append((days[-1] + 1) % 7)
        days.append(day)
    loose = "clock" in slots and "rhythm" not in slots and not found["on"]
    read: Slots = {"days": (tuple(sorted({*days})),), "loose": (loose,)}
    if all(name in MEANING["plural"] for name in named):
        read["often"] = (True,)
    elif found["either"] and "rhythm" not in slots:
        read["often"] = (False, True)
    if found["next"] or found["later"] or found["on"] in MEANING["next"]:
        read["week"] = (EITHER if found["next"] or found["later"] else THIS,)
    is_word = not slots and grammar.OTHER_WORD.match(found.string, found.end())
    lone = found["days"] in MEANING["short"] and found["on"] in (None, "the")
    if lone and (is_word or found["days"] not in MEANING["weekday"]):
        read["short"] = (found["days"],)  # `watch the sun at 9`, `mon ami at 9`
    return None if "week" in read and "week" in slots else read


def _clock(found: re.Match[str], slots: Slots) -> Slots | None:
    given = found.groupdict()
    if given.get("noon"):
        return {"clock": (time(12),)}
    hour = int(given["hour"]) if given["hour"] else MEANING["number"][given["word"]]
    minute, second = int(given["minute"] or 0), int(given["second"] or 0)
    minute = _number(given["past"]) if given["past"] else minute
    if hour > 23 or minute > 59 or second > 59 or not _is_clock(given, found, slots):
        return None
    said = (("part", given["early"]), ("part", given["part"]), ("late", given["late"]))
    windows = [MEANING[kind][word] for kind, word in said if word]
    shifts = MEANING["before"].get(given["before"], (0,))
    shift = MEANING["after"].get(given["after"], 0)
    at = _at_part(time(hour, minute, second), [*windows, *slots.get("window", ())])
    if at is None:
        return None
    is_bare = not (given["at"] or given["mark"] or given["colon"] or given["late"] or windows)
    exact = datetime.combine(date.max - timedelta(days=1), at)
    read: Slots = {"clock": tuple((exact + timedelta(minutes=shift + n)).time() for n in shifts)}
    bare = not (slots or windows or given["at"] or given["near"] or given["before"])
    if given["mark"] in MEANING["unit"] and bare and not given["past"] and not given["after"]:
        # `9h` is nine o'clock, and nine hours from now.
        return {"clock": (at, None), "ahead": ((), (("hour", hour),))}
    if grammar.TONIGHT in windows and not slots.keys() & {"day", "days", "date"}:
        read["day"] = (0,)
    return {"bare": (is_bare,)} | read


def _window(found: re.Match[str], slots: Slots) -> Slots | None:
    """Read a part of the day, as in `tomorrow evening`; `9:00 evening class` has none."""
    window = MEANING["part"][found["part"]]
    if [*slots][-1:] == ["clock"]:
        return None
    read: Slots = {"window": (window,)}
    if "clock" in slots:
        read["clock"] = tuple(at and _at_part(at, [window]) for at in slots["clock"])
    if window == grammar.TONIGHT and not slots.keys() & {"day", "days", "date"}:
        read["day"] = (0,)
    return read if slots or "day" in read else None


def _is_clock(given: Mapping[str, str], found: re.Match[str], slots: Slots) -> bool:
    """Return True if a number is a time of day: after `at`, with a colon or `am`, or right after a day."""
    at, short = given["at"] or given["near"], slots.get("short")
    if short and at and not grammar.share("short", short[0], "glue", at):
        return False  # `what to do at 9`: only in German `do` is a day
    at = given["at"]
    if given["word"] and at:
        return grammar.share("glue", at, "number", given["word"])
    if at or given["mark"] or given["colon"] == ":" or given["before"] or given["late"]:
        return True
    counted = grammar.COUNTED.match(found.string, found.end())
    is_number = given["word"] or given["colon"] or "short" in slots or counted
    return not is_number and bool(slots.keys() & {"day", "days", "rhythm"})


def _at_part(at: time, windows: list[tuple[int, int]]) -> time | None:
    """Return the time in these parts of the day; None if it is in none of them or ambiguous."""
    for low, high in windows:
        hours = {at.hour, at.hour + 12 if at.hour < 12 else at.hour - 12 * (at.hour == 12)}
        fits = [hour for hour in hours if low <= hour <= high]
        if len(fits) != 1:
            return None
        at = at.replace(hour=fits[0])
    return at


READERS: Mapping[str, Callable[[re.Match[str], Slots], Slots | None]] = {
    **{"iso": _iso, "ahead": _ahead, "rhythm": _rhythm, "date": _date},
    **{"days": _days, "clock": _clock, "window": _window},
    "day": lambda found, slots: {"day": (MEANING["day"].get(found["day"], 0),)},
    "week": lambda found, slots: {"week": (1,)} if found["then"] or "days" in slots else None,
}


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A time in a text: its possible meanings, and its start and end."""

    meanings: tuple[When, ...]
    start: int
    stop: int
    short: bool
    loose: bool
    """A word after the time of day may belong to the text: `18:30 friday drinks`."""
    bare: bool
    """The text may end with its time of day: `every day 2 pills at 9`, `in 3 days call mum at 9`."""
    day: When | None = None
    """The same time with a short name of a day before it: `call mum sun at 9`."""

    @property
    def is_whole(self) -> bool:
        return self.meanings[0].is_whole

    @property
    def names_day(self) -> bool:
        """True if it names more than a time of day."""
        return self.meanings[0] != When(clock=self.meanings[0].clock)


def _phrase(text: str, start: int = 0) -> _Phrase | None:
    """Find the longest time that begins here, in a folded text."""
    slots, at, stop = Slots(), start, start
    while True:
        at = grammar.BETWEEN.match(text, stop).end()  # type: ignore[union-attr]  # may be empty
        for slot, pattern in grammar.slots():
            if slot in slots or slots.keys() & APART.get(slot, set()) or "iso" in slots:
                continue
            found = pattern.match(text, at)
            if found and (read := READERS[slot](found, slots)):
                slots |= read
                stop = found.end()
                break
        else:
            break
    names = [field.name for field in fields(When) if field.name in slots]
    made = [
        When(**dict(zip(names, each, strict=True)))
        for each in product(*map(slots.__getitem__, names))
    ]
    sound = list(dict.fromkeys(each for each in made if SOUND.fullmatch(each.parts())))
    whole = [each for each in sound if each.is_whole] or sound
    if not slots or not whole:
        return None
    loose, bare = (True in slots.get(name, ()) for name in ("loose", "bare"))
    bare = bare or whole[0].parts() == "a"
    return _Phrase(tuple(whole), start, stop, "short" in slots, loose, bare)


def _last(text: str, cut: int) -> _Phrase | None:
    """Find the longest time that ends a folded text, of which `cut` characters are left out."""
    end = len(text.rstrip(" .!?…。"))
    short: _Phrase | None = None
    for begin in grammar.BEGINS.finditer(text, max(0, end - WINDOW)):
        phrase = _phrase(text, begin.start())
        if phrase and phrase.stop >= end and phrase.short:
            short = short or phrase
        elif phrase and phrase.stop >= end:
            before = text[: phrase.start]
            far = phrase.names_day and grammar.FAR.search(before)
            stopped = grammar.STOPPED.search(before) or far
            is_day = short and not text.startswith("the ", short.start)  # `watch the sun at 9`
            day = short.meanings[0] if short and is_day else None
            moved = replace(phrase, start=phrase.start + cut, stop=phrase.stop + cut, day=day)
            return None if stopped else moved
    return None


def _meanings(text: str) -> Sequence[When]:
    """Read a text that consists of a time: all its meanings, or none."""
    line = folded(unicodedata.normalize("NFC", text[:WINDOW])).strip()
    line = re.sub("^[0-9]{1,2}$", r"at \g<0>", line)
    phrase = _phrase(line) if len(text) <= WINDOW else None
    return phrase.meanings if phrase and phrase.stop == len(line) else ()


def _one(meanings: Sequence[When], text: str) -> When:
    """Return the only meaning of a time. Raises: ToolFailed with a clearer wording to use instead."""
    first = meanings[0]
    if not first.is_whole:
        example = f"{first.words()} at {'19:00' if first.day == 0 else '9'}"
        raise ToolFailed(f"'{excerpt(text)}' has no time of day. Write for example '{example}'.")
    if len(meanings) > 1:
        _choose(text, *meanings)
    return first


def _choose(text: str, *meanings: When | str) -> NoReturn:
    readings = " or ".join(
        f"'{each if isinstance(each, str) else each.words()}'" for each in meanings
    )
    raise ToolFailed(f"'{excerpt(text)}' can mean different times. Write {readings}.")


def find_time(text: str, now: datetime, zone: ZoneInfo) -> TimedText | None:
    """Find the time at the beginning or end of a sentence, and the rest; None: there is none.

    Raises: ToolFailed if the time is ambiguous, or a day without a time of day.
    """
    text = unicodedata.normalize("NFC", text).strip()
    line = folded(text[:WINDOW])
    head, tail = _phrase(line), None
    if head and (grammar.STOPS.match(line, head.stop) or _goes_on(text, line, head)):
        return None
    if head is None or head.bare or not (head.is_whole and head.names_day):
        cut = max(head.stop if head else 0, len(text) - 2 * WINDOW)
        tail = _last(folded(text[cut:]), cut)
    few = grammar.FEW.match(line, head.stop - 1) if head and head.bare else None
    if few and tail and not tail.names_day:
        head = _phrase(line[: few.start()])  # `every day 2 pills at 9`
    found = _joined(text, head, tail, now, zone)
    if found is None:
        return None
    when = _one(found[1], text if found[0].rest[:1].isdecimal() else found[0].at)
    _check_rest(text, head, found[0], when, now, zone)
    if not when.recurs:
        moment(when, found[0].at, now, zone)
    return found[0]


def _check_rest(
    text: str, head: _Phrase | None, found: TimedText, when: When, now: datetime, zone: ZoneInfo
) -> None:
    """Refuse a time if the words beside it may belong to it: `call tomorow at 9`, `tomorrow 1 egg`."""
    ends = f"{found.rest[:WINDOW]} {found.rest[-WINDOW:]}"
    rest, words, bare = excerpt(found.rest), ends.split(), when.clock
    if head and head.loose and rest:
        _choose(found.at, when, _with_day(when, now, zone))
    if head and head.bare and bare and 0 < bare.hour < 7 and text[head.stop : head.stop + 1] == " ":
        counted = replace(when, clock=time(9)).words()
        _choose(f"{found.at} {rest}", f"{when.words()} {rest}", f"{counted} {bare.hour} {rest}")
    if words and when == When(clock=when.clock):
        why = _unknown(text, words[:1] + words[-1:]) or _unreal(folded(ends), certain=True)
        if text.startswith(found.rest) and grammar.FOREIGN.match(words[-1]):
            why = ONLY.format(excerpt(" ".join(words[-2:])))
        if why:
            raise ToolFailed(why)


def _unknown(text: str, words: Sequence[str]) -> str:
    """Return a word that is nearly a day; inside a text no capitalised one, which may be a name."""
    for word in words:
        plain = folded(word).strip(STRIPPED + ".!?").partition("'")[0]
        near = next((spelt for day, spelt in grammar.NAMED.items() if _is_misspelt(plain, day)), "")
        if near and plain not in grammar.KNOWN and (text.startswith(word) or word[0].islower()):
            return f"I do not know the day '{excerpt(word)}'. Did you mean '{near}'?"
    return ""


def _is_misspelt(word: str, day: str) -> bool:
    """Return True if letters are missing, doubled or swapped: in `tomorow`, but not in `domino` or `domain`."""
    letters, once = iter(day), re.sub(r"(.)\1", r"\1", word)
    is_long = len(word) > 5 and word[0] + word[-1] == day[0] + day[-1]
    fewer = len(word) > 6 and len(day) - len(once) < 4 and all(each in letters for each in once)
    return is_long and (fewer or sorted(word) == sorted(day))


def _unreal(line: str, *, certain: bool = False) -> str:
    """Return an impossible date or time of day; `certain`: nothing that may be a sum or a verse."""
    for begin, (slot, pattern) in product(grammar.BEGINS.finditer(line), grammar.slots()):
        found = pattern.match(line, begin.start())
        if not found or slot not in ("iso", "date", "clock") or READERS[slot](found, {"iso": ()}):
            continue
        part = found.groupdict()
        if slot == "clock":
            named = (
                not certain
                and part.get("hour")
                and (part["at"] or part["late"] or part["colon"] == ":")
            )
        else:
            named = (
                slot == "iso" or part.get("year") or (part.get("month") and found[0][0].isdecimal())
            )
        if named or not (certain or slot == "clock"):
            return f"There is no such date or time as '{excerpt(found[0])}'."
    return ""


def why_unreadable(text: str) -> str:
    """Explain why a text has no readable time, naming the part; empty if there is nothing to name."""
    text = unicodedata.normalize("NFC", text).strip(STRIPPED + ".!?…")[-WINDOW:]
    line = folded(text)
    if why := _unreal(line) or _unknown(text, text.split()):
        return why
    if foreign := grammar.FOREIGN.search(text):
        return ONLY.format(excerpt(foreign[0]))
    phrases = (_phrase(line, begin.start()) for begin in grammar.BEGINS.finditer(line))
    phrase = next((each for each in phrases if each and each.is_whole and not each.short), None)
    if phrase is None:
        odd = grammar.ODD.search(line)
        return UNREAD.format(excerpt(text[odd.start() : odd.end()])) if odd else ""
    before, at, after = text[: phrase.start], text[phrase.start : phrase.stop], text[phrase.stop :]
    left = grammar.STOPPED.search(folded(before)) or grammar.FAR.search(folded(before))
    right = grammar.STOPS.match(folded(after))
    if left or right:
        part = (before[left.start() :] if left else "") + at + (right[0] if right else "")
        return UNREAD.format(excerpt(part))
    moved = excerpt(f"{at} {before.strip()} {after.strip()}")
    why = f"I read a time at the beginning or at the end, as in '{moved}'."
    return why if before and after else ""


def _goes_on(text: str, line: str, head: _Phrase) -> bool:
    """Return True if a time follows that would be left out, as in `in 2 weeks on monday`.

    Raises: ToolFailed for a series with a start or an end.
    """
    if head.meanings[0].recurs and grammar.BOUND.match(line, head.stop):
        series = excerpt(text[: head.stop])
        raise ToolFailed(f"I cannot read when '{series}' should start or end. Leave that out.")
    at = grammar.BETWEEN.match(line, head.stop).end()  # type: ignore[union-attr]  # may be empty
    behind = _phrase(line, at) if head.bare and head.meanings[0].ahead else None
    return behind is not None and not behind.short


def _joined(
    text: str, head: _Phrase | None, tail: _Phrase | None, now: datetime, zone: ZoneInfo
) -> tuple[TimedText, Sequence[When]] | None:
    """Join the times at both ends, as in `tomorrow call mum at 9`, with the possible meanings."""
    if head and tail and head.is_whole != tail.is_whole:
        at = f"{text[: head.stop]} {text[tail.start : tail.stop]}"
        meanings = _meanings(at)
        if meanings and meanings[0].is_whole:
            if head.is_whole or head.short:  # `18:30 tell Ben to leave tomorrow`, `so call at 9`
                timed = head if head.is_whole else tail
                alone, both = _with_day(timed.meanings[0], now, zone), meanings[0]
                due = {moment(each, at, now, zone) for each in (alone, both) if not both.recurs}
                if head.short or len(due) != 1:
                    _choose(text, both, alone)
            return TimedText(at, text[head.stop : tail.start].strip(STRIPPED)), meanings
    if head and tail and head.bare and head.is_whole and tail.is_whole:
        one, two = head.meanings[0], tail.meanings[0]
        other = two if tail.names_day else replace(one, clock=two.clock)
        at_now = one.clock or now.astimezone(zone).time().replace(second=0, microsecond=0)
        _choose(text, replace(one, clock=at_now), other)
    if head and (head.is_whole or not head.short):
        return TimedText(text[: head.stop], text[head.stop :].lstrip(STRIPPED)), head.meanings
    if tail:
        if tail.day and not tail.names_day:
            _choose(text, tail.day, _with_day(tail.meanings[0], now, zone))
        rest = text[: tail.start].rstrip(STRIPPED)
        return TimedText(text[tail.start : tail.stop], rest), tail.meanings
    return None


def _with_day(when: When, now: datetime, zone: ZoneInfo) -> When:
    """Add the next day on which a time of day comes."""
    alone = When(clock=when.clock)
    days = moment(alone, "", now, zone).date() - now.astimezone(zone).date()
    return replace(alone, day=days.days)


def moment(when: When, text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the wall clock time of a single due moment, or an instant in UTC."""
    if when.iso is not None:
        return when.iso
    local = now.astimezone(zone).replace(tzinfo=None, fold=0, microsecond=0)
    if when.ahead:
        return _after(when, local, now)
    assert when.clock is not None
    if when.date and when.date[1]:
        return datetime.combine(_on(when, text, local.date()), when.clock)
    if when.day is not None:
        return datetime.combine(local.date() + timedelta(days=when.day), when.clock)
    weeks = (0, 1) if when.week == EITHER else (when.week,)
    found = sorted({_next(replace(when, week=week), local, zone) for week in weeks})
    if len(found) > 1:
        _choose(text, *(When(date=(at.year, at.month, at.day), clock=at.time()) for at in found))
    return found[0]


def _next(when: When, local: datetime, zone: ZoneInfo) -> datetime:
    """Return the next matching day, at its time of day."""
    assert when.clock is not None
    day = local.date()
    if when.week in (1, THIS):
        day += timedelta(days=7 * (when.week == 1) - day.weekday())
    while True:
        at = datetime.combine(day, when.clock)
        fits = not when.days or day.weekday() in when.days
        fits = fits and (when.date is None or day.day == when.date[2])
        if fits and (when.week == THIS or instant(at, zone) > instant(local, zone)):
            return at
        day += timedelta(days=1)


def _on(when: When, text: str, today: date) -> date:
    """Return the next date that exists and is still to come."""
    assert when.date is not None
    year, month, number = when.date
    years = [year] if year else range(today.year, today.year + 9)
    real = (date(each, month or 1, number) for each in years if _is_day(each, month, number))
    day = next(each for each in real if year or each >= today)
    if when.days and day.weekday() not in when.days:
        raise ToolFailed(
            f"'{excerpt(text)}': {day} is a {NAMES[day.weekday()]}. Write one of them."
        )
    return day


def _after(when: When, local: datetime, now: datetime) -> datetime:
    """Add to now: minutes and hours as elapsed time; days and longer units keep the time of day or name one."""
    ahead = when.ahead
    spans: dict[str, Any] = {f"{unit}s": sum(n for u, n in ahead if u == unit) for unit, _ in ahead}
    start = now.astimezone(UTC).replace(microsecond=0) if "e" in when.parts() else local
    try:
        at = start + relativedelta(**spans)
    except (OverflowError, ValueError):
        return start + 2 * FURTHEST  # beyond the calendar, so refused like any far date
    return datetime.combine(at, when.clock) if when.clock else at


def spoken(at: str) -> tuple[str, bool]:
    """Return how often a time comes, as in `once` or `every Friday`, and if it names its own zone."""
    when = _meanings(at)[0]
    zoned = when.iso is not None and when.iso.tzinfo is not None
    return replace(when, clock=None).words() if when.recurs else "once", zoned


def plan_parts(text: str) -> dict[str, Any]:
    """Return the parts of a `PlanRequest` that a time asks for; a single time stays as text."""
    meanings = _meanings(text)
    when = _one(meanings, text) if meanings else When()
    return when.request_parts() if when.recurs else {"at": text}


def wall_time(text: str, now: datetime, zone: ZoneInfo) -> str:
    """Return the `at` of a schedule `once` (T-017): a wall clock time, or an instant in UTC if it has an offset."""
    meanings = _meanings(text)
    if not meanings:
        why = why_unreadable(text) or f"at '{excerpt(text)}' cannot be read."
        raise ToolFailed(f"{why} Write for example {EXAMPLES}.")
    when = _one(meanings, text)
    if when.recurs:
        named = excerpt(text)
        raise ToolFailed(f"at '{named}' comes again. Name one time or leave out schedule_type.")
    at = moment(when, text, now, zone)
    # Years first: at the ends of the calendar there are no time zones.
    past, far = at.year < now.year - 1, at.year > now.year + 101
    if not past and not far:
        due = at if at.tzinfo else instant(at, zone)
        past, far = due <= now, due > now + FURTHEST
    if past:
        local = f"{now.astimezone(zone):%a %Y-%m-%d %H:%M} {zone.key}"
        raise ToolFailed(f"at '{excerpt(text)}': that time has passed, it is {local} now")
    if far:
        raise ToolFailed(f"at '{excerpt(text)}' is more than a hundred years ahead")
    return at.isoformat()


def time_of_day(name: str, text: str) -> str:
    """Read `9:00`, `9am` or `09:00:30` and return it as stored."""
    meanings = _meanings(text)
    found = meanings[0].clock if len(meanings) == 1 else None
    if found is None or meanings[0] != When(clock=found):
        raise ToolFailed(
            f"{name} '{excerpt(text)}' is no time of day; write for example 09:00 or 18:30"
            + ("; a date goes with schedule_type once" if name == "at" else "")
        )
    return found.isoformat()


def weekdays(text: str) -> tuple[int, ...]:
    """Read names of days or their short forms, in any case, separated by commas (T-021)."""
    names = [folded(word).strip() for word in text.split(",")]
    if strange := [name for name in names if name not in grammar.DAYS]:
        day = excerpt(strange[0])
        raise ToolFailed(f"day_of_week '{day}' is no day; write for example mon,thu")
    return tuple(sorted({grammar.DAYS[name] for name in names}))
