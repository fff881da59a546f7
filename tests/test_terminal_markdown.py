"""Answers at a terminal: Markdown drawn while it comes, and what is waited for (F-037)."""

import asyncio
import itertools
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import NOON, HeldClock, cheap
from tests.world.glass import Glass
from wintermute.llm.backend import Wait
from wintermute.mailbox.inbox import InboxRow
from wintermute.terminal.markdown import MOST, MarkdownPage, redraw_sequence
from wintermute.terminal.screen import VOID, TerminalSpeaker

ROOM = "terminal"


def page_on(glass: Glass, clock: Callable[[], float] = lambda: 0.0) -> MarkdownPage:
    return MarkdownPage(glass, lambda: glass.watched, clock, lambda: glass.size)


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
        (r"so \(a_1\) *is*", r"so \(a_1\) is"),
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


@settings(max_examples=examples(60))
@given(
    st.lists(PIECES, max_size=40),
    st.integers(24, 90),
    st.integers(3, 12),
    st.booleans(),
    st.booleans(),
)
@example(["1. one", "\n", "---"], 40, 8, False, False)
@example(["```\n", *["x\n"] * 30], 40, 6, True, False)
@example(["x\n\n"] * 30, 40, 6, True, True)
@example(["word ", "\n", "word ", "\n", "\n"], 24, 4, False, False)
def test_however_it_comes_each_thing_stands_there_once(
    pieces: list[str], columns: int, lines: int, waits: bool, loose: bool
) -> None:
    """On a small screen as well, and nothing is taken away that has scrolled off."""
    glass = Glass(columns, lines)
    page = page_on(glass)
    glass.write("before\n")
    page.begin(loose=loose)
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


@settings(max_examples=examples(50))
@given(st.text(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_no_text_breaks_or_steers_the_screen(text: str, cuts: list[int]) -> None:
    glass = Glass(30, 5)
    page = page_on(glass)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        page.add(text[begin:end])
    page.end()
    assert set(re.findall(r"\x1b.?", glass.raw)) <= {"\x1b["}


@pytest.mark.quick(every=4)
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
    with cheap(10):
        for begin in range(0, len(text), 2_000):
            page.add(text[begin : begin + 2_000])
        page.end()
    assert glass.text


@pytest.mark.parametrize(("seconds", "drawn"), [(0.0, 200), (0.1, 100)])
def test_a_long_block_that_grows_draws_little_and_loses_nothing(seconds: float, drawn: int) -> None:
    """A drawing takes so many seconds: they pass between two looks at the clock."""
    glass, looks = Glass(80, 10), itertools.count()
    page = page_on(glass, lambda: next(looks) * seconds)
    page.add("```\n")
    grown = []
    for number in range(200):
        before = len(glass.raw)
        page.add(f"line {number}\n")
        page.wait("")
        grown.append(len(glass.raw) > before)
    assert sum(grown) == drawn
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
    assert redraw_sequence(shown, lines) == told


async def test_what_is_waited_for_is_said_from_the_second_second_on() -> None:
    """F-037, issue 17: in place, with all that is known, and gone when something comes."""
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
        where = (1, "$event", "conv", ROOM, "@ann:test", "", "owner", "message", "hello", True)
        row = InboxRow(*where, "waiting", None, NOON, NOON)  # type: ignore[arg-type]  # the literals
        speaker.typed.append(row.event_id)
        speaker.attend(row)
        speaker.draft(ROOM, "")
        assert await passes(1) == ""
        assert await passes(1) == "· waiting for the model, 2 s"
        assert await passes(10) == "· waiting for the model, 12 s"
        speaker.wait(ROOM, Wait("local", read=2048, total=5249))
        assert await passes(1) == "· waiting for local, 13 s · 2,048 of 5,249 tokens read"
        speaker.wait(ROOM, Wait("local", 2, 4, "local answered 500: \x1b[2J no"))
        again = "· waiting for local, 14 s · attempt 2 of 4: answered 500: [2J no"
        assert await passes(1) == again
        speaker.gate(ROOM, "recall", "reading a page")
        assert glass.text == "· recall"
        assert await passes(3) == "· recall\n· recall, 3 s"
        speaker.draft(ROOM, "")
        speaker.draft(ROOM, "Here ")
        assert glass.text == "· recall\nHere"
        assert await passes(3) == "· recall\nHere\n· waiting for the model, 3 s"
        speaker.draft(ROOM, "it is.")
        speaker.say("Here it is.")
        speaker.rest(row)
        assert await passes(5) == "· recall\nHere it is."
        work.cancel()


@settings(max_examples=examples(60))
@given(
    st.lists(PIECES, max_size=40),
    st.integers(24, 90),
    st.integers(3, 12),
    st.booleans(),
    st.integers(0, 40),
)
@example(["x\n\n"] * 30, 40, 6, True, 0)
@example(["x\n\n"] * 5, 40, 12, False, 2)
def test_what_is_taken_back_is_gone_or_called_void(
    pieces: list[str], columns: int, lines: int, loose: bool, notice_after: int
) -> None:
    """F-020: gone in any case where it was known that it may have to go; nothing else goes with it."""
    glass = Glass(columns, lines)
    page = page_on(glass)
    glass.write("before\n")
    page.begin(loose=loose)
    for number, piece in enumerate(pieces):
        page.add(piece)
        if number == notice_after:
            page.show_aside("notice")
    is_gone = page.discard()
    page.begin(loose=loose)
    page.end("Whole")
    notice = ["notice"] if notice_after < len(pieces) else []
    if is_gone:
        assert glass.text.split() == ["before", *notice, "Whole"]
    assert is_gone or not loose
    assert glass.text.split()[0] == "before"
    assert set(notice) <= set(glass.text.split())


def test_an_attempt_that_broke_off_is_said_anew() -> None:
    """Where it has scrolled off, it is called void."""
    glass = Glass(80, 8)
    speaker = TerminalSpeaker(glass, page_on(glass))
    for _ in range(2):
        for piece in ("", "half **an", "", "Whole"):
            speaker.draft(ROOM, piece)
        speaker.say("Whole")
    assert glass.text == "Whole\nWhole"
    for piece in ("", "line\n\n" * 5, "", "Whole"):
        speaker.draft(ROOM, piece)
    speaker.say("Whole")
    assert glass.text.splitlines()[-2:] == [f"· {VOID}", "Whole"]


def test_what_came_while_a_line_was_asked_for_is_drawn_when_it_is_not_any_more() -> None:
    """F-035."""
    glass = Glass()
    glass.watched = False
    speaker = TerminalSpeaker(glass, page_on(glass))
    for piece in ("", "One.\n\nhalf"):
        speaker.draft(ROOM, piece)
    assert glass.text == ""
    glass.watched = True
    speaker.draw_pending()
    assert glass.text == "One.\n\nhalf"


def test_a_notice_is_taken_away_with_nothing() -> None:
    """What was written above it stays as well."""
    glass = Glass()
    page = page_on(glass)
    page.begin(loose=False)
    page.add("One.\n\nTwo.\n\nhalf a ")
    page.show_aside("Notice.")
    page.add("line")
    assert glass.text == "One.\n\nNotice.\nTwo.\n\nhalf a line"
    assert not page.discard()
    assert glass.text == "One.\n\nNotice."


@pytest.mark.slow
def test_the_daemon_carries_nothing_that_draws() -> None:
    """Its memory is counted (docs/benchmarks.md)."""
    script = "import sys, wintermute.cli.run, wintermute.daemon; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert not {"rich", "pygments", "prompt_toolkit"} & set(done.stdout.split())
