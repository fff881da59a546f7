"""What is looked for is found however it is written, and nothing else is (F-034)."""
# ruff: noqa: RUF001  words of scripts whose letters look like others

import json
import random
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wintermute.db.text_match import ESCAPED, REST, UNSEEN, UNUSUAL, TextMatcher, WordMatcher

SENTENCE = "Ärztin Öznur Ünlü aus Köln heißt ﬁnal am 3. Mai, - İpek's Café!"
SENTENCES = (
    SENTENCE,
    "Наш зубной врач — Ёлкин Сергей, Москва",
    "我的牙医叫王小明，住在北京",
    "우리 치과의사는 김민준 선생님",
    "Ο οδοντίατρος μας ΟΔΥΣΣΕΥΣ Ψαράς",
    "طبيب الأسنان اسمه محمد علي",
    "דוקטור שרה כהן מחיפה",
    "हमारे डॉक्टर का नाम श्रीनिवास है",
    "ガラスのデンタルクリニックは渋谷",
)
OTHERS = st.text(alphabet="abc xyz.,:äß\n😀", max_size=40)


def found(wanted: str, text: str) -> list[str]:
    """What of a text is what was looked for."""
    wants = TextMatcher([wanted])
    parts = [text[start:end] for start, end in wants.spans(text)]
    assert wants.said_in(text.encode()) == bool(parts)
    assert wants.among([text.encode("utf-8", "replace")]) == ([0] if parts else [])
    beside = [b"x", text.encode("utf-8", "replace"), b"\\u0041 <b>", SENTENCE[:9].encode()]
    assert wants.among(beside) == ([1] if parts else [])
    many = [b"x", b"a &#65;"] * 20 + [text.encode("utf-8", "replace")]
    assert wants.among(many) == ([40] if parts else [])
    assert wants.among([*beside[1:], b"a\0b"]) == ([0] if parts else [])
    return parts


@pytest.mark.parametrize(
    "text",
    [
        "ärztin heißt öznur ünlü aus köln",
        "ÄRZTIN HEISST ÖZNUR ÜNLÜ AUS KÖLN",
        unicodedata.normalize("NFD", "Ärztin heißt Öznur Ünlü aus Köln"),
        "Ärztin heißt\nÖznur   Ünlü\r\naus\tKöln",
        "**Ärztin** heißt *Öznur* _Ünlü_ ~~aus~~ `Köln`",
        "# Ärztin\n> heißt Öznur\n- Ünlü\n* aus\n1. Köln",
        "| Ärztin | heißt |\n|---|:-:|\n| Öznur | Ünlü aus Köln |",
        "- [ ] Ärztin heißt [Öznur Ünlü](https://example.org/x 'y') aus Köln".replace("'", '"'),
        "<b>Ärztin</b> heißt<br/>Öznur <a href='/x'>Ünlü</a> aus<p>K<i>ö</i>ln",
        "&Auml;rztin&nbsp;hei&szlig;t &#214;znur &#xDC;nl&uuml; aus K&amp;ouml;ln",
        json.dumps("Ärztin heißt\nÖznur Ünlü aus Köln"),
        json.dumps(json.dumps(json.dumps("Ärztin heißt\tÖznur Ünlü aus Köln"))),
        r"\u003cb\u003eÄrztin\u003c/b\u003e heißt Öznur Ünlü aus K\u0026ouml;ln",
        "Ärz\xadtin hei\u200bßt Öz\u2060nur Ün\ufefflü aus\u3000Köln",
        "Ärztin heißt Öznur Ünlü aus Köln".translate({ord(c): ord(c) + 0xFEE0 for c in "rztinaus"}),
    ],
)
def test_it_is_found_however_it_is_written(text: str) -> None:
    assert len(found("Ärztin heißt Öznur Ünlü aus Köln", f"So: {text} ok")) == 1


@pytest.mark.parametrize(
    ("wanted", "text", "part"),
    [
        ("the ﬁnal ofﬁce", "x THE FINAL OFFICE y", "THE FINAL OFFICE"),
        ("İstanbul and ILICA", "x i̇stanbul and ilica y", "i̇stanbul and ilica"),
        ("family 👨‍👩‍👧 is here", "x family 👨👩👧 is here y", "family 👨👩👧 is here"),
        ("שלום לכולם מכאן", "\u202bשלום **לכולם** מכאן\u202c", "שלום **לכולם** מכאן"),
        ("привет из Москвы", "x ПРИВЕТ\nиз <b>москвы</b>", "ПРИВЕТ\nиз <b>москвы"),
        (
            "https://example.org/secret",
            "[this](https://example.org/secret)",
            "https://example.org/secret",
        ),
        ("see [this](x) and that", "see this and that", "see this and that"),
        (
            "C:\\new\\tool\\user",
            json.dumps("at C:\\new\\tool\\user, ok"),
            "C:\\\\new\\\\tool\\\\user",
        ),
        ("steps: 1. eat 2. sleep", "steps:\n1. eat\n2. sleep", "steps:\n1. eat\n2. sleep"),
        ("eat well and sleep", "1. eat well\n2. and sleep", "eat well\n2. and sleep"),
        ("am 3. Mai geboren", "am\n3. Mai geboren", "am\n3. Mai geboren"),
        ("one very long cafe", unicodedata.normalize("NFD", "one very long café"), None),
        ("one very long café", "one very long cafe", None),
        ("weighs 1.5 kg today", "weighs 15 kg today", None),
        (
            "我的牙医叫王小明先生",
            "说 我的 **牙医** 叫王\u200b小明先生。",
            "我的 **牙医** 叫王\u200b小明先生",
        ),
        ("врач Ёлкин Сергей", "x ВРАЧ\u2009Е\u0308лкин Сер•гей y", "ВРАЧ\u2009Е\u0308лкин Сер•гей"),
        (
            "치과의사는 김민준",
            json.dumps("x 치과의사는\n김민준 y"),
            json.dumps("치과의사는\n김민준")[1:-1],
        ),
        ("치과의사는 김민주", "치과의사는 김민준", None),
        ("Ο γιατρός ΟΔΥΣΣΕΥΣ", "x ο ΓΙΑΤΡΌΣ Οδυσσευς y", "ο ΓΙΑΤΡΌΣ Οδυσσευς"),
        (
            "привет из Москвы",
            "&#1087;ривет из &amp;#1052;осквы",
            "&#1087;ривет из &amp;#1052;осквы",
        ),
        ("привет из Москвы", "&#X43F;ривет из Москвы", "&#X43F;ривет из Москвы"),
        (
            "hello and welcome",
            "h&amp;#101;llo and we&amp;amp;#x6c;come",
            "h&amp;#101;llo and we&amp;amp;#x6c;come",
        ),
        ("a dog", "x\n- A **dog**\ny", "A **dog"),
        ("a dog", "he has a dog", None),
        ("a", "a cat sat on a mat", None),
        ("***", "*** and ***", None),
        ("<b><i><u><p><br>a", "banana and <b>a</b>", None),
    ],
)
def test_exactly_the_words_are_found(wanted: str, text: str, part: str | None) -> None:
    """Neither a letter without its accent, nor what a short text stands in by chance."""
    assert found(wanted, text) == ([] if part is None else [part])


def test_words_of_several_scripts_are_looked_for_at_once() -> None:
    """One text of ASCII does not hide another of none: each has a first look of its own."""
    wanted = TextMatcher(["the shed opens with 4711", SENTENCES[1], SENTENCES[2], SENTENCES[3]])
    rows = [
        f"so: {text}"
        for sentence in SENTENCES[1:4]
        for text in (sentence, sentence.upper(), json.dumps(json.dumps(sentence)), "привет")
    ]
    rows += ["THE SHED opens with 4711", "the shed", *map(json.dumps, ("зубной врач", "我的牙医"))]
    columns = [row.encode() for row in rows]
    assert wanted.among(columns) == [n for n, row in enumerate(rows) if wanted.is_in(row)]
    assert wanted.among(columns) == [0, 1, 2, 4, 5, 6, 8, 9, 10, 12]


def test_what_is_cut_leaves_the_rest_as_it_was() -> None:
    wanted = TextMatcher(["the shed opens with 4711", "a garden gnome guards it"])
    text = "**The shed**\nopens with `4711`. Milk & A garden gnome guards it, THE SHED opens with 4711!"
    assert wanted.cut(text, "[erased]") == "**[erased]`. Milk & [erased], [erased]!"


@given(sentence=st.sampled_from(SENTENCES), before=OTHERS, after=OTHERS, seed=st.integers(0, 10**9))
def test_a_sentence_in_any_dress_is_found(
    sentence: str, before: str, after: str, seed: int
) -> None:
    chance = random.Random(seed)
    dressed = sentence[0] + "".join(_mark(mark, chance) for mark in sentence[1:])
    dressed = unicodedata.normalize(chance.choice(("NFC", "NFD")), dressed)
    parts = [before, dressed, after]
    for _ in range(chance.randrange(3)):
        ascii_only = chance.random() < 0.5
        parts = [json.dumps(part, ensure_ascii=ascii_only)[1:-1] for part in parts]
    assert found(sentence, "".join(parts)) == [parts[1]]
    assert TextMatcher([sentence]).cut("".join(parts), "·") == f"{parts[0]}·{parts[2]}"


@given(before=OTHERS, seed=st.integers(0, 10**9))
def test_a_text_that_lacks_a_word_is_not_touched(before: str, seed: int) -> None:
    chance = random.Random(seed)
    words = SENTENCE.split()
    del words[chance.choice([n for n, word in enumerate(words) if word != "-"])]
    assert found(SENTENCE, before + "".join(_mark(mark, chance) for mark in " ".join(words))) == []


def _mark(mark: str, chance: random.Random) -> str:
    """A character as it may be written, now and then in an odd way."""
    if mark == " ":
        return chance.choice(
            (" ", " ", "\n", " \n ", "\xa0", "&nbsp;", "<br>", " ** ", "\n> ", "\n- ")
        )
    mark = chance.choice((mark, mark.lower(), mark.upper()))
    if chance.random() < 0.15:
        mark = "".join(f"&#{ord(one)};" for one in mark)
    inside = chance.choice((*[""] * 20, "**", "_", "\xad", "\u200b", "&shy;", "<b>", "</i>", "`"))
    return inside + mark if mark[0].isalpha() else mark


def test_no_character_breaks_a_word_unseen_by_the_first_look() -> None:
    """The quick look at a row skips only what cannot hold a word in another writing."""
    missed = [
        hex(code)
        for code in (
            *range(0x3400),
            *range(0xA000, 0xAC00),
            *range(0xF900, 0x20000),
            *range(0xE0000, 0xE1000),
        )
        for mark in [chr(code)]
        if _breaks(mark) and not (mark.isascii() and mark.isalnum())
        for form in (f"x{mark}x", json.dumps(f"x{mark}x"))
        for text in [form.encode().lower()]
        if not (b"xx" in text.translate(None, REST) or ESCAPED.search(text) or UNUSUAL.search(text))
    ]
    assert missed == []


def _breaks(mark: str) -> bool:
    """Whether it is nothing, or a letter or digit of ASCII."""
    if mark.isspace() or mark == "\b":  # which JSON writes as it does a line end
        return False
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", mark).casefold())
    accented = any(map(unicodedata.combining, plain))
    return UNSEEN.fullmatch(mark) is not None or (
        mark not in "ßẞ" and not accented and any(c.isascii() and c.isalnum() for c in plain)
    )


BOMBS = (
    "<a ",
    "](",
    "&amp;",
    "\\",
    "<!--",
    "[x](",
    "1. ",
    "\n",
    "*",
    "- ",
    "\\u",
    "\\ud83d",
    "ab ",
)
MORE = ("e\u0301", "\u0301", "abcdefgh ijk", "&#97;", "<b>a", "_a", "|:-", "] (", '](a "')


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("bomb", [*BOMBS, *MORE])
def test_the_time_it_takes_grows_with_the_text_and_no_faster(bomb: str) -> None:
    """Sixteen times the text takes sixteen times as long, not two hundred times."""
    wanted = TextMatcher(["abcdefgh ijkl", "ab"])

    def taken(length: int) -> float:
        text = bomb * (length // len(bomb))
        began = time.process_time()
        assert not wanted.said_in(text.encode())
        assert wanted.spans(text) == []
        return time.process_time() - began

    # Once is enough: a busy machine makes one of the two slower, but what grows faster always does.
    assert any(taken(32_000) < 70 * max(taken(2_000), 0.002) for _ in range(3))


@pytest.mark.parametrize(
    ("word", "text", "there"),
    [
        ("zimtkanarie", "Die ZIMTKANARIEN singen", True),
        ("zimtkanarie", "a Lieblingszimtkanarie", True),
        ("reise", "Die Reisen", True),
        ("reise", "eine Preiselbeere", False),
        ("öznur", json.dumps({"args": json.dumps("Frau Öznur")}), True),
        ("öznur", unicodedata.normalize("NFD", "ÖZNUR"), True),
        ("петрова", json.dumps("Мария Петрова"), True),
        ("петрова", "ПЕТРОВА", True),
        ("петрова", "Петров", False),
        ("4711-12", "4711-13", False),
    ],
)
def test_a_word_is_found_alone_or_as_a_beginning(word: str, text: str, there: bool) -> None:
    """M-030: by which a later answer is known; also inside another word if it is long."""
    others = [b"nothing of it", b"", "Größe, früher".encode()]
    assert WordMatcher([word, "unsaid"]).among([*others, text.encode()]) == [3] * there
    assert WordMatcher([]).among([text.encode()]) == []
