"""A rewritten list of memories must keep what a person said."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.memory.fact import key, listed, refusal
from wintermute.memory.lexical_overlap import main_words, succeeds, successors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The user has a dog named Rex", {"dog", "named", "rex"}),
        ("Bus 7 leaves at 09:05", {"bus", "7", "leaves", "09", "05"}),
        ("喜欢绿茶", {"喜欢", "欢绿", "绿茶"}),
        ("茶", {"茶"}),
        ("der Hund", {"hund"}),
        ("the user", {"the", "user"}),
        ("!!", {"!!"}),
    ],
)
def test_main_words_are_what_a_line_is_about(text: str, words: set[str]) -> None:
    assert main_words(text) == words


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("has a dog named Rex", "Rex is the dog", True),
        ("has a dog named Rex", "the user has the flu", False),
        ("The user has a dog named Rex", "The user has a boat", False),
        ("likes green tea", "likes green and black tea, no sugar", True),
        ("born on 3 May 1980", "born in May 1980", False),
        ("born on 3 May 1980", "birthday: 3 May 1980", True),
        ("does not eat meat", "eats meat", False),
        ("doesn't eat meat", "eats no meat", True),
        ("isst kein Fleisch", "isst Fleisch", False),
        ("isst kein Fleisch", "niemals Fleisch", True),
        ("ne mange pas de viande", "mange de la viande", False),
        ("不吃肉", "吃肉", False),
        ("他喜欢绿茶", "喜欢绿茶和红茶", True),
    ],
)
def test_a_successor_keeps_words_numbers_and_negations(old: str, new: str, expected: bool) -> None:
    """M-062."""
    assert succeeds(old, new) is expected
    assert (successors([old], [new]) == [0]) is expected


OLD = [("has a dog named Rex", True), *((f"harvested line {n}", False) for n in range(9))]
LINES = [line for line, _ in OLD]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("\n".join(LINES), None),
        ("\n".join(["- Rex the dog", *LINES[4:]]), None),
        ("\n".join(LINES[1:]), '"has a dog named Rex"'),
        ("\n".join(LINES[:5]), "5 lines instead of 10.*at least 6"),
        ("\n".join(LINES[:5] * 9), "5 lines instead of 10"),
        ("", "empty"),
        (" \n---\n\n", "empty"),
        ("\n".join([*LINES, "..."]), "left out"),
        ("\n".join([*LINES, "…"]), "left out"),
        ("\n".join([*LINES, "[lines 1-9 of data/MEMORIES.txt; next offset: 10]"]), "left out"),
        ("\n".join([*LINES, "[truncated: 10 of 20 characters shown]"]), "left out"),
        ("\n".join([*LINES, "likes films with dots ..."]), None),
    ],
)
def test_a_list_that_lost_something_is_refused_in_words(text: str, refused: str | None) -> None:
    """M-062."""
    found = refusal(OLD, text)
    if refused is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(refused, found)
        assert "\n" not in found


def test_a_refusal_quotes_only_some_lines() -> None:
    new = "\n".join(f"something else {n}" for n in range(100, 109))
    found = refusal([(f"own line about {n}", True) for n in range(9)], new)
    assert found is not None
    assert found.count('"') == 6
    assert "6 more" in found


def test_the_first_memory_may_be_written() -> None:
    assert refusal([], "likes tea") is None


@given(st.lists(st.text("abc1 不", max_size=8)), st.lists(st.text("abc1 不", max_size=8)))
def test_the_index_finds_a_successor_where_there_is_one(old: list[str], new: list[str]) -> None:
    """The same as asking every pair."""
    for line, found in zip(old, successors(old, new), strict=True):
        expected = [n for n, other in enumerate(new) if succeeds(line, other)]
        assert found in expected if expected else found is None


@given(st.lists(st.text("abAB \n#-", max_size=9)))
def test_a_list_holds_each_memory_once(lines: list[str]) -> None:
    """M-007: and the same list again loses nothing."""
    found = listed("\n".join(lines))
    assert len(found) == len({key(line) for line in found})
    again = refusal([(line, True) for line in found], "\n".join(lines))
    assert (again is None) is bool(found)


def test_a_long_list_is_judged_in_a_moment() -> None:
    old = [(f"the person told us about thing {n} in town", True) for n in range(5_000)]
    text = "\n".join(f"told us of thing {n} in the town" for n in range(5_000))
    with cheap(5):
        assert refusal(old, text) is None
