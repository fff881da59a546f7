"""Random answers, sent in the manner of a random server and cut anywhere, are read alike.

Each stream comes of its seed alone: a number that fails is a test of its own.
"""

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.tiers import tiered
from tests.world.streams import content_in, in_bytes, shown_after
from wintermute.config.secrets import UNHIDDEN
from wintermute.llm.failures import Failed
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import Json

STREAMS = 500
BATCHES = 5
OFFERED: dict[str, Json] = {"read_file": {"type": "object"}, "done": {"type": "object"}}
MOST_SECONDS = 3.0
"""Of work, for one answer of some megabytes."""

PROSE = ("Guten Tag", " ", "\n", "\n\n", "ä", "ß", "👋", "👩‍👧", "x < y", "1 > 0", "&amp;", "…")
CODE = ("<think>", "</think>", "<tool_call>", "<|im_end|>", "a = 1", " ", "ö", "🙂", "[TOOL_CALLS]")
MARKUP = (*CODE, "<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>assistant")
RUNS = ("`", "``", "```", "````", "~~~", "\n```\n", "\r\n", "\r", "<", "<|", "</th", "\x07")
WILD = (
    *PROSE,
    *MARKUP,
    *RUNS,
    "<s>",
    "</s>",
    "</tool_call>",
    " to=functions.done",
    '{"name": "done"}',
)
BROKEN = "\ue000"
"""Stands for bytes that are not UTF-8."""
HALF = re.compile("[\ud800-\udfff]")
NOT_UTF8 = (b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x91", b"\x80")


@dataclass(frozen=True, slots=True)
class Said:
    """What a model says, as its server has it."""

    content: str
    calls: tuple[tuple[str, Json], ...] = ()
    finish: str | None = "stop"


Outcome = tuple[str, tuple[tuple[str, str, str], ...], str] | tuple[str, str]
"""Text, calls (id, name, arguments) and finish; or how it failed."""


def some(chance: random.Random, atoms: Iterable[str], most: int) -> str:
    return "".join(chance.choices(list(atoms), k=chance.randint(1, most)))


def prose(chance: random.Random) -> str:
    return f"So: {some(chance, PROSE, 8)}."


def in_line(chance: random.Random) -> str:
    return f"`{some(chance, CODE, 3).strip() or 'x'}`"


def fenced(chance: random.Random) -> str:
    fence = chance.choice(["```", "~~~", "````"])
    lines = "\n".join(some(chance, CODE, 4) for _ in range(chance.randint(1, 3)))
    return f"\n{fence}{chance.choice(['', 'python'])}\n{lines}\n{fence}\n"


def thought(chance: random.Random) -> str:
    """What is thought before the answer, in the manner of some template."""
    words = some(chance, PROSE, 8)
    analysis = f"<|channel|>analysis<|message|>{words}<|end|>"
    return chance.choice(["", f"<think>\n{words}</think>", f"{words}</think>\n\n", analysis])


def framed(chance: random.Random, text: str) -> str:
    """The text in the frame of some template."""
    ends = ("", "", "<|im_end|>", "<|eot_id|>", "<|im_end|>\n<|im_start|>user\nAnd now?")
    final = f"<|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    return chance.choice([final, *(text + end for end in ends)])


def tagged(chance: random.Random, name: str, given: Json) -> str:
    """One call, as text."""
    call, written = json.dumps({"name": name, "arguments": given}), json.dumps(given)
    forms = (
        f"<tool_call>\n{call}\n</tool_call>",
        f"[TOOL_CALLS][{call}]",
        f"<|tool_call_start|>[{call}]<|tool_call_end|>",
        f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{written}",
        f"[TOOL_CALLS]{name}[ARGS]{written}",
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{written}<|call|>",
    )
    return chance.choice(forms)


def arguments(chance: random.Random) -> Json:
    return {
        some(chance, ("path", "answer", "ä"), 2): some(chance, (*PROSE, *MARKUP, '"', "\\", "}"), 5)
        for _ in range(chance.randint(0, 3))
    }


def called(chance: random.Random) -> tuple[tuple[str, Json], ...]:
    count = chance.choice([0, 0, 1, 2, 3])
    return tuple((chance.choice(list(OFFERED)), arguments(chance)) for _ in range(count))


def orderly(chance: random.Random) -> tuple[Said, str]:
    """An answer whose markup is where it belongs, and the text a person may read of it."""
    text = prose(chance)
    for _ in range(chance.randint(0, 4)):
        text += chance.choice([prose, in_line, fenced])(chance)
    calls = called(chance)
    finish = "tool_calls" if calls else chance.choice(["stop", "length", "content_filter"])
    return Said(thought(chance) + framed(chance, text), calls, finish), text


def wild(chance: random.Random) -> Said:
    """An answer in which anything stands anywhere."""
    finish = chance.choice(["stop", "stop", "tool_calls", "length", "refusal", "error", "", None])
    atoms = (*WILD, BROKEN) if chance.random() < 0.5 else WILD
    return Said(some(chance, atoms, 30), called(chance), finish)


def cut(chance: random.Random, text: str) -> Iterator[str]:
    """The text in pieces, which halve characters as servers do that count as UTF-16 has them."""
    halves = text.encode("utf-16-le", "surrogatepass")
    edges = sorted({0, *(2 * chance.randint(0, len(halves) // 2) for _ in range(8)), len(halves)})
    for start, end in itertools.pairwise(edges):
        yield halves[start:end].decode("utf-16-le", "surrogatepass")


def whole_calls(chance: random.Random, said: Said) -> Iterator[Json]:
    """Calls in one part each: without ids, numbered 0 or not at all."""
    number = chance.choice([{"index": 0}, {}])
    ids: Json = chance.choice([{"id": ""}, {"id": None}, {}])
    for name, given in said.calls:
        written = given if chance.random() < 0.3 else json.dumps(given)
        part = {**number, **ids, "function": {"name": name, "arguments": written}}
        yield {"tool_calls": [part], **chance.choice([{}, {"content": ""}, {"content": None}])}


def calls_in_parts(chance: random.Random, said: Said) -> Iterator[Json]:
    """Calls cut up: by index, or by id alone; names and ids once or in each part."""
    all_zero, again = chance.random() < 0.5, chance.random() < 0.3
    for position, (name, given) in enumerate(said.calls):
        number = {"index": 0 if all_zero else position}
        head = {"id": f"call_{position}", "type": "function"}
        first: Json = {"name": name, "arguments": ""}
        yield {"tool_calls": [{**number, **head, "function": first}]}
        later = {**head, **number} if again else {**number, **chance.choice([{}, {"id": ""}])}
        named: Json = {"name": name} if again else chance.choice([{}, {"name": None}])
        for piece in cut(chance, json.dumps(given, ensure_ascii=chance.random() < 0.5)):
            yield {"tool_calls": [{**later, "function": {**named, "arguments": piece}}]}


def deltas(chance: random.Random, said: Said) -> Iterator[Json]:
    if chance.random() < 0.8:
        yield chance.choice([{"role": "assistant"}, {"role": "assistant", "content": None}])
    if chance.random() < 0.3:
        yield {chance.choice(["reasoning_content", "reasoning", "thinking"]): "hm `<"}
    for piece in cut(chance, said.content):
        yield {"content": piece}
    yield from chance.choice([whole_calls, calls_in_parts])(chance, said)


def noise(chance: random.Random) -> bytes:
    lines = (b": keep-alive", b": data: {", b":\xff\xc3", b"event: message", b"id: 7", b"retry: 9")
    return chance.choice(lines) + b"\n" if chance.random() < 0.2 else b""


def as_json(chance: random.Random, document: Json) -> bytes:
    """JSON as some server writes it; what stands for broken bytes is broken."""
    text = json.dumps(document, ensure_ascii=chance.random() < 0.3)
    if HALF.search(text):  # only an escape can tell of half a character
        text = json.dumps(document)
    text = text.replace(json.dumps(BROKEN)[1:-1], BROKEN)
    return text.encode().replace(BROKEN.encode(), chance.choice(NOT_UTF8))


def streamed(chance: random.Random, said: Said) -> bytes:
    """The answer as a stream."""
    write = partial(as_json, chance)
    events = [
        write({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in deltas(chance, said)
    ]
    if said.finish is not None:
        events.append(write({"choices": [{"delta": {}, "finish_reason": said.finish}]}))
    if chance.random() < 0.5:
        events.append(write({"choices": [], "usage": {"prompt_tokens": 9}}))
    if said.finish is not None and chance.random() < 0.8:
        events.append(b"[DONE]")
    begin, end = chance.choice([b"data: ", b"data:"]), chance.choice([b"\n\n", b"\r\n\r\n", b"\n"])
    return b"".join(noise(chance) + begin + event + end for event in events)


def unstreamed(chance: random.Random, said: Said) -> bytes:
    """The answer as one body, after empty lines."""
    calls = [
        {"id": f"call_{n}", "function": {"name": name, "arguments": json.dumps(given)}}
        for n, (name, given) in enumerate(said.calls)
    ]
    message = {"role": "assistant", "content": said.content, "tool_calls": calls or None}
    body = as_json(chance, {"choices": [{"message": message, "finish_reason": said.finish}]})
    return b"\n" * chance.randint(0, 3) + body


def sent(chance: random.Random, said: Said) -> bytes:
    return (unstreamed if chance.random() < 0.1 else streamed)(chance, said)


def read(chunks: Iterable[bytes]) -> Answer:
    numbers = itertools.count(1)
    gathering = AnswerParser(UNHIDDEN, OFFERED)
    for chunk in chunks:
        gathering.feed(chunk)
        gathering.fresh()
    return gathering.answer(lambda prefix: f"{prefix}_{next(numbers)}")


def outcome(chunks: Iterable[bytes]) -> Outcome:
    """What becomes of the stream. Anything raised but `Failed` goes through."""
    try:
        answer = read(chunks)
    except Failed as failure:
        return type(failure).__name__, failure.outcome
    calls = tuple((call.id, call.name, call.arguments) for call in answer.calls)
    return answer.text, calls, answer.finish_reason


def in_chunks(chance: random.Random, data: bytes) -> list[bytes]:
    edges = sorted({0, *(chance.randint(0, len(data)) for _ in range(12)), len(data)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def seeds(batch: int) -> range:
    return range(batch, STREAMS, BATCHES)


BATCH = pytest.mark.parametrize("batch", tiered({str(n): n for n in range(BATCHES)}, ["0"]))


@BATCH
def test_what_was_said_is_read_whatever_the_server_and_the_cuts(batch: int) -> None:
    """F-020: reasoning is left out, code keeps its markup, calls are those that were made."""
    for seed in seeds(batch):
        chance = random.Random(seed)
        said, text = orderly(chance)
        answer = read(in_chunks(chance, sent(chance, said)))
        assert answer.text.strip() == text.strip(), seed
        calls = tuple((call.name, json.loads(call.arguments)) for call in answer.calls)
        assert (calls, answer.finish_reason) == (said.calls, said.finish), seed


@BATCH
def test_a_call_that_is_written_as_text_is_that_call(batch: int) -> None:
    """F-020."""
    for seed in seeds(batch):
        chance = random.Random(seed)
        name, given = chance.choice(list(OFFERED)), {"path": some(chance, (*PROSE, '"', "}"), 5)}
        said = Said(thought(chance) + tagged(chance, name, given))
        answer = read(in_chunks(chance, sent(chance, said)))
        calls = [(call.name, json.loads(call.arguments), call.via) for call in answer.calls]
        assert (answer.text, calls) == ("", [(name, given, "tag")]), seed


@BATCH
def test_where_bytes_are_cut_makes_no_difference(batch: int) -> None:
    for seed in seeds(batch):
        chance = random.Random(seed)
        data = sent(chance, wild(chance))
        uncut = outcome([data])
        assert outcome(in_chunks(chance, data)) == uncut, seed
        assert outcome(in_bytes(data)) == uncut, seed


@BATCH
def test_a_stream_that_simply_ends_makes_up_no_call(batch: int) -> None:
    """F-018: a call is there whole or not at all, or the answer is none."""
    for seed in seeds(batch):
        chance = random.Random(seed)
        said = Said(chance.choice(["", prose(chance)]), called(chance), None)
        data = streamed(chance, said)
        for end in sorted(chance.choices(range(len(data) + 1), k=20)):
            try:
                answer = read([data[: data.rfind(b"\n", 0, end) + 1]])
            except Failed:
                continue
            calls = tuple((call.name, json.loads(call.arguments)) for call in answer.calls)
            assert calls == said.calls[: len(calls)], (seed, end)


@BATCH
def test_where_the_server_cuts_its_text_makes_no_difference(batch: int) -> None:
    for seed in seeds(batch):
        chance = random.Random(seed)
        content = some(chance, WILD, 30)
        pieces = (list(content), list(cut(chance, content)), [content])
        one, other, uncut = (outcome([content_in(each)]) for each in pieces)
        assert one == uncut, seed
        assert other == uncut, seed


@BATCH
def test_what_was_shown_while_it_came_is_what_was_said(batch: int) -> None:
    """L-089: an observer who forgets when told to has the text in the end."""
    for seed in seeds(batch):
        chance = random.Random(seed)
        shown = ""
        gathering = AnswerParser(UNHIDDEN, OFFERED)
        for chunk in in_chunks(chance, content_in(cut(chance, some(chance, WILD, 30)))):
            gathering.feed(chunk)
            shown = shown_after(gathering, shown)
        try:
            answer = gathering.answer(str)
        except Failed:
            continue
        assert shown_after(gathering, shown).strip() == answer.text.strip(), seed


def calls_in(parts: Iterable[Json]) -> bytes:
    """A stream of these parts of calls."""
    events = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def part(name: Any, arguments: Any) -> Json:
    return {"index": 0, "function": {"name": name, "arguments": arguments}}


MANY = 12_000
LARGE = 1_000_000
SPANS = ["`" * (n % 60 + 1) + "x" for n in range(MANY)]
HEAVY: dict[str, Callable[[], bytes]] = {
    "a hundred thousand backticks": lambda: content_in(["`" * 100_000]),
    "a million characters of thought": lambda: content_in(["<think>" + "hm, " * (LARGE // 4)]),
    "one line of ten megabytes": lambda: b"data: " + b"x" * (10 * LARGE),
    "ten megabytes of words": lambda: content_in(["to be "] * 40_000, id="x" * 190),
    "ten megabytes of comments": lambda: b": keep-alive\n\n" * (10 * LARGE // 14),
    "thought that ends": lambda: content_in(["<think>", *["hm, " * 10] * MANY, "</think>", "so"]),
    "backticks, one by one": lambda: content_in("`" * MANY),
    "nothing but beginnings": lambda: content_in("<" * MANY),
    "closing tags": lambda: content_in(["so </think>"] * MANY),
    "calls as text": lambda: content_in(['<tool_call>{"name": "done"}'] * MANY),
    "functions as text": lambda: content_in(["<tool_call>", *["<function=done>{"] * MANY]),
    "Python that never closes": lambda: content_in(["<|tool_call_start|>", *["f(a="] * MANY]),
    "calls in many marks": lambda: content_in(['<function=done>{"a": 1}</function>\n'] * MANY),
    "channels": lambda: content_in(["<|channel|>"] * MANY),
    "struck text": lambda: content_in(["<s>"] * MANY),
    "spans that never close": lambda: content_in(SPANS),
    "spans that never close, in one delta": lambda: content_in(["".join(SPANS)]),
    "fences that never close": lambda: content_in(["\n", "~~~", "`"] * (MANY // 3)),
    "quotes": lambda: content_in(["\n", ">" * 20, " ~~~ "] * (MANY // 3)),
    "calls without ids": lambda: calls_in([part("done", "{}")] * MANY),
    "a call that is never whole": lambda: calls_in([part("done", "{")] * MANY),
    "a long call, named in each part": lambda: calls_in(
        [part("done", '{"a": "'), *[part("done", "{ and more")] * MANY]
    ),
    "arguments that are a fence around empty lines": lambda: calls_in(
        [part("done", "```json\n" + "\n" * 2_000 + "x")]
    ),
    "a long name": lambda: calls_in(part(f"name {n}", "") for n in range(MANY)),
}


@pytest.mark.parametrize("build", tiered(HEAVY, list(HEAVY)[:3]))
def test_the_longest_answers_take_time_in_proportion(build: Callable[[], bytes]) -> None:
    data = build()
    began = time.process_time()

    def in_time() -> Iterator[bytes]:
        for at in range(0, len(data), 4096):
            assert time.process_time() - began < MOST_SECONDS
            yield data[at : at + 4096]

    outcome(in_time())
    assert time.process_time() - began < MOST_SECONDS
