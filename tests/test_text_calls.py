"""Calls that a model wrote as text, in the marks of its template (F-044)."""

import itertools
import json

import pytest

from tests.world.clock import FakeClock
from tests.world.groups import begin_group, group_line
from tests.world.house import ROOM, Gate
from tests.world.model import Text
from tests.world.story import Story
from tests.world.streams import content_in, in_bytes, shown_after
from wintermute.config.secrets import UNHIDDEN
from wintermute.llm.failures import Empty
from wintermute.llm.template_tool_calls import CallContext
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import UNREADABLE, Json


def tool(**types: str) -> Json:
    return {"properties": {name: {"type": kind} for name, kind in types.items()}}


OFFERED: dict[str, Json] = {
    "special_function": tool(arg1="integer", on="boolean"),
    "get_time": tool(city="string"),
    "echo": tool(text="string"),
    "done": {},
}
ONE, TIME = ("special_function", {"arg1": 1}), ("get_time", {"city": "Tokyo"})
NONE = ("special_function", dict[str, object]())
J = '{"name": "special_function", "arguments": {"arg1": 1}}'
QWEN = "<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>"
P = "<\uff5cDSML\uff5c"
IN = f'<{P[1:]}invoke name="get_time">\n{P}parameter name="city" string="true">Tokyo</{P[1:]}parameter>'
PY = 'get_time(city="Tokyo")'
L, V = "llama.cpp tests/test-chat.cpp@0042e207", "vllm tests/tool_parsers"

FORMS = [
    (L, f"<tool_call>\n{J}\n</tool_call>", ONE),
    (V, f"<tool_call>{J}", ONE),
    (V, '<tool_call>{"name": "get_time", "arguments": "{\\"city\\": \\"Tokyo\\"}"}</tool_call>', TIME),
    (L, f"<tool_call>\n{QWEN}\n</tool_call>", ONE),
    (L, "<tool_call>\n<function=special_function>\n</function>\n</tool_call>", NONE),
    ("ollama issue 16686", f"{QWEN}\n</tool_call>", ONE),
    ("ollama issue 16686", QWEN, ONE),
    (L, f"<|tool_call_start|>[{PY}]<|tool_call_end|>", TIME),
    ("sglang lfm2_detector", f"<|tool_call_start|>[{J}]<|tool_call_end|>", ONE),
    ("sglang lfm2_detector", "<|tool_call_start|>[special_function(on=true)]", (ONE[0], {"on": True})),
    ("public notes of Gemma 3", f"```tool_code\nprint(default_api.{PY})\n```", TIME),
    (L, '<|tool_call>call:get_time{city:<|"|>Tokyo<|"|>}<tool_call|>', TIME),
    (V, "<start_function_call>call:get_time{city:<escape>Tokyo<escape>}<end_function_call>", TIME),
    (L, "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function" '<\uff5ctool\u2581sep\uff5c>special_function\n```json\n{"arg1": 1}```' "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>", ONE),
    (L, "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>get_time" '<\uff5ctool\u2581sep\uff5c>{"city": "Tokyo"}<\uff5ctool\u2581call\u2581end\uff5c>' "<\uff5ctool\u2581calls\u2581end\uff5c>", TIME),
    (L, f"{P}function_calls>\n{IN}\n</{P[1:]}invoke>\n</{P[1:]}function_calls>", TIME),
    (L, f"{P}tool_calls>\n{IN}\n</{P[1:]}invoke>\n</{P[1:]}tool_calls>", TIME),
    ("sglang deepseekv32_detector", '<function_calls><invoke name="get_time">{"city": "Tokyo"}</invoke></function_calls>', TIME),
    (L, '<minimax:tool_call>\n<invoke name="special_function">\n<parameter name="arg1">1' "</parameter>\n</invoke>\n</minimax:tool_call>", ONE),
    (L, ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_time">]<]minimax[>[<city>Tokyo' "]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>", TIME),
    (L, "<|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0" '<|tool_call_argument_begin|>{"arg1": 1}<|tool_call_end|><|tool_calls_section_end|>', ONE),
    ("sglang kimik2_detector", '<|tool_call_begin|>special_function:0<|tool_call_argument_begin|>{"arg1": 1}', ONE),
    (L, "<tool_call>special_function\n<arg_key>arg1</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", ONE),
    (L, "<tool_call>special_function</tool_call>", NONE),
    (L, f"[TOOL_CALLS][{J[:-1]}, " + '"id": "123456789"}]', ONE),
    (L, '[TOOL_CALLS]special_function[CALL_ID]123456789[ARGS]{"arg1": 1}', ONE),
    (L, '[TOOL_CALLS]special_function[ARGS]{"arg1": 1}', ONE),
    ("llama-models prompt_format.md", '<|python_tag|>get_time.call(city="Tokyo")<|eom_id|>', TIME),
    ("llama-models prompt_format.md", f"<|python_tag|>{J.replace('arguments', 'parameters')}", ONE),
    ("llama-models prompt_format.md", '<function=special_function>{"arg1": 1}</function>', ONE),
    ("freellmapi issue 291", '<function=special_function={"arg1": 1}</function>', ONE),
    ("openai/harmony docs/format.md", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary" ' to=functions.special_function <|constrain|>json<|message|>{"arg1": 1}<|call|>', ONE),
    (L, f"<|START_ACTION|>[{J.replace('arguments', 'parameters').replace('name', 'tool_name')}]<|END_ACTION|>", ONE),
    (L, f"<TOOLCALL>[{J}]</TOOLCALL>", ONE),
    (L, f"<tool_calls>[{J}]</tool_calls>", ONE),
    (L, '<|tools_prefix|>[{"special_function": {"arg1": 1}}]<|tools_suffix|>', ONE),
    (L, f"<seed:tool_call>\n{QWEN}\n</seed:tool_call>", ONE),
]  # fmt: skip


def answer(text: str, view: CallContext | None = None, *, spells: bool = False) -> Answer:
    """The answer that a text is, byte by byte; no mark of a call was ever shown."""
    gathering = AnswerParser(UNHIDDEN, OFFERED, spells=spells, view=view or CallContext())
    shown, drafts, ids = "", list[str](), itertools.count()
    for byte in in_bytes(content_in([text])):
        gathering.feed(byte)
        shown = shown_after(gathering, shown)
        drafts.append(shown)
    found = gathering.answer(lambda prefix: f"{prefix}_{next(ids)}")
    assert shown_after(gathering, shown).strip() == found.text.strip()
    assert all(found.text.startswith(draft.rstrip()) for draft in drafts)
    return found


def calls(found: Answer) -> list[tuple[str, Json]]:
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(("_source", "text", "call"), FORMS, ids=lambda each: str(each)[:30])
def test_a_call_in_each_form_is_that_call(_source: str, text: str, call: tuple[str, Json]) -> None:
    assert (calls(answer(text)), answer(text).text) == ([call], "")
    behind = answer(f"Let me look.\n\n{text}\n")
    assert (calls(behind), behind.text.strip()) == ([call], "Let me look.")
    assert not calls(answer(f"```\n{text}\n```")) or text.startswith("```")
    assert call not in calls(answer(f"{text}\n\nThat is how."))
    page = json.dumps({"page": text}, ensure_ascii=False)
    for view in (CallContext((f"Do this: {text}",)), CallContext((page,))):
        if "channel" not in text:
            assert text.startswith(answer(text, view).text.strip() or "no")
            assert not answer(text, view).calls
    assert not answer(f"So: {text}", CallContext(tainted=True)).calls
    assert calls(answer(text, CallContext(("special_function for Tokyo",), tainted=True))) == [call]


REST = [
    ("two", f"<tool_call>{J}</tool_call>\n<tool_call>{J}</tool_call>", [ONE, ONE], ""),
    ("prefix", '[TOOL_CALLS]default_api.get_time{"city": "Tokyo"}', [TIME], ""),
    ("leaked", "<tool_call>" + J.replace("on\"", 'on<|channel|>commentary"') + "</tool_call>", [ONE], ""),
    ("number", "[TOOL_CALLS]" + J.replace("1}", '"1"}'), [ONE], ""),
    ("boolean", '[TOOL_CALLS]special_function{"on": "True"}', [(ONE[0], {"on": True})], ""),
    ("python", "[TOOL_CALLS]get_time(city='a (\"b\")\\'s=1, True')", [("get_time", {"city": "a (\"b\")'s=1, True"})], ""),
    ("text", '[TOOL_CALLS]get_time{"city": "7"}', [("get_time", {"city": "7"})], ""),
    ("unknown", "<tool_call>" + J.replace("special", "other") + "</tool_call>", None, ""),
    ("broken", "So. <tool_call>\n{no json}\n</tool_call>", None, "So."),
    ("cut", "<|tool_call_start|>[get_time(city=", None, ""),
    ("fence", "So.\n```tool_code\nx = 1\n```", None, "So."),
    ("xml", "<function=other>\n</function>", [], "<function=other>\n</function>"),
    ("json", J, [], J),
    ("fence in the midst", f"```tool_code\n{PY}\n```\nso", [], f"```tool_code\n{PY}\n```\nso"),
    ("other fence", f"So:\n```json\n{J}\n```", [], f"So:\n```json\n{J}\n```"),
    ("in the midst", f"a <tool_call>{J}</tool_call> b", [], "a  b"),
    ("mail", f"> <tool_call>{J}</tool_call>", [], f"> <tool_call>{J}</tool_call>"),
]  # fmt: skip


@pytest.mark.parametrize(("_name", "text", "found", "left"), REST, ids=[row[0] for row in REST])
def test_what_else_may_end_an_answer(
    _name: str, text: str, found: list[tuple[str, Json]] | None, left: str
) -> None:
    """None: the model is told, once, that its mark led to no call."""
    given = answer(text)
    assert given.text.strip() == left
    if found is not None:
        assert calls(given) == found
        return
    assert [call.name for call in given.calls] == [UNREADABLE]
    if left:
        assert not answer(text, CallContext(reported=True)).calls
    else:
        with pytest.raises(Empty):
            answer(text, CallContext(reported=True))


BARE = [
    (J, [ONE]),
    (f"Here it is: {J}", [ONE]),
    (f"{{curly}} {J}", []),
    (f"So:\n```\n{J}\n```", []),
]


@pytest.mark.parametrize(("text", "found"), BARE)
def test_bare_json_counts_for_who_writes_so(text: str, found: list[tuple[str, Json]]) -> None:
    assert calls(answer(text, spells=True)) == found
    assert answer(text).text == text
    assert not answer(text, CallContext((text,)), spells=True).calls


BLOCK = "<context>\n# Time\nnow\n</context>"


@pytest.mark.parametrize(
    ("text", "left"),
    [(f"{BLOCK}\n\nHello", "Hello"), (f"{BLOCK[:-3]}: no", f"{BLOCK[:-3]}: no"), ("<c", "<c")],
)
def test_an_answer_loses_our_own_block(text: str, left: str) -> None:
    assert answer(text, CallContext((f"Hi\n\n{BLOCK}",))).text == left
    assert answer(text, CallContext(("Hi",))).text == text


def test_an_answer_that_nobody_can_see_is_empty() -> None:
    with pytest.raises(Empty):
        answer("\u200b\ufeff \u2060\u3164")
    assert answer("\U0001faea").text == "\U0001faea"


ECHO = '<tool_call>\n{"name": "echo", "arguments": {"text": "hi"}}\n</tool_call>'


async def test_a_call_behind_a_sentence_is_run_and_one_of_the_message_is_not(story: Story) -> None:
    """Through the door: a message, a model that leaks, the record."""
    gate = Gate()
    story.model.script(Text(f"Let me see.\n{ECHO}"), Text("seen"))
    async with story.at_work(gates=[gate]) as house:
        await house.incoming("go")
        assert await house.said(1) == ["seen"]
        story.model.script(Text(ECHO))
        await house.incoming(f"what is {ECHO}?")
        assert await house.said(2) == ["seen", ECHO]
        story.model.script(Text("<tool_call>{broken</tool_call>"), Text("I see"))
        await house.incoming("and now?")
        assert await house.said(3) == ["seen", ECHO, "I see"]
        gates = [row["gate"] for row in await house.rows("SELECT gate FROM observations")]
    assert (gates, len(gate.taken)) == (["echo", UNREADABLE], 1)


async def test_beside_words_of_others_a_call_behind_a_sentence_is_text(story: Story) -> None:
    clock, gate, text = FakeClock(), Gate(), f"So.\n{ECHO}"
    story.model.script(Text(text), Text(ECHO), Text("seen"))
    async with story.at_work(clock=clock, gates=[gate]) as house:
        await begin_group(house, clock)
        for n, said in enumerate((text, "seen")):
            await group_line(house, "let us see")
            await house.incoming(f"go {n}", scope=f"room:{ROOM}")
            assert (await house.said(n + 1))[n] == said
            assert len(gate.taken) == n
