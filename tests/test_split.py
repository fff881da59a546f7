"""Long answers are cut at good places, and nothing is lost."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from wintermute.matrix.content import CONTENT_MOST, content, parts


def code_in(markdown: str) -> str:
    """The code of all fenced blocks, as another parser sees them, without white space."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    return "".join("".join(t.content.split()) for t in tokens if t.type == "fence")


def prose_in(markdown: str) -> list[str]:
    """The words outside fenced blocks, as another parser sees them."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    return [word for t in tokens if t.type == "inline" for word in t.content.split()]


def fences_closed(markdown: str) -> bool:
    """Whether each fenced block ends with a line that closes it."""
    lines = markdown.split("\n")
    blocks = [t for t in MarkdownIt("commonmark").parse(markdown) if t.type == "fence" and t.map]
    return all(lines[t.map[1] - 1].strip() == t.markup for t in blocks if t.map)


def test_a_short_answer_is_one_part() -> None:
    assert parts("hello\n\n```py\n1\n```") == ["hello\n\n```py\n1\n```"]
    assert parts("  indented\n\n") == ["  indented"]
    assert parts(" \n\n ") == []
    assert parts("") == []


def test_paragraphs_stay_whole_where_they_can() -> None:
    """X-009."""
    first, second, third = ("word " * 50 + end for end in ("one.", "two.", "three."))
    assert parts(f"{first}\n\n{second}\n\n\n{third}\n", 600) == [f"{first}\n\n{second}", third]


def test_lines_stay_whole_where_paragraphs_are_too_long() -> None:
    """X-009."""
    lines = [f"line {n} " + "x" * 80 for n in range(30)]
    made = parts("\n".join(lines), 600)
    assert "\n".join(made).split("\n") == lines
    assert len(made) == 5


def test_words_stay_whole_where_lines_are_too_long() -> None:
    """X-009."""
    words = [f"word{n}" for n in range(500)]
    made = parts(" ".join(words), 600)
    assert [word for part in made for word in part.split()] == words
    assert "".join(made) == " ".join(words)


def test_a_word_too_long_is_cut_between_characters() -> None:
    """X-009."""
    made = parts("é€😀" * 500, 600)
    assert "".join(made) == "é€😀" * 500
    assert all(len(part.encode()) <= 600 for part in made)


@pytest.mark.parametrize("marks", ["```", "~~~", "`````"])
def test_a_code_block_is_closed_and_opened_again(marks: str) -> None:
    """X-009."""
    code = "\n".join(f"print({n})  # " + "x" * 40 for n in range(40))
    made = parts(f"Look:\n\n{marks}python\n{code}\n{marks}\n\nDone.", 600)
    assert made[0] == "Look:"
    assert made[-1].endswith(f"{marks}\n\nDone.")
    for part in made[1:]:
        assert part.startswith(f"{marks}python\nprint(")
        assert part.count(marks) == 2
    assert code_in("".join(f"{part}\n\n" for part in made)) == "".join(code.split())


def test_a_code_block_in_a_list_goes_on_at_the_margin() -> None:
    """X-009."""
    code = "\n".join(f"    if x == {n}: {'y' * 30}" for n in range(60))
    made = parts(f"1. First:\n\n   - ```py\n{indented(code)}\n     ```\n\n2. Second.", 600)
    joined = "\n\n".join(made)
    assert all(part.startswith("```py\n    if x ==") for part in made[2:])
    assert all(fences_closed(part) for part in made)
    assert code_in(joined) == "".join(code.split())
    assert prose_in(joined) == ["First:", "Second."]


def indented(code: str) -> str:
    return "\n".join(f"     {line}" for line in code.split("\n"))


def test_blank_lines_in_code_survive_the_cut() -> None:
    code = ("x" * 100 + "\n\n\n") * 30
    made = parts(f"```\n{code}```", 600)
    inside = [part.removeprefix("```\n").removesuffix("\n```") for part in made]
    assert "\n".join(inside) + "\n" == code


def test_marks_inside_longer_marks_are_code() -> None:
    """X-009."""
    inner = "```\nnot a block of its own\n```\n" * 40
    made = parts(f"````md\n{inner}````", 600)
    assert all(part.startswith("````md\n") and part.endswith("\n````") for part in made)
    assert all(len(MarkdownIt("commonmark").parse(part)) == 1 for part in made)


def test_no_cut_leaves_an_empty_code_block_or_passes_the_limit() -> None:
    """X-009: the opening line, any code line and the closing line fall on the limit once."""
    for before in range(430, 520):
        for after in range(0, 60, 7):
            code = "abcdefg\n" * after + "h" * 430
            made = parts(f"{'x' * before}\n```py\n{code}\n```", 512)
            assert all(len(part.encode()) <= 512 for part in made)
            blocks = [t for part in made for t in MarkdownIt().parse(part) if t.type == "fence"]
            assert all(block.content.strip() for block in blocks)


def test_marks_deep_inside_a_code_block_do_not_close_it() -> None:
    code = 'def f():\n    """\n    ```\n    example\n    ```\n    """\n' * 20
    made = parts(f"```py\n{code}```", 600)
    assert all(part.startswith("```py\n") and part.endswith("\n```") for part in made)
    assert "".join(map(code_in, made)) == "".join(code.split())


def test_a_cut_between_words_opens_no_code_block() -> None:
    made = parts("a ``` " * 400, 603)
    assert not any(part.startswith("```") for part in made)
    assert "".join(made).split() == ["a", "```"] * 400


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("text", ["&", '"', "<", "*a* ", "😀 **b** ", "|a|\n|-|\n\n"])
def test_a_part_that_explodes_as_html_is_made_smaller(text: str) -> None:
    """X-009."""
    text *= 20_000 // len(text)
    made = parts(text)
    assert "".join("".join(made).split()) == "".join(text.split())
    assert all(len(json.dumps(content(part))) <= CONTENT_MOST for part in made)
    if "*" in text:
        assert all("formatted_body" in content(part) for part in made)


def test_ten_thousand_lines_and_one_huge_line_are_split() -> None:
    """X-009."""
    assert len(parts("line\n" * 10_000)) == 5
    assert "".join(parts("x" * 64_000)) == "x" * 64_000
    assert "".join("".join(parts("`" * 64_000)).split()) == "`" * 64_000


WORD = st.from_regex(r"[a-zé€😀&]{1,12}", fullmatch=True)
LINE = st.lists(WORD, min_size=1, max_size=12).map(" ".join)
PARAGRAPH = st.lists(LINE, min_size=1, max_size=4).map("\n".join)
LONG = st.builds(lambda word, times: word * times, WORD, st.integers(50, 300))
CODE_LINE = LINE | LONG | st.sampled_from(["", "    indented", "``", "# not a heading"])


@st.composite
def block_of_code(draw: st.DrawFn) -> str:
    marks = draw(st.sampled_from(["```", "~~~", "````", "~~~~~"]))
    info = draw(st.sampled_from(["", "py", "c++ title"]))
    lines = draw(st.lists(CODE_LINE, min_size=1, max_size=20))
    return "\n".join([marks + info, *lines, marks])


DOCUMENT = st.lists(PARAGRAPH | LONG | block_of_code(), min_size=1, max_size=12).map("\n\n".join)


@pytest.mark.slow
@given(DOCUMENT, st.integers(512, 900))
def test_any_document_comes_through_whole_and_in_order(document: str, limit: int) -> None:
    """X-009."""
    made = parts(document, limit)
    assert all(part.strip() and len(part.encode()) <= limit for part in made)
    assert all(fences_closed(part) for part in made)
    joined = "\n\n".join(made)
    assert code_in(joined) == code_in(document)
    assert "".join(prose_in(joined)) == "".join(prose_in(document))
    if not re.search(r"\S{200}", document):
        assert prose_in(joined) == prose_in(document)


@given(st.text(alphabet="`~ \n-a1.😀\t>", max_size=3000), st.integers(512, 700))
def test_any_text_at_all_is_split_within_the_limit(document: str, limit: int) -> None:
    """X-009."""
    made = parts(document, limit)
    assert all(part.strip() and len(part.encode()) <= limit for part in made)
