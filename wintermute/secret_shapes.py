"""Secrets in a text: keys, tokens, cards and passwords, known by their shape or by what they are called. Pure.

Text that is derived from talk stands in prompts, plain files and exports, and goes to whatever model
answers. Each store that keeps such text asks here: facts are refused, elsewhere `[secret]` stands
for the secret (M-083). `secret_words.toml` has the words of each language.
"""
# ruff: noqa: RUF001  marks of scripts that look like others

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

from wintermute.errors import ToolFailed

HIDDEN = "[secret]"
REFUSED = (
    "not stored: it looks like it holds {kind}, and memories are read by models and stand in plain"
    " files. Keep it in a password manager; what may be remembered is where it is kept"
)
PRIVATE_KEY, TOKEN, CARD = "a private key", "a key or a token", "the number of a card"
RECOVERY, SEED, PASSWORD = "a recovery key", "a seed phrase", "a password"
BASE58 = "[1-9A-HJ-NP-Za-km-z]"
SHAPES = (
    (
        PRIVATE_KEY,
        r"(?:-----)?BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?:(?s:.*?)END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY"
        r"(?: BLOCK)?-*|(?s:.*)\Z)|AGE-SECRET-KEY-1[A-Z0-9]{20,}",
    ),
    (  # as Matrix, BitLocker, and whoever prints groups of capitals and digits give them out
        RECOVERY,
        rf"\bEs{BASE58}{{2}}(?:[ -]?{BASE58}{{4}}){{10,11}}\b|(?<![\d-])\d{{6}}(?:-\d{{6}}){{7}}(?![\d-])"
        r"|(?<![\w-])(?=[A-Z-]*\d)(?=[\d-]*[A-Z])(?:[A-Z0-9]{2}-)?[A-Z0-9]{4,6}(?:-[A-Z0-9]{4,6}){4,}(?![\w-])",
    ),
    (  # as those who give out keys begin them
        TOKEN,
        r"(?<![A-Za-z0-9])(?:"
        r"(?:sk|rk|pk)[-_](?=[\w-]*\d)[\w-]{16,}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
        r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abeoprs]-[\w-]{10,}|hf_[A-Za-z0-9]{20,}"
        r"|npm_[A-Za-z0-9]{30,}|syt_\w{10,}|\d{8,10}:AA[\w-]{30,}"
        r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
    ),
)
CARD_NUMBER = re.compile(
    r"(?<![\w.+-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6\d{3}|35\d\d)(?:([ -]?)\d{4})(?:\1\d{4}){2}"
    r"|3[47]\d\d([ -]?)\d{6}\2\d{5}|3[068]\d{2}([ -]?)\d{6}\3\d{4})(?![\w-]|\.\d)"
)
IN_ADDRESS = re.compile(r"://[^\s/:@]+:([^\s/@]+)@")
PAGE = re.compile(r"(?:https?://|www\.)\S+|(?<![\w.-])[\w-]++(?:\.[\w-]++)+/\S*")
# Ids of rooms, people and events begin with such a sign.
RUN = re.compile(r"(?<![A-Za-z0-9+/=$!@#%])[A-Za-z0-9+/=]{20,}")
DIGEST = re.compile(r"(?:sha-?\d+|md5|commit|revision|checksum|hash)\W{1,3}$", re.IGNORECASE)
IBAN = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")
UNEVEN = 0.25
"""From how many changes of the kind of sign on, by sign, a run of them is nothing that people write."""
PIECE = 12
"""Letters between two slashes that a path, or a position of chess, hardly has."""

UNSPACED = ("hi", "ja", "ko", "zh")
"""Languages in which a word may go on where the next begins."""
AROUND = r"[\"'`*_|»”’\])]{0,3}"
MARK = rf"{AROUND}\s*+(?:[:：=]|->)\s*+{AROUND}\s*+"
SENTENCE = re.compile(r"[.!?;,](?=\s|$)|[。！？；，、]")
QUOTED = re.compile(r"[\"'“«„`「『](?P<inside>[^\"'”»“`」』\n]{3,60})[\"'”»“`」』]")
TOKEN_ENDS = re.compile(r"[.?;,](?=\s|$)|[。？；，、]|(?<=[!-~])[\u3000-\u9fff\uac00-\ud7af]|\s")
WORDLIKE = re.compile(r"\D*\d?\D*")
YEAR = re.compile(rf"(?:19|20)\d\d|{WORDLIKE.pattern}")
"""What follows a code or a key and is neither: "key B2", "code 2024"."""
WORD_ONLY = re.compile(r"[^\W\d_]{3,}(?:['’-][^\W\d_]+)*")
WIDE = re.compile("[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af]")
MOST_WIDE = 6
"""Signs of a script without blanks; more of them are a sentence about a password."""
OWN = re.compile(
    r"(?:\b(?:my|our|his|her|their|mein|unser|ihr|sein|mon|notre|mi|nuestra|tu|la mia|il mio|mia|minha|meu"
    r"|mijn|ons|onze)\W+(?:[\w-]+\W+)?|^)$",
    re.IGNORECASE,
)
# Numbers that are counted, dated or measured, amounts, names of variables, calls, and what is left open.
NO_VALUE = re.compile(
    r"v?\d+(?:[.,:/]\d+)+%?|\d{4}-\d\d-\d\d.*|\d{1,3}-?[^\W\d_]{1,3}|\d+(?:-[^\W\d_]+|[mk]?[mbwlg]|[ap]m|px|hz|st|nd|rd|th)|[+€$£]\d.*|.*[€%°]"
    r"|\d+-?stellig\w*|[@#!].*|\S+@\S+\.\S+|[A-Za-z_]\w*\(.*|\w+(?:\.[A-Za-z_]\w*)+(?:\(.*)?"
    r"|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|\$\{?\w+\}?|[\[<{(%].*|(.)\1*|.*://.*|[/~.].*|\w+\[.*"
)
SEED_WORDS = re.compile(
    r"(?:[\W_]*+\w+){0,3}?[\W\d_]*(?P<words>\b[a-zà-ÿ]{3,8}\b(?:[\W\d_]+[a-zà-ÿ]{3,8}\b){11,})"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """The table, as patterns. `near`, `linked`, `far`: what may stand between a name and its value."""

    password: re.Pattern[str]
    code: re.Pattern[str]
    seed: re.Pattern[str]
    near: re.Pattern[str]
    linked: re.Pattern[str]
    far: re.Pattern[str]
    no_code: re.Pattern[str]
    about: frozenset[str]


@cache
def _words() -> _Words:
    text = (resources.files("wintermute") / "secret_words.toml").read_text("utf-8")
    found = tomllib.loads(text)
    other = found.pop("other")

    def either(name: str, *, spaced: bool) -> str:
        return "|".join(row[name] for at, row in found.items() if spaced is (at not in UNSPACED))

    def named(name: str) -> re.Pattern[str]:
        spaced, joined = either(name, spaced=True), either(name, spaced=False)
        return _found(rf"(?<![^\W_])(?:{spaced})(?:['’]\w{{1,4}})?(?![^\W_])|(?:{joined})(?![A-Za-z])")

    verb = rf"(?P<is>\s++(?:{either('is', spaced=True)}|[—–-])\s++|\s*+(?:{either('is', spaced=False)})\s*+)"
    then, link = rf"(?:(?P<mark>{MARK})|{verb})(?=\S)", rf"(?:\s+|(?<=['’]))(?:{other['of']})"
    return _Words(
        password=named("password"),
        code=named("code"),
        seed=_found(rf"(?<![^\W_])(?:{other['seed']})"),
        near=_found(rf"{then}|(?P<next>{AROUND}[ \t]++|(?<=[^\x00-\x7f]))(?=\S)"),
        linked=_found(rf"{link}(?<!\s)(?:\s*+[^\s:：=]+){{1,4}}?{then}"),
        far=_found(rf"(?:\s++[^\s:：=.!?;,]+){{1,7}}?{then}"),
        no_code=_found(rf"(?:{other['no_code']})\W*$"),
        about=frozenset(
            f"{other['names']} {' '.join(row['about'] for row in found.values())}".split()
        ),
    )


def _found(pattern: str) -> re.Pattern[str]:
    # A PIN in capitals is a number; a pin may be anything.
    return re.compile(pattern.replace("PIN", "(?-i:PIN)"), re.IGNORECASE)


def secret_kind(text: str) -> str | None:
    """What kind of secret a text gives away, in words; None: nothing that looks like one."""
    return next((kind for _, _, kind in _spans(text)), None)


def refuse_secret(text: str) -> None:
    """Let nothing pass that gives a secret away. Raises: ToolFailed, with what to do instead."""
    if kind := secret_kind(text):
        raise ToolFailed(REFUSED.format(kind=kind))


def without_secrets(text: str, theirs: str = "") -> str:
    """The text with `[secret]` in the place of each secret, but for those that stand in `theirs`.

    `theirs`: what was there before, in which a person may have written one by hand.
    """
    done, at = list[str](), 0
    for start, end, _ in sorted(_spans(text)):
        if start >= at and text[start:end] not in theirs:
            done += [text[at:start], HIDDEN]
            at = end
    return "".join([*done, text[at:]])


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """From where to where each secret goes, and its kind; the surest first."""
    for kind, shape in SHAPES:
        yield from ((*found.span(), kind) for found in re.finditer(shape, text))
    bare = PAGE.sub(lambda page: " " * len(page[0]), text)
    for found in RUN.finditer(bare):
        if _is_token(found[0]) and not DIGEST.search(bare[max(0, found.start() - 12) : found.start()]):
            yield *found.span(), TOKEN
    for found in CARD_NUMBER.finditer(bare):
        if _is_card(re.sub(r"\D", "", found[0])):
            yield *found.span(), CARD
    words = _words()
    for found in IN_ADDRESS.finditer(text):
        if not words.password.fullmatch(found[1]) and not NO_VALUE.fullmatch(found[1]):
            yield *found.span(1), PASSWORD
    for name in words.seed.finditer(text):
        if phrase := SEED_WORDS.match(text, name.end()):
            yield *phrase.span("words"), SEED
    yield from ((*span, PASSWORD) for span in _passwords(text, words))


def _is_token(run: str) -> bool:
    """Whether letters and digits follow each other as nobody would write them."""
    run = run.strip("=/+")
    if len(run) < 20 or not re.search("[A-Za-z]", run) or not re.search(r"\d", run):
        return False
    if max(map(len, re.split("[/=+]", run))) < PIECE or (IBAN.fullmatch(run) and _checks(run)):
        return False
    kinds = ["A" if mark.isupper() else "a" if mark.islower() else "0" for mark in run]
    changes = sum(
        one != next_one and (one, next_one) != ("A", "a")  # a capital begins a word
        for one, next_one in pairwise(kinds)
    )
    return changes >= UNEVEN * (len(run) - 1)


def _checks(iban: str) -> bool:
    return int("".join(str(int(mark, 36)) for mark in iban[4:] + iban[:4])) % 97 == 1


def _is_card(number: str) -> bool:
    """Whether its last digit proves the others (Luhn)."""
    doubled = (int(mark) * (1 + n % 2) for n, mark in enumerate(reversed(number)))
    return len({*number}) > 1 and sum(each // 10 + each % 10 for each in doubled) % 10 == 0


def _passwords(text: str, words: _Words) -> Iterator[tuple[int, int]]:
    """Each value that is called a password, a PIN, a code or a key."""
    for name in words.password.finditer(text):
        for gap, pattern in enumerate((words.near, words.linked, words.far)):
            if (then := pattern.match(text, name.end())) and (
                span := _value(text, then, words, weak=gap < 2 and _may_be_word(text, name, then, gap))
            ):
                yield span
                break
    for name in words.code.finditer(text):
        if words.no_code.search(text[max(0, name.start() - 24) : name.start()]):
            continue
        for pattern in (words.near, words.linked):
            if (then := pattern.match(text, name.end())) and (span := _value(text, then, words)):
                bare = then.lastgroup == "next"
                if not (YEAR if bare else WORDLIKE).fullmatch(text[slice(*span)]):
                    yield span
                break


def _may_be_word(text: str, name: re.Match[str], then: re.Match[str], gap: int) -> bool:
    """Whether a word that follows is meant as the password: "my password is swordfish"."""
    if then["mark"]:
        return True
    is_told = then["is"] and then["is"].strip().lower() in {"lautet", "luidt", "brzmi", "zní"}
    return bool(then["is"] and (gap or is_told or OWN.search(text[: name.start()])))


def _value(
    text: str, then: re.Match[str], words: _Words, *, weak: bool = False
) -> tuple[int, int] | None:
    """Where the value is, if what follows is one. `weak`: a single word may be one."""
    at = then.end()
    if weak and (found := QUOTED.match(text, at)):
        told = found["inside"].lower() in words.about or NO_VALUE.fullmatch(found["inside"])
        return None if told else found.span("inside")
    at += len(text[at:]) - len(text[at:].lstrip("\"'“«„`「『*_|"))
    line = text[at : at + 200].split("\n", 1)[0]
    token = TOKEN_ENDS.split(line, maxsplit=1)[0].rstrip("\"'`*_|)»”’」』.,:;?")
    if _is_no_word(token, words):
        return at, at + len(token)
    said = SENTENCE.split(line, maxsplit=1)[0].strip(" \"'`*_|)»”’」』")
    wide = WIDE.search(said) is not None
    if weak and said.lower() not in words.about and WORD_ONLY.fullmatch(said):
        return (at, at + len(said)) if not wide or (then["mark"] and len(said) <= MOST_WIDE) else None
    return None


def _is_no_word(token: str, words: _Words) -> bool:
    if len(token) < 4 or token.lower() in words.about or NO_VALUE.fullmatch(token):
        return False
    return any(map(str.isdigit, token)) or len(re.findall(r"[!@#$%^&*+=]", token[:-1])) > 1
