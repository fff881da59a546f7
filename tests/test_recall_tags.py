"""Tags that ask for pages, in what a model says: read, and never shown (W-026, W-033)."""

import json
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.llm.special_tokens import SpecialTokens
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import Call, Json

OFFERED: dict[str, Json] = {"echo": {}}


def read(text: str, cuts: list[int]) -> tuple[str, list[str]]:
    """What is left of a text that comes in pieces, as somebody sees it who looks at each."""
    markup, shown = SpecialTokens(recalls=True), ""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for first, last in pairwise(edges):
        markup.feed(text[first:last])
        piece = markup.fresh()
        shown = (markup.fresh() or "") if piece is None else shown + piece
    markup.end()
    piece = markup.fresh()
    shown = (markup.fresh() or "") if piece is None else shown + piece
    assert shown == markup.text
    return shown, markup.titles


LONG = "x" * 1_000
TEXTS = [
    ("<recall>Garden</recall>", "", ["Garden"]),
    ("<RECALL> Garden </Recall>", "", ["Garden"]),
    ("<recall>\nThe\nGarden\n</recall>", "", ["The\nGarden"]),
    ("<recall></recall>", "", [""]),
    ("<recall> \n </recall>yes", "yes", [""]),
    ("Let me look.\n<recall>Garden</recall>", "Let me look.\n", ["Garden"]),
    ("a <recall>Garden</recall> b <recall>Pond</recall> c", "a  b  c", ["Garden", "Pond"]),
    ('it is in "<recall>Garden</recall>"', 'it is in ""', ["Garden"]),
    ("> <recall>Garden</recall>", "> ", ["Garden"]),
    ("<recall>v1.2 & `b` </tool></recall>", "", ["v1.2 & `b` </tool>"]),
    # In code it is text, and so is the rest of an answer after it.
    ("`<recall>Garden</recall>` asks", "`<recall>Garden</recall>` asks", []),
    ("``a ` <recall>b</recall>``", "``a ` <recall>b</recall>``", []),
    ("```\n<recall>Garden</recall>\n```\nso", "```\n<recall>Garden</recall>\n```\nso", []),
    ("- ~~~\n  <recall>a</recall>\n  ~~~\nso", "- ~~~\n  <recall>a</recall>\n  ~~~\nso", []),
    ("```\na\n```\n<recall>b</recall>", "```\na\n```\n", ["b"]),
    ("<think><recall>Garden</recall></think>yes", "yes", []),
    ("<recall>Garden</recall> hm</think>yes", "yes", []),
    ("<tool_call><recall>Garden</recall></tool_call>", "", []),
    # What is not closed: a title where nothing follows, else only its mark goes.
    ("<recall>Garden", "", ["Garden"]),
    ("so <recall>Garden\n", "so ", ["Garden"]),
    ("<recall>Garden<|im_end|>", "", ["Garden"]),
    ("<recall>" + "x" * 255, "", ["x" * 255]),
    ("<recall>" + "x" * 256, "x" * 256, []),
    ("<recall>Garden\nand more", "Garden\nand more", []),
    ("<recall>", "", []),
    ("a <recall>b <recall>Garden</recall>", "a b ", ["Garden"]),
    ("<recall>b <think>c</think>d", "b d", []),
    ("<recall>b `<recall>c</recall>`", "b `<recall>c</recall>`", []),
    ("yes</recall>", "yes", []),
    ("</recall>\n\nyes", "yes", []),
    (f"<recall>{LONG}</recall>", "", [LONG]),
    (f"<recall>{LONG}x</recall> y", f"{LONG}x y", []),
    (f"<recall>x{' ' * 1_200}</recall>", f"x{' ' * 1_200}", []),
    # What is none.
    ("<recal", "<recal", []),
    ("<recalled> <recall title='a'> </ recall>", "<recalled> <recall title='a'> </ recall>", []),
    ("1 < 2 <rec", "1 < 2 <rec", []),
]


@pytest.mark.parametrize(("text", "left", "titles"), TEXTS)
@given(cuts=st.lists(st.integers(0, 3_000), max_size=8))
def test_what_is_read_or_asked(text: str, left: str, titles: list[str], cuts: list[int]) -> None:
    """W-033: in any case, over line breaks, not in code, however it comes cut."""
    assert read(text, cuts) == (left, titles)
    assert read(text, list(range(len(text)))) == (left, titles)


MARKS = ("<think>", "</think>", "<|im_end|>")


@given(
    st.lists(
        st.sampled_from(
            [
                *[
                    "<recall>",
                    "</recall>",
                    "<rec",
                    "all>",
                    "</",
                    "Garden",
                    "`",
                    "```\n",
                    "<s>",
                    "\n",
                    " ",
                ],
                *MARKS,
            ]
        ),
        max_size=14,
    ),
    st.lists(st.integers(0, 120), max_size=6),
)
def test_where_a_tag_is_cut_does_not_matter(pieces: list[str], cuts: list[int]) -> None:
    """Nor does any cut show a tag for a moment: what was shown is never taken back (W-027)."""
    text = "".join(pieces)
    assert read(text, cuts) == read(text, [])


def test_where_no_page_can_be_asked_for_a_tag_is_text() -> None:
    markup = SpecialTokens()
    markup.feed("a <recall>Garden</recall> b <Recall>c")
    markup.end()
    assert (markup.text, markup.titles) == ("a <recall>Garden</recall> b <Recall>c", [])


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "text",
    [
        "<recall>" * 50_000,
        ("<recall>" + "x" * 1_008) * 400,
        "<recall>" + "x" * 400_000,
        "<recall></recall>" * 25_000,
        "</recall>" * 50_000,
        "<recall> " * 50_000,
        "<recall>`" * 50_000,
    ],
    ids=["marks", "long", "one", "empty", "ends", "blanks", "code"],
)
def test_tags_without_end_take_no_longer_than_they_are(text: str) -> None:
    with cheap(15):
        markup = SpecialTokens(recalls=True)
        for at in range(0, len(text), 8):
            markup.feed(text[at : at + 8])
            markup.fresh()
        markup.end()


def answered(*deltas: Json, offered: dict[str, Json] = OFFERED, finish: str = "stop") -> Answer:
    """An answer that came as a stream of these pieces."""
    numbers = count(1)
    gathering = AnswerParser(offered=offered)
    for delta in deltas:
        event = {"choices": [{"delta": delta, "finish_reason": None}]}
        gathering.feed(f"data: {json.dumps(event)}\n\n".encode())
    end = {"choices": [{"delta": {}, "finish_reason": finish}]}
    gathering.feed(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
    return gathering.answer(lambda prefix: f"{prefix}_{next(numbers)}")


def asks(number: int, title: str) -> Call:
    return Call(f"call_{number}", "recall", json.dumps({"title": title}), "tag")


def test_tags_become_calls_behind_the_native_ones_and_the_rest_is_said() -> None:
    """W-033, W-035: also where `recall` is not offered, but not where nothing is."""
    native = {"index": 0, "id": "c", "function": {"name": "echo", "arguments": "{}"}}
    said = {"content": "One <recall>Garden</recall> two\n<recall>Pond</recall>\n\n"}
    both = answered(said, {"tool_calls": [native]}, finish="tool_calls")
    assert both.text == "One  two"
    assert both.calls == (Call("c", "echo", "{}"), asks(1, "Garden"), asks(2, "Pond"))
    assert answered(said).calls == (asks(1, "Garden"), asks(2, "Pond"))
    untouched = answered(said, offered={})
    assert (untouched.text, untouched.calls) == (said["content"], ())


def test_an_answer_of_nothing_but_a_tag_is_a_call() -> None:
    """W-026: none that is empty; and what stands in reasoning is none."""
    alone = answered({"content": "<recall>Garden</recall>"})
    assert (alone.text, alone.calls) == ("", (asks(1, "Garden"),))
    written = '<tool_call>{"name": "echo"}</tool_call><recall>Garden</recall>'
    assert [call.name for call in answered({"content": written}).calls] == ["echo", "recall"]
    thought = answered({"reasoning_content": "<recall>Garden</recall>", "content": "yes"})
    assert (thought.text, thought.calls) == ("yes", ())


def test_titles_are_told_as_they_were_written() -> None:
    """Quotes, backslashes and letters of any kind."""
    title = 'a "b" \\ \N{GREEK SMALL LETTER PI}\n\N{PILE OF POO}'
    (call,) = answered({"content": f"<recall>{title}</recall>"}).calls
    assert json.loads(call.arguments) == {"title": title}
