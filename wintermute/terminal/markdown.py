"""Markdown drawn in a terminal while it is being streamed (F-037).

Only `chat` and `demo` load this, so that the daemon does not load rich.
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
"""Characters of the longest block that is drawn. The parser is quadratic in places, so longer ones stay plain.
"""
NARROWEST = 20
UNKNOWN = os.terminal_size((80, 24))
# HTML is shown as text: a terminal cannot render it, and nothing that a model writes may vanish.
PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
PARSER.enable(["table", "strikethrough"]).disable("image")
COLOURS = Theme({"markdown.code": "cyan", "markdown.hr": "dim"})
QUICK, IDLE, LONGEST_IDLE = 0.02, 4.0, 0.5
"""Seconds. If drawing took longer than QUICK, it pauses IDLE times the excess, at most LONGEST_IDLE.

Otherwise a long block that grows would keep the process busy.
"""


def terminal_size() -> os.terminal_size:
    """Return the size of the standard output; 80 by 24 if it is unknown."""
    try:
        found = os.get_terminal_size(1)
    except OSError:
        return UNKNOWN
    return found if all(found) else UNKNOWN


def can_draw() -> bool:
    """Check if the terminal can move its cursor."""
    return not Console(force_terminal=True).is_dumb_terminal


class _Heading(Heading):
    """A heading that is aligned left, as all other text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    """A code block that is indented and has no background."""

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
    """Split Markdown into parts that can be drawn one by one; each list item is a part."""
    if len(text) > MOST:
        return [text]
    lines = text.splitlines(keepends=True)
    starts = sorted({0, *_starts(PARSER.parse(with_math(text))), len(lines)})
    return ["".join(lines[begin:end]) for begin, end in pairwise(starts)]


def _starts(tokens: Sequence[Token]) -> list[int]:
    """Return the lines at which a top level block, or an item of a top level list, begins."""
    lists = [token for token in tokens if token.level == 0 and token.map]
    items = [token for token in tokens if token.level == 1 and token.type == "list_item_open"]
    return [token.map[0] for token in (*lists, *items) if token.map]


class Renderer:
    """Draws Markdown as coloured lines for the current width of the terminal."""

    def __init__(self, size: Callable[[], os.terminal_size] = terminal_size) -> None:
        self._console = Console(force_terminal=True, legacy_windows=False, theme=COLOURS)
        self._size = size
        self.lines("`the first line loads the modules that drawing needs`")

    def lines(self, text: str) -> list[str]:
        """Return the lines of one block, and a blank one if another block follows."""
        if not text.strip():
            return []
        drawn = self._render(text) if len(text) <= MOST else []
        drawn = drawn or self._cut(text)  # too long, nested too deeply, or invisible in Markdown
        follows = text[len(text.rstrip()) :].count("\n") > 1
        return [*drawn, ""] if follows else drawn

    def whole(self, text: str) -> str:
        """Return a complete text as it is drawn."""
        return "\n".join(line for block in blocks(text.rstrip()) for line in self.lines(block))

    def _cut(self, text: str) -> list[str]:
        width = max(NARROWEST, self._size().columns - 1) // (1 if text.isascii() else 2)
        lines = text.rstrip().expandtabs(4).splitlines()
        return [
            line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)
        ]

    def _render(self, text: str) -> list[str]:
        markdown = _Markdown("", hyperlinks=False)
        markdown.parsed = PARSER.parse(with_math(text))
        width = max(NARROWEST, self._size().columns - 1)
        rows = self._console.render_lines(
            markdown, self._console.options.update_width(width), pad=False
        )
        return _strip_blank_lines([self._line(row) for row in rows])

    def _line(self, row: Sequence[Segment]) -> str:
        # Made harmless here, not before: only the parser turns `&#x202e;` into a control character.
        parts = [Segment(harmless(part.text), part.style) for part in row if not part.control]
        while parts and not parts[-1].text.strip():
            parts.pop()
        if parts:
            parts[-1] = Segment(parts[-1].text.rstrip(), parts[-1].style)
        with self._console.capture() as drawn:
            self._console.print(Segments(parts), end="", soft_wrap=True)
        return drawn.get()


def _strip_blank_lines(lines: list[str]) -> list[str]:
    """Remove blank lines at the beginning and the end."""
    full = [number for number, line in enumerate(lines) if line]
    return lines[full[0] : full[-1] + 1] if full else []


class MarkdownPage:
    """An answer while it is streamed. Finished blocks are written once; the rest is redrawn below them.

    The redrawn part is never higher than the screen, so nothing else is erased.
    """

    def __init__(
        self,
        screen: Screen,
        watched: Callable[[], bool],
        monotonic: Callable[[], float],
        size: Callable[[], os.terminal_size] = terminal_size,
    ) -> None:
        """`watched`: True while the cursor is ours; otherwise only finished blocks are written.

        `monotonic`: seconds, which limit how often the rest is drawn.
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
        self._wait_text = ""
        self._shown: list[str] = []
        self._above = 0.0  # finished lines of this answer above those shown
        self._is_stale = False
        self._idle_until = 0.0

    def begin(self, *, loose: bool) -> None:
        """Start an answer. `loose`: show only its end until it is complete, so that it can be removed."""
        self._loose = loose

    def add(self, text: str) -> None:
        """Add a piece of the answer and draw it."""
        self._tail += harmless(text)
        if "\n" in text:
            end = self._tail.rfind("\n") + 1
            *finished, last = blocks(self._tail[:end])
            if self._loose:
                self._finished += finished
            else:
                self._write(finished)
            self._tail = last + self._tail[end:]
        self._is_stale = True
        if self._monotonic() >= self._idle_until:
            self._draw()

    def end(self, rest: str = "") -> None:
        """Add the last piece and finish the answer."""
        self._wait_text = ""
        tail, self._tail = (self._tail + harmless(rest)).rstrip(), ""
        finished, self._finished = self._finished, []
        self._write([*finished, *(blocks(tail) if tail else [])])
        self._draw()
        self._loose, self._above = False, 0

    def discard(self) -> bool:
        """Discard the unfinished answer; True if it could be removed from the screen completely."""
        rows = self._above + len(self._shown)
        is_there = rows < self._size().lines and self._drawn_at == self._size()
        self._tail, self._finished = "", []
        if is_there and self._above:
            self._shown = [""] * int(self._above) + (self._shown or [""])
        self._draw()
        self._above = 0
        return is_there

    def show_aside(self, text: str) -> None:
        """Write another text above the unfinished part."""
        above = self._above
        self._write(blocks(harmless(text).rstrip()))
        self._above = inf if above else 0
        self._draw()

    def wait(self, text: str) -> None:
        """Show below the answer what is awaited; "" for nothing."""
        if text != self._wait_text or (self._is_stale and self._monotonic() >= self._idle_until):
            self._wait_text = text
            self._draw()

    def _write(self, finished: Sequence[str]) -> None:
        lines = [line for block in finished for line in self._renderer.lines(block)]
        if lines:
            is_unmoved = self._drawn_at == self._size() and self._watched()
            self._above += len(lines) if is_unmoved else inf
            self._screen.write(self._redraw(lines) + "\n")
            self._shown = []

    def _draw(self) -> None:
        begun = self._monotonic()
        is_watched = self._watched()
        lines = self._unfinished_lines() if is_watched else []
        if self._drawn_at == self._size():
            lines = as_shown(self._shown, lines)
        drawn = self._redraw(lines)
        if drawn:
            self._screen.write(drawn)
        self._shown, self._is_stale = lines, not is_watched
        ended = self._monotonic()
        self._idle_until = ended + min(LONGEST_IDLE, IDLE * max(0.0, ended - begun - QUICK))

    def _unfinished_lines(self) -> list[str]:
        """Return the lines of the unfinished part that fit on the screen."""
        lines: list[str] = []
        most = max(1, self._size().lines - 2)
        tail = self._tail if len(self._tail) <= MOST else ""
        for block in reversed([*self._finished, *(blocks(tail) if tail else [])]):
            if len(lines) < most:
                lines[:0] = self._renderer.lines(block)
        if lines and tail.endswith(" "):
            lines[-1] += " "  # the next piece goes on in this line
        if self._wait_text:
            lines.append(f"{DIM}{self._wait_text[: max(1, self._size().columns - 1)]}{PLAIN}")
        return lines[-most:]

    def _redraw(self, lines: list[str]) -> str:
        """Return the output that replaces the shown lines; the cursor ends behind the last one."""
        shown, before = self._shown, self._drawn_at
        self._drawn_at = self._size()
        if shown and before != self._drawn_at:  # resized: their position is unknown, so they stay
            return "\n" + "\n".join(lines)
        return redraw_sequence(shown, lines)


def as_shown(shown: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines as the terminal shows them once they are drawn.

    A blank at the end of a shown line stays: a word may follow it.
    """
    stays = [old if old.rstrip(" ") == new else new for old, new in zip(shown, lines, strict=False)]
    return [*stays, *lines[len(stays) :]]


def redraw_sequence(shown: Sequence[str], lines: Sequence[str]) -> str:
    """Return the control sequence and text that replace the lines before the cursor.

    Unchanged lines are not written again: that would flicker.
    """
    lines = as_shown(shown, lines)
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
    plain = left.isascii() and left.isprintable()  # otherwise its width is unknown
    column = f"\x1b[{len(left)}C" if left and plain else ""
    rise = f"\x1b[{up}A" if up else ""
    return f"{rise}\r{column}\x1b[J{rest if plain else left + rest}"
