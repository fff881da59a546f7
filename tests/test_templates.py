"""Prompt files are read fresh, and their placeholders filled without surprises."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wintermute.errors import ConfigurationError
from wintermute.templates import fill, read_template, shipped_prompts


def test_every_occurrence_of_a_placeholder_is_filled() -> None:
    """P-062."""
    assert fill("<{content}> and {content}!", {"content": "tea"}) == "<tea> and tea!"


def test_a_text_without_its_placeholder_is_appended_after_a_blank_line() -> None:
    """P-062."""
    assert fill("Tidy this up.\n", {"content": "tea"}) == "Tidy this up.\n\ntea"


def test_of_several_values_the_missing_one_is_appended_with_its_name() -> None:
    """P-063."""
    values = {"entry_1": "Anna lives in Lyon", "entry_2": "Anna lives in Rome"}
    assert fill("Compare {entry_1}.", values) == (
        "Compare Anna lives in Lyon.\n\nentry_2:\nAnna lives in Rome"
    )
    assert fill("Compare.", values) == (
        "Compare.\n\nentry_1:\nAnna lives in Lyon\n\nentry_2:\nAnna lives in Rome"
    )


def test_other_braces_reach_the_model_unchanged() -> None:
    """P-064."""
    template = '{"a": 1} {unknown} {} {{content}} { content } {content'
    assert fill(template, {"content": "tea"}) == (
        '{"a": 1} {unknown} {} {tea} { content } {content'
    )
    assert fill("{content}", {}) == "{content}"


@given(st.text(), st.text())
def test_a_filled_text_is_never_expanded_again(first: str, second: str) -> None:
    """P-065."""
    values = {"content": first + "{history}", "history": second + r"{content}\1"}
    filled = fill("[{content}|{history}]", values)
    assert filled == f"[{values['content']}|{values['history']}]"


def test_an_edited_prompt_is_read_as_it_is_now(tmp_path: Path) -> None:
    """P-066."""
    (tmp_path / "A.txt").write_text("old")
    assert read_template(tmp_path, "A.txt") == "old"
    (tmp_path / "A.txt").write_text("neü\n", "utf-8")
    assert read_template(tmp_path, "A.txt") == "neü\n"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_prompt_that_is_missing_empty_or_no_text_is_named(
    tmp_path: Path, content: bytes | None
) -> None:
    """P-066."""
    if content is not None:
        (tmp_path / "A.txt").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"A\.txt (is missing|is empty|cannot)") as told:
        read_template(tmp_path, "A.txt")
    assert "\n" not in str(told.value)
    if content is None or not content.strip():
        assert "`wintermute init`" in str(told.value)


def test_the_shipped_prompts_hold_text() -> None:
    prompts = shipped_prompts()
    assert "BASE_PROMPT.txt" in prompts
    assert all(text.strip() for text in prompts.values())
