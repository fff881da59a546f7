"""Small pure functions over text from outside, and texts that all doors share."""

import re
import socket
import ssl
import unicodedata
from datetime import timedelta

TAG = re.compile(
    r"<(?=/?(?:event|memory|cathedral|context|room_context|replied_to|raw_input|related_memories"
    r"|new_contents|current_core_markdown|candidate_new_memories|history|transcript|entries|memories"
    r"|tasks|first|second)\b(?!-\w))",
    re.IGNORECASE,
)
MATH_BEGINS = re.compile(r"\\[(\[]|\$\$")
CODE_OR_MATH = re.compile(
    r"(?P<code>^[ >]*(?P<fence>`{3,}|~{3,})(?:.|\n)*?(?:^[ >]*(?P=fence)|\Z)|^(?: {4}|\t).*$"
    r"|(?<!`)(?P<run>`+)(?!`).*?(?<!`)(?P=run)(?!`))"
    r"|\$\$(?:(?!\n\n)[^`$]){1,2000}\$\$"
    r"|(?<!\\)(?:\\\((?:(?!\n\n)[^`]){1,2000}?(?<!\\)\\\)|\\\[(?:(?!\n\n)[^`]){1,2000}?(?<!\\)\\\])",
    re.MULTILINE,
)
PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
BIDI_CONTROLS = frozenset(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
)
NO_TEXT = BIDI_CONTROLS | {"\ufeff"}
"""Characters without text of their own; U+FEFF is also the mark of an encoding, which readers drop."""

EMPTY_LISTS = {
    "tasks": "No tasks or reminders here. Try *remind me tomorrow at 9 to call Anna*.",
    "memories": "I remember nothing here yet. Try *remember that my sister Mia is allergic to nuts*.",
    "sessions": "No work is running in the background here. Try *compare these three cafés, each on its own: …*.",
    "nights": "No night has run yet. `/dream` tidies my memories now.",
}
"""The answer of a chat to a command whose list is empty, with a way to fill it (U-013)."""
EMPTY_AT_SHELL = {
    "tasks": 'No tasks or reminders. Add one: wintermute task add "Call Anna" --at "tomorrow at 9"',
    "memories": 'No memories. Add one: wintermute memory add "Mia is allergic to nuts"',
    "nights": "No night has run yet. Run one: wintermute night run",
    "skills": "No skills. Add one from a file:"
    ' wintermute skill add report report.md --summary "How I write reports"',
    "pages": "No pages. Make some from a chat: wintermute wiki consolidate --conversation ROOM",
}
"""The same for the shell."""

BLANKS = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0") | {*map(chr, range(0xFE00, 0xFE10))}
"""Characters that are letters or marks but invisible."""

NO_ANSWERS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "the certificate of {} cannot be trusted"),
    (ssl.SSLError, "{} does not speak https"),
    (socket.gaierror, "nothing answers at {}, because no server has this name"),
    (TimeoutError, "{} gave no answer in time"),
    (ConnectionResetError, "{} hung up"),
    (OSError, "nothing answers at {}"),
)

# Marks that format within a line, or begin a block at its start.
MARK = re.compile(r"[\\`*<\[~|&]|(?<!\w)_|_(?!\w)|^[#>+-]|(?<=^\d)[.)]")


def no_answer(address: str, error: BaseException | None) -> str:
    """Describe a failed connection in the same words for all libraries."""
    chain, message = [error], f"{address}: {error or type(error).__name__}"
    while (error := error and (error.__cause__ or error.__context__)) is not None:
        chain.append(error)
    found = (text for kind, text in NO_ANSWERS if any(isinstance(each, kind) for each in chain))
    return next((text.format(address) for text in found), message)


def clean(text: str) -> str:
    """Remove control characters and lone surrogates; line ends become newlines.

    JSON parsers, homeservers or terminals refuse such characters.
    """
    unified = text.replace("\r\n", "\n").replace("\r", "\n")
    if unified.isprintable():
        return unified
    return "".join(
        "\ufffd" if mark not in "\n\t" and unicodedata.category(mark) in {"Cc", "Cs"} else mark
        for mark in unified
    )


def is_blank(text: str) -> bool:
    """Return True if nothing of a text is visible: blanks, and characters without width (F-044)."""
    return all(
        mark in BLANKS or unicodedata.category(mark) in {"Cc", "Cf", "Zs", "Zl", "Zp"}
        for mark in text
    )


def harmless(text: str) -> str:
    """Return text that is safe in a terminal: nothing moves the cursor, hides text or turns it around."""
    return "".join(mark for mark in clean(text) if mark not in NO_TEXT and mark != "\ufffd")


def display_name(name: str, most: int = 40) -> str:
    """Return a person's display name, safe in one line: no controls, no direction overrides, bounded."""
    visible = "".join(
        mark for mark in name if mark not in BIDI_CONTROLS and unicodedata.category(mark)[0] != "C"
    )
    line = " ".join(visible.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def one_line(text: str) -> str:
    """Return text as one line: line ends become spaces, controls and direction overrides are dropped."""
    if not text.isprintable():
        text = "".join(
            mark
            for mark in text
            if mark.isspace() or not (mark in NO_TEXT or unicodedata.category(mark) in {"Cc", "Cs"})
        )
    return " ".join(text.split())


def with_math(markdown: str) -> str:
    """Protect the marks of LaTeX in Markdown (F-052); a single `$` is money.

    Code stays unchanged, also a line that is only indented.
    """
    if not MATH_BEGINS.search(markdown):
        return markdown
    return CODE_OR_MATH.sub(
        lambda found: found[0] if found["code"] else PUNCTUATION.sub(r"\\\g<0>", found[0]), markdown
    )


def untagged(text: str) -> str:
    """Escape our own tag names in a text: `<event` becomes `&lt;event` (L-071)."""
    return TAG.sub("&lt;", text)


def plain(text: str) -> str:
    """Escape Markdown: facts and tasks are quoted, not formatted."""
    return MARK.sub(r"\\\g<0>", text)


def shortened(text: str, most: int) -> str:
    """Return the text, or its beginning and end around a mark that says how much is missing (L-026)."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return (
        f"{text[:head]}\n[truncated: {most} of {len(text)} characters shown]\n"
        f"{text[len(text) - tail :]}"
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 turn`, `2 turns`, `3 memories`."""
    many = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def span(time: timedelta) -> str:
    """Return a time span in words: `45 seconds`, `37 minutes`, `3 hours`, `2 days`."""
    for unit in ("days", "hours", "minutes"):
        if time >= 2 * (size := timedelta(**{unit: 1})):
            return f"{round(time / size)} {unit}"
    return counted(round(time.total_seconds()), "second")
