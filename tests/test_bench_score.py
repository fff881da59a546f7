"""The scoring of a memory search, on hits small enough to count by hand."""

import pytest

from tests.bench_score import AskedQuestion, asked, reciprocal_place, score, score_by, share_found


def question(name: str, *evidence: str, category: str = "single-hop") -> AskedQuestion:
    return AskedQuestion(name, "when was it?", "room:!x", "", frozenset(evidence), category)


def test_half_of_the_evidence_in_time_is_half_of_the_recall() -> None:
    """Evidence in the first and the sixth place: the first five hold half of it."""
    hits = ["a", "x1", "x2", "x3", "x4", "b"]
    found = score([question("set-en/q1", "a", "b")], {"set-en/q1": hits})
    assert found.recall == {5: 0.5, 10: 1.0, 20: 1.0}
    assert found.all_found == 1.0


def test_only_the_first_ten_count_for_all_found() -> None:
    """Evidence in the eleventh place is in recall@20 alone."""
    found = score([question("set-en/q1", "a")], {"set-en/q1": [*"bcdefghijk", "a"]})
    assert (found.recall[10], found.recall[20], found.all_found) == (0.0, 1.0, 0.0)


def test_a_hit_that_is_named_twice_counts_once() -> None:
    """A search that repeats itself gains nothing."""
    assert share_found(frozenset("ab"), ["a", "a"], 5) == 0.5


@pytest.mark.parametrize(("hits", "wanted"), [("abc", 1.0), ("xbc", 0.5), ("xyc", 0.0), ("", 0.0)])
def test_the_place_of_the_first_evidence_is_what_counts(hits: str, wanted: float) -> None:
    """MRR knows the first hit that is evidence and no other."""
    assert reciprocal_place(frozenset("ab"), list(hits)) == wanted


def test_a_question_without_hits_found_nothing_and_counts() -> None:
    """A search cannot raise its figures by staying silent."""
    questions = [question("set-en/q1", "a"), question("set-en/q2", "b")]
    found = score(questions, {"set-en/q1": ["a"]})
    assert (found.questions, found.recall[5], found.mrr) == (2, 0.5, 0.5)


def test_groups_are_scored_apart() -> None:
    """By category and by the language in the id."""
    questions = [
        question("set-en/q1", "a", category="temporal"),
        question("set-de/q1", "b", category="multi-hop"),
    ]
    hits = {"set-en/q1": ["a"]}
    by_language = score_by(lambda one: one.language, questions, hits)
    by_category = score_by(lambda one: one.category, questions, hits)
    assert {name: found.mrr for name, found in by_language.items()} == {"de": 0.0, "en": 1.0}
    assert {name: found.mrr for name, found in by_category.items()} == {
        "multi-hop": 0.0,
        "temporal": 1.0,
    }


def test_no_questions_are_no_score() -> None:
    """A mean of nothing is refused."""
    with pytest.raises(ValueError, match="no questions"):
        score([], {})


def test_the_reply_before_a_question_is_read_with_it() -> None:
    """Only the set of a person and an assistant has one."""
    assert all(one.before for one in asked("assistant"))
    assert not any(one.before for one in asked("dialogue_ja"))
