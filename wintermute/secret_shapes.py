"""Secrets in a text: keys, tokens, cards and passwords, found by their shape or their name. Pure.

Text from conversations gets into prompts, plain files and exports, and is sent to models. Each store
of such text asks here: facts with a secret are refused, elsewhere `[secret]` replaces it (M-083).
`secret_shapes.toml` has the patterns, and the words of each language.
"""

# ruff: noqa: RUF001  marks of scripts that look like others

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

from wintermute.errors import ToolFailed

HIDDEN = "[secret]"
REFUSED = (
    "not stored: it looks like it holds {kind}. Models read memories, which are plain text."
    " Keep it in a password manager; you can remember where it is kept"
)
TOKEN, CARD, SEED = "a key or a token", "the number of a card", "a seed phrase"
PASSWORD = "a password"
UNEVEN = 0.25
"""The share of changes between types of characters from which a run is no human word."""
PIECE = 12
"""The longest run of letters between two slashes in a path or a chess position."""
MOST_WIDE = 6
"""The longest password in a script without blanks, in characters; more are a sentence."""
UNSPACED = ("hi", "ja", "ko", "zh")
"""Languages without blanks between words."""
LINKING_VERBS = frozenset({"lautet", "luidt", "brzmi", "zní"})
"""Verbs between the word "password" and the password."""
OPENING = "\"'“«„`「『*_|"
CLOSING = "\"'`*_|)»”“’」』.,:;?"


@dataclass(frozen=True, slots=True)
class _Table:
    """The patterns of `secret_shapes.toml`. `gaps`: between a name and its value, the nearest
    first; the last is for PINs.
    """

    shapes: Mapping[str, re.Pattern[str]]
    of: Mapping[str, re.Pattern[str]]
    gaps: tuple[re.Pattern[str], ...]
    about: frozenset[str]


@cache
def _table() -> _Table:
    text = (resources.files("wintermute") / "secret_shapes.toml").read_text("utf-8")
    rows = tomllib.loads(text)
    shapes, patterns, called, words = (
        rows.pop(name) for name in ("shape", "pattern", "called", "other")
    )
    about = [words["names"], *(row["about"] for row in rows.values())]
    for name in ("password", "code", "opens", "is"):
        for end, signs in (("", False), ("_signs", True)):
            each = (row[name] for at, row in rows.items() if signs is (at in UNSPACED))
            words[name + end] = "|".join(each)
    of = {name: re.compile("|".join(parts)) for name, parts in patterns.items()}
    for name, pattern in called.items():
        words[name] = re.sub(r"\{([a-z_]+)\}", lambda word: words[word[1]], pattern)
        # A PIN in capitals is a number; a pin may be anything.
        of[name] = re.compile(words[name].replace("PIN", "(?-i:PIN)"), re.IGNORECASE)
    return _Table(
        {kind: re.compile("|".join(parts)) for kind, parts in shapes.items()},
        of,
        tuple(of[gap] for gap in ("near", "by_of", "far", "loose", "digits")),
        frozenset(" ".join(about).split()),
    )


def secret_kind(text: str) -> str | None:
    """Return the kind of the first secret in a text; None if there is none."""
    return next((kind for _, _, kind in _spans(text)), None)


def refuse_secret(text: str) -> None:
    """Raise ToolFailed, with advice, if a text contains a secret."""
    if kind := secret_kind(text):
        raise ToolFailed(REFUSED.format(kind=kind))


def without_secrets(text: str, theirs: str = "") -> str:
    """Replace each secret with `[secret]`, except those that `theirs` has as well.

    `theirs` is the earlier text, in which a person may have written them by hand.
    """
    known = {theirs[start:end] for start, end, _ in _spans(theirs)} if theirs else set()
    done, at = list[str](), 0
    for start, end, _ in sorted(_spans(text)):
        if start >= at and text[start:end] not in known:
            done += [text[at:start], HIDDEN]
            at = end
    return "".join([*done, text[at:]])


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of each secret, the surest first."""
    table = _table()
    of = table.of
    for kind, shape in table.shapes.items():
        yield from ((*found.span(), kind) for found in shape.finditer(text))
    bare = of["page"].sub(lambda page: " " * len(page[0]), text)
    for found in of["run"].finditer(bare):
        before = bare[max(0, found.start() - 12) : found.start()]
        if _is_token(found[0], of["iban"]) and not of["digest"].search(before):
            yield *found.span(), TOKEN
    yield from ((*found.span(), CARD) for found in of["card"].finditer(bare) if _is_card(found[0]))
    for found in of["address"].finditer(text):
        value = found["value"]
        if not of["password"].fullmatch(value) and not of["no_value"].fullmatch(value):
            yield *found.span("value"), PASSWORD
    for name in of["seed"].finditer(text):
        if phrase := of["phrase"].match(text, name.end()):
            yield *phrase.span("words"), SEED
    for called in (_passwords, _cells, _codes):
        yield from ((*span, PASSWORD) for span in called(text, table))


def _is_token(run: str, iban: re.Pattern[str]) -> bool:
    """Return True if letters and digits are mixed as in no word."""
    run = run.strip("=/+")
    if len(run) < 20 or not re.search("[A-Za-z]", run) or not re.search(r"\d", run):
        return False
    if max(map(len, re.split("[/=+]", run))) < PIECE or (iban.fullmatch(run) and _checks(run)):
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
    """Return True if the last digit is the checksum of the others (Luhn)."""
    digits = re.sub(r"\D", "", number)
    doubled = (int(mark) * (1 + n % 2) for n, mark in enumerate(reversed(digits)))
    return len({*digits}) > 1 and sum(each // 10 + each % 10 for each in doubled) % 10 == 0


def _passwords(text: str, table: _Table) -> Iterator[tuple[int, int]]:
    """Yield each value that is called a password or a PIN: no word, or a word that is marked as one."""
    of = table.of
    for name in of["password"].finditer(text):
        before = text[max(0, name.start() - 80) : name.start()]
        if (ends := of["end"].match(text, name.end())) and (said := of["is_the"].search(before)):
            # A year before the name, or numbers on both sides of it, mean something else.
            more = bool(ends["more"]) + (said["is"] is None)
            dated = more and of["year"].fullmatch(said["value"])
            if more < 2 and not dated and _is_value(said["value"], table, hyphens=True):
                at = name.start() - len(before)
                yield at + said.start("value"), at + said.end("value")
        for far, gap in enumerate(
            table.gaps if of["digits_only"].search(name[0]) else table.gaps[:-1]
        ):
            then = gap.match(text, name.end())
            if then is None:
                continue
            joined = bool(of["joined"].match(text, then.end()))
            verb = then["is"].strip(" ,—–-").lower() if then.lastgroup == "is" else ""
            own = far or any(of["own"].findall(before[-40:]))
            is_told = then.lastgroup == "mark" or verb in LINKING_VERBS or (bool(verb) and own)
            weak = (far < 2 and bool(is_told)) or (joined and then.lastgroup in ("mark", "is"))
            if span := _value(text, then, table, weak=weak):
                yield span
                break


def _cells(text: str, table: _Table) -> Iterator[tuple[int, int]]:
    """Yield each value in a table below or beside a cell that is called a password."""
    below, ruled = set[int](), False
    for line in re.finditer(r"^.*$", text, re.MULTILINE):
        cells = list(table.of["cell"].finditer(text, *line.span()))
        names = {n for n, cell in enumerate(cells) if table.of["title"].search(cell["inside"])}
        for n, cell in enumerate(cells):
            is_one = n not in names and (n in below or n - 1 in names) and cell["inside"].strip()
            if is_one and (span := _value(text, cell, table, weak=ruled and n in below)):
                yield span
        ruled = bool(cells) and (ruled or not line[0].strip(" \t|:-"))
        below = (below or names) if cells else set()


def _codes(text: str, table: _Table) -> Iterator[tuple[int, int]]:
    """Yield each value of a code or a key: no word, and of a lock or a person."""
    of = table.of
    for name in of["code"].finditer(text):
        before = text[max(0, name.start() - 40) : name.start()]
        clause = of["stop"].split(before)[-1].lstrip(" -*>#|")
        own = of["own"].search(clause)
        for far, gap in enumerate(table.gaps[:2]):
            if (then := gap.match(text, name.end())) and (span := _value(text, then, table)):
                opens = of["opens"].search(clause + text[name.start() : then.end()])
                is_one = then["mark"] or own or (then["is"] and of["the"].search(clause))
                dated = then.lastgroup == "next" or not (opens or (own and clause))
                none = of["label_or_year" if dated else "label"].fullmatch(text[slice(*span)])
                if (opens or (is_one and not far)) and not (none or of["no_code"].search(before)):
                    yield span
                break


def _value(
    text: str, then: re.Match[str], table: _Table, *, weak: bool = False
) -> tuple[int, int] | None:
    """Find the value that follows. `weak`: a single word may be one."""
    at, of, about = then.end(), table.of, table.about
    if weak and (found := of["quoted"].match(text, at)):
        is_open = found["inside"].lower() in about or of["no_value"].fullmatch(found["inside"])
        return None if is_open else found.span("inside")
    line = text[at : at + 200].split("\n", 1)[0]
    at += len(line) - len(line := line.lstrip(OPENING))
    token = of["ends"].split(line, maxsplit=1)[0].rstrip(CLOSING)
    if _is_value(token, table, hyphens=weak):
        return at, at + len(token)
    said = of["sentence"].split(line, maxsplit=1)[0].strip(f" {CLOSING}")
    if not weak or said.lower() in about or not of["word"].fullmatch(said):
        return None
    fits = not of["wide"].search(said) or (then["mark"] and len(said) <= MOST_WIDE)
    return (at, at + len(said)) if fits else None


def _is_value(token: str, table: _Table, *, hyphens: bool = False) -> bool:
    """Return True if a token is no word, number or measure. `hyphens`: joined words count as one."""
    if token.lower() in table.about or table.of["no_value"].fullmatch(token):
        return False
    if hyphens and table.of["joined"].fullmatch(token):
        return True
    signs = re.findall(r"[!@#$%^&*+=]", token[:-1])
    return len(token) >= 4 and (any(map(str.isdigit, token)) or len(signs) > 1)
