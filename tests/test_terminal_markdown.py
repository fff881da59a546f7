"""Answers at a terminal: Markdown drawn while it comes, and what is waited for (F-037)."""

import asyncio
import os
import re
import subprocess
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.world.clock import HeldClock
from wintermute.terminal.markdown import MOST, MarkdownPage, changed
from wintermute.terminal.screen import TerminalSpeaker
from wintermute.text import harmless

STEERS = re.compile(r"\x1b\[(\d*)([ACJm;\d]*?)([ACJm])")
ROOM = "terminal"


class Glass:
    """A terminal as small as a test wants; it knows no more than what a page may ask of it."""

    live = True

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.columns, self.height = columns, lines
        self.rows = [""]
        self.row = self.column = 0
        self.raw = ""
        self.watched = True

    @property
    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.height))

    @property
    def text(self) -> str:
        """All that was ever shown and not taken away, what scrolled off included."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")

    def write(self, text: str) -> None:
        self.raw += text
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = STEERS.match(text, at)
                assert found, f"not asked for: {text[at : at + 20]!r}"
                self._steer(found[3], int(found[1] or 1))
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    def _steer(self, what: str, number: int) -> None:
        if what == "A":
            top = max(0, len(self.rows) - self.height)
            assert self.row - number >= top, "what has scrolled off cannot be reached"
            self.row -= number
        elif what == "C":
            self.column += number
        elif what == "J":
            self.rows[self.row + 1 :] = []
            self.rows[self.row] = self.rows[self.row][: self.column]

    def _put(self, mark: str) -> None:
        if mark == "\r":
            self.column = 0
            return
        if mark == "\n" or self.column == self.columns:
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        if mark != "\n":
            assert harmless(mark) == mark, f"steers: {mark!r}"
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + mark + row[self.column + 1 :]
            self.column += 1


def page_on(glass: Glass) -> MarkdownPage:
    return MarkdownPage(glass, lambda: glass.watched, lambda: glass.size)


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# Tea\n\nHow it is *made*.", "Tea\n\nHow it is made."),
        ("- milk\n- **tea**\n  - green", " • milk\n • tea\n    • green"),
        ("2. boil\n3. wait\n", " 2 boil\n 3 wait"),
        ("```sh\nls -l *\n```\ndone", "  ls -l *\ndone"),
        ("| a | b |\n|---|---|\n| x | yy |", " a  b\n ─────\n x  yy"),
        ("[site](https://example.org)", "site (https://example.org)"),
        ("![cat](https://example.org/cat.png)", "!cat (https://example.org/cat.png)"),
        ("> said she", "▌ said she"),
        ("a <b>c</b> & <div>\n\n<p>x</p>", "a <b>c</b> & <div>\n\n<p>x</p>"),
        ("[odd](javascript:alert(1)) &#x202e;&#27;[2J", "[odd](javascript:alert(1)) [2J"),
        ("a\x1b]8;;file:///etc\x07b\x1b[2J\u202e", "a]8;;file:///etcb[2J"),
        ("```\n\x1b[31m&#x202e;\n```", "  [31m&#x202e;"),
        ("line one\nline two", "line one line two"),
        ("", ""),
    ],
)
def test_markdown_is_shown_as_what_it_means(markdown: str, shown: str) -> None:
    """And nothing in it steers the terminal."""
    glass = Glass()
    page = page_on(glass)
    page.end(markdown)
    assert glass.text == shown
    assert "\x1b]" not in glass.raw


WORDS = ("word ", "**b", "**", "`c` ", "\n", "\n\n", "# head\n", "> ", "    ", "long" * 12 + " ")
SIGNS = (
    "- item",
    "1. one",
    "| a | b |\n|---|---|\n",
    "```\n",
    "[l](http://x.y)",
    "---",
    "*",
    "<b>",
)
PIECES = st.sampled_from((*WORDS, *SIGNS, "\\", "ü ", "[l]: x\n"))


@settings(max_examples=60)
@given(st.lists(PIECES, max_size=40), st.integers(24, 90), st.integers(3, 12), st.booleans())
@example(["1. one", "\n", "---"], 40, 8, False)
@example(["```\n", *["x\n"] * 30], 40, 6, True)
def test_however_it_comes_each_thing_stands_there_once(
    pieces: list[str], columns: int, lines: int, waits: bool
) -> None:
    """On a small screen as well, and nothing is taken away that has scrolled off."""
    glass = Glass(columns, lines)
    page = page_on(glass)
    glass.write("before\n")
    for number, piece in enumerate(pieces):
        page.add(piece)
        if waits:
            page.wait(f"· waiting, {number} s" if number % 3 else "")
    page.end()
    said = "".join(pieces)
    assert glass.text.split() == ("before\n" + in_parts(said, columns)).split()
    glass.write("after")
    assert glass.rows[-1] == "after"


def in_parts(text: str, columns: int) -> str:
    """The whole text as it is drawn when its parts are found while it comes."""
    glass = Glass(columns, 1000)
    glass.watched = False
    page = page_on(glass)
    for line in text.splitlines(keepends=True):
        page.add(line)
    page.end()
    return glass.text


@settings(max_examples=50)
@given(st.text(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_no_text_breaks_or_steers_the_screen(text: str, cuts: list[int]) -> None:
    glass = Glass(30, 5)
    page = page_on(glass)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        page.add(text[begin:end])
    page.end()
    assert set(re.findall(r"\x1b.?", glass.raw)) <= {"\x1b["}


@pytest.mark.parametrize(
    "text",
    [
        "> " * (MOST // 2),
        "[" * MOST,
        "*a " * (MOST // 3),
        "- " * (MOST // 2),
        "| a " * 2_000 + "\n" + "|---" * 2_000 + "\n|x\n" * 50,
        "`" * MOST,
        "x" * (3 * MOST),
        "```python\n" + "def f(): pass\n" * 1_000,
    ],
)
def test_what_is_made_to_be_slow_is_not(text: str) -> None:
    glass = Glass()
    page = page_on(glass)
    begun = time.process_time()
    for begin in range(0, len(text), 2_000):
        page.add(text[begin : begin + 2_000])
    page.end()
    assert time.process_time() - begun < 10
    assert glass.text


def test_a_long_block_that_grows_draws_little_and_loses_nothing() -> None:
    glass = Glass(80, 10)
    page = page_on(glass)
    page.add("```\n")
    for number in range(200):
        page.add(f"line {number}\n")
    page.end("```\n")
    assert [line.strip() for line in glass.text.splitlines()] == [f"line {n}" for n in range(200)]


def test_a_screen_that_changes_its_size_keeps_what_stands_there() -> None:
    glass = Glass(80, 10)
    page = page_on(glass)
    page.add("first of all a long line that stands there ")
    glass.columns = 40
    page.add("and another word")
    page.end()
    assert "first of all a long line" in glass.rows[0]
    assert "another word" in glass.text


def test_while_somebody_types_only_what_is_finished_is_written() -> None:
    """The cursor is the prompt's then."""
    glass = Glass()
    page = page_on(glass)
    glass.watched = False
    page.add("half a ")
    page.wait("· waiting, 2 s")
    assert glass.raw == ""
    page.add("line\n\nmore\n")
    assert glass.text == "half a line"
    page.end()
    assert "\x1b[" not in glass.raw
    assert glass.text == "half a line\n\nmore"


@pytest.mark.parametrize(
    ("shown", "lines", "told"),
    [
        ([], ["a"], "a"),
        (["a"], ["a"], ""),
        (["a"], ["ab"], "b"),
        (["a "], ["a"], ""),
        (["a"], ["a", "b"], "\nb"),
        (["a", "w"], ["a"], "\x1b[1A\r\x1b[1C\x1b[J"),
        (["a", "w"], ["ab"], "\x1b[1A\r\x1b[1C\x1b[Jb"),
        (["ü", "w"], ["üb"], "\x1b[1A\r\x1b[Jüb"),
        (["a", "b"], [], "\x1b[1A\r\x1b[J"),
        (["a", "b"], ["x"], "\x1b[1A\r\x1b[Jx"),
        ([], [], ""),
    ],
)
def test_what_stays_is_not_written_again(shown: list[str], lines: list[str], told: str) -> None:
    assert changed(shown, lines) == told


async def test_what_is_waited_for_is_said_from_the_second_second_on() -> None:
    """In place, and gone when something comes."""
    glass, clock = Glass(), HeldClock()
    speaker = TerminalSpeaker(glass, page_on(glass))
    async with asyncio.TaskGroup() as group:
        work = group.create_task(speaker.count(clock))

        async def passes(seconds: int) -> str:
            for _ in range(seconds):
                slept = len(clock.slept)
                await clock.move(1)
                while len(clock.slept) == slept:  # noqa: ASYNC110  the clock tells nobody
                    await asyncio.sleep(0)
            return glass.text

        await clock.asleep()
        speaker.attend(ROOM, "$event")
        speaker.draft(ROOM, "")
        assert await passes(1) == ""
        assert await passes(1) == "· waiting for the model, 2 s"
        assert await passes(10) == "· waiting for the model, 12 s"
        speaker.gate(ROOM, "recall")
        assert glass.text == "· recall"
        assert await passes(3) == "· recall\n· recall, 3 s"
        speaker.draft(ROOM, "")
        speaker.draft(ROOM, "Here ")
        assert glass.text == "· recall\nHere"
        assert await passes(3) == "· recall\nHere\n· waiting for the model, 3 s"
        speaker.draft(ROOM, "it is.")
        speaker.say("Here it is.")
        speaker.rest(ROOM)
        assert await passes(5) == "· recall\nHere it is."
        work.cancel()


def test_an_attempt_that_broke_off_is_said_anew() -> None:
    glass = Glass()
    speaker = TerminalSpeaker(glass, page_on(glass))
    for piece in ("", "half **an", "", "Whole"):
        speaker.draft(ROOM, piece)
    speaker.say("Whole")
    assert glass.text == "half **an\n· again\nWhole"


@pytest.mark.slow
def test_the_daemon_carries_nothing_that_draws() -> None:
    """Its memory is counted (docs/benchmarks.md)."""
    script = "import sys, wintermute.cli.run, wintermute.daemon; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert not {"rich", "pygments", "prompt_toolkit"} & set(done.stdout.split())
