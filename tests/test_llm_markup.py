"""What a model says, apart from what its template left in (F-020)."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.llm.special_tokens import SpecialTokens, TextCall
from wintermute.llm.template_tool_calls import template_calls
from wintermute.messages import Json


def read(text: str, cuts: list[int], *, aloud: bool = False) -> tuple[str, list[TextCall]]:
    """What is left of a text that comes in pieces, as somebody sees it who looks at each."""
    markup, shown = SpecialTokens(aloud=aloud), ""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for first, last in pairwise(edges):
        markup.feed(text[first:last])
        shown = looked(markup, shown)
    markup.end()
    calls = [piece for piece in markup.tail if isinstance(piece, TextCall)]
    markup.settle()
    shown = looked(markup, shown)
    assert shown == markup.text
    return shown, calls


def looked(markup: SpecialTokens, shown: str) -> str:
    piece = markup.fresh()
    if piece is None:
        return markup.fresh() or ""
    return shown + piece


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|>"
    "<|start|>assistant<|channel|>final<|message|>yes<|return|>"
)
CALLED = '{"name": "a"}'

TEXTS = [
    ("plain", "plain"),
    ("<think>a</think>\n\nyes", "yes"),
    ("<think>\n</think>\n\nyes", "yes"),
    ("it was begun in the prompt</think>yes", "yes"),
    ("<think>never closed", ""),
    ("before <think>a</think> after", "before  after"),
    ("<think>a<think>b</think>c</think>yes", "yes"),
    ("<THINK>a</Think>yes", "yes"),
    ("[THINK]a[/THINK]yes", "yes"),
    ("\u25c1think\u25b7a\u25c1/think\u25b7yes", "yes"),
    ("\uff1cthink\uff1ea\uff1c/think\uff1eyes", "yes"),
    ("<think>`</think>` is how it ends</think>yes", "yes"),
    ("`<think>` begins it", "`<think>` begins it"),
    ("``a ` <think>`` <think>b</think>c", "``a ` <think>`` c"),
    ("a ` b <think>c</think>d", "a ` b d"),
    ("a `\n\n<think>b</think>c`", "a `\n\nc`"),
    ("```\n</think>\n```\nok <think>a</think>b", "```\n</think>\n```\nok b"),
    ("````\n```\n<think>\n````\n<think>a</think>b", "````\n```\n<think>\n````\nb"),
    ("- ~~~xml\n  <tool_call>\n  ~~~\n- b", "- ~~~xml\n  <tool_call>\n  ~~~\n- b"),
    ("in the line ``` <think>a</think>b", "in the line ``` b"),
    ("```py\nnever closed <think>", "```py\nnever closed <think>"),
    (HARMONY, "yes"),
    ("<|channel|>final<|message|>yes", "yes"),
    ("<|start|>assistant<|message|>yes<|end|>", "yes"),
    ("<|channel|>never a message", ""),
    ("<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nand?", "yes"),
    ("yes<|eot_id|>", "yes"),
    ("<s>old</s> new</s>", "<s>old</s> new"),
    (f"let me see <tool_call>{CALLED}</tool_call> so", "let me see  so"),
    ("> <tool_call>quoted mail</tool_call>\nso", "> \nso"),
    ("1 < 2, [x] ~~no~~ <b>bold</b> <|no mark|>", "1 < 2, [x] ~~no~~ <b>bold</b> <|no mark|>"),
    ("<", "<"),
    ("<thin", "<thin"),
    ("```", "```"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "left"), TEXTS)
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_what_a_person_reads(text: str, left: str, cuts: list[int]) -> None:
    """However it comes cut."""
    assert read(text, cuts)[0] == left
    assert read(text, list(range(len(text))))[0] == left


@given(st.text(alphabet="<think>/`~\n a[]|", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_where_it_is_cut_does_not_matter(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == read(text, [])


def test_a_model_known_to_think_aloud_is_shown_once_it_has_ended_that() -> None:
    markup = SpecialTokens(aloud=True)
    markup.feed("hm ")
    assert markup.fresh() == ""
    markup.feed("</think>yes")
    assert markup.fresh() == "yes"
    other = SpecialTokens(aloud=True)
    other.feed("just said")
    other.end()
    assert other.fresh() == "just said"


def test_halves_of_a_character_are_put_together() -> None:
    markup = SpecialTokens()
    for piece in ("a\ud83d", "\ude00b\r", "\nc\ud83d"):
        markup.feed(piece)
    markup.end()
    assert markup.text == "a\U0001f600b\nc\ufffd"


OFFERED: dict[str, Json] = {
    "a": {"properties": {"n": {"type": "integer"}, "t": {"type": "string"}}},
    "done": {},
}
QWEN = "<function=a>\n<parameter=n>\n7\n</parameter>\n<parameter=t>\n7\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "a", "arguments": {"n": 1}}</tool_call>', [("a", {"n": 1})]),
        ('<tool_call>\n{"name": "a", "parameters": {"n": 1}}', [("a", {"n": 1})]),
        ('<tool_call>{"name": "a", "arguments": "{\\"n\\": 1}"}</tool_call>', [("a", {"n": 1})]),
        ('<tool_call>{"function": {"name": "a", "arguments": {}}}</tool_call>', [("a", {})]),
        ('<tool_call>[{"name": "a"}, {"name": "done"}]</tool_call>', [("a", {}), ("done", {})]),
        ('<tool_call>{"name": "a"}</tool_call>\n' * 2, [("a", {}), ("a", {})]),
        (f"<tool_call>\n{QWEN}\n</tool_call>", [("a", {"n": 7, "t": "7"})]),
        ('[TOOL_CALLS] [{"name": "a", "arguments": {"n": 1}}]', [("a", {"n": 1})]),
        ('[TOOL_CALLS]a{"n": 1}[TOOL_CALLS]done[ARGS]{}', [("a", {"n": 1}), ("done", {})]),
        (
            '<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"n": 1}<|call|>',
            [("a", {"n": 1})],
        ),
        (
            '<tool_call>{"name": "submit_answer", "arguments": {"answer": 1}}',
            [("done", {"answer": 1})],
        ),
        ('<tool_call>{"name": "web_search"}</tool_call>', []),
        ("<tool_call>no json</tool_call>", []),
        ('<tool_call>{"name": {"a": 1}, "arguments": [1]}</tool_call>', []),
        ("<tool_call>" + "[" * 100_000, []),
        ('```\n<tool_call>{"name": "a"}</tool_call>\n```', []),
        ('<think><tool_call>{"name": "a"}</tool_call></think>', []),
    ],
)
def test_calls_written_as_text(text: str, calls: list[tuple[str, Json]]) -> None:
    _, written = read(text, [])
    found = [call for each in written for call in template_calls(each, OFFERED)]
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "text",
    [
        "<think>" + "x" * 400_000,
        "<tool_call>" + "x" * 400_000,
        "`a" * 50_000,
        "".join("`" * (n % 150 + 1) + " " for n in range(1_000)),
        "<" * 200_000,
        "```\n" + " " * 200_000,
        "<|channel|>" * 20_000,
    ],
    ids=["reasoning", "call", "backticks", "runs", "brackets", "blanks", "channels"],
)
def test_what_never_ends_takes_no_longer_than_it_is(text: str) -> None:
    with cheap(15):
        markup = SpecialTokens()
        for at in range(0, len(text), 8):
            markup.feed(text[at : at + 8])
            markup.fresh()
        markup.end()
