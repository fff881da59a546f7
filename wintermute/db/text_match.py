"""Matching of texts in whatever form they were written (F-034).

A text is compared by its bare form: JSON escapes and entities decoded, Unicode in one normal form and one case,
without blanks, invisible characters, Markdown and HTML. The content of a tag or a link may be markup or words, and
so may the number before a line; a text is matched in each of these views.
"""

import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import Any

ERASED = "[erased]"
"""Replacement for matches where the rest of a text stays."""
LEAST = 8
"""Characters of a bare form from which it is searched inside other texts."""

ESCAPE = re.compile(
    # JSON in JSON doubles the backslashes, as often as it likes.
    r"\\+u(?P<high>d[89ab][0-9a-f]{2})\\+u(?P<low>d[c-f][0-9a-f]{2})"
    r"|\\+u(?P<code>[0-9a-f]{4})|\\+(?P<blank>[bfnrt])|\\+",
    re.IGNORECASE,
)
ENTITY = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});", re.IGNORECASE)
TAG_OR_TARGET = re.compile(
    r"</?[a-z][a-z0-9-]*(?:\s[^<>]*)?/?>|<!--[^<>]*-->|\]\([^()\s]*(?:\s+\"[^\"\n]*\")?\)",
    re.IGNORECASE,
)
NUMBER = re.compile(r"^[ \t>*+-]*[0-9]{1,9}[.)][ \t]", re.MULTILINE)
MARK = re.compile(r"[*_`~#<>\[\]\u2022]")
CELL = re.compile(r"\|")
LONE = re.compile(r"(?<!\S)[-+=:]+(?!\S)")  # of a list, a rule or a table
UNSEEN = re.compile(
    "[\x00-\x20\x7f-\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u1680\u17b4\u17b5"
    "\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
WORD = re.compile(r"[a-z0-9]{2,}")
WORDS = re.compile(r"[^\W_]+")
# Forms in which an ASCII letter or digit of a word may be hidden. The patterns are supersets, for
# UTF-8 in lower case; each begins with one character, so that most of a text is skipped quickly.
# First characters of HTML, tags, and targets of links.
ENTITIES = re.compile(
    rb"&(?:amp;)*(?!(?:amp|lt|gt|quot|apos|nbsp|#39|#34|#x27);)#?[a-z0-9]+;", re.I
)
TAGS = re.compile(rb"<(?<=[a-z0-9*_`~\]\x80-\xff]<)[^<>]*>(?=[a-z0-9*_`~\[<&\\\x80-\xff])", re.I)
TARGETS = re.compile(rb"\]\([^()\s]*\)(?=[a-z0-9*_`~\[<&\\\x80-\xff])", re.I)
# In Markdown and JSON.
ESCAPED = re.compile(
    rb"""\\(?: [^\\bfnrtu"/*_`~\[\]] | u(?: (?![0-9a-f]{4}) |
      0(?: 0[0-9] | 0a[ad] | 0b[239abcde] | 1[34cf] | 17f | 2[be] | 34f | 6[01d] | 70f )
    | 1(?: 1[56] | 7b | 8[01] | d | e9a )
    | 2(?: 0[67-9] | 0a8 | 00[b-f] | 02[a-e] | 1[0-8] | 4 | c7 )
    | 3(?: 1[69] | 2 | 3 ) | a[67b] | d(?: 801 | 835 | 83c | 83e\\+udf | b4 ) | f[bef] ))""",
    re.VERBOSE | re.IGNORECASE,
)
# JSON in JSON, or a surrogate pair, may also hide other scripts.
ANY_ESCAPED = re.compile(
    rb"\\\\u[0-9a-f]{4} | \\ud8(?!3[cde]) |" + ESCAPED.pattern, re.VERBOSE | re.IGNORECASE
)
# In Unicode; blanks too, where NFKC does not make them usual ones.
UNUSUAL = re.compile(
    rb"""\xc2[\x80-\x9f\xaa\xad\xb2\xb3\xb9\xba\xbc-\xbe] | \xc4[\xb2\xb3\xbf]
    | \xc5[\x80\x89\xbf] | \xc7[\x84-\x8c\xb1-\xb3] | \xca[\xb0-\xb8] | \xcb[\xa0-\xa4]
    | \xcd\x8f | \xd8[\x80-\x85\x9c] | \xdb\x9d | \xdc\x8f | \xe1[\x85\x9a\x9e\xa0\xb4-\xb6\xba]
    | \xe2(?: \x80[\x8b-\x8f\xa8-\xae] | \x81[\xa0-\xbf] | \x82[\x80-\x9c\xa8] | [\x84-\x86\x91-\x93\xb1] )
    | \xe3[\x85\x86\x88-\x8f] | \xea[\x9c-\x9f\xac\xad] | \xef(?: [\xac\xb8\xbb\xbe] | \xbc[\x90-\x99\xa1-\xba] | \xbd[\x81-\x9a] | \xbf[\xa0\xb0-\xbb] )
    | \xf0(?: \x9d[\x90-\x9f] | \x9f(?: [\x84-\x86] | \xaf ) | \x90\x9e ) | \xf3\xa0""",
    re.VERBOSE,
)
# All of Unicode except syllables, ideographs and private characters, which are only ever
# themselves.
SCRIPTS = (
    *(range(0x80, 0x3400), range(0x4DC0, 0x4E00), range(0xA4D0, 0xAC00), range(0xF900, 0x17000)),
    *(range(0x18D00, 0x20000), range(0x2F800, 0x2FA20)),
)
LOWER = bytes(range(256)).lower()
REST = bytes(code for code in range(256) if not (code < 128 and chr(code).isalnum()))
ASCII = bytes(range(128))
MARKS = bytes(code for code in REST if code < 128)
NO_BLANKS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts without blanks between words: from Thai and Khmer to kana and Han."""
RUN = re.compile(f"[{NO_BLANKS}]+|[^\\s{NO_BLANKS}]+")
UNBROKEN = re.compile(f"[{NO_BLANKS}]")
OWNERS_S = re.compile(r"(?<=\w)['\u2019]s\b")
# Names of fields in our JSON, which nobody has said.
KEYS = re.compile(r'\\*"(?:name|id)\\*"\s*:\s*\\*"[\w-]*\\*"|\\*"\w+\\*"\s*:')
HIDES = re.compile(rf"[\\&]|{MARK.pattern}|(?!\s){UNSEEN.pattern}")
BEGINNING = 4
"""Letters from which the beginning of a word is enough; any syllable of Korean, which has endings."""
LEAST_RUN = 3
"""ASCII letters in a row that are enough to search for a word of another script."""
ONE_BY_ONE = 12
"""Number of texts that are checked one by one if one of them may hide letters."""
EDGE = b"\x00"
"""Separator between texts that are checked together."""
BULLET = "\u2022".encode()

Instead = str | Callable[[re.Match[str]], str]
Rewrite = tuple[re.Pattern[str], Instead]
Span = tuple[int, int]

BARE: tuple[Rewrite, ...] = ((CELL, " "), (MARK, ""), (LONE, ""), (UNSEEN, ""))


def _unescaped(found: re.Match[str]) -> str:
    if found["high"]:
        pair = bytes.fromhex(found["high"] + found["low"])
        return pair.decode("utf-16-be")
    if found["code"]:
        return chr(int(found["code"], 16))
    return "\n" if found["blank"] else ""


def _character(found: re.Match[str]) -> str:
    return html.unescape(f"&{found[1]};")


READ: tuple[Rewrite, ...] = ((ESCAPE, _unescaped), (ENTITY, _character))


@dataclass(frozen=True, slots=True)
class View:
    """A reading of a text: tags and targets of links as markup, numbers before lines as markup."""

    tags: bool
    numbers: bool

    def rewrites(self) -> tuple[Rewrite, ...]:
        """Return the rewrites that make the bare form, apart from Unicode normalisation."""
        tags = ((TAG_OR_TARGET, " "),) if self.tags else ()
        numbers = ((NUMBER, " "),) if self.numbers else ()
        return (*READ, *tags, *numbers, *BARE)


VIEWS = tuple(View(*taken) for taken in product((False, True), repeat=2))
WRITTEN = View(tags=False, numbers=False)


def bare(text: str, view: View = WRITTEN) -> str:
    """Return the bare form of a text."""
    for pattern, new in view.rewrites():
        text = pattern.sub(new, text)
    return _normal(text)


def _normal(text: str) -> str:
    return UNSEEN.sub("", _caseless(text))


def _caseless(text: str) -> str:
    """Return the text decomposed and casefolded: an accented letter begins with the plain one."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold())


@dataclass(frozen=True, slots=True)
class _SpannedText:
    """A text with the original span of each of its characters."""

    text: str
    at: list[Span]

    def rewritten(self, pattern: re.Pattern[str], new: Instead) -> "_SpannedText":
        parts, at, done = [], [], 0
        for found in pattern.finditer(self.text):
            start, end = found.span()
            instead = new if isinstance(new, str) else new(found)
            parts += [self.text[done:start], instead]
            at += self.at[done:start]
            at += [(self.at[start][0], self.at[end - 1][1])] * len(instead)
            done = end
        return _SpannedText("".join([*parts, self.text[done:]]), at + self.at[done:])

    def normal(self) -> "_SpannedText":
        """Normalise as `_normal` does, each letter together with its accents."""
        parts, at = [], []
        for start, end in _letters(self.text):
            part = _normal(self.text[start:end])
            parts.append(part)
            at += [(self.at[start][0], self.at[end - 1][1])] * len(part)
        return _SpannedText("".join(parts), at)


def _letters(text: str) -> Iterator[Span]:
    start = 0
    for n, mark in enumerate(text):
        if n > start and not _goes_on(unicodedata.normalize("NFD", mark)[0]):
            yield start, n
            start = n
    if text:
        yield start, len(text)


def _goes_on(mark: str) -> bool:
    """Check whether a character belongs to the letter before it: an accent, or part of a Korean syllable."""
    return unicodedata.combining(mark) > 0 or "\u1160" <= mark <= "\u11ff"


class TextMatcher:
    """A matcher for some texts.

    A text whose bare form is shorter than `LEAST` only matches a whole line; one without letters and digits never
    matches.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        named = [text for text in texts if any(map(str.isalnum, text))]
        long = [text for text in named if len(bare(text)) >= LEAST]
        self._lines = [_line_pattern(text) for text in named if text not in long]
        plain = [text for text in long if _words(text)]
        foreign = [text for text in long if text not in plain]
        self._prefilters = [
            prefilter
            for prefilter in (_PlainPrefilter(plain), _ForeignPrefilter(foreign))
            if prefilter.words
        ]
        self._forms = {
            tags: [form for text in long if len(form := bare(text, View(tags, False))) >= LEAST]
            for tags in (False, True)
        }

    def said_in(self, column: bytes) -> bool:
        """Check whether a text in UTF-8 contains one of them."""
        return bool(self.among([column]))

    def among(self, columns: Sequence[bytes]) -> list[int]:
        """Return the indices of texts in UTF-8 that contain one of them; most texts are rejected together."""
        near = {n for prefilter in self._prefilters for n in prefilter.near(columns)}
        return [
            n
            for n in (range(len(columns)) if self._lines else sorted(near))
            if self._contains(columns[n].decode("utf-8", "replace"), near=n in near)
        ]

    def is_in(self, text: str) -> bool:
        """Check whether a text contains one of them."""
        return self._has_line(text) or any(True for _ in self._found(text, bare))

    def spans(self, text: str) -> list[Span]:
        """Return the spans of the matches in a text, in order, without overlaps."""
        spans = [found.span("words") for line in self._lines for found in line.finditer(text)]
        at: dict[str, list[Span]] = {}

        def form(text: str, view: View) -> str:
            placed = _SpannedText(text, [(n, n + 1) for n in range(len(text))])
            for pattern, new in view.rewrites():
                placed = placed.rewritten(pattern, new)
            placed = placed.normal()
            at[placed.text] = placed.at
            return placed.text

        for where, start, end in self._found(text, form):
            spans.append((at[where][start][0], at[where][end - 1][1]))
        return _without_overlaps(spans)

    def cut(self, text: str, instead: str) -> str:
        """Return the text with each match replaced."""
        for start, end in reversed(self.spans(text)):
            text = text[:start] + instead + text[end:]
        return text

    def cut_all(self, value: Any, instead: str) -> Any:
        """Replace the matches in every text of a JSON value."""
        if isinstance(value, str):
            return self.cut(value, instead)
        if isinstance(value, list):
            return [self.cut_all(one, instead) for one in value]
        if isinstance(value, dict):
            return {name: self.cut_all(one, instead) for name, one in value.items()}
        return value

    def _found(self, text: str, form: Callable[[str, View], str]) -> Iterator[tuple[str, int, int]]:
        seen: set[tuple[str, bool]] = set()
        for view in VIEWS:
            where = form(text, view)
            if (where, view.tags) in seen:
                continue
            seen.add((where, view.tags))
            for wanted in self._forms[view.tags]:
                for start in _all_starts(where, wanted):
                    end = start + len(wanted)
                    if end == len(where) or not _goes_on(where[end]):
                        yield where, start, end

    def _contains(self, text: str, *, near: bool) -> bool:
        return self._has_line(text) or (near and self.is_in(text))

    def _has_line(self, text: str) -> bool:
        return any(line.search(text) for line in self._lines)


class _PlainPrefilter:
    """A prefilter for words of ASCII letters. It may pass too many texts, but never rejects a match."""

    escaped = ESCAPED

    def __init__(self, texts: Sequence[str]) -> None:
        known = [self.words_of(text) for text in texts]
        self.words = [(max(words, key=len, default=b""), words) for words in known]

    def near(self, columns: Sequence[bytes]) -> list[int]:
        """Return the indices of texts that need a closer check."""
        whole = EDGE.join(columns)
        if _hides_letters(whole, self.escaped):
            if len(columns) <= ONE_BY_ONE:
                return [n for n, column in enumerate(columns) if self._may_be_in(column)]
            middle = len(columns) // 2
            rest = self.near(columns[middle:])
            return [*self.near(columns[:middle]), *(middle + n for n in rest)]
        letters = self.letters(whole, kept=EDGE)
        somewhere = [(longest, words) for longest, words in self.words if longest in letters]
        if not somewhere:
            return []
        rows = letters.split(EDGE)
        if len(rows) != len(columns):
            return [n for n, column in enumerate(columns) if self._may_be_in(column)]
        return [
            n
            for longest, words in somewhere
            for n, row in enumerate(rows)
            if longest in row and _in_order(words, row)
        ]

    def words_of(self, text: str) -> list[bytes]:
        """Return the words that every match has, in order, each in the form of `letters`."""
        return _words(text)

    def letters(self, text: bytes, kept: bytes = b"") -> bytes:
        """Return a text without characters that may be inside words."""
        return _ascii_letters(text, kept)

    def _may_be_in(self, column: bytes) -> bool:
        if self._has_words(self.letters(column)):
            return True
        if not _hides_letters(column, self.escaped):
            return False
        text = ENTITY.sub(_character, ESCAPE.sub(_unescaped, column.decode("utf-8", "replace")))
        plain = UNSEEN.sub("", unicodedata.normalize("NFKC", text))
        read = UNSEEN.sub("", unicodedata.normalize("NFKC", TAG_OR_TARGET.sub(" ", text)))
        forms = (form.encode("utf-8", "replace") for form in (plain, read))
        return any(self._has_words(self.letters(form)) for form in forms)

    def _has_words(self, letters: bytes) -> bool:
        return any(
            longest in letters and _in_order(words, letters) for longest, words in self.words
        )


class _ForeignPrefilter(_PlainPrefilter):
    """A prefilter for Russian or Chinese: slower, so texts without one of their letters are dropped first."""

    escaped = ANY_ESCAPED

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self._marks = tuple(map(_rare_letter, texts))

    def near(self, columns: Sequence[bytes]) -> list[int]:
        has = _letter_pattern(self._marks).search
        there = [n for n, column in enumerate(columns) if has(column)]
        return [there[n] for n in super().near([columns[n] for n in there])] if there else []

    def words_of(self, text: str) -> list[bytes]:
        return _words_of_any_script(text)

    def letters(self, text: bytes, kept: bytes = b"") -> bytes:
        return _any_letters(text, kept)


class WordMatcher:
    """A matcher for single words in lower case; long ones also match inside other words."""

    def __init__(self, words: Sequence[str]) -> None:
        parts = [re.escape(w) if len(w) >= LEAST else rf"(?<![^\W_]){re.escape(w)}" for w in words]
        self._pattern = re.compile("|".join(parts)) if parts else None
        self._runs = {run.encode() for word in words for run in _runs(word)}

    def among(self, columns: Sequence[bytes]) -> list[int]:
        """Return the indices of texts in UTF-8 that have one of them; most texts are rejected together."""
        if self._pattern is None or not columns:
            return []
        if not self._may_be_in(EDGE.join(columns)):
            return []
        return [n for n, column in enumerate(columns) if self._are_in(column)]

    def _may_be_in(self, text: bytes) -> bool:
        lower = text.translate(LOWER)
        return any(run in lower for run in self._runs)

    def _are_in(self, column: bytes) -> bool:
        if self._pattern is None or not self._may_be_in(column):
            return False
        text = column.decode("utf-8", "replace")
        for pattern, new in READ:
            text = pattern.sub(new, text)
        return self._pattern.search(_composed(text)) is not None


class AllWordsMatcher:
    """A matcher for words that must all be in a text, whole or as beginnings of words (M-084).

    Words in scripts without blanks match inside others, also across line ends.
    """

    def __init__(self, said: str) -> None:
        text = _composed(_seen(OWNERS_S.sub("", said)))
        parts = RUN.findall("".join(mark if _is_part(mark) else " " for mark in text))
        self.words = sorted({part for part in parts if any(map(str.isalnum, part))})
        self._prefilters = [
            (_PlainPrefilter if _words(w) else _ForeignPrefilter)([w]) for w in self.words
        ]

    def among(self, columns: Sequence[bytes]) -> list[int]:
        """Return the indices of texts in UTF-8 that have all of them; most texts are rejected together."""
        near = list(range(len(columns))) if self.words else []
        for prefilter in self._prefilters:
            near = [near[n] for n in prefilter.near([columns[n] for n in near])] if near else []
        return [n for n in near if self.are_in(columns[n].decode("utf-8", "replace"))]

    def are_in(self, text: str) -> bool:
        """Check whether a text has all of them, with any markup or escapes (F-034)."""
        missing = self.words
        for form in _word_forms(KEYS.sub(" ", text)):
            missing = [word for word in missing if not _has_word(form, word)]
            if not missing:
                return bool(self.words)
        return False


def _word_forms(text: str) -> Iterator[str]:
    yield _composed(text)
    if not HIDES.search(text):
        return
    for pattern, new in READ:
        text = pattern.sub(new, text)
    yield _composed(TAG_OR_TARGET.sub(" ", text))
    yield _composed(_seen(MARK.sub("", TAG_OR_TARGET.sub("", text))))


def _seen(text: str) -> str:
    return UNSEEN.sub(lambda found: " " if found[0].isspace() else "", text)


def _is_part(mark: str) -> bool:
    """Check whether a character is part of a word: a letter, a digit, or a mark above or below one."""
    return mark.isalnum() or unicodedata.category(mark)[0] == "M"


def _has_word(text: str, word: str) -> bool:
    if UNBROKEN.match(word):
        return word in "".join(text.split())
    least = 1 if "\uac00" <= word[0] <= "\ud7a3" else BEGINNING
    may_go_on = len(word) >= least and not any(map(str.isdigit, word))
    return any(
        not _joins(text[start - 1 : start]) and (may_go_on or not _joins(text[end : end + 1]))
        for start in _all_starts(text, word)
        for end in [start + len(word)]
    )


def _joins(mark: str) -> bool:
    return bool(mark) and _is_part(mark) and not UNBROKEN.match(mark)


def _runs(word: str) -> list[str]:
    """Return byte strings of which a text that has the word contains at least one."""
    plain = max(re.findall(r"[a-z0-9]+", word), key=len, default="")
    if len(plain) >= LEAST_RUN or plain == word:
        return [plain]
    ways = (word, word.capitalize(), word.upper())
    return [way for each in ways for way in (each, json.dumps(each)[1:-1].lower())]


def _hides_letters(text: bytes, escaped: re.Pattern[bytes]) -> bool:
    """Check whether a text may hide letters, or separate some, in a form that its bytes do not show."""
    return (
        (b"\\" in text and escaped.search(text) is not None)
        or (b"<" in text and TAGS.search(text) is not None)
        or (b"&" in text and ENTITIES.search(text) is not None)
        or (b"](" in text and TARGETS.search(text) is not None)
        or (not text.isascii() and UNUSUAL.search(text.translate(None, ASCII)) is not None)
    )


def _words(text: str) -> list[bytes]:
    """Return the runs of ASCII letters that look the same in every form, in order."""
    for pattern, new in (*READ, (TAG_OR_TARGET, " ")):
        text = pattern.sub(new, text)
    text = _caseless(text)
    parts = (text[start:end] for start, end in _letters(text))
    plain = "".join(part if len(part) == 1 else " " for part in parts)
    # "ss" may be written ß.
    return [word.encode() for word in WORD.findall(plain.replace("ss", " "))]


def _words_of_any_script(text: str) -> list[bytes]:
    for pattern, new in (*READ, (TAG_OR_TARGET, " ")):
        text = pattern.sub(new, text)
    return [word.encode("utf-8", "replace") for word in WORDS.findall(_composed(text))]


def _rare_letter(text: str) -> str:
    """Return a letter that all bare forms of a text have in one of its forms, or "" if none is suitable."""
    shared = set(bare(text)) & set(bare(text, View(tags=True, numbers=False)))
    letters = (
        x for x in shared if not x.isascii() and x.isalnum() and not "\u1100" <= x <= "\u11ff"
    )
    return max(letters, default="")  # no part of a Korean syllable: there are ten thousand


@lru_cache(maxsize=8)
def _letter_pattern(marks: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return a pattern that matches texts that may have one of these letters, in any form."""
    if not all(marks):
        return re.compile(b"")
    codes = [code for mark in sorted(set(marks)) for code in _variants(mark)]
    plain = b"|".join(re.escape(chr(code).encode()) for code in codes)
    escaped = b"|".join(b"%04x" % code for code in codes if code < 0x10000)
    pair = rb"d8(?!3[cde])"  # of surrogates, but for emojis
    return re.compile(rb"%b|\\u(?i:%b|%b)|(?i:%b)" % (plain, escaped, pair, ENTITIES.pattern))


@lru_cache(maxsize=32)
def _variants(letter: str) -> list[int]:
    """Return the characters whose bare form may have this letter; blocks without any are skipped."""
    return [
        code
        for code in (ord(letter), *chain(*SCRIPTS))
        if letter in _caseless(chr(code))
        or letter in unicodedata.normalize("NFKD", _composed(chr(code)))
    ]


def _ascii_letters(text: bytes, kept: bytes = b"") -> bytes:
    return text.translate(LOWER, REST.replace(kept, b""))


def _any_letters(text: bytes, kept: bytes = b"") -> bytes:
    whole = text.decode("utf-8", "replace")
    if b"\\u" in text:  # as `json.dumps` writes it
        whole = whole.encode("raw_unicode_escape").decode("raw_unicode_escape", "replace")
    return (
        _composed(whole)
        .encode("utf-8", "replace")
        .translate(None, MARKS.replace(kept, b""))
        .replace(BULLET, b"")
    )


def _composed(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _in_order(words: Sequence[bytes], letters: bytes) -> bool:
    place = 0
    for word in words:
        place = letters.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True


def _line_pattern(text: str) -> re.Pattern[str]:
    words = map(re.escape, re.findall(r"[^\W_]+", text))
    mark = r"(?:[^\w\n]|_)"
    inner = f"{mark}{{1,20}}".join(words)
    return re.compile(rf"^{mark}{{0,20}}(?P<words>{inner}){mark}{{0,20}}$", re.M | re.I)


def _all_starts(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _without_overlaps(spans: Iterable[Span]) -> list[Span]:
    apart: list[Span] = []
    for start, end in sorted(spans):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart
