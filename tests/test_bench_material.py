"""The material of the memory figures: whole, varied, and answerable."""

import re
from collections import Counter
from datetime import datetime

import pytest

from tests.bench_score import MATERIAL, asked, rows

DIALOGUES = ("dialogue_de", "dialogue_zh", "dialogue_es", "dialogue_ja")
SETS = ("assistant", *DIALOGUES)
WORD_OR_SIGN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


def turns(name: str) -> list[dict[str, str]]:
    return rows(MATERIAL / f"{name}_turns.jsonl")


def distinct_triples(texts: list[str]) -> float:
    """Of all runs of three words (or signs, where words are not spaced) the share that differ."""
    triples: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = WORD_OR_SIGN.findall(text.lower())
        triples.update(zip(words, words[1:], words[2:], strict=False))
    return len(triples) / triples.total()


@pytest.mark.parametrize("name", SETS)
def test_each_id_stands_once(name: str) -> None:
    """M-067: an id that comes twice would make one row of two messages."""
    for part in ("turns", "questions", "evidence"):
        ids = Counter(row["id"] for row in rows(MATERIAL / f"{name}_{part}.jsonl"))
        assert set(ids.values()) == {1}


@pytest.mark.parametrize("name", SETS)
def test_lines_have_the_shape_that_import_reads(name: str) -> None:
    """M-067, M-069: text, id, at, speaker, scope; a question has no more than its shape."""
    shape = {"id", "text", "at", "speaker", "scope"}
    assert all(set(turn) == shape and all(turn.values()) for turn in turns(name))
    extra = {"before"} if name == "assistant" else set()
    questions = rows(MATERIAL / f"{name}_questions.jsonl")
    assert all(set(line) == {"id", "query", "scope"} | extra for line in questions)


@pytest.mark.parametrize("name", SETS)
def test_time_only_moves_forward_within_a_scope(name: str) -> None:
    """Neighbours are found by order and `at`."""
    last: dict[str, datetime] = {}
    for turn in turns(name):
        at = datetime.fromisoformat(turn["at"])
        assert at >= last.get(turn["scope"], at)
        last[turn["scope"]] = at


@pytest.mark.parametrize("name", SETS)
def test_evidence_is_a_message_of_the_scope_that_is_asked(name: str) -> None:
    """An answer in another scope could never be found (M-010); what an assistant said is none."""
    spoken = {turn["id"]: turn for turn in turns(name)}
    for question in asked(name):
        assert question.evidence
        for turn in question.evidence:
            assert spoken[turn]["scope"] == question.scope
            assert spoken[turn]["speaker"] != "assistant"


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_said_or_asked_twice(name: str) -> None:
    """Two equal texts would be two right answers of which one counts as wrong."""
    texts = Counter(turn["text"] for turn in turns(name) if len(turn["text"]) > 20)
    assert set(texts.values()) == {1}
    queries = Counter((one.scope, one.query) for one in asked(name))
    assert set(queries.values()) == {1}


@pytest.mark.parametrize("name", DIALOGUES)
def test_a_dialogue_is_long_enough_to_get_lost_in(name: str) -> None:
    """Two people, at least 150 messages and 25 questions."""
    said = turns(name)
    assert len({turn["speaker"] for turn in said}) == 2
    assert len(said) >= 150
    assert len(asked(name)) >= 25
    assert distinct_triples([turn["text"] for turn in said]) > 0.8


@pytest.mark.parametrize("language", ["en", "de", "es"])
def test_a_person_is_short_and_an_assistant_long(language: str) -> None:
    """Per language at least 300 messages and 50 questions; answers of 80 to 250 words."""
    scope = f"room:!assistant-{language}"
    said = [turn for turn in turns("assistant") if turn["scope"] == scope]
    answers = [turn["text"] for turn in said if turn["speaker"] == "assistant"]
    own = [turn["text"] for turn in said if turn["speaker"] != "assistant"]
    assert len(said) >= 300
    assert sum(one.scope == scope for one in asked("assistant")) >= 50
    assert all(80 <= len(text.split()) <= 250 for text in answers)
    assert all(len(text.split()) <= 40 for text in own)
    assert distinct_triples(own) > 0.9
    assert distinct_triples(answers) > 0.4


def test_each_kind_of_question_is_there() -> None:
    """Recall by other words most of all; several messages, time, and what was corrected."""
    kinds = Counter(one.category for name in SETS for one in asked(name))
    assert set(kinds) == {
        "single-hop",
        "paraphrase",
        "multi-hop",
        "temporal",
        "corrected",
        "context",
    }
    assert kinds["paraphrase"] > kinds.total() / 3


def test_nobody_reads_an_answer_in_the_reply_before() -> None:
    """The reply above a question must not hold what the question looks for."""
    spoken = {turn["id"]: turn["text"].lower() for turn in turns("assistant")}
    for question in asked("assistant"):
        assert not any(spoken[turn] in question.before.lower() for turn in question.evidence)


def test_readme_counts_what_is_there() -> None:
    """The table of the README is the material's own count."""
    readme = (MATERIAL / "README.md").read_text(encoding="utf-8")
    for name in SETS:
        assert f"| `{name}` | {len(turns(name))} | {len(asked(name))} |" in readme
