"""Answers as a person at a terminal reads them best: Markdown, drawn while it comes (F-037).

Only `chat` and `demo` load this: rich is nothing that a daemon should carry.
"""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile
from math import inf

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.theme import Theme

from wintermute.terminal.screen import DIM, PLAIN, Screen
from wintermute.text import harmless, with_math

MOST = 12_000
"""Characters of a block that is drawn; the parser is quadratic in places, so more is shown as it is."""
NARROWEST = 20
UNKNOWN = os.terminal_size((80, 24))
# HTML is text here: a terminal has no use for it, and what a model writes must not vanish.
PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
PARSER.enable(["table", "strikethrough"]).disable("image")
COLOURS = Theme({"markdown.code": "cyan", "markdown.hr": "dim"})
QUICK, IDLE, LONGEST_IDLE = 0.02, 4.0, 0.5
"""Where drawing took more than the first, it rests the second times what was more, and the third at
most, all in seconds: a long block that grows must not keep us busy.
"""


def terminal_size() -> os.terminal_size:
    """Of the standard output; one that was never set counts as usual."""
    try:
        found = os.get_terminal_size(1)
    except OSError:
        return UNKNOWN
    return found if all(found) else UNKNOWN


def can_draw() -> bool:
    """Whether this is a terminal that has a cursor to move."""
    return not Console(force_terminal=True).is_dumb_terminal


class _Heading(Heading):
    """To the left, as everything else."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    """Set in, without a background of its own."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme="ansi_dark",
            background_color="default",
            word_wrap=True,
        )
        yield Padding(code, (0, 0, 0, 2))


class _Markdown(Markdown):
    elements = Markdown.elements | {
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }


def blocks(text: str) -> list[str]:
    """Markdown in parts that can be drawn one by one; list items each are one."""
    if len(text) > MOST:
        return [text]
    lines = text.splitlines(keepends=True)
    starts = sorted({0, *_starts(PARSER.parse(with_math(text))), len(lines)})
    return ["".join(lines[begin:end]) for begin, end in pairwise(starts)]


def _starts(tokens: Sequence[Token]) -> list[int]:
    """The lines at which a top level block, or an item of a list there, begins."""
    lists = [token for token in tokens if token.level == 0 and token.map]
    items = [token for token in tokens if token.level == 1 and token.type == "list_item_open"]
    return [token.map[0] for token in (*lists, *items) if token.map]


class Renderer:
    """Draws Markdown as lines with colours, for a terminal as wide as it is by then."""

    def __init__(self, size: Callable[[], os.terminal_size] = terminal_size) -> None:
        self._console = Console(force_terminal=True, legacy_windows=False, theme=COLOURS)
        self._size = size
        self.lines("`the first one loads what drawing needs`")

    def lines(self, text: str) -> list[str]:
        """The lines of one block, with a blank one where one follows it in the text."""
        if not text.strip():
            return []
        drawn = self._drawn(text) if len(text) <= MOST else []
        drawn = drawn or self._cut(text)  # too long, too deep, or what Markdown does not show
        follows = text[len(text.rstrip()) :].count("\n") > 1
        return [*drawn, ""] if follows else drawn

    def whole(self, text: str) -> str:
        """A text that is all there, as it is drawn."""
        return "\n".join(line for block in blocks(text.rstrip()) for line in self.lines(block))

    def _cut(self, text: str) -> list[str]:
        width = max(NARROWEST, self._size().columns - 1) // (1 if text.isascii() else 2)
        lines = text.rstrip().expandtabs(4).splitlines()
        return [
            line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)
        ]

    def _drawn(self, text: str) -> list[str]:
        markdown = _Markdown("", hyperlinks=False)
        markdown.parsed = PARSER.parse(with_math(text))
        width = max(NARROWEST, self._size().columns - 1)
        rows = self._console.render_lines(
            markdown, self._console.options.update_width(width), pad=False
        )
        return _bare([self._line(row) for row in rows])

    def _line(self, row: Sequence[Segment]) -> str:
        # Harmless here and not before: what Markdown writes as `&#x202e;` is a mark only now.
        parts = [Segment(harmless(part.text), part.style) for part in row if not part.control]
        while parts and not parts[-1].text.strip():
            parts.pop()
        if parts:
            parts[-1] = Segment(parts[-1].text.rstrip(), parts[-1].style)
        with self._console.capture() as drawn:
            self._console.print(Segments(parts), end="", soft_wrap=True)
        return drawn.get()


def _bare(lines: list[str]) -> list[str]:
    """Without the blank lines around."""
    full = [number for number, line in enumerate(lines) if line]
    return lines[full[0] : full[-1] + 1] if full else []


class MarkdownPage:
    """An answer as it grows. What is finished is written once; the rest is drawn anew below it.

    What is drawn anew is never higher than the screen, so that nothing else is ever erased.
    """

    def __init__(
        self,
        screen: Screen,
        watched: Callable[[], bool],
        monotonic: Callable[[], float],
        size: Callable[[], os.terminal_size] = terminal_size,
    ) -> None:
        """`watched`: whether the cursor is ours; else only what is finished is written.
        `monotonic`: seconds, by which it is decided how often to draw.
        """
        self._screen = screen
        self._watched = watched
        self._monotonic = monotonic
        self._size = size
        self._drawn_at = size()
        self._renderer = Renderer(size)
        self._loose = False
        self._finished: list[str] = []  # while loose
        self._tail = ""
        self._waits = ""
        self._shown: list[str] = []
        self._above = 0.0  # lines written above those shown, which can go with them
        self._behind = False
        self._rests_until = 0.0

    def begin(self, *, loose: bool) -> None:
        """Something new. `loose`: only its end is shown until it is there, so that it can go."""
        self._loose = loose

    def add(self, text: str) -> None:
        """One more piece."""
        self._tail += harmless(text)
        if "\n" in text:
            end = self._tail.rfind("\n") + 1
            *finished, last = blocks(self._tail[:end])
            if self._loose:
                self._finished += finished
            else:
                self._write(finished)
            self._tail = last + self._tail[end:]
        self._behind = True
        if self._monotonic() >= self._rests_until:
            self._draw()

    def end(self, rest: str = "") -> None:
        """The last piece."""
        self._waits = ""
        tail, self._tail = (self._tail + harmless(rest)).rstrip(), ""
        finished, self._finished = self._finished, []
        self._write([*finished, *(blocks(tail) if tail else [])])
        self._draw()
        self._loose, self._above = False, 0

    def take_back(self) -> bool:
        """Forget what was begun, and take it from the screen if it is all still there."""
        rows = self._above + len(self._shown)
        is_there = rows < self._size().lines and self._drawn_at == self._size()
        self._tail, self._finished = "", []
        if is_there and self._above:
            self._shown = [""] * int(self._above) + (self._shown or [""])
        self._draw()
        self._above = 0
        return is_there

    def beside(self, text: str) -> None:
        """Something else, above what is not finished."""
        above = self._above
        self._write(blocks(harmless(text).rstrip()))
        self._above = inf if above else 0
        self._draw()

    def wait(self, text: str) -> None:
        """Say below it what is waited for; "" for nothing."""
        if text != self._waits or (self._behind and self._monotonic() >= self._rests_until):
            self._waits = text
            self._draw()

    def _write(self, finished: Sequence[str]) -> None:
        lines = [line for block in finished for line in self._renderer.lines(block)]
        if lines:
            stood = self._drawn_at == self._size() and self._watched()
            self._above += len(lines) if stood else inf
            self._screen.write(self._to(lines) + "\n")
            self._shown = []

    def _draw(self) -> None:
        begun = self._monotonic()
        is_watched = self._watched()
        lines = self._below() if is_watched else []
        if self._drawn_at == self._size():
            lines = standing(self._shown, lines)
        drawn = self._to(lines)
        if drawn:
            self._screen.write(drawn)
        self._shown, self._behind = lines, not is_watched
        ended = self._monotonic()
        self._rests_until = ended + min(LONGEST_IDLE, IDLE * max(0.0, ended - begun - QUICK))

    def _below(self) -> list[str]:
        """What is not finished, as much of it as the screen has room for."""
        lines: list[str] = []
        most = max(1, self._size().lines - 2)
        tail = self._tail if len(self._tail) <= MOST else ""
        for block in reversed([*self._finished, *(blocks(tail) if tail else [])]):
            if len(lines) < most:
                lines[:0] = self._renderer.lines(block)
        if lines and tail.endswith(" "):
            lines[-1] += " "  # what follows goes on in this line
        if self._waits:
            lines.append(f"{DIM}{self._waits[: max(1, self._size().columns - 1)]}{PLAIN}")
        return lines[-most:]

    def _to(self, lines: list[str]) -> str:
        """What makes these lines of those that are shown; the cursor stays behind the last one."""
        shown, before = self._shown, self._drawn_at
        self._drawn_at = self._size()
        if shown and before != self._drawn_at:  # who knows where they are now: they stay
            return "\n" + "\n".join(lines)
        return changed(shown, lines)


def standing(shown: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines as they stand there once they are drawn.

    A blank at the end is shown so that a word may follow; it need not be taken away.
    """
    stays = [old if old.rstrip(" ") == new else new for old, new in zip(shown, lines, strict=False)]
    return [*stays, *lines[len(stays) :]]


def changed(shown: Sequence[str], lines: Sequence[str]) -> str:
    """What a terminal has to be told so that lines take the place of those before its cursor.

    What stays is not written again: that would flicker.
    """
    lines = standing(shown, lines)
    pairs = zip(shown, lines, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same == len(shown):
        return "\n".join(["", *lines[same:]] if shown and lines[same:] else lines[same:])
    if not lines:
        same, left = 0, ""
    else:
        same = min(same, len(lines) - 1)
        left = shown[same] if lines[same].startswith(shown[same]) else ""
    up = len(shown) - 1 - same
    rest = "\n".join(
        [line.removeprefix(left) for line in lines[same : same + 1]] + list(lines[same + 1 :])
    )
    if left and not up:
        return rest
    plain = left.isascii() and left.isprintable()  # else nobody knows how wide it is
    column = f"\x1b[{len(left)}C" if left and plain else ""
    rise = f"\x1b[{up}A" if up else ""
    return f"{rise}\r{column}\x1b[J{rest if plain else left + rest}"
