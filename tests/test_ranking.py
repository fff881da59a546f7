"""What a question finds: its words, the floor, neighbours, and who said it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench_memory import Indexed, Memory
from wintermute.memory.ranking import (
    MOST_PIECES,
    MOST_POSTINGS,
    PIECE,
    WEIGHTS,
    Candidate,
    Query,
    Scored,
    Terms,
    Weights,
    blended,
    distinct,
    embedded_text,
    fuse,
    leading,
    place_after,
    terms_of,
    text_parts,
)
from wintermute.memory.words import MOST_TERMS, query_words, words_of

ANY_TEXT = st.text(st.characters(codec=None), max_size=200)
ODD = (
    '5" screen',
    "C++",
    "a AND (",
    "*",
    "NEAR(a b)",
    "\ud800",
    "\x00",
    "👍",
    "",
    "-",
    "a" * 20_000,
)


def found(terms: Sequence[str], have: Mapping[int, str], **more: Candidate) -> list[Scored]:
    """Facts by their words, each in a conversation of its own unless it is given in `more`."""
    known = [Candidate(seq, 10 * seq) for seq in have] + list(more.values())
    postings = {word: [seq for seq in have if word in have[seq].split()] for word in terms}
    return fuse(Terms(tuple(terms), ()), postings, len(have), {}, known)


def memory(*texts: str) -> Memory:
    return Memory(
        [
            {"id": str(n), "scope": "a", "speaker": "", "at": f"{2000 + n}-01-01", "text": text}
            for n, text in enumerate(texts)
        ],
        Indexed(date=False),
    )


def asked(store: Memory, text: str) -> list[str]:
    """The ids that are found by words alone."""
    return store.ids(store.candidates("a", terms_of(Query(text)), {}).ranked(WEIGHTS))


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_is_a_safe_question(text: str, before: str) -> None:
    """M-019."""
    assert all(hit == "0" for hit in asked(memory("tea in the morning"), text))
    assert len(terms_of(Query(text, before)).all) <= 2 * MOST_TERMS


@pytest.mark.parametrize("text", ODD)
def test_signs_of_the_query_language_mean_nothing(text: str) -> None:
    """M-019."""
    assert asked(memory("tea in the morning"), text) == []


@given(st.text(max_size=200))
def test_a_fact_is_found_by_its_own_text(text: str) -> None:
    """M-019: both sides make the same words."""
    assert asked(memory(text), text) == (["0"] if query_words(text) else [])


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("I have a 5 inch display", '5" screen'),
        ("She writes C++ at work", "C++"),
        ("The dentist is on Friday", "When do I see my dentists?"),
        ("Der Zahnarzttermin ist am Freitag", "Wann muss ich zum Zahnarzt?"),
        ("Le café est fermé", "Quand est-ce que le cafe est ferme ?"),
        ("El cumpleaños de mi hija es mañana", "¿Cuándo es el cumpleanos?"),
        ("我的猫叫小白", "猫"),
        ("我星期五去看牙医", "我什么时候去看牙医?"),
        ("誕生日は八月です", "私の誕生日はいつですか"),
        ("치과는 금요일", "치과 언제"),
        ("Ich mag Äpfel", "APFEL"),
        ("ｶﾀｶﾅ", "カタカナ"),
    ],
)
def test_a_fact_is_found_in_its_language(text: str, question: str) -> None:
    """M-019: whatever endings, accents, width and case; without blanks as well."""
    assert asked(memory(text, "nothing of that", "rien", "nada", "什么都没有"), question)[0] == "0"


def test_words_of_questions_are_dropped_unless_nothing_else_is_left() -> None:
    """M-071: "when" and "what" are in half of all texts."""
    assert query_words("When did I see the dentist?") == ("see", "dentis")
    assert query_words("Wann war die Party?") == ("part",)
    assert query_words("我什么时候去看牙医?") == ("去看", "看牙", "牙医")
    assert query_words("who are you") == ("who", "are", "you")


def test_a_word_that_is_grammar_elsewhere_is_kept() -> None:
    """A son is no French pronoun, and a war no German verb, in an English question."""
    assert query_words("my son and the war") == ("son", "war")
    assert query_words("son birthday") == ("son", "birthd")


def test_months_are_found_by_their_names_in_any_language() -> None:
    """Issue 18, point 3: a date is among the words of a fact."""
    indexed = words_of("we met", "@ann:example.org", datetime(2024, 5, 3, tzinfo=UTC)).split()
    assert indexed[:3] == ["ann", "2024", "month5"]
    for text in ("What happened in May?", "Was war im Mai?", "5月的聚会", "en mayo"):
        assert "month5" in query_words(text)
    assert "month5" not in query_words("may I have tea")


def test_a_long_text_asks_for_few_words() -> None:
    """20,000 characters are as quick as a line."""
    assert len(query_words(" ".join(f"w{n}" for n in range(5_000)))) == MOST_TERMS


def test_words_of_the_reply_count_less_than_the_message() -> None:
    """P-010: the last reply is a part of the question, and weighs less."""
    terms = terms_of(Query("And the dentist?", "The garden and the dentist"))
    assert terms == Terms(("dentis",), ("gard",))
    known = [Candidate(1, 10), Candidate(2, 20)]
    hits = fuse(terms, {"dentis": [1], "gard": [2]}, 9, {}, known)
    assert [hit.seq for hit in hits] == [1, 2]
    assert hits[1].score == pytest.approx(WEIGHTS.before)


def test_nothing_is_found_where_nothing_fits() -> None:
    """M-071: no shared word and a likeness under the floor; cosine 0 never."""
    known = [Candidate(n, 10 * n) for n in range(5)]
    likeness = {1: 0.0, 2: WEIGHTS.floor, 3: -0.5, 4: math.nan}
    assert fuse(Terms(("tea",), ()), {"tea": []}, 5, likeness, known) == []
    open_floor = replace(WEIGHTS, floor=-1.0, least=0.0)
    assert {hit.seq for hit in fuse(Terms((), ()), {}, 5, {1: 0.0}, known, open_floor)} <= {
        *range(5)
    }
    assert all(not hit.meaning for hit in fuse(Terms((), ()), {}, 5, {1: 0.0}, known, open_floor))


def test_one_shared_word_is_enough_among_few_facts() -> None:
    """M-008: what was told to a new assistant is found at once."""
    store = memory("Ann drinks tea", "Bob drinks tea")
    question = "Which one of all those hot beverages, coffee, cocoa or tea, is it in the afternoon?"
    assert asked(store, question) == ["1", "0"]


def test_a_rare_word_says_more_than_a_common_one() -> None:
    """M-069: best first."""
    hits = found(("tea", "violin"), {1: "violin", **dict.fromkeys(range(2, 9), "tea")})
    assert hits[0].seq == 1


def test_a_word_counts_for_its_neighbours_and_only_once() -> None:
    """Issue 18, point 3: two places on each side, in the same conversation."""
    known = [Candidate(n, n) for n in (1, 2, 3, 4)] + [Candidate(9, place_after(4, apart=True))]
    near, far = WEIGHTS.near
    hits = fuse(Terms(("tea",), ()), {"tea": [1]}, 5, {}, known)
    assert {hit.seq: hit.score for hit in hits} == pytest.approx({1: 1.0, 2: near, 3: far})
    twice = fuse(Terms(("tea",), ()), {"tea": [1, 3]}, 5, {}, known)
    assert {hit.seq: hit.score for hit in twice} == pytest.approx({1: 1, 2: near, 3: 1, 4: near})
    last = fuse(Terms(("tea",), ()), {"tea": [4]}, 5, {}, known)
    assert 9 not in {hit.seq for hit in last}


def test_people_weigh_more_than_the_assistant_and_short_texts_more_than_long_ones() -> None:
    """Issue 18, point 3: long answers must not drown what the person said."""
    known = [
        Candidate(1, 10, "Ann", 40),
        Candidate(2, 20, "assistant", 40),
        Candidate(3, 30, "Ann", 5_000),
    ]
    hits = fuse(Terms(("tea",), ()), {"tea": [1, 2, 3]}, 9, {1: 0.5, 2: 0.5, 3: 0.5}, known)
    assert [hit.seq for hit in hits] == [1, 3, 2]


def test_an_answer_beside_what_a_person_said_does_not_come_before_other_people() -> None:
    """Issue 18, point 3: nor do the neighbours of what fits best fill all places with answers."""
    known = [
        Candidate(1, 10, "Ann", 40),
        Candidate(2, 11, "assistant", 900),
        Candidate(3, 30, "Ann", 40),
    ]
    hits = fuse(Terms(("tea", "cup"), ()), {"tea": [1, 3], "cup": [1]}, 9, {}, known)
    assert [hit.seq for hit in hits] == [1, 3, 2]


def test_what_is_likelier_than_chance_is_a_hit_and_what_is_not_needs_words() -> None:
    """M-071: the floor is stated, and nothing else keeps out what lies above it."""
    known = [Candidate(n, 10 * n) for n in (1, 2, 3)]
    just = {1: WEIGHTS.floor + 0.01, 2: WEIGHTS.floor, 3: WEIGHTS.floor - 0.01}
    assert [hit.seq for hit in fuse(Terms((), ()), {}, 9, just, known)] == [1]


def test_who_is_named_comes_first_unless_that_is_switched_off() -> None:
    """Issue 18, "Figures": a weight of its own."""
    known = [Candidate(1, 10, "@bob:example.org"), Candidate(2, 20, "@ann:example.org")]
    question = Terms(query_words("What does Bob drink, tea?"), ())
    postings = {"tea": [1, 2]}
    assert [hit.seq for hit in fuse(question, postings, 2, {}, known)] == [1, 2]
    off = replace(WEIGHTS, named=0.0)
    assert [hit.seq for hit in fuse(question, postings, 2, {}, known, off)] == [2, 1]


def test_a_common_word_is_left_out_beside_a_rare_one() -> None:
    """At 100,000 facts the work is bounded."""
    common = list(range(MOST_POSTINGS))
    terms = Terms(("the", "violin"), ())
    assert leading(terms, {"the": common, "violin": [7]}, 100_000) == [7]
    assert leading(Terms(("the",), ()), {"the": common}, 100_000)[0] == MOST_POSTINGS - 1


FACTS = st.lists(
    st.builds(
        Candidate,
        seq=st.integers(1, 30),
        place=st.integers(1, 40),
        speaker=st.sampled_from([None, "Ann", "assistant"]),
        length=st.integers(0, 20_000),
    ),
    unique_by=(lambda fact: fact.seq, lambda fact: fact.place),
)
SEQS = st.lists(st.integers(1, 30), unique=True)
LIKENESS = st.dictionaries(st.integers(1, 30), st.floats(-1, 1))
ALL = replace(WEIGHTS, least=0.0)


@given(FACTS, SEQS, SEQS, LIKENESS)
def test_the_order_of_what_was_read_makes_no_difference(
    facts: list[Candidate], tea: list[int], cup: list[int], likeness: dict[int, float]
) -> None:
    """M-069: same question, same hits; and every score is a number."""
    terms = Terms(("tea",), ("cup",))
    hits = fuse(terms, {"tea": tea, "cup": cup}, 30, likeness, facts)
    turned = dict(reversed(likeness.items()))
    assert hits == fuse(terms, {"cup": cup[::-1], "tea": tea[::-1]}, 30, turned, facts[::-1])
    assert all(math.isfinite(hit.score) and hit.score > 0 for hit in hits)
    weak = [hit.seq for hit in hits if hit.score < WEIGHTS.least]
    assert all(likeness.get(seq, 0.0) > WEIGHTS.floor for seq in weak)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, -hit.seq))


@given(FACTS, SEQS, LIKENESS, st.integers(1, 30), st.floats(0, 1))
def test_more_likeness_is_never_a_lower_score(
    facts: list[Candidate], tea: list[int], likeness: dict[int, float], seq: int, cosine: float
) -> None:
    """A fact rises with its own likeness, and takes nothing from others."""

    def scores(likeness: Mapping[int, float], weights: Weights = ALL) -> dict[int, float]:
        hits = fuse(Terms(("tea",), ()), {"tea": tea}, 30, likeness, facts, weights)
        return {hit.seq: hit.score for hit in hits}

    before = scores(likeness)
    after = scores(likeness | {seq: max(cosine, likeness.get(seq, 0.0))})
    assert all(after[n] >= before[n] - 1e-9 for n in before)


def test_equal_facts_are_one_hit_and_alike_ones_are_two() -> None:
    """Issue 18, point 3: same main words, numbers and negations; never by likeness."""
    facts = [
        ("Ann", "Tea in the morning"),
        ("Ann", "In the morning: tea!"),
        ("Ann", "Tea in the evening"),
        ("Ann", "No tea in the morning"),
        ("Bob", "Tea in the morning"),
        ("Ann", "5 mg in the morning"),
        ("Ann", "10 mg in the morning"),
    ]
    assert list(distinct(facts, lambda fact: fact)) == [
        fact for n, fact in enumerate(facts) if n != 1
    ]


def test_what_is_embedded_has_speaker_and_the_message_before() -> None:
    """Issue 18, point 3."""
    assert embedded_text("yes, on Friday", "@ann:example.org", "Bob: When is the train?") == (
        "ann: yes, on Friday Bob: When is the train?",
    )
    assert embedded_text("👍 ;)", "Ann", "Bob: Tea?") == ()


def test_who_talks_with_the_assistant_is_embedded_alone() -> None:
    """Issue 18, point 3: nobody is named there, and long answers drown what the person said."""
    answer = "assistant: Trains leave every hour"
    assert embedded_text("yes, on Friday", "Ann", answer) == ("yes, on Friday",)
    assert embedded_text("yes, on Friday", "Ann", "", "assistant") == ("yes, on Friday",)
    assert embedded_text("Then on Friday", "assistant", "Ann: when?") == ("Then on Friday",)


def test_a_long_text_is_embedded_in_pieces() -> None:
    """Issue 18, point 3: about 100 words each, also where signs are words."""
    words = text_parts(" ".join(f"w{n}" for n in range(250)))
    assert [len(piece.split()) for piece in words] == [PIECE, PIECE, 50]
    assert [len(piece) for piece in text_parts("猫が好" * 100)] == [200, 100]
    assert len(text_parts("word " * 4_000)) == MOST_PIECES
    assert len(embedded_text("word " * 250, "Ann")) == 3


@given(ANY_TEXT)
def test_pieces_lose_no_word(text: str) -> None:
    """Nothing of a text of usual length stays out."""
    assert "".join("".join(text_parts(text, 5)).split()) == "".join(text.split())


def test_a_reply_turns_the_vector_a_little() -> None:
    """P-010: one vector for a message, of length 1."""
    vector = blended([1.0, 0.0], [0.0, 1.0])
    assert math.hypot(*vector) == pytest.approx(1.0)
    assert vector[0] > 4 * vector[1] > 0
    assert blended([1.0], [-5.0]) == [1.0]
